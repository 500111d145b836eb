//! `retake journal show`: a session as people read it.

use super::{
    source::Source,
    when::{span, utc},
};
use crate::{
    cli::{
        Exit,
        stdout::{print, print_line},
    },
    env::{Clock, SystemClock},
    journal::{Body, Event, SessionState, event::TurnEndReason, projection::RetryView, record::Contents},
    profile::Home,
};
use clap::Args;
use std::fmt::Write as _;

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
    /// Every streamed chunk too.
    #[arg(long)]
    chunks: bool,
}

pub(super) fn run(home: &Home, args: &ShowArgs) -> anyhow::Result<Exit> {
    let source = match &args.session {
        Some(name) => Source::find(home, name)?,
        None => Source::newest(home)?,
    };
    let contents = source.read()?;
    if let Some(damage) = &contents.damage {
        let (line, offset, reason) = (damage.line, damage.offset, &damage.reason);
        eprintln!("{} is damaged at line {line} (byte {offset}): {reason}. What follows is left out.", source.name());
    }
    if args.json {
        for (_, event) in of_turn(&contents, args.turn) {
            print_line(&serde_json::to_string(event)?)?;
        }
    } else {
        print(&timeline(&contents, args.turn, args.chunks))?;
    }
    Ok(Exit::Completed)
}

/// The events, each with the turn that it belongs to.
fn of_turn(contents: &Contents, wanted: Option<u64>) -> impl Iterator<Item = (u64, &Event)> {
    let mut turn = 0;
    contents
        .events
        .iter()
        .map(move |event| {
            if let Body::TurnStart(start) = &event.body {
                turn = start.turn;
            }
            (turn, event)
        })
        .filter(move |(turn, _)| wanted.is_none_or(|wanted| wanted == *turn))
}

/// The session as people read it: one line an event, times in seconds since its beginning.
fn timeline(contents: &Contents, wanted: Option<u64>, chunks: bool) -> String {
    let mut text = format!("session {}\n", contents.header.id);
    let start = contents.events.first().map_or(contents.header.created_at, |event| event.time);
    let mut skipped = 0;
    for (_, event) in of_turn(contents, wanted) {
        if matches!(event.body, Body::AssistantChunk(_)) && !chunks {
            skipped += 1;
            continue;
        }
        if skipped > 0 {
            let _ = writeln!(text, "{:>9}  {:>5}  … {skipped} chunks", "", "");
            skipped = 0;
        }
        let seconds = event.time.saturating_sub(start) as f64 / 1_000.0;
        let _ = writeln!(text, "{seconds:>8.3}s  {:>5}  {}", event.seq, describe(&event.body));
    }
    if let Some(torn) = &contents.torn {
        let _ = writeln!(
            text,
            "The file ends in a torn record (line {}, byte {}): {}.",
            torn.line, torn.offset, torn.reason
        );
    }
    text.push_str(&pending(contents, SystemClock.wall_ms()));
    text
}

/// What the session is waiting for, if anything.
fn pending(contents: &Contents, now_ms: u64) -> String {
    let id = &contents.header.id;
    let state = SessionState::of(&contents.events);
    if let Some(row) = RetryView::of(&contents.events).waiting() {
        let by = row.executor.as_ref().map_or_else(String::new, |by| format!(", scheduled by {}", by.id));
        let due = match row.remaining_ms(now_ms) {
            0 => format!("was due at {}", utc(row.due_at)),
            left => format!("is due at {} (in {})", utc(row.due_at), span(left)),
        };
        return format!(
            "Pending: retry {} of turn {} to {}{by}, {due}. Go on with: retake run --resume {id}\n",
            row.count(),
            row.turn,
            row.provider
        );
    }
    if state.current_retry().is_some_and(|live| live.started) || state.to_repeat.is_some() {
        return format!(
            "Pending: turn {} is to be repeated at once. Go on with: retake run --resume {id}\n",
            state.last_turn
        );
    }
    if state.turn_open { format!("Turn {} is open.\n", state.last_turn) } else { String::new() }
}

fn describe(body: &Body) -> String {
    match body {
        Body::TurnStart(start) => match start.retry_of {
            Some(of) => format!("turn {} starts, repeating turn {of}", start.turn),
            None => format!("turn {} starts", start.turn),
        },
        Body::UserMessage(message) => format!("  user: {}", crate::agent::text_of(&message.content)),
        Body::StepStart(step) => format!("  step {} starts", step.step),
        Body::RequestHeader(header) => {
            format!("  request to {} · {}", header.header.config.provider, header.header.config.model)
        }
        Body::AssistantChunk(chunk) => format!("    {}", serde_json::to_string(&chunk.chunk).unwrap_or_default()),
        Body::AssistantMessage(message) => {
            let mark = if message.interrupted { " (interrupted)" } else { "" };
            format!("  assistant{mark}: {}", crate::agent::text_of(&message.message.content))
        }
        Body::StepEnd(end) => match &end.failure {
            Some(failure) => {
                let status = failure.status.map_or_else(String::new, |status| format!(" {status}"));
                format!("  step {} ends: {}{status}: {}", end.step, failure.code, failure.message)
            }
            None => format!("  step {} ends", end.step),
        },
        Body::Chain(chain) => {
            let executors: Vec<_> = chain
                .executors
                .iter()
                .map(|e| format!("{} {}", e.id, e.digest.get(..8).unwrap_or(&e.digest)))
                .collect();
            format!("  chain generation {}: {}", chain.generation, executors.join(" → "))
        }
        Body::Retry(retry) => {
            let limit = retry.max_retries.map_or_else(|| "∞".to_owned(), |max| max.to_string());
            format!("  retry {}/{limit} scheduled in {:.0} ms", retry.retry, retry.delay_ms)
        }
        Body::RetryStarted(started) => format!("  retry {} started", started.retry),
        Body::RetryHandover(handover) => format!(
            "  retry {} handed over from {} to generation {}, {:.0} ms remain",
            handover.retry, handover.from.id, handover.generation, handover.remaining_ms
        ),
        Body::ExecutorFault(fault) => format!("  fault of {}: {}", fault.id, fault.message),
        Body::ExecutorNote(note) => format!("  note of {} ({}): {}", note.id, note.kind, note.data),
        Body::TurnEnd(end) => {
            let reason = match &end.reason {
                TurnEndReason::Completed => "completed",
                TurnEndReason::Retry => "to be repeated",
                TurnEndReason::Error { .. } => "failed",
                TurnEndReason::Aborted => "cancelled",
                TurnEndReason::MaxTokens => "stopped at the output limit",
                TurnEndReason::Interrupted => "interrupted by a crash",
            };
            format!("turn {} ends: {reason}", end.turn)
        }
        Body::Ignorable { r#type, .. } => format!("  {type} (of a newer version)"),
    }
}
