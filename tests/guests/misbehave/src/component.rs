//! The shell, and the deeds themselves.

#[allow(missing_docs, clippy::all, clippy::pedantic)]
mod bindings {
    wit_bindgen::generate!({ path: "../../../wit", world: "retry-executor", generate_all });
}

use crate::Deed;
use bindings::{
    exports::retake::executor::executor::{Guest, Manifest, Problem},
    retake::executor::{
        config,
        journal::{self, AppendError, Event, Note, Retry, RetryLimit, RetryStarted},
        log, random, timer,
        types::{Decision, FailedStep},
        waterfall,
    },
};
use std::hint::black_box;

struct Misbehave;

bindings::export!(Misbehave with_types_in bindings);

impl Guest for Misbehave {
    fn describe() -> Manifest {
        Manifest {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: env!("CARGO_PKG_DESCRIPTION").to_owned(),
            config_schema: r#"{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object"}"#
                .to_owned(),
        }
    }

    fn validate(config_json: String) -> Result<(), Vec<Problem>> {
        Deed::parse(&config_json).map(|_| ()).map_err(|message| vec![Problem { path: "do".to_owned(), message }])
    }

    fn request_error(step: FailedStep) -> Result<Decision, String> {
        std::panic::set_hook(Box::new(|panic| log::write(log::Level::Error, &panic.to_string())));
        perform(Deed::parse(&config::json())?, &step)
    }
}

fn perform(deed: Deed, step: &FailedStep) -> Result<Decision, String> {
    match deed {
        Deed::Spin => loop {
            black_box(step);
        },
        Deed::Grow => grow(),
        Deed::Panic(text) => panic!("{text}"),
        Deed::Trap => core::arch::wasm32::unreachable(),
        Deed::DeepRecursion => Err(recurse(1).to_string()),
        Deed::AppendForever => loop {
            let _ = append(note("again", "null"));
        },
        Deed::AppendHuge => told(append(note("huge", &format!("{:?}", "x".repeat(1 << 20))))),
        Deed::BadNote => told(append(note("Not A Kind!", "{not json"))),
        Deed::BadRetry => told(append(retry("", 7, 1.0))),
        Deed::Note(text) => {
            append(note("test", &serde_json::Value::from(text).to_string()))?;
            waterfall::next()
        }
        Deed::LogForever => loop {
            log::write(log::Level::Info, "The same line again, to fill the log with.");
        },
        Deed::Log(text) => {
            for level in [log::Level::Debug, log::Level::Info, log::Level::Warn, log::Level::Error] {
                log::write(level, &text);
            }
            waterfall::next()
        }
        Deed::SleepNan => {
            let _ = timer::sleep(f64::NAN);
            Ok(Decision::Unhandled)
        }
        Deed::Error(text) => Err(text),
        Deed::Next => waterfall::next(),
        Deed::NextTwice => {
            let (first, second) = (waterfall::next(), waterfall::next());
            if first == second { first } else { Err(format!("next gave {first:?}, then {second:?}")) }
        }
        Deed::NextThenPanic => panic!("next gave {:?}", waterfall::next()),
        Deed::Unhandled => Ok(Decision::Unhandled),
        Deed::Retry => Ok(Decision::Retry),
        Deed::Sleep(ms) => match timer::sleep(ms) {
            Ok(()) => waterfall::next(),
            Err(_) => Ok(Decision::Unhandled),
        },
        Deed::IgnoreInterruption(ms) => loop {
            let _ = timer::sleep(ms);
        },
        Deed::ScheduleThenPanic(ms) => {
            append(retry(&random::retry_id(), 1, ms))?;
            panic!("told to panic with a wait scheduled")
        }
        Deed::Schedule(ms) => schedule(step, ms),
        Deed::Unreachable => Err("reached".to_owned()),
    }
}

fn schedule(step: &FailedStep, ms: f64) -> Result<Decision, String> {
    let (id, number, ms) = match &step.pending {
        Some(pending) if pending.policy_key == KEY => (pending.retry_id.clone(), pending.retry, pending.remaining_ms),
        pending => {
            let waited = pending.as_ref().map_or(0.0, |pending| pending.waited_ms);
            let last = journal::last_retry(&step.provider, KEY);
            let number = last.as_ref().map_or(1, |last| last.retry + 1);
            let id = last.map_or_else(random::retry_id, |last| last.retry_id);
            let ms = (ms - waited).max(0.0);
            append(retry(&id, number, ms))?;
            (id, number, ms)
        }
    };
    if timer::sleep(ms).is_err() {
        return Ok(Decision::Unhandled);
    }
    append(Event::RetryStarted(RetryStarted { retry_id: id, retry: number }))?;
    Ok(Decision::Retry)
}

/// The policy key of every retry that this guest schedules.
const KEY: &str = "[\"misbehave\"]";

fn retry(id: &str, number: u64, delay_ms: f64) -> Event {
    Event::Retry(Retry {
        retry_id: id.to_owned(),
        policy_key: KEY.to_owned(),
        retry: number,
        limit: RetryLimit::Always,
        delay_ms,
    })
}

fn note(kind: &str, json: &str) -> Event {
    Event::Note(Note { kind: kind.to_owned(), json: json.to_owned() })
}

fn append(event: Event) -> Result<u64, String> {
    journal::append(&event).map_err(|error| match error {
        AppendError::Interrupted(interruption) => format!("interrupted: {interruption:?}"),
        AppendError::Invalid(reason) => format!("invalid: {reason}"),
        AppendError::Storage(reason) => format!("storage: {reason}"),
    })
}

/// An append that ought to be refused: the refusal is the error, and so is its absence.
fn told(appended: Result<u64, String>) -> Result<Decision, String> {
    Err(appended.map_or_else(|refusal| refusal, |seq| format!("accepted as {seq}")))
}

fn grow() -> Result<Decision, String> {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    loop {
        kept.push(vec![1; 1 << 20]);
        black_box(&kept);
    }
}

#[inline(never)]
fn recurse(depth: u64) -> u64 {
    // A way out that is never taken keeps the compiler from seeing an endless recursion; the use of `frame` after the
    // call keeps it from making a loop of it.
    if black_box(depth) == u64::MAX {
        return 0;
    }
    let frame = black_box([depth; 32]);
    black_box(recurse(depth + 1)).wrapping_add(frame[0])
}
