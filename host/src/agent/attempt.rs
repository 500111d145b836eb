//! One step: one model request, its stream journaled chunk by chunk.

use super::{
    Agent,
    answer::Assembly,
    router::{Attempt, Target},
    session::Session,
};
use crate::{
    journal::{
        Body, Journal, JournalError, SessionState,
        event::{
            Answer, AnswerRole, AnswerSource, AssistantChunk, AssistantMessage, Header, HeaderConfig, HeaderReason,
            RequestHeader, StepRef,
        },
    },
    llm::{Block, Chunk, Failure, FailureCode, FinishReason, HintUse, Request, RetryPolicy, Usage},
};
use futures_util::{StreamExt, stream::BoxStream};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Retake runs no tools, so that a turn has one step.
pub(super) const ONLY_STEP: u64 = 1;

/// How a step went. It is still open.
pub(super) enum Attempted {
    Answered { content: Vec<Block>, usage: Option<Usage>, max_tokens: bool },
    Failed(Box<FailedAttempt>),
    Cancelled,
}

/// A failed request.
pub(super) struct FailedAttempt {
    pub target: Target,
    /// The policy of the registration that served the call, if one did.
    pub policy: Option<RetryPolicy>,
    pub failure: Failure,
}

/// Opens the turn's step and makes its request.
pub(super) async fn run(
    agent: &Agent,
    session: &mut Session,
    turn: u64,
    cancel: &CancellationToken,
) -> Result<Attempted, JournalError> {
    let journal = session.journal.clone();
    journal.append(Body::StepStart(StepRef { turn, step: ONLY_STEP }))?;
    let number = journal.with_state(|state| state.failures.len() as u64 + 1);
    if number == 1 {
        session.failed.clear();
    }
    let target = agent.router.route(&Attempt {
        turn,
        number,
        session_target: &session.target,
        last_failure: session.failed.last().map(|(_, failure)| failure),
    });
    record_header(session, &target)?;
    let prepared = agent.routes.prepare(&target.provider);
    // No call before the records that led to it are on disk.
    journal.flush().await?;
    if cancel.is_cancelled() {
        return Ok(Attempted::Cancelled);
    }
    let (policy, chunks): (_, BoxStream<'static, Chunk>) = match prepared {
        Ok(call) => {
            let policy = (*call.policy).clone();
            let request = Request {
                model: target.model.clone(),
                system: session.system.clone(),
                messages: journal.with_state(|state| state.surface.clone()),
            };
            (Some(policy), call.stream(Arc::new(request), cancel.clone()))
        }
        Err(failure) => {
            let finish = Chunk::Finish { reason: FinishReason::Error { failure } };
            (None, futures_util::stream::once(std::future::ready(finish)).boxed())
        }
    };
    let mut assembly = Assembly::default();
    let finish = take_in(&journal, turn, chunks, &mut assembly, cancel).await?;
    let max_tokens = matches!(finish, Some(FinishReason::MaxTokens));
    match finish {
        Some(FinishReason::Stop | FinishReason::ToolCalls | FinishReason::MaxTokens) => {
            let content = assembly.visible();
            let usage = assembly.usage;
            record_message(session, turn, &target, content.clone(), assembly, false)?;
            Ok(Attempted::Answered { content, usage, max_tokens })
        }
        // What was visible when the user stopped it stays visible.
        _ if cancel.is_cancelled() => {
            let content = assembly.visible();
            if !content.is_empty() {
                record_message(session, turn, &target, content, assembly, true)?;
            }
            Ok(Attempted::Cancelled)
        }
        Some(FinishReason::Error { mut failure } | FinishReason::Aborted { mut failure }) => {
            note_policy(session, &target, policy.as_ref(), &mut failure);
            session.remember(&target, &failure);
            Ok(Attempted::Failed(Box::new(FailedAttempt { target, policy, failure })))
        }
        None => {
            let failure = Failure::new(FailureCode::Unknown, "The provider's stream ended without a reason.");
            Ok(Attempted::Failed(Box::new(FailedAttempt { target, policy, failure })))
        }
    }
}

/// Writes into the failure's evidence what the serving policy makes of it: of what the provider asks for, and of a
/// failure that will only repeat itself.
fn note_policy(session: &Session, target: &Target, policy: Option<&RetryPolicy>, failure: &mut Failure) {
    let Some(policy) = policy else { return };
    let of_provider =
        |state: &SessionState| state.failures.iter().filter(|failed| failed.provider == target.provider).count() as u64;
    // Always mode has no budget to spend, and its failures may be very many.
    let failed_before = match policy {
        RetryPolicy::Normal { .. } => session.journal.with_state(of_provider),
        RetryPolicy::Always { .. } => 0,
    };
    failure.judge(policy, failed_before);
    let mut before = session.failed.iter().filter(|(to, _)| to == target).map(|(_, failure)| failure);
    // The turns of a chain repeat the same bytes to the same model, so a refusal of the request comes again for ever.
    if matches!(policy, RetryPolicy::Always { .. })
        && before.any(|before| before.is_refusal() && before.is_alike(failure))
    {
        let evidence = failure.evidence.get_or_insert_default();
        evidence.impossible.get_or_insert_with(|| "the same request was refused in the same way before".to_owned());
    }
    if matches!(policy, RetryPolicy::Always { .. }) && failure.impossible().is_some() {
        // A hint shorter than the slow lane's delay would put the request back into a hurry.
        if let Some(hint) = failure.evidence.as_mut().and_then(|evidence| evidence.hint.as_mut()) {
            hint.r#use = Some(HintUse::Ignored);
            hint.why = Some("the request cannot succeed, so it is repeated at the longest delay only".to_owned());
        }
    }
}

/// Journals the stream, and returns how it finished; `None` when the cancel came first.
async fn take_in(
    journal: &Journal,
    turn: u64,
    mut chunks: BoxStream<'static, Chunk>,
    assembly: &mut Assembly,
    cancel: &CancellationToken,
) -> Result<Option<FinishReason>, JournalError> {
    loop {
        let chunk = tokio::select! {
            biased;
            () = cancel.cancelled() => return Ok(None),
            chunk = chunks.next() => chunk,
        };
        let Some(chunk) = chunk else { return Ok(None) };
        let finish = if let Chunk::Finish { reason } = &chunk { Some(reason.clone()) } else { None };
        let record = AssistantChunk { turn, step: ONLY_STEP, chunk };
        let seq = journal.with_state(|state| state.next_seq);
        assembly.take_in(seq, &record.chunk);
        journal.append(Body::AssistantChunk(record))?;
        if finish.is_some() {
            return Ok(finish);
        }
    }
}

/// Journals the header when it is the first since the session was opened, or differs from the last.
fn record_header(session: &mut Session, target: &Target) -> Result<(), JournalError> {
    let header = Header {
        config: HeaderConfig { provider: target.provider.clone(), model: target.model.clone() },
        system: session.system.clone(),
    };
    let first = std::mem::replace(&mut session.first_request, false);
    let reason = session.journal.with_state(|state| match &state.header {
        None => Some(HeaderReason::Initial),
        Some(_) if first => Some(HeaderReason::Resume),
        Some(last) if *last != header => Some(HeaderReason::Change),
        Some(_) => None,
    });
    match reason {
        Some(reason) => session.journal.append(Body::RequestHeader(RequestHeader { header, reason })).map(|_| ()),
        None => Ok(()),
    }
}

fn record_message(
    session: &Session,
    turn: u64,
    target: &Target,
    content: Vec<Block>,
    assembly: Assembly,
    interrupted: bool,
) -> Result<(), JournalError> {
    let message = AssistantMessage {
        turn,
        step: ONLY_STEP,
        message: Answer {
            role: AnswerRole::Assistant,
            content,
            source: AnswerSource::Model { provider: target.provider.clone(), model: target.model.clone() },
            id: session.next_message_id(),
        },
        usage: assembly.usage,
        interrupted,
    };
    session.journal.append_citing(Body::AssistantMessage(message), assembly.seqs).map(|_| ())
}
