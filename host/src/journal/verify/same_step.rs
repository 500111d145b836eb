//! The rules of the same-step dialect: retries happen inside the open step, several a step, and are numbered by turn,
//! step, provider and policy key from all that were scheduled.

use super::{
    attempt::Attempt,
    fields::{RetryFields, StartedFields},
    line::{Fact, Line},
    types,
};
use crate::journal::invariants::Violation;
use std::collections::{HashMap, HashSet};

#[derive(Default)]
pub(super) struct SameStep {
    next_seq: u64,
    turns: u64,
    turn: Boundary<u64>,
    step: Boundary<(u64, u64)>,
    /// The highest turn that has started.
    last_turn: u64,
    /// Another process, or the copy of a session, has taken over since the newest turn started.
    taken_over: bool,
    provider: Option<String>,
    attempt: Attempt,
    /// By turn, step, provider and policy key: the newest scheduled retry.
    chains: HashMap<(u64, u64, String, String), (String, u64)>,
    known_ids: HashSet<String>,
    /// By id and number: where it was scheduled, and whether it has started.
    scheduled: HashMap<(String, u64), Scheduled>,
    /// A retry's record broke a rule, or a line could not be read: what the next records say about it is believed.
    doubt: Doubt,
}

/// Which records are believed, once.
#[derive(Default)]
struct Doubt {
    retry: bool,
    started: bool,
}

struct Scheduled {
    turn: u64,
    step: u64,
    started: bool,
}

/// The newest start or end of its kind.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Boundary<T> {
    #[default]
    None,
    Start(T),
    End(T),
}

/// Whether `seq` is the next number; the count goes on from it, so that one gap is told once.
pub(super) fn check_seq(expected: &mut u64, seq: u64, broken: &mut Vec<Violation>) {
    if seq != *expected {
        broken.push(Violation { rule: "seq", message: format!("seq is {seq}, but it must be {expected}.") });
        *expected = seq;
    }
}

fn broken<T>(rule: &'static str, message: String) -> Result<T, Violation> {
    Err(Violation { rule, message })
}

impl SameStep {
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// A line that could not be read stood for one event.
    pub fn skip(&mut self) {
        self.next_seq = self.next_seq.saturating_add(1);
        self.doubt = Doubt { retry: true, started: true };
    }

    pub fn take_in(&mut self, line: Line<'_>, broken: &mut Vec<Violation>) {
        check_seq(&mut self.next_seq, line.seq, broken);
        self.next_seq = line.seq.saturating_add(line.span);
        let flawed = line.flaw.is_some();
        broken.extend(line.flaw);
        let surface = types::is_surface(&line.kind);
        broken.extend(types::check_surface_op(&line.kind, surface, line.surface_op));
        if !surface && line.cites.is_some() {
            broken.push(Violation {
                rule: "citation",
                message: format!("{} cites events, but only messages are made of others.", line.kind),
            });
        }
        match line.fact {
            Fact::TurnStart(turn) => broken.extend(self.start_turn(turn)),
            Fact::TurnEnd(turn) => broken.extend(self.end_turn(turn)),
            Fact::StepStart(turn, step) => broken.extend(self.start_step(turn, step)),
            Fact::StepEnd(turn, step) => {
                broken.extend(self.open_step(turn, step, "step/end").err());
                self.step = Boundary::End((turn, step));
            }
            Fact::EndSeed => self.taken_over = true,
            Fact::Header { provider } => self.provider = Some(provider),
            Fact::Chunk { turn, step, finish } => {
                broken.extend(self.open_step(turn, step, &line.kind).err());
                // Whatever recovered the step, what streams behind a finish belongs to its next request.
                if self.attempt.is_finished() {
                    self.attempt = Attempt::default();
                }
                self.attempt.chunk(line.seq, line.span, finish);
            }
            Fact::Attempt { turn, step } => broken.extend(self.open_step(turn, step, "assistant/attempt").err()),
            Fact::Answer { turn, step } => {
                broken.extend(self.open_step(turn, step, "assistant/message").err());
                self.attempt.answer(line.cites.as_deref(), broken);
            }
            Fact::Retry(record) => {
                let found = if flawed { None } else { self.retry(&record).err() };
                self.doubt = match flawed || found.is_some() {
                    true => Doubt { retry: true, started: true },
                    false => Doubt::default(),
                };
                broken.extend(found);
                self.schedule(*record);
            }
            Fact::Started(record) => {
                let believed = std::mem::take(&mut self.doubt.started);
                match self.started(&record) {
                    Err(violation) if !believed => broken.push(violation),
                    _ => self.attempt = Attempt::default(),
                }
            }
            Fact::Delta { .. } | Fact::Event(_) | Fact::Other => {}
        }
    }

    fn start_turn(&mut self, turn: u64) -> Option<Violation> {
        self.turns += 1;
        let open = if let Boundary::Start(open) = self.turn { Some(open) } else { None };
        let found = match open.filter(|_| !self.taken_over) {
            Some(open) => broken("turn-open", format!("Turn {open} is not closed, so turn {turn} cannot start.")),
            None if turn <= self.last_turn => {
                broken("turn-number", format!("Turn {turn} must be above {}.", self.last_turn))
            }
            None => Ok(()),
        };
        self.turn = Boundary::Start(turn);
        self.step = Boundary::None;
        self.last_turn = self.last_turn.max(turn);
        self.taken_over = false;
        found.err()
    }

    fn end_turn(&mut self, turn: u64) -> Option<Violation> {
        let found = match (self.turn, self.step) {
            (Boundary::Start(_), Boundary::Start((_, step))) => {
                broken("step-open", format!("Step {step} must be closed before turn {turn} ends."))
            }
            // The beginning of a session's first turn may be missing from a history that was taken over.
            (Boundary::None, _) => Ok(()),
            _ => self.open_turn(turn, "turn/end"),
        };
        self.turn = Boundary::End(turn);
        if let Boundary::Start(step) = self.step {
            self.step = Boundary::End(step);
        }
        self.last_turn = self.last_turn.max(turn);
        found.err()
    }

    fn start_step(&mut self, turn: u64, step: u64) -> Option<Violation> {
        let found = self.open_turn(turn, "step/start").and_then(|()| {
            let last = match self.step {
                Boundary::Start((_, open)) => {
                    return broken("step-open", format!("Step {open} is not closed, so step {step} cannot start."));
                }
                Boundary::End((of, last)) if of == turn => last,
                _ => 0,
            };
            if step == last.saturating_add(1) {
                Ok(())
            } else {
                broken("step-number", format!("Step {step} must be {}.", last.saturating_add(1)))
            }
        });
        self.step = Boundary::Start((turn, step));
        self.attempt = Attempt::default();
        found.err()
    }

    fn open_turn(&self, turn: u64, what: &str) -> Result<(), Violation> {
        match self.turn {
            Boundary::Start(open) if open == turn => Ok(()),
            Boundary::Start(open) => {
                broken("turn-number", format!("{what} names turn {turn}, but turn {open} is open."))
            }
            _ => broken("turn-closed", format!("{what} names turn {turn}, but no turn is open.")),
        }
    }

    fn open_step(&self, turn: u64, step: u64, what: &str) -> Result<(), Violation> {
        self.open_turn(turn, what)?;
        match self.step {
            Boundary::Start(open) if open == (turn, step) => Ok(()),
            Boundary::Start((t, s)) => broken(
                "step-number",
                format!("{what} names step {step} of turn {turn}, but step {s} of turn {t} is open."),
            ),
            _ => broken("step-closed", format!("{what} names step {step} of turn {turn}, but no step is open.")),
        }
    }

    fn retry(&self, record: &RetryFields) -> Result<(), Violation> {
        let RetryFields { retry_id, turn, step, provider, policy_key, retry } = record;
        self.open_step(*turn, *step, "llm/retry")?;
        let routed = self.provider.as_deref();
        if routed != Some(provider) {
            return broken(
                "provider",
                format!("provider is \"{provider}\", but the request went to {}.", routed.unwrap_or("none")),
            );
        }
        match self.chains.get(&(*turn, *step, provider.clone(), policy_key.clone())) {
            _ if self.doubt.retry => Ok(()),
            Some((_, last)) if *retry != last.saturating_add(1) => {
                broken("retry-number", format!("retry must be {}, not {retry}.", last.saturating_add(1)))
            }
            Some((id, _)) if id != retry_id => {
                broken("retry-id", format!("retryId must stay {id} in its chain, not {retry_id}."))
            }
            None if *retry != 1 => broken("retry-number", format!("retry must be 1 in a new chain, not {retry}.")),
            None if self.known_ids.contains(retry_id) => {
                broken("retry-id", format!("retryId {retry_id} belongs to another chain."))
            }
            _ => Ok(()),
        }
    }

    /// A record that breaks a rule counts all the same, so that its followers are judged by what stands there.
    fn schedule(&mut self, record: RetryFields) {
        let RetryFields { retry_id, turn, step, provider, policy_key, retry } = record;
        self.known_ids.insert(retry_id.clone());
        self.scheduled.entry((retry_id.clone(), retry)).or_insert(Scheduled { turn, step, started: false });
        self.chains.insert((turn, step, provider, policy_key), (retry_id, retry));
    }

    fn started(&mut self, record: &StartedFields) -> Result<(), Violation> {
        let StartedFields { retry_id, turn, step, retry } = record;
        self.known_ids.insert(retry_id.clone());
        match self.scheduled.get_mut(&(retry_id.clone(), *retry)) {
            None => broken("live-record", format!("Retry {retry} of chain {retry_id} was never scheduled.")),
            Some(scheduled) if (scheduled.turn, scheduled.step) != (*turn, *step) => broken(
                "live-record",
                format!(
                    "llm/retry-started names step {step} of turn {turn}, but retry {retry} of chain {retry_id} was \
                     scheduled in step {} of turn {}.",
                    scheduled.step, scheduled.turn
                ),
            ),
            Some(scheduled) if scheduled.started => {
                broken("live-record", format!("Retry {retry} of chain {retry_id} has started already."))
            }
            Some(scheduled) => {
                scheduled.started = true;
                Ok(())
            }
        }
    }
}
