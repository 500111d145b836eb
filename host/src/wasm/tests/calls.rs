//! Calls beside, inside and after each other.

use super::*;
use crate::waterfall::executor::{FaultKind, Record};
use std::{
    future::Future,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

fn sleeping(ms: u32) -> Guest {
    Guest::deciding(format!("(call $sleep (f64.const {ms}) (i32.const {SCRATCH})) i32.const {RETRY}"))
}

/// Gives `next`'s decision back: an `ok` at SCRATCH is laid out as the export's own result.
fn delegating() -> Guest {
    Guest::deciding(format!(
        "(call $next (i32.const {SCRATCH})) (i32.store (i32.const {}) (i32.const 0)) i32.const {SCRATCH}",
        SCRATCH + 8
    ))
}

fn spinning() -> Guest {
    Guest::deciding("(loop (br 0)) unreachable")
}

async fn within<T>(limit: Duration, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(limit, future).await.expect("it ends in time")
}

#[tokio::test]
async fn what_a_guest_asks_for_reaches_the_call_as_it_was() {
    let body = format!(
        "(call $append (i32.const 0) (i32.const {TEXT}) (i32.const 2) (i64.const {}) (i32.const 3) (i64.const 7)
            (i32.const 1) (i64.const 0) (f64.const 1.5) (i32.const {SCRATCH}))
         (call $append (i32.const 1) (i32.const {TEXT}) (i32.const 2) (i64.const 7) (i32.const 0) (i64.const 0)
            (i32.const 0) (i64.const 0) (f64.const 0) (i32.const {SCRATCH}))
         i32.const {RETRY}",
        TEXT + 2
    );
    let executor = executor(Guest::deciding(body).text("idkey")).await;
    let call = Arc::new(Recorder::default());
    assert_eq!(ask(&executor, &call).await, Ok(Decision::Retry));
    let limit = crate::waterfall::executor::RetryLimit::Always;
    assert_eq!(
        *call.records.lock(),
        [
            Record::Retry { retry_id: "id".into(), policy_key: "key".into(), retry: 7, limit, delay_ms: 1.5 },
            Record::RetryStarted { retry_id: "id".into(), retry: 7 },
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_long_sleep_takes_its_time_on_the_clock_of_the_call() {
    let executor = executor(sleeping(3_600_000)).await;
    let start = tokio::time::Instant::now();
    assert_eq!(ask(&executor, &Arc::default()).await, Ok(Decision::Retry));
    assert_eq!(start.elapsed(), Duration::from_secs(3600));
}

#[tokio::test]
async fn waiting_in_the_host_is_not_charged_as_cpu() {
    // Real time must pass here: the epoch is of the machine.
    let executor = limited(sleeping(200), json!({"cpuBudgetMs": 10})).await;
    assert_eq!(ask(&executor, &Arc::default()).await, Ok(Decision::Retry));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_never_ends_early_however_many_share_the_machine() {
    let executor = Arc::new(limited(spinning(), json!({"cpuBudgetMs": 50})).await);
    let runs = (0..20).map(|_| {
        let executor = executor.clone();
        tokio::spawn(async move {
            let start = Instant::now();
            let fault = ask(&executor, &Arc::default()).await.unwrap_err();
            (fault.kind, start.elapsed())
        })
    });
    for run in runs.collect::<Vec<_>>() {
        let (kind, took) = run.await.unwrap();
        assert_eq!(kind, FaultKind::CpuLimit);
        assert!(took >= Duration::from_millis(50), "{took:?}");
    }
}

#[tokio::test]
async fn a_call_that_traps_leaves_its_neighbours_alone() {
    let (bad, good) = (executor(Guest::deciding("unreachable")).await, executor(sleeping(30)).await);
    let (calm, call) = (Arc::default(), Arc::default());
    let (calm, traps) = tokio::join!(ask(&good, &calm), async {
        let mut kinds = Vec::new();
        for _ in 0..20 {
            kinds.push(ask(&bad, &call).await.unwrap_err().kind);
        }
        kinds
    });
    assert_eq!(calm, Ok(Decision::Retry));
    assert_eq!(traps, [FaultKind::Trap; 20]);
}

#[tokio::test]
async fn a_call_that_was_dropped_leaves_nothing_behind() {
    let executor = executor(sleeping(60_000)).await;
    let call = Arc::new(Recorder::default());
    for round in 1..=100 {
        {
            let mut pending = std::pin::pin!(ask(&executor, &call));
            while call.sleeps.lock().len() < round {
                assert!(futures_util::poll!(pending.as_mut()).is_pending());
            }
        }
    }
    call.cancel.cancel();
    assert_eq!(ask(&executor, &call).await, Ok(Decision::Retry));
    assert_eq!(call.sleeps.lock().len(), 101);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_call_ends_at_once_whether_it_spins_or_sleeps() {
    let spin = limited(spinning(), json!({"cpuBudgetMs": 60_000})).await;
    let sleep = executor(sleeping(60_000)).await;
    for executor in [Arc::new(spin), Arc::new(sleep)] {
        let kill = CancellationToken::new();
        let token = kill.clone();
        let running =
            tokio::spawn(async move { executor.request_error(step(), Arc::<Recorder>::default(), token).await });
        tokio::time::sleep(Duration::from_millis(30)).await;
        assert!(!running.is_finished());
        let start = Instant::now();
        kill.cancel();
        let fault = running.await.unwrap().unwrap_err();
        assert_eq!(fault.kind, FaultKind::Killed);
        assert!(start.elapsed() < Duration::from_millis(100), "{:?}", start.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spinning_guests_on_every_worker_leave_timers_running() {
    let executor = Arc::new(limited(spinning(), json!({"cpuBudgetMs": 60_000})).await);
    let kill = CancellationToken::new();
    let spins: Vec<_> = (0..4)
        .map(|_| {
            let (executor, kill) = (executor.clone(), kill.clone());
            tokio::spawn(async move { executor.request_error(step(), Arc::<Recorder>::default(), kill).await })
        })
        .collect();
    let late = tokio::spawn(async {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let start = Instant::now();
        tokio::time::sleep(Duration::from_millis(20)).await;
        start.elapsed()
    });
    let late = within(Duration::from_secs(5), late).await.unwrap();
    assert!(late < Duration::from_millis(300), "a timer of 20 ms fired after {late:?}");
    kill.cancel();
    for spin in spins {
        let fault = within(Duration::from_secs(5), spin).await.unwrap().unwrap_err();
        assert_eq!(fault.kind, FaultKind::Killed);
    }
}

/// A chain of `left` delegating executors of one component, the last of which decides.
fn chain(executor: Arc<WasmExecutor>, depth: usize, left: usize) -> Arc<Recorder> {
    let next = move || -> futures_util::future::BoxFuture<'static, Result<Decision, String>> {
        let executor = executor.clone();
        Box::pin(async move {
            if left == 0 {
                return Ok(Decision::Retry);
            }
            ask(&executor.clone(), &chain(executor, depth + 1, left - 1)).await.map_err(|fault| fault.message)
        })
    };
    Arc::new(Recorder { depth, next: Box::new(next), ..Recorder::default() })
}

#[tokio::test]
async fn a_component_can_call_itself_through_next() {
    let executor = Arc::new(executor(delegating()).await);
    let call = chain(executor.clone(), 0, 8);
    assert_eq!(within(Duration::from_secs(10), ask(&executor, &call)).await, Ok(Decision::Retry));
    assert_eq!(call.nexts.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn nested_calls_wait_for_no_place_and_outgrow_the_pool() {
    // The pool of this runtime has 65 slots, and one place.
    let runtime = small_runtime(1);
    let executor = Arc::new(prepared(&runtime, delegating(), json!({"nestedDepth": 256})).await);
    let call = chain(executor.clone(), 0, 80);
    assert_eq!(within(Duration::from_secs(20), ask(&executor, &call)).await, Ok(Decision::Retry));
    assert_eq!(runtime.free_places(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_call_after_the_last_place_waits_and_does_not_fail() {
    let runtime = small_runtime(2);
    let executor = Arc::new(prepared(&runtime, sleeping(1000), Value::Null).await);
    let start = tokio::time::Instant::now();
    let runs: Vec<_> = (0..3)
        .map(|_| {
            let executor = executor.clone();
            tokio::spawn(async move { (ask(&executor, &Arc::default()).await, start.elapsed().as_secs()) })
        })
        .collect();
    let mut ends = Vec::new();
    for run in runs {
        let (decision, end) = run.await.unwrap();
        assert_eq!(decision, Ok(Decision::Retry));
        ends.push(end);
    }
    assert_eq!(ends, [1, 1, 2]);
}

#[tokio::test]
async fn a_call_that_waits_for_a_place_ends_when_it_is_interrupted_or_killed() {
    let runtime = small_runtime(1);
    let executor = Arc::new(prepared(&runtime, sleeping(60_000), Value::Null).await);
    let (first, waiting) = (Arc::new(Recorder::default()), Arc::new(Recorder::default()));
    let holder = tokio::spawn({
        let (executor, first) = (executor.clone(), first.clone());
        async move { ask(&executor, &first).await }
    });
    while first.sleeps.lock().is_empty() {
        tokio::task::yield_now().await;
    }
    let kill = CancellationToken::new();
    kill.cancel();
    let killed = executor.request_error(step(), waiting.clone(), kill).await.unwrap_err();
    assert_eq!(killed.kind, FaultKind::Killed);
    waiting.cancel.cancel();
    assert_eq!(ask(&executor, &waiting).await, Ok(Decision::Unhandled));
    assert!(waiting.sleeps.lock().is_empty());
    first.cancel.cancel();
    assert_eq!(holder.await.unwrap(), Ok(Decision::Retry));
    assert_eq!(runtime.free_places(), 1);
}

#[tokio::test]
async fn an_entry_with_a_larger_memory_than_a_slot_runs_on_demand() {
    // 1,600 pages are 100 MiB.
    let body = format!(
        "(if (result i32) (i32.eq (memory.grow (i32.const 1600)) (i32.const -1))
            (then (i32.const {UNHANDLED})) (else (i32.const {RETRY})))"
    );
    let large = limited(Guest::deciding(body.clone()), json!({"memoryMb": 128})).await;
    assert_eq!(ask(&large, &Arc::default()).await, Ok(Decision::Retry));
    let small = executor(Guest::deciding(body)).await;
    assert_eq!(ask(&small, &Arc::default()).await, Ok(Decision::Unhandled));
}
