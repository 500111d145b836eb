//! The chain of executors that decides about a failed step: dispatch, `next`, swap, drain, kill and handover.
//!
//! Owns the current chain and the activations in it. It knows nothing of wasm or HTTP: executors are behind
//! [`executor::Executor`]. Called by the agent loop with each failed step, and by whoever publishes a new chain.

pub mod activation;
mod dispatch;
pub mod executor;
mod recovery;
mod swap;

pub use activation::{Activation, Identity};
pub use executor::{Call, Decision, Executor, FailedStep, Fault, FaultKind, Interruption, Record};
pub use recovery::{Recovered, RecoveryContext, recover};
pub use swap::{Chain, DrainReport, Retirement, Waterfall};

use std::time::Duration;

/// Consecutive faults after which an activation is asked no more, until it is replaced.
pub const QUARANTINE_AFTER: u32 = 5;

/// How often one failed step asks an activation that faulted on it.
pub const FAULTS_PER_STEP: u32 = 2;

/// How long an activation may take to drain after it was told to, before it is ended by force.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_millis(5_000);
