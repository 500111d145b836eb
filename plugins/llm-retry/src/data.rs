//! The plain data of a decision. It mirrors the WIT types; `wit/executor.wit` says what each field means.

/// The failed step, as far as this executor looks at it.
#[derive(Clone, Debug, PartialEq)]
pub struct FailedStep {
    /// The name of the route that served the failed request.
    pub provider: String,
    /// The failure's code, for instance `RATE_LIMIT`.
    pub code: String,
    /// The wait that the provider asked for, in milliseconds.
    pub retry_after_ms: Option<f64>,
    /// Whether the provider asks for a retry, or asks for none; `None` when it says nothing.
    pub should_retry: Option<bool>,
    /// The policy of the registration that served the call.
    pub policy: Option<Policy>,
    /// An earlier wait for this step that was interrupted.
    pub pending: Option<Pending>,
}

/// Which failures are retried, and how often.
#[derive(Clone, Debug, PartialEq)]
pub enum Policy {
    Normal { max_retries: u64, retryable_codes: Vec<String>, backoff: Backoff },
    Always { backoff: Backoff },
}

impl Policy {
    pub fn backoff(&self) -> &Backoff {
        match self {
            Policy::Normal { backoff, .. } | Policy::Always { backoff } => backoff,
        }
    }
}

/// How the local delay grows; milliseconds, `0 < initial <= max`, `0 <= jitter <= 1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    pub initial_delay_ms: f64,
    pub max_delay_ms: f64,
    pub jitter_ratio: f64,
}

/// A wait that was scheduled and did not end.
#[derive(Clone, Debug, PartialEq)]
pub struct Pending {
    pub retry_id: String,
    pub policy_key: String,
    pub retry: u64,
    pub remaining_ms: f64,
    pub waited_ms: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The turn ends with the failure, unless somebody else retries it.
    Unhandled,
    /// The request is repeated, now.
    Retry,
}
