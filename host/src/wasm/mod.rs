//! Runs executors that are WebAssembly components.
//!
//! A component is loaded once ([`Runtime::load`]: preflight, compile, cache, link), prepared for an entry
//! ([`LoadedComponent::prepare`]: the canary), and then answers through [`WasmExecutor`], with a fresh instance for
//! every call and within limits. It knows nothing of journals, providers or chains: what a guest asks for goes through
//! the waterfall's `Call`. Called by `profile` and the command (to load) and by `waterfall` (to run).
//!
//! | file | owns |
//! |---|---|
//! | `limits` | the table of limits |
//! | `engine` | the two engines and the epoch |
//! | `preflight`, `shape` | what a component imports and exports, before it is compiled |
//! | `compile`, `cache` | from bytes to linked code |
//! | `component` | the canary |
//! | `call`, `bindings`, `wasi` | one call, and the host's side of the imports |
//! | `executor` | the waterfall's trait, and the cap of parked calls |
//! | `fault`, `error` | what went wrong, in sentences |
//! | `inspect` | what can be said about a file |

mod bindings;
mod cache;
mod call;
mod compile;
mod component;
mod engine;
mod error;
mod executor;
mod fault;
mod inspect;
pub mod limits;
mod preflight;
mod shape;
mod wasi;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;

pub use compile::{LoadPhase, LoadProgress, Origin};
pub use component::{EntrySpec, LoadedComponent, Manifest};
pub use engine::RuntimeError;
pub use error::{ConfigProblem, LoadError};
pub use executor::WasmExecutor;
pub use inspect::{FileKind, Inspection};
pub use limits::{LimitError, Limits};
pub use preflight::Mismatch;

use cache::Cache;
use compile::Compiler;
use engine::Engines;
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Weak},
};
use tokio::sync::{Semaphore, oneshot, watch};

/// How a runtime is set up.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Where compiled components are kept; nowhere if absent.
    pub cache_dir: Option<PathBuf>,
    /// Calls at the head of a chain that may be in flight at once, most of them waiting; at least 1. The next one
    /// waits for a place. The pool of slots is sized for it.
    pub max_parked: usize,
}

impl Default for RuntimeConfig {
    fn default() -> Self {
        RuntimeConfig { cache_dir: None, max_parked: 10_000 }
    }
}

/// Loads and runs components. One for each process.
pub struct Runtime {
    engines: Arc<Engines>,
    compiler: Arc<Compiler>,
    places: Semaphore,
    components: Mutex<Components>,
}

/// Components by digest: those that are being loaded, and those that someone still uses.
#[derive(Default)]
struct Components {
    loading: HashMap<String, Loading>,
    loaded: HashMap<String, Weak<LoadedComponent>>,
}

type Loading = Shared<BoxFuture<'static, Result<Arc<LoadedComponent>, LoadError>>>;

impl Runtime {
    /// Sets up the engine; takes a few milliseconds. The pool and the threads come with the first component.
    ///
    /// # Errors
    /// When this machine cannot run the engine.
    pub fn new(config: RuntimeConfig) -> Result<Arc<Runtime>, RuntimeError> {
        let max_parked = config.max_parked.clamp(1, Semaphore::MAX_PERMITS);
        let engines = Arc::new(Engines::new(max_parked)?);
        let cache = Cache::new(config.cache_dir, engines.compatibility());
        Ok(Arc::new(Runtime {
            compiler: Arc::new(Compiler::new(engines.clone(), cache)),
            engines,
            places: Semaphore::new(max_parked),
            components: Mutex::default(),
        }))
    }

    /// Loads a component. Loads of the same bytes share one compilation, and its result as long as someone uses it. The
    /// work goes on when the future is dropped.
    ///
    /// # Errors
    /// Why these bytes cannot be used on this host.
    pub async fn load(self: &Arc<Self>, bytes: Arc<[u8]>) -> Result<Arc<LoadedComponent>, LoadError> {
        let digest = digest(&bytes);
        let loading = {
            let mut components = self.components.lock();
            if let Some(component) = components.loaded.get(&digest).and_then(Weak::upgrade) {
                return Ok(component);
            }
            match components.loading.get(&digest) {
                Some(loading) => loading.clone(),
                None => {
                    let (loading, done) = self.loading(digest.clone(), bytes.len());
                    components.loading.insert(digest.clone(), loading.clone());
                    // Submitted under the lock, so that it cannot end before it is known.
                    self.compiler.submit(digest.clone(), bytes, done);
                    loading
                }
            }
        };
        let result = loading.await;
        if result.is_err() {
            // A load that no thread could be started for did not end by itself. The next one tries again.
            let mut components = self.components.lock();
            if components.loading.get(&digest).is_some_and(|loading| loading.peek().is_some()) {
                components.loading.remove(&digest);
            }
        }
        result
    }

    /// The loads that have not ended, as they go on.
    pub fn loads(&self) -> watch::Receiver<Vec<LoadProgress>> {
        self.compiler.progress()
    }

    /// Components that this runtime compiled, as opposed to took from the cache.
    pub fn compiled(&self) -> u64 {
        self.compiler.compiled()
    }

    /// Free places for calls at the head of a chain.
    pub fn free_places(&self) -> usize {
        self.places.available_permits()
    }

    fn places(&self) -> &Semaphore {
        &self.places
    }

    fn engines(&self) -> &Engines {
        &self.engines
    }

    /// A future for everyone who waits for a load, and what the compiler calls at its end.
    fn loading(
        self: &Arc<Self>,
        digest: String,
        size: usize,
    ) -> (Loading, impl FnOnce(compile::Built) + Send + 'static) {
        let (send, receive) = oneshot::channel();
        let runtime = self.clone();
        let done = move |result: compile::Built| {
            let result = result.map(|(linked, origin)| {
                Arc::new(LoadedComponent::new(runtime.clone(), digest.clone(), size, origin, linked))
            });
            let mut components = runtime.components.lock();
            components.loading.remove(&digest);
            components.loaded.retain(|_, component| component.strong_count() > 0);
            if let Ok(component) = &result {
                components.loaded.insert(digest, Arc::downgrade(component));
            }
            drop(components);
            // Nobody may be waiting any more.
            let _ = send.send(result);
        };
        let loading = receive.map(|received| {
            received
                .unwrap_or_else(|_| Err(LoadError::Internal { detail: "no thread could be started to load it".into() }))
        });
        (loading.boxed().shared(), done)
    }
}

/// SHA-256 of a component, in hex.
pub fn digest(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
