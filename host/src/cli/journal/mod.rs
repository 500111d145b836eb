//! `retake journal`: what the records of sessions say, and whether they can be trusted.

mod show;
mod source;
mod verify;

use super::{Exit, Global};
use clap::Subcommand;

#[derive(Subcommand, Debug)]
pub(super) enum JournalCommand {
    /// Print a session's events as a timeline.
    Show(show::ShowArgs),
    /// Check that sessions obey every rule of the journal.
    Verify(verify::VerifyArgs),
}

pub(super) fn run(global: &Global, command: JournalCommand) -> anyhow::Result<Exit> {
    let home = global.home()?;
    match command {
        JournalCommand::Show(args) => show::run(&home, &args),
        JournalCommand::Verify(args) => verify::run(&home, &args),
    }
}
