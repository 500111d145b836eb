//! The waterfall and the turn loop, with native executors: who is asked, what `next` gives, and how it all ends.

use futures_util::FutureExt;
use parking_lot::Mutex;
use retake::{
    agent::{Session, Target, TurnOutcome},
    journal::{
        Body, Event, Journal, Log, MemoryLog, SessionState, StoreError, event::TurnEndReason, verify::verify_bytes,
    },
    llm::FailureCode,
    waterfall::{
        Activation, Call, Decision, Fault, FaultKind, Interruption, Record,
        executor::{AppendError, RetryLimit},
    },
};
use retake_tests::*;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

fn schedule(delay_ms: f64) -> Record {
    Record::Retry {
        retry_id: "id-1".into(),
        policy_key: "key".into(),
        retry: 1,
        limit: RetryLimit::Normal(3),
        delay_ms,
    }
}

fn started() -> Record {
    Record::RetryStarted { retry_id: "id-1".into(), retry: 1 }
}

/// Schedules, waits and starts, as an official executor does; carries a pending wait on.
async fn wait_and_retry(pending: Option<f64>, call: &dyn Call, delay_ms: f64) -> Result<Decision, Fault> {
    if pending.is_none() && call.append(schedule(delay_ms)).await.is_err() {
        return Ok(Decision::Unhandled);
    }
    if call.sleep(pending.unwrap_or(delay_ms)).await.is_err() {
        return Ok(Decision::Unhandled);
    }
    match call.append(started()).await {
        Ok(_) => Ok(Decision::Retry),
        Err(_) => Ok(Decision::Unhandled),
    }
}

fn waiter(id: &str, delay_ms: f64) -> Arc<Activation> {
    native(id, move |step, call| {
        let pending = step.pending.as_ref().map(|pending| pending.remaining_ms);
        async move { wait_and_retry(pending, &*call, delay_ms).await }.boxed()
    })
}

fn answering(id: &str, decision: Decision) -> Arc<Activation> {
    native(id, move |_, _| std::future::ready(Ok(decision)).boxed())
}

fn faulting(id: &str) -> Arc<Activation> {
    native(id, |_, _| std::future::ready(Err(Fault { kind: FaultKind::Trap, message: "it trapped".into() })).boxed())
}

/// Counts how often it is asked, and passes on.
fn counting(id: &str, count: Arc<AtomicUsize>) -> Arc<Activation> {
    native(id, move |_, call| {
        count.fetch_add(1, Ordering::Relaxed);
        async move { call.next().await.map_err(|message| Fault { kind: FaultKind::Error, message }) }.boxed()
    })
}

fn failing_once() -> Arc<ScriptedAdapter> {
    ScriptedAdapter::new([failing(with_status(FailureCode::Server, 503))])
}

fn types(world: &World) -> Vec<String> {
    world.events().iter().map(|event| event.body.type_name().to_owned()).collect()
}

#[tokio::test(start_paused = true)]
async fn a_failed_step_is_closed_before_anyone_is_asked_and_a_retry_opens_a_fresh_turn() {
    let mut world = World::new(failing_once(), test_policy(), vec![waiter("w", 500.0)]);
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Answered { .. }));
    let types: Vec<_> = types(&world).into_iter().filter(|kind| kind != "assistant/chunk").collect();
    assert_eq!(
        types,
        [
            "turn/start",
            "user/message",
            "step/start",
            "request/header",
            "step/end",
            "chain",
            "executor/note",
            "llm/retry",
            "llm/retry-started",
            "turn/end",
            "turn/start",
            "step/start",
            "assistant/message",
            "step/end",
            "turn/end",
        ]
    );
    let turns: Vec<_> = world
        .events()
        .into_iter()
        .filter_map(|event| match event.body {
            Body::TurnStart(start) => Some((start.turn, start.retry_of)),
            _ => None,
        })
        .collect();
    assert_eq!(turns, [(1, None), (2, Some(1))]);
}

#[tokio::test(start_paused = true)]
async fn an_unhandled_failure_ends_the_turn_with_the_original_failure() {
    let mut world = World::new(failing_once(), test_policy(), vec![answering("no", Decision::Unhandled)]);
    let outcome = world.prompt("hi").await;
    let TurnOutcome::Failed { failure, tried } = outcome else { panic!("{outcome:?}") };
    assert_eq!(failure, with_status(FailureCode::Server, 503));
    assert!(tried.to_string().starts_with("mock failed 1 request in 0.0 s (503)."), "{tried}");
    let Some(Body::TurnEnd(end)) = world.events().last().map(|event| event.body.clone()) else { panic!() };
    assert_eq!(end.reason, TurnEndReason::Error { error: Box::new(failure) });
}

#[tokio::test(start_paused = true)]
async fn a_fault_at_the_head_goes_on_with_the_rest_of_the_chain() {
    let mut world = World::new(failing_once(), test_policy(), vec![faulting("bad"), waiter("w", 5.0)]);
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Answered { .. }));
    let faults = world.of_type("executor/fault");
    assert_eq!(faults.len(), 1);
    let Body::ExecutorFault(fault) = &faults[0].body else { panic!() };
    assert_eq!((fault.id.as_str(), fault.kind, fault.message.as_str()), ("bad", FaultKind::Trap, "it trapped"));
}

#[tokio::test(start_paused = true)]
async fn a_caller_in_next_receives_a_fault_behind_it_as_an_error() {
    let seen = Arc::new(parking_lot::Mutex::new(None));
    let saw = seen.clone();
    let head = native("head", move |_, call| {
        let saw = saw.clone();
        async move {
            *saw.lock() = Some(call.next().await);
            Ok(Decision::Unhandled)
        }
        .boxed()
    });
    let mut world = World::new(failing_once(), test_policy(), vec![head, faulting("bad")]);
    world.prompt("hi").await;
    assert_eq!(*seen.lock(), Some(Err("it trapped".into())));
}

#[tokio::test(start_paused = true)]
async fn an_outcome_that_next_gave_is_kept_when_its_caller_faults_and_is_never_asked_for_twice() {
    let count = Arc::new(AtomicUsize::new(0));
    let head = native("head", |_, call| {
        async move {
            let first = call.next().await;
            assert_eq!(call.next().await, first, "a second next gives the first answer");
            Err(Fault { kind: FaultKind::Trap, message: "after next".into() })
        }
        .boxed()
    });
    let chain = vec![head, counting("count", count.clone()), answering("yes", Decision::Retry)];
    let mut world = World::new(failing_once(), test_policy(), chain);
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Answered { .. }));
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_native_executor_is_a_fault_and_not_a_crash() {
    let head = native("head", |_, _| async { panic!("boom") }.boxed());
    let mut world = World::new(failing_once(), test_policy(), vec![head, waiter("w", 5.0)]);
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Answered { .. }));
    let Body::ExecutorFault(fault) = &world.of_type("executor/fault")[0].body else { panic!() };
    assert!(fault.message.contains("boom"), "{}", fault.message);
}

#[tokio::test(start_paused = true)]
async fn a_fault_after_scheduling_hands_the_wait_over_and_loses_no_turn() {
    let crasher = native("crasher", |step, call| {
        async move {
            if step.pending.is_none() {
                call.append(schedule(1_000.0)).await.unwrap();
                call.sleep(400.0).await.unwrap();
            }
            Err(Fault { kind: FaultKind::Trap, message: "in the middle".into() })
        }
        .boxed()
    });
    let mut world = World::new(failing_once(), test_policy(), vec![crasher, waiter("w", 9.0)]);
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Answered { .. }));
    let handovers = world.of_type("llm/retry-handover");
    assert_eq!(handovers.len(), 1, "asked once more with the pending wait, then by the rest of the chain");
    let Body::RetryHandover(handover) = &handovers[0].body else { panic!() };
    assert_eq!((handover.remaining_ms, handover.from.id.as_str()), (600.0, "crasher"));
    assert_eq!(world.retries().len(), 1, "the same record is carried on");
}

#[tokio::test(start_paused = true)]
async fn five_faults_in_a_row_quarantine_an_executor_and_the_rest_serves() {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let bad = native("bad", move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Err(Fault { kind: FaultKind::Error, message: "no".into() })).boxed()
    });
    let adapter = ScriptedAdapter::new((0..8).map(|_| failing(failure(FailureCode::Server))));
    let mut world = World::new(adapter, test_policy(), vec![bad.clone(), answering("yes", Decision::Retry)]);
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Answered { .. }));
    assert_eq!(count.load(Ordering::Relaxed), 5);
    assert!(bad.is_quarantined());
    let Body::ExecutorFault(last) = &world.of_type("executor/fault")[4].body else { panic!() };
    assert!(last.message.contains("quarantined"), "{}", last.message);
}

#[tokio::test(start_paused = true)]
async fn a_swap_during_a_wait_hands_it_over_with_what_remains() {
    let mut world = World::new(failing_once(), test_policy(), vec![waiter("old", 1_000.0)]);
    let waterfall = world.agent.waterfall.clone();
    let swap = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        waterfall.publish(vec![waiter("new", 1_000.0)]).drain().await
    });
    let start = tokio::time::Instant::now();
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Answered { .. }));
    let waited = start.elapsed();
    assert!(waited >= Duration::from_millis(1_000) && waited < Duration::from_millis(1_010), "{waited:?}");
    assert_eq!(swap.await.unwrap().killed_calls, 0);
    let Body::RetryHandover(handover) = &world.of_type("llm/retry-handover")[0].body else { panic!() };
    assert_eq!((handover.remaining_ms, handover.generation, handover.from.id.as_str()), (700.0, 2, "old"));
    assert_eq!(world.retries().len(), 1);
    assert_eq!(world.of_type("chain").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_swap_to_a_chain_that_does_not_answer_ends_the_turn_with_the_original_failure() {
    let mut world = World::new(failing_once(), test_policy(), vec![waiter("old", 1_000.0)]);
    let waterfall = world.agent.waterfall.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        waterfall.publish(Vec::new()).drain().await
    });
    let outcome = world.prompt("hi").await;
    assert!(
        matches!(outcome, TurnOutcome::Failed { ref failure, .. } if failure.code == FailureCode::Server),
        "{outcome:?}"
    );
    assert!(world.of_type("llm/retry-started").is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_stands_in_both_chains_is_not_disturbed_by_a_swap() {
    let kept = waiter("kept", 1_000.0);
    let mut world =
        World::new(failing_once(), test_policy(), vec![kept.clone(), answering("old", Decision::Unhandled)]);
    let waterfall = world.agent.waterfall.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        waterfall.publish(vec![kept]).drain().await
    });
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Answered { .. }));
    assert!(world.of_type("llm/retry-handover").is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_callback_entered_after_its_retirement_fails_closed_without_touching_what_is_behind_it() {
    let behind = Arc::new(AtomicUsize::new(0));
    let late = counting("late", Arc::new(AtomicUsize::new(0)));
    let (entered, mut enter) = tokio::sync::mpsc::unbounded_channel();
    let head = native("head", move |_, call| {
        let entered = entered.clone();
        async move {
            let _ = entered.send(());
            tokio::time::sleep(Duration::from_millis(100)).await;
            call.next().await.map_err(|message| Fault { kind: FaultKind::Error, message })
        }
        .boxed()
    });
    let chain = vec![head.clone(), late, counting("behind", behind.clone())];
    let mut world = World::new(failing_once(), test_policy(), chain);
    let waterfall = world.agent.waterfall.clone();
    tokio::spawn(async move {
        enter.recv().await;
        // `late` and what is behind it go while the head still holds the old chain.
        waterfall.publish(vec![head]).drain().await
    });
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Failed { .. }));
    assert_eq!(behind.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn an_executor_that_ignores_its_retirement_is_ended_at_the_deadline_and_the_turn_goes_on() {
    let stubborn = native("stubborn", |_, call| {
        async move {
            loop {
                let _ = call.sleep(60_000.0).await;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        .boxed()
    });
    let mut world = World::new(failing_once(), test_policy(), vec![stubborn]);
    let waterfall = world.agent.waterfall.clone();
    let swap = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        waterfall.publish(vec![waiter("new", 1.0)]).drain().await
    });
    let start = tokio::time::Instant::now();
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Answered { .. }));
    let report = swap.await.unwrap();
    assert_eq!((report.retired, report.killed_calls), (1, 1));
    assert!(start.elapsed() < Duration::from_millis(300 + 5_000 + 100), "{:?}", start.elapsed());
    let Body::ExecutorFault(fault) = &world.of_type("executor/fault")[0].body else { panic!() };
    assert_eq!(fault.kind, FaultKind::Killed);
}

#[tokio::test(start_paused = true)]
async fn a_retirement_waits_for_delegated_recovery_and_its_answer_is_not_applied() {
    let asked = Arc::new(AtomicUsize::new(0));
    let again = asked.clone();
    let slow = native("slow", move |_, _| {
        let times = again.fetch_add(1, Ordering::Relaxed);
        async move {
            tokio::time::sleep(Duration::from_millis(1_000)).await;
            Ok(if times == 0 { Decision::Retry } else { Decision::Unhandled })
        }
        .boxed()
    });
    let chain = vec![counting("head", Arc::new(AtomicUsize::new(0))), slow.clone()];
    let mut world = World::new(failing_once(), test_policy(), chain);
    let waterfall = world.agent.waterfall.clone();
    let swap = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        let begun = tokio::time::Instant::now();
        waterfall.publish(vec![slow]).drain().await;
        begun.elapsed()
    });
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Failed { .. }));
    assert!(swap.await.unwrap() >= Duration::from_millis(690), "the drain waits for what was delegated");
    assert_eq!(asked.load(Ordering::Relaxed), 2, "the current chain is asked anew");
}

#[tokio::test(start_paused = true)]
async fn a_cancel_during_a_wait_ends_it_at_once_and_starts_nothing() {
    let mut world = World::new(failing_once(), test_policy(), vec![waiter("w", 60_000.0)]);
    let cancel = world.cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cancel.cancel();
    });
    let start = tokio::time::Instant::now();
    assert_eq!(world.prompt("hi").await, TurnOutcome::Cancelled);
    assert!(start.elapsed() < Duration::from_millis(350));
    assert!(world.of_type("llm/retry-started").is_empty());
    let Some(Body::TurnEnd(end)) = world.events().last().map(|event| event.body.clone()) else { panic!() };
    assert_eq!(end.reason, TurnEndReason::Aborted);
}

#[tokio::test(start_paused = true)]
async fn a_retry_without_its_start_is_started_by_the_host_and_spends_its_budget() {
    let hasty = native("hasty", |step, call| {
        async move {
            let last = call.last_retry(&step.provider, "key");
            let retry = last.as_ref().map_or(1, |last| last.retry + 1);
            let retry_id = last.map_or("id-1".into(), |last| last.retry_id);
            let limit = RetryLimit::Normal(2);
            match call
                .append(Record::Retry { retry_id, policy_key: "key".into(), retry, limit, delay_ms: 9_000.0 })
                .await
            {
                Ok(_) => Ok(Decision::Retry),
                Err(_) => Ok(Decision::Unhandled),
            }
        }
        .boxed()
    });
    let adapter = ScriptedAdapter::new((0..9).map(|_| failing(failure(FailureCode::Server))));
    let mut world = World::new(adapter.clone(), test_policy(), vec![hasty]);
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Failed { .. }));
    assert_eq!(world.retries().iter().map(|record| record.retry).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(world.of_type("llm/retry-started").len(), 2);
    assert_eq!(adapter.count(), 3, "the third record is beyond the limit");
}

#[tokio::test(start_paused = true)]
async fn a_retry_at_once_in_place_of_a_wait_that_was_handed_over_is_the_start_of_that_wait() {
    let mut world = World::new(failing_once(), test_policy(), vec![waiter("old", 60_000.0)]);
    let waterfall = world.agent.waterfall.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        waterfall.publish(vec![answering("yes", Decision::Retry)]).drain().await
    });
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Answered { .. }));
    assert_eq!(world.of_type("llm/retry-handover").len(), 1);
    assert_eq!(world.of_type("llm/retry-started").len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_beats_a_decision_to_retry() {
    let cancel_then_retry = |cancel: tokio_util::sync::CancellationToken| {
        native("c", move |_, _| {
            cancel.cancel();
            std::future::ready(Ok(Decision::Retry)).boxed()
        })
    };
    let adapter = failing_once();
    let mut world = World::new(adapter.clone(), test_policy(), Vec::new());
    let _ = world.agent.waterfall.publish(vec![cancel_then_retry(world.cancel.clone())]);
    assert_eq!(world.prompt("hi").await, TurnOutcome::Cancelled);
    assert_eq!(adapter.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_cancel_drains_delegated_recovery_but_not_for_ever() {
    let deaf = native("deaf", |_, _| std::future::pending().boxed());
    let mut world = World::new(failing_once(), test_policy(), vec![deaf.clone()]);
    let cancel = world.cancel.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cancel.cancel();
    });
    let start = tokio::time::Instant::now();
    assert_eq!(world.prompt("hi").await, TurnOutcome::Cancelled);
    assert!(start.elapsed() >= Duration::from_millis(5_300) && start.elapsed() < Duration::from_millis(5_400));
    assert_eq!(deaf.active_calls(), 0);
}

#[tokio::test(start_paused = true)]
async fn an_append_after_a_cancel_is_refused_and_writes_nothing() {
    let mut world = World::new(failing_once(), test_policy(), Vec::new());
    let cancel = world.cancel.clone();
    let refused = Arc::new(parking_lot::Mutex::new(None));
    let saw = refused.clone();
    let executor = native("c", move |_, call| {
        cancel.cancel();
        let saw = saw.clone();
        async move {
            *saw.lock() = call.append(schedule(1.0)).await.err();
            Ok(Decision::Retry)
        }
        .boxed()
    });
    let _ = world.agent.waterfall.publish(vec![executor]);
    assert_eq!(world.prompt("hi").await, TurnOutcome::Cancelled);
    assert_eq!(*refused.lock(), Some(AppendError::Interrupted(Interruption::Cancelled)));
    assert!(world.retries().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_record_that_breaks_a_rule_is_refused_and_the_log_stays_clean() {
    let refused = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let saw = refused.clone();
    let executor = native("c", move |_, call| {
        let saw = saw.clone();
        async move {
            let bad = [
                Record::Retry {
                    retry_id: "a".into(),
                    policy_key: "k".into(),
                    retry: 2,
                    limit: RetryLimit::Always,
                    delay_ms: 1.0,
                },
                Record::Retry {
                    retry_id: "a".into(),
                    policy_key: "k".into(),
                    retry: 1,
                    limit: RetryLimit::Normal(0),
                    delay_ms: 1.0,
                },
                Record::RetryStarted { retry_id: "a".into(), retry: 1 },
            ];
            for record in bad {
                let error = call.append(record).await.unwrap_err();
                saw.lock().push(error.to_string());
            }
            call.append(schedule(1.0)).await.unwrap();
            let second = Record::Retry {
                retry_id: "b".into(),
                policy_key: "k2".into(),
                retry: 1,
                limit: RetryLimit::Always,
                delay_ms: 1.0,
            };
            let error = call.append(second).await.unwrap_err();
            saw.lock().push(error.to_string());
            Ok(Decision::Unhandled)
        }
        .boxed()
    });
    let mut world = World::new(failing_once(), test_policy(), vec![executor]);
    world.prompt("hi").await;
    let refused = refused.lock().clone();
    for (text, rule) in refused.iter().zip(["retry-number", "max-retries", "live-record", "one-live-record"]) {
        assert!(text.contains(rule), "{text} names {rule}");
    }
    assert_eq!(refused.len(), 4);
    assert_eq!(world.retries().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_note_that_a_reader_could_not_take_is_refused() {
    let refused = Arc::new(Mutex::new(Vec::new()));
    let saw = refused.clone();
    let executor = native("deep", move |_, call| {
        let saw = saw.clone();
        async move {
            for depth in [64, 65, 127] {
                let json = "[".repeat(depth) + &"]".repeat(depth);
                let refused = call.append(Record::Note { kind: "n".into(), json }).await.err();
                saw.lock().push(refused.map(|error| error.to_string().contains("deeper than 64")));
            }
            Ok(Decision::Unhandled)
        }
        .boxed()
    });
    let mut world = World::new(failing_once(), test_policy(), vec![executor]);
    world.prompt("hi").await;
    assert_eq!(*refused.lock(), [None, Some(true), Some(true)]);
}

/// A log on a disk that has room for so many more records.
#[derive(Clone)]
struct SmallDisk {
    room: Arc<Mutex<usize>>,
    log: MemoryLog,
}

impl Log for SmallDisk {
    fn write(&mut self, event: &Event) -> Result<(), StoreError> {
        let mut room = self.room.lock();
        let Some(left) = room.checked_sub(1) else {
            let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(StoreError::Io { path: "s.jsonl".into(), action: "written", source });
        };
        *room = left;
        self.log.write(event)
    }

    fn durable(&mut self) -> futures_util::future::BoxFuture<'static, Result<(), StoreError>> {
        std::future::ready(Ok(())).boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_journal_that_fails_at_any_record_ends_the_turn_with_its_error_and_goes_on_when_there_is_room_again() {
    // The whole turn, with its retry, writes 21 records, 13 of them before the second request.
    for room in 0..21 {
        let adapter = failing_once();
        let mut world = World::new(adapter.clone(), test_policy(), vec![waiter("w", 5.0)]);
        let clock = world.agent.env.clock.clone();
        let disk = SmallDisk { room: Arc::new(Mutex::new(room)), log: MemoryLog::default() };
        let journal = Journal::new("s", clock, Box::new(disk.clone()), SessionState::default());
        let target = Target { provider: "mock".into(), model: "m".into() };
        world.session = Session::new(Arc::new(journal), target, None);
        let error = world.try_prompt("hi").await.expect_err("the record has no room").to_string();
        assert!(error.contains("s.jsonl could not be written"), "{room}: {error}");
        // The retry's own request is only made when everything before it has been recorded.
        let repeated = adapter.count() == 2;
        assert_eq!(repeated, room >= 13, "{room} records");
        let error = world.try_prompt("still there?").await.expect_err("there is still no room").to_string();
        assert!(error.contains("s.jsonl could not be written"), "{room}: {error}");
        *disk.room.lock() = usize::MAX;
        let outcome = world.try_prompt("and now?").await.unwrap();
        assert!(matches!(outcome, TurnOutcome::Answered { .. }), "{room}: {outcome:?}");
        let report = verify_bytes("s", &record("s", &disk.log.events()));
        assert!(report.is_whole(), "{room}: {report}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_chain_at_all_means_unhandled() {
    let mut world = World::new(failing_once(), test_policy(), Vec::new());
    assert!(matches!(world.prompt("hi").await, TurnOutcome::Failed { .. }));
}
