//! The SQLite store: one database, `sessions.db`, for many sessions.
//!
//! What it keeps of each event is the line that the JSONL store would write, so that both are read by the same code.
//! Durable appends of many sessions share one commit: see `writer`.

mod schema;
#[cfg(test)]
mod tests;
mod writer;

use super::{
    event::Event,
    lease::{self, Lease},
    record::{self, FileHeader, Raw},
    store::{Listed, Log, Opened, Store, StoreError},
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension};
use schema::database_error;
use std::{
    path::{Path, PathBuf},
    sync::{Arc, atomic::Ordering, mpsc},
};
use writer::{Append, Fate, Job, Writer};

/// The database's name in the directory of sessions.
pub const FILE_NAME: &str = "sessions.db";

/// A database of sessions. Nothing of it is created before the first event, and its writer begins with the first
/// session that is opened for writing.
pub struct SqliteStore {
    dir: PathBuf,
    path: PathBuf,
    writer: Arc<LazyWriter>,
}

/// The one writer of a process, once there is something to write.
struct LazyWriter {
    path: PathBuf,
    started: Mutex<Option<Arc<Writer>>>,
}

impl LazyWriter {
    fn get(&self) -> Result<Arc<Writer>, StoreError> {
        let mut started = self.started.lock();
        if let Some(writer) = &*started {
            return Ok(writer.clone());
        }
        let connection = schema::open_for_writing(&self.path)?;
        let writer = Arc::new(Writer::start(self.path.clone(), connection)?);
        *started = Some(writer.clone());
        Ok(writer)
    }
}

impl SqliteStore {
    /// The store in `dir`. Nothing is created or opened yet.
    pub fn new(dir: &Path) -> SqliteStore {
        let path = dir.join(FILE_NAME);
        let writer = Arc::new(LazyWriter { path: path.clone(), started: Mutex::new(None) });
        SqliteStore { dir: dir.to_owned(), path, writer }
    }

    /// How many transactions this process has committed to the store: far fewer than there were durable appends, when
    /// many sessions write at once.
    pub fn commits(&self) -> u64 {
        self.writer.started.lock().as_ref().map_or(0, |writer| writer.commits.load(Ordering::Relaxed))
    }

    /// What can be read of a session, and why that is not all of it.
    fn raw_of(&self, connection: &Connection, id: &str) -> rusqlite::Result<Option<Raw>> {
        let found = connection
            .query_row("SELECT key, created_at, tail FROM sessions WHERE id = ?1", [id], |row| {
                Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
            })
            .optional()?;
        let Some((key, created_at, tail)) = found else { return Ok(None) };
        let header = serde_json::to_vec(&FileHeader::new(id, created_at.max(0) as u64));
        let mut bytes = header.map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))?;
        bytes.push(b'\n');
        let mut rows = connection.prepare("SELECT line FROM events WHERE session = ?1 ORDER BY seq")?;
        let mut rows = rows.query([key])?;
        let mut count = 0_i64;
        let unreadable = loop {
            match rows.next() {
                Ok(Some(row)) => {
                    // A row that holds a line break would pass for two; as a break inside a text it is told as damage.
                    let line = row.get_ref(0)?.as_bytes()?;
                    bytes.extend(line.iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }));
                    bytes.push(b'\n');
                    count += 1;
                }
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        let lost = match unreadable {
            Some(error) => Some(format!("the database cannot be read any further ({error})")),
            None if count == tail => None,
            None => Some(format!("the session has {tail} events, of which {count} are in the database")),
        };
        Ok(Some(Raw { bytes, lost }))
    }

    fn reading<T>(&self, read: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<Option<T>, StoreError> {
        let Some(connection) = schema::open_for_reading(&self.path)? else { return Ok(None) };
        read(&connection).map(Some).map_err(database_error(&self.path, "read"))
    }
}

impl Store for SqliteStore {
    fn open(&self, id: &str) -> Result<Opened, StoreError> {
        record::check_id(id)?;
        let name = self.name_of(id);
        let lease = Lease::take(&self.dir, id, &name)?;
        let mut opened = Opened::empty(SqliteLog {
            session: id.into(),
            next_seq: 0,
            writer: self.writer.clone(),
            queue: None,
            fate: Arc::default(),
            _lease: lease,
        });
        if schema::open_for_reading(&self.path)?.is_none() {
            return Ok(opened.boxed());
        }
        opened.log.queue = Some(self.writer.get()?);
        let mut connection = schema::open_for_writing(&self.path)?;
        let raw = self.raw_of(&connection, id).map_err(database_error(&self.path, "read"))?;
        let Some(raw) = raw else { return Ok(opened.boxed()) };
        let contents = record::parse(&name, &raw)?;
        if let Some(obstacle) = contents.obstacle() {
            return Err(StoreError::damaged(name, obstacle));
        }
        let next_seq = contents.events.len() as u64;
        if contents.torn.is_some() {
            let tail = raw.bytes.iter().filter(|&&byte| byte == b'\n').count() as u64 - 1;
            writer::cut(&self.path, &mut connection, id, next_seq, tail)?;
        }
        opened.log.next_seq = next_seq;
        opened.state = contents.state;
        opened.torn = contents.torn;
        Ok(opened.boxed())
    }

    fn raw(&self, id: &str) -> Result<Option<Raw>, StoreError> {
        record::check_id(id)?;
        Ok(self.reading(|connection| self.raw_of(connection, id))?.flatten())
    }

    fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let listed = self.reading(|connection| {
            let mut sessions = connection.prepare("SELECT id, created_at, key FROM sessions ORDER BY id")?;
            let mut newest =
                connection.prepare("SELECT time FROM events WHERE session = ?1 ORDER BY seq DESC LIMIT 1")?;
            let rows = sessions.query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?)))?;
            rows.map(|row| {
                let (id, created_at, key) = row?;
                // A session whose last event cannot be read is listed all the same.
                let time = newest.query_row([key], |row| row.get::<_, i64>(0)).unwrap_or(created_at);
                Ok(Listed { id, modified_ms: time.max(0) as u64 })
            })
            .collect()
        })?;
        Ok(listed.unwrap_or_default())
    }

    fn writer_of(&self, id: &str) -> Option<u32> {
        lease::holder(&self.dir, id)
    }

    fn name_of(&self, id: &str) -> String {
        format!("{} (session {id})", self.path.display())
    }
}

/// One session of a database, open for writing.
pub struct SqliteLog {
    session: Arc<str>,
    next_seq: u64,
    writer: Arc<LazyWriter>,
    /// Absent until there is something to write.
    queue: Option<Arc<Writer>>,
    fate: Arc<Fate>,
    _lease: Lease,
}

impl SqliteLog {
    /// Waits until everything queued so far is on disk, or cannot be brought there.
    fn barrier(&self) -> Result<(), StoreError> {
        let Some(queue) = &self.queue else { return Ok(()) };
        let (sender, receiver) = mpsc::channel();
        let done = Box::new(move |result| {
            let _ = sender.send(result);
        });
        queue.queue(Job::Barrier { fate: self.fate.clone(), done });
        receiver.recv().unwrap_or_else(|_| Err(writer_ended()))
    }
}

fn writer_ended() -> StoreError {
    StoreError::Failed("Its writer thread has ended.".into())
}

impl Log for SqliteLog {
    fn write(&mut self, event: &Event) -> Result<(), StoreError> {
        if let Some(error) = self.fate.error() {
            // What could not be written is tried again before anything may follow it.
            if !error.is_momentary() || self.barrier().is_err() {
                return Err(error);
            }
        }
        let line = serde_json::to_string(event).map_err(|error| StoreError::Io {
            path: self.session.to_string(),
            action: "encoded",
            source: error.into(),
        })?;
        let queue = match &self.queue {
            Some(queue) => queue,
            None => self.queue.insert(self.writer.get()?),
        };
        queue.queue(Job::Append(Append {
            session: self.session.clone(),
            seq: self.next_seq,
            kind: event.body.type_name().to_owned(),
            time: event.time,
            line,
            fate: self.fate.clone(),
        }));
        self.next_seq += 1;
        Ok(())
    }

    fn durable(&mut self) -> BoxFuture<'static, Result<(), StoreError>> {
        let Some(queue) = &self.queue else { return Box::pin(std::future::ready(Ok(()))) };
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let done = Box::new(move |result| {
            // Whoever asked may be gone.
            let _ = sender.send(result);
        });
        queue.queue(Job::Barrier { fate: self.fate.clone(), done });
        Box::pin(async move { receiver.await.unwrap_or_else(|_| Err(writer_ended())) })
    }
}

impl Drop for SqliteLog {
    fn drop(&mut self) {
        // The lease goes only when everything is written: its next holder reads the session's end. What could not be
        // written has been told with the last barrier, and is given up with its session.
        let _ = self.barrier();
        if let Some(queue) = &self.queue {
            queue.queue(Job::Forget { session: self.session.clone() });
        }
    }
}
