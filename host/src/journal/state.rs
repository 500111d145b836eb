//! What a session's events add up to: a pure fold, so that a state rebuilt from a file equals the state that was
//! watched live. Surface, budgets and pending waits are read from here and from nowhere else.

use super::event::{Body, ChainMet, Event, ExecutorRef, Header, HeaderConfig, Retry, SCHEDULING_NOTE, TurnEndReason};
use super::projection::RetryView;
use super::stream::Stream;
use crate::llm::{BlockType, Failure, FailureCode, FinishReason, Message, Role};
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// The sum of a session's events so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SessionState {
    /// How many events there are, which is also the next event's `seq`.
    pub next_seq: u64,
    /// The number of the newest turn; 0 before the first.
    pub last_turn: u64,
    /// The newest turn is not closed.
    pub turn_open: bool,
    /// The newest turn ended so that the next one repeats it, and no next one has begun.
    pub to_repeat: Option<u64>,
    /// The newest turn repeats the one before it.
    pub(crate) repeats: bool,
    /// The newest turn has a prompt of its own.
    pub(crate) prompted: bool,
    /// The newest step of the open turn.
    pub step: Option<StepState>,
    /// The header that the newest request was made with.
    pub header: Option<Header>,
    /// What the model sees: nothing else of the journal ever reaches a request.
    pub surface: Vec<Message>,
    /// The newest chain that the session has met. Its number alone does not tell it: a new process counts from 1 again.
    pub chain: Option<ChainMet>,
    /// Every executor of every chain that the session has met.
    pub(crate) executors: Vec<ExecutorRef>,
    /// Started retries of this recovery, by provider and policy key.
    pub(crate) started: HashMap<(String, String), Started>,
    /// Every retry id that the session has seen, so that none is used for two chains.
    pub(crate) known_ids: HashSet<String>,
    /// The record of the current step that is scheduled.
    pub(crate) live: Option<LiveRetry>,
    /// Who announced that it schedules a record; the next `llm/retry` is its.
    pub(crate) scheduling: Option<ExecutorRef>,
    /// The requests that failed since the newest prompt.
    pub failures: Vec<FailedRequest>,
    /// When the newest prompt came, in milliseconds since the Unix epoch.
    pub prompt_time: u64,
    /// The newest retry as people watch it.
    pub retries: RetryView,
}

/// The newest step of the open turn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepState {
    pub step: u64,
    pub closed: bool,
    pub failure: Option<Failure>,
    /// What its request has streamed.
    pub(crate) stream: Stream,
    pub(crate) answer: Option<Answered>,
}

impl StepState {
    /// Its answer has been recorded as a whole.
    pub fn is_answered(&self) -> bool {
        self.answer == Some(Answered::Whole)
    }

    /// Its stream said that the answer stopped at an output limit.
    pub fn is_cut(&self) -> bool {
        self.stream.finish == Some(FinishReason::MaxTokens)
    }
}

/// What a step's answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    Whole,
    /// The beginning that was visible when the turn was cancelled.
    Interrupted,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Started {
    retry_id: String,
    retry: u64,
}

/// A retry record of the current step.
#[derive(Clone, Debug, PartialEq)]
pub struct LiveRetry {
    pub record: Retry,
    /// When it was scheduled, in milliseconds since the Unix epoch.
    pub scheduled_at: u64,
    /// When the step's first wait began: a record that took over from another one inherits it.
    pub waiting_since: u64,
    /// Who scheduled it, where the journal says so.
    pub by: Option<ExecutorRef>,
    pub started: bool,
    /// A handover named it since it was scheduled, so that another record may take its place.
    pub handed_over: bool,
}

impl LiveRetry {
    /// What remains of the wait at `now_ms`, in milliseconds; 0 when it is overdue.
    pub fn remaining_ms(&self, now_ms: u64) -> f64 {
        (self.record.delay_ms - now_ms.saturating_sub(self.scheduled_at) as f64).max(0.0)
    }

    /// How long the turn has waited at `now_ms` since its step failed, in milliseconds, whoever scheduled the waits.
    pub fn waited_ms(&self, now_ms: u64) -> f64 {
        now_ms.saturating_sub(self.waiting_since) as f64
    }
}

/// One failed request, as the account of a failed prompt lists it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailedRequest {
    pub turn: u64,
    pub provider: String,
    #[serde(flatten)]
    pub kind: FailureKind,
}

/// What two failures have in common that people would call the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FailureKind {
    pub code: FailureCode,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The limit of time that passed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// What failed in the connection: the innermost kind of the cause chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The provider's own error code or type, where no status tells more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_code: Option<String>,
}

impl FailureKind {
    pub fn of(failure: &Failure) -> FailureKind {
        let evidence = failure.evidence.as_deref();
        FailureKind {
            code: failure.code,
            status: failure.status,
            limit: evidence.and_then(|evidence| evidence.limit.clone()),
            cause: evidence.and_then(|evidence| evidence.causes.last().cloned()),
            provider_code: evidence
                .filter(|_| failure.status.is_none())
                .and_then(|evidence| evidence.provider_code.clone()),
        }
    }
}

impl SessionState {
    /// The sum of a whole record.
    pub fn of(events: &[Event]) -> SessionState {
        let mut state = SessionState::default();
        for event in events {
            state.apply(event.time, &event.body);
        }
        state
    }

    /// The newest started retry of this provider and key since the last success or prompt.
    pub fn last_retry(&self, provider: &str, policy_key: &str) -> Option<(&str, u64)> {
        // A recovery knows a handful of chains at most, so that a scan is cheaper than an owned key.
        self.started
            .iter()
            .find(|((p, k), _)| p == provider && k == policy_key)
            .map(|(_, started)| (started.retry_id.as_str(), started.retry))
    }

    /// The current step's newest retry record, whether started or not.
    pub fn current_retry(&self) -> Option<&LiveRetry> {
        self.live.as_ref()
    }

    /// The current step's record whose wait has not ended.
    pub fn pending_retry(&self) -> Option<&LiveRetry> {
        self.live.as_ref().filter(|live| !live.started)
    }

    /// Whether an id belongs to a chain of retries already.
    pub fn knows_retry_id(&self, retry_id: &str) -> bool {
        self.known_ids.contains(retry_id)
    }

    /// The provider and model of the newest request.
    pub fn routed(&self) -> Option<&HeaderConfig> {
        self.header.as_ref().map(|header| &header.config)
    }

    /// Adds a chunk that is a piece of text, as [`SessionState::apply`] would; `text` need not be owned for it.
    pub(super) fn apply_delta(&mut self, index: u32, kind: BlockType, text: &str) {
        if let Some(step) = &mut self.step {
            step.stream.delta(self.next_seq, index, kind, text);
        }
        self.next_seq = self.next_seq.saturating_add(1);
    }

    /// Adds one event. Never fails: whether an event is allowed is for `invariants` to say.
    pub fn apply(&mut self, time: u64, body: &Body) {
        let seq = self.next_seq;
        self.next_seq = self.next_seq.saturating_add(1);
        self.retries.apply(time, body);
        match body {
            Body::TurnStart(start) => {
                self.last_turn = start.turn;
                self.turn_open = true;
                self.to_repeat = None;
                self.repeats = start.retry_of.is_some();
                self.prompted = false;
                self.step = None;
                self.live = None;
                if start.retry_of.is_none() {
                    self.started.clear();
                    self.failures.clear();
                    self.prompt_time = time;
                }
            }
            Body::UserMessage(message) => {
                self.prompted = true;
                self.surface.push(Message { role: Role::User, content: message.content.clone() });
            }
            Body::StepStart(step) => {
                self.step = Some(StepState { step: step.step, ..StepState::default() });
                self.live = None;
            }
            Body::RequestHeader(header) => self.header = Some(header.header.clone()),
            Body::AssistantMessage(message) => {
                self.surface.push(Message { role: Role::Assistant, content: message.message.content.clone() });
                self.started.clear();
                if let Some(step) = &mut self.step {
                    step.answer = Some(if message.interrupted { Answered::Interrupted } else { Answered::Whole });
                }
            }
            Body::StepEnd(end) => {
                if let Some(failure) = &end.failure {
                    self.failures.push(FailedRequest {
                        turn: end.turn,
                        provider: self.routed().map(|config| config.provider.clone()).unwrap_or_default(),
                        kind: FailureKind::of(failure),
                    });
                }
                let open = self.step.take().unwrap_or_default();
                self.step = Some(StepState { step: end.step, closed: true, failure: end.failure.clone(), ..open });
            }
            Body::Chain(chain) => {
                for executor in &chain.executors {
                    let met = ExecutorRef { id: executor.id.clone(), digest: executor.digest.clone() };
                    if !self.executors.contains(&met) {
                        self.executors.push(met);
                    }
                }
                self.chain = Some(chain.clone());
            }
            Body::AssistantChunk(chunk) => {
                if let Some(step) = &mut self.step {
                    step.stream.take_in(seq, &chunk.chunk);
                }
            }
            Body::Retry(record) => {
                self.known_ids.insert(record.retry_id.clone());
                let waiting_since = self.pending_retry().map_or(time, |live| live.waiting_since);
                self.live = Some(LiveRetry {
                    record: record.clone(),
                    scheduled_at: time,
                    waiting_since,
                    by: self.scheduling.take(),
                    started: false,
                    handed_over: false,
                });
            }
            Body::RetryStarted(_) => {
                if let Some(live) = &mut self.live {
                    live.started = true;
                    self.started.insert(
                        (live.record.provider.clone(), live.record.policy_key.clone()),
                        Started { retry_id: live.record.retry_id.clone(), retry: live.record.retry },
                    );
                }
            }
            Body::RetryHandover(_) => {
                if let Some(live) = &mut self.live {
                    live.handed_over = true;
                }
            }
            Body::ExecutorNote(note) if note.kind == SCHEDULING_NOTE => {
                self.scheduling = Some(ExecutorRef { id: note.id.clone(), digest: note.digest.clone() });
            }
            Body::TurnEnd(end) => {
                self.turn_open = false;
                self.step = None;
                self.live = None;
                if matches!(end.reason, TurnEndReason::Retry) {
                    self.to_repeat = Some(end.turn);
                } else {
                    self.started.clear();
                }
            }
            Body::ExecutorFault(_) | Body::ExecutorNote(_) | Body::Ignorable { .. } => {}
        }
    }
}
