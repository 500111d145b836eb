//! Builds the guests of the tests from their source, into `OUT_DIR`: `misbehave.wasm` and `wasi_user.wasm`.
//!
//! Like the host's own build script it installs nothing, and touches no network.

use retake_toolchain::{Toolchain, build_component, guest_target_dir, write_whole};
use std::{env, error::Error, path::Path, process::ExitCode};

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
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out_dir = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set; this script is run by cargo.")?;
    let out_dir = Path::new(&out_dir);
    for changing in ["../wit", "../Cargo.lock", "guests"] {
        println!("cargo::rerun-if-changed={}", tests.join(changing).display());
    }
    let toolchain = Toolchain::find()?;
    let target_dir = guest_target_dir(out_dir);
    for guest in GUESTS {
        let crate_dir = tests.join("guests").join(guest);
        let built = build_component(&toolchain, &crate_dir, &target_dir, &mut |line: &str| eprintln!("{line}"))?;
        write_whole(&out_dir.join(built.core_path.file_name().unwrap_or_default()), &built.component)?;
    }
    Ok(())
}
