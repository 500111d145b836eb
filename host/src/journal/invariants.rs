//! The rules that a session's events obey. Checked before each append, so that a component that breaks one gets an
//! error and the log stays clean.

use super::{
    event::{
        AnswerSource, AssistantMessage, Body, ExecutorRef, Retry, RetryHandover, RetryMode, RetryStarted, StepEnd,
        TurnEnd, TurnEndReason,
    },
    state::{Answered, SessionState},
};
use crate::llm::{
    Chunk, Failure, FinishReason,
    policy::{MAX_SAFE_INTEGER, MAX_TIMER_MS},
};

/// A broken rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {message}")]
pub struct Violation {
    /// The rule's short, stable name.
    pub rule: &'static str,
    /// A sentence with the value that was wrong and the one that would be right.
    pub message: String,
}

fn violation<T>(rule: &'static str, message: impl Into<String>) -> Result<T, Violation> {
    Err(Violation { rule, message: message.into() })
}

/// Whether `body`, made of the events `cites`, may follow what `state` sums up.
pub fn check(state: &SessionState, body: &Body, cites: Option<&[u64]>) -> Result<(), Violation> {
    if cites.is_some() && !matches!(body, Body::AssistantMessage(_)) {
        return violation(
            "citation",
            format!("{} cites events, but only an answer is made of others.", body.type_name()),
        );
    }
    match body {
        Body::TurnStart(start) => {
            if state.turn_open {
                return violation(
                    "turn-open",
                    format!("Turn {} is not closed, so turn {} cannot start.", state.last_turn, start.turn),
                );
            }
            if start.turn != state.last_turn.saturating_add(1) {
                return violation(
                    "turn-number",
                    format!("Turn {} must be {}.", start.turn, state.last_turn.saturating_add(1)),
                );
            }
            match start.retry_of {
                Some(of) if of != state.last_turn => violation(
                    "retry-of",
                    format!("A retry turn repeats the turn before it, which is {}.", state.last_turn),
                ),
                Some(of) if state.to_repeat.is_none() => violation(
                    "retry-of",
                    format!("Turn {of} did not end with the reason \"retry\", so nothing may repeat it."),
                ),
                _ => Ok(()),
            }
        }
        Body::UserMessage(message) => {
            message_id(&message.id)?;
            prompt(state)
        }
        Body::StepStart(step) => {
            open_turn(state, step.turn, "step/start")?;
            match &state.step {
                Some(open) if !open.closed => violation(
                    "step-open",
                    format!("Step {} is not closed, so step {} cannot start.", open.step, step.step),
                ),
                None if !state.repeats && !state.prompted => violation(
                    "no-prompt",
                    format!("Turn {} repeats no other one, so it needs a user/message before its step.", step.turn),
                ),
                previous => {
                    let expected = previous.as_ref().map_or(1, |previous| previous.step.saturating_add(1));
                    if step.step == expected {
                        Ok(())
                    } else {
                        violation("step-number", format!("Step {} must be {expected}.", step.step))
                    }
                }
            }
        }
        Body::RequestHeader(_) => match &state.step {
            Some(step) if !step.closed && step.stream.chunks() > 0 => {
                violation("header-place", "A request/header stands before the chunks of its request.")
            }
            Some(step) if !step.closed => Ok(()),
            _ => violation("step-open", "A request/header stands inside an open step."),
        },
        Body::AssistantChunk(chunk) => {
            check_chunk(state, chunk.turn, chunk.step)?;
            match &chunk.chunk {
                Chunk::Finish {
                    reason: FinishReason::Error { failure: of } | FinishReason::Aborted { failure: of },
                } => failure(of),
                _ => Ok(()),
            }
        }
        Body::AssistantMessage(message) => {
            message_id(&message.message.id)?;
            answer(state, message, cites.unwrap_or_default())
        }
        Body::StepEnd(end) => step_end(state, end),
        Body::Retry(record) => retry(state, record),
        Body::RetryStarted(started) => retry_started(state, started),
        Body::RetryHandover(handover) => retry_handover(state, handover),
        Body::TurnEnd(end) => turn_end(state, end),
        Body::Ignorable { r#type, .. } if r#type.is_empty() => violation("type", "An event's type must not be empty."),
        Body::Chain(_) | Body::ExecutorFault(_) | Body::ExecutorNote(_) | Body::Ignorable { .. } => Ok(()),
    }
}

/// Whether a chunk of this step may follow what `state` sums up.
pub(super) fn check_chunk(state: &SessionState, turn: u64, step: u64) -> Result<(), Violation> {
    open_step(state, turn, step, "assistant/chunk")?;
    match &state.step {
        Some(open) if open.stream.finish.is_some() => {
            violation("stream-end", format!("A chunk follows the finish of step {step}; a step makes one request."))
        }
        Some(open) if open.answer.is_some() => {
            violation("stream-end", format!("A chunk follows the assistant/message of step {step}."))
        }
        _ => Ok(()),
    }
}

fn message_id(id: &str) -> Result<(), Violation> {
    if id.is_empty() { violation("message-id", "A message's id must not be empty.") } else { Ok(()) }
}

/// A prompt opens its turn. One that came later, or in a retry turn, would make the repeated request another one.
fn prompt(state: &SessionState) -> Result<(), Violation> {
    open_turn(state, state.last_turn, "user/message")?;
    if state.repeats {
        return violation(
            "retry-surface",
            "A retry turn repeats its request over the same surface, so it has no user/message.",
        );
    }
    match &state.step {
        Some(step) => violation(
            "prompt-place",
            format!("A user/message stands before its turn's step, not behind step {}.", step.step),
        ),
        None => Ok(()),
    }
}

fn answer(state: &SessionState, message: &AssistantMessage, cites: &[u64]) -> Result<(), Violation> {
    open_step(state, message.turn, message.step, "assistant/message")?;
    let Some(step) = &state.step else { return Ok(()) };
    let stream = &step.stream;
    if step.answer.is_some() {
        return violation("one-answer", "The step has an assistant/message already; a request has one answer.");
    }
    if message.interrupted && stream.is_answer() {
        return violation("answer-finish", "The assistant/message is marked as interrupted, but its stream finished.");
    }
    if !message.interrupted && !stream.is_answer() {
        let how = if stream.finish.is_some() { "that failed" } else { "that has not finished" };
        return violation("answer-finish", format!("The assistant/message stands behind a stream {how}."));
    }
    if let Some(seq) = stream.misplaced(cites) {
        return violation(
            "citation",
            format!(
                "The assistant/message cites event {seq}, but it must cite each chunk of the request that it answers, \
                 once and in order, and nothing else."
            ),
        );
    }
    if (cites.len() as u64) < stream.chunks() {
        return violation(
            "citation",
            format!(
                "The assistant/message cites {} of the {} chunks of the request that it answers.",
                cites.len(),
                stream.chunks()
            ),
        );
    }
    let AnswerSource::Model { provider, model } = &message.message.source;
    let routed = state.routed().map(|routed| (&routed.provider, &routed.model));
    if routed != Some((provider, model)) {
        let (to, at) = routed.map_or(("none", "none"), |(provider, model)| (provider, model));
        return violation(
            "answer-source",
            format!("The answer's source is {provider} · {model}, but the request went to {to} · {at}."),
        );
    }
    if !stream.makes(&message.message.content) {
        return violation("answer-content", "The assistant/message says something else than its chunks.");
    }
    if message.usage != stream.usage {
        return violation("answer-usage", "The assistant/message has another usage than its chunks.");
    }
    Ok(())
}

fn step_end(state: &SessionState, end: &StepEnd) -> Result<(), Violation> {
    open_step(state, end.turn, end.step, "step/end")?;
    let (Some(of), Some(step)) = (&end.failure, &state.step) else { return Ok(()) };
    failure(of)?;
    if step.answer.is_some() {
        return violation("failed-answer", format!("Step {} failed, yet it has an assistant/message.", end.step));
    }
    match &step.stream.finish {
        // Its stream was cut off without a word.
        None => Ok(()),
        Some(FinishReason::Error { failure: met } | FinishReason::Aborted { failure: met }) if is_same(met, of) => {
            Ok(())
        }
        Some(FinishReason::Error { failure: met } | FinishReason::Aborted { failure: met }) => violation(
            "step-failure",
            format!("The failure of step {} is {}, but its stream finished with {}.", end.step, named(of), named(met)),
        ),
        Some(_) => violation("step-failure", format!("Step {} failed, but its stream finished well.", end.step)),
    }
}

/// Whether a step's failure is the one that its stream finished with. The host adds to the evidence what the policy
/// makes of the failure, and takes a hint away that it will not follow.
fn is_same(met: &Failure, of: &Failure) -> bool {
    let hint = of.provider_retry_after_ms;
    (&met.message, met.code, met.status, &met.request_id) == (&of.message, of.code, of.status, &of.request_id)
        && (hint.is_none() || hint == met.provider_retry_after_ms)
}

fn named(failure: &Failure) -> String {
    match failure.status {
        Some(status) => format!("{} {status}, \"{}\"", failure.code, failure.message),
        None => format!("{}, \"{}\"", failure.code, failure.message),
    }
}

/// The step of a failed turn, and who may say what of it: only an answered one is completed, only a failed one is
/// repeated or given up. A crash may come at any moment, so that any turn may be closed as interrupted.
fn turn_end(state: &SessionState, end: &TurnEnd) -> Result<(), Violation> {
    open_turn(state, end.turn, "turn/end")?;
    let step = state.step.as_ref();
    if let Some(step) = step.filter(|step| !step.closed) {
        return violation("step-open", format!("Step {} must be closed before turn {} ends.", step.step, end.turn));
    }
    let failed = step.and_then(|step| step.failure.as_ref());
    let answer = step.and_then(|step| step.answer);
    let live = state.current_retry();
    let wrong = |reason: &str, why: &str| violation("turn-reason", format!("A turn ends as \"{reason}\" {why}."));
    match &end.reason {
        TurnEndReason::Interrupted => Ok(()),
        TurnEndReason::Completed | TurnEndReason::MaxTokens if failed.is_some() || answer != Some(Answered::Whole) => {
            wrong("completed", "or \"max-tokens\" only when its step has a whole assistant/message and did not fail")
        }
        TurnEndReason::Completed | TurnEndReason::MaxTokens => {
            let cut = step.is_some_and(|step| step.stream.finish == Some(FinishReason::MaxTokens));
            if cut == (end.reason == TurnEndReason::MaxTokens) {
                Ok(())
            } else {
                wrong("max-tokens", "when its stream finished so, and only then")
            }
        }
        TurnEndReason::Aborted if answer == Some(Answered::Whole) => {
            wrong("aborted", "only before its answer is whole")
        }
        TurnEndReason::Aborted => Ok(()),
        TurnEndReason::Error { error } => {
            failure(error)?;
            match failed {
                None => wrong("error", "only when its step failed"),
                Some(_) if live.is_some_and(|live| live.started) => {
                    wrong("error", "only when no retry of its step has started")
                }
                Some(failed) if failed != error.as_ref() => violation(
                    "turn-error",
                    format!("The turn's error is {}, but its step failed with {}.", named(error), named(failed)),
                ),
                Some(_) => Ok(()),
            }
        }
        TurnEndReason::Retry => match live {
            _ if failed.is_none() => wrong("retry", "only when its step failed"),
            Some(live) if !live.started => violation(
                "turn-reason",
                format!(
                    "A turn ends as \"retry\" only when retry {} of chain {}, which is scheduled, has started.",
                    live.record.retry, live.record.retry_id
                ),
            ),
            _ => Ok(()),
        },
    }
}

fn open_turn(state: &SessionState, turn: u64, what: &str) -> Result<(), Violation> {
    if state.turn_open && state.last_turn == turn {
        Ok(())
    } else if state.turn_open {
        violation("turn-number", format!("{what} names turn {turn}, but turn {} is open.", state.last_turn))
    } else {
        violation("turn-closed", format!("{what} names turn {turn}, but no turn is open."))
    }
}

fn open_step(state: &SessionState, turn: u64, step: u64, what: &str) -> Result<(), Violation> {
    open_turn(state, turn, what)?;
    match &state.step {
        Some(open) if open.step == step && !open.closed => Ok(()),
        _ => violation("step-closed", format!("{what} names step {step} of turn {turn}, which is not open.")),
    }
}

/// The newest step of the open turn has this number, is closed, and failed.
fn failed_step(state: &SessionState, turn: u64, step: u64, what: &str) -> Result<(), Violation> {
    open_turn(state, turn, what)?;
    match &state.step {
        Some(last) if last.step != step => {
            violation("step-number", format!("{what} names step {step}, but the newest step is {}.", last.step))
        }
        Some(last) if !last.closed => {
            violation("step-open", format!("{what} names step {step} of turn {turn}, which must be closed first."))
        }
        Some(last) if last.failure.is_none() => {
            violation("step-succeeded", format!("{what} names step {step} of turn {turn}, which did not fail."))
        }
        Some(_) => Ok(()),
        None => violation("step-missing", format!("{what} names step {step}, but turn {turn} has no step.")),
    }
}

/// Checks a failure's fields, wherever it stands.
fn failure(failure: &Failure) -> Result<(), Violation> {
    if failure.message.is_empty() {
        return violation("failure-message", "A failure's message must not be empty.");
    }
    if let Some(status) = failure.status.filter(|status| !(100..=599).contains(status)) {
        return violation("failure-status", format!("A failure's status must be 100 to 599, not {status}."));
    }
    if let Some(ms) = failure.provider_retry_after_ms.filter(|ms| !(ms.is_finite() && *ms > 0.0)) {
        return violation(
            "failure-retry-after",
            format!("A failure's providerRetryAfterMs must be finite and above 0, not {ms}."),
        );
    }
    if failure.request_id.as_ref().is_some_and(String::is_empty) {
        return violation("failure-request-id", "A failure's requestId must not be empty.");
    }
    Ok(())
}

fn retry(state: &SessionState, record: &Retry) -> Result<(), Violation> {
    if record.retry_id.is_empty() {
        return violation("retry-id", "retryId must not be empty.");
    }
    failure(&record.failure)?;
    if !(1..=MAX_SAFE_INTEGER).contains(&record.retry) {
        return violation("retry-number", format!("retry must be 1 to {MAX_SAFE_INTEGER}, not {}.", record.retry));
    }
    if record.provider.is_empty() {
        return violation("provider", "provider must not be empty.");
    }
    if record.policy_key.is_empty() {
        return violation("policy-key", "policyKey must not be empty.");
    }
    match (record.mode, record.max_retries) {
        (RetryMode::Normal, None | Some(0)) => {
            return violation("max-retries", "Under normal, maxRetries must be at least 1.");
        }
        (RetryMode::Normal, Some(max)) if max > MAX_SAFE_INTEGER => {
            return violation("max-retries", format!("maxRetries must be at most {MAX_SAFE_INTEGER}, not {max}."));
        }
        (RetryMode::Normal, Some(max)) if record.retry > max => {
            return violation("max-retries", format!("Retry {} is beyond the limit of {max}.", record.retry));
        }
        (RetryMode::Always, Some(max)) => {
            return violation("max-retries", format!("Under always, maxRetries must be absent, not {max}."));
        }
        (RetryMode::Normal, Some(_)) | (RetryMode::Always, None) => {}
    }
    if !(record.delay_ms >= 0.0 && record.delay_ms <= MAX_TIMER_MS) {
        return violation("delay", format!("delayMs must be 0 to {MAX_TIMER_MS}, not {}.", record.delay_ms));
    }
    failed_step(state, record.turn, record.step, "llm/retry")?;
    if let Some(failed) = state.step.as_ref().and_then(|step| step.failure.as_ref()).filter(|of| **of != record.failure)
    {
        return violation(
            "retry-failure",
            format!("The record's failure is {}, but the step failed with {}.", named(&record.failure), named(failed)),
        );
    }
    match state.routed() {
        Some(routed) if routed.provider == record.provider => {}
        routed => {
            let routed = routed.map_or("none", |routed| routed.provider.as_str());
            return violation(
                "provider",
                format!("provider is \"{}\", but the request went to {routed}.", record.provider),
            );
        }
    }
    if let Some(live) = state.current_retry() {
        if live.started {
            return violation("one-live-record", format!("The retry of step {} has started already.", record.step));
        }
        if !live.handed_over {
            return violation(
                "one-live-record",
                format!(
                    "Step {} has a live record already, retry {} of chain {}.",
                    record.step, live.record.retry, live.record.retry_id
                ),
            );
        }
    }
    match state.last_retry(&record.provider, &record.policy_key) {
        Some((retry_id, number)) => {
            if record.retry != number.saturating_add(1) {
                return violation(
                    "retry-number",
                    format!("retry must be {}, not {}.", number.saturating_add(1), record.retry),
                );
            }
            if record.retry_id != retry_id {
                return violation(
                    "retry-id",
                    format!("retryId must stay {retry_id} in its chain, not {}.", record.retry_id),
                );
            }
        }
        None => {
            if record.retry != 1 {
                return violation("retry-number", format!("retry must be 1 in a new chain, not {}.", record.retry));
            }
            if state.knows_retry_id(&record.retry_id) {
                return violation("retry-id", format!("retryId {} belongs to another chain.", record.retry_id));
            }
        }
    }
    Ok(())
}

/// The step's record that has not started, if it is the one that is named.
fn live_record(
    state: &SessionState,
    turn: u64,
    step: u64,
    retry_id: &str,
    retry: u64,
    what: &str,
) -> Result<(), Violation> {
    if retry_id.is_empty() {
        return violation("retry-id", "retryId must not be empty.");
    }
    failed_step(state, turn, step, what)?;
    match state.current_retry() {
        Some(live) if live.record.retry_id != retry_id || live.record.retry != retry => violation(
            "live-record",
            format!(
                "{what} names retry {retry} of chain {retry_id}, but retry {} of chain {} is scheduled.",
                live.record.retry, live.record.retry_id
            ),
        ),
        Some(live) if live.started => violation(
            "live-record",
            format!("{what} names retry {retry} of chain {retry_id}, which has started already."),
        ),
        Some(_) => Ok(()),
        None => {
            violation("live-record", format!("{what} names retry {retry} of chain {retry_id}, but none is scheduled."))
        }
    }
}

fn retry_started(state: &SessionState, started: &RetryStarted) -> Result<(), Violation> {
    live_record(state, started.turn, started.step, &started.retry_id, started.retry, "llm/retry-started")
}

fn retry_handover(state: &SessionState, handover: &RetryHandover) -> Result<(), Violation> {
    if !(handover.remaining_ms >= 0.0 && handover.remaining_ms <= MAX_TIMER_MS) {
        return violation(
            "remaining",
            format!("remainingMs must be 0 to {MAX_TIMER_MS}, not {}.", handover.remaining_ms),
        );
    }
    live_record(state, handover.turn, handover.step, &handover.retry_id, handover.retry, "llm/retry-handover")?;
    match state.current_retry().and_then(|live| live.by.as_ref()) {
        Some(by) if *by != handover.from => violation(
            "handover-from",
            format!("from is \"{}\", but \"{}\" had scheduled the wait.", handover.from.id, by.id),
        ),
        _ if handover.from != ExecutorRef::unknown() && !state.executors.contains(&handover.from) => violation(
            "handover-from",
            format!("from is \"{}\", which is an executor of no chain that the session has met.", handover.from.id),
        ),
        _ => Ok(()),
    }?;
    let met = state.chain.as_ref().map(|chain| chain.generation);
    if met == Some(handover.generation) {
        return Ok(());
    }
    violation(
        "handover-generation",
        format!(
            "generation is {}, but the newest chain that the session has met is {}.",
            handover.generation,
            met.map_or_else(|| "none".to_owned(), |met| met.to_string())
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        env::Env,
        journal::{
            Journal, JournalError,
            event::{
                Answer, AnswerRole, AssistantChunk, Header, HeaderConfig, HeaderReason, RequestHeader, StepRef,
                TurnStart, UserMessage, UserRole, UserSource,
            },
        },
        llm::{Block, FailureCode},
    };

    fn prompt() -> Body {
        let (source, role) = (UserSource::User, UserRole::User);
        Body::UserMessage(UserMessage { content: Vec::new(), source, role, id: "m-1".into() })
    }

    fn chunk(chunk: Chunk) -> Body {
        Body::AssistantChunk(AssistantChunk { turn: 1, step: 1, chunk })
    }

    fn answer(text: &str) -> Body {
        Body::AssistantMessage(AssistantMessage {
            turn: 1,
            step: 1,
            message: Answer {
                role: AnswerRole::Assistant,
                content: vec![Block::Text { text: text.into() }],
                source: AnswerSource::Model { provider: "p".into(), model: "m".into() },
                id: "m-2".into(),
            },
            usage: None,
            interrupted: false,
        })
    }

    /// A journal whose request has streamed `Seven.`, as event 4.
    fn streaming() -> Journal {
        let journal = Journal::in_memory("s", Env::fixed(1_000, 1).clock).0;
        let config = HeaderConfig { provider: "p".into(), model: "m".into() };
        let header = Header { config, system: None };
        for body in [
            Body::TurnStart(TurnStart { turn: 1, retry_of: None }),
            prompt(),
            Body::StepStart(StepRef { turn: 1, step: 1 }),
            Body::RequestHeader(RequestHeader { header, reason: HeaderReason::Initial }),
            chunk(Chunk::TextDelta { index: 0, text: "Seven.".into() }),
        ] {
            journal.append(body).unwrap();
        }
        journal
    }

    fn refused<T: std::fmt::Debug>(result: Result<T, JournalError>) -> &'static str {
        match result {
            Err(JournalError::Invalid(violation)) => violation.rule,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_append_that_contradicts_the_turn_is_refused_and_the_log_goes_on() {
        let journal = streaming();
        let end = |reason| Body::TurnEnd(TurnEnd { turn: 1, reason });
        assert_eq!(refused(journal.append(prompt())), "prompt-place");
        assert_eq!(refused(journal.append_citing(answer("Seven."), vec![4])), "answer-finish");
        journal.append(chunk(Chunk::Finish { reason: FinishReason::Stop })).unwrap();
        assert_eq!(refused(journal.append(answer("Seven."))), "citation");
        assert_eq!(refused(journal.append_citing(answer("Eight."), vec![4, 5])), "answer-content");
        let failure = Some(Failure::new(FailureCode::Server, "x"));
        assert_eq!(refused(journal.append(Body::StepEnd(StepEnd { turn: 1, step: 1, failure }))), "step-failure");
        journal.append_citing(answer("Seven."), vec![4, 5]).unwrap();
        journal.append(Body::StepEnd(StepEnd { turn: 1, step: 1, failure: None })).unwrap();
        for reason in [TurnEndReason::Retry, TurnEndReason::MaxTokens, TurnEndReason::Aborted] {
            assert_eq!(refused(journal.append(end(reason))), "turn-reason");
        }
        journal.append(end(TurnEndReason::Completed)).unwrap();
        assert_eq!(refused(journal.append(Body::TurnStart(TurnStart { turn: 2, retry_of: Some(1) }))), "retry-of");
        journal.append(Body::TurnStart(TurnStart { turn: 2, retry_of: None })).unwrap();
        assert_eq!(refused(journal.append(Body::StepStart(StepRef { turn: 2, step: 1 }))), "no-prompt");
    }
}
