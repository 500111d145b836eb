use super::*;
use crate::journal::event::{Body, StepRef, TurnEnd, TurnEndReason, TurnStart};

fn event(seq: u64, body: Body) -> Event {
    Event { seq, time: seq, body, source_event_seqs: None }
}

fn start(seq: u64) -> Event {
    event(seq, Body::TurnStart(TurnStart { turn: 1, retry_of: None }))
}

fn end(seq: u64) -> Event {
    event(seq, Body::TurnEnd(TurnEnd { turn: 1, reason: TurnEndReason::Completed }))
}

fn step(seq: u64) -> Event {
    event(seq, Body::StepStart(StepRef { turn: 1, step: 1 }))
}

/// A connection as a stranger would open it.
fn raw_connection(dir: &Path) -> Connection {
    Connection::open(dir.join(FILE_NAME)).unwrap()
}

fn written(dir: &Path, events: &[Event]) -> SqliteStore {
    let store = SqliteStore::new(dir);
    let mut opened = store.open("s").unwrap();
    for event in events {
        opened.log.write(event).unwrap();
    }
    store
}

#[tokio::test]
async fn durable_appends_of_many_sessions_share_commits() {
    let dir = tempfile::tempdir().unwrap();
    let store = written(dir.path(), &[start(0)]);
    let mut logs: Vec<_> = (0..100).map(|n| store.open(&format!("s{n}")).unwrap().log).collect();
    let before = store.commits();
    // Another transaction holds the database, so that everything queues behind it.
    let mut other = raw_connection(dir.path());
    let held = other.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).unwrap();
    let mut waits = Vec::new();
    for log in &mut logs {
        log.write(&start(0)).unwrap();
        waits.push(log.durable());
    }
    held.commit().unwrap();
    for wait in waits {
        wait.await.unwrap();
    }
    let commits = store.commits() - before;
    assert!((1..=5).contains(&commits), "{commits} commits for 100 sessions");
    assert_eq!(store.list().unwrap().len(), 101);
}

#[tokio::test]
async fn a_writer_with_a_stale_idea_of_the_end_fails_without_damage() {
    let dir = tempfile::tempdir().unwrap();
    let store = written(dir.path(), &[start(0)]);
    let mut opened = store.open("s").unwrap();
    raw_connection(dir.path())
        .execute_batch(
            r#"UPDATE sessions SET tail = 2;
               INSERT INTO events VALUES (1, 1, 'step/start', 1, '{"type":"step/start","seq":1,"time":1,"data":{"turn":1,"step":1}}');"#,
        )
        .unwrap();
    opened.log.write(&end(1)).unwrap();
    let error = opened.log.durable().await.unwrap_err();
    assert!(matches!(error, StoreError::Stale { expected: 1, .. }), "{error}");
    assert!(matches!(opened.log.write(&end(2)), Err(StoreError::Stale { .. })));
    drop(opened);
    assert_eq!(store.read("s").unwrap().events, [start(0), step(1)]);
}

#[tokio::test]
async fn a_full_disk_is_a_clear_error_and_leaves_nothing_torn() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), &[start(0)]);
    let connection = schema::open_for_writing(&dir.path().join(FILE_NAME)).unwrap();
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    connection.pragma_update_and_check(None, "max_page_count", pages, |row| row.get::<_, i64>(0)).unwrap();
    let store = SqliteStore::new(dir.path());
    *store.writer.started.lock() = Some(Arc::new(Writer::start(store.path.clone(), connection).unwrap()));
    let mut opened = store.open("s").unwrap();
    let long = Body::ExecutorNote(crate::journal::event::ExecutorNote {
        id: "e".into(),
        digest: "d".into(),
        kind: "k".into(),
        data: serde_json::json!("x".repeat(1 << 20)),
    });
    opened.log.write(&event(1, long)).unwrap();
    let error = opened.log.durable().await.unwrap_err().to_string();
    assert!(error.contains("could not be written") && error.contains("full"), "{error}");
    assert!(opened.log.write(&step(2)).is_err(), "nothing follows what was lost");
    drop(opened);
    let contents = store.read("s").unwrap();
    assert_eq!((contents.events, contents.torn), (vec![start(0)], None));
}

#[tokio::test]
async fn what_could_not_be_written_is_written_when_there_is_room_again_and_no_session_fails_for_another() {
    let dir = tempfile::tempdir().unwrap();
    let store = written(dir.path(), &[start(0)]);
    let other = store.open("other").unwrap();
    let (mut log, mut other) = (store.open("s").unwrap().log, other.log);
    raw_connection(dir.path())
        .execute_batch(
            "CREATE TRIGGER full BEFORE INSERT ON events WHEN new.session = 1
             BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END;",
        )
        .unwrap();
    log.write(&step(1)).unwrap();
    other.write(&start(0)).unwrap();
    let (failed, fine) = tokio::join!(log.durable(), other.durable());
    let failed = failed.unwrap_err();
    assert!(failed.is_momentary() && failed.to_string().contains("full"), "{failed}");
    fine.unwrap();
    assert!(log.write(&end(2)).is_err(), "nothing follows what is not written");
    raw_connection(dir.path()).execute_batch("DROP TRIGGER full").unwrap();
    log.write(&end(2)).unwrap();
    log.durable().await.unwrap();
    assert_eq!(store.read("s").unwrap().events, [start(0), step(1), end(2)]);
    assert_eq!(store.read("other").unwrap().events, [start(0)]);
}

#[tokio::test]
async fn a_database_that_is_removed_or_replaced_ends_its_writers() {
    for replaced in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let store = written(dir.path(), &[start(0)]);
        let mut log = store.open("s").unwrap().log;
        let path = dir.path().join(FILE_NAME);
        std::fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        if replaced {
            std::fs::copy(dir.path().join("elsewhere"), &path).unwrap();
        }
        log.write(&step(1)).unwrap();
        let error = log.durable().await.unwrap_err();
        assert!(matches!(error, StoreError::Vanished { .. }) && !error.is_momentary(), "{error}");
        assert!(matches!(log.write(&end(2)), Err(StoreError::Vanished { .. })));
    }
}

#[test]
fn rows_that_are_missing_at_the_end_are_a_loss_and_not_a_shorter_session() {
    let dir = tempfile::tempdir().unwrap();
    let store = written(dir.path(), &[start(0), end(1)]);
    raw_connection(dir.path()).execute("DELETE FROM events WHERE seq = 1", []).unwrap();
    let contents = store.read("s").unwrap();
    assert_eq!(contents.events, [start(0)]);
    let damage = contents.damage.unwrap();
    assert_eq!((damage.line, damage.reason.contains("has 2 events, of which 1 are")), (3, true), "{}", damage.reason);
    assert!(matches!(store.open("s"), Err(StoreError::Damaged { line: 3, .. })));
    assert_eq!(store.list().unwrap().len(), 1);
}

#[test]
fn an_unreadable_row_at_the_end_is_taken_off_and_one_before_a_closed_turn_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = written(dir.path(), &[start(0), step(1)]);
    raw_connection(dir.path()).execute("UPDATE events SET line = 'torn' WHERE seq = 1", []).unwrap();
    assert_eq!(store.read("s").unwrap().torn.unwrap().line, 3);
    let opened = store.open("s").unwrap();
    assert_eq!((opened.state.next_seq, opened.torn.unwrap().line), (1, 3));
    drop(opened.log);
    assert_eq!(store.read("s").unwrap().events, [start(0)]);

    let dir = tempfile::tempdir().unwrap();
    let store = written(dir.path(), &[start(0), end(1)]);
    raw_connection(dir.path()).execute("UPDATE events SET line = 'bad' WHERE seq = 0", []).unwrap();
    match store.open("s") {
        Err(StoreError::Damaged { line: 2, path, .. }) => assert!(path.ends_with("sessions.db (session s)"), "{path}"),
        other => panic!("{:?}", other.err()),
    }
}

#[test]
fn a_database_that_is_not_a_store_is_refused_with_the_reason() {
    for (spoil, part) in [
        ("PRAGMA application_id = 7", "application id is 0x7"),
        ("PRAGMA user_version = 9", "version 9"),
        ("DROP TABLE events; CREATE TABLE events (session, seq, type, time, line)", "1 of its 2 tables"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let store = written(dir.path(), &[start(0)]);
        drop(store);
        raw_connection(dir.path()).execute_batch(spoil).unwrap();
        let store = SqliteStore::new(dir.path());
        for error in [store.open("s").err().unwrap(), store.list().unwrap_err()] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}

#[test]
fn the_settings_that_durability_rests_on_are_in_force() {
    let dir = tempfile::tempdir().unwrap();
    let connection = schema::open_for_writing(&dir.path().join(FILE_NAME)).unwrap();
    let text = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, String>(0)).unwrap();
    let number = |pragma: &str| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(text("journal_mode"), "wal");
    assert_eq!((number("synchronous"), number("foreign_keys"), number("trusted_schema")), (2, 1, 0));
    assert_eq!(number("busy_timeout"), schema::BUSY_TIMEOUT.as_millis() as i64);
}

#[test]
fn a_transaction_that_a_crash_left_half_done_is_rolled_back_for_a_reader_too() {
    let dir = tempfile::tempdir().unwrap();
    drop(written(dir.path(), &[start(0)]));
    // As a process leaves it that is killed in a transaction before write-ahead logging is set: pages half written,
    // and the journal that takes them back.
    let connection = raw_connection(dir.path());
    connection.pragma_update_and_check(None, "journal_mode", "delete", |_| Ok(())).unwrap();
    connection.execute_batch("PRAGMA cache_size = 1; PRAGMA cache_spill = 1; BEGIN IMMEDIATE;").unwrap();
    for seq in 1..400 {
        connection
            .execute("INSERT INTO events VALUES (1, ?1, 't', 1, ?2)", rusqlite::params![seq, "x".repeat(900)])
            .unwrap();
    }
    let crashed = tempfile::tempdir().unwrap();
    for name in [FILE_NAME, "sessions.db-journal"] {
        std::fs::copy(dir.path().join(name), crashed.path().join(name)).unwrap();
    }
    let contents = SqliteStore::new(crashed.path()).read("s").unwrap();
    assert_eq!((contents.events, contents.torn), (vec![start(0)], None));
}

#[test]
fn a_reader_cannot_write() {
    let dir = tempfile::tempdir().unwrap();
    drop(written(dir.path(), &[start(0)]));
    let connection = schema::open_for_reading(&dir.path().join(FILE_NAME)).unwrap().unwrap();
    assert!(connection.execute("DELETE FROM events", []).is_err());
}
