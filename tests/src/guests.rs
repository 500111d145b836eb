//! The guests of the tests, as components built from `tests/guests`.

use crate::runtime;
use retake::{profile::activate, waterfall::Activation};
use serde_json::{Value, json};
use std::sync::Arc;

/// Does what its configuration `{"do": "…"}` says.
pub const MISBEHAVE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/misbehave.wasm"));

/// Imports WASI, looks around in it, and fails if it finds anything.
pub const WASI_USER: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/wasi_user.wasm"));

/// An activation, under its own id, of the guest that does `deed`: `{"do": "panic", "text": "…"}`.
pub async fn misbehaving(deed: Value) -> Arc<Activation> {
    misbehaving_within(deed, Value::Null).await
}

/// The same, with the entry's `limits`.
pub async fn misbehaving_within(deed: Value, limits: Value) -> Arc<Activation> {
    activate(&runtime(), "misbehave", MISBEHAVE.into(), deed, limits).await.expect("the guest can be activated")
}

/// An activation of the guest that imports WASI.
pub async fn wasi_user() -> Arc<Activation> {
    activate(&runtime(), "wasi-user", WASI_USER.into(), json!({}), Value::Null).await.expect("WASI is offered, inert")
}
