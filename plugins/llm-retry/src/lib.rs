//! The official retry executor: applies the policy of the provider registration that served the failed call.
//!
//! - [`decide`]: the decision, straight-line code over [`host::Host`].
//! - [`delay`], [`key`], [`config`]: its parts, pure functions.
//! - [`data`], [`host`]: what it is told, and what it may do.
//! - `component`: the shell that makes a component of it; it exists on wasm32 alone, so everything else is tested
//!   natively.
//!
//! It keeps no state: how often a turn has been retried stands in the journal.

pub mod config;
pub mod data;
pub mod decide;
pub mod delay;
pub mod host;
pub mod key;

#[cfg(target_arch = "wasm32")]
mod component;
