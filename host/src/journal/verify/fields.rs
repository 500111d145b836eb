//! The fields of a retry's two records, whatever wrote them: each with its own rule and sentence.
//!
//! Reads plain JSON, since the same-step dialect's failure codes and numbers are wider than this program's types.

use crate::{
    journal::invariants::Violation,
    llm::policy::{MAX_SAFE_INTEGER, MAX_TIMER_MS},
};
use serde_json::{Map, Value};

/// The fields of an `llm/retry` that other records are held against.
#[derive(Default)]
pub(super) struct RetryFields {
    pub retry_id: String,
    pub turn: u64,
    pub step: u64,
    pub provider: String,
    pub policy_key: String,
    pub retry: u64,
}

pub(super) struct StartedFields {
    pub retry_id: String,
    pub turn: u64,
    pub step: u64,
    pub retry: u64,
}

type Checked<T> = Result<T, Violation>;

fn broken<T>(rule: &'static str, message: String) -> Checked<T> {
    Err(Violation { rule, message })
}

/// What stands at a key, for a sentence.
fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".to_owned(), Value::to_string)
}

fn object<'a>(value: &'a Value, what: &str) -> Checked<&'a Map<String, Value>> {
    match value.as_object() {
        Some(object) => Ok(object),
        None => broken("shape", format!("The data of {what} must be an object, not {value}.")),
    }
}

fn text<'a>(object: &'a Map<String, Value>, key: &str, rule: &'static str) -> Checked<&'a str> {
    match object.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()) {
        Some(text) => Ok(text),
        None => broken(rule, format!("{key} must be a text that is not empty, not {}.", shown(object.get(key)))),
    }
}

/// A whole number from 1 that a double holds exactly. `3.0` is one, since JSON does not tell it from `3`.
fn count(object: &Map<String, Value>, key: &str, rule: &'static str) -> Checked<u64> {
    let number = object.get(key).and_then(Value::as_f64);
    match number.filter(|number| *number >= 1.0 && number.fract() == 0.0 && *number <= MAX_SAFE_INTEGER as f64) {
        Some(number) => Ok(number as u64),
        None => broken(rule, format!("{key} must be a whole number from 1, not {}.", shown(object.get(key)))),
    }
}

/// Checks an `llm/retry`; the first field that is wrong, in the order of the rules.
pub(super) fn retry(value: &Value) -> Checked<RetryFields> {
    let data = object(value, "llm/retry")?;
    let retry_id = text(data, "retryId", "retry-id")?.to_owned();
    failure(data.get("failure"))?;
    let retry = count(data, "retry", "retry-number")?;
    let provider = text(data, "provider", "provider")?.to_owned();
    let policy_key = text(data, "policyKey", "policy-key")?.to_owned();
    match data.get("mode").and_then(Value::as_str) {
        Some("normal") => {
            let max = count(data, "maxRetries", "max-retries")?;
            if retry > max {
                return broken("max-retries", format!("Retry {retry} is beyond the limit of {max}."));
            }
        }
        Some("always") => {
            if let Some(max) = data.get("maxRetries") {
                return broken("max-retries", format!("Under always, maxRetries must be absent, not {max}."));
            }
        }
        _ => {
            let mode = shown(data.get("mode"));
            return broken("mode", format!("mode must be \"normal\" or \"always\", not {mode}."));
        }
    }
    let delay = data.get("delayMs").and_then(Value::as_f64);
    if !delay.is_some_and(|delay| (0.0..=MAX_TIMER_MS).contains(&delay)) {
        let delay = shown(data.get("delayMs"));
        return broken("delay", format!("delayMs must be 0 to {MAX_TIMER_MS}, not {delay}."));
    }
    let turn = count(data, "turn", "turn-number")?;
    let step = count(data, "step", "step-number")?;
    Ok(RetryFields { retry_id, turn, step, provider, policy_key, retry })
}

/// What can be read of an `llm/retry` that breaks a rule: it stands there all the same. A field that cannot be read is
/// empty, or 0.
pub(super) fn readable(value: &Value) -> RetryFields {
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    let number = |key: &str| value[key].as_f64().map_or(0, |number| number as u64);
    RetryFields {
        retry_id: text("retryId"),
        turn: number("turn"),
        step: number("step"),
        provider: text("provider"),
        policy_key: text("policyKey"),
        retry: number("retry"),
    }
}

/// Checks an `llm/retry-started`.
pub(super) fn started(value: &Value) -> Checked<StartedFields> {
    let data = object(value, "llm/retry-started")?;
    Ok(StartedFields {
        retry_id: text(data, "retryId", "retry-id")?.to_owned(),
        retry: count(data, "retry", "retry-number")?,
        turn: count(data, "turn", "turn-number")?,
        step: count(data, "step", "step-number")?,
    })
}

/// Checks the failure that a `step/end`, a `turn/end` or the finish of a stream carries, where it carries one.
pub(super) fn carried_failure(kind: &str, data: &Value) -> Checked<()> {
    let (reason, key) = match kind {
        "step/end" => return data.get("failure").map_or(Ok(()), |value| failure(Some(value))),
        "turn/end" => (&data["reason"], "error"),
        _ => (&data["chunk"]["reason"], "failure"),
    };
    match reason["kind"].as_str() {
        Some("error") => failure(reason.get(key)),
        Some("aborted") if kind != "turn/end" => failure(reason.get(key)),
        _ => Ok(()),
    }
}

/// Checks how a turn of the same-step dialect ended.
pub(super) fn turn_reason(data: &Value) -> Checked<()> {
    const KINDS: [&str; 7] = ["completed", "aborted", "blocked", "error", "max-tokens", "interrupted", "forked"];
    let kind = data["reason"].get("kind");
    if kind.and_then(Value::as_str).is_some_and(|kind| KINDS.contains(&kind)) {
        return carried_failure("turn/end", data);
    }
    broken("turn-reason", format!("A turn's reason must be one of {}, not {}.", KINDS.join(", "), shown(kind)))
}

/// Checks how a stream of the same-step dialect finished.
pub(super) fn finish_reason(data: &Value) -> Checked<()> {
    const KINDS: [&str; 5] = ["stop", "tool-calls", "max-tokens", "aborted", "error"];
    let kind = data["chunk"]["reason"].get("kind");
    if kind.and_then(Value::as_str).is_some_and(|kind| KINDS.contains(&kind)) {
        return carried_failure("assistant/chunk", data);
    }
    broken("shape", format!("A finish's reason must be one of {}, not {}.", KINDS.join(", "), shown(kind)))
}

/// Checks that a message of the same-step dialect has content; `message` is what holds it.
pub(super) fn content(kind: &str, message: &Value) -> Checked<()> {
    match message.get("content") {
        Some(Value::Array(_)) => Ok(()),
        content => broken("shape", format!("The content of {kind} must be a list, not {}.", shown(content))),
    }
}

fn failure(value: Option<&Value>) -> Checked<()> {
    let Some(failure) = value.and_then(Value::as_object) else {
        return broken("failure", format!("failure must be an object, not {}.", shown(value)));
    };
    text(failure, "message", "failure-message")?;
    text(failure, "code", "failure-code")?;
    if let Some(status) = failure.get("status") {
        let number = status.as_f64().filter(|status| status.fract() == 0.0 && (100.0..=599.0).contains(status));
        if number.is_none() {
            return broken(
                "failure-status",
                format!("A failure's status must be a whole number of 100 to 599, not {status}."),
            );
        }
    }
    if let Some(hint) = failure.get("providerRetryAfterMs")
        && !hint.as_f64().is_some_and(|ms| ms.is_finite() && ms > 0.0)
    {
        return broken(
            "failure-retry-after",
            format!("A failure's providerRetryAfterMs must be finite and above 0, not {hint}."),
        );
    }
    if failure.contains_key("requestId") {
        text(failure, "requestId", "failure-request-id")?;
    }
    Ok(())
}
