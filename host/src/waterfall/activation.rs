//! One executor, enabled with one config in one or more generations: its lifetime, its calls in flight, its faults.

use super::{
    QUARANTINE_AFTER,
    executor::{Executor, Fault},
};
use crate::journal::event::{ExecutorIdentity, ExecutorRef};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Who an executor is: the entry's id, and which bytes with which config.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub id: String,
    pub name: String,
    pub version: String,
    /// SHA-256 of the component, in hex; native executors give a name of their own.
    pub digest: String,
    /// The entry's config and limits as canonical JSON text; equal text means equal behaviour.
    pub config: String,
}

impl Identity {
    /// The beginning of the digest, for people.
    pub fn short_digest(&self) -> &str {
        self.digest.get(..12).unwrap_or(&self.digest)
    }

    pub fn reference(&self) -> ExecutorRef {
        ExecutorRef { id: self.id.clone(), digest: self.digest.clone() }
    }

    pub fn for_journal(&self) -> ExecutorIdentity {
        ExecutorIdentity {
            id: self.id.clone(),
            name: self.name.clone(),
            version: self.version.clone(),
            digest: self.digest.clone(),
        }
    }
}

/// An executor in service. Ends by retirement (its lifetime token), and by force if it does not drain (its kill token).
pub struct Activation {
    pub identity: Identity,
    pub(super) executor: Arc<dyn Executor>,
    lifetime: CancellationToken,
    kill: CancellationToken,
    active: AtomicUsize,
    idle: Notify,
    consecutive_faults: AtomicU32,
}

impl Activation {
    pub fn new(identity: Identity, executor: Arc<dyn Executor>) -> Arc<Activation> {
        Arc::new(Activation {
            identity,
            executor,
            lifetime: CancellationToken::new(),
            kill: CancellationToken::new(),
            active: AtomicUsize::new(0),
            idle: Notify::new(),
            consecutive_faults: AtomicU32::new(0),
        })
    }

    /// The activation was swapped out.
    pub fn is_retired(&self) -> bool {
        self.lifetime.is_cancelled()
    }

    /// Five calls in a row faulted; it is asked no more.
    pub fn is_quarantined(&self) -> bool {
        self.consecutive_faults.load(Ordering::Relaxed) >= QUARANTINE_AFTER
    }

    /// Calls in flight.
    pub fn active_calls(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    pub(super) fn lifetime(&self) -> &CancellationToken {
        &self.lifetime
    }

    pub(super) fn kill_token(&self) -> &CancellationToken {
        &self.kill
    }

    pub(super) fn enter(self: &Arc<Self>) -> ActiveCall {
        self.active.fetch_add(1, Ordering::AcqRel);
        ActiveCall(self.clone())
    }

    /// Counts the outcome of a call. Returns true when this very fault quarantined the activation.
    pub(super) fn settle<T>(&self, outcome: &Result<T, Fault>) -> bool {
        match outcome {
            Ok(_) => {
                self.consecutive_faults.store(0, Ordering::Relaxed);
                false
            }
            Err(_) => self.consecutive_faults.fetch_add(1, Ordering::Relaxed) + 1 == QUARANTINE_AFTER,
        }
    }

    /// Tells every call to end.
    pub(super) fn retire(&self) {
        self.lifetime.cancel();
    }

    /// Waits for the calls in flight, then ends what is left by force. Returns how many had to be.
    pub(super) async fn drain(&self, deadline: Duration) -> usize {
        if tokio::time::timeout(deadline, self.wait_idle()).await.is_ok() {
            return 0;
        }
        let killed = self.active_calls();
        self.kill.cancel();
        // A killed call is dropped at its next poll, at the latest at the next tick of the epoch.
        self.wait_idle().await;
        killed
    }

    async fn wait_idle(&self) {
        loop {
            let idle = self.idle.notified();
            tokio::pin!(idle);
            // Registered before the count is read, so that no wake-up between the two is lost.
            idle.as_mut().enable();
            if self.active_calls() == 0 {
                return;
            }
            idle.await;
        }
    }
}

/// A call in flight; counted out by its drop, however the call ends.
pub(super) struct ActiveCall(Arc<Activation>);

impl Drop for ActiveCall {
    fn drop(&mut self) {
        if self.0.active.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.idle.notify_waiters();
        }
    }
}
