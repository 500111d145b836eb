//! The shell: WIT types to plain data and back, the imports as a [`Host`], and a hook that reports panics.

// The generated bindings are not ours to document or to lint.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "retry-executor", generate_all });
}

use crate::{
    config,
    data::{Backoff, Decision, FailedStep, Pending, Policy},
    decide,
    host::{AppendError, Host, Interrupted, Retry},
};
use bindings::{
    exports::retake::executor::executor::{Guest, Manifest, Problem},
    retake::executor::{journal, log, random, timer, types as wit, waterfall},
};

struct LlmRetry;

bindings::export!(LlmRetry with_types_in bindings);

impl Guest for LlmRetry {
    fn describe() -> Manifest {
        report_panics();
        Manifest {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "Retries by the provider's own policy: exponential backoff with jitter, Retry-After first."
                .to_owned(),
            config_schema: config::SCHEMA.to_owned(),
        }
    }

    fn validate(config_json: String) -> Result<(), Vec<Problem>> {
        report_panics();
        let problems: Vec<Problem> = config::problems(&config_json)
            .into_iter()
            .map(|config::Problem { path, message }| Problem { path, message })
            .collect();
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    fn request_error(step: wit::FailedStep) -> Result<wit::Decision, String> {
        report_panics();
        decide::decide(&plain(step), &mut Imports).map(|decision| match decision {
            Decision::Unhandled => wit::Decision::Unhandled,
            Decision::Retry => wit::Decision::Retry,
        })
    }
}

/// A panic ends in a trap that says nothing; its text and place go to the log first. An instance serves one call, so
/// every export installs the hook.
fn report_panics() {
    std::panic::set_hook(Box::new(|panic| log::write(log::Level::Error, &panic.to_string())));
}

fn plain(step: wit::FailedStep) -> FailedStep {
    FailedStep {
        provider: step.provider,
        code: step.failure.code,
        retry_after_ms: step.failure.retry_after_ms,
        should_retry: step.failure.should_retry,
        policy: step.policy.map(|policy| match policy {
            wit::Policy::Normal(wit::NormalPolicy { max_retries, retryable_codes, backoff }) => {
                Policy::Normal { max_retries, retryable_codes, backoff: plain_backoff(backoff) }
            }
            wit::Policy::Always(wit::AlwaysPolicy { backoff }) => Policy::Always { backoff: plain_backoff(backoff) },
        }),
        pending: step.pending.map(|pending| Pending {
            retry_id: pending.retry_id,
            policy_key: pending.policy_key,
            retry: pending.retry,
            remaining_ms: pending.remaining_ms,
            waited_ms: pending.waited_ms,
        }),
    }
}

fn plain_backoff(backoff: wit::Backoff) -> Backoff {
    Backoff {
        initial_delay_ms: backoff.initial_delay_ms,
        max_delay_ms: backoff.max_delay_ms,
        jitter_ratio: backoff.jitter_ratio,
    }
}

/// The host's imports.
struct Imports;

impl Host for Imports {
    fn next(&mut self) -> Result<Decision, String> {
        waterfall::next().map(|decision| match decision {
            wit::Decision::Unhandled => Decision::Unhandled,
            wit::Decision::Retry => Decision::Retry,
        })
    }

    fn append_retry(&mut self, retry: Retry<'_>) -> Result<(), AppendError> {
        append(journal::Event::Retry(journal::Retry {
            retry_id: retry.retry_id.to_owned(),
            policy_key: retry.policy_key.to_owned(),
            retry: retry.retry,
            limit: retry.max_retries.map_or(journal::RetryLimit::Always, journal::RetryLimit::Normal),
            delay_ms: retry.delay_ms,
        }))
    }

    fn append_retry_started(&mut self, retry_id: &str, retry: u64) -> Result<(), AppendError> {
        append(journal::Event::RetryStarted(journal::RetryStarted { retry_id: retry_id.to_owned(), retry }))
    }

    fn last_retry(&mut self, provider: &str, policy_key: &str) -> Option<(String, u64)> {
        journal::last_retry(provider, policy_key).map(|last| (last.retry_id, last.retry))
    }

    fn sleep(&mut self, ms: f64) -> Result<(), Interrupted> {
        timer::sleep(ms).map_err(|_| Interrupted)
    }

    fn interrupted(&mut self) -> bool {
        timer::interrupted().is_some()
    }

    fn random(&mut self) -> f64 {
        random::unit()
    }

    fn new_retry_id(&mut self) -> String {
        random::retry_id()
    }

    fn warn(&mut self, message: &str) {
        log::write(log::Level::Warn, message);
    }
}

fn append(event: journal::Event) -> Result<(), AppendError> {
    journal::append(&event).map(|_| ()).map_err(|error| match error {
        journal::AppendError::Interrupted(_) => AppendError::Interrupted,
        journal::AppendError::Invalid(reason) | journal::AppendError::Storage(reason) => AppendError::Refused(reason),
    })
}
