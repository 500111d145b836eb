//! Builds the components that the host carries in itself, into `OUT_DIR`: `llm_retry.wasm` and `retry_strategy.wasm`.
//!
//! When they are fresh this takes a second and touches no network. It installs nothing: that is `make setup`'s part.

use retake_toolchain::{Toolchain, build_component, guest_target_dir, write_whole};
use std::{env, error::Error, path::Path, process::ExitCode};

const EMBEDDED: [&str; 2] = ["llm-retry", "retry-strategy"];

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
    let workspace = Path::new(&manifest_dir).join("..");
    let out_dir = env::var_os("OUT_DIR").ok_or("OUT_DIR is not set; this script is run by cargo.")?;
    let out_dir = Path::new(&out_dir);
    for changing in ["wit", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", workspace.join(changing).display());
    }
    for plugin in EMBEDDED {
        // Not the whole directory: the built component of a bundle lies in it too.
        for changing in ["src", "Cargo.toml"] {
            println!("cargo::rerun-if-changed={}", workspace.join("plugins").join(plugin).join(changing).display());
        }
    }
    let toolchain = Toolchain::find()?;
    let target_dir = guest_target_dir(out_dir);
    for plugin in EMBEDDED {
        let crate_dir = workspace.join("plugins").join(plugin);
        let built = build_component(&toolchain, &crate_dir, &target_dir, &mut |line: &str| eprintln!("{line}"))?;
        write_whole(&out_dir.join(built.core_path.file_name().unwrap_or_default()), &built.component)?;
    }
    Ok(())
}
