//! cli.

pub mod chaos;
