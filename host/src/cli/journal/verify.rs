//! `retake journal verify`: whether records obey every rule. One that cannot be read hides no other.

use super::source::Source;
use crate::{
    cli::{Exit, stdout::print_line, told},
    journal::verify::printable,
    profile::Home,
};
use clap::Args;
use serde::Serialize;

#[derive(Args, Debug)]
#[command(
    after_help = "Reads sessions of this program, and those of harnesses that retry inside the open step (a first line with \"version\":0); which one it is is told by the first line.\n\n\
    With --json, a line has \"name\", \"dialect\", \"events\", \"turns\", \"findings\" (each with \"line\", \"offset\" in bytes, \"rule\" and \"message\") and \"torn\"; or \"name\" and \"error\" when the session could not be read.\n\n\
    Exit status: 0 all are good, 1 a rule is broken or a record ends torn, 2 a session could not be read."
)]
pub(in crate::cli) struct VerifyArgs {
    /// Journal files, databases of sessions, or ids of sessions [default: every session].
    #[arg(value_name = "FILE|SESSION")]
    sessions: Vec<String>,
    /// Print one line of JSON a session.
    #[arg(long)]
    json: bool,
}

/// A session that could not be read.
#[derive(Serialize)]
struct Unread {
    name: String,
    error: String,
}

pub(super) fn run(home: &Home, args: &VerifyArgs) -> anyhow::Result<Exit> {
    let (mut broken, mut unread) = (false, false);
    for found in sources(home, args)? {
        match found.and_then(|source| source.verify().map_err(|error| Unread::new(source.name(), &error.into()))) {
            Ok(report) => {
                print_line(&if args.json { serde_json::to_string(&report)? } else { report.to_string() })?;
                broken |= !report.is_whole();
            }
            Err(found) => {
                if args.json {
                    print_line(&serde_json::to_string(&found)?)?;
                } else {
                    eprintln!("error: {}", found.error);
                }
                unread = true;
            }
        }
    }
    Ok(match (unread, broken) {
        (true, _) => Exit::Usage,
        (false, true) => Exit::Failed,
        (false, false) => Exit::Completed,
    })
}

/// What is to be verified, in its order. Errors: there is nothing.
fn sources(home: &Home, args: &VerifyArgs) -> anyhow::Result<Vec<Result<Source, Unread>>> {
    if !args.sessions.is_empty() {
        let found = args.sessions.iter().flat_map(|name| match Source::find_all(home, name) {
            Ok(sources) => sources.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(Unread::new(name.clone(), &error))],
        });
        return Ok(found.collect());
    }
    let (sources, errors) = Source::listed(home);
    if errors.is_empty() {
        return Ok(Source::all(home)?.into_iter().map(Ok).collect());
    }
    let store = home.sessions_dir().display().to_string();
    let errors = errors.into_iter().map(|error| Err(Unread::new(store.clone(), &error.into())));
    Ok(sources.into_iter().map(Ok).chain(errors).collect())
}

impl Unread {
    fn new(name: String, error: &anyhow::Error) -> Unread {
        Unread { name: printable(&name), error: printable(&told(error)) }
    }
}
