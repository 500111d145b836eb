//! The current chain, its atomic replacement, and the retirement of what the new one does not hold.

use super::{DEFAULT_DRAIN_TIMEOUT, activation::Activation};
use arc_swap::ArcSwap;
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// An immutable ordered list of activations.
pub struct Chain {
    /// Counts up from 1 with each publication.
    pub generation: u64,
    pub activations: Vec<Arc<Activation>>,
}

/// The one place where the current chain stands. A dispatch sees the old chain or the new one, never neither.
pub struct Waterfall {
    current: ArcSwap<Chain>,
    publishing: Mutex<()>,
    /// In milliseconds.
    drain_timeout: AtomicU64,
}

impl Waterfall {
    /// Generation 1.
    pub fn new(activations: Vec<Arc<Activation>>) -> Waterfall {
        Waterfall {
            current: ArcSwap::from_pointee(Chain { generation: 1, activations }),
            publishing: Mutex::new(()),
            drain_timeout: AtomicU64::new(DEFAULT_DRAIN_TIMEOUT.as_millis() as u64),
        }
    }

    /// How long calls may take to end when they are told to.
    pub fn drain_timeout(&self) -> Duration {
        Duration::from_millis(self.drain_timeout.load(Ordering::Relaxed))
    }

    /// Sets the timeout for what ends from now on.
    pub fn set_drain_timeout(&self, timeout: Duration) {
        self.drain_timeout.store(u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn current(&self) -> Arc<Chain> {
        self.current.load_full()
    }

    /// Publishes the next generation with one pointer swap, and tells the activations that are gone to end. Those that
    /// stand in both chains (the same `Arc`) go on untouched.
    pub fn publish(&self, activations: Vec<Arc<Activation>>) -> Retirement {
        let _one_at_a_time = self.publishing.lock();
        let generation = self.current.load().generation + 1;
        let old = self.current.swap(Arc::new(Chain { generation, activations: activations.clone() }));
        let retired: Vec<_> = old
            .activations
            .iter()
            .filter(|old| !activations.iter().any(|new| Arc::ptr_eq(old, new)))
            .cloned()
            .collect();
        // After the swap: a call that ends because of this finds the new chain.
        for activation in &retired {
            activation.retire();
        }
        Retirement { generation, retired, deadline: self.drain_timeout() }
    }

    /// Retires every activation, as at the end of the host.
    pub fn close(&self) -> Retirement {
        self.publish(Vec::new())
    }
}

/// Activations that were told to end and are ending.
#[must_use = "calls that do not end by themselves are only ended by `drain`"]
pub struct Retirement {
    /// The generation that took over.
    pub generation: u64,
    pub retired: Vec<Arc<Activation>>,
    deadline: Duration,
}

/// How a retirement went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// Activations that ended.
    pub retired: usize,
    /// Calls that were still in flight at the deadline and were ended by force.
    pub killed_calls: usize,
}

impl Retirement {
    /// Waits until no retired activation has a call in flight; at the deadline what is left is ended by force.
    pub async fn drain(self) -> DrainReport {
        let deadline = self.deadline;
        let retired = self.retired.len();
        let drains = self.retired.into_iter().map(|activation| async move { activation.drain(deadline).await });
        let killed_calls = futures_util::future::join_all(drains).await.into_iter().sum();
        DrainReport { retired, killed_calls }
    }
}
