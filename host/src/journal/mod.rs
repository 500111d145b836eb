//! The durable record of a session.

pub mod number;
