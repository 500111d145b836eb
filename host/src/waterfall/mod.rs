//! The chain of executors.

pub mod executor;
