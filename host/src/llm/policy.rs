//! The retry policy of a provider route: its configuration, its defaults, and the rules that it must obey.

use std::sync::Arc;

/// The longest timer that every platform can hold, in milliseconds (2^31 - 1).
pub const MAX_TIMER_MS: f64 = 2_147_483_647.0;

/// How the local delay grows; all in milliseconds, `0 < initial <= max <= MAX_TIMER_MS`, `0 <= jitter <= 1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    pub initial_delay_ms: f64,
    pub max_delay_ms: f64,
    pub jitter_ratio: f64,
}

/// A resolved policy: every default filled in, every rule checked. Only `normal` has a limit and a code list.
#[derive(Clone, Debug, PartialEq)]
pub enum RetryPolicy {
    /// Retry the listed codes, at most `max_retries` times after the first attempt.
    Normal { max_retries: u64, retryable_codes: Arc<[String]>, backoff: Backoff },
    /// Retry every failure until success or cancel.
    Always { backoff: Backoff },
}
