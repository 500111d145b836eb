//! Guest builds of crates that stand outside any workspace, as those of third parties do. They need the toolchain
//! that `make setup` provides.

use retake_toolchain::{BuildError, Toolchain, build_component, guest_target_dir};
use std::{fs, path::Path};
use tempfile::TempDir;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A crate of somebody else with its own copy of the interface.
fn third_party(source: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |path: &str| dir.path().join(path);
    fs::create_dir_all(at("src")).unwrap();
    fs::create_dir_all(at("wit")).unwrap();
    fs::copy(Path::new(ROOT).join("wit/executor.wit"), at("wit/executor.wit")).unwrap();
    // The versions that this project has already fetched, so that the test needs no network.
    fs::copy(Path::new(ROOT).join("Cargo.lock"), at("Cargo.lock")).unwrap();
    let manifest = r#"
        [package]
        name = "third-party"
        version = "1.2.3"
        edition = "2024"
        [dependencies]
        wit-bindgen = { version = "0.61.1", default-features = false, features = ["macros", "realloc"] }
        [profile.release]
        panic = "unwind"
        opt-level = 0
    "#;
    fs::write(at("Cargo.toml"), manifest).unwrap();
    fs::write(at("src/lib.rs"), source).unwrap();
    dir
}

fn build(dir: &TempDir) -> (Result<retake_toolchain::Built, BuildError>, Vec<String>) {
    let toolchain = Toolchain::find().expect("run `make setup` first");
    let target_dir = guest_target_dir(&std::env::current_exe().unwrap());
    let mut lines = Vec::new();
    let built = build_component(&toolchain, dir.path(), &target_dir, &mut |line: &str| lines.push(line.to_owned()));
    (built, lines)
}

const EXECUTOR: &str = r#"
    wit_bindgen::generate!({ path: "wit", world: "retry-executor" });
    use exports::retake::executor::executor::{Guest, Manifest, Problem};
    use retake::executor::types::{Decision, FailedStep};
    struct ThirdParty;
    export!(ThirdParty);
    impl Guest for ThirdParty {
        fn describe() -> Manifest {
            Manifest { name: "a".into(), version: "1".into(), summary: "s".into(), config_schema: "{}".into() }
        }
        fn validate(_: String) -> Result<(), Vec<Problem>> { Ok(()) }
        fn request_error(_: FailedStep) -> Result<Decision, String> { a_name_to_keep() }
    }
    #[inline(never)]
    fn a_name_to_keep() -> Result<Decision, String> { retake::executor::waterfall::next() }
"#;

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn a_crate_outside_the_workspace_becomes_a_small_component_with_function_names() {
    let (built, lines) = build(&third_party(EXECUTOR));
    let built = built.unwrap();
    // Version 0x0d, layer 1: a component, and not a core module.
    assert_eq!(built.component[..8], *b"\0asm\x0d\0\x01\0");
    assert!(built.core_path.ends_with("third_party.wasm"), "{}", built.core_path.display());
    assert!(
        built.component.len() < 64 * 1024,
        "the guest profile must win over the crate's: {}",
        built.component.len()
    );
    assert!(contains(&built.component, "a_name_to_keep"), "function names are kept");
    assert!(lines.iter().any(|line| line.contains("Compiling third-party v1.2.3")), "{lines:?}");
}

#[test]
fn two_checkouts_of_one_crate_never_pass_for_each_other() {
    let (one, two) = (third_party(EXECUTOR), third_party(&EXECUTOR.replace("a_name_to_keep", "another_name")));
    for (dir, name, other) in [(&one, "a_name_to_keep", "another_name"), (&two, "another_name", "a_name_to_keep")] {
        let component = build(dir).0.unwrap().component;
        assert!(contains(&component, name) && !contains(&component, other), "built another checkout than {name}'s");
    }
}

#[test]
fn a_crate_that_does_not_compile_returns_the_compilers_message() {
    let (built, _) = build(&third_party("pub fn wrong() -> u32 {\n    \"text\"\n}\n"));
    let error = built.map(|built| built.core_path).unwrap_err();
    let BuildError::Compile { output, .. } = error else { panic!("{error}") };
    assert!(output.contains("error[E0308]: mismatched types") && output.contains("src/lib.rs:2:5"), "{output}");
    assert!(!output.contains("Compiling"), "{output}");
}

#[test]
fn a_library_that_implements_no_world_is_refused() {
    let (built, _) = build(&third_party("pub fn nothing() {}\n"));
    let error = built.map(|built| built.core_path).unwrap_err();
    assert!(matches!(error, BuildError::Encode { .. }) && error.to_string().contains("exports nothing"), "{error}");
}
