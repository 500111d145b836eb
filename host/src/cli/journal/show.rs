//! `retake journal show`: a session as a timeline, or as its own events.

use super::{
    source::Source,
    timeline::{of_turn, pending, timeline},
};
use crate::{
    cli::{
        Exit,
        stdout::{print, print_line},
    },
    env::{Clock, SystemClock},
    profile::Home,
};
use clap::Args;

#[derive(Args, Debug)]
pub(in crate::cli) struct ShowArgs {
    /// A session's id, or the path of a journal file [default: the newest session].
    #[arg(value_name = "SESSION")]
    session: Option<String>,
    /// Print the events as lines of JSON.
    #[arg(long)]
    json: bool,
    /// Only this turn.
    #[arg(long, value_name = "N")]
    turn: Option<u64>,
    /// A line for every event, streamed chunks too.
    #[arg(long)]
    chunks: bool,
}

pub(super) fn run(home: &Home, args: &ShowArgs) -> anyhow::Result<Exit> {
    let source = match &args.session {
        Some(name) => Source::find(home, name)?,
        None => Source::newest(home)?,
    };
    let contents = source.read()?;
    if let Some(place) = contents.obstacle() {
        let (line, offset, reason) = (place.line, place.offset, &place.reason);
        let rest = if contents.damage.is_some() { " What cannot be read is left out." } else { "" };
        eprintln!("{} cannot be gone on with: line {line} (byte {offset}): {reason}.{rest}", source.name());
    }
    if let Some(turn) = args.turn {
        anyhow::ensure!(of_turn(&contents, Some(turn)).next().is_some(), "{} has no turn {turn}.", source.name());
    }
    if args.json {
        for event in of_turn(&contents, args.turn) {
            print_line(&serde_json::to_string(event)?)?;
        }
    } else {
        print(&timeline(&contents, args.turn, args.chunks))?;
        if contents.obstacle().is_none() {
            print(&pending(&contents, SystemClock.wall_ms(), source.written_by()))?;
        }
    }
    Ok(Exit::Completed)
}
