//! From the bytes of a component to code that can be instantiated: preflight, cache, compile, link.
//!
//! Compiling takes from 30 ms to 10 s of a processor, so it runs on threads of its own, at most [`AT_ONCE`] of them,
//! which end when there is nothing to do. What they are at can be watched. Called by `Runtime::load`.

use super::{
    bindings::{RetryExecutor, RetryExecutorPre},
    cache::Cache,
    call::CallState,
    engine::{Allocation, Engines, one_line},
    error::LoadError,
    preflight, wasi,
};
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use tokio::sync::watch;
use wasmtime::{
    Engine,
    component::{Component, HasSelf, Linker},
};

/// Components that are compiled at once. Each uses several processors by itself.
const AT_ONCE: usize = 2;

/// The lowest priority there is, as `nice` counts.
const BACKGROUND: i32 = 19;

/// The threads over which Cranelift spreads a compilation: one for each processor, at the lowest priority, so that a
/// turn that has something to do never waits for one of them to finish its slice. `None` when the system gives no
/// threads; the compilation then uses those that it finds, as it does at a start.
fn background_threads() -> Option<&'static rayon::ThreadPool> {
    static THREADS: OnceLock<Option<rayon::ThreadPool>> = OnceLock::new();
    THREADS
        .get_or_init(|| {
            rayon::ThreadPoolBuilder::new()
                .thread_name(|n| format!("retake-cranelift-{n}"))
                .start_handler(|_| yield_to_others())
                .build()
                .ok()
        })
        .as_ref()
}

/// Lowers the priority of the calling thread. Linux alone has one for each thread; elsewhere it would be the whole
/// process's.
fn yield_to_others() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::setpriority_process(None, BACKGROUND) {
        tracing::debug!("A compiler thread keeps its usual priority: {error}.");
    }
}

/// What a load is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadPhase {
    /// It waits for a thread.
    Queued,
    /// It reads the cache, or checks what the component imports and exports.
    Checking,
    /// It compiles.
    Compiling,
}

/// A load that has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// SHA-256 of the component, in hex.
    pub digest: String,
    /// The component's size, in bytes.
    pub bytes: usize,
    pub phase: LoadPhase,
    /// When the load was asked for.
    pub since: Instant,
}

/// Where a component's code came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was compiled, in this time.
    Compiled(Duration),
    /// It was in the cache.
    Cache,
}

/// What becomes of a load.
pub(super) type Built = Result<(Linked, Origin), LoadError>;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    threads: usize,
}

pub(super) struct Compiler {
    engines: Arc<Engines>,
    cache: Cache,
    queue: Mutex<Queue>,
    progress: watch::Sender<Vec<LoadProgress>>,
    compiled: AtomicU64,
    /// A component has been loaded, so that turns may be running.
    in_service: AtomicBool,
}

impl Compiler {
    pub(super) fn new(engines: Arc<Engines>, cache: Cache) -> Compiler {
        let (progress, _) = watch::channel(Vec::new());
        Compiler {
            engines,
            cache,
            queue: Mutex::default(),
            progress,
            compiled: AtomicU64::new(0),
            in_service: AtomicBool::new(false),
        }
    }

    pub(super) fn progress(&self) -> watch::Receiver<Vec<LoadProgress>> {
        self.progress.subscribe()
    }

    /// Components that were compiled so far, as opposed to loaded from the cache.
    pub(super) fn compiled(&self) -> u64 {
        self.compiled.load(Ordering::Relaxed)
    }

    /// Builds the component on a thread of the compiler and hands it to `done` there.
    pub(super) fn submit(
        self: &Arc<Self>,
        digest: String,
        bytes: Arc<[u8]>,
        done: impl FnOnce(Built) + Send + 'static,
    ) {
        let progress = LoadProgress {
            digest: digest.clone(),
            bytes: bytes.len(),
            phase: LoadPhase::Queued,
            since: Instant::now(),
        };
        self.progress.send_modify(|loads| loads.push(progress));
        let compiler = self.clone();
        let job = move || {
            // A panic in a parser or in the compiler is the failure of one load. What it worked on is dropped.
            let built = catch_unwind(AssertUnwindSafe(|| compiler.build(&digest, &bytes)));
            let result = built.unwrap_or_else(|payload| {
                Err(LoadError::Internal { detail: super::fault::host_panic(&*payload).message })
            });
            compiler.progress.send_modify(|loads| loads.retain(|load| load.digest != digest));
            if result.is_ok() {
                compiler.in_service.store(true, Ordering::Relaxed);
            }
            done(result);
        };
        self.enqueue(Box::new(job));
    }

    fn enqueue(self: &Arc<Self>, job: Job) {
        let mut queue = self.queue.lock();
        queue.jobs.push_back(job);
        if queue.threads < AT_ONCE {
            let compiler = self.clone();
            let thread = thread::Builder::new().name("retake-compile".into()).spawn(move || compiler.work());
            match thread {
                Ok(_) => queue.threads += 1,
                // Nobody will come for the jobs; whoever waits for one sees it dropped.
                Err(_) if queue.threads == 0 => {
                    queue.jobs.clear();
                    self.progress.send_modify(Vec::clear);
                }
                Err(_) => {}
            }
        }
    }

    fn work(&self) {
        loop {
            let job = {
                let mut queue = self.queue.lock();
                let Some(job) = queue.jobs.pop_front() else {
                    queue.threads -= 1;
                    return;
                };
                job
            };
            job();
        }
    }

    fn build(&self, digest: &str, bytes: &[u8]) -> Built {
        self.phase(digest, LoadPhase::Checking);
        self.engines.prove_epoch_moves()?;
        // An entry of the cache passed the preflight when it was made. If it does not link, this host has changed
        // since, and the preflight below says how.
        if let Some(code) = self.cache.load(digest) {
            match Linked::new(self.engines.clone(), &code) {
                Ok(linked) => return Ok((linked, Origin::Cache)),
                Err(_) => self.cache.discard(digest),
            }
        }
        preflight::check(bytes)?;
        self.phase(digest, LoadPhase::Compiling);
        let start = Instant::now();
        let engine = self.engines.on_demand();
        // Before the first component is in service nobody can be disturbed, and somebody waits for this one.
        let threads = if self.in_service.load(Ordering::Relaxed) { background_threads() } else { None };
        let code = match threads {
            Some(threads) => threads.install(|| engine.precompile_component(bytes)),
            None => engine.precompile_component(bytes),
        };
        let code = code.map_err(|error| LoadError::Compile { detail: one_line(&error) })?;
        self.compiled.fetch_add(1, Ordering::Relaxed);
        let took = start.elapsed();
        self.cache.store(digest, &code);
        Ok((Linked::new(self.engines.clone(), &code)?, Origin::Compiled(took)))
    }

    fn phase(&self, digest: &str, phase: LoadPhase) {
        self.progress.send_modify(|loads| {
            for load in loads.iter_mut().filter(|load| load.digest == digest) {
                load.phase = phase;
            }
        });
    }
}

/// A component that is compiled and linked, ready to be instantiated from either engine.
pub(super) struct Linked {
    engines: Arc<Engines>,
    primary: RetryExecutorPre<CallState>,
    allocation: Allocation,
    /// The same code in the on-demand engine, when the primary one is pooled and a call cannot use it.
    on_demand: OnceLock<Result<RetryExecutorPre<CallState>, LoadError>>,
}

impl Linked {
    /// Loads code that this program compiled: either a moment ago, or earlier and checked by the cache.
    fn new(engines: Arc<Engines>, code: &[u8]) -> Result<Linked, LoadError> {
        // A component that does not fit a slot, for instance by the size of its tables, allocates on demand.
        let pooled = engines.pooled().and_then(|engine| link(engine, code).ok());
        let (primary, allocation) = match pooled {
            Some(pre) => (pre, Allocation::Pooled),
            None => (link(engines.on_demand(), code)?, Allocation::OnDemand),
        };
        Ok(Linked { engines, primary, allocation, on_demand: OnceLock::new() })
    }

    pub(super) fn engines(&self) -> &Arc<Engines> {
        &self.engines
    }

    /// What to instantiate from; `Pooled` is a wish that a component which fits no slot does not get.
    pub(super) fn pre(&self, wish: Allocation) -> Result<&RetryExecutorPre<CallState>, LoadError> {
        if wish == self.allocation || self.allocation == Allocation::OnDemand {
            return Ok(&self.primary);
        }
        let on_demand = self.on_demand.get_or_init(|| {
            let component = self.primary.instance_pre().component();
            let code = component.serialize().map_err(|error| LoadError::Link { detail: one_line(&error) })?;
            link(self.engines.on_demand(), &code)
        });
        on_demand.as_ref().map_err(Clone::clone)
    }
}

fn link(engine: &Engine, code: &[u8]) -> Result<RetryExecutorPre<CallState>, LoadError> {
    let failed = |error: wasmtime::Error| LoadError::Link { detail: one_line(&error) };
    // SAFETY: `code` was written by `precompile_component` or `serialize` of this release of wasmtime with the same
    // settings: it comes from memory, or from a cache entry whose digest, length and compatibility were checked over
    // these very bytes.
    let component = unsafe { Component::deserialize(engine, code) }.map_err(failed)?;
    let mut linker: Linker<CallState> = Linker::new(engine);
    RetryExecutor::add_to_linker::<_, HasSelf<_>>(&mut linker, |state| state).map_err(failed)?;
    if component.component_type().imports(engine).any(|(name, _)| name.starts_with("wasi:")) {
        wasi::add_to_linker(&mut linker).map_err(failed)?;
    }
    linker.instantiate_pre(&component).and_then(RetryExecutorPre::new).map_err(failed)
}
