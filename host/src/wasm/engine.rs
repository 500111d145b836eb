//! The two wasmtime engines and the clock that interrupts guests.
//!
//! Both engines compile to the same code. One gives every call a slot of a pool that is reserved ahead, so that ten
//! thousand calls can be parked within the kernel's limit of mappings; the other allocates on demand, for components
//! with larger memories and for the rare call that finds the pool full. Knows nothing of the executor world.
//! Called by `compile` (to compile and load) and `call` (to run).

use super::limits::{SLOT_MB, TABLE_ELEMENTS, TICK};
use parking_lot::{Mutex, RwLock};
use sha2::{Digest as _, Sha256};
use std::{
    hash::{Hash as _, Hasher},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
};
use wasmtime::{
    Config, Engine, InstanceAllocationStrategy, Module, OptLevel, PoolingAllocationConfig, Store, Trap,
    WasmBacktraceDetails,
};

/// Why the runtime cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RuntimeError {
    #[error("The WebAssembly engine could not be set up on this machine: {detail}.")]
    Engine { detail: String },
    #[error("The thread that interrupts spinning executors could not be started: {detail}.")]
    Ticker { detail: String },
    #[error(
        "The clock that interrupts spinning executors does not move: a test loop ran to its end ({detail}). No \
         component is run without it."
    )]
    EpochStuck { detail: String },
}

/// Where a component's calls get their memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Allocation {
    Pooled,
    OnDemand,
}

pub(super) struct Engines {
    on_demand: Engine,
    pooled: OnceLock<Option<Engine>>,
    max_parked: usize,
    ticker: Ticker,
    tested: OnceLock<Result<(), RuntimeError>>,
}

impl Engines {
    /// Sets up the on-demand engine; the pool is reserved when the first component is loaded.
    pub(super) fn new(max_parked: usize) -> Result<Engines, RuntimeError> {
        let on_demand = Engine::new(&config()).map_err(|error| RuntimeError::Engine { detail: one_line(&error) })?;
        let ticker = Ticker::new(on_demand.clone());
        Ok(Engines { on_demand, pooled: OnceLock::new(), max_parked, ticker, tested: OnceLock::new() })
    }

    /// The engine that compiles, and that allocates on demand.
    pub(super) fn on_demand(&self) -> &Engine {
        &self.on_demand
    }

    /// The engine with the pool, or nothing on a machine that cannot reserve it (its limit of address space is low).
    pub(super) fn pooled(&self) -> Option<&Engine> {
        self.pooled
            .get_or_init(|| match Engine::new(config().allocation_strategy(pool(self.max_parked))) {
                Ok(engine) => {
                    self.ticker.shared.engines.write().push(engine.clone());
                    Some(engine)
                }
                Err(error) => {
                    tracing::warn!(
                        detail = one_line(&error),
                        "no pool of executor slots could be reserved; calls allocate on demand, and some thousand \
                         parked calls are the most that this machine can hold"
                    );
                    None
                }
            })
            .as_ref()
    }

    /// Keeps the epoch moving for as long as the guard lives.
    pub(super) fn tick(&self) -> Result<Ticking<'_>, RuntimeError> {
        self.ticker.enter()
    }

    /// Proves once that a spinning guest is interrupted. Blocks for about a tick: not for a worker of the runtime.
    pub(super) fn prove_epoch_moves(&self) -> Result<(), RuntimeError> {
        self.tested
            .get_or_init(|| {
                let _ticking = self.tick()?;
                spin_until_interrupted(&self.on_demand)
            })
            .clone()
    }

    /// A name for everything that compiled code depends on but the component: the wasmtime release, the processor's
    /// features and the settings of [`config`].
    pub(super) fn compatibility(&self) -> String {
        let mut hasher = Sha256Hasher(Sha256::new());
        self.on_demand.precompile_compatibility_hash().hash(&mut hasher);
        super::hex(&hasher.0.finalize())
    }
}

/// What both engines share. Everything here is part of [`Engines::compatibility`] and so of a cache key.
fn config() -> Config {
    let slot = u64::from(SLOT_MB) << 20;
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        .epoch_interruption(true)
        .cranelift_opt_level(OptLevel::Speed)
        // Function names and, where a guest carries DWARF, lines: a trap that says where is worth its size.
        .wasm_backtrace_details(WasmBacktraceDetails::Enable)
        // Equal in both engines, so that code that was compiled once loads into either.
        .memory_reservation(slot)
        .memory_guard_size(1 << 20)
        .memory_may_move(true);
    config
}

/// How much of a table is cleared in place when its call ends, in bytes.
const TABLE_KEEP_RESIDENT: usize = 16 * 1024;

/// A pool for `max_parked` calls and a fifth more, for nested calls and canaries. Component model plumbing takes about
/// three core instances and two tables a call; five leave room. All of it is address space until it is touched.
fn pool(max_parked: usize) -> InstanceAllocationStrategy {
    let calls = u32::try_from(max_parked + (max_parked / 5).max(64)).unwrap_or(u32::MAX / 8).min(u32::MAX / 8);
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(calls)
        .total_core_instances(calls * 5)
        .total_tables(calls * 5)
        .total_memories(calls)
        .total_stacks(calls)
        .table_elements(TABLE_ELEMENTS)
        // A table of an executor is a page or two. Clearing it costs less than giving it back to the system, which
        // interrupts every processor of the process; a call has several tables.
        .table_keep_resident(TABLE_KEEP_RESIDENT)
        .max_memory_size((SLOT_MB as usize) << 20);
    InstanceAllocationStrategy::Pooling(pool)
}

/// Runs a loop of about a second and expects it to be cut short.
fn spin_until_interrupted(engine: &Engine) -> Result<(), RuntimeError> {
    // (module (func (export "spin") (local i64)
    //   (loop (br_if 0 (i64.lt_u (local.tee 0 (i64.add (local.get 0) (i64.const 1))) (i64.const 0x4000_0000))))))
    const SPIN: &[u8] = &[
        0x00, 0x61, 0x73, 0x6d, 0x01, 0x00, 0x00, 0x00, 0x01, 0x04, 0x01, 0x60, 0x00, 0x00, 0x03, 0x02, 0x01, 0x00,
        0x07, 0x08, 0x01, 0x04, b's', b'p', b'i', b'n', 0x00, 0x00, 0x0a, 0x19, 0x01, 0x17, 0x01, 0x01, 0x7e, 0x03,
        0x40, 0x20, 0x00, 0x42, 0x01, 0x7c, 0x22, 0x00, 0x42, 0x80, 0x80, 0x80, 0x80, 0x04, 0x54, 0x0d, 0x00, 0x0b,
        0x0b,
    ];
    let engine_error = |error: wasmtime::Error| RuntimeError::Engine { detail: one_line(&error) };
    let module = Module::new(engine, SPIN).map_err(engine_error)?;
    let mut store = Store::new(engine, ());
    store.set_epoch_deadline(1);
    let instance = wasmtime::Instance::new(&mut store, &module, &[]).map_err(engine_error)?;
    let spin = instance.get_typed_func::<(), ()>(&mut store, "spin").map_err(engine_error)?;
    match spin.call(&mut store, ()) {
        Err(error) if error.downcast_ref::<Trap>() == Some(&Trap::Interrupt) => Ok(()),
        Err(error) => Err(engine_error(error)),
        Ok(()) => Err(RuntimeError::EpochStuck { detail: "1073741824 rounds".into() }),
    }
}

/// A plain thread that moves the epoch of every engine while any guest may run. It is no task of the runtime, since it
/// must work just when a guest has taken the runtime's workers.
struct Ticker {
    shared: Arc<Shared>,
    thread: Mutex<Option<thread::Thread>>,
}

struct Shared {
    engines: RwLock<Vec<Engine>>,
    /// Calls in flight; the thread parks while there are none.
    live: AtomicUsize,
    stop: AtomicBool,
}

impl Ticker {
    fn new(engine: Engine) -> Ticker {
        let shared =
            Shared { engines: RwLock::new(vec![engine]), live: AtomicUsize::new(0), stop: AtomicBool::new(false) };
        Ticker { shared: Arc::new(shared), thread: Mutex::new(None) }
    }

    fn enter(&self) -> Result<Ticking<'_>, RuntimeError> {
        if self.shared.live.fetch_add(1, Ordering::SeqCst) == 0 {
            // The guard is made first: it takes the count back if the thread cannot be started.
            let ticking = Ticking(&self.shared.live);
            let mut thread = self.thread.lock();
            match &*thread {
                Some(thread) => thread.unpark(),
                None => {
                    let shared = self.shared.clone();
                    let handle = thread::Builder::new()
                        .name("retake-epoch".into())
                        .spawn(move || shared.run())
                        .map_err(|error| RuntimeError::Ticker { detail: error.to_string() })?;
                    *thread = Some(handle.thread().clone());
                }
            }
            return Ok(ticking);
        }
        Ok(Ticking(&self.shared.live))
    }
}

impl Shared {
    fn run(&self) {
        while !self.stop.load(Ordering::SeqCst) {
            if self.live.load(Ordering::SeqCst) == 0 {
                // An unpark that came since the check makes this return at once.
                thread::park();
                continue;
            }
            // Not a timed park, which an unpark would cut short: a tick is never early.
            thread::sleep(TICK);
            for engine in &*self.engines.read() {
                engine.increment_epoch();
            }
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = &*self.thread.lock() {
            thread.unpark();
        }
    }
}

/// A call in flight.
pub(super) struct Ticking<'a>(&'a AtomicUsize);

impl Drop for Ticking<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Feeds what is hashed into a digest that does not change between builds of this program.
struct Sha256Hasher(Sha256);

impl Hasher for Sha256Hasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    fn finish(&self) -> u64 {
        // Nobody asks: the whole digest is taken from the field.
        0
    }
}

/// The whole cause chain of a wasmtime error on one line, without a full stop at its end.
pub(super) fn one_line(error: &wasmtime::Error) -> String {
    let text = format!("{error:#}");
    text.split_whitespace().collect::<Vec<_>>().join(" ").trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_epoch_moves_while_a_call_is_in_flight() {
        let engines = Engines::new(8).unwrap();
        assert_eq!(engines.prove_epoch_moves(), Ok(()));
    }

    #[test]
    fn an_epoch_that_does_not_move_is_noticed() {
        // No ticker runs for this engine.
        let error = spin_until_interrupted(&Engine::new(&config()).unwrap()).unwrap_err();
        assert!(matches!(error, RuntimeError::EpochStuck { .. }), "{error}");
    }

    #[test]
    fn the_ticker_thread_ends_with_its_engines() {
        let engines = Engines::new(8).unwrap();
        let shared = Arc::downgrade(&engines.ticker.shared);
        drop(engines.tick().unwrap());
        assert!(shared.upgrade().is_some());
        drop(engines);
        let start = Instant::now();
        while shared.strong_count() > 0 {
            assert!(start.elapsed() < Duration::from_secs(5), "the thread still holds the engines");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn both_engines_accept_the_same_compiled_code() {
        let engines = Engines::new(8).unwrap();
        let pooled = engines.pooled().unwrap();
        let mut hasher = Sha256Hasher(Sha256::new());
        pooled.precompile_compatibility_hash().hash(&mut hasher);
        assert_eq!(super::super::hex(&hasher.0.finalize()), engines.compatibility());
    }
}
