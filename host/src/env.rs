//! Time and randomness, as two small traits, so that every wait and every sample can be steered by a test.

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use rand::{Rng, RngExt as _, SeedableRng, rngs::SmallRng};
use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::time::Instant;

/// Where time comes from.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since the Unix epoch, for records.
    fn wall_ms(&self) -> u64;
    /// A monotonic instant, for measuring waits.
    fn now(&self) -> Instant {
        Instant::now()
    }
    /// Completes when `delay` has passed. Dropping the future drops the timer.
    fn sleep(&self, delay: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(delay))
    }
}

/// Where samples and ids come from.
pub trait Entropy: Send + Sync + 'static {
    /// A uniform sample of `[0, 1)`.
    fn unit(&self) -> f64;
    /// A fresh UUID, version 4, in its usual text form.
    fn uuid(&self) -> String;
}

/// The two together, handed through the host by one pointer.
#[derive(Clone)]
pub struct Env {
    pub clock: Arc<dyn Clock>,
    pub entropy: Arc<dyn Entropy>,
}

impl Env {
    /// The machine's clock and a generator seeded by the operating system.
    pub fn system() -> Self {
        Env { clock: Arc::new(SystemClock), entropy: Arc::new(SeededEntropy::from_os()) }
    }

    /// Tokio's clock (which a test may pause), starting at `wall_ms`, and a generator with a fixed seed.
    pub fn fixed(wall_ms: u64, seed: u64) -> Self {
        Env {
            clock: Arc::new(TokioClock { start: Instant::now(), wall_ms }),
            entropy: Arc::new(SeededEntropy::new(seed)),
        }
    }
}

/// The machine's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        // A clock set before 1970 reads as 0: a record with an odd time is better than none.
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
    }
}

/// A wall clock that follows tokio's, so that a paused runtime moves both.
pub struct TokioClock {
    start: Instant,
    wall_ms: u64,
}

impl Clock for TokioClock {
    fn wall_ms(&self) -> u64 {
        self.wall_ms + self.start.elapsed().as_millis() as u64
    }
}

/// A small generator behind a lock. Retry jitter is no secret, so it need not be a cryptographic one.
pub struct SeededEntropy(Mutex<SmallRng>);

impl SeededEntropy {
    pub fn new(seed: u64) -> Self {
        SeededEntropy(Mutex::new(SmallRng::seed_from_u64(seed)))
    }

    pub fn from_os() -> Self {
        SeededEntropy(Mutex::new(rand::make_rng()))
    }
}

impl Entropy for SeededEntropy {
    fn unit(&self) -> f64 {
        self.0.lock().random()
    }

    fn uuid(&self) -> String {
        let mut bytes = [0; 16];
        self.0.lock().fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }
}
