//! One conversation: its journal, its model, and what must be closed when it is opened again.

use super::router::Target;
use crate::{
    env::Env,
    journal::{
        Body, Journal, JournalError, JsonlLog, SessionState, StoreError,
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

/// A turn that failed and was not settled when its process ended.
pub(super) struct Unfinished {
    pub turn: u64,
    pub target: Target,
    pub failure: Failure,
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

    /// Opens the session `id` in the directory `dir` of JSONL files, or begins it. A turn that was interrupted in the
    /// middle of its request is closed as `interrupted`; one that waits for a decision stays open for
    /// [`super::Agent::resume`], until [`Session::abandon_unfinished`].
    pub fn open(
        dir: &Path,
        id: &str,
        target: Target,
        system: Option<String>,
        env: &Env,
    ) -> Result<Session, SessionError> {
        let opened = JsonlLog::open(dir, id)?;
        let journal = Arc::new(Journal::new(id, env.clock.clone(), Box::new(opened.log), opened.state));
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
        for body in self.journal.with_state(closers) {
            self.journal
                .append(body)
                .map_err(|source| SessionError::Close { session: self.journal.session().to_owned(), source })?;
        }
        Ok(())
    }

    /// The open turn whose failed step was never settled.
    pub(super) fn unfinished(&self) -> Option<Unfinished> {
        self.journal.with_state(|state| {
            let failure = state.step.as_ref().filter(|step| state.turn_open && step.closed)?.failure.clone()?;
            let routed = state.routed()?;
            let target = Target { provider: routed.provider.clone(), model: routed.model.clone() };
            Some(Unfinished { turn: state.last_turn, target, failure })
        })
    }

    /// Whether a failed turn waits for [`super::Agent::resume`].
    pub fn has_unfinished(&self) -> bool {
        self.unfinished().is_some()
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
