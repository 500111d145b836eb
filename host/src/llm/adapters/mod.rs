//! Adapters: one file a protocol, and what protocols over HTTP share.
//!
//! An adapter turns a request into exactly one wire request and its answer into chunks. It retries nothing and keeps
//! nothing between two calls.

mod chat_answer;
mod chat_request;
pub mod http;
pub mod openai_chat;
mod provider_error;
pub mod secret;
mod sse;

pub use http::Limits;
pub use openai_chat::{ConfigError, OpenAiChat, OpenAiChatConfig};
pub use secret::Secret;
