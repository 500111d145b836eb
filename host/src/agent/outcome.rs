//! How a prompt ended, and the sentence that tells a person about a failure.

use crate::{
    journal::{SessionState, state::FailedRequest},
    llm::{Failure, FailureCode, Usage},
};

/// How a prompt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnOutcome {
    Answered {
        text: String,
        usage: Option<Usage>,
        /// The answer stopped at the model's output limit.
        max_tokens: bool,
    },
    /// The failure of the last request, and a sentence that says what was tried.
    Failed {
        failure: Failure,
        sentence: String,
    },
    Cancelled,
}

/// What was tried since the newest prompt, and what to do now: `deepseek failed 6 requests in 41 s (503 ×4, cut
/// stream ×2). …`. `now_ms` in milliseconds since the Unix epoch.
pub fn failure_sentence(state: &SessionState, last: &Failure, now_ms: u64) -> String {
    let seconds = now_ms.saturating_sub(state.prompt_time) as f64 / 1_000.0;
    let mut providers: Vec<&str> = Vec::new();
    let mut causes: Vec<(String, usize)> = Vec::new();
    for failed in &state.failures {
        if !providers.contains(&failed.provider.as_str()) {
            providers.push(&failed.provider);
        }
        let word = cause(failed);
        match causes.iter_mut().find(|(known, _)| *known == word) {
            Some((_, times)) => *times += 1,
            None => causes.push((word, 1)),
        }
    }
    let provider = if providers.is_empty() { "The provider".to_owned() } else { providers.join(" and ") };
    let causes: Vec<_> =
        causes.into_iter().map(|(word, times)| if times == 1 { word } else { format!("{word} ×{times}") }).collect();
    let requests = match state.failures.len() {
        1 => "1 request".to_owned(),
        n => format!("{n} requests"),
    };
    let message = last.message.trim_end_matches('.');
    let impossible = last.impossible().map_or_else(String::new, |why| format!("It cannot succeed as it is: {why}. "));
    let asked = if last.should_retry() == Some(false) { "The provider asked not to retry it. " } else { "" };
    format!(
        "{provider} failed {requests} in {seconds:.1} s ({}). The last failure: {message}. {asked}{impossible}{}",
        causes.join(", "),
        remedy(last.code)
    )
}

fn cause(failed: &FailedRequest) -> String {
    match (failed.status, failed.code) {
        (Some(status), FailureCode::Quota | FailureCode::ContextOverflow) => format!("{status} {}", failed.code),
        (Some(status), _) if status >= 400 => status.to_string(),
        (_, FailureCode::Transport) => "cut connection".into(),
        (_, FailureCode::Timeout) => "timeout".into(),
        (_, FailureCode::EmptyResponse) => "empty answer".into(),
        (_, FailureCode::Protocol) => "unreadable answer".into(),
        (_, code) => code.to_string(),
    }
}

fn remedy(code: FailureCode) -> &'static str {
    match code {
        FailureCode::RateLimit => "Wait, or ask for fewer requests a minute.",
        FailureCode::Server | FailureCode::EmptyResponse => "The provider has trouble: try later, or use another one.",
        FailureCode::Timeout | FailureCode::Transport => "Check the network and the provider's baseUrl, or try later.",
        FailureCode::Auth => "Check the API key and what it may do.",
        FailureCode::Quota => "Top up the account or use another key.",
        FailureCode::InvalidRequest => "The same request would be refused again: change the prompt or the model.",
        FailureCode::Protocol => "Check that the adapter fits the provider.",
        FailureCode::ContextOverflow => "Start a new session or use a model with a longer context.",
        FailureCode::NoRoute => "Name a provider that the profile has.",
        FailureCode::Aborted | FailureCode::Unknown => "`retake journal show` tells more.",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_final_failure_says_who_failed_how_often_how_long_and_why() {
        let failed = |code, status| FailedRequest { provider: "deepseek".into(), code, status };
        let mut state = SessionState::default();
        state.failures.extend([
            failed(FailureCode::Server, Some(503)),
            failed(FailureCode::Transport, Some(200)),
            failed(FailureCode::Server, Some(503)),
        ]);
        state.prompt_time = 1_000;
        let last = Failure { status: Some(503), ..Failure::new(FailureCode::Server, "overloaded.") };
        assert_eq!(
            failure_sentence(&state, &last, 42_000),
            "deepseek failed 3 requests in 41.0 s (503 ×2, cut connection). The last failure: overloaded. \
             The provider has trouble: try later, or use another one."
        );
    }

    #[test]
    fn a_final_failure_says_that_the_provider_asked_not_to_retry() {
        let sentence = |should_retry| {
            let evidence = crate::llm::Evidence { should_retry, ..Default::default() };
            let failure = Failure::new(FailureCode::Server, "overloaded");
            failure_sentence(&SessionState::default(), &Failure { evidence: Some(Box::new(evidence)), ..failure }, 0)
        };
        let said = sentence(Some(false));
        assert!(said.contains("overloaded. The provider asked not to retry it. The provider has trouble"), "{said}");
        assert!([None, Some(true)].into_iter().all(|word| !sentence(word).contains("asked not to")));
    }
}
