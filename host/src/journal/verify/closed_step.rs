//! The rules of this program's own dialect: those of each append, over the record as it stands.
//!
//! A line that breaks a rule counts all the same for what follows, so that one fault is told once.

use super::{
    fields::RetryFields,
    line::{Fact, Line},
    types,
};
use crate::{
    journal::{
        event::{Body, Retry, RetryMode},
        invariants::{self, Violation},
        state::SessionState,
    },
    llm::{Failure, FailureCode},
};

#[derive(Default)]
pub(super) struct ClosedStep {
    state: SessionState,
    turns: u64,
    /// A retry's record broke a rule, or a line could not be read: what the next records say about it is believed.
    doubt: bool,
}

impl ClosedStep {
    pub fn turns(&self) -> u64 {
        self.turns
    }

    /// A line that could not be read stood for one event.
    pub fn skip(&mut self) {
        self.state.next_seq = self.state.next_seq.saturating_add(1);
        self.doubt = true;
    }

    pub fn take_in(&mut self, line: Line<'_>, broken: &mut Vec<Violation>) {
        super::same_step::check_seq(&mut self.state.next_seq, line.seq, broken);
        let flaw = line.flaw.as_ref().map(|flaw| flaw.rule);
        broken.extend(line.flaw);
        let surface = matches!(line.kind.as_ref(), "user/message" | "assistant/message");
        broken.extend(types::check_surface_op(&line.kind, surface, line.surface_op));
        match line.fact {
            Fact::Delta { turn, step, index, block, text } => {
                broken.extend(invariants::check_chunk(&self.state, turn, step).err());
                broken.extend(line.cites.map(|_| Violation {
                    rule: "citation",
                    message: "assistant/chunk cites events, but only an answer is made of others.".into(),
                }));
                self.state.apply_delta(index, block, &text);
            }
            Fact::Event(body) => {
                self.believe(&body);
                // Of wrong fields nothing more can be said.
                let found = match flaw {
                    None | Some("surface-op") => invariants::check(&self.state, &body, line.cites.as_deref()).err(),
                    Some(_) => None,
                };
                self.turns += u64::from(matches!(*body, Body::TurnStart(_)));
                let doubted = self.is_in_doubt(&body, found.as_ref());
                if matches!(*body, Body::Retry(_)) {
                    self.doubt = flaw.is_some() || found.is_some() && !doubted;
                }
                broken.extend(found.filter(|_| !doubted));
                self.state.apply(0, &body);
            }
            Fact::Retry(fields) => {
                let record = self.guessed(*fields);
                self.state.apply(0, &Body::Retry(record));
                self.doubt = true;
            }
            // The parser makes the other facts for the other dialect only.
            _ => {}
        }
        self.state.next_seq = line.seq.saturating_add(line.span);
    }

    /// Lets the record that is in doubt be the one that a later record names.
    fn believe(&mut self, body: &Body) {
        let (retry_id, retry) = match body {
            Body::RetryStarted(started) => (&started.retry_id, started.retry),
            Body::RetryHandover(handover) => (&handover.retry_id, handover.retry),
            _ => return,
        };
        if let Some(live) = self.state.live.as_mut().filter(|_| self.doubt) {
            live.record.retry_id.clone_from(retry_id);
            live.record.retry = retry;
        }
    }

    /// Whether a rule may only seem broken, since an earlier record was not what it should have been.
    fn is_in_doubt(&self, body: &Body, found: Option<&Violation>) -> bool {
        let Some(found) = found.filter(|_| self.doubt) else { return false };
        match body {
            Body::Retry(_) => matches!(found.rule, "retry-number" | "retry-id"),
            Body::RetryStarted(_) | Body::RetryHandover(_) => found.rule == "live-record",
            _ => false,
        }
    }

    /// The record that a line of wrong fields stands for, as far as it can be told.
    fn guessed(&self, fields: RetryFields) -> Retry {
        let RetryFields { retry_id, turn, step, provider, policy_key, retry } = fields;
        let failed = self.state.step.as_ref().and_then(|step| step.failure.clone());
        Retry {
            retry_id,
            turn,
            step,
            provider,
            mode: RetryMode::Always,
            policy_key,
            retry,
            max_retries: None,
            delay_ms: 0.0,
            failure: failed.unwrap_or_else(|| Failure::new(FailureCode::Unknown, "")),
        }
    }
}
