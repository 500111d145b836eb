//! The `retake` command: one file a command, each thin: parse, call, print.
//!
//! stdout carries what was asked for (an answer, events, a table); everything else goes to stderr. Nothing imports
//! this module.

pub mod chaos;
mod demo;
mod dev;
mod journal;
mod plugin;
mod profile;
mod run;
mod stdout;
mod terminal;

use crate::{
    profile::Home,
    wasm::{Runtime, RuntimeConfig},
};
use clap::{Args, Parser, Subcommand};
use std::{path::PathBuf, process::ExitCode, sync::Arc};
use tracing_subscriber::EnvFilter;

/// How a command ended, as its exit status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Completed,
    /// A turn failed, or what was checked is not right.
    Failed,
    /// The command line or the configuration is wrong.
    Usage,
    Cancelled,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(match exit {
            Exit::Completed => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Cancelled => 130,
        })
    }
}

#[derive(Parser)]
#[command(
    name = "retake",
    version,
    about = "Runs LLM agent turns whose failed model requests are decided by WebAssembly components.",
    after_help = "Exit status: 0 completed, 1 a turn failed, 2 usage or configuration, 130 cancelled.\n\n\
                  Begin with `retake demo`: it needs no key and no network."
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// Calls that a command's runtime holds at once. A command runs a handful of sessions, and a pool for the library's ten
/// thousand would cost it start-up time; a call beyond these waits for a place, and never fails.
const MAX_PARKED: usize = 256;

/// A runtime for one command, with its compile cache in `cache_dir`.
fn runtime(cache_dir: Option<PathBuf>) -> anyhow::Result<Arc<Runtime>> {
    Ok(Runtime::new(RuntimeConfig { cache_dir, max_parked: MAX_PARKED })?)
}

/// What every command takes.
#[derive(Args, Clone, Debug)]
pub struct Global {
    /// Where profiles, sessions and the compile cache live [default: $RETAKE_HOME, then `retake` in the platform's
    /// configuration directory].
    #[arg(long, global = true, value_name = "DIR")]
    pub home: Option<PathBuf>,
    /// What goes to stderr: error, warn, info, debug, or a filter such as `retake::executor=debug`.
    #[arg(long, global = true, env = "RETAKE_LOG", default_value = "warn", value_name = "FILTER")]
    pub log: String,
}

impl Global {
    /// The directory that holds profiles, sessions and the cache.
    pub fn home(&self) -> anyhow::Result<Home> {
        Ok(Home::find(self.home.as_deref(), |name| std::env::var_os(name))?)
    }
}

#[derive(Subcommand)]
enum Command {
    /// Run prompts against a profile's provider; failed requests are decided by its executors.
    Run(run::RunArgs),
    /// See a failing provider, the waits, and the answer: no key, no network.
    Demo(demo::DemoArgs),
    /// Serve a provider on loopback that fails on a script.
    Chaos(chaos::Args),
    /// Show or check what a profile is composed of.
    #[command(subcommand)]
    Profile(profile::ProfileCommand),
    /// Build or inspect an executor.
    #[command(subcommand)]
    Plugin(plugin::PluginCommand),
    /// Work on an executor: rebuild and swap it into a failing session at every save.
    Dev(dev::DevArgs),
    /// Read the journals of sessions.
    #[command(subcommand)]
    Journal(journal::JournalCommand),
}

/// Parses the command line and runs the command.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version are answers, not errors.
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Completed };
            // A closed pipe is no reason to fail.
            let _ = error.print();
            return exit.into();
        }
    };
    let filter = match EnvFilter::try_new(&cli.global.log) {
        Ok(filter) => filter,
        Err(error) => {
            eprintln!("error: --log \"{}\" is not a filter: {error}. Use for instance --log debug.", cli.global.log);
            return Exit::Usage.into();
        }
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Colours are for eyes, not for files.
        .with_ansi(console::colors_enabled_stderr())
        .without_time()
        .init();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: the runtime could not be started: {error}.");
            return Exit::Failed.into();
        }
    };
    let exit = runtime.block_on(dispatch(cli));
    // A read of stdin that nobody waits for any more must not hold up the end.
    runtime.shutdown_background();
    match exit {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("error: {}", told(&error));
            Exit::Usage.into()
        }
    }
}

/// An error and its causes, without those that an outer sentence tells already.
fn told(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        outer if outer.contains(cause.trim_end_matches('.')) => text,
        outer => format!("{}: {cause}", outer.trim_end_matches('.')),
    })
}

/// A file that may not grow any further is an error of the write, as a full disk is, and no reason to be killed.
#[cfg(unix)]
fn survive_file_limits() {
    let signal = tokio::signal::unix::SignalKind::from_raw(rustix::process::Signal::XFSZ.as_raw());
    if let Err(error) = tokio::signal::unix::signal(signal) {
        tracing::debug!(%error, "a file at its limit will end the process");
    }
}

async fn dispatch(cli: Cli) -> anyhow::Result<Exit> {
    #[cfg(unix)]
    survive_file_limits();
    match cli.command {
        Command::Run(args) => run::run(&cli.global, args).await,
        Command::Demo(args) => demo::run(&cli.global, args).await,
        Command::Chaos(args) => chaos::run(args).await.map(|_| Exit::Completed),
        Command::Profile(command) => profile::run(&cli.global, command).await,
        Command::Plugin(command) => plugin::run(&cli.global, command).await,
        Command::Dev(args) => dev::run(&cli.global, args).await,
        Command::Journal(command) => journal::run(&cli.global, command).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_that_the_sentence_names_is_not_told_twice() {
        let cause = || std::io::Error::other("disk on fire");
        let named = anyhow::Error::new(cause()).context("s.jsonl could not be opened: disk on fire.");
        assert_eq!(told(&named), "s.jsonl could not be opened: disk on fire.");
        let unnamed = anyhow::Error::new(cause()).context("s.jsonl could not be opened.");
        assert_eq!(told(&unnamed), "s.jsonl could not be opened: disk on fire");
    }
}
