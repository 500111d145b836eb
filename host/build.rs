//! Builds the components that the host carries in itself, into `OUT_DIR`: `llm_retry.wasm` and `retry_strategy.wasm`.

use retake_toolchain::build_script;
use std::process::ExitCode;

const EMBEDDED: [&str; 2] = ["llm-retry", "retry-strategy"];

fn main() -> ExitCode {
    build_script::run(|manifest_dir, out_dir| {
        let workspace = manifest_dir.join("..");
        for changing in ["wit", "Cargo.lock"] {
            println!("cargo::rerun-if-changed={}", workspace.join(changing).display());
        }
        let plugins = EMBEDDED.map(|plugin| workspace.join("plugins").join(plugin));
        for plugin in &plugins {
            // Not the whole directory: the built component of a bundle lies in it too.
            for changing in ["src", "Cargo.toml"] {
                println!("cargo::rerun-if-changed={}", plugin.join(changing).display());
            }
        }
        build_script::embed(plugins, out_dir)
    })
}
