//! Wire cases: what providers send, and what has to come of it. One file of `tests/cases` is one test.
//!
//! A case is replayed over a real connection through each adapter, with the official executor in the whole loop. Only
//! the waits between attempts are not real.

mod format;
mod server;

use format::{Adapter, Cancel, Case, Turn};
use futures_util::future::BoxFuture;
use retake::{
    agent::{Agent, Session, Target, TurnOutcome},
    env::{Clock, Env},
    journal::{Body, Event, Journal, Observer},
    llm::{
        FailureCode,
        adapters::{Bounds, HttpProvider, Limits, ProviderConfig, Secret},
        route::Registry,
    },
    waterfall::Waterfall,
};
use retake_tests::{CancelOn, official, policy};
use serde_json::{Value, json};
use server::Server;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

include!(concat!(env!("OUT_DIR"), "/cases.rs"));

/// A cancelled call has to be over within this time.
const CANCELLED_WITHIN: Duration = Duration::from_millis(250);

const KEY: &str = "sk-test-0123456789abcdef";

/// A clock whose waits are over at once, or never.
struct NoWait {
    wall_ms: u64,
    never: bool,
}

impl Clock for NoWait {
    fn wall_ms(&self) -> u64 {
        self.wall_ms
    }

    fn sleep(&self, _delay: Duration) -> BoxFuture<'static, ()> {
        if self.never { Box::pin(std::future::pending()) } else { Box::pin(tokio::task::yield_now()) }
    }
}

/// Plays a case through each of its adapters.
async fn replay(name: &str, text: &str) {
    let case: Case = serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{name}.yml: {error}"));
    assert!(!case.says.trim().is_empty(), "{name}.yml says nothing");
    let adapters = if case.adapters.is_empty() { Adapter::ALL.to_vec() } else { case.adapters.clone() };
    for adapter in adapters {
        Replay::run(name, &case, adapter).await;
    }
}

/// What came of a case through one adapter.
struct Replay {
    label: String,
    events: Vec<Event>,
    requests: Vec<Vec<u8>>,
    outcome: TurnOutcome,
}

impl Replay {
    async fn run(name: &str, case: &Case, adapter: Adapter) {
        let server = Server::start(case, adapter).await;
        let clock = Arc::new(NoWait { wall_ms: case.clock, never: case.cancel == Some(Cancel::Wait) });
        let env = Env { clock, ..Env::fixed(case.clock, 7) };
        let config = ProviderConfig {
            dialect: adapter.dialect(),
            base_url: server.base_url(),
            api_key: Some(Secret::new(KEY)),
            bounds: Bounds { limits: limits(case), ..Bounds::default() },
            text_hints: case.text_hints,
            ..ProviderConfig::default()
        };
        let provider = HttpProvider::new(config, env.clock.clone()).expect("the server's address is fine");
        let routes = Arc::new(Registry::new());
        let retry_policy = policy(
            case.policy
                .clone()
                .unwrap_or_else(|| json!({ "mode": "normal", "maxRetries": 2, "backoff": { "jitterRatio": 0 } })),
        );
        routes.register("wild", Arc::new(provider), retry_policy).expect("the route is new");
        let (journal, log) = Journal::in_memory("case", env.clock.clone());
        let target = Target { provider: "wild".into(), model: "acme-1".into() };
        let agent = Agent::new(routes, Arc::new(Waterfall::new(vec![official().await])), env);
        let mut session = Session::new(Arc::new(journal), target, Some("You are terse.".into()));
        let cancel = CancellationToken::new();
        cancel_when(case, &session, &cancel);
        let prompt = "name one prime ".repeat(case.prompt_bytes.div_ceil(15).max(1));
        let turn = agent.prompt(&mut session, &prompt, &cancel);
        let cancelled = async {
            cancel.cancelled().await;
            Instant::now()
        };
        tokio::pin!(turn);
        let (outcome, since) = tokio::select! {
            outcome = &mut turn => (outcome, None),
            at = cancelled => (turn.await, Some(at)),
        };
        if let Some(since) = since {
            assert!(since.elapsed() < CANCELLED_WITHIN, "{name}: the cancel took {:?}", since.elapsed());
        }
        let replay = Replay {
            label: format!("{name} through {}", adapter.name()),
            events: log.events(),
            requests: server.requests(),
            outcome: outcome.expect("the journal works"),
        };
        replay.check(case);
    }

    fn check(&self, case: &Case) {
        let label = &self.label;
        let failures: Vec<Value> = self.failures();
        let found = serde_json::to_string_pretty(&failures).expect("failures are JSON");
        if let Some(expected) = &case.expect.failures {
            assert_eq!(failures.len(), expected.len(), "{label}: the number of failures; found {found}");
            for (index, (expected, failure)) in expected.iter().zip(&failures).enumerate() {
                if let Err(difference) = fits(expected, failure, "") {
                    panic!("{label}: failure {index}: {difference}; found {found}");
                }
            }
        }
        for failure in &failures {
            let code = failure["code"].as_str().unwrap_or_default();
            assert!(FailureCode::SELECTABLE.iter().any(|known| known.as_str() == code), "{label}: {found}");
            assert!(failure["evidence"]["row"].is_string(), "{label}: a failure has no row; found {found}");
        }
        let delays: Vec<f64> = self.retries().map(|retry| retry.delay_ms).collect();
        if let Some(expected) = &case.expect.delays {
            assert_eq!(&delays, expected, "{label}: the delays; failures were {found}");
        }
        let turn = match &self.outcome {
            TurnOutcome::Answered { .. } => Turn::Answered,
            TurnOutcome::Failed { .. } => Turn::Failed,
            TurnOutcome::Cancelled => Turn::Cancelled,
        };
        assert_eq!(turn, case.expect.turn, "{label}: the turn's end; failures were {found}");
        if let (Some(expected), TurnOutcome::Answered { text, .. }) = (&case.expect.text, &self.outcome) {
            assert_eq!(text, expected, "{label}: the answer");
        }
        if let Some(expected) = case.expect.requests {
            assert_eq!(self.requests.len(), expected, "{label}: the number of requests; failures were {found}");
        }
        self.check_records();
    }

    /// What holds for every case.
    fn check_records(&self) {
        let label = &self.label;
        assert!(
            self.requests.iter().all(|request| *request == self.requests[0]),
            "{label}: a retry changed its request"
        );
        let started = self.events.iter().filter(|event| matches!(event.body, Body::RetryStarted(_))).count();
        // A wait that was given up has no start.
        let expected =
            self.retries().count() - usize::from(matches!(self.outcome, TurnOutcome::Cancelled) && self.waited());
        assert_eq!(started, expected, "{label}: retries that were started");
        for retry in self.retries() {
            let failure = serde_json::to_value(&retry.failure).expect("a failure is JSON");
            assert!(self.failures().contains(&failure), "{label}: a retry is for another failure: {failure}");
        }
        let journal = serde_json::to_string(&self.events).expect("events are JSON");
        assert!(!journal.contains("0123456789abcdef"), "{label}: the journal shows the key");
    }

    /// Whether the last thing before the turn's end was a wait.
    fn waited(&self) -> bool {
        self.events.iter().rev().find_map(|event| match event.body {
            Body::RetryStarted(_) | Body::StepStart(_) => Some(false),
            Body::Retry(_) => Some(true),
            _ => None,
        }) == Some(true)
    }

    fn failures(&self) -> Vec<Value> {
        let failed = self.events.iter().filter_map(|event| match &event.body {
            Body::StepEnd(end) => end.failure.as_ref(),
            _ => None,
        });
        failed.map(|failure| serde_json::to_value(failure).expect("a failure is JSON")).collect()
    }

    fn retries(&self) -> impl Iterator<Item = &retake::journal::event::Retry> {
        self.events.iter().filter_map(|event| if let Body::Retry(retry) = &event.body { Some(retry) } else { None })
    }
}

fn limits(case: &Case) -> Limits {
    let defaults = Limits::default();
    let given = |name: &str| case.limits.get(name).copied().map(Duration::from_millis);
    for name in case.limits.keys() {
        let known = ["connectMs", "firstByteMs", "firstContentMs", "contentMs", "idleMs", "totalMs"];
        assert!(known.contains(&name.as_str()), "there is no limit {name:?}");
    }
    Limits {
        connect: given("connectMs").unwrap_or(defaults.connect),
        first_byte: given("firstByteMs").unwrap_or(defaults.first_byte),
        first_content: given("firstContentMs").unwrap_or(defaults.first_content),
        content: given("contentMs").unwrap_or(defaults.content),
        idle: given("idleMs").unwrap_or(defaults.idle),
        total: given("totalMs"),
    }
}

fn cancel_when(case: &Case, session: &Session, cancel: &CancellationToken) {
    let on = |type_name| {
        let observer: Arc<dyn Observer> = Arc::new(CancelOn { type_name, cancel: cancel.clone() });
        session.journal.observe(observer);
    };
    match case.cancel {
        Some(Cancel::Wait) => on("llm/retry"),
        Some(Cancel::Stream) => on("assistant/chunk"),
        Some(Cancel::Time) => {
            let cancel = cancel.clone();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                cancel.cancel();
            });
        }
        None => {}
    }
}

/// Whether what was found has everything that is expected. Numbers are equal as numbers, `null` is absent.
fn fits(expected: &Value, found: &Value, path: &str) -> Result<(), String> {
    let differ = || Err(format!("{path} is {found}, not {expected}"));
    match (expected, found) {
        (Value::Object(expected), Value::Object(found)) => expected.iter().try_for_each(|(key, expected)| {
            fits(expected, found.get(key).unwrap_or(&Value::Null), &format!("{path}/{key}"))
        }),
        (Value::String(part), Value::String(whole)) if part.starts_with('~') => {
            if whole.contains(&part[1..]) {
                Ok(())
            } else {
                differ()
            }
        }
        (Value::Number(a), Value::Number(b)) if a.as_f64() == b.as_f64() => Ok(()),
        (expected, found) if expected == found => Ok(()),
        _ => differ(),
    }
}
