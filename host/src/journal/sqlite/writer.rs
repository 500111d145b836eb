//! The one thread that writes the database: whatever sessions have queued goes into one transaction.
//!
//! An append waits a little for company; a barrier does not, and is answered when the transaction that holds
//! everything before it is on disk. What a transaction could not write, on a full disk for instance, is kept and tried
//! again with the next one, each session by itself then, so that none fails for another's sake. Each event is written only where its session's tail is the one that the writer of
//! that session believes in, so that one with a stale idea of it fails without damage.

use super::schema::database_error;
use crate::journal::store::StoreError;
use parking_lot::Mutex;
use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// How long an event waits for others before its transaction, when nobody asks for it to be durable.
const WRITE_BEHIND: Duration = Duration::from_millis(200);
/// The most events of one transaction, so that no barrier waits for an endless one.
const MOST_A_COMMIT: usize = 4_096;

/// One event on its way to the database.
pub(super) struct Append {
    pub session: Arc<str>,
    pub seq: u64,
    pub kind: String,
    pub time: u64,
    pub line: String,
    pub fate: Arc<Fate>,
}

pub(super) enum Job {
    Append(Append),
    /// Everything queued before this is to be on disk before the answer.
    Barrier {
        fate: Arc<Fate>,
        done: Box<dyn FnOnce(Result<(), StoreError>) + Send>,
    },
    /// Nobody writes the session any more: what could not be written of it is given up.
    Forget {
        session: Arc<str>,
    },
}

/// Why a session's log takes no events, as long as it fails.
#[derive(Default)]
pub(super) struct Fate(Mutex<Option<Failed>>);

#[derive(Clone)]
enum Failed {
    Stale { path: String, seq: u64, tail: Option<u64> },
    Database { path: String, reason: String },
    Vanished { path: String },
}

impl Fate {
    /// The failure, if there was one.
    pub fn error(&self) -> Option<StoreError> {
        self.0.lock().clone().map(|failed| match failed {
            Failed::Stale { path, seq, tail } => StoreError::Stale {
                path,
                expected: seq,
                found: tail.map_or_else(|| "there is no such session".into(), |tail| format!("it ends before {tail}")),
            },
            Failed::Database { path, reason } => StoreError::Database { path, action: "written", reason },
            Failed::Vanished { path } => StoreError::Vanished { path },
        })
    }

    /// Something else has written the session, or its database is gone: nothing of this writer may follow.
    fn is_final(&self) -> bool {
        matches!(*self.0.lock(), Some(Failed::Stale { .. } | Failed::Vanished { .. }))
    }

    fn fail(&self, failed: Failed) {
        self.0.lock().get_or_insert(failed);
    }

    /// Everything is on disk after all.
    fn recover(&self) {
        self.0.lock().take_if(|failed| matches!(failed, Failed::Database { .. }));
    }
}

/// The thread, and the queue to it. Dropping it writes what is queued and ends the thread.
pub(super) struct Writer {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// How many transactions have been committed.
    pub commits: Arc<AtomicU64>,
}

impl Writer {
    /// Starts the thread over `connection`. Errors: the system gives no thread.
    pub fn start(path: PathBuf, connection: Connection) -> Result<Writer, StoreError> {
        let (jobs, queue) = channel();
        let commits = Arc::new(AtomicU64::new(0));
        let counted = commits.clone();
        let shown = path.display().to_string();
        let thread = std::thread::Builder::new()
            .name("journal-writer".into())
            .spawn(move || write_all(&path, connection, &queue, &counted))
            .map_err(|source| StoreError::Io { path: shown, action: "given a writer thread", source })?;
        Ok(Writer { jobs: Some(jobs), thread: Some(thread), commits })
    }

    /// Queues a job. Does nothing when the thread is gone, which no barrier outlives: its answer is then dropped.
    pub fn queue(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been told by its own message.
            let _ = thread.join();
        }
    }
}

fn write_all(path: &Path, mut connection: Connection, queue: &Receiver<Job>, commits: &AtomicU64) {
    let opened = identity(path);
    // What could not be written yet, oldest first.
    let mut appends: Vec<Append> = Vec::new();
    while let Some(batch) = next_batch(queue) {
        let mut barriers = Vec::new();
        for job in batch {
            match job {
                Job::Append(append) => appends.push(append),
                Job::Barrier { fate, done } => barriers.push((fate, done)),
                Job::Forget { session } => appends.retain(|append| append.session != session),
            }
        }
        if identity(path) != opened {
            // SQLite would go on in a file that nobody finds again.
            let fates = appends.iter().map(|append| &append.fate).chain(barriers.iter().map(|(fate, _)| fate));
            fates.for_each(|fate| fate.fail(Failed::Vanished { path: path.display().to_string() }));
            appends.clear();
        }
        if !appends.is_empty() {
            appends = write_batch(path, &mut connection, appends, commits);
        }
        for (fate, done) in barriers {
            done(fate.error().map_or(Ok(()), Err));
        }
    }
}

/// What tells one file from another that has taken its place.
fn identity(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Writes the events in one transaction, or each session's in its own when that fails; returns what could not be
/// written.
fn write_batch(path: &Path, connection: &mut Connection, appends: Vec<Append>, commits: &AtomicU64) -> Vec<Append> {
    let settle = |connection: &mut Connection, appends: Vec<Append>| match commit(path, connection, &appends) {
        Ok(()) => {
            commits.fetch_add(1, Ordering::Relaxed);
            appends.iter().for_each(|append| append.fate.recover());
            Ok(())
        }
        Err(error) => Err((appends, error.to_string())),
    };
    let Err((appends, _)) = settle(connection, appends) else { return Vec::new() };
    let mut sessions: Vec<Vec<Append>> = Vec::new();
    for append in appends {
        match sessions.iter_mut().find(|session| session[0].session == append.session) {
            Some(session) => session.push(append),
            None => sessions.push(vec![append]),
        }
    }
    let mut left = Vec::new();
    for session in sessions {
        if let Err((appends, reason)) = settle(connection, session) {
            let failed = Failed::Database { path: path.display().to_string(), reason };
            appends.iter().for_each(|append| append.fate.fail(failed.clone()));
            left.extend(appends);
        }
    }
    left
}

/// Everything that is queued, or `None` when nobody queues any more.
fn next_batch(queue: &Receiver<Job>) -> Option<Vec<Job>> {
    let mut batch = vec![queue.recv().ok()?];
    let due = Instant::now() + WRITE_BEHIND;
    let mut hurry = matches!(batch[0], Job::Barrier { .. });
    while batch.len() < MOST_A_COMMIT {
        let wait = if hurry { Duration::ZERO } else { due.saturating_duration_since(Instant::now()) };
        match queue.recv_timeout(wait) {
            Ok(job) => {
                hurry |= matches!(job, Job::Barrier { .. });
                batch.push(job);
            }
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
        }
    }
    Some(batch)
}

fn commit(path: &Path, connection: &mut Connection, appends: &[Append]) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for append in appends.iter().filter(|append| !append.fate.is_final()) {
        if !claim_tail(&transaction, append)? {
            let tail = transaction
                .query_row("SELECT tail FROM sessions WHERE id = ?1", [&*append.session], |row| row.get::<_, i64>(0))
                .ok();
            append.fate.fail(Failed::Stale {
                path: format!("{} (session {})", path.display(), append.session),
                seq: append.seq,
                tail: tail.map(|tail| tail as u64),
            });
            continue;
        }
        transaction
            .prepare_cached(
                "INSERT INTO events (session, seq, type, time, line)
                 SELECT key, ?2, ?3, ?4, ?5 FROM sessions WHERE id = ?1",
            )?
            .execute(params![&*append.session, append.seq as i64, append.kind, append.time as i64, append.line])?;
    }
    transaction.commit()
}

/// Moves the session's tail over the event, where it is the expected one; the first event begins the session.
fn claim_tail(transaction: &Transaction<'_>, append: &Append) -> rusqlite::Result<bool> {
    let changed = if append.seq == 0 {
        transaction
            .prepare_cached("INSERT INTO sessions (id, created_at, tail) VALUES (?1, ?2, 1) ON CONFLICT DO NOTHING")?
            .execute(params![&*append.session, append.time as i64])?
    } else {
        transaction
            .prepare_cached("UPDATE sessions SET tail = tail + 1 WHERE id = ?1 AND tail = ?2")?
            .execute(params![&*append.session, append.seq as i64])?
    };
    Ok(changed == 1)
}

/// Takes a torn end off: the rows from `from`, where the session still ends at `tail`.
pub(super) fn cut(path: &Path, connection: &mut Connection, id: &str, from: u64, tail: u64) -> Result<(), StoreError> {
    let failed = database_error(path, "cut");
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(&failed)?;
    let moved = transaction
        .execute("UPDATE sessions SET tail = ?2 WHERE id = ?1 AND tail = ?3", params![id, from as i64, tail as i64])
        .map_err(&failed)?;
    if moved != 1 {
        return Err(StoreError::Stale {
            path: format!("{} (session {id})", path.display()),
            expected: tail,
            found: "it has grown meanwhile".into(),
        });
    }
    transaction
        .execute(
            "DELETE FROM events WHERE session = (SELECT key FROM sessions WHERE id = ?1) AND seq >= ?2",
            params![id, from as i64],
        )
        .map_err(&failed)?;
    transaction.commit().map_err(&failed)
}
