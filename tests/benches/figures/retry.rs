//! One whole retry with no delay over a durable journal, the disk's own fsync beside it, and the end of a cancelled wait.

use crate::{Figure, block_on, median};
use futures_util::stream::BoxStream;
use retake::{
    agent::{Agent, Session, Target, TurnOutcome},
    env::{Entropy, Env},
    journal::{Body, Event, Observer},
    llm::{Adapter, Chunk, FailureCode, Request, RetryPolicy, route::Registry},
    waterfall::Waterfall,
};
use retake_tests::*;
use std::{
    io::Write,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

const ROUNDS: usize = 300;

pub fn figures() -> Vec<Figure> {
    // On the disk that the project lies on: a temporary directory may be in memory.
    let dir = tempfile::tempdir_in(crate::target_dir()).expect("the target directory can be written");
    let (mut retries, mut cancels) = block_on(async { (retries(dir.path()).await, cancels(dir.path()).await) });
    let mut fsyncs = fsyncs(dir.path());
    vec![
        Figure::new("one retry, 0 ms delay, durable JSONL journal", median(&mut retries), "ms"),
        Figure::new("one append and fsync of the same disk", median(&mut fsyncs), "ms"),
        Figure::new("cancel in a wait, until the turn is closed on disk", median(&mut cancels), "ms").at_most(50.0),
    ]
}

/// Always the lowest jitter.
struct Zero;

impl Entropy for Zero {
    fn unit(&self) -> f64 {
        0.0
    }

    fn uuid(&self) -> String {
        Env::system().entropy.uuid()
    }
}

/// Tells when a request arrives.
struct Arrivals {
    inner: Arc<ScriptedAdapter>,
    times: parking_lot::Mutex<Vec<Instant>>,
}

impl Adapter for Arrivals {
    fn stream(&self, request: Arc<Request>, cancel: CancellationToken) -> BoxStream<'static, Chunk> {
        self.times.lock().push(Instant::now());
        self.inner.stream(request, cancel)
    }
}

/// When each step failed.
#[derive(Default)]
struct Failures(parking_lot::Mutex<Vec<Instant>>);

impl Observer for Failures {
    fn appended(&self, _session: &str, event: &Event) {
        if matches!(&event.body, Body::StepEnd(end) if end.failure.is_some()) {
            self.0.lock().push(Instant::now());
        }
    }
}

async fn agent(adapter: Arc<dyn Adapter>, policy: RetryPolicy, env: Env) -> Agent {
    let routes = Arc::new(Registry::new());
    routes.register("mock", adapter, policy).expect("the route is new");
    Agent::new(routes, Arc::new(Waterfall::new(vec![official().await])), env)
}

fn target() -> Target {
    Target { provider: "mock".into(), model: "m".into() }
}

/// Milliseconds from a closed step to the repeated request.
async fn retries(dir: &Path) -> Vec<f64> {
    let replies = (0..ROUNDS).flat_map(|_| [failing(failure(FailureCode::Server)), answer("ok")]);
    let adapter = Arc::new(Arrivals { inner: ScriptedAdapter::new(replies), times: parking_lot::Mutex::default() });
    let policy = policy(serde_json::json!({
        "mode": "normal", "backoff": { "initialDelayMs": 1, "maxDelayMs": 1, "jitterRatio": 1 }
    }));
    let env = Env { entropy: Arc::new(Zero), ..Env::system() };
    let agent = agent(adapter.clone(), policy, env.clone()).await;
    let mut session = Session::open(dir, "retries", target(), None, &env).expect("a new session opens");
    let failures = Arc::new(Failures::default());
    session.journal.observe(failures.clone());
    for _ in 0..ROUNDS {
        let outcome = agent.prompt(&mut session, "hi", &CancellationToken::new()).await.expect("the journal works");
        assert!(matches!(outcome, TurnOutcome::Answered { .. }));
    }
    let times = adapter.times.lock();
    let failures = failures.0.lock();
    failures
        .iter()
        .zip(times.iter().skip(1).step_by(2))
        .map(|(failed, again)| (*again - *failed).as_secs_f64() * 1e3)
        .collect()
}

/// Milliseconds from a cancel in a wait to the end of the prompt, which is on disk then.
async fn cancels(dir: &Path) -> Vec<f64> {
    let adapter = ScriptedAdapter::new((0..100).map(|_| failing(failure(FailureCode::Server))));
    let env = Env::system();
    let policy = policy(serde_json::json!({ "mode": "normal", "backoff": { "initialDelayMs": 5000 } }));
    let agent = agent(adapter, policy, env.clone()).await;
    let mut session = Session::open(dir, "cancels", target(), None, &env).expect("a new session opens");
    let mut samples = Vec::new();
    for _ in 0..100 {
        let cancel = CancellationToken::new();
        let stop = cancel.clone();
        let stopped = tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(20)).await;
            stop.cancel();
            Instant::now()
        });
        let outcome = agent.prompt(&mut session, "hi", &cancel).await.expect("the journal works");
        let ended = Instant::now();
        assert_eq!(outcome, TurnOutcome::Cancelled);
        samples.push((ended - stopped.await.expect("it does not panic")).as_secs_f64() * 1e3);
    }
    samples
}

fn fsyncs(dir: &Path) -> Vec<f64> {
    let mut file = std::fs::File::create(dir.join("fsync")).expect("a file can be made");
    (0..ROUNDS)
        .map(|_| {
            let begun = Instant::now();
            file.write_all(&[b'x'; 600]).and_then(|()| file.sync_data()).expect("the disk takes it");
            begun.elapsed().as_secs_f64() * 1e3
        })
        .collect()
}
