//! A session as people read it: what failed, who decided what, how long it waited, and how it ended.
//!
//! The plain timeline leaves out what only repeats its neighbours; the full one has a line for every event.

use super::when::{span, utc};
use crate::{
    agent::text_of,
    journal::{
        Body, Event,
        event::{ExecutorRef, Retry, SCHEDULING_NOTE, TurnEndReason},
        record::Contents,
    },
    llm::{Chunk, Failure},
};
use console::{Style, style};
use std::fmt::Write as _;

/// The events, or those of one turn.
pub(super) fn of_turn(contents: &Contents, wanted: Option<u64>) -> impl Iterator<Item = &Event> {
    let mut turn = 0;
    contents.events.iter().filter(move |event| {
        if let Body::TurnStart(start) = &event.body {
            turn = start.turn;
        }
        wanted.is_none_or(|wanted| wanted == turn)
    })
}

/// The whole session or one turn, one line an event, times in seconds since the session's beginning. `full` leaves
/// nothing out.
pub(super) fn timeline(contents: &Contents, wanted: Option<u64>, full: bool) -> String {
    let mut text = summary(contents);
    let start = contents.events.first().map_or(contents.header.created_at, |event| event.time);
    let mut chunks = 0;
    let mut scheduling = None;
    for event in of_turn(contents, wanted) {
        if !full {
            match &event.body {
                Body::AssistantChunk(piece) => {
                    chunks += usize::from(!matches!(piece.chunk, Chunk::Finish { .. }));
                    continue;
                }
                Body::ExecutorNote(note) if note.kind == SCHEDULING_NOTE => {
                    scheduling = Some(ExecutorRef { id: note.id.clone(), digest: note.digest.clone() });
                    continue;
                }
                body if repeats_a_neighbour(body) => continue,
                _ => {}
            }
        }
        let (mark, style, mut line) = describe(&event.body, scheduling.as_ref());
        match &event.body {
            Body::StepEnd(_) | Body::AssistantMessage(_) if chunks > 0 => {
                let _ = write!(line, " ({chunks} chunk{})", if chunks == 1 { "" } else { "s" });
                chunks = 0;
            }
            Body::Retry(_) => scheduling = None,
            _ => {}
        }
        let seconds = event.time.saturating_sub(start) as f64 / 1_000.0;
        let mark = style.apply_to(mark);
        let _ = writeln!(text, "{seconds:>9.3}s {:>6}  {mark} {line}", event.seq);
    }
    if let Some(torn) = &contents.torn {
        let _ = writeln!(
            text,
            "The record ends torn (line {}, byte {}): {}. The next writer takes that off.",
            torn.line, torn.offset, torn.reason
        );
    }
    text
}

/// `session s: 1 prompt, 4 turns, 3 retries, completed after 2.3 s`.
fn summary(contents: &Contents) -> String {
    let count = |is: fn(&Body) -> bool, one: &str, many: &str| {
        let n = contents.events.iter().filter(|event| is(&event.body)).count();
        format!("{n} {}", if n == 1 { one } else { many })
    };
    let prompts = count(|body| matches!(body, Body::UserMessage(_)), "prompt", "prompts");
    let turns = count(|body| matches!(body, Body::TurnStart(_)), "turn", "turns");
    let retries = count(|body| matches!(body, Body::RetryStarted(_)), "retry", "retries");
    let mut text = format!("session {}: {prompts}, {turns}, {retries}", printable(&contents.header.id));
    let end = contents.events.iter().rev().find_map(|event| match &event.body {
        Body::TurnEnd(end) => Some(end),
        _ => None,
    });
    let took = contents.events.first().zip(contents.events.last()).map_or(0, |(a, b)| b.time.saturating_sub(a.time));
    match end {
        Some(end) if !contents.state.turn_open => {
            let _ = write!(text, ", {} after {}", ending(&end.reason), span(took));
        }
        _ => text.push_str(", not ended"),
    }
    let begun = contents.events.first().map_or(contents.header.created_at, |event| event.time);
    let _ = writeln!(text, " (began {})", utc(begun));
    text
}

/// What the lines around it tell too.
fn repeats_a_neighbour(body: &Body) -> bool {
    match body {
        Body::StepStart(_) => true,
        Body::StepEnd(end) => end.failure.is_none(),
        // The next turn says what it repeats.
        Body::TurnEnd(end) => end.reason == TurnEndReason::Retry,
        _ => false,
    }
}

/// A mark for the eye, its colour, and the event in words. `by` is who announced the retry that it may be.
fn describe(body: &Body, by: Option<&ExecutorRef>) -> (char, Style, String) {
    let plain = Style::new();
    match body {
        Body::TurnStart(start) => {
            let what = match start.retry_of {
                Some(of) => format!("turn {} starts, repeating turn {of}", start.turn),
                None => format!("turn {} starts", start.turn),
            };
            ('▸', plain.bold(), what)
        }
        Body::UserMessage(message) => (' ', plain, format!("user: {}", printable(&text_of(&message.content)))),
        Body::StepStart(step) => (' ', plain, format!("step {} starts", step.step)),
        Body::RequestHeader(header) => {
            let config = &header.header.config;
            (' ', plain, format!("request to {} · {}", printable(&config.provider), printable(&config.model)))
        }
        Body::AssistantChunk(chunk) => (' ', plain.dim(), serde_json::to_string(&chunk.chunk).unwrap_or_default()),
        Body::AssistantMessage(message) => {
            let mark = if message.interrupted { " (interrupted)" } else { "" };
            ('✓', plain.green(), format!("assistant{mark}: {}", printable(&text_of(&message.message.content))))
        }
        Body::StepEnd(end) => match &end.failure {
            Some(failure) => ('✗', plain.red(), failed(failure)),
            None => (' ', plain, format!("step {} ends", end.step)),
        },
        Body::Chain(chain) => {
            let executors: Vec<_> = chain
                .executors
                .iter()
                .map(|e| format!("{} {}", printable(&e.id), e.digest.get(..8).unwrap_or(&e.digest)))
                .collect();
            let executors = if executors.is_empty() { "no executor".into() } else { executors.join(" → ") };
            (' ', plain, format!("decided by generation {}: {executors}", chain.generation))
        }
        Body::Retry(retry) => ('↻', plain.yellow(), scheduled(retry, by)),
        Body::RetryStarted(started) => (' ', plain, format!("retry {} starts", started.retry)),
        Body::RetryHandover(handover) => (
            '⇄',
            plain.cyan(),
            format!(
                "retry {} handed over from {} to generation {}, {} of the wait remain",
                handover.retry,
                printable(&handover.from.id),
                handover.generation,
                delay(handover.remaining_ms)
            ),
        ),
        Body::ExecutorFault(fault) => {
            ('!', plain.red(), format!("fault of {}: {}", printable(&fault.id), printable(&fault.message)))
        }
        Body::ExecutorNote(note) => {
            (' ', plain, format!("note of {} ({}): {}", printable(&note.id), printable(&note.kind), note.data))
        }
        Body::TurnEnd(end) => {
            let (mark, colour) = match &end.reason {
                TurnEndReason::Completed | TurnEndReason::MaxTokens => ('■', plain.green()),
                TurnEndReason::Retry => (' ', plain),
                _ => ('■', plain.red()),
            };
            (mark, colour, format!("turn {} ends: {}", end.turn, ending(&end.reason)))
        }
        Body::Ignorable { r#type, .. } => (' ', plain.dim(), format!("{} (of a newer version)", printable(r#type))),
    }
}

fn ending(reason: &TurnEndReason) -> &'static str {
    match reason {
        TurnEndReason::Completed => "completed",
        TurnEndReason::Retry => "to be repeated",
        TurnEndReason::Error { .. } => "failed",
        TurnEndReason::Aborted => "cancelled",
        TurnEndReason::MaxTokens => "stopped at the output limit",
        TurnEndReason::Interrupted => "interrupted",
    }
}

/// `RATE_LIMIT 429: slow down`.
fn failed(failure: &Failure) -> String {
    let status = failure.status.map_or_else(String::new, |status| format!(" {status}"));
    let mut text = format!("{}{status}: {}", failure.code, printable(&failure.message));
    if let Some(why) = failure.impossible() {
        let _ = write!(text, " (it cannot succeed as it is: {})", printable(why));
    }
    text
}

/// `retry 1/5 in 2.0 s, by llm-retry, as the provider asked`.
fn scheduled(retry: &Retry, by: Option<&ExecutorRef>) -> String {
    let limit = retry.max_retries.map_or_else(|| "∞".to_owned(), |max| max.to_string());
    let mut text = format!("retry {}/{limit} in {}", retry.retry, delay(retry.delay_ms));
    if let Some(by) = by {
        let _ = write!(text, ", by {}", printable(&by.id));
    }
    match retry.failure.provider_retry_after_ms {
        Some(hint) if hint == retry.delay_ms => text.push_str(", as the provider asked"),
        Some(hint) => {
            let _ = write!(text, " (the provider asked for {})", delay(hint));
        }
        None => {}
    }
    text
}

/// `350 ms`, `1.2 s`, `3 min 20 s`.
fn delay(ms: f64) -> String {
    if ms < 1_000.0 { format!("{ms:.0} ms") } else { span(ms.round() as u64) }
}

/// A text that came from outside, on one line and without anything that a terminal obeys.
fn printable(text: &str) -> String {
    text.chars()
        .map(|sign| match sign {
            '\n' | '\r' | '\t' | '\u{2028}' | '\u{2029}' => ' ',
            // Nor turned around.
            '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '\u{fffd}',
            sign if sign.is_control() => '\u{fffd}',
            sign => sign,
        })
        .collect()
}

/// What the session is waiting for, if anything, and who has it in hand.
pub(super) fn pending(contents: &Contents, now_ms: u64, writer: Option<u32>) -> String {
    let next = match writer {
        Some(process) => format!("Process {process} is at it."),
        None => format!("Go on with: retake run --resume {}", contents.header.id),
    };
    let state = &contents.state;
    let turn = state.last_turn;
    let mark = style("Pending:").bold();
    if let Some(row) = state.retries.waiting() {
        let by = row.executor.as_ref().map_or_else(String::new, |by| format!(", scheduled by {}", printable(&by.id)));
        let due = match row.remaining_ms(now_ms) {
            0 => format!("was due at {}", utc(row.due_at)),
            left => format!("is due at {} (in {})", utc(row.due_at), span(left)),
        };
        let provider = printable(&row.provider);
        return format!("{mark} retry {} of turn {turn} to {provider}{by}, {due}. {next}\n", row.count());
    }
    if state.current_retry().is_some_and(|live| live.started) || state.to_repeat.is_some() {
        return format!("{mark} turn {turn} is to be repeated at once. {next}\n");
    }
    if state.turn_open && state.step.as_ref().is_some_and(|step| step.failure.is_some()) {
        return format!("{mark} nobody has decided yet about the failed request of turn {turn}. {next}\n");
    }
    match (&state.step, writer) {
        (None, None) if state.turn_open && (state.repeats || state.prompted) => {
            return format!("{mark} the request of turn {turn} is still to be made. {next}\n");
        }
        (Some(step), None) if state.turn_open && step.is_answered() => {
            return format!("{mark} turn {turn} is answered, and only its end is missing. {next}\n");
        }
        _ => {}
    }
    match (state.turn_open, writer) {
        (false, _) => String::new(),
        (true, Some(process)) => format!("Turn {turn} is open: process {process} is at it.\n"),
        (true, None) => {
            format!("Turn {turn} is open: its process ended in the request. The next run closes it as interrupted.\n")
        }
    }
}
