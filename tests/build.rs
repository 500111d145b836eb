//! Builds the guests of the tests from their source, into `OUT_DIR`: `misbehave.wasm` and `wasi_user.wasm`; and makes
//! one test of every file in `cases/`, so that a case is added by adding a file.
//!
//! Like the host's own build script it installs nothing, and touches no network.

use retake_toolchain::{Toolchain, build_component, guest_target_dir, write_whole};
use std::{env, error::Error, fs, path::Path, process::ExitCode};

const GUESTS: [&str; 2] = ["misbehave", "wasi-user"];

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One directive a line: cargo shows them as they are, without a backtrace of this script.
            for line in error.to_string().lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), Box<dyn Error>> {
    // Asked for when it runs: a checkout may have been moved since this script was compiled.
    let manifest_dir =
        env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set; this script is run by cargo.")?;
    let tests = Path::new(&manifest_dir);
    let out_dir = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set; this script is run by cargo.")?;
    let out_dir = Path::new(&out_dir);
    for changing in ["../wit", "../Cargo.lock", "guests", "cases"] {
        println!("cargo::rerun-if-changed={}", tests.join(changing).display());
    }
    fs::write(out_dir.join("cases.rs"), cases(&tests.join("cases"))?)?;
    let toolchain = Toolchain::find()?;
    let target_dir = guest_target_dir(out_dir);
    for guest in GUESTS {
        let crate_dir = tests.join("guests").join(guest);
        let built = build_component(&toolchain, &crate_dir, &target_dir, &mut |line: &str| eprintln!("{line}"))?;
        write_whole(&out_dir.join(built.core_path.file_name().unwrap_or_default()), &built.component)?;
    }
    Ok(())
}

/// The source of one test for each case.
fn cases(dir: &Path) -> Result<String, Box<dyn Error>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yml") {
            let name = path.file_stem().and_then(|name| name.to_str()).ok_or("a case has a name that is not UTF-8")?;
            if !name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_') {
                return Err(format!("the case {name:?} must be named in small letters, digits and `_`").into());
            }
            names.push(name.to_owned());
        }
    }
    names.sort();
    let test = |name: &String| {
        format!(
            "#[tokio::test(flavor = \"multi_thread\", worker_threads = 2)]\nasync fn {name}() {{\n    replay({name:?}, include_str!({:?})).await;\n}}\n",
            dir.join(format!("{name}.yml"))
        )
    };
    Ok(names.iter().map(test).collect())
}
