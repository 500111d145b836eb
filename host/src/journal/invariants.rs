//! The rules that a session's events obey. Checked before each append, so that a component that breaks one gets an
//! error and the log stays clean.

use super::{
    event::{Body, Retry, RetryHandover, RetryMode, RetryStarted},
    state::SessionState,
};
use crate::llm::{Failure, policy::MAX_TIMER_MS};

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {message}")]
pub struct Violation {
    /// The rule's short, stable name.
    pub rule: &'static str,
    /// A sentence with the value that was wrong and the one that would be right.
    pub message: String,
}

fn violation<T>(rule: &'static str, message: impl Into<String>) -> Result<T, Violation> {
    Err(Violation { rule, message: message.into() })
}

/// Whether `body` may follow what `state` sums up.
pub fn check(state: &SessionState, body: &Body) -> Result<(), Violation> {
    match body {
        Body::TurnStart(start) => {
            if state.turn_open {
                return violation(
                    "turn-open",
                    format!("Turn {} is not closed, so turn {} cannot start.", state.last_turn, start.turn),
                );
            }
            if start.turn != state.last_turn + 1 {
                return violation("turn-number", format!("Turn {} must be {}.", start.turn, state.last_turn + 1));
            }
            if start.retry_of.is_some_and(|of| of != state.last_turn) {
                return violation(
                    "retry-of",
                    format!("A retry turn repeats the turn before it, which is {}.", state.last_turn),
                );
            }
            Ok(())
        }
        Body::UserMessage(_) => open_turn(state, state.last_turn, "user/message"),
        Body::StepStart(step) => {
            open_turn(state, step.turn, "step/start")?;
            match &state.step {
                Some(open) if !open.closed => violation(
                    "step-open",
                    format!("Step {} is not closed, so step {} cannot start.", open.step, step.step),
                ),
                previous => {
                    let expected = previous.as_ref().map_or(1, |previous| previous.step + 1);
                    if step.step == expected {
                        Ok(())
                    } else {
                        violation("step-number", format!("Step {} must be {expected}.", step.step))
                    }
                }
            }
        }
        Body::RequestHeader(_) => match &state.step {
            Some(step) if !step.closed => Ok(()),
            _ => violation("step-open", "A request/header stands inside an open step."),
        },
        Body::AssistantChunk(chunk) => check_chunk(state, chunk.turn, chunk.step),
        Body::AssistantMessage(message) => open_step(state, message.turn, message.step, "assistant/message"),
        Body::StepEnd(end) => {
            open_step(state, end.turn, end.step, "step/end")?;
            end.failure.as_ref().map_or(Ok(()), failure)
        }
        Body::Retry(record) => retry(state, record),
        Body::RetryStarted(started) => retry_started(state, started),
        Body::RetryHandover(handover) => retry_handover(state, handover),
        Body::TurnEnd(end) => {
            open_turn(state, end.turn, "turn/end")?;
            match &state.step {
                Some(step) if !step.closed => {
                    violation("step-open", format!("Step {} must be closed before turn {} ends.", step.step, end.turn))
                }
                _ => Ok(()),
            }
        }
        Body::Chain(_) | Body::ExecutorFault(_) | Body::ExecutorNote(_) | Body::Ignorable { .. } => Ok(()),
    }
}

/// Whether a chunk of this step may follow what `state` sums up.
pub(super) fn check_chunk(state: &SessionState, turn: u64, step: u64) -> Result<(), Violation> {
    open_step(state, turn, step, "assistant/chunk")
}

fn open_turn(state: &SessionState, turn: u64, what: &str) -> Result<(), Violation> {
    if state.turn_open && state.last_turn == turn {
        Ok(())
    } else if state.turn_open {
        violation("turn-number", format!("{what} names turn {turn}, but turn {} is open.", state.last_turn))
    } else {
        violation("turn-closed", format!("{what} names turn {turn}, but no turn is open."))
    }
}

fn open_step(state: &SessionState, turn: u64, step: u64, what: &str) -> Result<(), Violation> {
    open_turn(state, turn, what)?;
    match &state.step {
        Some(open) if open.step == step && !open.closed => Ok(()),
        _ => violation("step-closed", format!("{what} names step {step} of turn {turn}, which is not open.")),
    }
}

/// The newest step of the open turn has this number, is closed, and failed.
fn failed_step(state: &SessionState, turn: u64, step: u64, what: &str) -> Result<(), Violation> {
    open_turn(state, turn, what)?;
    match &state.step {
        Some(last) if last.step != step => {
            violation("step-number", format!("{what} names step {step}, but the newest step is {}.", last.step))
        }
        Some(last) if !last.closed => {
            violation("step-open", format!("{what} names step {step} of turn {turn}, which must be closed first."))
        }
        Some(last) if last.failure.is_none() => {
            violation("step-succeeded", format!("{what} names step {step} of turn {turn}, which did not fail."))
        }
        Some(_) => Ok(()),
        None => violation("step-missing", format!("{what} names step {step}, but turn {turn} has no step.")),
    }
}

fn failure(failure: &Failure) -> Result<(), Violation> {
    if failure.message.is_empty() {
        return violation("failure-message", "A failure's message must not be empty.");
    }
    if let Some(status) = failure.status.filter(|status| !(100..=599).contains(status)) {
        return violation("failure-status", format!("A failure's status must be 100 to 599, not {status}."));
    }
    if let Some(ms) = failure.provider_retry_after_ms.filter(|ms| !(ms.is_finite() && *ms > 0.0)) {
        return violation(
            "failure-retry-after",
            format!("A failure's providerRetryAfterMs must be finite and above 0, not {ms}."),
        );
    }
    if failure.request_id.as_ref().is_some_and(String::is_empty) {
        return violation("failure-request-id", "A failure's requestId must not be empty.");
    }
    Ok(())
}

fn retry(state: &SessionState, record: &Retry) -> Result<(), Violation> {
    if record.retry_id.is_empty() {
        return violation("retry-id", "retryId must not be empty.");
    }
    failure(&record.failure)?;
    if record.retry < 1 {
        return violation("retry-number", "retry must be at least 1, not 0.");
    }
    if record.provider.is_empty() {
        return violation("provider", "provider must not be empty.");
    }
    if record.policy_key.is_empty() {
        return violation("policy-key", "policyKey must not be empty.");
    }
    match (record.mode, record.max_retries) {
        (RetryMode::Normal, None | Some(0)) => {
            return violation("max-retries", "Under normal, maxRetries must be at least 1.");
        }
        (RetryMode::Normal, Some(max)) if record.retry > max => {
            return violation("max-retries", format!("Retry {} is beyond the limit of {max}.", record.retry));
        }
        (RetryMode::Always, Some(max)) => {
            return violation("max-retries", format!("Under always, maxRetries must be absent, not {max}."));
        }
        (RetryMode::Normal, Some(_)) | (RetryMode::Always, None) => {}
    }
    if !(record.delay_ms >= 0.0 && record.delay_ms <= MAX_TIMER_MS) {
        return violation("delay", format!("delayMs must be 0 to {MAX_TIMER_MS}, not {}.", record.delay_ms));
    }
    failed_step(state, record.turn, record.step, "llm/retry")?;
    match state.routed() {
        Some(routed) if routed.provider == record.provider => {}
        routed => {
            let routed = routed.map_or("none", |routed| routed.provider.as_str());
            return violation(
                "provider",
                format!("provider is \"{}\", but the request went to {routed}.", record.provider),
            );
        }
    }
    if let Some(live) = state.current_retry() {
        if live.started {
            return violation("one-live-record", format!("The retry of step {} has started already.", record.step));
        }
        if !live.handed_over {
            return violation(
                "one-live-record",
                format!(
                    "Step {} has a live record already, retry {} of chain {}.",
                    record.step, live.record.retry, live.record.retry_id
                ),
            );
        }
    }
    match state.last_retry(&record.provider, &record.policy_key) {
        Some((retry_id, number)) => {
            if record.retry != number + 1 {
                return violation("retry-number", format!("retry must be {}, not {}.", number + 1, record.retry));
            }
            if record.retry_id != retry_id {
                return violation(
                    "retry-id",
                    format!("retryId must stay {retry_id} in its chain, not {}.", record.retry_id),
                );
            }
        }
        None => {
            if record.retry != 1 {
                return violation("retry-number", format!("retry must be 1 in a new chain, not {}.", record.retry));
            }
            if state.knows_retry_id(&record.retry_id) {
                return violation("retry-id", format!("retryId {} belongs to another chain.", record.retry_id));
            }
        }
    }
    Ok(())
}

/// The step's record that has not started, if it is the one that is named.
fn live_record(
    state: &SessionState,
    turn: u64,
    step: u64,
    retry_id: &str,
    retry: u64,
    what: &str,
) -> Result<(), Violation> {
    if retry_id.is_empty() {
        return violation("retry-id", "retryId must not be empty.");
    }
    failed_step(state, turn, step, what)?;
    match state.current_retry() {
        Some(live) if live.record.retry_id != retry_id || live.record.retry != retry => violation(
            "live-record",
            format!(
                "{what} names retry {retry} of chain {retry_id}, but retry {} of chain {} is scheduled.",
                live.record.retry, live.record.retry_id
            ),
        ),
        Some(live) if live.started => violation(
            "live-record",
            format!("{what} names retry {retry} of chain {retry_id}, which has started already."),
        ),
        Some(_) => Ok(()),
        None => {
            violation("live-record", format!("{what} names retry {retry} of chain {retry_id}, but none is scheduled."))
        }
    }
}

fn retry_started(state: &SessionState, started: &RetryStarted) -> Result<(), Violation> {
    live_record(state, started.turn, started.step, &started.retry_id, started.retry, "llm/retry-started")
}

fn retry_handover(state: &SessionState, handover: &RetryHandover) -> Result<(), Violation> {
    if !(handover.remaining_ms >= 0.0 && handover.remaining_ms <= MAX_TIMER_MS) {
        return violation(
            "remaining",
            format!("remainingMs must be 0 to {MAX_TIMER_MS}, not {}.", handover.remaining_ms),
        );
    }
    live_record(state, handover.turn, handover.step, &handover.retry_id, handover.retry, "llm/retry-handover")
}
