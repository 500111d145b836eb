//! Guests that misbehave, as real components in the whole loop: each ends in the fault that names its deed, a neighbour
//! never notices, and the turn goes on with the rest of the chain.

use retake::{
    agent::TurnOutcome,
    journal::{
        Body, Event, Observer,
        event::{ExecutorFault, TurnEndReason},
    },
    llm::{FailureCode, RetryPolicy},
    profile::{Home, Host, HostError, ProfileRef, activate, builtin_component, compose},
    wasm::LoadError,
    waterfall::{Activation, FaultKind},
};
use retake_tests::{guests::*, *};
use serde_json::{Value, json};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Retries after 20 ms, so that a test in real time is quick.
fn quick() -> RetryPolicy {
    policy(json!({ "mode": "normal", "maxRetries": 2, "backoff": { "initialDelayMs": 20, "jitterRatio": 0 } }))
}

/// A world whose provider fails once and then answers.
fn failing_once(chain: Vec<Arc<Activation>>) -> World {
    World::new(ScriptedAdapter::new([failing(failure(FailureCode::Server))]), quick(), chain)
}

fn assert_answered(outcome: &TurnOutcome) {
    assert!(matches!(outcome, TurnOutcome::Answered { .. }), "{outcome:?}");
}

fn faults(world: &World) -> Vec<ExecutorFault> {
    world
        .events()
        .into_iter()
        .filter_map(|event| if let Body::ExecutorFault(fault) = event.body { Some(fault) } else { None })
        .collect()
}

/// Signals every append, so that a test can wait for what a turn in flight does.
struct Appended(watch::Sender<u64>);

impl Observer for Appended {
    fn appended(&self, _: &str, event: &Event) {
        self.0.send_replace(event.seq);
    }
}

/// Waits until the journal of a turn in flight has `count` events of a type.
fn appended(world: &World, type_name: &'static str, count: usize) -> impl Future<Output = ()> + use<> {
    let observer = Arc::new(Appended(watch::Sender::new(0)));
    world.session.journal.observe(observer.clone());
    let log = world.log.clone();
    async move {
        let enough = |_: &u64| log.events().iter().filter(|e| e.body.type_name() == type_name).count() >= count;
        observer.0.subscribe().wait_for(enough).await.expect("the sender lives here");
    }
}

/// Waits until a call of the activation is in flight.
async fn in_flight(activation: &Activation) {
    while activation.active_calls() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Every deed that is a fault by itself: its kind, and what its sentence must say.
fn deeds() -> Vec<(Value, FaultKind, &'static [&'static str])> {
    vec![
        (json!({"do": "spin"}), FaultKind::CpuLimit, &["`cpuBudgetMs`", "100"]),
        (json!({"do": "grow"}), FaultKind::MemoryLimit, &["`memoryMb`", "64"]),
        (
            json!({"do": "panic", "text": "the jam is out"}),
            FaultKind::Trap,
            &["panicked", "the jam is out", "src/component.rs:"],
        ),
        (json!({"do": "trap"}), FaultKind::Trap, &["unreachable"]),
        (
            json!({"do": "deep-recursion"}),
            FaultKind::Trap,
            &["out of bounds memory access", "misbehave::component::recurse"],
        ),
        (json!({"do": "append-forever"}), FaultKind::AppendLimit, &["`appends`", "64"]),
        (json!({"do": "append-huge"}), FaultKind::AppendLimit, &["`appendBytes`", "16384"]),
        (json!({"do": "bad-note"}), FaultKind::Malformed, &["note", "Not A Kind!"]),
        (json!({"do": "bad-retry"}), FaultKind::Malformed, &["retry-id"]),
        (json!({"do": "log-forever"}), FaultKind::LogLimit, &["`logBytes`", "65536"]),
        (json!({"do": "sleep-nan"}), FaultKind::Malformed, &["NaN", "`timer.sleep`"]),
        (json!({"do": "error", "text": "no luck"}), FaultKind::Error, &["no luck"]),
        (json!({"do": "next-then-panic"}), FaultKind::Trap, &["panicked", "next gave Ok(Decision::Retry)"]),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_misdeed_is_its_named_fault_the_rest_of_the_chain_decides_and_ten_neighbours_notice_nothing() {
    let official = official().await;
    for (deed, kind, words) in deeds() {
        // On a busy machine another deed than to compute for ever must not run into the CPU budget first.
        let limits = if kind == FaultKind::CpuLimit { Value::Null } else { json!({"cpuBudgetMs": 30_000}) };
        let bad = misbehaving_within(deed.clone(), limits).await;
        let neighbours: Vec<_> = (0..10)
            .map(|_| {
                let mut world = failing_once(vec![official.clone()]);
                tokio::spawn(async move {
                    let start = Instant::now();
                    let outcome = world.prompt("hi").await;
                    (outcome, start.elapsed(), faults(&world), world.retries().len())
                })
            })
            .collect();
        let mut world = failing_once(vec![bad.clone(), official.clone()]);
        assert_answered(&world.prompt("hi").await);
        let faults = faults(&world);
        assert_eq!(faults.len(), 1, "{deed}: {faults:?}");
        assert_eq!(faults[0].kind, kind, "{deed}: {}", faults[0].message);
        assert_eq!((&faults[0].id, &faults[0].digest), (&bad.identity.id, &bad.identity.digest), "{deed}");
        for word in words {
            assert!(faults[0].message.contains(word), "{deed}: {word:?} is not in {:?}", faults[0].message);
        }
        assert_eq!(world.retries().len(), 1, "{deed}: the executor behind it scheduled one retry");
        assert_eq!(bad.active_calls(), 0, "{deed}");
        for neighbour in neighbours {
            let (outcome, took, faults, retries) = neighbour.await.expect("a neighbour does not panic");
            assert_answered(&outcome);
            assert_eq!((faults, retries), (Vec::new(), 1), "{deed}");
            // 20 ms of waiting; the rest is room for a busy machine, and far less than a starved runtime would take.
            assert!(took < Duration::from_secs(2), "{deed}: a neighbour took {took:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_spinning_guests_than_threads_do_not_stop_the_clock() {
    within(Duration::from_millis(200), async || {
        let bad = misbehaving(json!({"do": "spin"})).await;
        let spinning: Vec<_> = (0..4)
            .map(|_| {
                let mut world = failing_once(vec![bad.clone()]);
                tokio::spawn(async move { world.prompt("hi").await })
            })
            .collect();
        in_flight(&bad).await;
        let start = Instant::now();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let fired = start.elapsed();
        for turn in spinning {
            assert!(matches!(turn.await.unwrap(), TurnOutcome::Failed { .. }));
        }
        (fired, ())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_panics_with_a_wait_scheduled_is_asked_once_more_and_then_its_wait_goes_to_the_next() {
    let bad = misbehaving(json!({"do": "schedule-then-panic", "ms": 60_000})).await;
    let policy =
        policy(json!({ "mode": "normal", "backoff": { "initialDelayMs": 500, "maxDelayMs": 500, "jitterRatio": 0 } }));
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Server))]);
    let mut world = World::new(adapter.clone(), policy, vec![bad, official().await]);
    assert_answered(&world.prompt("hi").await);
    let faults = faults(&world);
    assert_eq!(faults.len(), 2, "{faults:?}");
    assert!(faults[0].message.contains("told to panic with a wait scheduled"), "{faults:?}");
    // It does not look at what it left behind, and may not schedule it a second time.
    assert!(faults[1].message.contains("it is to be started, not scheduled anew"), "{faults:?}");
    assert!(!world.of_type("llm/retry-handover").is_empty());
    let started = world.of_type("llm/retry-started");
    assert_eq!(started.len(), 1, "only the last record was started");
    assert_eq!(world.retries().last().map(|retry| retry.delay_ms), Some(500.0));
    assert_eq!(adapter.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_fault_that_the_one_who_asked_in_next_passes_on_is_recorded_once_and_nobody_is_asked_again() {
    let head = misbehaving(json!({"do": "next"})).await;
    let behind = misbehaving(json!({"do": "panic", "text": "the jam is out"})).await;
    let mut world = failing_once(vec![head, behind]);
    let outcome = world.prompt("hi").await;
    assert!(
        matches!(&outcome, TurnOutcome::Failed { failure, .. } if failure.code == FailureCode::Server),
        "the turn ends with its own failure: {outcome:?}"
    );
    let faults = faults(&world);
    let kinds: Vec<_> = faults.iter().map(|fault| fault.kind).collect();
    assert_eq!(kinds, [FaultKind::Trap]);
    assert!(faults[0].message.contains("the jam is out"), "{}", faults[0].message);
}

#[tokio::test(start_paused = true)]
async fn five_faults_in_a_row_quarantine_a_guest_and_the_sixth_step_does_not_ask_it() {
    let bad = misbehaving(json!({"do": "error"})).await;
    let replies: Vec<_> = (0..6).flat_map(|_| [failing(failure(FailureCode::Server)), answer("ok")]).collect();
    let mut world = World::new(ScriptedAdapter::new(replies), test_policy(), vec![bad.clone(), official().await]);
    for prompt in 1..=6 {
        assert_answered(&world.prompt("hi").await);
        assert_eq!(faults(&world).len(), prompt.min(5), "after prompt {prompt}");
        assert_eq!(bad.is_quarantined(), prompt >= 5, "after prompt {prompt}");
    }
    let faults = faults(&world);
    assert!(!faults[3].message.contains("quarantined"), "{}", faults[3].message);
    assert!(faults[4].message.contains("quarantined"), "{}", faults[4].message);
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_uses_wasi_finds_nothing_in_it_and_works() {
    let mut world = failing_once(vec![wasi_user().await, official().await]);
    assert_answered(&world.prompt("hi").await);
    assert_eq!(faults(&world), []);
}

/// Swaps `bad` out for the official executor while it decides; returns how long the drain took, how many calls it
/// killed, and the faults of the turn, which must have been answered.
async fn swapped_out(bad: Arc<Activation>, drain: Duration) -> (Duration, (usize, Vec<ExecutorFault>)) {
    let official = official().await;
    let mut world = failing_once(vec![bad.clone()]);
    world.agent.waterfall.set_drain_timeout(drain);
    let waterfall = world.agent.waterfall.clone();
    let swap = async {
        in_flight(&bad).await;
        let start = Instant::now();
        let report = waterfall.publish(vec![official]).drain().await;
        (start.elapsed(), report.killed_calls)
    };
    let (outcome, (took, killed)) = tokio::join!(world.prompt("hi"), swap);
    assert_answered(&outcome);
    assert_eq!(world.retries().len(), 1, "the executor that took over scheduled the retry");
    assert_eq!(bad.active_calls(), 0);
    (took, (killed, faults(&world)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_ignores_its_retirement_is_ended_by_its_cpu_budget() {
    let drain = Duration::from_secs(2);
    let (killed, faults) = within(drain, async || {
        let bad = misbehaving(json!({"do": "ignore-interruption", "ms": 10})).await;
        swapped_out(bad, drain).await
    })
    .await;
    assert_eq!((killed, faults.len()), (0, 1));
    assert_eq!(faults[0].kind, FaultKind::CpuLimit);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_guest_that_ignores_its_retirement_and_has_cpu_to_spend_is_ended_by_force_at_the_drain_deadline() {
    let drain = Duration::from_millis(300);
    let (killed, faults) = within(drain + Duration::from_millis(100), async || {
        let deed = json!({"do": "ignore-interruption", "ms": 10});
        let bad = misbehaving_within(deed, json!({"cpuBudgetMs": 60_000})).await;
        let (took, ended) = swapped_out(bad, drain).await;
        assert!(took >= drain, "it was given less time than it has: {took:?}");
        (took, ended)
    })
    .await;
    assert_eq!((killed, faults.len()), (1, 1));
    assert_eq!(faults[0].kind, FaultKind::Killed);
}

/// Cancels a turn when `ready` is, and returns how long it then took to end.
async fn cancelled(world: &mut World, ready: impl Future<Output = ()>) -> Duration {
    let cancel = world.cancel.clone();
    let stop = async {
        ready.await;
        cancel.cancel();
        Instant::now()
    };
    let (outcome, at) = tokio::join!(world.prompt("hi"), stop);
    assert_eq!(outcome, TurnOutcome::Cancelled);
    let Some(Body::TurnEnd(end)) = world.events().pop().map(|event| event.body) else { panic!("the turn is open") };
    assert_eq!(end.reason, TurnEndReason::Aborted);
    assert!(world.of_type("llm/retry-started").is_empty());
    at.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_a_guest_in_its_sleep_at_once() {
    within(Duration::from_millis(50), async || {
        let bad = misbehaving(json!({"do": "schedule", "ms": 60_000})).await;
        let mut world = failing_once(vec![bad.clone()]);
        let ready = appended(&world, "llm/retry", 1);
        let took = cancelled(&mut world, ready).await;
        assert_eq!(bad.active_calls(), 0);
        assert_eq!(faults(&world), []);
        (took, ())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_a_guest_that_computes_within_its_cpu_budget() {
    within(Duration::from_millis(200), async || {
        let bad = misbehaving_within(json!({"do": "spin"}), json!({"cpuBudgetMs": 40})).await;
        let mut world = failing_once(vec![bad.clone()]);
        (cancelled(&mut world, in_flight(&bad)).await, ())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_ends_a_guest_that_computes_and_has_cpu_to_spend_at_the_drain_deadline() {
    let drain = Duration::from_millis(100);
    within(drain + Duration::from_millis(100), async || {
        let bad = misbehaving_within(json!({"do": "spin"}), json!({"cpuBudgetMs": 60_000})).await;
        let mut world = failing_once(vec![bad.clone()]);
        world.agent.waterfall.set_drain_timeout(drain);
        let took = cancelled(&mut world, in_flight(&bad)).await;
        assert_eq!(bad.active_calls(), 0, "the call was dropped with the turn");
        (took, ())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_hundred_cancelled_calls_the_next_one_works() {
    let hinted = with_retry_after(FailureCode::RateLimit, 5.0);
    let replies: Vec<_> = (0..100).map(|_| failing(failure(FailureCode::Server))).chain([failing(hinted)]).collect();
    let policy = policy(json!({
        "mode": "normal", "backoff": { "initialDelayMs": 600_000, "maxDelayMs": 600_000, "jitterRatio": 0 }
    }));
    let official = official().await;
    let mut world = World::new(ScriptedAdapter::new(replies), policy, vec![official.clone()]);
    for count in 1..=100 {
        world.cancel = CancellationToken::new();
        let ready = appended(&world, "llm/retry", count);
        cancelled(&mut world, ready).await;
        assert_eq!(official.active_calls(), 0);
    }
    world.cancel = CancellationToken::new();
    assert_answered(&world.prompt("hi").await);
    assert_eq!((faults(&world), world.retries().len()), (Vec::new(), 101));
}

/// Files that are no component of this host, with a word that the refusal must contain.
fn malformed() -> Vec<(String, Vec<u8>, &'static str)> {
    let core_module = b"\0asm\x01\0\0\0".to_vec();
    let bare_component = b"\0asm\x0d\0\x01\0".to_vec();
    let mut files = vec![
        ("empty".to_owned(), Vec::new(), "empty"),
        ("text".to_owned(), b"fn main() {}\n".to_vec(), "text"),
        ("random bytes".to_owned(), (0..4096_u32).map(|n| (n * 97 % 251) as u8 | 0x80).collect(), "no WebAssembly"),
        ("core module".to_owned(), core_module, "core WebAssembly module"),
        ("component of another world".to_owned(), bare_component, "retake:executor"),
    ];
    let whole = builtin_component("llm-retry").expect("it is embedded");
    for end in (1024..whole.len()).step_by(1024) {
        files.push((format!("cut off after {end} bytes"), whole[..end].to_vec(), "component"));
    }
    files
}

#[tokio::test]
async fn a_malformed_component_is_refused_with_a_reason_and_never_panics() {
    let runtime = runtime();
    for (name, bytes, word) in malformed() {
        let refused = activate(&runtime, "x", bytes.into(), json!({}), Value::Null).await;
        let Err(error) = refused else { panic!("{name} was accepted") };
        assert!(error.to_string().contains(word), "{name}: {error}");
        assert!(error.advice().is_some(), "{name}: its author is told nothing: {error}");
        assert!(!error.to_string().contains("panicked"), "{name}: {error}");
    }
}

#[tokio::test]
async fn a_component_with_a_flipped_bit_runs_or_is_refused_and_never_panics_the_host() {
    let runtime = runtime();
    let whole = builtin_component("llm-retry").expect("it is embedded");
    let mut refused = 0;
    for flip in 0..24 {
        let mut bytes = whole.to_vec();
        let place = flip * (whole.len() / 24) + flip;
        bytes[place] ^= 1 << (flip % 8);
        if let Err(error) = activate(&runtime, "x", bytes.into(), json!({}), Value::Null).await {
            assert!(!matches!(error, LoadError::Internal { .. }), "byte {place}: {error}");
            refused += 1;
        }
    }
    assert!(refused > 0, "so many flipped bits cannot all be harmless");
}

#[tokio::test]
async fn a_running_host_that_is_given_malformed_components_stays_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let home = Home::new(dir.path());
    let profile = dir.path().join("profile.yml");
    std::fs::write(
        &profile,
        "model: { provider: p, model: m }\n\
         providers:\n  - provider: p\n    adapter: openai-chat\n    chaos: \"503, ok\"\n    \
         retryPolicy: { mode: normal, backoff: { initialDelayMs: 20, jitterRatio: 0 } }\n",
    )
    .unwrap();
    let patch = dir.path().join("new.yml");
    std::fs::write(&patch, "- insert:\n    - id: new\n      component: ./new.wasm\n").unwrap();
    let component = dir.path().join("new.wasm");
    let reference = ProfileRef::Path(profile);
    let env = retake::env::Env::system();
    let composed = compose(&home, &reference, &[]).unwrap();
    let host = Host::start(composed, runtime(), Arc::new(|_| None), env).await.unwrap();
    let before = host.agent.waterfall.current();
    for (name, bytes, word) in malformed() {
        std::fs::write(&component, bytes).unwrap();
        let composed = compose(&home, &reference, std::slice::from_ref(&patch)).unwrap();
        let error = host.apply(composed).await.expect_err(&name);
        assert!(matches!(error, HostError::Component { .. }), "{name}: {error}");
        let text = error.to_string();
        for part in [word, "\"new\"", "new.wasm", "new.yml:", "For its author: "] {
            assert!(text.contains(part), "{name}: {part:?} is not in {text}");
        }
        assert!(Arc::ptr_eq(&host.agent.waterfall.current(), &before), "{name}: the chain in service was replaced");
    }
    let target = retake::agent::Target { provider: "p".into(), model: "m".into() };
    let (journal, log) = retake::journal::Journal::in_memory("s", host.agent.env.clock.clone());
    let mut session = retake::agent::Session::new(Arc::new(journal), target, None);
    assert_answered(&host.agent.prompt(&mut session, "hi", &CancellationToken::new()).await.unwrap());
    let retries = log.events().iter().filter(|event| event.body.type_name() == "llm/retry").count();
    assert_eq!(retries, 1);

    // And the repaired file takes its place in the chain.
    std::fs::write(&component, builtin_component("llm-retry").unwrap()).unwrap();
    let change = host.apply(compose(&home, &reference, &[patch]).unwrap()).await.unwrap();
    assert_eq!((change.swapped, change.generation), (true, before.generation + 1));
    host.close().await;
}
