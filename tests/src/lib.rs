//! A world for tests in three lines: a scripted adapter, a memory journal, a chain of executors, a paused clock.
//! Beside it, [`wire`]: the same over real sockets and files; and [`guests`]: components that misbehave.

pub mod guests;
pub mod wire;

use futures_util::{StreamExt, future::BoxFuture, stream::BoxStream};
use parking_lot::Mutex;
use retake::{
    agent::{Agent, Session, Target, TurnOutcome},
    env::Env,
    journal::{Body, Event, Journal, JournalError, MemoryLog, Observer, jsonl::FileHeader, verify::verify_bytes},
    llm::{
        Adapter, Block, BlockType, Chunk, Failure, FailureCode, FinishReason, Request, RetryPolicy, Usage,
        route::Registry,
    },
    profile::{activate, builtin_component},
    wasm::{Runtime, RuntimeConfig},
    waterfall::{Activation, Call, Decision, Executor, FailedStep, Fault, Identity, Waterfall},
};
use serde_json::Value;
use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio_util::sync::CancellationToken;

/// When every test's wall clock starts, in milliseconds since the Unix epoch.
pub const START_MS: u64 = 1_790_000_000_000;

/// What a scripted adapter does with one request.
pub enum Reply {
    Chunks(Vec<Chunk>),
    /// Streams these chunks, and then nothing until the request is cancelled.
    Stall(Vec<Chunk>),
}

/// A complete answer of one text block.
pub fn answer(text: &str) -> Reply {
    let mut chunks = partial_text(0, text);
    chunks.push(Chunk::BlockEnd { index: 0, block: Block::Text { text: text.into() } });
    chunks.push(Chunk::Usage { usage: Usage { input_tokens: 9, output_tokens: 3, ..Usage::default() } });
    chunks.push(Chunk::Finish { reason: FinishReason::Stop });
    Reply::Chunks(chunks)
}

/// The beginning of a text block.
pub fn partial_text(index: u32, text: &str) -> Vec<Chunk> {
    vec![Chunk::BlockStart { index, block_type: BlockType::Text }, Chunk::TextDelta { index, text: text.into() }]
}

/// A request that fails.
pub fn failing(failure: Failure) -> Reply {
    failing_after(Vec::new(), failure)
}

/// A request that fails after part of an answer.
pub fn failing_after(mut chunks: Vec<Chunk>, failure: Failure) -> Reply {
    chunks.push(Chunk::Finish { reason: FinishReason::Error { failure } });
    Reply::Chunks(chunks)
}

pub fn failure(code: FailureCode) -> Failure {
    Failure::new(code, format!("provider said {code}"))
}

pub fn with_status(code: FailureCode, status: u16) -> Failure {
    Failure { status: Some(status), ..failure(code) }
}

pub fn with_retry_after(code: FailureCode, ms: f64) -> Failure {
    Failure { provider_retry_after_ms: Some(ms), ..failure(code) }
}

/// Plays one reply a request, in order; after the last one it answers `done`. Keeps the requests.
#[derive(Default)]
pub struct ScriptedAdapter {
    replies: Mutex<VecDeque<Reply>>,
    requests: Mutex<Vec<Arc<Request>>>,
}

impl ScriptedAdapter {
    pub fn new(replies: impl IntoIterator<Item = Reply>) -> Arc<ScriptedAdapter> {
        Arc::new(ScriptedAdapter { replies: Mutex::new(replies.into_iter().collect()), requests: Mutex::default() })
    }

    pub fn requests(&self) -> Vec<Arc<Request>> {
        self.requests.lock().clone()
    }

    pub fn count(&self) -> usize {
        self.requests.lock().len()
    }
}

impl Adapter for ScriptedAdapter {
    fn stream(&self, request: Arc<Request>, cancel: CancellationToken) -> BoxStream<'static, Chunk> {
        self.requests.lock().push(request);
        let reply = self.replies.lock().pop_front().unwrap_or_else(|| answer("done"));
        match reply {
            Reply::Chunks(chunks) => futures_util::stream::iter(chunks).boxed(),
            Reply::Stall(chunks) => {
                let aborted = async move {
                    cancel.cancelled().await;
                    Chunk::Finish { reason: FinishReason::Aborted { failure: failure(FailureCode::Aborted) } }
                };
                futures_util::stream::iter(chunks).chain(futures_util::stream::once(aborted)).boxed()
            }
        }
    }
}

/// An executor written as a closure.
pub struct Native<F>(pub F);

impl<F> Executor for Native<F>
where
    F: Fn(FailedStep, Arc<dyn Call>) -> BoxFuture<'static, Result<Decision, Fault>> + Send + Sync + 'static,
{
    fn request_error(
        &self,
        step: FailedStep,
        call: Arc<dyn Call>,
        _kill: CancellationToken,
    ) -> BoxFuture<'_, Result<Decision, Fault>> {
        (self.0)(step, call)
    }
}

/// An activation of a native executor.
pub fn native<F>(id: &str, run: F) -> Arc<Activation>
where
    F: Fn(FailedStep, Arc<dyn Call>) -> BoxFuture<'static, Result<Decision, Fault>> + Send + Sync + 'static,
{
    Activation::new(native_identity(id), Arc::new(Native(run)))
}

pub fn native_identity(id: &str) -> Identity {
    Identity {
        id: id.into(),
        name: id.into(),
        version: "0".into(),
        digest: format!("native-{id}"),
        config: "{}".into(),
    }
}

/// One runtime for all tests of the process, without a compile cache.
pub fn runtime() -> Arc<Runtime> {
    static RUNTIME: OnceLock<Arc<Runtime>> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new(RuntimeConfig::default()).expect("this machine runs wasmtime")).clone()
}

/// An activation of a component that comes with the program.
pub async fn builtin(id: &str, config: Value) -> Arc<Activation> {
    let bytes = builtin_component(id).expect("it is embedded");
    activate(&runtime(), id, bytes.into(), config, Value::Null).await.expect("it can be activated")
}

/// The official executor, as the component that it is.
pub async fn official() -> Arc<Activation> {
    builtin("llm-retry", serde_json::json!({})).await
}

/// The default test policy: normal, two retries, 500 ms doubling to 10 s, no jitter.
pub fn test_policy() -> RetryPolicy {
    policy(serde_json::json!({ "mode": "normal", "maxRetries": 2, "backoff": { "jitterRatio": 0 } }))
}

pub fn policy(config: Value) -> RetryPolicy {
    RetryPolicy::resolve(Some(&config), "retryPolicy").expect("the test's policy is valid")
}

/// Agent, session and journal over memory.
pub struct World {
    pub agent: Agent,
    pub session: Session,
    pub log: MemoryLog,
    pub cancel: CancellationToken,
}

impl World {
    /// A session on the route `mock`, served by `adapter` under `policy`, with this chain.
    pub fn new(adapter: Arc<ScriptedAdapter>, policy: RetryPolicy, chain: Vec<Arc<Activation>>) -> World {
        World::with_env(adapter, policy, chain, Env::fixed(START_MS, 7))
    }

    pub fn with_env(
        adapter: Arc<ScriptedAdapter>,
        policy: RetryPolicy,
        chain: Vec<Arc<Activation>>,
        env: Env,
    ) -> World {
        let routes = Arc::new(Registry::new());
        routes.register("mock", adapter, policy).expect("the route is new");
        let (journal, log) = Journal::in_memory("test", env.clock.clone());
        let target = Target { provider: "mock".into(), model: "mock-1".into() };
        World {
            agent: Agent::new(routes, Arc::new(Waterfall::new(chain)), env),
            session: Session::new(Arc::new(journal), target, None),
            log,
            cancel: CancellationToken::new(),
        }
    }

    pub async fn prompt(&mut self, text: &str) -> TurnOutcome {
        self.try_prompt(text).await.expect("the journal works")
    }

    pub async fn try_prompt(&mut self, text: &str) -> Result<TurnOutcome, JournalError> {
        let outcome = self.agent.prompt(&mut self.session, text, &self.cancel).await;
        let report = verify_bytes("test", &record("test", &self.events()));
        assert!(report.is_whole(), "{report}");
        outcome
    }

    pub fn events(&self) -> Vec<Event> {
        self.log.events()
    }

    /// The events of the types that begin with `prefix`.
    pub fn of_type(&self, prefix: &str) -> Vec<Event> {
        self.events().into_iter().filter(|event| event.body.type_name().starts_with(prefix)).collect()
    }

    pub fn retries(&self) -> Vec<retake::journal::event::Retry> {
        self.events()
            .into_iter()
            .filter_map(|event| if let Body::Retry(retry) = event.body { Some(retry) } else { None })
            .collect()
    }

    pub fn delays(&self) -> Vec<f64> {
        self.retries().iter().map(|retry| retry.delay_ms).collect()
    }
}

/// The events as the record of a session.
pub fn record(id: &str, events: &[Event]) -> Vec<u8> {
    let mut record = serde_json::to_vec(&FileHeader::new(id, START_MS)).expect("a header can be written");
    for event in events {
        record.push(b'\n');
        record.extend(serde_json::to_vec(event).expect("an event can be written"));
    }
    record.push(b'\n');
    record
}

/// Cancels when an event of a type is appended, from inside the append.
pub struct CancelOn {
    pub type_name: &'static str,
    pub cancel: CancellationToken,
}

impl Observer for CancelOn {
    fn appended(&self, _session: &str, event: &Event) {
        if event.body.type_name() == self.type_name {
            self.cancel.cancel();
        }
    }
}

/// Samples from a list, so that a test chooses the jitter.
pub struct Samples(pub Mutex<VecDeque<f64>>);

impl retake::env::Entropy for Samples {
    fn unit(&self) -> f64 {
        self.0.lock().pop_front().expect("the test gave enough samples")
    }

    fn uuid(&self) -> String {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        format!("00000000-0000-4000-8000-{:012}", NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed))
    }
}

/// Makes up to five attempts, and returns what the first one gave that took less than `limit` by its own measure. The
/// work of other processes, or the disk, may hold up an attempt of a test in real time, but not each of them.
pub async fn within<T>(limit: Duration, attempt: impl AsyncFn() -> (Duration, T)) -> T {
    let mut times = Vec::new();
    for _ in 0..5 {
        let (took, result) = attempt().await;
        if took < limit {
            return result;
        }
        times.push(took);
    }
    panic!("it took longer than {limit:?} every time: {times:?}");
}
