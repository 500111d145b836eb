//! The journal: durable appends of many sessions at once, verification, and opening a long session.

use crate::{Figure, block_on, median, resident};
use retake::{
    journal::{
        Body, Event, JsonlLog, Log,
        event::{
            Answer, AnswerRole, AnswerSource, AssistantChunk, AssistantMessage, ExecutorNote, Header, HeaderConfig,
            HeaderReason, RequestHeader, StepEnd, StepRef, TurnEnd, TurnEndReason, TurnStart, UserMessage, UserRole,
            UserSource,
        },
        jsonl::JsonlStore,
        sqlite::SqliteStore,
        store::Store,
        verify::verify_file,
    },
    llm::{Block, Chunk, FinishReason},
};
use std::{
    path::{Path, PathBuf},
    time::Instant,
};

const SESSIONS: usize = 64;

pub fn figures() -> Vec<Figure> {
    // On the disk that the project lies on: a temporary directory may be in memory.
    let dir = tempfile::tempdir_in(crate::target_dir()).expect("the target directory can be written");
    let mut figures = block_on(appends(dir.path()));
    figures.push(verify(dir.path()));
    figures.extend(open(dir.path()));
    figures
}

async fn appends(dir: &Path) -> Vec<Figure> {
    let mut rates: [Vec<f64>; 4] = Default::default();
    for round in 0..5 {
        let at = |name: &str| {
            let dir = dir.join(format!("{name}-{round}"));
            std::fs::create_dir(&dir).expect("it can be made");
            dir
        };
        rates[0].push(rate(&SqliteStore::new(&at("sqlite-one")), 1, 200).await);
        rates[1].push(rate(&SqliteStore::new(&at("sqlite-many")), SESSIONS, 50).await);
        rates[2].push(rate(&JsonlStore::new(&at("jsonl-one")), 1, 200).await);
        rates[3].push(rate(&JsonlStore::new(&at("jsonl-many")), SESSIONS, 50).await);
    }
    let [sqlite_one, sqlite, jsonl_one, jsonl] = rates.map(|mut rates| median(&mut rates));
    vec![
        Figure::new("durable appends, SQLite, one commit each", sqlite_one, "/s"),
        Figure::new("durable appends, SQLite, 64 sessions at once", sqlite, "/s"),
        Figure::new("the two against each other (at least 4)", sqlite / sqlite_one, "×"),
        Figure::new("durable appends, JSONL, one fsync each", jsonl_one, "/s"),
        Figure::new("durable appends, JSONL, 64 sessions at once", jsonl, "/s"),
        Figure::new("the two against each other, JSONL", jsonl / jsonl_one, "×"),
    ]
}

/// Durable appends a second of `sessions` sessions that append at once, each waiting for its own.
async fn rate(store: &dyn Store, sessions: usize, each: usize) -> f64 {
    let mut logs: Vec<Box<dyn Log>> =
        (0..sessions).map(|n| store.open(&format!("s{n}")).expect("a new session opens").log).collect();
    for log in &mut logs {
        log.write(&note(0)).expect("it is written");
        log.durable().await.expect("it is durable");
    }
    let begun = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for mut log in logs {
        running.spawn(async move {
            for seq in 1..=each as u64 {
                log.write(&note(seq)).expect("it is written");
                log.durable().await.expect("it is durable");
            }
        });
    }
    while let Some(done) = running.join_next().await {
        done.expect("no session fails");
    }
    (sessions * each) as f64 / begun.elapsed().as_secs_f64()
}

fn event(seq: u64, body: Body, citing: Option<Vec<u64>>) -> Event {
    Event { seq, time: 1_790_000_000_000 + seq, body, source_event_seqs: citing }
}

fn note(seq: u64) -> Event {
    let note =
        ExecutorNote { id: "e".into(), digest: "d".into(), kind: "n".into(), data: serde_json::json!({ "n": seq }) };
    event(seq, Body::ExecutorNote(note), None)
}

/// Writes a session of answered turns until it has `events` events or `bytes` bytes, whichever comes first.
fn session(dir: &Path, id: &str, events: u64, bytes: u64) -> PathBuf {
    let mut log = JsonlLog::create(dir, id).expect("a new session");
    let mut seq = 0;
    let mut turn = 0;
    let mut size = 0;
    while seq < events && size < bytes {
        turn += 1;
        for body in turn_of(turn) {
            let citing = matches!(body, Body::AssistantMessage(_)).then(|| (seq - CHUNKS..seq).collect());
            log.write(&event(seq, body, citing)).expect("it is written");
            seq += 1;
        }
        if turn % 100 == 0 {
            size = std::fs::metadata(log.path()).expect("it exists").len();
        }
    }
    log.path().to_owned()
}

const CHUNKS: u64 = 20;

fn turn_of(turn: u64) -> Vec<Body> {
    let text = |text: &str| vec![Block::Text { text: text.into() }];
    let mut bodies = vec![
        Body::TurnStart(TurnStart { turn, retry_of: None }),
        Body::UserMessage(UserMessage {
            content: text("name one prime"),
            source: UserSource::User,
            role: UserRole::User,
            id: format!("m-{}", 2 * turn - 1),
        }),
        Body::StepStart(StepRef { turn, step: 1 }),
    ];
    if turn == 1 {
        let config = HeaderConfig { provider: "acme".into(), model: "acme-1".into() };
        bodies.push(Body::RequestHeader(RequestHeader {
            header: Header { config, system: None },
            reason: HeaderReason::Initial,
        }));
    }
    let words: Vec<String> = (1..CHUNKS).map(|n| format!("word {n} of an answer, ")).collect();
    let chunk = |chunk| Body::AssistantChunk(AssistantChunk { turn, step: 1, chunk });
    bodies.extend(words.iter().map(|text| chunk(Chunk::TextDelta { index: 0, text: text.clone() })));
    bodies.push(chunk(Chunk::Finish { reason: FinishReason::Stop }));
    bodies.push(Body::AssistantMessage(AssistantMessage {
        turn,
        step: 1,
        message: Answer {
            role: AnswerRole::Assistant,
            content: text(&words.concat()),
            source: AnswerSource::Model { provider: "acme".into(), model: "acme-1".into() },
            id: format!("m-{}", 2 * turn),
        },
        usage: None,
        interrupted: false,
    }));
    bodies.push(Body::StepEnd(StepEnd { turn, step: 1, failure: None }));
    bodies.push(Body::TurnEnd(TurnEnd { turn, reason: TurnEndReason::Completed }));
    bodies
}

fn verify(dir: &Path) -> Figure {
    let path = session(dir, "large", u64::MAX, 100_000_000);
    let mut samples: Vec<f64> = (0..5)
        .map(|_| {
            let begun = Instant::now();
            let report = verify_file(&path).expect("it can be read");
            assert!(report.is_good(), "{report:?}");
            begun.elapsed().as_secs_f64()
        })
        .collect();
    Figure::new("verify 100 MB of journal", median(&mut samples), "s").at_most(2.0)
}

fn open(dir: &Path) -> Vec<Figure> {
    let path = session(dir, "long", 100_000, u64::MAX);
    let size = std::fs::metadata(&path).expect("it exists").len() as f64;
    let mut samples = Vec::new();
    let mut memory = 0.0_f64;
    for _ in 0..5 {
        let before = resident();
        let begun = Instant::now();
        let opened = JsonlLog::open(dir, "long").expect("it opens");
        samples.push(begun.elapsed().as_secs_f64() * 1e3);
        memory = memory.max(resident() - before);
        drop(opened);
    }
    vec![
        Figure::new("open a session of 100,000 events", median(&mut samples), "ms").at_most(300.0),
        Figure::new("memory that it takes, against its file", memory / size, "×").at_most(3.0),
    ]
}
