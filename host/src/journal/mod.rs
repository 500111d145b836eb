//! The durable record of a session, and what can be derived from it.
//!
//! Owns the events, the rules that they obey, the stores that keep them, and the fold that sums them up. It never
//! decides anything. Called by the agent loop for what happens, and by the waterfall for what executors record.

pub mod event;
#[cfg(test)]
pub(crate) mod fixture;
pub mod invariants;
pub mod jsonl;
mod lease;
pub mod number;
pub mod projection;
pub mod record;
pub mod schema;
pub mod sqlite;
pub mod state;
pub mod store;
#[cfg(test)]
mod store_tests;
mod stream;
mod sync;
pub mod verify;

pub use event::{Body, Event};
pub use invariants::Violation;
pub use jsonl::{JsonlLog, JsonlStore};
pub use sqlite::SqliteStore;
pub use state::SessionState;
pub use store::{Log, MemoryLog, Store, StoreError};

use crate::env::Clock;
use parking_lot::Mutex;
use std::sync::Arc;

/// Why a record was not appended.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The record breaks a rule; the log is unchanged and goes on.
    #[error("The record breaks a rule of the journal, {0}")]
    Invalid(#[from] Violation),
    /// The store failed. The journal takes no more records until it works again, and none at all when what is on disk
    /// can no longer be known.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Sees every event just after it was appended, in order.
pub trait Observer: Send + Sync {
    /// Called while the journal is locked: must be quick and must not append.
    fn appended(&self, session: &str, event: &Event);
}

/// One session's journal: checks, writes, folds, and tells its observers.
pub struct Journal {
    session: String,
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
}

struct Inner {
    log: Box<dyn Log>,
    state: SessionState,
    observers: Vec<Arc<dyn Observer>>,
    /// The sentence of the failure after which nothing is appended any more.
    failed: Option<String>,
}

impl Journal {
    /// A journal over `log`, whose events so far add up to `state`.
    pub fn new(session: impl Into<String>, clock: Arc<dyn Clock>, log: Box<dyn Log>, state: SessionState) -> Journal {
        Journal {
            session: session.into(),
            clock,
            inner: Mutex::new(Inner { log, state, observers: Vec::new(), failed: None }),
        }
    }

    /// A journal in memory, and a view of its events.
    pub fn in_memory(session: impl Into<String>, clock: Arc<dyn Clock>) -> (Journal, MemoryLog) {
        let log = MemoryLog::default();
        (Journal::new(session, clock, Box::new(log.clone()), SessionState::default()), log)
    }

    pub fn session(&self) -> &str {
        &self.session
    }

    pub fn observe(&self, observer: Arc<dyn Observer>) {
        self.inner.lock().observers.push(observer);
    }

    /// Reads something from the sum of all events so far.
    pub fn with_state<T>(&self, read: impl FnOnce(&SessionState) -> T) -> T {
        read(&self.inner.lock().state)
    }

    /// Appends one event and returns its sequence number. It is in the store when this returns, but a crash of the
    /// machine may lose it until [`Journal::flush`].
    pub fn append(&self, body: Body) -> Result<u64, JournalError> {
        self.append_all([body], None)
    }

    /// Appends a surface message that cites the events it was made of.
    pub fn append_citing(&self, body: Body, source_event_seqs: Vec<u64>) -> Result<u64, JournalError> {
        self.append_all([body], Some(source_event_seqs))
    }

    /// Appends `first` and `then` with nothing between them, or neither of them when a rule forbids one.
    pub fn append_pair(&self, first: Body, then: Body) -> Result<u64, JournalError> {
        self.append_all([first, then], None)
    }

    fn append_all<const N: usize>(&self, bodies: [Body; N], citing: Option<Vec<u64>>) -> Result<u64, JournalError> {
        let mut inner = self.inner.lock();
        if let Some(reason) = &inner.failed {
            return Err(StoreError::Failed(reason.clone()).into());
        }
        for body in &bodies {
            invariants::check(&inner.state, body, citing.as_deref())?;
        }
        let time = self.clock.wall_ms();
        let mut citing = citing;
        let mut seq = 0;
        for body in bodies {
            seq = inner.state.next_seq;
            let event = Event { seq, time, body, source_event_seqs: citing.take() };
            if let Err(error) = inner.log.write(&event) {
                if !error.is_momentary() {
                    inner.failed = Some(error.to_string());
                }
                return Err(error.into());
            }
            inner.state.apply(event.time, &event.body);
            for observer in &inner.observers {
                observer.appended(&self.session, &event);
            }
        }
        Ok(seq)
    }

    /// Completes when everything appended so far survives a crash of the machine.
    pub async fn flush(&self) -> Result<(), JournalError> {
        let durable = {
            let mut inner = self.inner.lock();
            if let Some(reason) = &inner.failed {
                return Err(StoreError::Failed(reason.clone()).into());
            }
            inner.log.durable()
        };
        if let Err(error) = durable.await {
            // The kernel may have dropped what it could not flush: nothing after this can be trusted to follow it.
            if !error.is_momentary() {
                self.inner.lock().failed = Some(error.to_string());
            }
            return Err(error.into());
        }
        Ok(())
    }
}
