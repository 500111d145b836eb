//! Adapters: what is different between the protocols, and what providers over HTTP share.
//!
//! An adapter turns a request into exactly one wire request and its answer into chunks. It retries nothing and keeps
//! nothing between two calls. The way of a call: `provider` (configuration) → `call` (one request, its limits, its
//! stream) → `sse` (bytes to events) → the protocol's answer (events to chunks); what goes wrong goes to
//! `report`, which reads what was said and gives it its code, and to `naming`, which makes the failure.

mod answer;
mod call;
mod chat_answer;
mod chat_request;
mod dialect;
pub mod http;
mod json_text;
mod messages_answer;
mod messages_request;
mod naming;
mod page;
mod provider;
mod provider_error;
mod report;
mod responses_answer;
mod responses_request;
pub mod secret;
mod sign;
pub mod sse;

pub use dialect::Dialect;
pub use http::Limits;
pub use provider::{Bounds, ConfigError, HttpProvider, ProviderConfig};
pub use report::classify_fixture;
pub use secret::Secret;
