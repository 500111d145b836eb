//! The official executor, as a component, in the whole loop: what it retries, when, and what it records.

use futures_util::FutureExt;
use retake::{
    agent::{Attempt, Router, Target, TurnOutcome},
    env::{Entropy, Env},
    journal::{Body, Event, Observer, event::RetryMode, event::TurnEndReason},
    llm::{Evidence, Failure, FailureCode, RetryPolicy, route::Registry},
    waterfall::{Decision, Fault, FaultKind},
};
use retake_tests::*;
use serde_json::json;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

/// A world with the official executor, and what stands behind it in the chain.
async fn world(adapter: &Arc<ScriptedAdapter>, policy: RetryPolicy) -> World {
    World::new(adapter.clone(), policy, vec![official().await])
}

/// The same, with chosen samples of randomness.
async fn world_with_samples(adapter: &Arc<ScriptedAdapter>, policy: RetryPolicy, samples: &[f64]) -> World {
    let env = Env::fixed(START_MS, 7);
    let entropy: Arc<dyn Entropy> = Arc::new(Samples(parking_lot::Mutex::new(samples.iter().copied().collect())));
    World::with_env(adapter.clone(), policy, vec![official().await], Env { entropy, ..env })
}

fn always(backoff: serde_json::Value) -> RetryPolicy {
    policy(json!({ "mode": "always", "backoff": backoff }))
}

fn final_failure(outcome: TurnOutcome) -> retake::llm::Failure {
    match outcome {
        TurnOutcome::Failed { failure, .. } => failure,
        other => panic!("the turn should have failed, but: {other:?}"),
    }
}

fn assert_answered(outcome: TurnOutcome) {
    assert!(matches!(outcome, TurnOutcome::Answered { .. }), "{outcome:?}");
}

#[tokio::test(start_paused = true)]
async fn one_rate_limit_is_retried_once_after_the_initial_delay_with_the_full_record() {
    let adapter = ScriptedAdapter::new([failing(with_status(FailureCode::RateLimit, 429)), answer("ok")]);
    let policy = policy(json!({
        "mode": "normal", "maxRetries": 2, "retryableCodes": ["SERVER", "RATE_LIMIT"], "backoff": { "jitterRatio": 0 }
    }));
    let mut world = world(&adapter, policy).await;
    let mut turn = Box::pin(world.prompt("hi"));
    let start = Instant::now();
    assert!(tokio::time::timeout_at(start + Duration::from_millis(499), &mut turn).await.is_err());
    assert_eq!(adapter.count(), 1, "no second request at 499 ms");
    assert_answered(turn.as_mut().await);
    drop(turn);
    assert!(start.elapsed() < Duration::from_millis(510), "{:?}", start.elapsed());
    assert_eq!(adapter.count(), 2);
    let retries = world.retries();
    assert_eq!(retries.len(), 1);
    let retry = &retries[0];
    assert_eq!((retry.turn, retry.step, retry.provider.as_str(), retry.mode), (1, 1, "mock", RetryMode::Normal));
    assert_eq!(retry.policy_key, r#"["normal",2,["RATE_LIMIT","SERVER"],500,10000,0]"#);
    assert_eq!((retry.retry, retry.max_retries, retry.delay_ms), (1, Some(2), 500.0));
    assert_eq!(retry.failure, with_status(FailureCode::RateLimit, 429));
    let surface = world.session.journal.with_state(|state| state.surface.clone());
    assert_eq!(surface.len(), 2, "the prompt and the answer, and nothing of the failure");
}

#[tokio::test(start_paused = true)]
async fn an_empty_response_is_retried_under_the_default_codes_and_leaves_one_answer() {
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::EmptyResponse)), answer("ok")]);
    let mut world = world(&adapter, test_policy()).await;
    assert_answered(world.prompt("hi").await);
    assert_eq!(world.of_type("assistant/message").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn discarded_output_is_journaled_before_the_retry_and_the_answer_cites_only_its_own_chunks() {
    let partial = partial_text(0, "discarded");
    let adapter = ScriptedAdapter::new([failing_after(partial, failure(FailureCode::Transport)), answer("kept")]);
    let mut world = world(&adapter, test_policy()).await;
    assert_answered(world.prompt("hi").await);
    let retry = world.of_type("llm/retry")[0].seq;
    let chunks = world.of_type("assistant/chunk");
    let (before, after): (Vec<_>, Vec<_>) = chunks.iter().partition(|chunk| chunk.seq < retry);
    assert_eq!((before.len(), after.len()), (3, 5));
    let message = &world.of_type("assistant/message")[0];
    assert_eq!(message.source_event_seqs, Some(after.iter().map(|chunk| chunk.seq).collect()));
    let last = adapter.requests().pop().unwrap();
    assert!(!format!("{last:?}").contains("discarded"));
}

#[tokio::test(start_paused = true)]
async fn jitter_spreads_the_delays_and_the_third_failure_ends_the_turn() {
    let codes = [FailureCode::Server, FailureCode::RateLimit, FailureCode::Timeout];
    let adapter = ScriptedAdapter::new(codes.map(|code| failing(failure(code))));
    let policy = policy(json!({ "mode": "normal", "maxRetries": 2, "backoff": { "jitterRatio": 0.1 } }));
    let mut world = world_with_samples(&adapter, policy, &[0.0, 1.0]).await;
    assert_eq!(final_failure(world.prompt("hi").await), failure(FailureCode::Timeout));
    assert_eq!(world.delays(), [450.0, 1100.0]);
    assert_eq!(adapter.count(), 3);
    let Some(Body::TurnEnd(end)) = world.events().last().map(|event| event.body.clone()) else { panic!() };
    assert_eq!(end.reason, TurnEndReason::Error { error: Box::new(failure(FailureCode::Timeout)) });
}

#[tokio::test(start_paused = true)]
async fn full_jitter_may_schedule_zero_milliseconds() {
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Server))]);
    let policy = policy(json!({
        "mode": "normal", "maxRetries": 2, "backoff": { "initialDelayMs": 1, "maxDelayMs": 1, "jitterRatio": 1 }
    }));
    let mut world = world_with_samples(&adapter, policy, &[0.0]).await;
    assert_answered(world.prompt("hi").await);
    assert_eq!(world.delays(), [0.0]);
}

#[tokio::test(start_paused = true)]
async fn a_hint_within_the_cap_is_kept_exactly_and_takes_no_sample() {
    let adapter = ScriptedAdapter::new([failing(with_retry_after(FailureCode::RateLimit, 2_000.0))]);
    let policy = policy(json!({ "mode": "normal", "maxRetries": 2, "backoff": { "jitterRatio": 1 } }));
    // No sample is given: taking one would fail.
    let mut world = world_with_samples(&adapter, policy, &[]).await;
    assert_answered(world.prompt("hi").await);
    assert_eq!(world.delays(), [2_000.0]);
}

#[tokio::test(start_paused = true)]
async fn a_hint_over_the_cap_is_delegated_in_normal_mode() {
    let adapter = ScriptedAdapter::new([failing(with_retry_after(FailureCode::RateLimit, 10_001.0))]);
    let mut world = world(&adapter, test_policy()).await;
    assert_eq!(final_failure(world.prompt("hi").await).code, FailureCode::RateLimit);
    assert!(world.retries().is_empty());
    assert_eq!(adapter.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hint_equal_to_the_cap_is_accepted() {
    let adapter = ScriptedAdapter::new([failing(with_retry_after(FailureCode::RateLimit, 10_000.0))]);
    let mut world = world(&adapter, test_policy()).await;
    assert_answered(world.prompt("hi").await);
    assert_eq!(world.delays(), [10_000.0]);
}

#[tokio::test(start_paused = true)]
async fn always_mode_uses_the_local_backoff_for_a_hint_over_the_cap_and_retries_any_code() {
    let adapter = ScriptedAdapter::new([failing(with_retry_after(FailureCode::Auth, 10.0))]);
    let policy = always(json!({ "initialDelayMs": 2, "maxDelayMs": 4, "jitterRatio": 0.5 }));
    let mut world = world_with_samples(&adapter, policy, &[1.0]).await;
    assert_answered(world.prompt("hi").await);
    assert_eq!(world.delays(), [3.0]);
}

#[tokio::test(start_paused = true)]
async fn a_code_that_is_not_listed_is_delegated_without_a_record() {
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Auth))]);
    let mut world = world(&adapter, test_policy()).await;
    assert_eq!(final_failure(world.prompt("hi").await).code, FailureCode::Auth);
    assert!(world.retries().is_empty());
    assert_eq!(adapter.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_the_provider_says_about_a_retry_reaches_each_component_that_comes_with_the_program() {
    use FailureCode::*;
    for id in ["llm-retry", "retry-strategy"] {
        for (policy, code, word, is_retried) in [
            (test_policy(), Server, false, false),
            (test_policy(), InvalidRequest, true, true),
            (test_policy(), Auth, true, false),
            (always(json!({})), Server, false, true),
        ] {
            let evidence = Evidence { should_retry: Some(word), ..Evidence::default() };
            let failed = Failure { evidence: Some(Box::new(evidence)), ..failure(code) };
            let adapter = ScriptedAdapter::new([failing(failed)]);
            let mut world = World::new(adapter.clone(), policy, vec![builtin(id, json!({})).await]);
            let outcome = world.prompt("hi").await;
            let what = format!("{id}, {code}, {word}: {outcome:?}");
            assert_eq!(matches!(outcome, TurnOutcome::Answered { .. }), is_retried, "{what}");
            assert_eq!(
                (adapter.count(), world.retries().len()),
                (1 + usize::from(is_retried), usize::from(is_retried)),
                "{what}"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_retries_allowed_means_that_a_failure_is_delegated_without_a_record() {
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Server))]);
    let mut world = world(&adapter, policy(json!({ "mode": "normal", "maxRetries": 0 }))).await;
    assert_eq!(final_failure(world.prompt("hi").await).code, FailureCode::Server);
    assert!(world.retries().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_route_that_does_not_exist_has_no_policy_and_ends_the_turn() {
    let adapter = ScriptedAdapter::new([]);
    let mut world = world(&adapter, test_policy()).await;
    world.agent.routes.remove("mock");
    assert_eq!(final_failure(world.prompt("hi").await).code, FailureCode::NoRoute);
    assert!(world.retries().is_empty());
    assert_eq!(adapter.count(), 0);
}

/// Sends the attempts to these providers in turn.
struct Alternate(Vec<&'static str>);

impl Router for Alternate {
    fn route(&self, attempt: &Attempt<'_>) -> Target {
        let provider = self.0[(attempt.number as usize - 1) % self.0.len()];
        Target { provider: provider.into(), model: "m".into() }
    }
}

#[tokio::test(start_paused = true)]
async fn the_policy_of_the_provider_that_failed_is_used() {
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Auth))]);
    let mut world = world(&adapter, test_policy()).await;
    let other = ScriptedAdapter::new([]);
    world.agent.routes.register("other", other.clone(), always(json!({ "initialDelayMs": 1 }))).unwrap();
    assert_eq!(final_failure(world.prompt("hi").await).code, FailureCode::Auth);
    assert_eq!(other.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_router_that_chooses_an_always_provider_brings_its_policy_along() {
    let mut world = world(&ScriptedAdapter::new([]), test_policy()).await;
    let other = ScriptedAdapter::new([failing(failure(FailureCode::Auth))]);
    let backoff = json!({ "initialDelayMs": 1, "maxDelayMs": 1, "jitterRatio": 0 });
    world.agent.routes.register("other", other.clone(), always(backoff)).unwrap();
    world.agent.router = Arc::new(Alternate(vec!["other"]));
    assert_answered(world.prompt("hi").await);
    assert_eq!(other.count(), 2);
    assert_eq!(world.retries()[0].mode, RetryMode::Always);
}

#[tokio::test(start_paused = true)]
async fn budgets_are_counted_for_each_provider_and_keep_their_ids() {
    let server = || failing(failure(FailureCode::Server));
    let adapter = ScriptedAdapter::new([server(), server(), server()]);
    let mut world = world(&adapter, test_policy()).await;
    let other = ScriptedAdapter::new([server(), server(), server()]);
    world.agent.routes.register("other", other, test_policy()).unwrap();
    world.agent.router = Arc::new(Alternate(vec!["mock", "other"]));
    final_failure(world.prompt("hi").await);
    let seen: Vec<_> = world.retries().iter().map(|r| (r.provider.clone(), r.retry)).collect();
    let expected = [("mock", 1), ("other", 1), ("mock", 2), ("other", 2)].map(|(p, n)| (p.to_owned(), n));
    assert_eq!(seen, expected);
    let ids: Vec<_> = world.retries().iter().map(|r| r.retry_id.clone()).collect();
    assert_eq!((&ids[0], &ids[1]), (&ids[2], &ids[3]));
    assert_ne!(ids[0], ids[1]);
}

/// Does something to the routes when the first chunk of a stream is journaled.
struct OnFirstChunk<F>(parking_lot::Mutex<Option<F>>);

impl<F: FnOnce() + Send> Observer for OnFirstChunk<F> {
    fn appended(&self, _session: &str, event: &Event) {
        if matches!(event.body, Body::AssistantChunk(_))
            && let Some(act) = self.0.lock().take()
        {
            act();
        }
    }
}

fn on_first_chunk(world: &World, act: impl FnOnce(&Registry) + Send + 'static) {
    let routes = world.agent.routes.clone();
    world.session.journal.observe(Arc::new(OnFirstChunk(parking_lot::Mutex::new(Some(move || act(&routes))))));
}

#[tokio::test(start_paused = true)]
async fn a_route_replaced_in_flight_changes_nothing_for_that_call_and_a_new_policy_starts_a_new_chain() {
    let server = || failing(failure(FailureCode::Server));
    let adapter = ScriptedAdapter::new([server()]);
    let mut world = world(&adapter, test_policy()).await;
    let replacement = ScriptedAdapter::new([server()]);
    let new_policy =
        policy(json!({ "mode": "normal", "maxRetries": 7, "backoff": { "initialDelayMs": 20, "jitterRatio": 0 } }));
    on_first_chunk(&world, move |routes| {
        routes.replace("mock", replacement, new_policy);
    });
    assert_answered(world.prompt("hi").await);
    let retries = world.retries();
    let seen: Vec<_> = retries.iter().map(|r| (r.retry, r.max_retries, r.delay_ms)).collect();
    assert_eq!(seen, [(1, Some(2), 500.0), (1, Some(7), 20.0)]);
    assert_ne!(retries[0].retry_id, retries[1].retry_id);
}

#[tokio::test(start_paused = true)]
async fn a_route_removed_in_flight_keeps_its_policy_for_the_call_that_it_serves() {
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Server))]);
    let mut world = world(&adapter, test_policy()).await;
    on_first_chunk(&world, |routes| {
        routes.remove("mock");
    });
    assert_eq!(final_failure(world.prompt("hi").await).code, FailureCode::NoRoute, "the retry found no route");
    assert_eq!(world.delays(), [500.0]);
}

#[tokio::test(start_paused = true)]
async fn always_mode_grows_to_the_cap_without_a_limit_until_it_is_cancelled() {
    let adapter = ScriptedAdapter::new((0..20).map(|_| failing(failure(FailureCode::Unknown))));
    let policy = always(json!({ "initialDelayMs": 1, "maxDelayMs": 4, "jitterRatio": 0.1 }));
    let mut world = world_with_samples(&adapter, policy, &[1.0; 20]).await;
    let cancel = world.cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(14)).await;
        cancel.cancel();
    });
    assert_eq!(world.prompt("hi").await, TurnOutcome::Cancelled);
    assert_eq!(world.delays()[..4], [1.1, 2.2, 4.0, 4.0]);
    for (index, retry) in world.retries().iter().enumerate() {
        assert_eq!((retry.retry, retry.max_retries), (index as u64 + 1, None));
    }
}

#[tokio::test(start_paused = true)]
async fn always_mode_repeats_a_refusal_that_came_twice_at_the_longest_delay_only() {
    let adapter = ScriptedAdapter::new((0..4).map(|n| {
        let hint = if n == 3 { Some(2.0) } else { None };
        failing(Failure { provider_retry_after_ms: hint, ..with_status(FailureCode::Auth, 401) })
    }));
    let policy = always(json!({ "initialDelayMs": 10, "maxDelayMs": 500, "jitterRatio": 0 }));
    let mut world = world(&adapter, policy).await;
    assert_answered(world.prompt("hi").await);
    assert_eq!(world.delays(), [10.0, 500.0, 500.0, 500.0]);
    let marked: Vec<_> = world.retries().iter().map(|retry| retry.failure.impossible().is_some()).collect();
    assert_eq!(marked, [false, true, true, true]);
}

#[tokio::test(start_paused = true)]
async fn no_failure_text_and_no_partial_output_reach_a_later_request() {
    let adapter = ScriptedAdapter::new([
        failing_after(partial_text(0, "half an answer"), failure(FailureCode::Server)),
        failing(with_status(FailureCode::RateLimit, 429)),
        answer("whole"),
        answer("second"),
    ]);
    let mut world = world(&adapter, test_policy()).await;
    assert_answered(world.prompt("first").await);
    assert_answered(world.prompt("again").await);
    let requests = adapter.requests();
    assert_eq!(requests[0], requests[1]);
    assert_eq!(requests[0], requests[2]);
    let all = format!("{requests:?}");
    for forbidden in ["half an answer", "provider said"] {
        assert!(!all.contains(forbidden), "{forbidden}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_prompt_starts_a_new_budget() {
    let server = || failing(failure(FailureCode::Server));
    let adapter = ScriptedAdapter::new([server(), server(), answer("one"), server(), server(), answer("two")]);
    let mut world = world(&adapter, test_policy()).await;
    assert_answered(world.prompt("a").await);
    assert_answered(world.prompt("b").await);
    let seen: Vec<_> = world.retries().iter().map(|r| (r.turn, r.retry)).collect();
    assert_eq!(seen, [(1, 1), (2, 2), (4, 1), (5, 2)]);
    assert_ne!(world.retries()[0].retry_id, world.retries()[2].retry_id);
}

fn behind(decision: Result<Decision, &'static str>) -> Arc<retake::waterfall::Activation> {
    native("behind", move |_, _| {
        let answer = decision.map_err(|text| Fault { kind: FaultKind::Error, message: text.into() });
        std::future::ready(answer).boxed()
    })
}

#[tokio::test(start_paused = true)]
async fn in_always_mode_a_retry_from_behind_wins_and_nothing_is_recorded() {
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::ContextOverflow))]);
    let chain = vec![official().await, behind(Ok(Decision::Retry))];
    let mut world = World::new(adapter.clone(), always(json!({})), chain);
    let start = Instant::now();
    assert_answered(world.prompt("hi").await);
    assert!(world.retries().is_empty());
    assert_eq!(start.elapsed(), Duration::ZERO, "repeated at once");
    assert_eq!(adapter.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn in_always_mode_a_fault_behind_it_falls_back_to_its_own_retry() {
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::ContextOverflow))]);
    let chain = vec![official().await, behind(Err("compaction broke"))];
    let mut world = World::new(adapter, always(json!({})), chain);
    assert_answered(world.prompt("hi").await);
    assert_eq!(world.retries().len(), 1);
    assert_eq!(world.of_type("executor/fault").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn in_normal_mode_an_eligible_code_is_taken_without_asking_behind() {
    let asked = Arc::new(AtomicUsize::new(0));
    let count = asked.clone();
    let counting = native("count", move |_, _| {
        count.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(Decision::Unhandled)).boxed()
    });
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Server)), failing(failure(FailureCode::Auth))]);
    let mut world = World::new(adapter, test_policy(), vec![official().await, counting]);
    final_failure(world.prompt("hi").await);
    assert_eq!(asked.load(Ordering::Relaxed), 1, "only for the code that is not listed");
}

#[tokio::test(start_paused = true)]
async fn retired_while_it_waits_behind_it_asks_nobody_and_the_current_chain_decides() {
    let slow = native("slow", |_, _| {
        async {
            tokio::time::sleep(Duration::from_millis(1_000)).await;
            Ok(Decision::Retry)
        }
        .boxed()
    });
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Server))]);
    let mut world = World::new(adapter.clone(), always(json!({})), vec![official().await, slow]);
    let waterfall = world.agent.waterfall.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        waterfall.publish(Vec::new()).drain().await
    });
    assert_eq!(final_failure(world.prompt("hi").await).code, FailureCode::Server);
    assert_eq!(adapter.count(), 1, "the late answer of the old chain is not applied");
}

#[tokio::test(start_paused = true)]
async fn a_cancel_while_it_waits_behind_drains_that_and_then_aborts() {
    let slow = native("slow", |_, _| {
        async {
            tokio::time::sleep(Duration::from_millis(1_000)).await;
            Ok(Decision::Retry)
        }
        .boxed()
    });
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Server))]);
    let mut world = World::new(adapter.clone(), always(json!({})), vec![official().await, slow]);
    let cancel = world.cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel.cancel();
    });
    let start = Instant::now();
    assert_eq!(world.prompt("hi").await, TurnOutcome::Cancelled);
    assert!(start.elapsed() >= Duration::from_millis(1_000), "{:?}", start.elapsed());
    assert_eq!(adapter.count(), 1);
    assert!(world.retries().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cancel_inside_the_executor_behind_it_means_no_record() {
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Server))]);
    let mut world = World::new(adapter, always(json!({})), Vec::new());
    let cancel = world.cancel.clone();
    let canceller = native("cancel", move |_, _| {
        cancel.cancel();
        std::future::ready(Ok(Decision::Unhandled)).boxed()
    });
    let _ = world.agent.waterfall.publish(vec![official().await, canceller]);
    assert_eq!(world.prompt("hi").await, TurnOutcome::Cancelled);
    assert!(world.retries().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_earlier_executor_that_cancels_and_then_asks_on_gets_no_record_in_either_mode() {
    for policy in [test_policy(), always(json!({}))] {
        let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Server))]);
        let mut world = World::new(adapter, policy, Vec::new());
        let cancel = world.cancel.clone();
        let canceller = native("cancel", move |_, call| {
            cancel.cancel();
            async move { call.next().await.map_err(|message| Fault { kind: FaultKind::Error, message }) }.boxed()
        });
        let _ = world.agent.waterfall.publish(vec![canceller, official().await]);
        assert_eq!(world.prompt("hi").await, TurnOutcome::Cancelled);
        assert!(world.retries().is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_cancel_during_its_wait_starts_nothing_and_ends_at_once() {
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Server))]);
    let mut world = world(&adapter, test_policy()).await;
    let cancel = world.cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel.cancel();
    });
    let start = Instant::now();
    assert_eq!(world.prompt("hi").await, TurnOutcome::Cancelled);
    assert!(start.elapsed() < Duration::from_millis(150));
    assert_eq!(world.retries().len(), 1);
    assert!(world.of_type("llm/retry-started").is_empty());
    assert_eq!(adapter.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_from_inside_the_append_of_the_record_arms_no_timer() {
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Server))]);
    let mut world = world(&adapter, test_policy()).await;
    world.session.journal.observe(Arc::new(CancelOn { type_name: "llm/retry", cancel: world.cancel.clone() }));
    let start = Instant::now();
    assert_eq!(world.prompt("hi").await, TurnOutcome::Cancelled);
    assert_eq!(start.elapsed(), Duration::ZERO);
    assert!(world.of_type("llm/retry-started").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_cancel_just_after_the_wait_still_discards_the_retry() {
    let adapter = ScriptedAdapter::new([failing(failure(FailureCode::Server))]);
    let mut world = world(&adapter, test_policy()).await;
    world.session.journal.observe(Arc::new(CancelOn { type_name: "llm/retry-started", cancel: world.cancel.clone() }));
    assert_eq!(world.prompt("hi").await, TurnOutcome::Cancelled);
    assert_eq!(adapter.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_in_the_middle_of_a_stream_keeps_what_was_visible() {
    let adapter = ScriptedAdapter::new([Reply::Stall(partial_text(0, "half"))]);
    let mut world = world(&adapter, test_policy()).await;
    let cancel = world.cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(100)).await;
        cancel.cancel();
    });
    assert_eq!(world.prompt("hi").await, TurnOutcome::Cancelled);
    let Body::AssistantMessage(message) = &world.of_type("assistant/message")[0].body else { panic!() };
    assert!(message.interrupted);
    assert_eq!(retake::agent::text_of(&message.message.content), "half");
}

#[tokio::test]
async fn its_config_must_be_empty_and_the_two_mistakes_have_their_own_messages() {
    let activate = |config| async move {
        let bytes = retake::profile::builtin_component("llm-retry").unwrap();
        let activated = retake::profile::activate(&runtime(), "llm-retry", bytes.into(), config, json!(null)).await;
        activated.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let policy = activate(json!({ "retryPolicy": { "mode": "always" } })).await;
    assert!(policy.contains("provider"), "{policy}");
    let unknown = activate(json!({ "maxRetries": 3 })).await;
    assert!(unknown.contains("maxRetries") && unknown != policy, "{unknown}");
}
