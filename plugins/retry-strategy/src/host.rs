//! What the decision may do, as one small trait: the component shell implements it with the WIT imports, the tests
//! with a script.

use crate::data::Decision;

/// The capabilities of one call.
pub trait Host {
    /// Asks the rest of the chain; the error is the text of its fault.
    fn next(&mut self) -> Result<Decision, String>;
    /// Schedules a retry in the journal; it is durable when this returns.
    fn append_retry(&mut self, retry: Retry<'_>) -> Result<(), AppendError>;
    /// Records that the wait of a scheduled retry has ended.
    fn append_retry_started(&mut self, retry_id: &str, retry: u64) -> Result<(), AppendError>;
    /// The id and number of the newest started retry of this provider and key since the last success or prompt.
    fn last_retry(&mut self, provider: &str, policy_key: &str) -> Option<(String, u64)>;
    /// Waits, in milliseconds.
    fn sleep(&mut self, ms: f64) -> Result<(), Interrupted>;
    /// Whether the turn was cancelled or this executor retired.
    fn interrupted(&mut self) -> bool;
    /// A uniform sample of `[0, 1)`.
    fn random(&mut self) -> f64;
    /// A fresh id for a chain of retries.
    fn new_retry_id(&mut self) -> String;
    fn warn(&mut self, message: &str);
}

/// A retry to be scheduled.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry<'a> {
    pub retry_id: &'a str,
    pub policy_key: &'a str,
    /// From 1.
    pub retry: u64,
    /// `None` when there is no limit.
    pub max_retries: Option<u64>,
    /// Whole milliseconds, at least 1.
    pub delay_ms: f64,
}

/// The turn was cancelled, or this executor retired. Either way the call ends without a decision of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

/// Why a record was not appended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AppendError {
    Interrupted,
    /// The journal refused it; the text says why.
    Refused(String),
}
