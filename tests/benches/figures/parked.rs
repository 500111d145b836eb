//! Many turns parked in a wait at once: memory for each, and the time beyond the delay until all have finished.

use crate::{Figure, block_on, resident};
use retake::{
    agent::{Agent, Session, Target, TurnOutcome},
    env::Env,
    journal::Journal,
    llm::{FailureCode, RetryPolicy, route::Registry},
    waterfall::{Activation, Waterfall},
};
use retake_tests::*;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const DELAY_MS: f64 = 3_000.0;

pub fn figures() -> Vec<Figure> {
    block_on(async {
        let chain = vec![official().await];
        let (beyond_1k, kib_1k) = park(chain.clone(), 1_000).await;
        let (beyond_10k, kib_10k) = park(chain, 10_000).await;
        vec![
            Figure::new("1,000 turns parked, time beyond the delay", beyond_1k, "ms").at_most(150.0),
            Figure::new("1,000 turns parked, memory for each", kib_1k, "KiB").at_most(96.0),
            Figure::new("10,000 turns parked, time beyond the delay", beyond_10k, "ms").at_most(1_500.0),
            Figure::new("10,000 turns parked, memory for each", kib_10k, "KiB").at_most(96.0),
        ]
    })
}

/// Sessions that share a host, each of which fails once and waits.
pub struct Crowd {
    pub agent: Agent,
    pub adapter: Arc<ScriptedAdapter>,
}

impl Crowd {
    /// `turns` requests will fail with a hint to wait `delay_ms`; those after them succeed.
    pub fn new(chain: Vec<Arc<Activation>>, turns: usize, delay_ms: f64) -> Crowd {
        let adapter =
            ScriptedAdapter::new((0..turns).map(|_| failing(with_retry_after(FailureCode::RateLimit, delay_ms))));
        let routes = Arc::new(Registry::new());
        let policy: RetryPolicy = policy(serde_json::json!({ "mode": "normal", "backoff": { "maxDelayMs": 60000 } }));
        routes.register("mock", adapter.clone(), policy).expect("the route is new");
        Crowd { agent: Agent::new(routes, Arc::new(Waterfall::new(chain)), Env::system()), adapter }
    }

    /// Starts `turns` turns, each in a session of its own, and returns them with their journals.
    pub fn start(&self, turns: usize) -> (JoinSet<TurnOutcome>, Vec<Arc<Journal>>) {
        let mut running = JoinSet::new();
        let mut journals = Vec::new();
        for n in 0..turns {
            let agent = self.agent.clone();
            let (journal, _) = Journal::in_memory(format!("s{n}"), agent.env.clock.clone());
            let journal = Arc::new(journal);
            journals.push(journal.clone());
            let target = Target { provider: "mock".into(), model: "m".into() };
            running.spawn(async move {
                let mut session = Session::new(journal, target, None);
                agent.prompt(&mut session, "hi", &CancellationToken::new()).await.expect("a memory journal works")
            });
        }
        (running, journals)
    }
}

/// How many of these turns wait.
pub fn waiting(journals: &[Arc<Journal>]) -> usize {
    journals.iter().filter(|journal| journal.with_state(|state| state.pending_retry().is_some())).count()
}

/// The turns that were lost, and the rest that answered.
pub async fn lost(mut running: JoinSet<TurnOutcome>) -> usize {
    let mut lost = 0;
    while let Some(outcome) = running.join_next().await {
        if !matches!(outcome, Ok(TurnOutcome::Answered { .. })) {
            lost += 1;
        }
    }
    lost
}

/// Milliseconds beyond the delay from the first request to the end of the last turn, and KiB for each parked turn.
async fn park(chain: Vec<Arc<Activation>>, turns: usize) -> (f64, f64) {
    let crowd = Crowd::new(chain, turns, DELAY_MS);
    let before = resident();
    let begun = Instant::now();
    let (running, journals) = crowd.start(turns);
    let mut parked = before;
    // Until the first wait ends, which may be before the last turn has begun to wait.
    while crowd.adapter.count() <= turns && begun.elapsed() < Duration::from_secs(60) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        parked = parked.max(resident());
    }
    drop(journals);
    assert_eq!(lost(running).await, 0, "no turn fails");
    let beyond = begun.elapsed().as_secs_f64() * 1e3 - DELAY_MS;
    (beyond, (parked - before) / turns as f64 / 1024.0)
}
