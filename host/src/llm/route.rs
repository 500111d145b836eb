//! Routes: the registered providers, each with its adapter and its resolved retry policy.
//!
//! Owns the table that a profile fills and the binding of one call to one registration. It never retries and never
//! looks into what an adapter says; it only holds the adapter to the contract of a stream. `profile` writes the table,
//! the agent loop reads it.

use super::{Adapter, Chunk, Failure, FailureCode, FinishReason, Request, RetryPolicy};
use arc_swap::ArcSwap;
use futures_util::{Stream, future::BoxFuture, stream::BoxStream};
use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
};
use tokio_util::sync::CancellationToken;

/// Why a route could not be registered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    #[error("the provider {name:?} is registered already; give the second one another name, or replace the first")]
    Duplicate { name: String },
    #[error("a provider's name is empty; a route needs a name that a request can ask for")]
    EmptyName,
}

/// One provider as it was registered; never changed afterwards.
struct Registration {
    adapter: Arc<dyn Adapter>,
    policy: Arc<RetryPolicy>,
    generation: u64,
}

type Table = BTreeMap<String, Arc<Registration>>;

/// The routes that requests can name. Reading takes no lock; a change publishes a new table.
#[derive(Default)]
pub struct Registry {
    table: ArcSwap<Table>,
    generations: AtomicU64,
}

impl Registry {
    pub fn new() -> Self {
        Registry::default()
    }

    /// Adds a route and returns the number of its registration. Numbers grow and are never used twice.
    ///
    /// # Errors
    /// The name is empty or taken.
    pub fn register(&self, name: &str, adapter: Arc<dyn Adapter>, policy: RetryPolicy) -> Result<u64, RouteError> {
        if name.is_empty() {
            return Err(RouteError::EmptyName);
        }
        let registration = self.registration(adapter, policy);
        let before = self.table.rcu(|table| {
            let mut table = Table::clone(table);
            table.entry(name.to_owned()).or_insert_with(|| registration.clone());
            table
        });
        if before.contains_key(name) {
            return Err(RouteError::Duplicate { name: name.to_owned() });
        }
        Ok(registration.generation)
    }

    /// Puts a registration in the place of the one of that name, or adds it; there is no moment without a route.
    /// Calls that were prepared before keep the old one.
    pub fn replace(&self, name: &str, adapter: Arc<dyn Adapter>, policy: RetryPolicy) -> u64 {
        let registration = self.registration(adapter, policy);
        self.table.rcu(|table| {
            let mut table = Table::clone(table);
            table.insert(name.to_owned(), registration.clone());
            table
        });
        registration.generation
    }

    /// Publishes a whole set of routes in one step; what it does not name is gone.
    pub fn replace_all(&self, routes: impl IntoIterator<Item = (String, Arc<dyn Adapter>, RetryPolicy)>) {
        let table: Table =
            routes.into_iter().map(|(name, adapter, policy)| (name, self.registration(adapter, policy))).collect();
        self.table.store(Arc::new(table));
    }

    /// Takes a route away, and says whether there was one. Calls that were prepared before go on.
    pub fn remove(&self, name: &str) -> bool {
        let before = self.table.rcu(|table| {
            let mut table = Table::clone(table);
            table.remove(name);
            table
        });
        before.contains_key(name)
    }

    /// The policy of the route as it is registered now.
    pub fn policy(&self, name: &str) -> Option<Arc<RetryPolicy>> {
        self.table.load().get(name).map(|registration| registration.policy.clone())
    }

    /// The names of all routes, in alphabetical order.
    pub fn names(&self) -> Vec<String> {
        self.table.load().keys().cloned().collect()
    }

    /// Binds one call to the route as it is registered now.
    ///
    /// # Errors
    /// A failure with the code `NO_ROUTE` when no route has that name.
    pub fn prepare(&self, name: &str) -> Result<PreparedCall, Failure> {
        let table = self.table.load();
        let Some(registration) = table.get(name) else {
            let known = table.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
            let known =
                if known.is_empty() { "none is registered".to_owned() } else { format!("registered are {known}") };
            return Err(Failure::new(FailureCode::NoRoute, format!("no provider is named {name:?}; {known}")));
        };
        Ok(PreparedCall {
            provider: name.to_owned(),
            policy: registration.policy.clone(),
            generation: registration.generation,
            adapter: registration.adapter.clone(),
        })
    }

    fn registration(&self, adapter: Arc<dyn Adapter>, policy: RetryPolicy) -> Arc<Registration> {
        let generation = self.generations.fetch_add(1, Ordering::Relaxed) + 1;
        Arc::new(Registration { adapter, policy: Arc::new(policy), generation })
    }
}

/// One call, bound to the registration that will serve it, whatever happens to the route meanwhile.
pub struct PreparedCall {
    /// The name under which the route was found.
    pub provider: String,
    /// The serving policy: the one that decides about a failure of this very call.
    pub policy: Arc<RetryPolicy>,
    /// The number of the registration.
    pub generation: u64,
    adapter: Arc<dyn Adapter>,
}

impl PreparedCall {
    /// Makes the one request that this call is for.
    ///
    /// The stream ends with exactly one [`Chunk::Finish`], also when the adapter breaks its contract: an end without
    /// one reads `PROTOCOL`, a panic reads `UNKNOWN`, what follows a finish is dropped, and when `cancel` fires the
    /// stream ends at once, even if the adapter does not.
    pub fn stream(self, request: Arc<Request>, cancel: CancellationToken) -> BoxStream<'static, Chunk> {
        let started = catch_unwind(AssertUnwindSafe(|| self.adapter.stream(request, cancel.clone())));
        let state = match started {
            Ok(inner) => State::Running(inner),
            Err(panic) => State::Failed(Box::new(panicked(&*panic))),
        };
        let cancelled = Box::pin(cancel.clone().cancelled_owned());
        Box::pin(Guarded { provider: self.provider, state, cancel, cancelled })
    }
}

enum State {
    Running(BoxStream<'static, Chunk>),
    /// The adapter failed before it gave a stream.
    Failed(Box<Failure>),
    Ended,
}

/// An adapter's stream, held to its contract.
struct Guarded {
    provider: String,
    state: State,
    cancel: CancellationToken,
    cancelled: BoxFuture<'static, ()>,
}

impl Guarded {
    /// Ends the stream. Whatever the adapter still holds is dropped now, which closes its connection.
    fn end(&mut self, reason: FinishReason) -> Poll<Option<Chunk>> {
        let state = std::mem::replace(&mut self.state, State::Ended);
        // A panic while a stream is dropped must not reach the turn either; the outcome stands already.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(state)));
        Poll::Ready(Some(Chunk::Finish { reason }))
    }

    fn end_with(&mut self, failure: Failure) -> Poll<Option<Chunk>> {
        if self.cancel.is_cancelled() { self.end_aborted() } else { self.end(FinishReason::Error { failure }) }
    }

    fn end_aborted(&mut self) -> Poll<Option<Chunk>> {
        let failure = Failure::new(FailureCode::Aborted, "the request was cancelled");
        self.end(FinishReason::Aborted { failure })
    }
}

impl Stream for Guarded {
    type Item = Chunk;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Chunk>> {
        let inner = match &mut self.state {
            State::Running(inner) => inner,
            State::Failed(failure) => {
                let failure = Failure::clone(failure);
                return self.end_with(failure);
            }
            State::Ended => return Poll::Ready(None),
        };
        // The adapter is asked first: its own word on a cancel may say more.
        match catch_unwind(AssertUnwindSafe(|| inner.as_mut().poll_next(context))) {
            Ok(Poll::Ready(Some(Chunk::Finish { reason }))) => self.end(reason),
            Ok(Poll::Ready(Some(chunk))) => Poll::Ready(Some(chunk)),
            Ok(Poll::Ready(None)) => {
                let message = format!("the adapter of {:?} ended its stream without a finish", self.provider);
                self.end_with(Failure::new(FailureCode::Protocol, message))
            }
            Ok(Poll::Pending) => match self.cancelled.as_mut().poll(context) {
                Poll::Ready(()) => self.end_aborted(),
                Poll::Pending => Poll::Pending,
            },
            Err(panic) => self.end_with(panicked(&*panic)),
        }
    }
}

fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("it gave no text");
    Failure::new(FailureCode::Unknown, format!("the adapter panicked: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::{StreamExt, stream};
    use std::time::Duration;

    /// An adapter that plays a script.
    struct Scripted(Box<dyn Fn(CancellationToken) -> BoxStream<'static, Chunk> + Send + Sync>);

    impl Adapter for Scripted {
        fn stream(&self, _: Arc<Request>, cancel: CancellationToken) -> BoxStream<'static, Chunk> {
            (self.0)(cancel)
        }
    }

    fn scripted<S>(script: impl Fn() -> S + Send + Sync + 'static) -> Arc<dyn Adapter>
    where
        S: Stream<Item = Chunk> + Send + 'static,
    {
        Arc::new(Scripted(Box::new(move |_| script().boxed())))
    }

    fn says(text: &'static str) -> Arc<dyn Adapter> {
        scripted(move || stream::iter([Chunk::TextDelta { index: 0, text: text.to_owned() }, stop()]))
    }

    fn stop() -> Chunk {
        Chunk::Finish { reason: FinishReason::Stop }
    }

    fn retries(limit: u64) -> RetryPolicy {
        RetryPolicy::resolve(Some(&serde_json::json!({"mode": "normal", "maxRetries": limit})), "p").unwrap()
    }

    fn request() -> Arc<Request> {
        Arc::new(Request { model: "m".to_owned(), system: None, messages: vec![] })
    }

    async fn play(adapter: Arc<dyn Adapter>) -> Vec<Chunk> {
        let registry = Registry::new();
        registry.register("p", adapter, RetryPolicy::default()).unwrap();
        registry.prepare("p").unwrap().stream(request(), CancellationToken::new()).collect().await
    }

    #[track_caller]
    fn failure_of(chunks: &[Chunk]) -> &Failure {
        match chunks.last() {
            Some(Chunk::Finish { reason: FinishReason::Error { failure } | FinishReason::Aborted { failure } }) => {
                failure
            }
            other => panic!("expected a failed finish, got {other:?}"),
        }
    }

    fn unknown_route(registry: &Registry, name: &str) -> Failure {
        match registry.prepare(name) {
            Ok(_) => panic!("{name} must be unknown"),
            Err(failure) => failure,
        }
    }

    #[test]
    fn the_policy_of_a_route_is_the_one_it_was_registered_with() {
        let registry = Registry::new();
        registry.register("a", says("a"), RetryPolicy::default()).unwrap();
        registry.register("b", says("b"), retries(9)).unwrap();
        assert_eq!(registry.policy("a").as_deref(), Some(&RetryPolicy::default()));
        assert_eq!(registry.policy("b").as_deref(), Some(&retries(9)));
        assert_eq!(registry.policy("c"), None);
        assert_eq!(registry.names(), ["a", "b"]);
    }

    #[test]
    fn an_unknown_route_is_a_no_route_failure_that_names_the_known_ones() {
        let registry = Registry::new();
        assert_eq!(unknown_route(&registry, "x").code, FailureCode::NoRoute);
        registry.register("acme", says("a"), RetryPolicy::default()).unwrap();
        let failure = unknown_route(&registry, "x");
        assert_eq!(failure.code, FailureCode::NoRoute);
        assert!(failure.message.contains("\"x\"") && failure.message.contains("acme"), "{}", failure.message);
    }

    #[tokio::test]
    async fn a_taken_or_empty_name_is_refused_and_the_first_route_stays() {
        let registry = Registry::new();
        registry.register("a", says("first"), retries(1)).unwrap();
        let refused = registry.register("a", says("second"), retries(2));
        assert_eq!(refused, Err(RouteError::Duplicate { name: "a".to_owned() }));
        assert_eq!(registry.register("", says("x"), retries(2)), Err(RouteError::EmptyName));
        let chunks: Vec<_> = registry.prepare("a").unwrap().stream(request(), CancellationToken::new()).collect().await;
        assert_eq!(chunks[0], Chunk::TextDelta { index: 0, text: "first".to_owned() });
    }

    #[tokio::test]
    async fn a_prepared_call_keeps_its_registration_when_the_route_is_replaced_or_removed() {
        let registry = Registry::new();
        let first = registry.register("a", says("old"), retries(1)).unwrap();
        let before_replace = registry.prepare("a").unwrap();
        let second = registry.replace("a", says("new"), retries(2));
        assert!(second > first);
        let before_remove = registry.prepare("a").unwrap();
        assert!(registry.remove("a"));
        assert!(!registry.remove("a"));
        assert_eq!(unknown_route(&registry, "a").code, FailureCode::NoRoute);

        for (call, generation, policy, text) in
            [(before_replace, first, retries(1), "old"), (before_remove, second, retries(2), "new")]
        {
            assert_eq!((call.generation, &*call.policy), (generation, &policy));
            let chunks: Vec<_> = call.stream(request(), CancellationToken::new()).collect().await;
            assert_eq!(chunks, [Chunk::TextDelta { index: 0, text: text.to_owned() }, stop()]);
        }
    }

    #[test]
    fn a_whole_set_of_routes_is_published_in_one_step() {
        let registry = Registry::new();
        registry.register("gone", says("x"), RetryPolicy::default()).unwrap();
        registry.replace_all([("a".to_owned(), says("a"), retries(1)), ("b".to_owned(), says("b"), retries(2))]);
        assert_eq!(registry.names(), ["a", "b"]);
        assert_eq!(registry.policy("b").as_deref(), Some(&retries(2)));
    }

    #[tokio::test]
    async fn what_follows_a_finish_is_dropped() {
        let delta = || Chunk::TextDelta { index: 0, text: "late".to_owned() };
        let chunks = play(scripted(move || stream::iter([stop(), delta(), stop()]))).await;
        assert_eq!(chunks, [stop()]);
    }

    #[tokio::test]
    async fn a_stream_that_ends_without_a_finish_gets_one() {
        let chunks = play(scripted(stream::empty)).await;
        assert_eq!(chunks.len(), 1);
        assert_eq!(failure_of(&chunks).code, FailureCode::Protocol);
    }

    #[tokio::test]
    async fn an_adapter_that_panics_is_contained_wherever_it_panics() {
        let at_start = Arc::new(Scripted(Box::new(|_| panic!("no {}", "start"))));
        let mid_way = scripted(|| {
            stream::iter([0, 1]).map(|n| match n {
                0 => Chunk::TextDelta { index: 0, text: "x".to_owned() },
                _ => panic!("mid way"),
            })
        });
        for (adapter, text, length) in [(at_start as Arc<dyn Adapter>, "no start", 1), (mid_way, "mid way", 2)] {
            let chunks = play(adapter).await;
            assert_eq!(chunks.len(), length);
            assert_eq!(failure_of(&chunks).code, FailureCode::Unknown);
            assert!(failure_of(&chunks).message.contains(text));
        }
    }

    #[tokio::test]
    async fn a_panic_while_the_adapter_is_dropped_does_not_change_the_outcome() {
        struct Grenade;
        impl Drop for Grenade {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        let chunks = play(scripted(|| {
            let grenade = Grenade;
            stream::iter([stop()]).chain(stream::once(async move {
                let _held = grenade;
                stop()
            }))
        }))
        .await;
        assert_eq!(chunks, [stop()]);
    }

    #[tokio::test]
    async fn structured_failures_of_an_adapter_pass_unchanged() {
        let mut failure = Failure::new(FailureCode::RateLimit, "slow down");
        failure.status = Some(429);
        failure.provider_retry_after_ms = Some(1500.0);
        let finish = Chunk::Finish { reason: FinishReason::Error { failure } };
        let given = finish.clone();
        assert_eq!(play(scripted(move || stream::iter([given.clone()]))).await, [finish]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cancel_ends_the_stream_of_an_adapter_that_ignores_it() {
        let registry = Registry::new();
        registry.register("p", scripted(stream::pending), RetryPolicy::default()).unwrap();
        let cancel = CancellationToken::new();
        let answer = registry.prepare("p").unwrap().stream(request(), cancel.clone());
        let answer = tokio::spawn(answer.collect::<Vec<_>>());
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(!answer.is_finished());
        cancel.cancel();
        let chunks = answer.await.unwrap();
        assert_eq!(chunks.len(), 1);
        assert!(matches!(&chunks[0], Chunk::Finish { reason: FinishReason::Aborted { .. } }));
        assert_eq!(failure_of(&chunks).code, FailureCode::Aborted);
    }

    #[tokio::test]
    async fn a_broken_stream_of_a_cancelled_call_reads_aborted() {
        let adapter: Arc<dyn Adapter> = Arc::new(Scripted(Box::new(|cancel| {
            cancel.cancel();
            stream::empty().boxed()
        })));
        let chunks = play(adapter).await;
        assert!(matches!(&chunks[..], [Chunk::Finish { reason: FinishReason::Aborted { .. } }]));
    }
}
