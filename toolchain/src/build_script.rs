//! What the build scripts of this workspace share: how one ends, and how components get into a crate.
//!
//! It installs nothing: that is `retake-setup`'s part. When the components are fresh it takes a second and touches no
//! network.

use crate::{Toolchain, build_component, guest_target_dir, write_whole};
use std::{
    env,
    error::Error,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Runs a build script with its crate's directory and its `OUT_DIR`, and tells cargo of its error.
pub fn run(build: impl FnOnce(&Path, &Path) -> Result<(), Box<dyn Error>>) -> ExitCode {
    match directories().and_then(|(manifest_dir, out_dir)| build(&manifest_dir, &out_dir)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // One directive a line: cargo shows them as they are, without a backtrace of the script.
            for line in error.to_string().lines() {
                println!("cargo::error={line}");
            }
            ExitCode::FAILURE
        }
    }
}

/// Asked for when the script runs: a checkout may have been moved since it was compiled.
fn directories() -> Result<(PathBuf, PathBuf), Box<dyn Error>> {
    let directory = |name: &str| {
        env::var_os(name).map(PathBuf::from).ok_or_else(|| format!("{name} is not set; this script is run by cargo."))
    };
    Ok((directory("CARGO_MANIFEST_DIR")?, directory("OUT_DIR")?))
}

/// Builds each of the crates into a component of its name in `out_dir`.
///
/// # Errors
/// There is no toolchain, or a crate does not build.
pub fn embed(crate_dirs: impl IntoIterator<Item = PathBuf>, out_dir: &Path) -> Result<(), Box<dyn Error>> {
    let toolchain = Toolchain::find()?;
    let target_dir = guest_target_dir(out_dir);
    for crate_dir in crate_dirs {
        let built = build_component(&toolchain, &crate_dir, &target_dir, &mut |line: &str| eprintln!("{line}"))?;
        write_whole(&out_dir.join(built.core_path.file_name().unwrap_or_default()), &built.component)?;
    }
    Ok(())
}
