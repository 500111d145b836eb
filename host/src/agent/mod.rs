//! Sessions and the turn loop.
//!
//! Owns what happens in which order: a prompt opens a turn, a step makes one model request, a failed step is closed
//! before the waterfall is asked, and a retry closes the failed turn and opens a fresh one over the same surface. It
//! never decides whether to retry, never waits by itself, and never retries by itself. Called by the command and by
//! whoever embeds the library.

mod answer;
mod attempt;
mod outcome;
mod router;
mod session;

pub use answer::text_of;
pub use outcome::{Advice, Asked, Cause, Tried, TurnOutcome, wait_words};
pub use router::{Attempt, Router, SessionModel, Target};
pub use session::{Session, SessionError};

use crate::{
    env::Env,
    journal::{
        Body, JournalError,
        event::{StepEnd, TurnEnd, TurnEndReason, TurnStart, UserMessage, UserRole, UserSource},
    },
    llm::{Block, Failure, route::Registry},
    waterfall::{FailedStep, Recovered, RecoveryContext, Waterfall, recover},
};
use attempt::{Attempted, FailedAttempt};
use session::Unfinished;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// The parts that every session of a host shares.
#[derive(Clone)]
pub struct Agent {
    pub routes: Arc<Registry>,
    pub waterfall: Arc<Waterfall>,
    pub router: Arc<dyn Router>,
    pub env: Env,
}

impl Agent {
    /// An agent whose attempts all go to the session's own model.
    pub fn new(routes: Arc<Registry>, waterfall: Arc<Waterfall>, env: Env) -> Agent {
        Agent { routes, waterfall, router: Arc::new(SessionModel), env }
    }

    /// Runs one prompt to its end, through as many turns as its retries take. When this returns, the end is on disk. A
    /// turn that was left open before is closed first, as [`Session::abandon_unfinished`] does.
    ///
    /// # Errors
    /// The journal failed: nothing was retried without a record, and the turn is over. The next prompt closes it, once
    /// the journal works again.
    pub async fn prompt(
        &self,
        session: &mut Session,
        text: &str,
        cancel: &CancellationToken,
    ) -> Result<TurnOutcome, JournalError> {
        session.close_unfinished()?;
        let turn = session.next_turn();
        session.journal.append(Body::TurnStart(TurnStart { turn, retry_of: None }))?;
        let message = UserMessage {
            content: vec![Block::Text { text: text.to_owned() }],
            source: UserSource::User,
            role: UserRole::User,
            id: session.next_message_id(),
        };
        session.journal.append(Body::UserMessage(message))?;
        self.attempt_until_settled(session, turn, cancel).await
    }

    /// Goes on with a turn that a crash interrupted after its step had failed. A wait is offered to the current chain
    /// with what remains of it; a retry that had started is due at once, and spends no budget again. A turn whose request
    /// was still to be made is begun, and an answer that had been recorded as a whole is given. `None` when there is
    /// nothing to go on with.
    ///
    /// # Errors
    /// The journal failed.
    pub async fn resume(
        &self,
        session: &mut Session,
        cancel: &CancellationToken,
    ) -> Result<Option<TurnOutcome>, JournalError> {
        let failed = match session.unfinished() {
            None => return Ok(None),
            Some(Unfinished::Begun { turn }) => {
                return self.attempt_until_settled(session, turn, cancel).await.map(Some);
            }
            Some(Unfinished::Answered { max_tokens }) => {
                session.close_unfinished()?;
                session.journal.flush().await?;
                let content = session.journal.with_state(|state| {
                    state.surface.last().map(|message| message.content.clone()).unwrap_or_default()
                });
                return Ok(Some(TurnOutcome::answered(content, None, max_tokens)));
            }
            Some(Unfinished::Due { turn, closed }) => {
                if !closed {
                    session.journal.append(Body::TurnEnd(TurnEnd { turn, reason: TurnEndReason::Retry }))?;
                }
                turn
            }
            Some(Unfinished::Undecided { turn, target, failure }) => {
                let policy = self.routes.policy(&target.provider).map(|policy| (*policy).clone());
                session.remember(&target, &failure);
                match self.decide(session, turn, FailedAttempt { target, policy, failure }, cancel).await? {
                    Some(outcome) => return Ok(Some(outcome)),
                    None => turn,
                }
            }
        };
        let turn = start_retry_turn(session, failed)?;
        self.attempt_until_settled(session, turn, cancel).await.map(Some)
    }

    async fn attempt_until_settled(
        &self,
        session: &mut Session,
        mut turn: u64,
        cancel: &CancellationToken,
    ) -> Result<TurnOutcome, JournalError> {
        loop {
            let attempted = attempt::run(self, session, turn, cancel).await?;
            let outcome = match attempted {
                Attempted::Answered { content, usage, max_tokens } => {
                    close_step(session, turn, None)?;
                    end_turn(session, turn, session::answered(max_tokens)).await?;
                    Some(TurnOutcome::answered(content, usage, max_tokens))
                }
                Attempted::Cancelled => {
                    close_step(session, turn, None)?;
                    end_turn(session, turn, TurnEndReason::Aborted).await?;
                    Some(TurnOutcome::Cancelled)
                }
                Attempted::Failed(failed) => {
                    close_step(session, turn, Some(failed.failure.clone()))?;
                    self.decide(session, turn, *failed, cancel).await?
                }
            };
            match outcome {
                Some(outcome) => return Ok(outcome),
                None => turn = start_retry_turn(session, turn)?,
            }
        }
    }

    /// Asks the waterfall about the turn's closed step. `None` means that the request is to be repeated.
    async fn decide(
        &self,
        session: &Session,
        turn: u64,
        failed: FailedAttempt,
        cancel: &CancellationToken,
    ) -> Result<Option<TurnOutcome>, JournalError> {
        let FailedAttempt { target, policy, failure } = failed;
        let context = Arc::new(RecoveryContext {
            journal: session.journal.clone(),
            env: self.env.clone(),
            cancel: cancel.clone(),
        });
        let step = FailedStep {
            turn,
            step: attempt::ONLY_STEP,
            provider: target.provider,
            model: target.model,
            failure: failure.clone(),
            policy,
            pending: None,
        };
        match recover(&self.waterfall, context, step).await {
            Recovered::Retry if !cancel.is_cancelled() => {
                session.journal.append(Body::TurnEnd(TurnEnd { turn, reason: TurnEndReason::Retry }))?;
                Ok(None)
            }
            Recovered::Retry | Recovered::Cancelled => {
                end_turn(session, turn, TurnEndReason::Aborted).await?;
                Ok(Some(TurnOutcome::Cancelled))
            }
            Recovered::Unhandled => {
                let tried = session.journal.with_state(|state| Tried::of(state, &failure, self.env.clock.wall_ms()));
                end_turn(session, turn, TurnEndReason::Error { error: Box::new(failure.clone()) }).await?;
                Ok(Some(TurnOutcome::Failed { failure, tried: Box::new(tried) }))
            }
            Recovered::Journal(error) => Err(error),
        }
    }
}

fn close_step(session: &Session, turn: u64, failure: Option<Failure>) -> Result<(), JournalError> {
    session.journal.append(Body::StepEnd(StepEnd { turn, step: attempt::ONLY_STEP, failure })).map(|_| ())
}

async fn end_turn(session: &Session, turn: u64, reason: TurnEndReason) -> Result<(), JournalError> {
    session.journal.append(Body::TurnEnd(TurnEnd { turn, reason }))?;
    session.journal.flush().await
}

fn start_retry_turn(session: &Session, failed: u64) -> Result<u64, JournalError> {
    let turn = failed + 1;
    session.journal.append(Body::TurnStart(TurnStart { turn, retry_of: Some(failed) }))?;
    Ok(turn)
}
