//! `retake journal verify`: whether records obey every rule.

use super::source::Source;
use crate::{
    cli::{Exit, stdout::print_line},
    profile::Home,
};
use clap::Args;

#[derive(Args, Debug)]
#[command(
    after_help = "Reads sessions of this program, and those of harnesses that retry inside the open step (a first line with \"version\":0); which one it is is told by the first line.\n\n\
    Exit status: 0 all are good, 1 a rule is broken or a record ends torn, 2 a file could not be read."
)]
pub(in crate::cli) struct VerifyArgs {
    /// Journal files, or ids of sessions [default: every session].
    #[arg(value_name = "FILE|SESSION")]
    sessions: Vec<String>,
}

pub(super) fn run(home: &Home, args: &VerifyArgs) -> anyhow::Result<Exit> {
    let sources = if args.sessions.is_empty() {
        Source::all(home)?
    } else {
        args.sessions.iter().map(|name| Source::find(home, name)).collect::<Result<_, _>>()?
    };
    let mut good = true;
    for source in &sources {
        let report = source.verify()?;
        print_line(&report.to_string())?;
        good &= report.is_whole();
    }
    Ok(if good { Exit::Completed } else { Exit::Failed })
}
