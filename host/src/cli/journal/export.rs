//! `retake journal export`: a session's record as lines of JSON, up to its damage, from whatever store keeps it.

use super::{source::Source, timeline::of_turn};
use crate::{
    cli::{Exit, stdout::print},
    profile::Home,
};
use anyhow::Context;
use clap::Args;
use std::collections::HashSet;

#[derive(Args, Debug)]
#[command(after_help = "Exit status: 0 the whole record, 1 what stands before the damage.")]
pub(in crate::cli) struct ExportArgs {
    /// A session's id, or the path of a journal file [default: the newest session].
    #[arg(value_name = "SESSION")]
    session: Option<String>,
    /// The header and this turn only.
    #[arg(long, value_name = "N")]
    turn: Option<u64>,
}

pub(super) fn run(home: &Home, args: &ExportArgs) -> anyhow::Result<Exit> {
    let source = match &args.session {
        Some(name) => Source::find(home, name)?,
        None => Source::newest(home)?,
    };
    let raw = source.raw()?;
    let contents = crate::journal::record::parse(&source.name(), &raw)?;
    // An event that breaks a rule is an event all the same.
    let cut = contents.damage.as_ref().or(contents.torn.as_ref());
    let end = cut.map_or(raw.bytes.len(), |cut| cut.offset as usize);
    // The text, not the events: what a newer version wrote, and marked as ignorable, goes through unchanged.
    let text = std::str::from_utf8(&raw.bytes[..end]).context("the record is not text")?;
    match args.turn {
        None => print(text)?,
        Some(turn) => {
            let of_turn: HashSet<u64> = of_turn(&contents, Some(turn)).map(|event| event.seq).collect();
            anyhow::ensure!(!of_turn.is_empty(), "{} has no turn {turn}.", source.name());
            // A line's number in the record is that of its event, behind the header.
            let lines = text.split_inclusive('\n').enumerate();
            let kept = lines.filter(|(line, _)| line.checked_sub(1).is_none_or(|seq| of_turn.contains(&(seq as u64))));
            print(&kept.map(|(_, text)| text).collect::<String>())?;
        }
    }
    if let Some(cut) = cut {
        let left = raw.bytes.len() - end;
        eprintln!(
            "{}: what stands from line {} (byte {}) on was left out, {left} bytes: {}.",
            source.name(),
            cut.line,
            cut.offset,
            cut.reason
        );
    }
    Ok(if contents.damage.is_some() { Exit::Failed } else { Exit::Completed })
}
