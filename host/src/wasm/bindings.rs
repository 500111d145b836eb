//! The host's side of `wit/executor.wit`, generated, and the translation between its types and the waterfall's.
//!
//! Nothing else names a generated type. When a next major version of the package is released, its bindings get a
//! module of their own here and are translated to the newest types at this edge.

use crate::waterfall::executor as plain;

wasmtime::component::bindgen!({
    path: "../wit",
    world: "retry-executor",
    imports: {
        "retake:executor/waterfall.next": async | trappable,
        "retake:executor/journal.append": async | trappable,
        "retake:executor/timer.sleep": async | trappable,
        default: trappable,
    },
    exports: { default: async },
    require_store_data_send: true,
});

pub(super) use self::retake::executor::{config, journal, log, random, timer, types, waterfall};
pub(super) use exports::retake::executor::executor::{Manifest as WitManifest, Problem as WitProblem};

impl From<&plain::FailedStep> for types::FailedStep {
    fn from(step: &plain::FailedStep) -> Self {
        types::FailedStep {
            turn: step.turn,
            step: step.step,
            provider: step.provider.clone(),
            model: step.model.clone(),
            failure: types::Failure {
                code: step.failure.code.as_str().to_owned(),
                message: step.failure.message.clone(),
                status: step.failure.status,
                retry_after_ms: step.retry_after_ms(),
                request_id: step.failure.request_id.clone(),
                should_retry: step.failure.should_retry(),
            },
            policy: step.policy.as_ref().map(Into::into),
            pending: step.pending.as_ref().map(|pending| types::PendingRetry {
                retry_id: pending.retry_id.clone(),
                policy_key: pending.policy_key.clone(),
                retry: pending.retry,
                remaining_ms: pending.remaining_ms,
                waited_ms: pending.waited_ms,
            }),
        }
    }
}

impl From<&crate::llm::RetryPolicy> for types::Policy {
    fn from(policy: &crate::llm::RetryPolicy) -> Self {
        use crate::llm::RetryPolicy;
        match policy {
            RetryPolicy::Normal { max_retries, retryable_codes, backoff } => {
                types::Policy::Normal(types::NormalPolicy {
                    max_retries: *max_retries,
                    retryable_codes: retryable_codes.to_vec(),
                    backoff: backoff.into(),
                })
            }
            RetryPolicy::Always { backoff } => types::Policy::Always(types::AlwaysPolicy { backoff: backoff.into() }),
        }
    }
}

impl From<&crate::llm::Backoff> for types::Backoff {
    fn from(backoff: &crate::llm::Backoff) -> Self {
        types::Backoff {
            initial_delay_ms: backoff.initial_delay_ms,
            max_delay_ms: backoff.max_delay_ms,
            jitter_ratio: backoff.jitter_ratio,
        }
    }
}

impl From<types::Decision> for plain::Decision {
    fn from(decision: types::Decision) -> Self {
        match decision {
            types::Decision::Unhandled => plain::Decision::Unhandled,
            types::Decision::Retry => plain::Decision::Retry,
        }
    }
}

impl From<plain::Decision> for types::Decision {
    fn from(decision: plain::Decision) -> Self {
        match decision {
            plain::Decision::Unhandled => types::Decision::Unhandled,
            plain::Decision::Retry => types::Decision::Retry,
        }
    }
}

impl From<plain::Interruption> for types::Interruption {
    fn from(interruption: plain::Interruption) -> Self {
        match interruption {
            plain::Interruption::Cancelled => types::Interruption::Cancelled,
            plain::Interruption::Retired => types::Interruption::Retired,
        }
    }
}

impl From<plain::AppendError> for journal::AppendError {
    fn from(error: plain::AppendError) -> Self {
        match error {
            plain::AppendError::Interrupted(why) => journal::AppendError::Interrupted(why.into()),
            plain::AppendError::Invalid(text) => journal::AppendError::Invalid(text),
            plain::AppendError::Storage(text) => journal::AppendError::Storage(text),
        }
    }
}

impl From<journal::Event> for plain::Record {
    fn from(event: journal::Event) -> Self {
        match event {
            journal::Event::Retry(retry) => plain::Record::Retry {
                retry_id: retry.retry_id,
                policy_key: retry.policy_key,
                retry: retry.retry,
                limit: match retry.limit {
                    journal::RetryLimit::Normal(limit) => plain::RetryLimit::Normal(limit),
                    journal::RetryLimit::Always => plain::RetryLimit::Always,
                },
                delay_ms: retry.delay_ms,
            },
            journal::Event::RetryStarted(started) => {
                plain::Record::RetryStarted { retry_id: started.retry_id, retry: started.retry }
            }
            journal::Event::Note(note) => plain::Record::Note { kind: note.kind, json: note.json },
        }
    }
}

impl From<log::Level> for plain::LogLevel {
    fn from(level: log::Level) -> Self {
        match level {
            log::Level::Debug => plain::LogLevel::Debug,
            log::Level::Info => plain::LogLevel::Info,
            log::Level::Warn => plain::LogLevel::Warn,
            log::Level::Error => plain::LogLevel::Error,
        }
    }
}
