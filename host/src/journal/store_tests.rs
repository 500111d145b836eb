//! What every store must do, run on each of them, and a comparison of the two over random histories.

use super::{
    Body, Event, JsonlStore, SessionState, SqliteStore, Store, StoreError,
    event::{AssistantChunk, ExecutorNote, StepEnd, StepRef, TurnEnd, TurnEndReason, TurnStart},
    fixture::{prompt, turn},
    invariants,
};
use crate::llm::Chunk;
use std::path::Path;

fn both(check: impl Fn(&dyn Fn() -> Box<dyn Store>, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    check(&|| Box::new(JsonlStore::new(dir.path())), dir.path());
    let dir = tempfile::tempdir().unwrap();
    check(&|| Box::new(SqliteStore::new(dir.path())), dir.path());
}

fn numbered(from: u64, bodies: Vec<Body>) -> Vec<Event> {
    (from..).zip(bodies).map(|(seq, body)| Event { seq, time: 1_000 + seq, body, source_event_seqs: None }).collect()
}

fn write(store: &dyn Store, id: &str, events: &[Event]) {
    let mut opened = store.open(id).unwrap();
    for event in events {
        opened.log.write(event).unwrap();
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

#[test]
fn nothing_is_kept_of_a_session_before_its_first_event() {
    both(|store, dir| {
        let store = store();
        drop(store.open("s").unwrap());
        assert_eq!(store.list().unwrap(), []);
        let left: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, Vec::<std::ffi::OsString>::new());
        assert!(matches!(store.read("s"), Err(StoreError::Missing { .. })));
    });
}

#[test]
fn what_was_written_is_read_back_and_gone_on_with() {
    both(|new, _| {
        let store = new();
        let mut events = numbered(0, turn(1));
        write(&*store, "s", &events);
        let more = numbered(6, turn(2));
        let mut opened = store.open("s").unwrap();
        assert_eq!(opened.state, SessionState::of(&events));
        for event in &more {
            opened.log.write(event).unwrap();
        }
        runtime().block_on(opened.log.durable()).unwrap();
        events.extend(more);
        // Another process would see it, while this one still writes.
        let contents = new().read("s").unwrap();
        assert_eq!(contents.events, events);
        assert_eq!((contents.header.id.as_str(), contents.header.created_at), ("s", 1_000));
        assert_eq!((contents.torn, contents.damage), (None, None));
    });
}

#[test]
fn sessions_are_listed_by_id_and_each_stands_for_itself() {
    both(|store, _| {
        let store = store();
        write(&*store, "b", &numbered(0, turn(1)));
        write(&*store, "a.2", &numbered(0, turn(1)[..1].to_vec()));
        let ids: Vec<_> = store.list().unwrap().into_iter().map(|listed| listed.id).collect();
        assert_eq!(ids, ["a.2", "b"]);
        assert_eq!((store.contains("b").unwrap(), store.contains("c").unwrap()), (true, false));
        assert!(store.list().unwrap().iter().any(|listed| listed.modified_ms >= 1_005));
        assert_eq!(store.read("a.2").unwrap().events.len(), 1);
        assert_eq!(store.read("b").unwrap().events.len(), 6);
    });
}

#[test]
fn a_second_writer_is_refused_and_told_who_writes_and_reads_all_the_same() {
    both(|store, _| {
        let (first, second) = (store(), store());
        let mut opened = first.open("s").unwrap();
        match second.open("s") {
            Err(StoreError::Locked { by, .. }) => assert_eq!(by, Some(std::process::id())),
            other => panic!("{:?}", other.err()),
        }
        for event in numbered(0, turn(1)) {
            opened.log.write(&event).unwrap();
        }
        runtime().block_on(opened.log.durable()).unwrap();
        assert_eq!(second.read("s").unwrap().events.len(), 6);
        assert!(second.open("t").is_ok(), "another session is free");
        drop(opened);
        assert!(second.open("s").is_ok());
    });
}

#[test]
fn a_name_that_could_leave_the_directory_is_refused() {
    both(|store, _| {
        for id in ["", "../x", "a/b", ".hidden", "a b"] {
            assert!(matches!(store().open(id), Err(StoreError::SessionId(_))), "{id:?}");
            assert!(matches!(store().raw(id), Err(StoreError::SessionId(_))), "{id:?}");
        }
    });
}

/// A line that a newer version has written behind an intact session.
const NEWER: [&str; 3] = [
    r#"{"type":"future/thing","seq":6,"time":1,"data":{}}"#,
    r#"{"type":"turn/start","seq":6,"time":1,"data":{"turn":2,"retryOf":"the one before"}}"#,
    r#"{"type":"turn/end","seq":6,"time":1,"data":{"turn":1,"reason":{"kind":"forked"}}}"#,
];

#[test]
fn what_a_newer_version_has_written_is_never_taken_off() {
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("s.jsonl");
    for line in NEWER {
        let _ = std::fs::remove_file(&path);
        let store = JsonlStore::new(files.path());
        write(&store, "s", &numbered(0, turn(1)));
        let text = std::fs::read_to_string(&path).unwrap() + line + "\n";
        std::fs::write(&path, &text).unwrap();
        match store.open("s") {
            Err(error @ StoreError::Damaged { line: 8, .. }) => {
                assert!(error.to_string().contains("newer"), "{error}");
            }
            other => panic!("{:?}", other.err()),
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "it is left as it was");
        let contents = store.read("s").unwrap();
        assert_eq!((contents.events.len(), contents.torn), (6, None));
    }
}

#[test]
fn an_intact_turn_end_behind_damage_is_known_whatever_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let store = JsonlStore::new(dir.path());
    write(&store, "s", &numbered(0, turn(1)[..2].to_vec()));
    let path = dir.path().join("s.jsonl");
    let end = r#"{"type":"turn/end","seq":3,"time":1,"data":{"turn":1,"reason":{"kind":"forked"}}}"#;
    let text = std::fs::read_to_string(&path).unwrap() + "{\"type\":\"ste\n" + end + "\n";
    std::fs::write(&path, text).unwrap();
    assert!(matches!(store.open("s"), Err(StoreError::Damaged { line: 4, .. })));
}

#[test]
fn a_history_that_breaks_a_rule_is_shown_and_not_gone_on_with() {
    both(|store, _| {
        let events = numbered(0, [turn(1), turn(1)].concat());
        write(&*store(), "s", &events);
        match store().open("s") {
            Err(error @ StoreError::Damaged { line: 8, .. }) => {
                assert!(error.to_string().contains("turn-number: Turn 1 must be 2"), "{error}");
            }
            other => panic!("{:?}", other.err()),
        }
        let contents = store().read("s").unwrap();
        assert_eq!((contents.events, contents.broken.map(|broken| broken.line)), (events, Some(8)));
    });
}

#[test]
fn only_what_says_so_reaches_a_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s.jsonl");
    let header = r#"{"type":"session","version":1,"id":"s","createdAt":1,"dialect":"closed-step"}"#;
    let start = r#"{"type":"turn/start","seq":0,"time":1,"data":{"turn":1}}"#;
    let message = r#"{"type":"user/message","seq":1,"time":1,"data":{"content":[],"source":{"kind":"user"},"role":"user","id":"m"}"#;
    for (end, readable) in [("}", 1), (r#","surfaceOp":"replace"}"#, 1), (r#","surfaceOp":"append"}"#, 2)] {
        std::fs::write(&path, format!("{header}\n{start}\n{message}{end}\n")).unwrap();
        let contents = JsonlStore::new(dir.path()).read("s").unwrap();
        assert_eq!((contents.events.len(), contents.damage.is_none()), (readable, readable == 2), "{end}");
    }
}

#[test]
fn a_pipe_a_directory_or_a_link_is_listed_and_never_read() {
    let dir = tempfile::tempdir().unwrap();
    let store = JsonlStore::new(dir.path());
    write(&store, "good", &numbered(0, turn(1)));
    std::fs::create_dir(dir.path().join("directory.jsonl")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("good.jsonl"), dir.path().join("link.jsonl")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(dir.path().join("pipe.jsonl")).status().unwrap();
    assert!(pipe.success());
    for id in ["directory", "link", "pipe"] {
        assert!(matches!(store.read(id), Err(StoreError::NotAFile { .. })), "{id}");
    }
    assert_eq!(store.list().unwrap().len(), 4);
    assert_eq!(store.read("good").unwrap().events.len(), 6);
}

/// Root may write anywhere that is no file system of the kernel's own.
#[cfg(target_os = "linux")]
#[test]
fn a_directory_that_cannot_be_written_is_a_clear_error() {
    for store in [&JsonlStore::new(Path::new("/proc/sys")) as &dyn Store, &SqliteStore::new(Path::new("/proc/sys"))] {
        match store.open("s") {
            Err(error @ StoreError::Io { .. }) => assert!(error.to_string().contains("/proc/sys"), "{error}"),
            other => panic!("{:?}", other.err()),
        }
    }
}

#[test]
fn nothing_is_written_through_a_symbolic_link() {
    both(|store, dir| {
        let outside = tempfile::tempdir().unwrap();
        let target = outside.path().join("target");
        std::fs::write(&target, "").unwrap();
        for name in ["s.jsonl", super::sqlite::FILE_NAME] {
            std::os::unix::fs::symlink(&target, dir.join(name)).unwrap();
        }
        assert!(matches!(store().open("s"), Err(StoreError::NotAFile { .. })));
        assert_eq!(std::fs::read(&target).unwrap(), b"");
    });
}

#[test]
fn files_are_private() {
    use std::os::unix::fs::PermissionsExt;
    both(|store, dir| {
        write(&*store(), "s", &numbered(0, turn(1)));
        let _open = store().open("s").unwrap();
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "{}", entry.path().display());
        }
    });
}

#[derive(Clone, Debug)]
enum Op {
    /// Opens the session again, as a new process would.
    Reopen,
    Append(Box<Body>),
    Flush,
    Read,
}

mod differential {
    use super::*;
    use proptest::prelude::*;

    fn body() -> impl Strategy<Value = Body> {
        prop_oneof![
            (1..6_u64).prop_map(|turn| Body::TurnStart(TurnStart { turn, retry_of: None })),
            Just(prompt()),
            (1..6_u64).prop_map(|turn| Body::StepStart(StepRef { turn, step: 1 })),
            (1..6_u64, ".{0,20}").prop_map(|(turn, text)| Body::AssistantChunk(AssistantChunk {
                turn,
                step: 1,
                chunk: Chunk::TextDelta { index: 0, text },
            })),
            ("[a-z]{0,3}", any::<f64>().prop_filter("finite", |f| f.is_finite())).prop_map(|(id, number)| {
                Body::ExecutorNote(ExecutorNote {
                    digest: String::new(),
                    kind: "n".into(),
                    data: serde_json::json!([id, number]),
                    id,
                })
            }),
            (1..6_u64).prop_map(|turn| Body::StepEnd(StepEnd { turn, step: 1, failure: None })),
            (1..6_u64).prop_map(|turn| Body::TurnEnd(TurnEnd { turn, reason: TurnEndReason::Aborted })),
        ]
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            1 => Just(Op::Reopen),
            8 => body().prop_map(|body| Op::Append(Box::new(body))),
            1 => Just(Op::Flush),
            1 => Just(Op::Read),
        ]
    }

    /// What a history of operations on three sessions shows of a store.
    fn play(new: &dyn Fn() -> Box<dyn Store>, ops: &[(usize, Op)]) -> Vec<String> {
        let runtime = runtime();
        let mut store = new();
        let ids = ["a", "b", "c"];
        let mut open = ids.map(|_| None);
        let mut states = [(); 3].map(|()| SessionState::default());
        let mut seen = Vec::new();
        for (session, op) in ops {
            let (id, session) = (ids[*session], *session);
            match op {
                Op::Reopen => {
                    open[session] = None;
                    store = new();
                    let opened = store.open(id).unwrap();
                    seen.push(format!("{:?}", opened.state));
                    open[session] = Some(opened.log);
                }
                // A store keeps what a journal lets through.
                Op::Append(body) if invariants::check(&states[session], body, None).is_err() => {}
                Op::Append(body) => {
                    let log = open[session].get_or_insert_with(|| store.open(id).unwrap().log);
                    let seq = states[session].next_seq;
                    states[session].apply(seq, body);
                    log.write(&Event { seq, time: seq, body: (**body).clone(), source_event_seqs: None }).unwrap();
                }
                Op::Flush => {
                    if let Some(log) = &mut open[session] {
                        runtime.block_on(log.durable()).unwrap();
                    }
                }
                Op::Read => {
                    if let Some(log) = &mut open[session] {
                        runtime.block_on(log.durable()).unwrap();
                    }
                    let raw = store.raw(id).unwrap().map(|raw| String::from_utf8(raw.bytes).unwrap());
                    seen.push(format!("{raw:?}"));
                }
            }
        }
        drop(open);
        seen.extend(ids.iter().map(|id| format!("{:?}", store.raw(id).unwrap())));
        seen.extend(store.list().unwrap().into_iter().map(|listed| listed.id));
        seen
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn both_stores_show_the_same_bytes_after_any_history(
            ops in proptest::collection::vec((0..3_usize, op()), 1..200)
        ) {
            let (files, database) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            let jsonl = play(&|| Box::new(JsonlStore::new(files.path())), &ops);
            let sqlite = play(&|| Box::new(SqliteStore::new(database.path())), &ops);
            prop_assert_eq!(jsonl, sqlite);
        }
    }
}

mod damage {
    use super::*;
    use crate::journal::{
        record::{self, Raw},
        verify::verify_bytes,
    };
    use rand::{RngExt, SeedableRng, rngs::SmallRng};

    const CLOSED_TURNS: u64 = 6;

    /// A record of [`CLOSED_TURNS`] turns and an open one.
    fn whole(dir: &Path) -> Vec<u8> {
        let mut bodies: Vec<_> = (1..=CLOSED_TURNS).flat_map(turn).collect();
        bodies.extend(turn(CLOSED_TURNS + 1).into_iter().take(3));
        let store = JsonlStore::new(dir);
        write(&store, "s", &numbered(0, bodies));
        store.raw("s").unwrap().unwrap().bytes
    }

    /// What disks, crashes and editors do to a file.
    fn damaged(whole: &[u8], rng: &mut SmallRng) -> Vec<u8> {
        let mut bytes = whole.to_vec();
        for _ in 0..rng.random_range(1..=3) {
            let at = rng.random_range(0..=bytes.len());
            let end = (at + rng.random_range(1..200)).min(bytes.len());
            match rng.random_range(0..8) {
                0 => bytes.truncate(at),
                1 => bytes[at..end].fill(0),
                2 => drop(bytes.drain(at..end)),
                3 => drop(bytes.splice(at..at, (0..end - at).map(|_| rng.random()).collect::<Vec<u8>>())),
                4 => bytes.extend_from_within(at..end),
                5 => bytes.extend(std::iter::repeat_n(0, end - at)),
                6 => drop(bytes.splice(at..at, *b"\n")),
                _ => {
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= 1 << rng.random_range(0..8);
                    }
                }
            }
        }
        bytes
    }

    fn lines_that_close_a_turn(bytes: &[u8]) -> Vec<&[u8]> {
        let lines = bytes.split_inclusive(|&byte| byte == b'\n');
        lines.filter(|line| line.starts_with(b"{\"type\":\"turn/end\"") && line.ends_with(b"\n")).collect()
    }

    #[test]
    fn no_damage_loses_a_closed_turn_in_silence_and_none_panics() {
        let dir = tempfile::tempdir().unwrap();
        let whole = whole(dir.path());
        let closers = lines_that_close_a_turn(&whole);
        assert_eq!(closers.len() as u64, CLOSED_TURNS);
        let (mut refused, mut torn, mut damages) = (0, 0, 0);
        for seed in 0..10_000 {
            let bytes = damaged(&whole, &mut SmallRng::seed_from_u64(seed));
            let report = verify_bytes("s", &bytes);
            assert!(!report.to_string().is_empty());
            let raw = Raw { bytes: bytes.clone(), lost: None };
            let Ok(contents) = record::parse("s", &raw) else {
                assert!(!report.is_good(), "seed {seed}: refused, and yet verified");
                refused += 1;
                continue;
            };
            if contents.damage.is_some() {
                assert!(!report.is_good(), "seed {seed}: damaged, and yet verified");
                damages += 1;
                continue;
            }
            torn += u32::from(contents.torn.is_some());
            // Every closed turn whose end still stands there as it was is read.
            let ends = contents.events.iter().filter(|event| matches!(event.body, Body::TurnEnd(_))).count();
            let standing = closers.iter().filter(|&&line| lines_that_close_a_turn(&bytes).contains(&line)).count();
            assert!(ends >= standing, "seed {seed}: {ends} of {standing} closed turns were read");
        }
        // Each way out was taken, so that the others are no accident.
        assert!(refused > 100 && torn > 1_000 && damages > 1_000, "{refused} refused, {torn} torn, {damages} damaged");
    }

    #[test]
    fn a_damaged_file_is_opened_and_gone_on_with_or_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let whole = whole(dir.path());
        let path = dir.path().join("s.jsonl");
        let store = JsonlStore::new(dir.path());
        for seed in 0..400 {
            let bytes = damaged(&whole, &mut SmallRng::seed_from_u64(seed));
            std::fs::write(&path, &bytes).unwrap();
            match store.open("s") {
                Ok(mut opened) => {
                    let seq = opened.state.next_seq;
                    for event in numbered(seq, turn(opened.state.last_turn + 1)) {
                        opened.log.write(&event).unwrap();
                    }
                    drop(opened);
                    let contents = store.read("s").unwrap();
                    assert_eq!((contents.torn, contents.damage), (None, None), "seed {seed}");
                    assert_eq!(contents.events.len() as u64, seq + 6, "seed {seed}");
                }
                Err(error) => {
                    assert!(error.to_string().contains("s.jsonl"), "seed {seed}: {error}");
                    assert_eq!(std::fs::read(&path).unwrap(), bytes, "seed {seed}");
                }
            }
        }
    }
}
