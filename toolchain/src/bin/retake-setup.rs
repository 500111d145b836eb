//! Makes a fresh checkout ready: finds or installs the WebAssembly toolchain and builds every plugin. Run it as often
//! as you like; when nothing is missing it takes a second or two.

use retake_toolchain::{Built, Toolchain, build_component, guest_target_dir, write_whole};
use std::{
    error::Error,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

fn main() -> ExitCode {
    match setup() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error}");
            ExitCode::FAILURE
        }
    }
}

fn setup() -> Result<(), Box<dyn Error>> {
    let mut show = |line: &str| eprintln!("    {}", line.trim_start());
    let toolchain = Toolchain::find_or_install(&mut show)?;
    eprintln!("Toolchain: {toolchain}");
    let target_dir = guest_target_dir(&std::env::current_exe()?);
    if toolchain.compiles_library() && !target_dir.is_dir() {
        eprintln!("The first build compiles Rust's standard library too; that takes about two minutes.");
    }
    for plugin in plugins()? {
        let name = plugin.file_name().unwrap_or_default().to_string_lossy().into_owned();
        eprintln!("Building {name}");
        let built = build_component(&toolchain, &plugin, &target_dir, &mut show)?;
        put_into_bundle(&plugin, &built)?;
        eprintln!("Built {name}: {} KB in {:.1} s", built.component.len().div_ceil(1024), built.duration.as_secs_f64());
    }
    Ok(())
}

/// The plugin crates of this checkout, by name.
fn plugins() -> io::Result<Vec<PathBuf>> {
    // Cargo says where the checkout is now; it may have been moved since this program was compiled.
    let manifest_dir = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let dir = &Path::new(&manifest_dir).join("../plugins");
    let mut plugins = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.join("Cargo.toml").is_file() {
            plugins.push(path);
        }
    }
    plugins.sort();
    Ok(plugins)
}

/// A plugin that is a bundle too names its component beside its patch.
fn put_into_bundle(plugin: &Path, built: &Built) -> io::Result<()> {
    if plugin.join("retake.patch.yml").is_file() {
        write_whole(&plugin.join(built.core_path.file_name().unwrap_or_default()), &built.component)?;
    }
    Ok(())
}
