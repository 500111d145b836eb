//! The local delay: exponential, with symmetric jitter, capped after the jitter. It is not rounded, and may be 0.

use crate::data::Backoff;

/// The delay before retry number `retry` (from 1), in milliseconds, for a random sample of `[0, 1]`.
pub fn local_delay_ms(backoff: &Backoff, retry: u64, random: f64) -> f64 {
    // From 2^1024 on, a double is infinite, and the cap takes over.
    let exponent = retry.saturating_sub(1).min(1024);
    let base = (backoff.initial_delay_ms * 2f64.powi(exponent as i32)).min(backoff.max_delay_ms);
    // This order of operations is part of the contract: it decides the last bit of the journaled delay.
    let factor = (1.0 - backoff.jitter_ratio) + (2.0 * backoff.jitter_ratio) * random;
    (base * factor).min(backoff.max_delay_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delay([initial_delay_ms, max_delay_ms, jitter_ratio]: [f64; 3], retry: u64, random: f64) -> f64 {
        local_delay_ms(&Backoff { initial_delay_ms, max_delay_ms, jitter_ratio }, retry, random)
    }

    #[test]
    fn delays_double_from_the_initial_one_and_stop_at_the_cap() {
        let delays: Vec<f64> = (1..=7).map(|retry| delay([500.0, 10_000.0, 0.0], retry, 0.5)).collect();
        assert_eq!(delays, [500.0, 1_000.0, 2_000.0, 4_000.0, 8_000.0, 10_000.0, 10_000.0]);
    }

    #[test]
    fn jitter_is_symmetric_and_capped_after_it_was_applied() {
        let policy = [500.0, 10_000.0, 0.1];
        assert_eq!(delay(policy, 1, 0.0), 450.0);
        assert_eq!(delay(policy, 1, 0.5), 500.0);
        assert_eq!(delay(policy, 2, 1.0), 1_100.0);
        assert_eq!(delay(policy, 6, 0.0), 9_000.0);
        assert_eq!(delay(policy, 6, 1.0), 10_000.0);
    }

    #[test]
    fn full_jitter_may_leave_no_delay_at_all() {
        assert_eq!(delay([1.0, 1.0, 1.0], 1, 0.0), 0.0);
    }

    #[test]
    fn delays_are_not_rounded() {
        let delays: Vec<f64> = (1..=4).map(|retry| delay([1.0, 4.0, 0.1], retry, 1.0)).collect();
        assert_eq!(delays, [1.1, 2.2, 4.0, 4.0]);
        assert_eq!(delay([2.0, 4.0, 0.5], 1, 1.0), 3.0);
    }

    #[test]
    fn a_very_late_retry_still_waits_the_cap() {
        for retry in [1_025, 2_000, u64::MAX] {
            assert_eq!(delay([500.0, 10_000.0, 0.0], retry, 0.5), 10_000.0);
            assert_eq!(delay([f64::MIN_POSITIVE, 10_000.0, 0.0], retry, 0.5), 10_000.0);
        }
    }
}
