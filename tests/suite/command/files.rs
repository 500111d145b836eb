//! The commands that look at files: `plugin inspect`, `journal show`, `profile show` and `check`, and every `--help`.

use super::*;
use retake::profile::builtin_component;

#[test]
fn the_official_component_needs_nothing_but_the_executor_package() {
    let home = Home::new();
    let file = home.write("official.wasm", builtin_component("llm-retry").unwrap());
    let file = file.to_str().unwrap();
    let finished = home.retake(["plugin", "inspect", "--json", file]).expect(0);
    let inspection: Value = serde_json::from_str(&finished.out).unwrap();
    let imports = inspection["imports"].as_array().unwrap();
    assert!(!imports.is_empty());
    assert!(imports.iter().all(|import| import.as_str().unwrap().starts_with("retake:executor/")), "{imports:?}");
    assert_eq!((&inspection["kind"], &inspection["name"]), (&"component".into(), &"llm-retry".into()));
    assert_eq!(inspection["problems"], serde_json::json!([]));
    assert_eq!(inspection["configSchema"]["type"], "object");

    let finished = home.retake(["plugin", "inspect", file]).expect(0);
    for word in ["llm-retry", "retake:executor/waterfall@0.1.0", "retake:executor/executor@0.1.0", "can run it"] {
        assert!(finished.out.contains(word), "{word:?} is not in {}", finished.out);
    }
}

#[test]
fn a_file_that_is_no_component_is_refused_with_the_reason_and_what_to_do() {
    let home = Home::new();
    let whole = builtin_component("llm-retry").unwrap();
    let cases: [(&str, &[u8], &[&str]); 5] = [
        ("core.wasm", b"\0asm\x01\0\0\0", &["core WebAssembly module", "retake plugin build"]),
        ("text.wasm", b"(component)", &["The file is text", "(component)", "`.wasm`"]),
        ("cut.wasm", &whole[..whole.len() / 2], &["cut off", "again"]),
        ("empty.wasm", b"", &["The file is empty"]),
        ("other.wasm", b"\0asm\x0d\0\x01\0", &["retake:executor/executor", "retry-executor"]),
    ];
    for (name, bytes, words) in cases {
        let file = home.write(name, bytes);
        let finished = home.retake(["plugin", "inspect", file.to_str().unwrap()]).expect(1);
        for word in words.iter().chain(&["cannot run it", "For its author: "]) {
            assert!(finished.out.contains(word), "{name}: {word:?} is not in {}", finished.out);
        }
    }
    home.retake(["plugin", "inspect", "nowhere.wasm"]).expect(2).says(&["nowhere.wasm"]);
}

#[test]
fn a_journal_is_shown_as_a_timeline_or_as_its_own_lines() {
    let home = Home::chaos("503, cut:2, ok", QUICK);
    home.retake(["journal", "show"]).expect(2).says(&["no sessions", "retake demo"]);
    home.run(["--session", "s", "name one prime"]).expect(0);
    let shown = home.retake(["journal", "show"]).expect(0).out;
    let mut rest = shown.as_str();
    for part in [
        "session s",
        "turn 1 starts",
        "user: name one prime",
        "SERVER 503",
        "retry 1/5 in 20 ms, by llm-retry",
        "retry 1 starts",
        "turn 2 starts, repeating turn 1",
        "TRANSPORT",
        "turn 3 starts, repeating turn 2",
        "assistant: Seven.",
        "turn 3 ends: completed",
    ] {
        let Some(at) = rest.find(part) else { panic!("{part:?} is not in its place in {shown}") };
        rest = &rest[at + part.len()..];
    }
    let lines = home.retake(["journal", "show", "s", "--json"]).expect(0).out;
    assert_eq!(json_lines(&lines), home.events());
    let path = home.path("sessions/s.jsonl");
    for left_out in ["step 1 starts", "scheduling", "to be repeated", "text-delta"] {
        assert!(!shown.contains(left_out), "{left_out:?} is in {shown}");
    }
    let turn = home.retake(["journal", "show", path.to_str().unwrap(), "--turn", "2", "--chunks"]).expect(0).out;
    assert!(turn.contains("turn 2 ends") && !turn.contains("turn 1 ends") && turn.contains("text-delta"), "{turn}");
    home.retake(["journal", "show", "s", "--turn", "9"]).expect(2).says(&["has no turn 9"]);
    home.retake(["journal", "show", "other"]).expect(2).says(&["\"other\""]);
}

#[test]
fn a_journal_that_was_tampered_with_does_not_pass_the_check() {
    let home = Home::chaos("503, ok", QUICK);
    home.run(["--session", "s", "name one prime"]).expect(0);
    home.retake(["journal", "verify", "s"]).expect(0);
    let path = home.path("sessions/s.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let tampered = text.replacen("\"retryOf\":1", "\"retryOf\":7", 1);
    assert_ne!(tampered, text);
    fs::write(&path, tampered).unwrap();
    let finished = home.retake(["journal", "verify", "s"]).expect(1);
    assert!(finished.out.contains("s.jsonl") || finished.out.contains("session s"), "{}", finished.out);
}

#[test]
fn a_session_that_cannot_be_read_hides_no_other_from_the_check() {
    let home = Home::chaos("503, ok", QUICK);
    home.run(["--session", "s", "name one prime"]).expect(0);
    home.write("sessions/z.jsonl", fs::read(home.path("sessions/s.jsonl")).unwrap());
    let packed = home.write("packed.jsonl", [0x28, 0xb5, 0x2f, 0xfd, b'\n']);
    let copy = home.write("copy.jsonl", fs::read(home.path("sessions/s.jsonl")).unwrap());
    let (packed, copy) = (packed.to_str().unwrap(), copy.to_str().unwrap());
    fs::create_dir(home.path("sessions/dir.jsonl")).unwrap();

    // A copy may have any name, but what a store keeps has its own.
    home.retake(["journal", "verify", "s", copy]).expect(0);
    let finished = home.retake(["journal", "verify", "s", "z"]).expect(1);
    assert!(finished.out.contains("s.jsonl is good") && finished.out.contains("header-id"), "{}", finished.out);

    let finished = home.retake(["journal", "verify", "nobody", packed, "dir", "no.jsonl", "z", "s"]).expect(2);
    finished.says(&[
        "\"nobody\"",
        "packed.jsonl could not be read: it is compressed with zstd",
        "dir.jsonl",
        "no.jsonl",
    ]);
    let finished = home.retake(["journal", "verify", "--json", "nobody\u{1b}[2J", packed, "z", "s"]).expect(2);
    let lines = json_lines(&finished.out);
    let names: Vec<_> = lines.iter().map(|line| line["name"].as_str().unwrap()).collect();
    assert_eq!((names.len(), names[0]), (4, "nobody\\u{1b}[2J"));
    assert!(lines[0]["error"].is_string() && lines[1]["error"].as_str().unwrap().contains("zstd -d"), "{lines:?}");
    let (renamed, good) = (&lines[2], &lines[3]);
    assert_eq!((&renamed["findings"][0]["rule"], &renamed["findings"][0]["line"]), (&"header-id".into(), &1.into()));
    assert_eq!(
        (&good["findings"], &good["dialect"], &good["turns"]),
        (&Value::Array(vec![]), &"closed-step".into(), &2.into())
    );
    assert_eq!((&good["torn"], good.get("error")), (&Value::Null, None));

    // A whole store that cannot be read hides no other one, either.
    home.write("sessions/sessions.db", "not a database, however long the text is that stands in its place");
    let finished = home.retake(["journal", "verify"]).expect(2).says(&["sessions.db"]);
    assert!(finished.out.contains("s.jsonl is good"), "{}", finished.out);
}

#[test]
fn a_profile_is_shown_with_the_layer_of_each_value_and_checked_without_running() {
    let home = Home::chaos("ok", QUICK);
    home.write("profiles/p/retake.patch.yml", "- provider: mock\n  retryPolicy: { maxRetries: 9 }\n");
    let shown = home.retake(["profile", "show", "-p", "p"]).expect(0).out;
    let row = |key: &str| shown.lines().find(|line| line.trim_start().starts_with(key)).unwrap_or_default().to_owned();
    assert!(row("maxRetries").contains('9') && row("maxRetries").contains("retake.patch.yml"), "{shown}");
    assert!(
        row("backoff.initialDelayMs").contains("20") && row("backoff.initialDelayMs").contains("profile.yml"),
        "{shown}"
    );
    assert!(row("component").contains("builtin:llm-retry"), "{shown}");
    let json: Value =
        serde_json::from_str(&home.retake(["profile", "show", "-p", "p", "--json"]).expect(0).out).unwrap();
    assert!(json.to_string().contains("\"maxRetries\":9"), "{json}");
    let checked = home.retake(["profile", "check", "p"]).expect(0).out;
    assert!(checked.contains("profile.yml is valid: 1 provider, 1 entry."), "{checked}");
    home.write(
        "profiles/p/retake.patch.yml",
        "- provider: mock\n  classify:\n    - { id: a, text: busy, as: SERVER, fixture: { status: 400, body: busy } }\n    - { id: b, status: 418, as: SERVER }\n",
    );
    let checked = home.retake(["profile", "check", "p"]).expect(0).out;
    assert!(checked.contains("is valid: 1 provider, 1 entry, 2 rows of classification, 1 fixture."), "{checked}");

    // A patch of nothing is a warning, not an error.
    let patch = home.write("loose.yml", "- id: nobody\n  disabled: true\n");
    let checked = home.retake(["profile", "check", "p", "--patch", patch.to_str().unwrap()]).expect(0).out;
    assert!(
        checked.contains("warning: ") && checked.contains("loose.yml:1:") && checked.contains("nobody"),
        "{checked}"
    );
    home.write("loose.yml", "");
    home.retake(["profile", "check", "p", "--patch", patch.to_str().unwrap()]).expect(2).says(&["loose.yml", "[]"]);
    assert!(home.journals().is_empty());
}

#[test]
fn the_help_of_every_command_says_what_matters() {
    let home = Home::new();
    let cases: [(&[&str], &[&str]); 11] = [
        (&[], &["run", "demo", "chaos", "profile", "plugin", "journal", "RETAKE_HOME", "Exit status", "130"]),
        (&["run"], &["PROMPT", "stdin", "--profile", "--patch", "--session", "--json", "Ctrl-C", "RETAKE_LOG"]),
        (&["demo"], &["no key", "PROMPT"]),
        (&["chaos"], &["--script", "--record", "--listen", "--per-body", "retry-after", "stall"]),
        (&["profile"], &["show", "check"]),
        (&["profile", "show"], &["layer", "--json", "--patch"]),
        (&["profile", "check"], &["FILE", "--patch"]),
        (&["plugin", "build"], &["DIR", "--output", "--install"]),
        (&["plugin", "inspect"], &["FILE", "--json", "could not run"]),
        (&["journal", "verify"], &["FILE|SESSION", "--json", "1 a rule is broken or a record ends torn"]),
        (&["journal", "show"], &["SESSION", "newest", "--json", "--turn", "--chunks"]),
    ];
    for (command, words) in cases {
        let finished = home.retake(command.iter().chain(&["--help"])).expect(0);
        assert_eq!(finished.err, "", "{command:?}");
        for word in words {
            assert!(finished.out.contains(word), "{command:?}: {word:?} is not in {}", finished.out);
        }
    }
    let version = home.retake(["--version"]).expect(0).out;
    assert!(version.starts_with("retake "), "{version}");
    home.retake([] as [&str; 0]).expect(2).says(&["Usage"]);
}
