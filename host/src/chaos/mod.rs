//! The chaos provider: a local server that speaks the streaming protocols of the adapters and fails on a script.
//!
//! It owns the script language, the responses and a small HTTP/1.1 server that can also do what a good server never
//! does: cut, stall, reset and send raw bytes. It listens on loopback only and never calls anything of the host.
//! The demo, the profile loader (`chaos:` of a provider), the `retake chaos` command and tests start it.
//!
//! ```no_run
//! # async fn demo() -> Result<(), Box<dyn std::error::Error>> {
//! use retake::chaos::{ChaosOptions, ChaosServer, Script};
//! let server = ChaosServer::start(Script::parse("429:retry-after=1, cut:3, ok")?, ChaosOptions::default()).await?;
//! println!("{}", server.base_url()); // http://127.0.0.1:…/v1
//! # Ok(())
//! # }
//! ```
//!
//! # The script language
//!
#![doc = include_str!("script.md")]

mod answer;
mod connection;
mod parse;
mod protocol;
mod response;
mod scan;
mod script;
mod server;
#[cfg(test)]
mod tests;

pub use answer::PARTIAL_MARK;
pub use parse::{MAX_PAUSE_MS, MAX_TIMES, MAX_WORDS, ScriptError};
pub use script::{Body, Ending, ErrorObject, Play, RawEnd, RawSource, Script, Step, Stream, Words};
pub use server::{ChaosError, ChaosEvent, ChaosOptions, ChaosServer, RecordedRequest, ScriptScope};

/// The description of the script language, as Markdown: the same text that stands above.
pub const SCRIPT_LANGUAGE: &str = include_str!("script.md");
