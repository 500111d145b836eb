//! The decision about one failed step. Straight-line code: each early return is one rule.

use crate::{
    config::Config,
    data::{Decision, FailedStep},
    host::{AppendError, Host, Interrupted, Retry},
    policy::Policy,
};

#[cfg(test)]
mod tests;

/// Decides. The error is a text for the fault record: the journal refused a record, or the rest of the chain failed
/// when this executor had nothing to add.
pub fn decide(config: &Config, step: &FailedStep, host: &mut impl Host) -> Result<Decision, String> {
    // A callback that is entered after the end of its turn or activation fails closed: it leaves the rest alone.
    if host.interrupted() {
        return Ok(Decision::Unhandled);
    }
    let Some(declared) = step.declared else {
        return host.next();
    };
    let policy = Policy::resolve(config, declared);
    let key = policy.key();
    if let Some(pending) = step.pending.as_ref().filter(|pending| pending.policy_key == key) {
        // The same record and the same deadline as before the interruption; nobody is asked again.
        return wait_and_start(&pending.retry_id, pending.retry, pending.remaining_ms, host);
    }

    match &policy.limit {
        // Without a limit this is the last resort: whoever knows a better cure for this failure goes first.
        None => {
            let answer = host.next();
            if host.interrupted() {
                return Ok(Decision::Unhandled);
            }
            match answer {
                Ok(Decision::Retry) => return Ok(Decision::Retry),
                Ok(Decision::Unhandled) => {}
                Err(error) => {
                    host.warn(&format!(
                        "provider {:?}: the rest of the chain failed, and is passed over: {error}",
                        step.provider
                    ));
                }
            }
        }
        Some(limit) if !is_eligible(step, &limit.retryable_codes) => return host.next(),
        Some(_) => {}
    }

    let last = host.last_retry(&step.provider, &key);
    let done = last.as_ref().map_or(0, |(_, retry)| *retry);
    let max_retries = match &policy.limit {
        Some(limit) if done >= limit.max_retries => return host.next(),
        Some(limit) => Some(limit.max_retries),
        None => None,
    };
    let retry = done + 1;
    let retry_id = last.map_or_else(|| host.new_retry_id(), |(id, _)| id);
    let hint = step.retry_after_ms.filter(|hint| policy.respect_retry_after && hint.is_finite() && *hint > 0.0);
    let delay_ms = match hint {
        // Up to the next whole millisecond, so that the request never comes before the provider wants it.
        Some(hint) if hint <= policy.wait.max_delay_ms => hint.ceil(),
        Some(_) if max_retries.is_some() => return host.next(),
        Some(_) | None => policy.wait.delay_ms(retry, host.random()),
    };
    // What the turn has already waited under another executor counts.
    let waited_ms = step.pending.as_ref().map_or(0.0, |pending| pending.waited_ms);
    let delay_ms = (delay_ms - waited_ms).ceil().max(1.0);

    let record = Retry { retry_id: &retry_id, policy_key: &key, retry, max_retries, delay_ms };
    if let Err(error) = host.append_retry(record) {
        return refused(error);
    }
    wait_and_start(&retry_id, retry, delay_ms, host)
}

/// What is about a credential, a balance or a size stays that, whatever the provider asks for.
const LASTING_CODES: [&str; 3] = ["AUTH", "QUOTA", "CONTEXT_OVERFLOW"];

/// Whether within a limit the failure may be retried: by its code, unless the provider itself says what is to be done.
fn is_eligible(step: &FailedStep, retryable_codes: &[String]) -> bool {
    match step.should_retry {
        Some(false) => false,
        Some(true) if !LASTING_CODES.contains(&step.code.as_str()) => true,
        Some(true) | None => retryable_codes.contains(&step.code),
    }
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
