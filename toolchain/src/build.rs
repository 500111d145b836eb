//! One guest build: cargo compiles the crate to a core module, and the module becomes a validated component.

use crate::{
    Progress, TARGET, Toolchain, environment,
    find::Library,
    process::{self, Ended, Source},
};
use serde::Deserialize;
use std::{
    fs::{self, File},
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use wit_component::ComponentEncoder;

/// How a guest is compiled, whatever the crate's own profile says: small, since the host compiles it again; without
/// unwinding, which the target lacks; with function names, so that a trap can say where it happened.
const PROFILE: [&str; 6] = [
    "profile.release.opt-level='s'",
    "profile.release.lto=true",
    "profile.release.panic='abort'",
    "profile.release.codegen-units=1",
    "profile.release.debug=false",
    "profile.release.strip='debuginfo'",
];

/// A component that was built.
#[derive(Clone, Debug)]
pub struct Built {
    /// The component, ready to load.
    pub component: Vec<u8>,
    /// The core module that it was made of, in the target directory. Its file name is the component's usual name,
    /// for instance `llm_retry.wasm`.
    pub core_path: PathBuf,
    /// How long the build took, without the wait for another build.
    pub duration: Duration,
}

/// Why a crate did not become a component.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// The directory is no crate.
    #[error("{dir} has no Cargo.toml: name the directory of a plugin crate.")]
    NoManifest { dir: PathBuf },
    /// The directory for the build's files cannot be used.
    #[error("The target directory {dir} cannot be used: {reason}.")]
    TargetDir { dir: PathBuf, reason: io::Error },
    /// Cargo is gone.
    #[error("{cargo} could not be started: {reason}.")]
    Start { cargo: PathBuf, reason: io::Error },
    /// The crate does not compile; the text is the compiler's.
    #[error("The crate in {dir} does not compile for {TARGET}:\n{output}", TARGET = TARGET)]
    Compile { dir: PathBuf, output: String },
    /// Cargo succeeded and named no module.
    #[error("Building {dir} gave no WebAssembly module: a plugin crate needs a library (src/lib.rs).")]
    NoModule { dir: PathBuf },
    /// The module cannot be read back.
    #[error("The module {path} could not be read: {reason}.")]
    Read { path: PathBuf, reason: io::Error },
    /// The module is no executor, or its WIT does not fit.
    #[error(
        "The module {path} cannot become a component: {reason}. A plugin crate calls `wit_bindgen::generate!` for the \
         world `retry-executor` and `export!`s its implementation."
    )]
    Encode { path: PathBuf, reason: String },
}

/// Builds the crate in `crate_dir` (inside any workspace or in none) with its files in `target_dir`, and encodes the
/// result. A rebuild with nothing changed takes a fraction of a second; the first one in a target directory may
/// compile the standard library. Builds that share a target directory run one after the other. `progress` hears
/// cargo's own lines.
pub fn build_component(
    toolchain: &Toolchain,
    crate_dir: &Path,
    target_dir: &Path,
    progress: &mut dyn Progress,
) -> Result<Built, BuildError> {
    let manifest = crate_dir.join("Cargo.toml");
    let manifest = fs::canonicalize(&manifest).map_err(|_| BuildError::NoManifest { dir: crate_dir.into() })?;
    let _lock = lock(target_dir).map_err(|reason| BuildError::TargetDir { dir: target_dir.into(), reason })?;
    let started = Instant::now();
    let core_path = compile(toolchain, crate_dir, &manifest, target_dir, progress)?;
    let module = fs::read(&core_path).map_err(|reason| BuildError::Read { path: core_path.clone(), reason })?;
    let component = encode(&module).map_err(|reason| BuildError::Encode { path: core_path.clone(), reason })?;
    Ok(Built { component, core_path, duration: started.elapsed() })
}

/// Held from the compilation until the module is read. Cargo's own lock ends before that, and two checkouts that
/// share a target directory give their modules the same name.
fn lock(target_dir: &Path) -> io::Result<File> {
    fs::create_dir_all(target_dir)?;
    let file = File::options().create(true).append(true).open(target_dir.join(".retake-guest-lock"))?;
    file.lock()?;
    Ok(file)
}

fn compile(
    toolchain: &Toolchain,
    crate_dir: &Path,
    manifest: &Path,
    target_dir: &Path,
    progress: &mut dyn Progress,
) -> Result<PathBuf, BuildError> {
    let target_dir =
        fs::canonicalize(target_dir).map_err(|reason| BuildError::TargetDir { dir: target_dir.into(), reason })?;
    let mut cargo = environment::command(&toolchain.cargo);
    // Run where the crate is, so that a `.cargo/config.toml` or `rust-toolchain.toml` beside it counts.
    cargo.current_dir(manifest.parent().unwrap_or(crate_dir));
    // The crate type is named here: a library that is an `rlib` too, for native tests, would be denied its LTO.
    cargo.args(["rustc", "--lib", "--crate-type", "cdylib", "--release", "--target", TARGET]);
    cargo.args(["--message-format", "json-render-diagnostics", "--color", "never"]);
    cargo.arg("--manifest-path").arg(manifest).arg("--target-dir").arg(target_dir);
    for setting in PROFILE {
        cargo.args(["--config", setting]);
    }
    if let Some(rustc) = &toolchain.rustc {
        cargo.env("RUSTC", rustc);
    }
    if let Library::Source { linker } = &toolchain.library {
        // Building the library is unstable in cargo; the source belongs to this very compiler, so it fits.
        cargo.env("RUSTC_BOOTSTRAP", "1").arg("-Zbuild-std=std,panic_abort");
        cargo.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
    }
    // Cargo takes two crates of one name and layout for the same, wherever they stand, and then compares only times:
    // another checkout's newer module would pass for fresh. A flag that differs with the place tells them apart, and
    // changes nothing in the module.
    let mut place = DefaultHasher::new();
    manifest.hash(&mut place);
    cargo.arg("--").arg("--cfg").arg(format!("retake_place=\"{:016x}\"", place.finish()));
    let mut module = None;
    let mut complaints = Vec::new();
    let ended = process::run(&mut cargo, None, |source, line| match source {
        Source::Out => module = module_of(line, manifest).or(module.take()),
        Source::Err => {
            progress.line(line);
            if !is_status(line) {
                complaints.push(line.to_owned());
            }
        }
    })
    .map_err(|reason| BuildError::Start { cargo: toolchain.cargo.clone(), reason })?;
    match ended {
        Ended::Exited(status) if status.success() => {
            module.ok_or_else(|| BuildError::NoModule { dir: crate_dir.into() })
        }
        Ended::Exited(_) | Ended::TimedOut => {
            Err(BuildError::Compile { dir: crate_dir.into(), output: complaints.join("\n").trim().to_owned() })
        }
    }
}

/// What cargo says about each artifact, as far as it matters here.
#[derive(Deserialize)]
struct Message {
    reason: String,
    #[serde(default)]
    manifest_path: PathBuf,
    #[serde(default)]
    filenames: Vec<PathBuf>,
}

/// The module that a line of cargo's output announces, if it is that of `manifest` and not of a dependency.
fn module_of(line: &str, manifest: &Path) -> Option<PathBuf> {
    let message: Message = serde_json::from_str(line).ok()?;
    let is_ours = message.reason == "compiler-artifact"
        && (message.manifest_path == manifest
            || fs::canonicalize(&message.manifest_path).is_ok_and(|path| path == manifest));
    let is_module = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "wasm");
    if is_ours { message.filenames.into_iter().find(is_module) } else { None }
}

/// Whether a line is one of cargo's `   Compiling x v1.0.0`: a word that ends in column twelve.
fn is_status(line: &str) -> bool {
    line.get(..13).is_some_and(|head| {
        let word = head.trim_start();
        head.ends_with(' ')
            && word.len() > 1
            && word.trim_end().chars().all(char::is_alphabetic)
            && word.starts_with(char::is_uppercase)
    })
}

fn encode(module: &[u8]) -> Result<Vec<u8>, String> {
    // Without this a library that implements no world would become a component that offers nothing.
    let (_, world) = wit_component::metadata::decode(module).map_err(|error| format!("{error:#}"))?;
    if world.resolve.worlds[world.world].exports.is_empty() {
        return Err("it exports nothing".to_owned());
    }
    ComponentEncoder::default()
        .validate(true)
        .module(module)
        .and_then(|encoder| encoder.encode())
        // The whole chain on one line: its causes say which import or type is at fault.
        .map_err(|error| format!("{error:#}").replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargos_status_lines_are_no_complaints() {
        for line in
            ["   Compiling std v0.0.0 (/x)", "    Finished `release` profile", "    Blocking waiting for file lock"]
        {
            assert!(is_status(line), "{line}");
        }
        for line in ["error[E0308]: mismatched types", "  --> src/lib.rs:1:1", "   |", "warning: unused", ""] {
            assert!(!is_status(line), "{line}");
        }
    }

    #[test]
    fn the_module_of_a_dependency_is_not_taken_for_the_crates_own() {
        let line = |manifest: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"{manifest}","filenames":["/t/a.rlib","/t/a.wasm"]}}"#
            )
        };
        assert_eq!(
            module_of(&line("/nowhere/a/Cargo.toml"), Path::new("/nowhere/a/Cargo.toml")),
            Some("/t/a.wasm".into())
        );
        assert_eq!(module_of(&line("/nowhere/b/Cargo.toml"), Path::new("/nowhere/a/Cargo.toml")), None);
        assert_eq!(
            module_of(r#"{"reason":"build-finished","success":true}"#, Path::new("/nowhere/a/Cargo.toml")),
            None
        );
        assert_eq!(module_of("not json", Path::new("/nowhere/a/Cargo.toml")), None);
    }

    #[test]
    fn a_module_that_is_no_plugin_says_what_a_plugin_crate_does() {
        let reason = encode(b"\0asm\x01\0\0\0").unwrap_err();
        let text = BuildError::Encode { path: "x.wasm".into(), reason }.to_string();
        assert!(text.contains("x.wasm") && text.contains("wit_bindgen::generate!"), "{text}");
    }

    #[test]
    fn a_directory_without_a_manifest_is_named() {
        let root = tempfile::tempdir().unwrap();
        let toolchain =
            Toolchain { cargo: "cargo".into(), rustc: None, library: Library::Compiled, version: "1.95.0".into() };
        let error =
            build_component(&toolchain, root.path(), &root.path().join("target"), &mut |_: &str| {}).unwrap_err();
        assert!(matches!(error, BuildError::NoManifest { .. }), "{error}");
    }
}
