//! `retake plugin`: build an executor, and say what a component is.

use super::{Exit, Global};
use crate::wasm::{Inspection, Runtime, RuntimeConfig};
use anyhow::Context;
use clap::{Args, Subcommand};
use std::{path::PathBuf, sync::Arc};

#[derive(Subcommand, Debug)]
pub(super) enum PluginCommand {
    /// Build a plugin crate into a component.
    Build(BuildArgs),
    /// Print what a component is, what it needs, and every reason why this host could not run it.
    Inspect(InspectArgs),
}

#[derive(Args, Debug)]
pub(super) struct BuildArgs {
    /// The plugin's crate.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// Where to put the component [default: <DIR>/<crate_name>.wasm].
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Install what is missing to build WebAssembly (a rustup target or Debian's packages).
    #[arg(long)]
    install: bool,
}

#[derive(Args, Debug)]
pub(super) struct InspectArgs {
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(global: &Global, command: PluginCommand) -> anyhow::Result<Exit> {
    match command {
        PluginCommand::Build(args) => tokio::task::spawn_blocking(move || build(args)).await?,
        PluginCommand::Inspect(args) => inspect(global, args).await,
    }
}

async fn inspect(global: &Global, args: InspectArgs) -> anyhow::Result<Exit> {
    let bytes: Arc<[u8]> =
        std::fs::read(&args.file).with_context(|| format!("{} could not be read", args.file.display()))?.into();
    let cache_dir = global.home().ok().map(|home| home.cache_dir());
    let runtime = Runtime::new(RuntimeConfig { cache_dir, ..RuntimeConfig::default() })?;
    let inspection: Inspection = runtime.inspect(bytes).await;
    if args.json {
        println!("{}", serde_json::to_string_pretty(&inspection)?);
    } else {
        print!("{inspection}");
    }
    Ok(if inspection.problems.is_empty() { Exit::Completed } else { Exit::Failed })
}
