//! The rules of this program's own dialect: those of each append, and those that only a whole record shows.

use super::{
    attempt::Attempt,
    line::{Fact, Line},
};
use crate::journal::{
    event::{Body, TurnEndReason},
    invariants::{self, Violation},
    state::SessionState,
};

#[derive(Default)]
pub(super) struct ClosedStep {
    state: SessionState,
    attempt: Attempt,
    turns: u64,
    /// The open turn repeats another one.
    repeats: bool,
    /// The newest turn ended so that another one may repeat it.
    may_be_repeated: bool,
}

impl ClosedStep {
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// A line that could not be read stood for one event.
    pub fn skip(&mut self) {
        self.state.next_seq += 1;
    }

    pub fn take_in(&mut self, line: Line, broken: &mut Vec<Violation>) {
        super::same_step::check_seq(&mut self.state.next_seq, line.seq, broken);
        let surface = matches!(line.kind.as_str(), "user/message" | "assistant/message");
        if surface != line.surface_op {
            let message = if surface {
                format!("{} adds to the surface, so that its surfaceOp must be \"append\".", line.kind)
            } else {
                format!("{} has a surfaceOp, but only messages reach a request.", line.kind)
            };
            broken.push(Violation { rule: "surface-op", message });
        }
        if line.cites.is_some() && line.kind != "assistant/message" {
            broken.push(Violation {
                rule: "citation",
                message: format!("{} cites events, but only an answer is made of others.", line.kind),
            });
        }
        match line.fact {
            Fact::Chunk { turn, step, finish } => {
                broken.extend(invariants::check_chunk(&self.state, turn, step).err());
                if self.attempt.chunk(line.seq, line.span, finish) {
                    broken.push(Violation {
                        rule: "stream-end",
                        message: format!("A chunk follows the finish of step {step}; a step makes one request."),
                    });
                }
                self.state.next_seq += 1;
            }
            Fact::Event(body) => {
                broken.extend(invariants::check(&self.state, &body).err());
                self.whole_record_rules(&body, line.cites.as_deref(), broken);
                self.state.apply(0, &body);
            }
            // The parser makes the other facts for the other dialect only.
            _ => self.state.next_seq += 1,
        }
        self.state.next_seq = line.seq.saturating_add(line.span);
    }

    fn whole_record_rules(&mut self, body: &Body, cites: Option<&[u64]>, broken: &mut Vec<Violation>) {
        match body {
            Body::TurnStart(start) => {
                self.turns += 1;
                self.repeats = start.retry_of.is_some();
                if let Some(of) = start.retry_of.filter(|_| !self.may_be_repeated) {
                    broken.push(Violation {
                        rule: "retry-of",
                        message: format!("Turn {of} did not end with the reason \"retry\", so nothing may repeat it."),
                    });
                }
                self.may_be_repeated = false;
            }
            Body::UserMessage(_) if self.repeats => broken.push(Violation {
                rule: "retry-surface",
                message: "A retry turn repeats its request over the same surface, so it has no user/message.".into(),
            }),
            Body::StepStart(_) => self.attempt = Attempt::default(),
            Body::AssistantMessage(_) => self.attempt.answer(cites, broken),
            Body::StepEnd(end) if end.failure.is_some() && self.attempt.is_answered() => broken.push(Violation {
                rule: "failed-answer",
                message: format!("Step {} failed, yet it has an assistant/message.", end.step),
            }),
            Body::RetryHandover(handover) => {
                let scheduled_by = self.state.current_retry().and_then(|live| live.by.as_ref());
                if let Some(by) = scheduled_by.filter(|by| **by != handover.from) {
                    broken.push(Violation {
                        rule: "handover-from",
                        message: format!("from is \"{}\", but \"{}\" had scheduled the wait.", handover.from.id, by.id),
                    });
                }
                let met = self.state.chain.as_ref().map(|chain| chain.generation);
                if met != Some(handover.generation) {
                    broken.push(Violation {
                        rule: "handover-generation",
                        message: format!(
                            "generation is {}, but the newest chain that the session has met is {}.",
                            handover.generation,
                            met.map_or_else(|| "none".to_owned(), |met| met.to_string())
                        ),
                    });
                }
            }
            Body::TurnEnd(end) => self.may_be_repeated = matches!(end.reason, TurnEndReason::Retry),
            _ => {}
        }
    }
}
