//! Retake: LLM agent turns whose failed model requests are decided by WebAssembly components.
//!
//! The house, from the street to the cellar:
//!
//! - [`cli`]: the `retake` command; one file a command, thin.
//! - [`agent`]: sessions and the turn loop. It closes a failed step and asks the waterfall.
//! - [`profile`]: profiles, bundles and patches, composed into routes and executor entries.
//! - [`waterfall`]: the chain of executors: dispatch, `next`, drain, swap, handover. It knows nothing of wasm or HTTP.
//! - [`wasm`]: runs one executor call in a component, within limits. It knows nothing of journals or HTTP.
//! - [`journal`]: the durable record of a session, and what can be derived from it.
//! - [`llm`]: routes, retry policies, failures, and the adapters that speak to providers.
//! - [`chaos`]: a scripted faulty provider, for demos and tests.
//! - [`env`]: time and randomness, as two small traits.
//!
//! Dependencies point one way: `cli → agent, profile → waterfall → wasm, journal, llm`.

pub mod agent;
pub mod chaos;
pub mod cli;
pub mod env;
pub mod journal;
pub mod llm;
pub mod profile;
pub mod wasm;
pub mod waterfall;
