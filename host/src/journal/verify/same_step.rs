//! The rules of the same-step dialect: retries happen inside the open step, several a step, and are numbered by turn,
//! step, provider and policy key from all that were scheduled.

use super::{
    attempt::Attempt,
    fields::{RetryFields, StartedFields},
    line::{Fact, Line},
};
use crate::journal::invariants::Violation;
use std::collections::{HashMap, HashSet};

#[derive(Default)]
pub(super) struct SameStep {
    next_seq: u64,
    turns: u64,
    turn: Boundary<u64>,
    step: Boundary<(u64, u64)>,
    /// The step that a routed provider is known for: its start has been seen, and neither its end nor a turn's.
    routed_step: Option<(u64, u64)>,
    provider: Option<String>,
    attempt: Attempt,
    /// By turn, step, provider and policy key: the newest scheduled retry.
    chains: HashMap<(u64, u64, String, String), (String, u64)>,
    known_ids: HashSet<String>,
    /// By id and number: where it was scheduled, and whether it has started.
    scheduled: HashMap<(String, u64), Scheduled>,
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
        self.next_seq += 1;
    }

    pub fn take_in(&mut self, line: Line, broken: &mut Vec<Violation>) {
        check_seq(&mut self.next_seq, line.seq, broken);
        self.next_seq = line.seq.saturating_add(line.span);
        // A tool's result and a system prompt are surface there too.
        let surface =
            matches!(line.kind.as_str(), "user/message" | "assistant/message" | "tool/result" | "system/message");
        if !surface && (line.surface_op || line.cites.is_some()) {
            broken.push(Violation {
                rule: "surface-op",
                message: format!("{} has a surfaceOp or cites events, but only messages reach a request.", line.kind),
            });
        }
        match line.fact {
            Fact::TurnStart(turn) => {
                self.turns += 1;
                self.turn = Boundary::Start(turn);
            }
            Fact::TurnEnd(turn) => {
                self.turn = Boundary::End(turn);
                self.routed_step = None;
            }
            Fact::StepStart(turn, step) => {
                self.step = Boundary::Start((turn, step));
                self.routed_step = Some((turn, step));
                self.attempt = Attempt::default();
            }
            Fact::StepEnd(turn, step) => {
                self.step = Boundary::End((turn, step));
                self.routed_step = self.routed_step.filter(|open| *open != (turn, step));
            }
            Fact::Header { provider } => self.provider = Some(provider),
            Fact::Chunk { finish, .. } => {
                // Whatever recovered the step, what streams behind a finish belongs to its next request.
                if self.attempt.is_finished() {
                    self.attempt = Attempt::default();
                }
                self.attempt.chunk(line.seq, line.span, finish);
            }
            Fact::Answer { turn, step } => {
                if self.step != Boundary::Start((turn, step)) {
                    broken.push(Violation {
                        rule: "step-closed",
                        message: format!(
                            "assistant/message names step {step} of turn {turn}, which is not the open one."
                        ),
                    });
                }
                self.attempt.answer(line.cites.as_deref(), broken);
            }
            Fact::Retry(record) => {
                broken.extend(self.retry(&record).err());
                self.schedule(*record);
            }
            Fact::Started(record) => match self.started(&record) {
                Ok(()) => self.attempt = Attempt::default(),
                Err(violation) => broken.push(violation),
            },
            Fact::Event(_) | Fact::Other => {}
        }
    }

    fn retry(&self, record: &RetryFields) -> Result<(), Violation> {
        let RetryFields { retry_id, turn, step, provider, policy_key, retry } = record;
        match self.turn {
            Boundary::Start(open) if open == *turn => {}
            Boundary::Start(open) => {
                return broken("turn-number", format!("llm/retry names turn {turn}, but turn {open} is open."));
            }
            _ => return broken("turn-closed", format!("llm/retry names turn {turn}, but no turn is open.")),
        }
        match self.step {
            Boundary::Start(open) if open == (*turn, *step) => {}
            Boundary::Start((t, s)) => {
                return broken(
                    "step-number",
                    format!("llm/retry names step {step} of turn {turn}, but step {s} of turn {t} is open."),
                );
            }
            _ => {
                return broken(
                    "step-closed",
                    format!("llm/retry names step {step} of turn {turn}, but no step is open."),
                );
            }
        }
        let routed = self.provider.as_deref().filter(|_| self.routed_step == Some((*turn, *step)));
        if routed != Some(provider) {
            return broken(
                "provider",
                format!("provider is \"{provider}\", but the request went to {}.", routed.unwrap_or("none")),
            );
        }
        match self.chains.get(&(*turn, *step, provider.clone(), policy_key.clone())) {
            Some((_, last)) if *retry != last + 1 => {
                broken("retry-number", format!("retry must be {}, not {retry}.", last + 1))
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
