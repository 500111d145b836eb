//! From a failed step to the append of its `llm/retry`, over a memory journal.

use crate::{Figure, block_on, median};
use futures_util::FutureExt;
use llm_retry::{
    data, decide,
    host::{AppendError, Host, Interrupted, Retry},
};
use retake::{
    agent::TurnOutcome,
    env::Env,
    journal::{Body, Event, Observer, event::ExecutorNote},
    llm::{FailureCode, RetryPolicy},
    waterfall::{Activation, Call, Decision, Executor, FailedStep, Fault, FaultKind, Record, executor::RetryLimit},
};
use retake_tests::*;
use std::{sync::Arc, time::Instant};
use tokio_util::sync::CancellationToken;

const ROUNDS: usize = 3_000;

pub fn figures() -> Vec<Figure> {
    block_on(async {
        let component = official().await;
        let passing = serde_json::json!({ "retryableCodes": ["AUTH"] });
        let mut five = Vec::new();
        for _ in 0..4 {
            five.push(builtin("retry-strategy", passing.clone()).await);
        }
        five.push(official().await);
        let native = Activation::new(native_identity("native"), Arc::new(NativeOfficial));
        // In turns, so that whatever else the machine does meets all of them.
        let mut samples: [Vec<f64>; 4] = Default::default();
        for _ in 0..3 {
            samples[0].extend(decisions(vec![component.clone()], 0, ROUNDS).await);
            samples[1].extend(decisions(vec![native.clone()], 0, ROUNDS).await);
            samples[2].extend(decisions(five.clone(), 0, ROUNDS / 3).await);
            samples[3].extend(decisions(vec![component.clone()], 100_000, ROUNDS).await);
        }
        let [component, native, five, late] = samples.map(|mut samples| median(&mut samples));
        vec![
            Figure::new("decision, component", component, "µs").at_most(100.0),
            Figure::new("decision, component, after 100,000 events", late, "µs").at_most(100.0),
            Figure::new("decision, the same logic native", native, "µs"),
            Figure::new("decision, component against native", component / native, "×"),
            Figure::new("decision, chain of five components", five, "µs").at_most(500.0),
        ]
    })
}

/// Notes when a step failed and when its retry was appended, and ends the turn there.
struct Stopwatch {
    failed: parking_lot::Mutex<Instant>,
    samples: parking_lot::Mutex<Vec<f64>>,
    cancel: parking_lot::Mutex<CancellationToken>,
}

impl Observer for Stopwatch {
    fn appended(&self, _session: &str, event: &Event) {
        match &event.body {
            Body::StepEnd(end) if end.failure.is_some() => *self.failed.lock() = Instant::now(),
            Body::Retry(_) => {
                let elapsed = self.failed.lock().elapsed();
                self.samples.lock().push(elapsed.as_secs_f64() * 1e6);
                self.cancel.lock().cancel();
            }
            _ => {}
        }
    }
}

/// Microseconds from a closed step to its `llm/retry`, for each of `rounds` prompts in one session.
pub async fn decisions(chain: Vec<Arc<Activation>>, earlier_events: usize, rounds: usize) -> Vec<f64> {
    let adapter = ScriptedAdapter::new((0..rounds).map(|_| failing(with_status(FailureCode::Server, 503))));
    let mut world = World::with_env(adapter, RetryPolicy::default(), chain, Env::system());
    for _ in 0..earlier_events {
        let note = ExecutorNote {
            id: "e".into(),
            digest: "d".into(),
            kind: "earlier".into(),
            data: serde_json::json!({ "n": 1 }),
        };
        world.session.journal.append(Body::ExecutorNote(note)).expect("a memory journal takes it");
    }
    let watch = Arc::new(Stopwatch {
        failed: parking_lot::Mutex::new(Instant::now()),
        samples: parking_lot::Mutex::default(),
        cancel: parking_lot::Mutex::new(CancellationToken::new()),
    });
    world.session.journal.observe(watch.clone());
    for _ in 0..rounds {
        world.cancel = CancellationToken::new();
        *watch.cancel.lock() = world.cancel.clone();
        // Not through the world, which verifies the whole journal after each prompt.
        let outcome = world.agent.prompt(&mut world.session, "hi", &world.cancel).await;
        assert_eq!(outcome.expect("a memory journal works"), TurnOutcome::Cancelled);
    }
    let samples = watch.samples.lock().clone();
    assert_eq!(samples.len(), rounds);
    samples
}

/// The official executor's own logic, called without a sandbox.
struct NativeOfficial;

impl Executor for NativeOfficial {
    fn request_error(
        &self,
        step: FailedStep,
        call: Arc<dyn Call>,
        _kill: CancellationToken,
    ) -> futures_util::future::BoxFuture<'_, Result<Decision, Fault>> {
        async move {
            let decided = decide::decide(&plain(&step), &mut Direct(&*call));
            match decided {
                Ok(data::Decision::Unhandled) => Ok(Decision::Unhandled),
                Ok(data::Decision::Retry) => Ok(Decision::Retry),
                Err(message) => Err(Fault { kind: FaultKind::Error, message }),
            }
        }
        .boxed()
    }
}

fn plain(step: &FailedStep) -> data::FailedStep {
    let backoff = |b: &retake::llm::Backoff| data::Backoff {
        initial_delay_ms: b.initial_delay_ms,
        max_delay_ms: b.max_delay_ms,
        jitter_ratio: b.jitter_ratio,
    };
    data::FailedStep {
        provider: step.provider.clone(),
        code: step.failure.code.to_string(),
        retry_after_ms: step.failure.provider_retry_after_ms,
        should_retry: step.failure.should_retry(),
        policy: step.policy.as_ref().map(|policy| match policy {
            RetryPolicy::Normal { max_retries, retryable_codes, backoff: b } => data::Policy::Normal {
                max_retries: *max_retries,
                retryable_codes: retryable_codes.to_vec(),
                backoff: backoff(b),
            },
            RetryPolicy::Always { backoff: b } => data::Policy::Always { backoff: backoff(b) },
        }),
        pending: None,
    }
}

/// What this bench meets of the host answers at once, so that nothing has to be awaited; the wait itself is cut.
struct Direct<'a>(&'a dyn Call);

impl Host for Direct<'_> {
    fn next(&mut self) -> Result<data::Decision, String> {
        Ok(data::Decision::Unhandled)
    }

    fn append_retry(&mut self, retry: Retry<'_>) -> Result<(), AppendError> {
        let record = Record::Retry {
            retry_id: retry.retry_id.into(),
            policy_key: retry.policy_key.into(),
            retry: retry.retry,
            limit: retry.max_retries.map_or(RetryLimit::Always, RetryLimit::Normal),
            delay_ms: retry.delay_ms,
        };
        self.0
            .append(record)
            .now_or_never()
            .expect("a memory journal does not wait")
            .map(|_| ())
            .map_err(|_| AppendError::Interrupted)
    }

    fn append_retry_started(&mut self, _retry_id: &str, _retry: u64) -> Result<(), AppendError> {
        Err(AppendError::Interrupted)
    }

    fn last_retry(&mut self, provider: &str, policy_key: &str) -> Option<(String, u64)> {
        self.0.last_retry(provider, policy_key).map(|last| (last.retry_id, last.retry))
    }

    fn sleep(&mut self, _ms: f64) -> Result<(), Interrupted> {
        Err(Interrupted)
    }

    fn interrupted(&mut self) -> bool {
        self.0.interrupted().is_some()
    }

    fn random(&mut self) -> f64 {
        self.0.unit()
    }

    fn new_retry_id(&mut self) -> String {
        self.0.retry_id()
    }

    fn warn(&mut self, _message: &str) {}
}
