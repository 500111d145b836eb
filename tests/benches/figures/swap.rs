//! Swaps between the official and the strategy executor: quiet, under waiting turns, many of them, and what they leave.

use crate::{
    Figure, block_on, maps, median,
    parked::{Crowd, lost, waiting},
    resident,
};
use retake::{
    agent::Agent,
    env::Env,
    journal::{Body, Event, Journal, Observer, event::Retry},
    profile::{ComposedProfile, Home, Host, ProfileRef, compose},
};
use retake_tests::runtime;
use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

const TURNS: usize = 1_000;

pub fn figures() -> Vec<Figure> {
    block_on(async {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let files = Files::new(dir.path());
        let host = files.host().await;
        let mut figures = quiet(&files, &host).await;
        figures.extend(under_load(&files, &host).await);
        figures.extend(storm(&files, &host).await);
        figures.extend(leftovers(&files, &host).await);
        host.close().await;
        figures
    })
}

/// A profile on disk, whose patch is rewritten.
struct Files {
    home: Home,
    dir: PathBuf,
}

const STRATEGY: &str = "\
- id: llm-retry
  disabled: true
- insert:
    - id: retry-strategy
      component: builtin:retry-strategy
";

impl Files {
    fn new(dir: &Path) -> Files {
        let profile =
            "model: { provider: p, model: m }\nproviders:\n  - { provider: p, adapter: openai-chat, chaos: ok }\n";
        std::fs::write(dir.join("profile.yml"), profile).expect("it can be written");
        Files { home: Home::new(dir.join("home")), dir: dir.to_owned() }
    }

    fn compose(&self) -> ComposedProfile {
        compose(&self.home, &ProfileRef::Path(self.dir.clone()), &[]).expect("the profile is valid")
    }

    async fn host(&self) -> Host {
        Host::start(self.compose(), runtime(), Arc::new(|_| None), Env::system()).await.expect("the profile can serve")
    }

    /// Writes the patch of the other executor, and applies it. Milliseconds from the files as they are read to the
    /// publication.
    async fn swap(&self, host: &Host, strategy: bool) -> f64 {
        std::fs::write(self.dir.join("retake.patch.yml"), if strategy { STRATEGY } else { "[]\n" })
            .expect("it can be written");
        let begun = Instant::now();
        let change = host.apply(self.compose()).await.expect("the patch can be applied");
        assert!(change.swapped);
        begun.elapsed().as_secs_f64() * 1e3
    }
}

async fn quiet(files: &Files, host: &Host) -> Vec<Figure> {
    // Both components are compiled and stay loaded, as in a host that has run them.
    let _kept = [retake_tests::official().await, retake_tests::builtin("retry-strategy", serde_json::json!({})).await];
    let mut samples = Vec::new();
    for round in 0..40 {
        samples.push(files.swap(host, round % 2 == 0).await);
    }
    vec![Figure::new("swap, nothing waiting", median(&mut samples), "ms").at_most(25.0)]
}

/// Counts the turns whose wait was handed over and scheduled anew.
struct Taken(Arc<AtomicUsize>);

impl Observer for Taken {
    fn appended(&self, _session: &str, event: &Event) {
        if matches!(event.body, Body::Retry(_)) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A crowd on the host's own waterfall.
fn crowd(host: &Host, delay_ms: f64) -> Crowd {
    let crowd = Crowd::new(Vec::new(), TURNS, delay_ms);
    let agent = Agent { waterfall: host.agent.waterfall.clone(), ..crowd.agent };
    Crowd { agent, ..crowd }
}

async fn all_wait(journals: &[Arc<Journal>]) {
    while waiting(journals) < TURNS {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn under_load(files: &Files, host: &Host) -> Vec<Figure> {
    let _kept = [retake_tests::official().await, retake_tests::builtin("retry-strategy", serde_json::json!({})).await];
    let mut samples = Vec::new();
    for round in 0..5 {
        let crowd = crowd(host, 4_000.0);
        let (running, journals) = crowd.start(TURNS);
        all_wait(&journals).await;
        let taken = Arc::new(AtomicUsize::new(0));
        for journal in &journals {
            journal.observe(Arc::new(Taken(taken.clone())));
        }
        let begun = Instant::now();
        files.swap(host, round % 2 == 0).await;
        while taken.load(Ordering::Relaxed) < TURNS {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        samples.push(begun.elapsed().as_secs_f64() * 1e3);
        assert_eq!(lost(running).await, 0);
    }
    files.swap(host, false).await;
    vec![
        Figure::new("swap while 1,000 turns wait, until all are handed over", median(&mut samples), "ms")
            .at_most(150.0),
    ]
}

/// The records of a session's retry, as they were appended.
#[derive(Default)]
struct Waits(parking_lot::Mutex<Vec<(u64, Option<Retry>)>>);

impl Observer for Waits {
    fn appended(&self, _session: &str, event: &Event) {
        match &event.body {
            Body::Retry(retry) => self.0.lock().push((event.time, Some(retry.clone()))),
            Body::RetryStarted(_) => self.0.lock().push((event.time, None)),
            _ => {}
        }
    }
}

const STORM_DELAY_MS: f64 = 12_000.0;

async fn storm(files: &Files, host: &Host) -> Vec<Figure> {
    let crowd = crowd(host, STORM_DELAY_MS);
    let (running, journals) = crowd.start(TURNS);
    let waits: Vec<_> = journals
        .iter()
        .map(|journal| {
            let waits = Arc::new(Waits::default());
            journal.observe(waits.clone());
            waits
        })
        .collect();
    all_wait(&journals).await;
    let scheduled: Vec<u64> = journals
        .iter()
        .map(|journal| journal.with_state(|state| state.pending_retry().map_or(0, |live| live.scheduled_at)))
        .collect();
    for round in 0..50 {
        files.swap(host, round % 2 == 0).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let lost = lost(running).await;
    let extra = crowd.adapter.count() as f64 - 2.0 * TURNS as f64;
    let mut worst_record: f64 = 0.0;
    let mut worst_total: f64 = 0.0;
    for (waits, scheduled) in waits.iter().zip(scheduled) {
        let waits = waits.0.lock();
        let (started, _) = waits.last().expect("every wait has ended");
        if let Some((time, Some(last))) = waits.iter().rev().nth(1) {
            worst_record = worst_record.max((*started as f64 - *time as f64 - last.delay_ms).abs());
        }
        worst_total = worst_total.max((*started as f64 - scheduled as f64 - STORM_DELAY_MS).abs());
    }
    vec![
        Figure::new("1,000 waiting turns, 50 swaps: turns lost", lost as f64, "").at_most(0.0),
        Figure::new("1,000 waiting turns, 50 swaps: extra requests", extra, "").at_most(0.0),
        Figure::new("1,000 waiting turns, 50 swaps: worst wait against its record", worst_record, "ms").at_most(100.0),
        Figure::new("1,000 waiting turns, 50 swaps: worst total wait against the hint", worst_total, "ms")
            .at_most(100.0),
    ]
}

async fn leftovers(files: &Files, host: &Host) -> Vec<Figure> {
    let _kept = [retake_tests::official().await, retake_tests::builtin("retry-strategy", serde_json::json!({})).await];
    for round in 0..100 {
        files.swap(host, round % 2 == 0).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks() as f64;
    let (bytes, mapped, alive) = (resident(), maps(), tasks());
    for round in 0..500 {
        files.swap(host, round % 2 == 0).await;
    }
    tokio::time::sleep(Duration::from_millis(200)).await;
    vec![
        Figure::new("500 swaps: growth of memory", (resident() - bytes) / 1024.0 / 1024.0, "MiB").at_most(4.0),
        Figure::new("500 swaps: growth of memory maps", maps() - mapped, "").at_most(16.0),
        Figure::new("500 swaps: tasks left", tasks() - alive, "").at_most(0.0),
    ]
}
