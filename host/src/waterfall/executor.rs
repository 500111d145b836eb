//! The one small trait through which the waterfall talks to executors, and the plain data that crosses it.
//!
//! Components implement it in `wasm`; tests implement it natively. The types mirror `wit/executor.wit`, which says
//! what each field means.

use crate::llm::{Failure, RetryPolicy};
use futures_util::future::BoxFuture;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Answers `request-error`.
pub trait Executor: Send + Sync + 'static {
    /// Decides about one failed step. Everything the executor may do goes through `call`. `kill` ends a call that
    /// cannot be ended otherwise, even while it computes; the answer is then a fault of kind [`FaultKind::Killed`].
    fn request_error(
        &self,
        step: FailedStep,
        call: Arc<dyn Call>,
        kill: CancellationToken,
    ) -> BoxFuture<'_, Result<Decision, Fault>>;
}

/// What an executor may do while it decides: the host's side of the WIT imports.
pub trait Call: Send + Sync + 'static {
    /// Asks the rest of the chain, at most once; a second call returns the first answer.
    fn next(&self) -> BoxFuture<'_, Result<Decision, String>>;
    /// Appends a record; a [`Record::Retry`] is durable when this returns.
    fn append(&self, record: Record) -> BoxFuture<'_, Result<u64, AppendError>>;
    fn last_retry(&self, provider: &str, policy_key: &str) -> Option<StartedRetry>;
    /// `ms` has been checked: finite, 0 to `MAX_TIMER_MS`.
    fn sleep(&self, ms: f64) -> BoxFuture<'_, Result<(), Interruption>>;
    fn interrupted(&self) -> Option<Interruption>;
    fn unit(&self) -> f64;
    fn retry_id(&self) -> String;
    fn log(&self, level: LogLevel, message: &str);
    /// How many executors of this recovery wait in `next` for the one that is called; 0 at the head of the chain.
    fn depth(&self) -> usize {
        0
    }
    /// Completes when the call is interrupted. An executor that has to wait before it can start (for a free place)
    /// stops waiting then.
    fn until_interrupted(&self) -> BoxFuture<'_, Interruption> {
        Box::pin(std::future::pending())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct FailedStep {
    pub turn: u64,
    pub step: u64,
    pub provider: String,
    pub model: String,
    pub failure: Failure,
    pub policy: Option<RetryPolicy>,
    pub pending: Option<PendingRetry>,
}

impl FailedStep {
    /// The wait that executors are asked to keep, in milliseconds: the provider's, or the slow lane's for a request that
    /// cannot succeed.
    pub fn retry_after_ms(&self) -> Option<f64> {
        let hopeless = self.failure.impossible().is_some();
        let slow = self.policy.as_ref().filter(|_| hopeless).and_then(RetryPolicy::slow_lane_ms);
        slow.or(self.failure.provider_retry_after_ms)
    }
}

/// A scheduled wait that was interrupted.
#[derive(Clone, Debug, PartialEq)]
pub struct PendingRetry {
    pub retry_id: String,
    pub policy_key: String,
    pub retry: u64,
    pub remaining_ms: f64,
    pub waited_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Unhandled,
    Retry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interruption {
    Cancelled,
    Retired,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    Retry { retry_id: String, policy_key: String, retry: u64, limit: RetryLimit, delay_ms: f64 },
    RetryStarted { retry_id: String, retry: u64 },
    Note { kind: String, json: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryLimit {
    Normal(u64),
    Always,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartedRetry {
    pub retry_id: String,
    pub retry: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppendError {
    #[error("The call was interrupted; nothing was written.")]
    Interrupted(Interruption),
    #[error("The record breaks a rule of the journal: {0}")]
    Invalid(String),
    #[error("The journal could not be written: {0}")]
    Storage(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogLevel {
    Debug,
    Info,
    Warn,
    Error,
}

/// Why a call of an executor did not give a decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Fault {
    pub kind: FaultKind,
    /// A whole sentence, with the panic's own text and place, or with the limit and its value.
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FaultKind {
    /// The component trapped or panicked.
    Trap,
    /// It computed longer than its CPU budget between two host calls.
    CpuLimit,
    /// It asked for more memory than it may have.
    MemoryLimit,
    /// It appended more, or larger, records than it may.
    AppendLimit,
    /// It logged more than it may.
    LogLimit,
    /// It passed or returned something that the interface does not allow.
    Malformed,
    /// It returned an error.
    Error,
    /// It was ended by force, since it did not end when it was told to.
    Killed,
    /// The host could not start the call.
    Host,
}
