//! Tests that run components: what ends a call, what a call cannot do to others, and what is refused before it runs.

mod calls;
mod faults;
mod loading;

use super::{EntrySpec, Runtime, RuntimeConfig, WasmExecutor, fixture::*};
use crate::waterfall::executor::{Decision, Executor as _, Fault};
use serde_json::{Value, json};
use std::sync::{Arc, OnceLock};
use tokio_util::sync::CancellationToken;

/// A runtime that all tests share: setting one up costs more than a test.
fn runtime() -> Arc<Runtime> {
    static RUNTIME: OnceLock<Arc<Runtime>> = OnceLock::new();
    RUNTIME.get_or_init(|| small_runtime(100)).clone()
}

fn small_runtime(max_parked: usize) -> Arc<Runtime> {
    Runtime::new(RuntimeConfig { cache_dir: None, max_parked }).unwrap()
}

async fn executor(guest: Guest) -> WasmExecutor {
    limited(guest, Value::Null).await
}

async fn limited(guest: Guest, limits: Value) -> WasmExecutor {
    prepared(&runtime(), guest, limits).await
}

async fn prepared(runtime: &Arc<Runtime>, guest: Guest, limits: Value) -> WasmExecutor {
    let component = runtime.load(guest.build()).await.unwrap_or_else(|error| panic!("{error}"));
    let entry = EntrySpec { id: "test".into(), config: json!({}), limits };
    component.prepare(entry).await.unwrap_or_else(|error| panic!("{error}"))
}

async fn ask(executor: &WasmExecutor, call: &Arc<Recorder>) -> Result<Decision, Fault> {
    executor.request_error(step(), call.clone(), CancellationToken::new()).await
}
