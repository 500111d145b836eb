//! Journals as people meet them: what a crash, a full disk, a foreign file or another process does to a session, and
//! what the commands say about it.

use super::*;

/// The file of a session that was answered after one retry, cut behind the first line of a type.
fn cut_behind(home: &Home, kind: &str) -> PathBuf {
    home.run(["--session", "s", "name one prime"]).expect(0);
    let path = home.path("sessions/s.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let lines: Vec<_> = text.lines().collect();
    let beginning = format!("{{\"type\":\"{kind}\"");
    let end = lines.iter().rposition(|line| line.starts_with(&beginning)).unwrap();
    fs::write(&path, lines[..=end].join("\n") + "\n").unwrap();
    path
}

#[test]
fn a_turn_that_was_interrupted_in_its_request_says_so_and_is_not_called_completed() {
    let home = Home::chaos("503, ok", QUICK);
    cut_behind(&home, "step/start");
    let shown = home.retake(["journal", "show", "s"]).expect(0).out;
    assert!(shown.contains("its process ended in the request") && !shown.contains("Pending"), "{shown}");
    let finished = home.run(["--resume", "s", "--json"]).expect(1).says(&["interrupted in its request", "ask again"]);
    let result = json_lines(&finished.out).pop().unwrap();
    assert_eq!((&result["status"], &result["output"]), (&"failed".into(), &"".into()), "{result}");
    home.run(["--resume", "s"]).expect(0).says(&["Nothing is pending"]);
}

#[test]
fn a_turn_that_was_about_to_ask_asks_and_one_that_was_answered_gives_its_answer() {
    for (kind, requests, pending) in [
        ("turn/start", 1, "Pending: the request of turn 2 is still to be made. Go on with"),
        ("assistant/message", 0, "Pending: turn 2 is answered"),
        ("step/end", 0, "Pending: turn 2 is answered"),
    ] {
        let home = Home::new();
        let record = home.path("requests.jsonl");
        let arguments = ["chaos", "--quiet", "--script", "503, ok", "--record", record.to_str().unwrap()];
        let mut chaos = Running::start(&mut home.command(arguments));
        home.profile(&format!("baseUrl: {}", chaos.first_line()), QUICK);
        cut_behind(&home, kind);
        let shown = home.retake(["journal", "show", "s"]).expect(0).out;
        assert!(shown.contains(pending), "stopped behind {kind}: {shown}");
        let before = fs::read_to_string(&record).unwrap().lines().count();
        let finished = home.run(["--resume", "s"]).expect(0);
        assert_eq!(finished.out, "Seven.\n", "stopped behind {kind}");
        let asked = fs::read_to_string(&record).unwrap().lines().count() - before;
        assert_eq!(asked, requests, "stopped behind {kind}");
        let events = home.events();
        assert_eq!(of_type(&events, "assistant/message").len(), 1);
        assert_eq!(events.last().unwrap()["data"]["reason"]["kind"], "completed");
    }
}

#[test]
fn a_new_prompt_says_that_it_leaves_an_unfinished_turn_behind() {
    let home = Home::chaos("503, ok", QUICK);
    cut_behind(&home, "llm/retry");
    let shown = home.retake(["journal", "show", "s"]).expect(0).out;
    assert!(shown.contains("Pending: retry 1/5 of turn 1 to mock, scheduled by llm-retry"), "{shown}");
    assert!(shown.contains("retake run --resume s"), "{shown}");
    home.run(["--session", "s", "another"]).expect(0).says(&["was left unfinished"]);
}

#[test]
fn a_database_that_cannot_be_read_keeps_no_session_from_the_other_store_and_none_from_being_shown() {
    let home = Home::chaos("ok", QUICK);
    home.run(["--session", "good", "hi"]).expect(0);
    home.write("sessions/sessions.db", "this is no database at all, but it is long enough to be taken for one");
    home.run(["--session", "new", "hi"]).expect(0).says(&["warning: ", "sessions.db"]);
    for command in ["show", "export"] {
        assert!(home.retake(["journal", command]).expect(0).out.contains("turn"), "{command}");
    }
    let listed = home.retake(["journal", "list"]).expect(1).says(&["error: ", "sessions.db"]);
    assert!(listed.out.contains("good") && listed.out.contains("new"), "{}", listed.out);
    home.run(["--resume", "elsewhere"]).expect(2).says(&["sessions.db"]);
}

#[test]
fn a_file_that_may_not_grow_ends_the_turn_with_a_sentence_and_leaves_a_session_that_goes_on() {
    let home = Home::chaos("ok", QUICK);
    // The memory of a component is a file too, as the limit sees it.
    home.write("profiles/p/retake.patch.yml", "- id: llm-retry\n  disabled: true\n");
    home.run(["--session", "s", "one"]).expect(0);
    let length = fs::metadata(home.path("sessions/s.jsonl")).unwrap().len();
    // Room for one block more, which is not enough for a turn.
    let script = format!("ulimit -f {}; exec \"$0\" \"$@\"", length / 512 + 1);
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(env!("CARGO_BIN_EXE_retake-under-test"));
    command.args(["run", "-p", "p", "--session", "s", "two"]).env("RETAKE_HOME", home.0.path());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(&mut command).finish().expect(1).says(&["s.jsonl could not be written: File too large"]);
    home.retake(["journal", "verify", "s"]).expect(0);
    home.run(["--session", "s", "three"]).expect(0);
    home.retake(["journal", "verify", "s"]).expect(0);
}

#[test]
fn a_session_that_somebody_writes_is_shown_with_its_writer() {
    let home = Home::chaos("503, loop", SLOW);
    let running = home.start_run(["--session", "s", "hi"]);
    running.err.wait_for("Retrying model request (1/5)");
    let process = running.child.id();
    let listed = home.retake(["journal", "list"]).expect(0).out;
    assert!(listed.contains(&format!("(process {process} writes it)")), "{listed}");
    let json = json_lines(&home.retake(["journal", "list", "--json"]).expect(0).out);
    assert_eq!((&json[0]["state"], &json[0]["writtenBy"]), (&"waiting".into(), &process.into()));
    assert_eq!((&json[0]["retry"]["retry"], &json[0]["retry"]["outcome"]), (&1.into(), &"waiting".into()));
    let shown = home.retake(["journal", "show", "s"]).expect(0).out;
    assert!(shown.contains(&format!("Process {process} is at it.")), "{shown}");
    home.run(["--session", "s", "me too"]).expect(2).says(&[&format!("another process ({process})")]);
    assert_eq!(json_lines(&home.retake(["journal", "list", "--json", "--state", "done"]).expect(0).out).len(), 0);
    assert_eq!(json_lines(&home.retake(["journal", "list", "--json", "s"]).expect(0).out).len(), 1);
    home.retake(["journal", "list", "other"]).expect(2).says(&["There is no session \"other\""]);
}

#[test]
fn a_database_is_verified_with_all_its_sessions() {
    let home = Home::chaos("ok", QUICK);
    for session in ["a", "b"] {
        home.run(["--journal", "sqlite", "--session", session, "hi"]).expect(0);
    }
    let database = home.path("sessions/sessions.db");
    let verified = home.retake(["journal", "verify", database.to_str().unwrap()]).expect(0).out;
    for session in ["(session a) is good", "(session b) is good"] {
        assert!(verified.contains(session), "{verified}");
    }
    home.retake(["journal", "verify", "nowhere/sessions.db"]).expect(2).says(&["nowhere/sessions.db"]);
}

#[test]
fn one_turn_can_be_exported_and_stays_readable() {
    let home = Home::chaos("503, ok", QUICK);
    home.run(["--session", "s", "hi"]).expect(0);
    let lines = json_lines(&home.retake(["journal", "export", "s", "--turn", "2"]).expect(0).out);
    assert_eq!((&lines[0]["type"], &lines[1]["type"]), (&"session".into(), &"turn/start".into()));
    assert!(lines[1..].iter().all(|line| line["data"]["turn"].as_u64().is_none_or(|turn| turn == 2)), "{lines:?}");
    assert_eq!(lines.last().unwrap()["type"], "turn/end");
    home.retake(["journal", "export", "s", "--turn", "9"]).expect(2).says(&["has no turn 9"]);
}
