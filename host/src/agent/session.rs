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

/// How many failures of one prompt are remembered. An outage of a thousand attempts says no more than its newest few.
const MOST_REMEMBERED: usize = 8;

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
    /// The newest failures since the prompt, each with where its request went; the last one is the newest.
    pub(super) failed: Vec<(Target, Failure)>,
    /// What was cut from the end of the file when it was opened.
    pub torn: Option<TornTail>,
    /// The turn that a crash had caught in its request, and that was closed when the session was opened.
    pub interrupted: Option<u64>,
}

/// A turn that was neither answered nor given up when its process ended.
pub(super) enum Unfinished {
    /// Its step failed, and nobody has decided, or a wait has not ended.
    Undecided { turn: u64, target: Target, failure: Failure },
    /// Its retry has started, and spent its budget: what is left to do is to make the request.
    Due { turn: u64, closed: bool },
    /// It has begun, and no request has been made.
    Begun { turn: u64 },
    /// Its answer is recorded as a whole, and its end is not.
    Answered { max_tokens: bool },
}

impl Session {
    /// A session over a journal of the caller's.
    pub fn new(journal: Arc<Journal>, target: Target, system: Option<String>) -> Session {
        Session { journal, target, system, first_request: true, failed: Vec::new(), torn: None, interrupted: None }
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
    /// is for [`super::Agent::resume`], until [`Session::abandon_unfinished`] or the next prompt; so
    /// does one whose request was still to be made, and one whose answer had been recorded.
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
            session.interrupted = session.journal.with_state(|state| state.turn_open.then_some(state.last_turn));
            session.abandon_unfinished()?;
        }
        Ok(session)
    }

    /// The model that attempts go to unless a router says otherwise.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Keeps a failure for the next attempts to be held against.
    pub(super) fn remember(&mut self, target: &Target, failure: &Failure) {
        if self.failed.len() == MOST_REMEMBERED {
            self.failed.remove(0);
        }
        self.failed.push((target.clone(), failure.clone()));
    }

    /// Closes what a crash left open: as `interrupted`, unless its answer had been recorded.
    pub fn abandon_unfinished(&mut self) -> Result<(), SessionError> {
        self.close_unfinished()
            .map_err(|source| SessionError::Close { session: self.journal.session().to_owned(), source })
    }

    /// Closes what a crash, or a journal that failed, left open: as `interrupted`, unless its answer had been recorded.
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
            let turn = state.last_turn;
            let Some(step) = &state.step else {
                let asks = state.repeats || state.prompted;
                return (state.turn_open && asks).then_some(Unfinished::Begun { turn });
            };
            if state.turn_open && step.is_answered() {
                return Some(Unfinished::Answered { max_tokens: step.is_cut() });
            }
            let failure = step.failure.clone().filter(|_| state.turn_open && step.closed)?;
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
        let waits = matches!(self.unfinished()?, Unfinished::Undecided { .. } | Unfinished::Due { .. });
        self.journal.with_state(|state| state.routed().filter(|_| waits).map(|routed| routed.provider.clone()))
    }

    pub(super) fn next_turn(&self) -> u64 {
        self.journal.with_state(|state| state.last_turn + 1)
    }

    pub(super) fn next_message_id(&self) -> String {
        self.journal.with_state(|state| format!("m-{}", state.surface.len() + 1))
    }
}

/// How a turn ends that was answered.
pub(super) fn answered(max_tokens: bool) -> TurnEndReason {
    if max_tokens { TurnEndReason::MaxTokens } else { TurnEndReason::Completed }
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
    let reason = match &state.step {
        Some(step) if step.is_answered() => answered(step.is_cut()),
        _ => TurnEndReason::Interrupted,
    };
    bodies.push(Body::TurnEnd(TurnEnd { turn, reason }));
    bodies
}
