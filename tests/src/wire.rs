//! A world over real sockets, files and time: the chat adapter, a journal on disk, the official component.

use crate::official;
use parking_lot::Mutex;
use retake::{
    agent::{Agent, Session, Target, TurnOutcome},
    chaos::{ChaosOptions, ChaosServer, Script},
    env::Env,
    journal::{
        Body, Event, Observer,
        event::{Retry, TurnEndReason},
        jsonl,
    },
    llm::{
        Failure, RetryPolicy,
        adapters::{Bounds, HttpProvider, Limits, ProviderConfig, Secret},
        route::Registry,
    },
    waterfall::Waterfall,
};
use std::{path::PathBuf, sync::Arc};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The credential that every request of a [`WireWorld`] carries.
pub const API_KEY: &str = "sk-tests-0123456789abcdef";

/// A chaos provider on any free port that plays `script`.
pub async fn chaos(script: &str) -> ChaosServer {
    let script = Script::parse(script).expect("the test's script is one");
    ChaosServer::start(script, ChaosOptions::default()).await.expect("loopback has a free port")
}

/// Agent, session and journal file.
pub struct WireWorld {
    pub agent: Agent,
    pub session: Session,
    pub cancel: CancellationToken,
    seen: Arc<Seen>,
    home: TempDir,
}

impl WireWorld {
    /// A session whose provider is at `base_url`.
    pub async fn new(base_url: &str, policy: RetryPolicy) -> WireWorld {
        WireWorld::with_limits(base_url, policy, Limits::default()).await
    }

    pub async fn with_limits(base_url: &str, policy: RetryPolicy, limits: Limits) -> WireWorld {
        let env = Env::system();
        let config = ProviderConfig {
            base_url: base_url.to_owned(),
            api_key: Some(Secret::new(API_KEY)),
            bounds: Bounds { limits, ..Bounds::default() },
            ..ProviderConfig::default()
        };
        let adapter = HttpProvider::new(config, env.clock.clone()).expect("the test's configuration is one");
        let routes = Arc::new(Registry::new());
        routes.register("wire", Arc::new(adapter), policy).expect("the route is new");
        let home = tempfile::tempdir().expect("there is room for a directory");
        let seen = Arc::new(Seen { events: Mutex::default(), count: watch::Sender::new(0) });
        let session = open(&home, &env, &seen);
        let agent = Agent::new(routes, Arc::new(Waterfall::new(vec![official().await])), env);
        WireWorld { agent, session, cancel: CancellationToken::new(), seen, home }
    }

    /// Closes the session and opens it again from its file, as another process would.
    pub fn reopen(self) -> WireWorld {
        let WireWorld { agent, session, cancel, seen, home } = self;
        // The file's lock goes with its writer.
        drop(session);
        let session = open(&home, &agent.env, &seen);
        WireWorld { agent, session, cancel, seen, home }
    }

    pub async fn prompt(&mut self, text: &str) -> TurnOutcome {
        self.agent.prompt(&mut self.session, text, &self.cancel).await.expect("the journal works")
    }

    /// The text of an answer; anything else fails the test.
    pub async fn answer(&mut self, text: &str) -> String {
        match self.prompt(text).await {
            TurnOutcome::Answered { text, .. } => text,
            other => panic!("an answer was expected, not {other:?}"),
        }
    }

    /// The failure that ended the turn; anything else fails the test.
    pub async fn failure(&mut self, text: &str) -> Failure {
        match self.prompt(text).await {
            TurnOutcome::Failed { failure, .. } => failure,
            other => panic!("a failure was expected, not {other:?}"),
        }
    }

    /// A view of what is appended, to wait on while a turn runs.
    pub fn seen(&self) -> Arc<Seen> {
        self.seen.clone()
    }

    /// The journal as its file holds it.
    pub fn events(&self) -> Vec<Event> {
        let contents = jsonl::read(&self.journal_path()).expect("the journal can be read");
        assert_eq!(contents.torn, None);
        contents.events
    }

    pub fn journal_text(&self) -> String {
        std::fs::read_to_string(self.journal_path()).expect("the journal can be read")
    }

    pub fn retries(&self) -> Vec<Retry> {
        self.events()
            .into_iter()
            .filter_map(|event| if let Body::Retry(retry) = event.body { Some(retry) } else { None })
            .collect()
    }

    pub fn count(&self, type_name: &str) -> usize {
        self.events().iter().filter(|event| event.body.type_name() == type_name).count()
    }

    /// How the last turn ended, which must be the last thing in the journal.
    pub fn last_end(&self) -> TurnEndReason {
        match self.events().pop().map(|event| event.body) {
            Some(Body::TurnEnd(end)) => end.reason,
            other => panic!("the journal should end with a turn's end, not with {other:?}"),
        }
    }

    fn journal_path(&self) -> PathBuf {
        jsonl::session_path(self.home.path(), SESSION).expect("the name is one")
    }
}

const SESSION: &str = "wire";

fn open(home: &TempDir, env: &Env, seen: &Arc<Seen>) -> Session {
    let target = Target { provider: "wire".into(), model: "wire-1".into() };
    let session = Session::open(home.path(), SESSION, target, None, env).expect("the session can be opened");
    session.journal.observe(seen.clone());
    session
}

/// The events as they were appended.
pub struct Seen {
    events: Mutex<Vec<Event>>,
    count: watch::Sender<usize>,
}

impl Seen {
    /// Completes when an event that `matches` has been appended.
    pub async fn wait_for(&self, matches: impl Fn(&Body) -> bool + Send + Sync) {
        let found = |_: &usize| self.events.lock().iter().any(|event| matches(&event.body));
        self.count.subscribe().wait_for(found).await.expect("the sender lives in self");
    }
}

impl Observer for Seen {
    fn appended(&self, _session: &str, event: &Event) {
        let mut events = self.events.lock();
        events.push(event.clone());
        let count = events.len();
        drop(events);
        self.count.send_replace(count);
    }
}
