//! Where a session's lines go: the small interface of a store, and the store that only remembers.

use super::event::Event;
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
    #[error("{path} is being written by another process. Close that one, or use another --session.")]
    Locked { path: String },
    #[error("{path} is a symbolic link or not a regular file; a journal is never written through one.")]
    NotAFile { path: String },
    #[error(
        "{path} is damaged at line {line} (byte {offset}): {reason}. Complete turns follow the damage, so nothing was cut."
    )]
    Damaged { path: String, line: usize, offset: u64, reason: String },
    #[error("{path} is not a session of this version: {reason}.")]
    Unsupported { path: String, reason: String },
    #[error("The journal failed earlier and takes no more records: {0}")]
    Failed(String),
}

/// One session's log, open for writing by its one writer.
pub trait Log: Send {
    /// Writes one event. When this fails, nothing of it is in the log.
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
