//! A run that is stopped in the middle of a wait, by Ctrl-C or by force, and a session that somebody else writes.

use super::*;

const WAITING: &str = "Retrying model request (1/5)";

#[test]
fn ctrl_c_in_a_wait_exits_with_130_and_the_journal_has_the_turn_as_aborted() {
    let home = Home::chaos("503, loop", SLOW);
    let mut running = home.start_run(["name one prime"]);
    running.until_stderr(WAITING);
    running.interrupt();
    let finished = running.finish().expect(130).says(&["Cancelled"]);
    assert_eq!(finished.out, "");
    let events = home.events();
    assert_eq!(of_type(&events, "llm/retry").len(), 1);
    assert_eq!(of_type(&events, "llm/retry-started").len(), 0);
    let last = events.last().unwrap();
    assert_eq!((&last["type"], &last["data"]["reason"]["kind"]), (&"turn/end".into(), &"aborted".into()));
    home.retake(["journal", "verify"]).expect(0);
}

#[test]
fn ctrl_c_with_json_still_ends_in_a_result() {
    let home = Home::chaos("503, loop", SLOW);
    let running = home.start_run(["--json", "name one prime", "another"]);
    assert!(running.out.wait_for("\"llm/retry\""), "{}", running.err.text());
    running.interrupt();
    let finished = running.finish().expect(130);
    let lines = json_lines(&finished.out);
    let result = lines.last().unwrap();
    assert_eq!((&result["type"], &result["status"]), (&"result".into(), &"cancelled".into()));
    assert_eq!(of_type(&home.events(), "user/message").len(), 1, "the second prompt was not begun");
}

#[test]
fn a_run_killed_in_a_wait_leaves_a_complete_journal_and_the_session_goes_on() {
    let home = Home::chaos("503, loop", SLOW);
    let mut running = home.start_run(["--session", "s", "name one prime"]);
    running.until_stderr(WAITING);
    running.signal(libc::SIGKILL);
    assert_eq!(running.finish().code, None, "a signal ended it");
    let events = home.events();
    let last = events.last().unwrap();
    assert_eq!(last["type"], "llm/retry");
    assert_eq!((&last["data"]["retry"], &last["data"]["delayMs"]), (&1.into(), &600_000.into()));
    let shown = home.retake(["journal", "show", "s"]).expect(0);
    assert!(
        shown.out.contains("Pending: retry 1/5 of turn 1 to mock, scheduled by llm-retry, is due at")
            && shown.out.contains("--resume s"),
        "{}",
        shown.out
    );
    let listed = home.retake(["journal", "list"]).expect(0);
    assert!(listed.out.contains("waiting: retry 1/5 of mock due in"), "{}", listed.out);

    home.profile("chaos: ok", QUICK);
    assert_eq!(home.run(["--session", "s", "name one prime"]).expect(0).out, "Seven.\n");
    let after = home.events();
    assert_eq!(after[..events.len()], events, "what was written stays as it was");
    let ends: Vec<_> = of_type(&after, "turn/end").iter().map(|end| end["data"]["reason"]["kind"].clone()).collect();
    assert_eq!(ends, ["interrupted", "completed"]);
    home.retake(["journal", "verify"]).expect(0);
}

#[test]
fn a_session_has_one_writer() {
    let home = Home::chaos("503, loop", SLOW);
    let mut running = home.start_run(["--session", "s", "name one prime"]);
    running.until_stderr(WAITING);
    home.run(["--session", "s", "hi"]).expect(2).says(&["s.jsonl", "another process"]);
    running.interrupt();
    running.finish().expect(130);
    assert_eq!(of_type(&home.events(), "user/message").len(), 1);
}
