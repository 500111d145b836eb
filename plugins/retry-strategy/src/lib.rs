//! A retry executor with a budget and a wait of its own: fixed, linear or exponential, for all providers alike.
//!
//! It takes the place of `llm-retry` (see `retake.patch.yml`) and shares nothing with it but the interface.
//!
//! - [`config`]: the settings, their bounds and their schema.
//! - [`policy`]: the policy that follows from the settings and the provider, its delays and its key.
//! - [`decide`]: the decision, straight-line code over [`host::Host`].
//! - [`data`], [`host`]: what it is told, and what it may do.
//! - `component`: the shell that makes a component of it; it exists on wasm32 alone, so everything else is tested
//!   natively.

pub mod config;
pub mod data;
pub mod decide;
pub mod host;
pub mod policy;

#[cfg(target_arch = "wasm32")]
mod component;
