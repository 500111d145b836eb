//! One conversation: its journal, its model, and what must be closed when it is opened again.

use super::router::Target;
use crate::{
    env::Env,
    journal::{
        Body, Journal, JournalError, JsonlStore, SessionState, Store, StoreError,
        event::{StepEnd, TurnEnd, TurnEndReason},
        jsonl::TornTail,
    },
    llm::Failure,
};
use std::{path::Path, sync::Arc};

/// Why a session could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("The interrupted turn of session \"{session}\" could not be closed: {source}")]
    Close { session: String, source: JournalError },
}

/// A conversation with one writer.
pub struct Session {
    pub journal: Arc<Journal>,
    pub(super) target: Target,
    pub(super) system: Option<String>,
    /// No request has been made since the session was opened.
    pub(super) first_request: bool,
    pub(super) last_failure: Option<Failure>,
    /// Where the request went that failed last.
    pub(super) last_failed_target: Option<Target>,
    /// What was cut from the end of the file when it was opened.
    pub torn: Option<TornTail>,
}

/// A turn that was neither answered nor given up when its process ended.
pub(super) enum Unfinished {
    /// Its step failed, and nobody has decided, or a wait has not ended.
    Undecided { turn: u64, target: Target, failure: Failure },
    /// Its retry has started, and spent its budget: what is left to do is to make the request.
    Due { turn: u64, closed: bool },
}

impl Session {
    /// A session over a journal of the caller's.
    pub fn new(journal: Arc<Journal>, target: Target, system: Option<String>) -> Session {
        Session {
            journal,
            target,
            system,
            first_request: true,
            last_failure: None,
            last_failed_target: None,
            torn: None,
        }
    }

    /// Opens the session `id` in the directory `dir` of JSONL files, as [`Session::open_in`] does.
    pub fn open(
        dir: &Path,
        id: &str,
        target: Target,
        system: Option<String>,
        env: &Env,
    ) -> Result<Session, SessionError> {
        Session::open_in(&JsonlStore::new(dir), id, target, system, env)
    }

    /// Opens the session `id` of a store, or begins it. A turn that waits for a decision or for its retry stays as it
    /// is for [`super::Agent::resume`], until [`Session::abandon_unfinished`] or the next prompt.
    ///
    /// A turn that a crash caught in its request is closed as `interrupted`, a retry turn like any other: the provider
    /// may have done the work and charged for it, and there is no failure that an executor could be asked about, so
    /// that only a person may have it done again. For the same reason an answer whose message was not recorded is not
    /// put together from its chunks: it may lack its end.
    pub fn open_in(
        store: &dyn Store,
        id: &str,
        target: Target,
        system: Option<String>,
        env: &Env,
    ) -> Result<Session, SessionError> {
        let opened = store.open(id)?;
        let journal = Arc::new(Journal::new(id, env.clock.clone(), opened.log, opened.state));
        let mut session = Session::new(journal, target, system);
        session.torn = opened.torn;
        if session.unfinished().is_none() {
            session.abandon_unfinished()?;
        }
        Ok(session)
    }

    /// The model that attempts go to unless a router says otherwise.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Closes what a crash left open, as `interrupted`.
    pub fn abandon_unfinished(&mut self) -> Result<(), SessionError> {
        self.close_unfinished()
            .map_err(|source| SessionError::Close { session: self.journal.session().to_owned(), source })
    }

    /// Closes what a crash, or a journal that failed, left open, as `interrupted`.
    pub(super) fn close_unfinished(&self) -> Result<(), JournalError> {
        for body in self.journal.with_state(closers) {
            self.journal.append(body)?;
        }
        Ok(())
    }

    /// What a crash left to be gone on with.
    pub(super) fn unfinished(&self) -> Option<Unfinished> {
        self.journal.with_state(|state| {
            if let Some(turn) = state.to_repeat {
                return Some(Unfinished::Due { turn, closed: true });
            }
            let failure = state.step.as_ref().filter(|step| state.turn_open && step.closed)?.failure.clone()?;
            let turn = state.last_turn;
            if state.current_retry().is_some_and(|live| live.started) {
                return Some(Unfinished::Due { turn, closed: false });
            }
            let routed = state.routed()?;
            let target = Target { provider: routed.provider.clone(), model: routed.model.clone() };
            Some(Unfinished::Undecided { turn, target, failure })
        })
    }

    /// Whether a failed turn waits for [`super::Agent::resume`].
    pub fn has_unfinished(&self) -> bool {
        self.unfinished().is_some()
    }

    /// The provider whose failed request waits for [`super::Agent::resume`].
    pub fn unfinished_provider(&self) -> Option<String> {
        self.unfinished()?;
        self.journal.with_state(|state| state.routed().map(|routed| routed.provider.clone()))
    }

    pub(super) fn next_turn(&self) -> u64 {
        self.journal.with_state(|state| state.last_turn + 1)
    }

    pub(super) fn next_message_id(&self) -> String {
        self.journal.with_state(|state| format!("m-{}", state.surface.len() + 1))
    }
}

/// The events that close an open turn.
fn closers(state: &SessionState) -> Vec<Body> {
    let mut bodies = Vec::new();
    if !state.turn_open {
        return bodies;
    }
    let turn = state.last_turn;
    if let Some(step) = state.step.as_ref().filter(|step| !step.closed) {
        bodies.push(Body::StepEnd(StepEnd { turn, step: step.step, failure: None }));
    }
    bodies.push(Body::TurnEnd(TurnEnd { turn, reason: TurnEndReason::Interrupted }));
    bodies
}
