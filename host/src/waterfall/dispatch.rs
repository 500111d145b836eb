//! One pass of a failed step through one chain: who is asked, what `next` gives, and what each call may do.

use super::{
    FAULTS_PER_STEP,
    activation::Activation,
    executor::{
        AppendError, Call, Decision, FailedStep, Fault, FaultKind, Interruption, LogLevel, Record, RetryLimit,
        StartedRetry,
    },
    recovery::RecoveryContext,
    swap::Chain,
};
use crate::journal::{
    Body, JournalError,
    event::{ExecutorFault, ExecutorNote, ExecutorRef, Retry, RetryHandover, RetryMode, RetryStarted, SCHEDULING_NOTE},
};
use futures_util::{FutureExt, future::BoxFuture};
use parking_lot::Mutex;
use serde_json::Value;
use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::sync::OnceCell;

/// How deep a note may nest its JSON. A record stands a few levels deeper than its note, and readers stop at 128.
const MAX_NOTE_DEPTH: usize = 64;

/// One pass through one chain. Shared by the frames of its calls.
pub(super) struct Dispatch {
    context: Arc<RecoveryContext>,
    chain: Arc<Chain>,
    step: FailedStep,
    faults: Arc<FaultsOfStep>,
    /// A call ended, or never began, because its activation was retired.
    retired: AtomicBool,
    /// A call that had scheduled a wait faulted before the wait ended.
    lost_schedule: AtomicBool,
    storage_error: Mutex<Option<JournalError>>,
    /// The position of the call that appended the step's live record, while it runs.
    scheduling: Mutex<Option<usize>>,
}

/// How often each activation, by address, faulted on this step.
#[derive(Default)]
pub(super) struct FaultsOfStep(Mutex<HashMap<usize, u32>>);

/// How a pass ended.
pub(super) struct Pass {
    pub decision: Decision,
    /// Somebody who might have answered was swapped out, or faulted with a wait scheduled: ask the current chain.
    pub ask_again: bool,
    pub storage_error: Option<JournalError>,
}

/// What one call of the rest of the chain gave.
enum Asked {
    Decided(Decision),
    /// The activation at this position faulted; the rest of the chain begins behind it.
    Faulted {
        position: usize,
        text: String,
    },
}

impl Dispatch {
    pub(super) fn new(
        context: Arc<RecoveryContext>,
        chain: Arc<Chain>,
        step: FailedStep,
        faults: Arc<FaultsOfStep>,
    ) -> Arc<Dispatch> {
        Arc::new(Dispatch {
            context,
            chain,
            step,
            faults,
            retired: AtomicBool::new(false),
            lost_schedule: AtomicBool::new(false),
            storage_error: Mutex::new(None),
            scheduling: Mutex::new(None),
        })
    }

    /// Asks the chain from its head. A fault at the head goes on with the rest, as if the executor had called `next`;
    /// an answer that its `next` had given already is kept.
    pub(super) async fn run(self: Arc<Self>) -> Pass {
        let mut from = 0;
        let decision = loop {
            match self.clone().ask(from, 0).await {
                (Asked::Decided(decision), _) => break decision,
                (Asked::Faulted { .. }, Some(Asked::Decided(kept))) => break kept,
                (Asked::Faulted { position, .. }, next) => {
                    if self.lost_schedule.load(Ordering::Acquire) {
                        break Decision::Unhandled;
                    }
                    // What its `next` had asked is not asked again.
                    from = match next {
                        Some(Asked::Faulted { position: behind, .. }) => behind + 1,
                        _ => position + 1,
                    };
                }
            }
        };
        Pass {
            decision,
            ask_again: self.retired.load(Ordering::Acquire) || self.lost_schedule.load(Ordering::Acquire),
            storage_error: self.storage_error.lock().take(),
        }
    }

    /// The first position at or behind `from` that may be asked.
    fn position(&self, from: usize) -> Option<usize> {
        (from..self.chain.activations.len()).find(|&position| {
            let activation = &self.chain.activations[position];
            !activation.is_quarantined() && self.faults.count(activation) < FAULTS_PER_STEP
        })
    }

    /// Asks the executor at or behind `from`. The second value is what its own `next` had given, if it was called.
    fn ask(self: Arc<Self>, from: usize, depth: usize) -> BoxFuture<'static, (Asked, Option<Asked>)> {
        Box::pin(async move {
            let Some(position) = self.position(from) else { return (Asked::Decided(Decision::Unhandled), None) };
            let activation = self.chain.activations[position].clone();
            if activation.is_retired() {
                // A callback captured before the swap and entered after it fails closed: nothing behind it is touched.
                self.retired.store(true, Ordering::Release);
                return (Asked::Decided(Decision::Unhandled), None);
            }
            let active = activation.enter();
            let frame = Arc::new(Frame {
                dispatch: self.clone(),
                activation: activation.clone(),
                position,
                depth,
                next: OnceCell::new(),
            });
            let call =
                activation.executor.request_error(self.step.clone(), frame.clone(), activation.kill_token().clone());
            let outcome = tokio::select! {
                biased;
                outcome = AssertUnwindSafe(call).catch_unwind() => outcome.unwrap_or_else(|panic| Err(Fault {
                    kind: FaultKind::Trap,
                    message: format!("The executor panicked: {}.", panic_text(panic.as_ref())),
                })),
                () = activation.kill_token().cancelled() => Err(Fault {
                    kind: FaultKind::Killed,
                    message: "The executor was swapped out, did not end in time, and was ended by force.".into(),
                }),
            };
            drop(active);
            if activation.is_retired() {
                self.retired.store(true, Ordering::Release);
            }
            let scheduled = self.scheduling.lock().take_if(|scheduling| *scheduling == position).is_some();
            let next = frame.next_outcome();
            if let (Err(fault), Some(Asked::Faulted { position, text })) = (&outcome, &next)
                && fault.kind == FaultKind::Error
                && fault.message.contains(text.as_str())
            {
                // It passed on the fault of an executor behind it, which is recorded and counted already.
                let asked = Asked::Faulted { position: *position, text: text.clone() };
                return (asked, next);
            }
            let quarantined = activation.settle(&outcome);
            let asked = match outcome {
                Ok(decision) => Asked::Decided(decision),
                Err(fault) => {
                    self.faults.add(&activation);
                    if scheduled && self.context.journal.with_state(|state| state.pending_retry().is_some()) {
                        self.lost_schedule.store(true, Ordering::Release);
                    }
                    self.record_fault(&activation, &fault, quarantined);
                    Asked::Faulted { position, text: fault.message }
                }
            };
            (asked, next)
        })
    }

    fn record_fault(&self, activation: &Activation, fault: &Fault, quarantined: bool) {
        let identity = &activation.identity;
        let mut message = fault.message.clone();
        if quarantined {
            message.push_str(" This was the fifth fault in a row: the executor is quarantined until it is replaced.");
        }
        tracing::warn!(executor = %identity.id, digest = identity.short_digest(), kind = ?fault.kind, "{message}");
        let ExecutorRef { id, digest } = identity.reference();
        let record = ExecutorFault { id, digest, kind: fault.kind, message };
        self.keep_error(self.context.journal.append(Body::ExecutorFault(record)));
    }

    /// A store that failed ends the turn; a broken rule is the executor's own business.
    fn keep_error<T>(&self, result: Result<T, JournalError>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                if matches!(error, JournalError::Store(_)) {
                    self.storage_error.lock().get_or_insert(error);
                }
                None
            }
        }
    }
}

impl FaultsOfStep {
    fn count(&self, activation: &Arc<Activation>) -> u32 {
        self.0.lock().get(&(Arc::as_ptr(activation) as usize)).copied().unwrap_or(0)
    }

    fn add(&self, activation: &Arc<Activation>) {
        *self.0.lock().entry(Arc::as_ptr(activation) as usize).or_insert(0) += 1;
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// One call of one executor: the host's side of everything that it may do.
struct Frame {
    dispatch: Arc<Dispatch>,
    activation: Arc<Activation>,
    position: usize,
    depth: usize,
    next: OnceCell<Asked>,
}

impl Frame {
    fn next_outcome(&self) -> Option<Asked> {
        self.next.get().map(|asked| match asked {
            Asked::Decided(decision) => Asked::Decided(*decision),
            Asked::Faulted { position, text } => Asked::Faulted { position: *position, text: text.clone() },
        })
    }

    fn append_retry(
        &self,
        retry_id: String,
        policy_key: String,
        retry: u64,
        limit: RetryLimit,
        delay_ms: f64,
    ) -> Result<u64, JournalError> {
        let Dispatch { context, step, chain, .. } = &*self.dispatch;
        let (mode, max_retries) = match limit {
            RetryLimit::Normal(max) => (RetryMode::Normal, Some(max)),
            RetryLimit::Always => (RetryMode::Always, None),
        };
        self.hand_over_abandoned()?;
        let ExecutorRef { id, digest } = self.activation.identity.reference();
        let note = Body::ExecutorNote(ExecutorNote {
            id,
            digest,
            kind: SCHEDULING_NOTE.into(),
            data: serde_json::json!({ "generation": chain.generation, "retryId": retry_id, "retry": retry }),
        });
        let record = Body::Retry(Retry {
            retry_id,
            turn: step.turn,
            step: step.step,
            provider: step.provider.clone(),
            mode,
            policy_key,
            retry,
            max_retries,
            delay_ms,
            failure: step.failure.clone(),
        });
        let seq = context.journal.append_pair(note, record)?;
        *self.dispatch.scheduling.lock() = Some(self.position);
        Ok(seq)
    }

    /// A record whose call has ended without starting it moves to this executor before another takes its place.
    fn hand_over_abandoned(&self) -> Result<(), JournalError> {
        let Dispatch { context, chain, step, scheduling, .. } = &*self.dispatch;
        if scheduling.lock().is_some() {
            return Ok(());
        }
        let abandoned =
            context.journal.with_state(|state| state.pending_retry().filter(|live| !live.handed_over).cloned());
        let Some(live) = abandoned else { return Ok(()) };
        let from = live.by.clone().unwrap_or_else(|| self.activation.identity.reference());
        context
            .journal
            .append(Body::RetryHandover(RetryHandover {
                retry_id: live.record.retry_id.clone(),
                turn: step.turn,
                step: step.step,
                retry: live.record.retry,
                remaining_ms: live.remaining_ms(context.env.clock.wall_ms()),
                from,
                generation: chain.generation,
            }))
            .map(|_| ())
    }
}

impl Call for Frame {
    fn next(&self) -> BoxFuture<'_, Result<Decision, String>> {
        Box::pin(async move {
            let dispatch = self.dispatch.clone();
            let asked =
                self.next.get_or_init(|| async move { dispatch.ask(self.position + 1, self.depth + 1).await.0 }).await;
            match asked {
                Asked::Decided(decision) => Ok(*decision),
                Asked::Faulted { text, .. } => Err(text.clone()),
            }
        })
    }

    fn append(&self, record: Record) -> BoxFuture<'_, Result<u64, AppendError>> {
        Box::pin(async move {
            if let Some(interruption) = self.interrupted() {
                return Err(AppendError::Interrupted(interruption));
            }
            let Dispatch { context, step, .. } = &*self.dispatch;
            let must_be_durable = matches!(record, Record::Retry { .. });
            let appended = match record {
                Record::Retry { retry_id, policy_key, retry, limit, delay_ms } => {
                    self.append_retry(retry_id, policy_key, retry, limit, delay_ms)
                }
                Record::RetryStarted { retry_id, retry } => context.journal.append(Body::RetryStarted(RetryStarted {
                    retry_id,
                    turn: step.turn,
                    step: step.step,
                    retry,
                })),
                Record::Note { kind, .. } if kind == SCHEDULING_NOTE => {
                    return Err(AppendError::Invalid(format!(
                        "The note kind \"{SCHEDULING_NOTE}\" is the host's own."
                    )));
                }
                Record::Note { kind, json } => {
                    let data = serde_json::from_str(&json)
                        .map_err(|error| AppendError::Invalid(format!("The note is not JSON: {error}.")))?;
                    if depth(&data) > MAX_NOTE_DEPTH {
                        return Err(AppendError::Invalid(format!(
                            "The note nests its JSON deeper than {MAX_NOTE_DEPTH} levels, which not every reader takes."
                        )));
                    }
                    let ExecutorRef { id, digest } = self.activation.identity.reference();
                    context.journal.append(Body::ExecutorNote(ExecutorNote { id, digest, kind, data }))
                }
            };
            let stored = match appended {
                Ok(seq) if must_be_durable => context.journal.flush().await.map(|()| seq),
                other => other,
            };
            stored.map_err(|error| match error {
                JournalError::Invalid(violation) => AppendError::Invalid(violation.to_string()),
                JournalError::Store(error) => {
                    let text = error.to_string();
                    self.dispatch.keep_error::<()>(Err(JournalError::Store(error)));
                    AppendError::Storage(text)
                }
            })
        })
    }

    fn last_retry(&self, provider: &str, policy_key: &str) -> Option<StartedRetry> {
        self.dispatch.context.journal.with_state(|state| {
            state
                .last_retry(provider, policy_key)
                .map(|(retry_id, retry)| StartedRetry { retry_id: retry_id.to_owned(), retry })
        })
    }

    fn sleep(&self, ms: f64) -> BoxFuture<'_, Result<(), Interruption>> {
        Box::pin(async move {
            if let Some(interruption) = self.interrupted() {
                return Err(interruption);
            }
            let context = &self.dispatch.context;
            tokio::select! {
                biased;
                interruption = self.until_interrupted() => Err(interruption),
                () = context.env.clock.sleep(Duration::from_secs_f64(ms / 1_000.0)) => Ok(()),
            }
        })
    }

    fn interrupted(&self) -> Option<Interruption> {
        if self.dispatch.context.cancel.is_cancelled() {
            Some(Interruption::Cancelled)
        } else if self.activation.is_retired() {
            Some(Interruption::Retired)
        } else {
            None
        }
    }

    fn until_interrupted(&self) -> BoxFuture<'_, Interruption> {
        Box::pin(async move {
            tokio::select! {
                biased;
                () = self.dispatch.context.cancel.cancelled() => Interruption::Cancelled,
                () = self.activation.lifetime().cancelled() => Interruption::Retired,
            }
        })
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn unit(&self) -> f64 {
        self.dispatch.context.env.entropy.unit()
    }

    fn retry_id(&self) -> String {
        self.dispatch.context.env.entropy.uuid()
    }

    fn log(&self, level: LogLevel, message: &str) {
        let id = &self.activation.identity.id;
        let digest = self.activation.identity.short_digest();
        let generation = self.dispatch.chain.generation;
        let session = self.dispatch.context.journal.session();
        match level {
            LogLevel::Debug => {
                tracing::debug!(target: "retake::executor", id, digest, generation, session, "{message}")
            }
            LogLevel::Info => tracing::info!(target: "retake::executor", id, digest, generation, session, "{message}"),
            LogLevel::Warn => tracing::warn!(target: "retake::executor", id, digest, generation, session, "{message}"),
            LogLevel::Error => {
                tracing::error!(target: "retake::executor", id, digest, generation, session, "{message}")
            }
        }
    }
}

/// How many arrays and objects stand inside one another.
fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
