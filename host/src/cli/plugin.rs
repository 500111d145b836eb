//! `retake plugin`: build an executor, and say what a component is.

use super::{
    Exit, Global, runtime,
    stdout::{print, print_line},
};
use crate::wasm::Inspection;
use anyhow::Context;
use clap::{Args, Subcommand};
use retake_toolchain::{Toolchain, build_component, guest_target_dir, write_whole};
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    sync::Arc,
};

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
        PluginCommand::Build(args) => {
            let scratch = scratch_dir(global)?;
            tokio::task::spawn_blocking(move || build(args, &scratch)).await?
        }
        PluginCommand::Inspect(args) => inspect(global, args).await,
    }
}

async fn inspect(global: &Global, args: InspectArgs) -> anyhow::Result<Exit> {
    let bytes: Arc<[u8]> =
        std::fs::read(&args.file).with_context(|| format!("{} could not be read", args.file.display()))?.into();
    let cache_dir = global.home().ok().map(|home| home.cache_dir());
    let runtime = runtime(cache_dir)?;
    let inspection: Inspection = runtime.inspect(bytes).await;
    if args.json {
        print_line(&serde_json::to_string_pretty(&inspection)?)?;
    } else {
        print(&render(&args.file, &inspection))?;
    }
    Ok(if inspection.problems.is_empty() { Exit::Completed } else { Exit::Failed })
}

/// The inspection as people read it.
fn render(file: &Path, inspection: &Inspection) -> String {
    let mut text = format!("{}\n", file.display());
    let mut row = |label: &str, value: &str| {
        let _ = writeln!(text, "  {label:<14}{value}");
    };
    let named = [("name", &inspection.name), ("version", &inspection.version), ("summary", &inspection.summary)];
    for (label, value) in named {
        if let Some(value) = value {
            row(label, value);
        }
    }
    row("kind", &inspection.kind.to_string());
    row("digest", &inspection.digest);
    row("size", &format!("{} bytes", inspection.size));
    if let Some(world) = &inspection.world {
        row("world", world);
    }
    for (label, values) in [("imports", &inspection.imports), ("exports", &inspection.exports)] {
        for (index, value) in values.iter().enumerate() {
            row(if index == 0 { label } else { "" }, value);
        }
    }
    if let Some(schema) = &inspection.config_schema {
        let schema = format!("{schema:#}");
        for (index, line) in schema.lines().enumerate() {
            row(if index == 0 { "config schema" } else { "" }, line);
        }
    }
    if inspection.problems.is_empty() {
        text.push_str("This host can run it.\n");
        return text;
    }
    text.push_str("This host cannot run it:\n");
    for problem in &inspection.problems {
        let _ = writeln!(text, "- {problem}");
    }
    if let Some(advice) = &inspection.advice {
        let _ = writeln!(text, "For its author: {advice}");
    }
    text
}

/// Where guest builds keep their files: beside the host's own build when this program stands in one, so that the
/// standard library is compiled once; otherwise in the cache.
pub(super) fn scratch_dir(global: &Global) -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("the program's own path is not known")?;
    if program.ancestors().any(|dir| dir.join("CACHEDIR.TAG").is_file()) {
        return Ok(guest_target_dir(&program));
    }
    Ok(global.home()?.cache_dir().join("guest"))
}

fn build(args: BuildArgs, scratch: &Path) -> anyhow::Result<Exit> {
    let mut progress = |line: &str| eprintln!("{line}");
    let toolchain = if args.install { Toolchain::find_or_install(&mut progress)? } else { Toolchain::find()? };
    let built = match build_component(&toolchain, &args.dir, scratch, &mut progress) {
        Ok(built) => built,
        Err(error) => {
            eprintln!("error: {error}");
            return Ok(Exit::Failed);
        }
    };
    let output = match (&args.output, built.core_path.file_name()) {
        (Some(output), _) => output.clone(),
        (None, Some(name)) => args.dir.join(name),
        (None, None) => args.dir.join("plugin.wasm"),
    };
    write_whole(&output, &built.component).with_context(|| format!("{} could not be written", output.display()))?;
    print_line(&format!(
        "{} ({} bytes, built in {:.1} s)",
        output.display(),
        built.component.len(),
        built.duration.as_secs_f64()
    ))?;
    Ok(Exit::Completed)
}
