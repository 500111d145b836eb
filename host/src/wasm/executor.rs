//! A component behind the waterfall's executor trait.
//!
//! Owns the cap of parked calls: a call at the head of a chain waits for a place, and a nested one never does, since
//! the call that waits for it holds one already and the two would wait for each other. Called by `waterfall`.

use super::{
    call::{Scope, Setup, contained},
    component::{LoadedComponent, Manifest},
    fault,
    limits::Limits,
};
use crate::waterfall::executor::{Call, Decision, Executor, FailedStep, Fault};
use futures_util::future::BoxFuture;
use std::{fmt, sync::Arc};
use tokio_util::sync::CancellationToken;

/// An entry whose component passed the canary.
pub struct WasmExecutor {
    component: Arc<LoadedComponent>,
    id: String,
    config: Arc<str>,
    limits: Limits,
    manifest: Manifest,
}

impl WasmExecutor {
    pub(super) fn new(
        component: Arc<LoadedComponent>,
        id: String,
        config: Arc<str>,
        limits: Limits,
        manifest: Manifest,
    ) -> WasmExecutor {
        WasmExecutor { component, id, config, limits, manifest }
    }

    /// The entry's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// SHA-256 of the component, in hex.
    pub fn digest(&self) -> &str {
        self.component.digest()
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The entry's config as the component sees it.
    pub fn config(&self) -> &str {
        &self.config
    }

    pub fn limits(&self) -> &Limits {
        &self.limits
    }
}

impl fmt::Debug for WasmExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WasmExecutor").field("id", &self.id).field("digest", &self.digest()).finish_non_exhaustive()
    }
}

impl Executor for WasmExecutor {
    fn request_error(
        &self,
        step: FailedStep,
        call: Arc<dyn Call>,
        kill: CancellationToken,
    ) -> BoxFuture<'_, Result<Decision, Fault>> {
        Box::pin(async move {
            let depth = call.depth();
            if depth > self.limits.nested_depth as usize {
                return Err(fault::depth(self.limits.nested_depth));
            }
            let runtime = self.component.runtime();
            let _place = if depth > 0 {
                None
            } else {
                tokio::select! {
                    biased;
                    () = kill.cancelled() => return Err(fault::killed()),
                    place = runtime.places().acquire() => {
                        Some(place.map_err(|_| fault::host("the runtime takes no more calls"))?)
                    }
                    // Nothing was done yet, so there is nothing to answer.
                    _ = call.until_interrupted() => return Ok(Decision::Unhandled),
                }
            };
            let setup = Setup {
                call: call.clone(),
                kill: kill.clone(),
                config: self.config.clone(),
                limits: self.limits,
                scope: Scope::Turn,
            };
            let step = (&step).into();
            let run = async { self.component.start(setup).await?.request_error(&step).await };
            contained(runtime.engines(), &kill, run).await.map(Into::into)
        })
    }
}
