//! The shell: WIT types to plain data and back, the imports as a [`Host`], and a hook that reports panics.

// The generated bindings are not ours to document or to lint.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
mod bindings {
    wit_bindgen::generate!({ path: "../../wit", world: "retry-executor", generate_all });
}

use crate::{
    config::{self, Config},
    data::{Decision, Declared, FailedStep, Pending},
    decide,
    host::{AppendError, Host, Interrupted, Retry},
};
use bindings::{
    exports::retake::executor::executor::{Guest, Manifest, Problem},
    retake::executor::{config as entry, journal, log, random, timer, types as wit, waterfall},
};

struct RetryStrategy;

bindings::export!(RetryStrategy with_types_in bindings);

impl Guest for RetryStrategy {
    fn describe() -> Manifest {
        report_panics();
        Manifest {
            name: env!("CARGO_PKG_NAME").to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            summary: "Retries with a budget of its own; the wait is fixed, linear or exponential.".to_owned(),
            config_schema: config::SCHEMA.to_owned(),
        }
    }

    fn validate(config_json: String) -> Result<(), Vec<Problem>> {
        report_panics();
        Config::parse(&config_json).map(|_| ()).map_err(|problems| {
            problems.into_iter().map(|config::Problem { path, message }| Problem { path, message }).collect()
        })
    }

    fn request_error(step: wit::FailedStep) -> Result<wit::Decision, String> {
        report_panics();
        // The host validated it before the first call; a text that is wrong all the same is a fault, not a panic.
        let config = Config::parse(&entry::json())
            .map_err(|problems| problems.into_iter().map(|problem| problem.message).collect::<Vec<_>>().join(" "))?;
        decide::decide(&config, &plain(step), &mut Imports).map(|decision| match decision {
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
        declared: step.policy.map(|policy| match policy {
            wit::Policy::Normal(_) => Declared::Normal,
            wit::Policy::Always(_) => Declared::Always,
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
