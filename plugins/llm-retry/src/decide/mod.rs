//! The decision about one failed step. Straight-line code: each early return is one rule.

use crate::{
    data::{Decision, FailedStep, Pending, Policy},
    delay::local_delay_ms,
    host::{AppendError, Host, Interrupted, Retry},
    key::policy_key,
};

#[cfg(test)]
mod tests;

/// Decides. The error is a text for the fault record: the journal refused a record, or the rest of the chain failed
/// when this executor had nothing to add.
pub fn decide(step: &FailedStep, host: &mut impl Host) -> Result<Decision, String> {
    // A callback that is entered after the end of its turn or activation fails closed: it leaves the rest alone.
    if host.interrupted() {
        return Ok(Decision::Unhandled);
    }
    let Some(policy) = &step.policy else {
        return host.next();
    };
    let key = policy_key(policy);
    if let Some(pending) = step.pending.as_ref().filter(|pending| pending.policy_key == key) {
        return carry_on(pending, host);
    }

    match policy {
        // Always mode is the last resort: whoever knows a better cure for this failure goes first.
        Policy::Always { .. } => {
            let answer = host.next();
            if host.interrupted() {
                return Ok(Decision::Unhandled);
            }
            match answer {
                Ok(Decision::Retry) => return Ok(Decision::Retry),
                Ok(Decision::Unhandled) => {}
                Err(error) => host.warn(&format!(
                    "llm-retry: provider {:?} always policy ignored a downstream recovery failure: {error}",
                    step.provider
                )),
            }
        }
        Policy::Normal { retryable_codes, .. } if !is_eligible(step, retryable_codes) => return host.next(),
        Policy::Normal { .. } => {}
    }

    let last = host.last_retry(&step.provider, &key);
    let done = last.as_ref().map_or(0, |(_, retry)| *retry);
    let max_retries = match policy {
        Policy::Normal { max_retries, .. } if done >= *max_retries => return host.next(),
        Policy::Normal { max_retries, .. } => Some(*max_retries),
        Policy::Always { .. } => None,
    };
    let retry = done + 1;
    let retry_id = last.map_or_else(|| host.new_retry_id(), |(id, _)| id);
    let backoff = policy.backoff();
    let delay_ms = match step.retry_after_ms.filter(|hint| hint.is_finite() && *hint > 0.0) {
        // The provider's word is taken as it stands: no jitter, and no sample is drawn.
        Some(hint) if hint <= backoff.max_delay_ms => hint,
        // A finite policy does not wait longer than it was told to, and to come back early would be of no use.
        Some(_) if max_retries.is_some() => return host.next(),
        Some(_) | None => local_delay_ms(backoff, retry, host.random()),
    };
    // What the turn has already waited under another executor counts.
    let waited_ms = step.pending.as_ref().map_or(0.0, |pending| pending.waited_ms);
    let delay_ms = (delay_ms - waited_ms).max(0.0);

    let record = Retry { retry_id: &retry_id, policy_key: &key, retry, max_retries, delay_ms };
    if let Err(error) = host.append_retry(record) {
        return refused(error);
    }
    wait_and_start(&retry_id, retry, delay_ms, host)
}

/// What is about a credential, a balance or a size stays that, whatever the provider asks for.
const LASTING_CODES: [&str; 3] = ["AUTH", "QUOTA", "CONTEXT_OVERFLOW"];

/// Whether under a normal policy the failure may be retried: by its code, unless the provider itself says what is to be done.
fn is_eligible(step: &FailedStep, retryable_codes: &[String]) -> bool {
    match step.should_retry {
        Some(false) => false,
        Some(true) if !LASTING_CODES.contains(&step.code.as_str()) => true,
        Some(true) | None => retryable_codes.contains(&step.code),
    }
}

/// Finishes a wait that was interrupted: the same record, the same deadline, nobody is asked again.
fn carry_on(pending: &Pending, host: &mut impl Host) -> Result<Decision, String> {
    wait_and_start(&pending.retry_id, pending.retry, pending.remaining_ms, host)
}

fn wait_and_start(retry_id: &str, retry: u64, delay_ms: f64, host: &mut impl Host) -> Result<Decision, String> {
    if let Err(Interrupted) = host.sleep(delay_ms) {
        return Ok(Decision::Unhandled);
    }
    match host.append_retry_started(retry_id, retry) {
        Ok(()) => Ok(Decision::Retry),
        Err(error) => refused(error),
    }
}

fn refused(error: AppendError) -> Result<Decision, String> {
    match error {
        AppendError::Interrupted => Ok(Decision::Unhandled),
        AppendError::Refused(reason) => Err(reason),
    }
}
