//! Where sessions are kept: the small interface of a store, and the log that only remembers.

use super::{
    event::Event,
    record::{self, Contents, Raw, TornTail},
    state::SessionState,
};
use futures_util::future::BoxFuture;
use std::sync::Arc;

/// Why a store could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "Session \"{0}\" is not a valid name: use 1 to 128 letters, digits, \"-\", \"_\" or \".\", not starting with \".\"."
    )]
    SessionId(String),
    #[error("{path} could not be {action}: {source}.")]
    Io { path: String, action: &'static str, source: std::io::Error },
    #[error(
        "{path} could not be written ({write}), and what had been written of the record could not be taken back ({rollback})."
    )]
    Rollback { path: String, write: std::io::Error, rollback: std::io::Error },
    #[error(
        "{path} is being written by another process{}. It can be read meanwhile; to write, end that one or use another --session.",
        by.map_or_else(String::new, |by| format!(" ({by})"))
    )]
    Locked {
        path: String,
        /// The process id of the writer, where it could be read.
        by: Option<u32>,
    },
    #[error(
        "{path} does not end where this process left it ({expected} was expected, {found}): something else has written it. Nothing was added."
    )]
    Stale { path: String, expected: u64, found: String },
    #[error("{path} has been removed or replaced while it was being written; what follows would be lost.")]
    Vanished { path: String },
    #[error("{path} could not be {action}: {reason}.")]
    Database { path: String, action: &'static str, reason: String },
    #[error("There is no session \"{id}\": {path} does not exist.")]
    Missing { id: String, path: String },
    #[error("{path} is a symbolic link or not a regular file; a journal is never written through one.")]
    NotAFile { path: String },
    #[error(
        "{path} is damaged at line {line} (byte {offset}): {reason}. It can be shown and exported up to there, and was left as it is."
    )]
    Damaged { path: String, line: usize, offset: u64, reason: String },
    #[error("{path} could not be read: {reason}.")]
    Unreadable { path: String, reason: String },
    #[error("{path} is not a session of this version: {reason}.")]
    Unsupported { path: String, reason: String },
    #[error("The journal failed earlier and takes no more records: {0}")]
    Failed(String),
}

impl StoreError {
    /// Nothing of the record was kept and the log is as it was before, so that it goes on when the cause is gone, such
    /// as a full disk.
    pub fn is_momentary(&self) -> bool {
        matches!(self, StoreError::Io { action: "written", .. } | StoreError::Database { action: "written", .. })
    }

    /// The session `path` cannot be gone on with, since its record is unreadable at `place`.
    pub(super) fn damaged(path: String, place: &TornTail) -> StoreError {
        StoreError::Damaged { path, line: place.line, offset: place.offset, reason: place.reason.clone() }
    }
}

/// Keeps the records of many sessions.
pub trait Store: Send + Sync {
    /// Opens a session for writing, or prepares a new one: nothing of a new one is kept before its first event. A torn
    /// end is taken off. Errors: another process writes it, it is damaged, or the store fails.
    fn open(&self, id: &str) -> Result<Opened, StoreError>;

    /// The record as bytes, whatever its state; `None` when there is none. Never changes it. Errors: the store fails.
    fn raw(&self, id: &str) -> Result<Option<Raw>, StoreError>;

    /// The sessions, by id. One that cannot be read is among them. Errors: the store itself cannot be read.
    fn list(&self) -> Result<Vec<Listed>, StoreError>;

    /// Whether there is a session `id`, readable or not. Errors: the store itself cannot be read.
    fn contains(&self, id: &str) -> Result<bool, StoreError> {
        Ok(self.list()?.iter().any(|listed| listed.id == id))
    }

    /// The process that writes the session `id` now, if there is one and it can be told.
    fn writer_of(&self, id: &str) -> Option<u32>;

    /// What people call the record of a session.
    fn name_of(&self, id: &str) -> String;

    /// Reads a session up to its end or its damage. Never changes it. Errors: there is none, its header is of no
    /// version that this build reads, or the store fails.
    fn read(&self, id: &str) -> Result<Contents, StoreError> {
        let name = self.name_of(id);
        match self.raw(id)? {
            Some(raw) => record::parse(&name, &raw),
            None => Err(StoreError::Missing { id: id.to_owned(), path: name }),
        }
    }
}

/// A session of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub id: String,
    /// When it was last written, in milliseconds since the Unix epoch.
    pub modified_ms: u64,
}

/// A session that was opened for writing.
pub struct Opened<L = Box<dyn Log>> {
    pub log: L,
    /// What its events so far add up to.
    pub state: SessionState,
    /// What was taken off its end.
    pub torn: Option<TornTail>,
}

impl<L: Log + 'static> Opened<L> {
    pub(super) fn empty(log: L) -> Opened<L> {
        Opened { log, state: SessionState::default(), torn: None }
    }

    pub(super) fn boxed(self) -> Opened {
        Opened { log: Box::new(self.log), state: self.state, torn: self.torn }
    }
}

/// One session's log, open for writing by its one writer.
pub trait Log: Send {
    /// Takes one event. When this fails, nothing of it is in the log, nor of any later one that is not written again. A
    /// store that writes behind may tell of a failure with the next event, or when the event is to be durable; it keeps
    /// what it could not write, and writes it before anything else.
    fn write(&mut self, event: &Event) -> Result<(), StoreError>;

    /// Completes when everything written before this call survives a crash of the machine.
    fn durable(&mut self) -> BoxFuture<'static, Result<(), StoreError>>;
}

/// A log in memory, for tests, benches and embedded use.
#[derive(Clone, Default)]
pub struct MemoryLog {
    events: Arc<parking_lot::Mutex<Vec<Event>>>,
}

impl MemoryLog {
    /// All events so far.
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().clone()
    }
}

impl Log for MemoryLog {
    fn write(&mut self, event: &Event) -> Result<(), StoreError> {
        self.events.lock().push(event.clone());
        Ok(())
    }

    fn durable(&mut self) -> BoxFuture<'static, Result<(), StoreError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
