//! Every way in which a guest can end badly has a name and a sentence.

use super::*;
use crate::waterfall::executor::{FaultKind, LogLevel};

/// Runs the guest once and expects a fault; the recorder shows what came through before it.
async fn fault_of(guest: Guest, limits: Value) -> (Fault, Arc<Recorder>) {
    let executor = limited(guest, limits).await;
    let call = Arc::new(Recorder::default());
    let fault = ask(&executor, &call).await.expect_err("a fault");
    (fault, call)
}

fn appending_note(kind: (u32, u32), json: (u32, u32)) -> String {
    format!(
        "(call $append (i32.const 2) (i32.const {}) (i32.const {}) (i64.const {}) (i32.const {}) (i64.const 0) \
         (i32.const 0) (i64.const 0) (f64.const 0) (i32.const {SCRATCH}))",
        kind.0, kind.1, json.0, json.1
    )
}

fn appending_retry(key_len: u32, delay: &str) -> String {
    format!(
        "(call $append (i32.const 0) (i32.const {TEXT}) (i32.const 2) (i64.const {TEXT}) (i32.const {key_len}) \
         (i64.const 1) (i32.const 1) (i64.const 0) (f64.const {delay}) (i32.const {SCRATCH})) i32.const {RETRY}"
    )
}

#[tokio::test]
async fn a_spinning_guest_passes_its_cpu_budget() {
    let (fault, _) = fault_of(Guest::deciding("(loop (br 0)) unreachable"), json!({"cpuBudgetMs": 20})).await;
    assert_eq!(fault.kind, FaultKind::CpuLimit);
    assert!(fault.message.ends_with("the limit `cpuBudgetMs` of its entry is 20."), "{fault}");
}

#[tokio::test]
async fn a_loop_over_calls_that_answer_at_once_passes_its_cpu_budget() {
    for body in [
        "(loop (drop (call $unit)) (br 0)) unreachable".to_owned(),
        format!("(loop (call $interrupted (i32.const {SCRATCH})) (br 0)) unreachable"),
        format!("(loop (call $sleep (f64.const 0) (i32.const {SCRATCH})) (br 0)) unreachable"),
        format!("(loop (call $next (i32.const {SCRATCH})) (br 0)) unreachable"),
    ] {
        let (fault, call) = fault_of(Guest::deciding(&body), json!({"cpuBudgetMs": 20})).await;
        assert_eq!(fault.kind, FaultKind::CpuLimit, "{body}: {fault}");
        drop(call);
    }
}

#[tokio::test]
async fn a_guest_that_ignores_its_cancellation_passes_its_cpu_budget() {
    let body = format!("(loop (call $sleep (f64.const 60000) (i32.const {SCRATCH})) (br 0)) unreachable");
    let executor = limited(Guest::deciding(body), json!({"cpuBudgetMs": 20})).await;
    let call = Arc::new(Recorder::default());
    call.cancel.cancel();
    assert_eq!(ask(&executor, &call).await.unwrap_err().kind, FaultKind::CpuLimit);
}

#[tokio::test]
async fn an_endless_recursion_is_a_trap_with_the_functions_name() {
    let guest = Guest {
        extra: "(func $descend (param i32) (result i32) (i32.add (i32.const 1) (call $descend (local.get 0))))".into(),
        ..Guest::deciding("(call $descend (i32.const 1))")
    };
    let (fault, _) = fault_of(guest, Value::Null).await;
    assert_eq!(fault.kind, FaultKind::Trap);
    assert!(fault.message.contains("call stack exhausted"), "{fault}");
    assert!(fault.message.contains("`descend`"), "{fault}");
}

#[tokio::test]
async fn a_panic_is_told_with_its_own_text_and_place() {
    let text = "panicked at src/lib.rs:12:5:\nno such code";
    let body = format!("(call $log (i32.const 3) (i32.const {TEXT}) (i32.const {})) unreachable", text.len());
    let (fault, call) = fault_of(Guest::deciding(body).text(text), Value::Null).await;
    assert_eq!(fault.kind, FaultKind::Trap);
    assert_eq!(fault.message, "The component panicked at src/lib.rs:12:5: no such code (in `request_error`).");
    assert_eq!(*call.lines.lock(), [(LogLevel::Error, text.to_owned())]);
}

#[tokio::test]
async fn a_trap_says_what_and_where() {
    let (fault, _) = fault_of(Guest::deciding("(i32.div_u (i32.const 1) (i32.const 0))"), Value::Null).await;
    assert_eq!(fault.kind, FaultKind::Trap);
    assert_eq!(fault.message, "The component trapped in `request_error`: integer divide by zero.");
}

#[tokio::test]
async fn a_growing_guest_passes_its_memory() {
    let body = "(loop (br_if 0 (i32.ne (memory.grow (i32.const 4)) (i32.const -1)))) unreachable";
    let (fault, _) = fault_of(Guest::deciding(body), json!({"memoryMb": 2})).await;
    assert_eq!(fault.kind, FaultKind::MemoryLimit);
    assert!(fault.message.contains("the limit `memoryMb` of its entry is 2"), "{fault}");
}

#[tokio::test]
async fn a_guest_that_is_refused_memory_may_go_on_with_less() {
    let body = format!("(drop (memory.grow (i32.const 1000))) i32.const {RETRY}");
    let executor = limited(Guest::deciding(body), json!({"memoryMb": 2})).await;
    assert_eq!(ask(&executor, &Arc::default()).await, Ok(Decision::Retry));
}

#[tokio::test]
async fn a_guest_that_starts_with_too_much_memory_is_refused_by_the_canary() {
    let guest = Guest { pages: 80, ..Guest::default() };
    let component = runtime().load(guest.build()).await.unwrap();
    let entry = EntrySpec { limits: json!({"memoryMb": 4}), ..EntrySpec::default() };
    let error = component.prepare(entry).await.unwrap_err();
    assert!(error.to_string().contains("the limit `memoryMb` of its entry is 4"), "{error}");
}

#[tokio::test]
async fn a_loop_of_appends_ends_at_its_limit() {
    let body = format!("(loop {} (br 0)) unreachable", appending_note((TEXT, 1), (TEXT + 1, 2)));
    let (fault, call) = fault_of(Guest::deciding(body).text("k{}"), Value::Null).await;
    assert_eq!(fault.kind, FaultKind::AppendLimit);
    assert!(fault.message.contains("the limit `appends` of its entry is 64"), "{fault}");
    assert_eq!(call.records.lock().len(), 64);
}

#[tokio::test]
async fn a_large_record_never_reaches_the_call() {
    let body = format!("{} unreachable", appending_note((TEXT, 1), (TEXT + 1, 17_000)));
    let (fault, call) = fault_of(Guest::deciding(body).text("k{}"), Value::Null).await;
    assert_eq!(fault.kind, FaultKind::AppendLimit);
    assert!(call.records.lock().is_empty());
}

#[tokio::test]
async fn a_loop_of_log_lines_ends_at_its_limit() {
    for length in [0, 1000] {
        let body =
            format!("(loop (call $log (i32.const 1) (i32.const {TEXT}) (i32.const {length})) (br 0)) unreachable");
        let (fault, call) = fault_of(Guest::deciding(body), json!({"logBytes": 10_000})).await;
        assert_eq!(fault.kind, FaultKind::LogLimit);
        let bytes: usize = call.lines.lock().iter().map(|(_, line)| line.len()).sum();
        assert!(bytes <= 10_000, "{bytes}");
    }
}

#[tokio::test]
async fn a_sleep_of_nonsense_never_reaches_the_call() {
    for ms in ["nan", "-1", "inf", "2147483648"] {
        let body = format!("(call $sleep (f64.const {ms}) (i32.const {SCRATCH})) unreachable");
        let (fault, call) = fault_of(Guest::deciding(body), Value::Null).await;
        assert_eq!(fault.kind, FaultKind::Malformed, "{ms}");
        assert!(fault.message.contains("`timer.sleep`, which takes 0 to 2147483647 ms"), "{fault}");
        assert!(call.sleeps.lock().is_empty());
    }
}

#[tokio::test]
async fn a_malformed_record_never_reaches_the_call() {
    for (body, word) in [
        (appending_retry(0, "5"), "policy-key"),
        (appending_retry(1, "-1"), "delay-ms"),
        (appending_retry(1, "nan"), "delay-ms"),
        (format!("{} unreachable", appending_note((TEXT + 2, 2), (TEXT + 2, 2))), "kind"),
        (format!("{} unreachable", appending_note((TEXT, 2), (TEXT, 2))), "JSON"),
    ] {
        let (fault, call) = fault_of(Guest::deciding(&body).text("id{}"), Value::Null).await;
        assert_eq!(fault.kind, FaultKind::Malformed, "{fault}");
        assert!(fault.message.contains(word), "{fault}");
        assert!(call.records.lock().is_empty());
    }
}

#[tokio::test]
async fn an_answer_outside_the_interface_is_malformed() {
    // A discriminant that the result does not have; an error whose text is no UTF-8; an address outside the memory.
    let wrong_case = format!("(i32.store8 (i32.const {SCRATCH}) (i32.const 9)) i32.const {SCRATCH}");
    let wrong_text = format!(
        "(i32.store8 (i32.const {SCRATCH}) (i32.const 1)) (i32.store offset=4 (i32.const {SCRATCH}) (i32.const {TEXT}))
         (i32.store offset=8 (i32.const {SCRATCH}) (i32.const 1)) (i32.store8 (i32.const {TEXT}) (i32.const 255))
         i32.const {SCRATCH}"
    );
    for body in [wrong_case, wrong_text, "i32.const -4".to_owned()] {
        let (fault, _) = fault_of(Guest::deciding(&body), Value::Null).await;
        assert_eq!(fault.kind, FaultKind::Malformed, "{body}: {fault}");
    }
}

#[tokio::test]
async fn an_err_of_the_guest_is_kept_in_its_words() {
    let (fault, _) = fault_of(Guest::deciding(format!("i32.const {BOOM}")), Value::Null).await;
    assert_eq!(fault.kind, FaultKind::Error);
    assert_eq!(fault.message, "The component returned an error: fixture.");
}

#[tokio::test]
async fn a_panic_of_the_host_fails_one_call_only() {
    let body = format!("{} i32.const {RETRY}", appending_note((TEXT, 1), (TEXT + 1, 2)));
    let executor = executor(Guest::deciding(body).text("k{}")).await;
    let broken = Arc::new(Recorder { broken: true, ..Recorder::default() });
    let fault = ask(&executor, &broken).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Host);
    assert!(fault.message.contains("the journal is broken"), "{fault}");
    assert_eq!(ask(&executor, &Arc::default()).await, Ok(Decision::Retry));
}

#[tokio::test]
async fn executors_nested_too_deep_are_refused() {
    let executor = limited(Guest::default(), json!({"nestedDepth": 2})).await;
    let at = |depth| Arc::new(Recorder { depth, ..Recorder::default() });
    assert_eq!(ask(&executor, &at(2)).await, Ok(Decision::Unhandled));
    let fault = ask(&executor, &at(3)).await.unwrap_err();
    assert_eq!(fault.kind, FaultKind::Host);
    assert!(fault.message.contains("the limit `nestedDepth` of the entry is 2"), "{fault}");
}
