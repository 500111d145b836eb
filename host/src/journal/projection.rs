//! The state of a session's retries as people watch it: a pure fold over its events, equal whether it was rebuilt from
//! a record or watched live.
//!
//! Owns what a status line, a list of sessions and the `result` of a run show. It is a part of the session's state, which
//! every record that is read and every journal that is written carries along. Budgets and pending waits are `state`'s:
//! nothing is decided from here.

use super::event::{Body, Event, ExecutorRef, Retry, RetryMode, SCHEDULING_NOTE, TurnEndReason};
use crate::llm::Failure;
use serde::Serialize;

/// The newest retry of a session, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryView {
    /// Absent before the session's first retry.
    pub current: Option<RetryRow>,
    /// Who announced that it schedules the next record.
    #[serde(skip)]
    scheduling: Option<(ExecutorRef, Option<u64>)>,
}

/// One scheduled retry.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RetryRow {
    pub retry_id: String,
    pub turn: u64,
    pub step: u64,
    pub provider: String,
    /// From 1, along the chain of retry turns.
    pub retry: u64,
    /// Absent under `always`, which people read as ∞.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The whole wait as it was scheduled, in milliseconds.
    #[serde(with = "crate::journal::number")]
    pub delay_ms: f64,
    /// When the wait ends, in milliseconds since the Unix epoch. A handover keeps it.
    pub due_at: u64,
    /// Who scheduled it, where the record says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<ExecutorRef>,
    /// The generation of the chain that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Why the request before it failed.
    pub failure: Failure,
    pub outcome: RetryOutcome,
}

/// What became of a scheduled retry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RetryOutcome {
    /// Its wait has not ended.
    Waiting,
    /// Its wait is over; the request has no outcome yet.
    Started,
    /// The request that followed was answered.
    Answered,
    /// The request that followed failed too.
    FailedAgain,
    /// The turn was cancelled.
    Cancelled,
    /// The turn ended with its failure although a retry was scheduled.
    GivenUp,
    /// A crash ended it, and it was not gone on with.
    Interrupted,
}

impl RetryRow {
    /// What remains of the wait at `now_ms`, in milliseconds; 0 when it is over or overdue.
    /// Never more than the whole wait, whatever became of the clock.
    pub fn remaining_ms(&self, now_ms: u64) -> u64 {
        let left = self.due_at.saturating_sub(now_ms).min(whole_ms(self.delay_ms));
        if self.outcome == RetryOutcome::Waiting { left } else { 0 }
    }

    /// `2/5`, or `2/∞` under `always`.
    pub fn count(&self) -> String {
        match self.limit {
            Some(limit) => format!("{}/{limit}", self.retry),
            None => format!("{}/∞", self.retry),
        }
    }

    fn is_live(&self) -> bool {
        matches!(self.outcome, RetryOutcome::Waiting | RetryOutcome::Started)
    }
}

impl RetryView {
    /// The view of a whole record.
    pub fn of(events: &[Event]) -> RetryView {
        let mut view = RetryView::default();
        for event in events {
            view.apply(event.time, &event.body);
        }
        view
    }

    /// The retry whose wait has not ended.
    pub fn waiting(&self) -> Option<&RetryRow> {
        self.current.as_ref().filter(|row| row.outcome == RetryOutcome::Waiting)
    }

    /// Adds one event, which happened at `time`, in milliseconds since the Unix epoch.
    pub fn apply(&mut self, time: u64, body: &Body) {
        match body {
            Body::ExecutorNote(note) if note.kind == SCHEDULING_NOTE => {
                let by = ExecutorRef { id: note.id.clone(), digest: note.digest.clone() };
                self.scheduling = Some((by, note.data.get("generation").and_then(serde_json::Value::as_u64)));
            }
            Body::Retry(record) => {
                let (executor, generation) = self.scheduling.take().unzip();
                self.current = Some(scheduled(record, time, executor, generation.flatten()));
            }
            Body::RetryHandover(handover) => {
                if let Some(row) = self.live() {
                    row.due_at = time + whole_ms(handover.remaining_ms);
                    row.generation = Some(handover.generation);
                }
            }
            Body::RetryStarted(_) => self.settle(RetryOutcome::Started),
            Body::StepEnd(end) if end.failure.is_some() && self.repeated_in(end.turn) => {
                self.settle(RetryOutcome::FailedAgain);
            }
            Body::TurnEnd(end) => match &end.reason {
                // The turn that failed makes room for the one that repeats it.
                TurnEndReason::Retry => {}
                TurnEndReason::Completed | TurnEndReason::MaxTokens => self.settle(RetryOutcome::Answered),
                TurnEndReason::Aborted => self.settle(RetryOutcome::Cancelled),
                TurnEndReason::Error { .. } => self.settle(RetryOutcome::GivenUp),
                TurnEndReason::Interrupted => self.settle(RetryOutcome::Interrupted),
            },
            _ => {}
        }
    }

    /// The retry has started, and the turn is one that repeats its own.
    fn repeated_in(&self, turn: u64) -> bool {
        self.current.as_ref().is_some_and(|row| row.outcome == RetryOutcome::Started && row.turn < turn)
    }

    fn live(&mut self) -> Option<&mut RetryRow> {
        self.current.as_mut().filter(|row| row.is_live())
    }

    fn settle(&mut self, outcome: RetryOutcome) {
        if let Some(row) = self.live() {
            row.outcome = outcome;
        }
    }
}

fn scheduled(record: &Retry, time: u64, executor: Option<ExecutorRef>, generation: Option<u64>) -> RetryRow {
    RetryRow {
        retry_id: record.retry_id.clone(),
        turn: record.turn,
        step: record.step,
        provider: record.provider.clone(),
        retry: record.retry,
        limit: record.max_retries.filter(|_| record.mode == RetryMode::Normal),
        delay_ms: record.delay_ms,
        due_at: time + whole_ms(record.delay_ms),
        executor,
        generation,
        failure: record.failure.clone(),
        outcome: RetryOutcome::Waiting,
    }
}

/// Rounded up, since a wait is not over before its time.
fn whole_ms(ms: f64) -> u64 {
    ms.ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        env::Env,
        journal::{
            Journal, Observer,
            event::{
                Answer, AnswerRole, AnswerSource, AssistantChunk, AssistantMessage, ChainMet, ExecutorIdentity,
                ExecutorNote, Header, HeaderConfig, HeaderReason, RequestHeader, RetryHandover, RetryStarted, StepEnd,
                StepRef, TurnEnd, TurnStart, UserMessage, UserRole, UserSource,
            },
        },
        llm::{Chunk, FailureCode, FinishReason},
    };
    use parking_lot::Mutex;
    use std::sync::Arc;

    fn failure() -> Failure {
        Failure { status: Some(503), ..Failure::new(FailureCode::Server, "busy") }
    }

    /// A failed step whose retry has been scheduled, with a wait of 400.5 ms.
    fn waiting() -> Vec<Body> {
        let config = HeaderConfig { provider: "p".into(), model: "m".into() };
        let executor = ExecutorIdentity { id: "e".into(), name: "e".into(), version: "0".into(), digest: "d".into() };
        vec![
            Body::TurnStart(TurnStart { turn: 1, retry_of: None }),
            Body::UserMessage(UserMessage {
                content: Vec::new(),
                source: UserSource::User,
                role: UserRole::User,
                id: "m-1".into(),
            }),
            Body::StepStart(StepRef { turn: 1, step: 1 }),
            Body::RequestHeader(RequestHeader {
                header: Header { config, system: None },
                reason: HeaderReason::Initial,
            }),
            Body::StepEnd(StepEnd { turn: 1, step: 1, failure: Some(failure()) }),
            Body::Chain(ChainMet { generation: 1, executors: vec![executor] }),
            Body::ExecutorNote(ExecutorNote {
                id: "e".into(),
                digest: "d".into(),
                kind: SCHEDULING_NOTE.into(),
                data: serde_json::json!({ "generation": 1 }),
            }),
            Body::Retry(Retry {
                retry_id: "r".into(),
                turn: 1,
                step: 1,
                provider: "p".into(),
                mode: RetryMode::Normal,
                policy_key: "k".into(),
                retry: 1,
                max_retries: Some(2),
                delay_ms: 400.5,
                failure: failure(),
            }),
        ]
    }

    fn started() -> Body {
        Body::RetryStarted(RetryStarted { retry_id: "r".into(), turn: 1, step: 1, retry: 1 })
    }

    fn end(turn: u64, reason: TurnEndReason) -> Body {
        Body::TurnEnd(TurnEnd { turn, reason })
    }

    /// An answer of nothing in turn 2, and the end of its step.
    fn answered() -> Vec<Body> {
        let finish = Chunk::Finish { reason: FinishReason::Stop };
        vec![
            Body::AssistantChunk(AssistantChunk { turn: 2, step: 1, chunk: finish }),
            Body::AssistantMessage(AssistantMessage {
                turn: 2,
                step: 1,
                message: Answer {
                    role: AnswerRole::Assistant,
                    content: Vec::new(),
                    source: AnswerSource::Model { provider: "p".into(), model: "m".into() },
                    id: "m-2".into(),
                },
                usage: None,
                interrupted: false,
            }),
            Body::StepEnd(StepEnd { turn: 2, step: 1, failure: None }),
        ]
    }

    struct Watcher(Mutex<RetryView>);

    impl Observer for Watcher {
        fn appended(&self, _session: &str, event: &Event) {
            self.0.lock().apply(event.time, &event.body);
        }
    }

    /// The view after `bodies`, which must be the same after every one of them whether watched or rebuilt.
    fn view(bodies: Vec<Body>) -> RetryView {
        let (journal, log) = Journal::in_memory("s", Env::fixed(1_000, 1).clock);
        let watcher = Arc::new(Watcher(Mutex::default()));
        journal.observe(watcher.clone());
        for body in bodies {
            match body {
                // It cites the one chunk before it.
                Body::AssistantMessage(_) => {
                    let chunk = journal.with_state(|state| state.next_seq - 1);
                    journal.append_citing(body, vec![chunk]).unwrap()
                }
                body => journal.append(body).unwrap(),
            };
            assert_eq!(*watcher.0.lock(), RetryView::of(&log.events()));
            assert_eq!(journal.with_state(|state| state.retries.clone()), RetryView::of(&log.events()));
        }
        RetryView::of(&log.events())
    }

    fn outcome(more: Vec<Body>) -> RetryOutcome {
        let bodies = waiting().into_iter().chain(more).collect();
        view(bodies).current.unwrap().outcome
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_tells_number_limit_time_executor_and_reason() {
        let view = view(waiting());
        let row = view.waiting().unwrap();
        assert_eq!((row.count().as_str(), row.due_at, row.generation), ("1/2", 1_401, Some(1)));
        assert_eq!(row.executor.as_ref().map(|by| by.id.as_str()), Some("e"));
        assert_eq!(row.failure, failure());
        assert_eq!((row.remaining_ms(1_100), row.remaining_ms(9_000)), (301, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_handover_keeps_the_deadline_and_names_who_waits() {
        let mut bodies = waiting();
        bodies.push(Body::Chain(ChainMet { generation: 2, executors: Vec::new() }));
        bodies.push(Body::RetryHandover(RetryHandover {
            retry_id: "r".into(),
            turn: 1,
            step: 1,
            retry: 1,
            remaining_ms: 400.5,
            from: ExecutorRef { id: "e".into(), digest: "d".into() },
            generation: 2,
        }));
        let view = view(bodies);
        let row = view.waiting().unwrap();
        assert_eq!((row.due_at, row.generation), (1_401, Some(2)));
    }

    #[tokio::test(start_paused = true)]
    async fn every_end_of_a_retry_is_told() {
        let repeat = || {
            vec![
                started(),
                end(1, TurnEndReason::Retry),
                Body::TurnStart(TurnStart { turn: 2, retry_of: Some(1) }),
                Body::StepStart(StepRef { turn: 2, step: 1 }),
            ]
        };
        let step_end = |failure| Body::StepEnd(StepEnd { turn: 2, step: 1, failure });
        let then = |more: Vec<Body>| outcome(repeat().into_iter().chain(more).collect());
        assert_eq!(outcome(vec![started()]), RetryOutcome::Started);
        assert_eq!(then(vec![]), RetryOutcome::Started);
        assert_eq!(then(vec![step_end(Some(failure()))]), RetryOutcome::FailedAgain);
        let completed = answered().into_iter().chain([end(2, TurnEndReason::Completed)]).collect();
        assert_eq!(then(completed), RetryOutcome::Answered);
        assert_eq!(then(vec![step_end(None), end(2, TurnEndReason::Interrupted)]), RetryOutcome::Interrupted);
        assert_eq!(outcome(vec![end(1, TurnEndReason::Aborted)]), RetryOutcome::Cancelled);
        assert_eq!(outcome(vec![end(1, TurnEndReason::Error { error: Box::new(failure()) })]), RetryOutcome::GivenUp);
        // A later turn's end is not about this retry.
        let next = vec![
            end(1, TurnEndReason::Aborted),
            Body::TurnStart(TurnStart { turn: 2, retry_of: None }),
            end(2, TurnEndReason::Interrupted),
        ];
        assert_eq!(outcome(next), RetryOutcome::Cancelled);
    }
}
