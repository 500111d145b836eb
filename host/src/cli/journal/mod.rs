//! `retake journal`: what the records of sessions say, and whether they can be trusted.

mod export;
mod list;
mod resume;
mod show;
mod source;
mod timeline;
mod verify;
mod when;

use super::{Exit, Global, stdout::print_line};
use clap::Subcommand;

#[derive(Subcommand, Debug)]
pub(super) enum JournalCommand {
    /// List all sessions with their state, the damaged ones too.
    List(list::ListArgs),
    /// Print a session's events as a timeline.
    Show(show::ShowArgs),
    /// Check that sessions obey every rule of the journal.
    Verify(verify::VerifyArgs),
    /// Print a session's raw record, up to its damage.
    Export(export::ExportArgs),
    /// Go on with a turn that a crash interrupted.
    Resume(resume::ResumeArgs),
    /// Print the JSON Schema of a session's lines.
    Schema,
}

pub(super) async fn run(global: &Global, command: JournalCommand) -> anyhow::Result<Exit> {
    let home = global.home()?;
    match command {
        JournalCommand::List(args) => list::run(&home, &args),
        JournalCommand::Show(args) => show::run(&home, &args),
        JournalCommand::Verify(args) => verify::run(&home, &args),
        JournalCommand::Export(args) => export::run(&home, &args),
        JournalCommand::Resume(args) => resume::run(global, args).await,
        JournalCommand::Schema => {
            print_line(&serde_json::to_string_pretty(&crate::journal::schema::schema())?)?;
            Ok(Exit::Completed)
        }
    }
}
