//! Swaps of a running host: real files, real components, the watcher, and turns in flight.

use retake::{
    agent::{Agent, Session, Target, TurnOutcome},
    env::Env,
    journal::{Body, Event, Journal, MemoryLog},
    llm::{FailureCode, RetryPolicy, route::Registry},
    profile::{Home, Host, ProfileRef, ProfileSource, Reload, Watch, builtin_component, compose, watch},
};
use retake_tests::*;
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, unbounded_channel},
    time::{Instant, timeout},
};
use tokio_util::sync::CancellationToken;

/// A profile directory, a host that runs it, and the reports of its watch.
struct Running {
    dir: tempfile::TempDir,
    host: Arc<Host>,
    _watch: Watch,
    reports: UnboundedReceiver<Reload>,
}

const PROFILE: &str =
    "model: { provider: p, model: m }\nproviders:\n  - { provider: p, adapter: openai-chat, chaos: ok }\n";

const STRATEGY: &str = "\
- id: llm-retry
  disabled: true
- insert:
    - id: retry-strategy
      component: builtin:retry-strategy
      config: { strategy: fixed, initialDelayMs: 1000, jitterRatio: 0 }
";

/// Longer than any wait of the watcher for quiet.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than the watcher waits for quiet after the last write.
const NOTHING_MORE: Duration = Duration::from_millis(900);

impl Running {
    async fn start(profile: &str) -> Running {
        Running::prepared(profile, |_| {}).await
    }

    async fn prepared(profile: &str, prepare: impl FnOnce(&Path)) -> Running {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("profile.yml"), profile).unwrap();
        prepare(dir.path());
        let source = ProfileSource {
            home: Home::new(dir.path().join("home")),
            profile: ProfileRef::Path(dir.path().to_owned()),
            overlays: Vec::new(),
        };
        let composed = compose(&source.home, &source.profile, &[]).unwrap();
        let host = Arc::new(Host::start(composed, runtime(), Arc::new(|_| None), Env::system()).await.unwrap());
        let (sender, reports) = unbounded_channel();
        let watch = watch(host.clone(), source, sender).unwrap();
        // The watcher registers before it looks at the files once more; edits after this are seen in any case.
        tokio::time::sleep(Duration::from_millis(50)).await;
        Running { dir, host, _watch: watch, reports }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    async fn report(&mut self) -> Reload {
        timeout(PATIENCE, self.reports.recv()).await.expect("a report comes").expect("the watch goes on")
    }

    async fn applied(&mut self) -> u64 {
        match self.report().await {
            Reload::Applied { change, .. } => change.generation,
            Reload::Refused { reason } => panic!("{reason}"),
        }
    }

    async fn refused(&mut self) -> String {
        match self.report().await {
            Reload::Refused { reason } => reason,
            Reload::Applied { change, .. } => panic!("{change:?}"),
        }
    }

    async fn assert_nothing_more(&mut self) {
        if let Ok(report) = timeout(NOTHING_MORE, self.reports.recv()).await {
            panic!("{report:?}");
        }
    }

    /// Asks the model of [`PROFILE`], in a session of its own.
    async fn prompt(&self, text: &str) -> TurnOutcome {
        let agent = &self.host.agent;
        let (journal, _) = Journal::in_memory("s", agent.env.clock.clone());
        let target = Target { provider: "p".into(), model: "m".into() };
        let mut session = Session::new(Arc::new(journal), target, None);
        agent.prompt(&mut session, text, &CancellationToken::new()).await.unwrap()
    }

    fn generation(&self) -> u64 {
        self.host.agent.waterfall.current().generation
    }

    fn ids(&self) -> Vec<String> {
        self.host.agent.waterfall.current().activations.iter().map(|a| a.identity.id.clone()).collect()
    }
}

#[tokio::test]
async fn a_patch_swaps_the_executor_and_its_withdrawal_brings_the_official_one_back() {
    let mut running = Running::start(PROFILE).await;
    assert_eq!((running.generation(), running.ids()), (1, vec!["llm-retry".to_owned()]));
    running.write("retake.patch.yml", STRATEGY);
    assert_eq!(running.applied().await, 2);
    assert_eq!(running.ids(), ["retry-strategy"]);
    std::fs::remove_file(running.path("retake.patch.yml")).unwrap();
    assert_eq!(running.applied().await, 3);
    assert_eq!(running.ids(), ["llm-retry"]);
    running.assert_nothing_more().await;
}

#[tokio::test]
async fn a_patch_written_in_two_pieces_gives_exactly_one_swap() {
    use std::io::Write;
    let mut running = Running::start(PROFILE).await;
    let (first, second) = STRATEGY.split_at(STRATEGY.find("- insert").unwrap());
    let mut file = std::fs::File::create(running.path("retake.patch.yml")).unwrap();
    file.write_all(first.as_bytes()).unwrap();
    tokio::time::sleep(Duration::from_millis(400)).await;
    file.write_all(second.as_bytes()).unwrap();
    drop(file);
    assert_eq!(running.applied().await, 2);
    assert_eq!(running.ids(), ["retry-strategy"]);
    running.assert_nothing_more().await;
}

#[tokio::test]
async fn a_rename_over_the_patch_gives_exactly_one_swap() {
    let mut running =
        Running::prepared(PROFILE, |dir| std::fs::write(dir.join("retake.patch.yml"), "[]\n").unwrap()).await;
    running.write("new", STRATEGY);
    std::fs::rename(running.path("new"), running.path("retake.patch.yml")).unwrap();
    assert_eq!(running.applied().await, 2);
    running.assert_nothing_more().await;
}

#[tokio::test]
async fn a_delete_and_a_create_give_exactly_one_swap() {
    let mut running =
        Running::prepared(PROFILE, |dir| std::fs::write(dir.join("retake.patch.yml"), "[]\n").unwrap()).await;
    std::fs::remove_file(running.path("retake.patch.yml")).unwrap();
    tokio::time::sleep(Duration::from_millis(150)).await;
    running.write("retake.patch.yml", STRATEGY);
    assert_eq!(running.applied().await, 2);
    running.assert_nothing_more().await;
}

#[tokio::test]
async fn a_turned_symbolic_link_gives_exactly_one_swap() {
    let mut running = Running::prepared(PROFILE, |dir| {
        std::fs::write(dir.join("a.yml"), "[]\n").unwrap();
        std::fs::write(dir.join("b.yml"), STRATEGY).unwrap();
        std::os::unix::fs::symlink("a.yml", dir.join("retake.patch.yml")).unwrap();
    })
    .await;
    std::os::unix::fs::symlink("b.yml", running.path("flip")).unwrap();
    std::fs::rename(running.path("flip"), running.path("retake.patch.yml")).unwrap();
    assert_eq!(running.applied().await, 2);
    running.assert_nothing_more().await;
}

#[tokio::test]
async fn constant_noise_beside_the_files_neither_swaps_nor_delays_one() {
    let mut running = Running::start(PROFILE).await;
    let noise = running.path("noise.log");
    let noisy = tokio::spawn(async move {
        for n in 0_u32.. {
            std::fs::write(&noise, n.to_string()).unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    running.assert_nothing_more().await;
    running.write("retake.patch.yml", STRATEGY);
    let begun = Instant::now();
    assert_eq!(running.applied().await, 2);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    running.assert_nothing_more().await;
    noisy.abort();
}

#[tokio::test]
async fn constant_rewriting_of_the_patch_itself_is_applied_all_the_same() {
    let mut running = Running::start(PROFILE).await;
    let patch = running.path("retake.patch.yml");
    let rewriting = tokio::spawn(async move {
        loop {
            std::fs::write(&patch, STRATEGY).unwrap();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    assert_eq!(running.applied().await, 2);
    running.assert_nothing_more().await;
    rewriting.abort();
}

#[tokio::test]
async fn the_same_bytes_and_config_written_again_change_nothing() {
    let mut running =
        Running::prepared(PROFILE, |dir| std::fs::write(dir.join("retake.patch.yml"), STRATEGY).unwrap()).await;
    let reordered = STRATEGY.replace("strategy: fixed, initialDelayMs: 1000", "initialDelayMs: 1000, strategy: fixed");
    assert_ne!(reordered, STRATEGY);
    running.write("retake.patch.yml", &reordered);
    running.assert_nothing_more().await;
    assert_eq!(running.generation(), 1);
}

#[tokio::test]
async fn a_change_of_the_config_alone_makes_a_generation() {
    let mut running =
        Running::prepared(PROFILE, |dir| std::fs::write(dir.join("retake.patch.yml"), STRATEGY).unwrap()).await;
    running.write("retake.patch.yml", &STRATEGY.replace("fixed", "linear"));
    assert_eq!(running.applied().await, 2);
}

#[tokio::test]
async fn a_change_of_the_component_file_makes_a_generation_and_a_broken_one_does_not() {
    let patch = "- insert:\n    - { id: mine, component: ./mine.wasm }\n";
    let mut running = Running::prepared(PROFILE, |dir| {
        std::fs::write(dir.join("mine.wasm"), builtin_component("llm-retry").unwrap()).unwrap();
        std::fs::write(dir.join("retake.patch.yml"), patch).unwrap();
    })
    .await;
    let good = builtin_component("retry-strategy").unwrap();
    std::fs::write(running.path("mine.wasm"), &good[..good.len() / 2]).unwrap();
    let reason = running.refused().await;
    assert!(reason.contains("cut off") && reason.contains("retake.patch.yml:2"), "{reason}");
    assert_eq!(running.generation(), 1);
    std::fs::write(running.path("mine.wasm"), good).unwrap();
    assert_eq!(running.applied().await, 2);
    std::fs::remove_file(running.path("mine.wasm")).unwrap();
    let reason = running.refused().await;
    assert!(reason.contains("could not be read") && reason.contains("mine.wasm"), "{reason}");
    assert_eq!(running.generation(), 2, "what was running goes on");
}

#[tokio::test]
async fn every_bad_edit_is_refused_with_its_place_and_the_next_good_one_recovers() {
    let mut running = Running::start(PROFILE).await;
    let text = running.path("text.wasm");
    std::fs::write(&text, "not a component").unwrap();
    let bad = [
        ("", "empty"),
        ("id: llm-retry\n", "list"),
        ("- insert:\n    - { id: llm-retry, component: builtin:llm-retry }\n", "llm-retry"),
        ("- insert:\n    - { id: x, component: ./absent.wasm }\n", "absent.wasm"),
        ("- insert:\n    - { id: x, component: ./text.wasm }\n", "text"),
        ("- insert:\n    - { id: x, component: builtin:nothing }\n", "nothing"),
        (
            "- insert:\n    - id: x\n      component: builtin:retry-strategy\n      config:\n        maxRetries: 5000\n",
            "maxRetries",
        ),
        ("- provider: p\n  retryPolicy: { mode: sometimes }\n", "sometimes"),
        ("- insert: [\n", "retake.patch.yml"),
    ];
    for (patch, expected) in bad {
        running.write("retake.patch.yml", patch);
        let reason = running.refused().await;
        assert!(reason.contains(expected), "{expected:?} in: {reason}");
        assert!(reason.contains("retake.patch.yml"), "{reason}");
        assert_eq!(running.generation(), 1);
    }
    running.write("retake.patch.yml", STRATEGY);
    assert_eq!(running.applied().await, 2);
}

#[tokio::test]
async fn a_schema_violation_names_the_line_of_the_value() {
    let mut running = Running::start(PROFILE).await;
    let patch = "- insert:\n    - id: x\n      component: builtin:retry-strategy\n      config:\n        strategy: fixed\n        maxRetries: 5000\n";
    running.write("retake.patch.yml", patch);
    let reason = running.refused().await;
    assert!(reason.contains("retake.patch.yml:6"), "{reason}");
}

#[tokio::test]
async fn a_patch_for_an_unknown_id_and_a_name_that_does_not_match_are_warnings_and_the_rest_applies() {
    let mut running = Running::start(PROFILE).await;
    let patch = format!("- id: absent\n  disabled: true\n- id: llm-retry\n  name: other\n  disabled: true\n{STRATEGY}");
    running.write("retake.patch.yml", &patch);
    match running.report().await {
        Reload::Applied { warnings, .. } => {
            assert_eq!(warnings.len(), 2, "{warnings:?}");
            assert!(warnings[0].contains("absent") && warnings[1].contains("other"), "{warnings:?}");
        }
        Reload::Refused { reason } => panic!("{reason}"),
    }
}

#[tokio::test]
async fn a_change_of_a_providers_policy_applies_to_the_next_call_without_a_swap() {
    let mut running = Running::start(PROFILE).await;
    running.write("retake.patch.yml", "- provider: p\n  retryPolicy: { mode: always, maxRetries: 3 }\n");
    match running.report().await {
        Reload::Applied { change, .. } => assert!(change.routes_changed && !change.swapped, "{change:?}"),
        Reload::Refused { reason } => panic!("{reason}"),
    }
    let policy = running.host.agent.routes.policy("p").unwrap();
    assert!(matches!(*policy, RetryPolicy::Always { .. }));
}

#[tokio::test]
async fn a_changed_bound_of_a_model_applies_to_the_next_request_without_a_swap() {
    let server = wire::chaos("ok").await;
    let profile = |provider: &str, model: &str| {
        let url = server.base_url();
        format!(
            "model: {{ provider: p, model: m }}\nproviders:\n  - provider: p\n    adapter: openai-chat\n    baseUrl: {url}\n{provider}{model}"
        )
    };
    let mut running = Running::start(&profile("    maxTokens: 100\n", "")).await;
    let mut expected = Vec::new();
    let changes = [
        (None, 100),
        (Some(profile("    maxTokens: 200\n", "")), 200),
        (Some(profile("    maxTokens: 200\n", "    models: { m: { maxTokens: 300 } }\n")), 300),
        (Some(profile("    maxTokens: 200\n", "    models: { other: { maxTokens: 300 } }\n")), 200),
    ];
    for (change, tokens) in changes {
        if let Some(profile) = change {
            running.write("profile.yml", &profile);
            match running.report().await {
                Reload::Applied { change, .. } => assert!(change.routes_changed && !change.swapped, "{change:?}"),
                Reload::Refused { reason } => panic!("{reason}"),
            }
        }
        let outcome = running.prompt("name one prime").await;
        assert!(matches!(outcome, TurnOutcome::Answered { .. }), "{outcome:?}");
        expected.push(tokens);
    }
    let sent = server.requests().into_iter().map(|request| {
        let body: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        body["max_tokens"].as_u64().unwrap()
    });
    assert_eq!(sent.collect::<Vec<_>>(), expected);
}

#[tokio::test]
async fn a_changed_limit_of_a_model_applies_to_the_next_request_without_a_swap() {
    let server = wire::chaos("stall:0, stall:0").await;
    let profile = |limit: u64| {
        let url = server.base_url();
        format!(
            "model: {{ provider: p, model: m }}\nproviders:\n  - provider: p\n    adapter: openai-chat\n    baseUrl: {url}\n    limits: {{ firstContentMs: 60000 }}\n    retryPolicy: {{ mode: normal, maxRetries: 0 }}\n    models: {{ m: {{ limits: {{ firstContentMs: {limit} }} }} }}\n"
        )
    };
    let mut running = Running::start(&profile(50)).await;
    for limit in [50, 70] {
        if limit != 50 {
            running.write("profile.yml", &profile(limit));
            running.applied().await;
        }
        let outcome = running.prompt("hi").await;
        let TurnOutcome::Failed { failure, .. } = outcome else { panic!("{outcome:?}") };
        assert!(failure.message.contains(&format!("{limit}ms (the first-content limit)")), "{}", failure.message);
    }
}

#[tokio::test]
async fn an_edit_between_the_start_and_the_watch_is_applied() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("profile.yml"), PROFILE).unwrap();
    let source = ProfileSource {
        home: Home::new(dir.path().join("home")),
        profile: ProfileRef::Path(dir.path().to_owned()),
        overlays: Vec::new(),
    };
    let composed = compose(&source.home, &source.profile, &[]).unwrap();
    let host = Arc::new(Host::start(composed, runtime(), Arc::new(|_| None), Env::system()).await.unwrap());
    std::fs::write(dir.path().join("retake.patch.yml"), STRATEGY).unwrap();
    let (sender, mut reports) = unbounded_channel();
    let _watch = watch(host.clone(), source, sender).unwrap();
    assert!(matches!(timeout(PATIENCE, reports.recv()).await.unwrap(), Some(Reload::Applied { .. })));
}

#[tokio::test]
async fn two_profiles_on_one_runtime_run_their_own_executors_and_a_swap_in_one_leaves_the_other() {
    let mut one = Running::start(PROFILE).await;
    let mut two = Running::start(PROFILE).await;
    one.write("retake.patch.yml", STRATEGY);
    assert_eq!(one.applied().await, 2);
    assert_eq!((one.ids(), two.ids()), (vec!["retry-strategy".to_owned()], vec!["llm-retry".to_owned()]));
    two.assert_nothing_more().await;
    assert_eq!(two.generation(), 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Turns in flight, on a paused clock.

/// A session on `agent` with a memory journal, prompted in a task of its own.
fn prompt(agent: &Agent) -> (tokio::task::JoinHandle<TurnOutcome>, MemoryLog, Arc<Journal>) {
    let (journal, log) = Journal::in_memory("s", agent.env.clock.clone());
    let journal = Arc::new(journal);
    let mut session = Session::new(journal.clone(), Target { provider: "mock".into(), model: "m".into() }, None);
    let agent = agent.clone();
    let running =
        tokio::spawn(async move { agent.prompt(&mut session, "hi", &CancellationToken::new()).await.unwrap() });
    (running, log, journal)
}

fn agent(adapter: Arc<ScriptedAdapter>, policy: RetryPolicy, chain: Vec<Arc<retake::waterfall::Activation>>) -> Agent {
    let routes = Arc::new(Registry::new());
    routes.register("mock", adapter, policy).unwrap();
    Agent::new(routes, Arc::new(retake::waterfall::Waterfall::new(chain)), Env::fixed(START_MS, 7))
}

fn body_times(events: &[Event], of: impl Fn(&Body) -> bool) -> Vec<u64> {
    events.iter().filter(|event| of(&event.body)).map(|event| event.time - START_MS).collect()
}

async fn strategy(config: serde_json::Value) -> Arc<retake::waterfall::Activation> {
    builtin("retry-strategy", config).await
}

#[tokio::test(start_paused = true)]
async fn the_strategy_executor_takes_a_hint_over_and_deducts_what_was_waited() {
    let adapter = ScriptedAdapter::new([failing(with_retry_after(FailureCode::RateLimit, 8_000.0))]);
    let new = strategy(serde_json::json!({})).await;
    let agent = agent(adapter.clone(), test_policy(), vec![official().await]);
    let (turn, log, _) = prompt(&agent);
    tokio::time::sleep(Duration::from_millis(3_000)).await;
    agent.waterfall.publish(vec![new]).drain().await;
    assert!(matches!(turn.await.unwrap(), TurnOutcome::Answered { .. }));
    let events = log.events();
    let delays: Vec<_> = events
        .iter()
        .filter_map(|event| if let Body::Retry(retry) = &event.body { Some(retry.delay_ms) } else { None })
        .collect();
    assert_eq!(delays[0], 8_000.0);
    assert!((4_990.0..=5_000.0).contains(&delays[1]), "{delays:?}");
    let started = body_times(&events, |body| matches!(body, Body::RetryStarted(_)));
    assert!((8_000..8_020).contains(&started[0]), "{started:?}");
    assert_eq!(adapter.count(), 2, "no extra request");
}

#[tokio::test(start_paused = true)]
async fn two_swaps_in_one_wait_do_not_make_the_turn_wait_anew() {
    let adapter = ScriptedAdapter::new([failing(with_retry_after(FailureCode::RateLimit, 8_000.0))]);
    let there = strategy(serde_json::json!({})).await;
    let back = official().await;
    let agent = agent(adapter.clone(), test_policy(), vec![official().await]);
    let (turn, log, _) = prompt(&agent);
    tokio::time::sleep(Duration::from_millis(3_000)).await;
    agent.waterfall.publish(vec![there]).drain().await;
    tokio::time::sleep(Duration::from_millis(2_000)).await;
    agent.waterfall.publish(vec![back]).drain().await;
    assert!(matches!(turn.await.unwrap(), TurnOutcome::Answered { .. }));
    let started = body_times(&log.events(), |body| matches!(body, Body::RetryStarted(_)));
    assert!((8_000..8_050).contains(&started[0]), "{started:?}");
    assert_eq!(adapter.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_same_executor_with_the_same_key_carries_the_same_record_on() {
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Server))]);
    let next = official().await;
    let agent = agent(adapter, test_policy(), vec![official().await]);
    let (turn, log, _) = prompt(&agent);
    tokio::time::sleep(Duration::from_millis(200)).await;
    agent.waterfall.publish(vec![next]).drain().await;
    assert!(matches!(turn.await.unwrap(), TurnOutcome::Answered { .. }));
    let events = log.events();
    assert_eq!(body_times(&events, |body| matches!(body, Body::Retry(_))).len(), 1);
    let started = body_times(&events, |body| matches!(body, Body::RetryStarted(_)));
    assert!((500..520).contains(&started[0]), "{started:?}");
}

#[tokio::test(start_paused = true)]
async fn a_budget_counts_only_started_retries_across_a_swap() {
    // Two retries under the official executor, the second interrupted; the strategy executor begins its own count.
    let server = || failing(failure(FailureCode::Server));
    let adapter = ScriptedAdapter::new([server(), server(), server(), server(), server()]);
    let new = strategy(serde_json::json!({ "maxRetries": 2, "initialDelayMs": 10, "jitterRatio": 0 })).await;
    let agent = agent(adapter.clone(), test_policy(), vec![official().await]);
    let (turn, log, _) = prompt(&agent);
    tokio::time::sleep(Duration::from_millis(700)).await;
    agent.waterfall.publish(vec![new]).drain().await;
    assert!(matches!(turn.await.unwrap(), TurnOutcome::Failed { .. }));
    let numbers: Vec<_> = log
        .events()
        .iter()
        .filter_map(
            |event| if let Body::Retry(retry) = &event.body { Some((retry.retry, retry.max_retries)) } else { None },
        )
        .collect();
    assert_eq!(numbers, [(1, Some(2)), (2, Some(2)), (1, Some(2)), (2, Some(2))]);
    assert_eq!(adapter.count(), 4, "one request for each started retry, and the first");
}

#[tokio::test(start_paused = true)]
async fn a_hundred_waiting_turns_and_ten_swaps_lose_none_and_make_no_extra_request() {
    const TURNS: usize = 100;
    let adapter = ScriptedAdapter::new((0..TURNS).map(|_| failing(with_retry_after(FailureCode::RateLimit, 9_000.0))));
    let agent = agent(adapter.clone(), test_policy(), vec![official().await]);
    let turns: Vec<_> = (0..TURNS).map(|_| prompt(&agent)).collect();
    for round in 0..10 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let next = if round % 2 == 0 { strategy(serde_json::json!({})).await } else { official().await };
        agent.waterfall.publish(vec![next]).drain().await;
    }
    for (turn, log, _) in turns {
        assert!(matches!(turn.await.unwrap(), TurnOutcome::Answered { .. }));
        let started = body_times(&log.events(), |body| matches!(body, Body::RetryStarted(_)));
        assert!((9_000..9_100).contains(&started[0]), "{started:?}");
    }
    assert_eq!(adapter.count(), 2 * TURNS);
}

#[tokio::test(start_paused = true)]
async fn a_disabled_strategy_executor_is_the_default_policy_and_not_no_retry() {
    let adapter = ScriptedAdapter::new((0..9).map(|_| failing(failure(FailureCode::Server))));
    let chain = vec![strategy(serde_json::json!({ "enabled": false, "maxRetries": 0 })).await];
    let mut world = World::new(adapter, test_policy(), chain);
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Failed { .. }));
    assert_eq!(world.retries().len(), 5);
}

#[tokio::test(start_paused = true)]
async fn the_strategy_executor_leaves_an_always_provider_unbounded() {
    let adapter = ScriptedAdapter::new((0..20).map(|_| failing(failure(FailureCode::Server))));
    let chain = vec![
        strategy(serde_json::json!({ "maxRetries": 1, "strategy": "linear", "initialDelayMs": 10, "jitterRatio": 0 }))
            .await,
    ];
    let mut world = World::new(adapter, policy(serde_json::json!({ "mode": "always" })), chain);
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Answered { .. }));
    assert_eq!(world.delays()[..4], [10.0, 20.0, 30.0, 40.0]);
    assert_eq!(world.retries().len(), 20);
    assert!(world.retries().iter().all(|retry| retry.max_retries.is_none()));
}

#[tokio::test(start_paused = true)]
async fn the_strategy_executor_repeats_a_hopeless_request_at_the_longest_delay_of_the_policy() {
    let adapter = ScriptedAdapter::new((0..3).map(|_| failing(failure(FailureCode::Auth))));
    let config = serde_json::json!({ "strategy": "linear", "initialDelayMs": 10, "jitterRatio": 0 });
    let always = policy(serde_json::json!({ "mode": "always", "backoff": { "maxDelayMs": 4000 } }));
    let mut world = World::new(adapter, always, vec![strategy(config).await]);
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Answered { .. }));
    assert_eq!(world.delays(), [10.0, 4_000.0, 4_000.0]);
    let chains: std::collections::HashSet<_> = world.retries().into_iter().map(|retry| retry.retry_id).collect();
    assert_eq!(chains.len(), 1, "the chain goes on");
}

#[tokio::test(start_paused = true)]
async fn a_faulting_component_behind_its_caller_is_one_fault_and_counted_once() {
    use futures_util::FutureExt;
    let broken = native("broken", |_, _| {
        let fault = retake::waterfall::Fault { kind: retake::waterfall::FaultKind::Trap, message: "it trapped".into() };
        std::future::ready(Err(fault)).boxed()
    });
    let head = official().await;
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Auth))]);
    let mut world = World::new(adapter, test_policy(), vec![head, broken]);
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Failed { .. }));
    let faults = world.of_type("executor/fault");
    assert_eq!(faults.len(), 1);
    let Body::ExecutorFault(fault) = &faults[0].body else { panic!() };
    assert_eq!(fault.id, "broken");
}
