//! How a prompt ended, and the account of a failed one: for people a sentence, for programs the same as data.

use super::answer::text_of;
use crate::{
    journal::{
        SessionState,
        state::{FailedRequest, FailureKind},
    },
    llm::{Block, Failure, FailureCode, HintUse, Usage},
};
use serde::Serialize;
use std::fmt;

/// How many of the newest failed requests an account lists one by one; it counts all of them.
const MOST_LISTED: usize = 100;

/// How a prompt ended.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnOutcome {
    Answered {
        text: String,
        /// The tool calls among the answer's blocks, in their order. Nobody has run them.
        tool_calls: Vec<Block>,
        usage: Option<Usage>,
        /// The answer stopped at the model's output limit.
        max_tokens: bool,
    },
    /// The failure of the last request, and what was tried before it.
    Failed {
        failure: Failure,
        tried: Box<Tried>,
    },
    Cancelled,
}

impl TurnOutcome {
    pub(super) fn answered(content: Vec<Block>, usage: Option<Usage>, max_tokens: bool) -> TurnOutcome {
        let text = text_of(&content);
        let tool_calls = content.into_iter().filter(|block| matches!(block, Block::ToolCall { .. })).collect();
        TurnOutcome::Answered { text, tool_calls, usage, max_tokens }
    }
}

/// What was tried since the newest prompt, and what to do now. Its text is the sentence for a person.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Tried {
    /// The providers that failed, in the order of their first failure.
    pub providers: Vec<String>,
    /// How many requests failed.
    pub requests: u64,
    /// From the prompt to its end, in milliseconds.
    pub elapsed_ms: u64,
    /// The distinct causes, in the order of their first appearance.
    pub causes: Vec<Cause>,
    /// The failed requests in their order; the newest 100 of very many.
    pub attempts: Vec<FailedRequest>,
    /// What the provider asked for last and did not get.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub asked: Option<Asked>,
    pub advice: Advice,
    /// The last failure's message, for the sentence.
    #[serde(skip)]
    last: String,
    /// Why the request cannot succeed however often it is repeated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impossible: Option<String>,
}

/// A wish of the provider that ended the retries.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Asked {
    NotToRetry,
    /// A wait beyond the policy's longest delay, in milliseconds.
    ToWait {
        #[serde(with = "crate::journal::number")]
        ms: f64,
    },
}

/// One kind of failure, and how often it was met.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Cause {
    #[serde(flatten)]
    pub kind: FailureKind,
    pub count: u64,
}

/// What a person can do about it. The words are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Advice {
    SlowDown,
    TryLater,
    CheckNetwork,
    RaiseLimit,
    CheckCredential,
    TopUp,
    ChangeRequest,
    CheckAdapter,
    ShortenContext,
    NameRoute,
    ReadJournal,
}

impl Tried {
    /// What `state` tells about the turns since the newest prompt, which `last` ends. `now_ms` in milliseconds since
    /// the Unix epoch.
    pub fn of(state: &SessionState, last: &Failure, now_ms: u64) -> Tried {
        let mut providers: Vec<String> = Vec::new();
        let mut causes: Vec<Cause> = Vec::new();
        for failed in &state.failures {
            if !providers.contains(&failed.provider) {
                providers.push(failed.provider.clone());
            }
            match causes.iter_mut().find(|cause| cause.kind == failed.kind) {
                Some(cause) => cause.count += 1,
                None => causes.push(Cause { kind: failed.kind.clone(), count: 1 }),
            }
        }
        let first_listed = state.failures.len().saturating_sub(MOST_LISTED);
        Tried {
            providers,
            requests: state.failures.len() as u64,
            elapsed_ms: now_ms.saturating_sub(state.prompt_time),
            asked: Asked::of(last),
            advice: Advice::about(last, &causes),
            causes,
            attempts: state.failures[first_listed..].to_vec(),
            last: last.message.clone(),
            impossible: last.impossible().map(str::to_owned),
        }
    }
}

/// `deepseek failed 6 requests in 41.0 s (503 ×4, cut connection ×2). The last failure: …. …`
impl fmt::Display for Tried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let provider = if self.providers.is_empty() { "The provider".into() } else { self.providers.join(" and ") };
        let requests = if self.requests == 1 { "1 request".into() } else { format!("{} requests", self.requests) };
        let causes: Vec<_> = self.causes.iter().map(Cause::to_string).collect();
        let seconds = self.elapsed_ms as f64 / 1_000.0;
        let last = self.last.trim_end_matches('.');
        write!(
            f,
            "{provider} failed {requests} in {seconds:.1} s ({}). The last failure: {last}. ",
            causes.join(", ")
        )?;
        match self.asked {
            Some(Asked::NotToRetry) => f.write_str("The provider asked not to retry it. ")?,
            Some(Asked::ToWait { ms }) => {
                write!(f, "The provider asked to wait {}, longer than the policy's longest delay. ", wait_words(ms))?;
            }
            None => {}
        }
        if let Some(why) = &self.impossible {
            write!(f, "It cannot succeed as it is: {why}. ")?;
        }
        f.write_str(self.advice.sentence())
    }
}

impl Asked {
    fn of(last: &Failure) -> Option<Asked> {
        if last.should_retry() == Some(false) {
            return Some(Asked::NotToRetry);
        }
        let hint = last.evidence.as_ref()?.hint.as_ref()?;
        hint.ms.filter(|_| hint.r#use == Some(HintUse::OverCap)).map(|ms| Asked::ToWait { ms })
    }
}

/// A wait as people say it: `250 ms`, `45 s`, `20 min`, `3 h`.
pub fn wait_words(ms: f64) -> String {
    match ms / 1_000.0 {
        seconds if seconds < 1.0 => format!("{ms:.0} ms"),
        seconds if seconds < 120.0 => format!("{seconds:.0} s"),
        seconds if seconds < 7_200.0 => format!("{:.0} min", seconds / 60.0),
        seconds => format!("{:.0} h", seconds / 3_600.0),
    }
}

/// `503 ×4`, `cut stream`, `name not found`, `timeout (first-content) ×2`.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FailureKind { code, status, limit, cause, provider_code } = &self.kind;
        match (*status, *code) {
            (Some(status), FailureCode::Quota | FailureCode::ContextOverflow) => write!(f, "{status} {code}")?,
            (Some(status), _) if status >= 400 => write!(f, "{status}")?,
            (_, FailureCode::Transport) => f.write_str(match cause.as_deref() {
                Some("dns") => "name not found",
                Some("connect") => "no connection",
                Some("tls") => "TLS failed",
                Some("proxy") => "proxy failed",
                Some("reset") => "connection reset",
                Some("eof") => "cut stream",
                _ => "cut connection",
            })?,
            (_, FailureCode::Timeout) => match limit {
                Some(limit) => write!(f, "timeout ({limit})")?,
                None => f.write_str("timeout")?,
            },
            (_, FailureCode::EmptyResponse) => f.write_str("empty answer")?,
            (_, FailureCode::Protocol) => f.write_str("unreadable answer")?,
            (_, code) => f.write_str(provider_code.as_deref().unwrap_or(code.as_str()))?,
        }
        if self.count > 1 { write!(f, " ×{}", self.count) } else { Ok(()) }
    }
}

impl Cause {
    /// A limit passed although the provider was there.
    fn is_slow_model(&self) -> bool {
        matches!(self.kind.limit.as_deref(), Some("first-byte" | "first-content" | "content" | "total"))
    }
}

impl Advice {
    fn about(last: &Failure, causes: &[Cause]) -> Advice {
        match last.code {
            FailureCode::RateLimit => Advice::SlowDown,
            FailureCode::Server | FailureCode::EmptyResponse => Advice::TryLater,
            // A limit that passes every time is too short for this model, and each attempt is paid for.
            FailureCode::Timeout if matches!(causes, [cause] if cause.count > 1 && cause.is_slow_model()) => {
                Advice::RaiseLimit
            }
            FailureCode::Timeout | FailureCode::Transport => Advice::CheckNetwork,
            FailureCode::Auth => Advice::CheckCredential,
            FailureCode::Quota => Advice::TopUp,
            FailureCode::InvalidRequest => Advice::ChangeRequest,
            FailureCode::Protocol => Advice::CheckAdapter,
            FailureCode::ContextOverflow => Advice::ShortenContext,
            FailureCode::NoRoute => Advice::NameRoute,
            FailureCode::Aborted | FailureCode::Unknown => Advice::ReadJournal,
        }
    }

    /// The advice as a person reads it.
    pub fn sentence(self) -> &'static str {
        match self {
            Advice::SlowDown => "Wait, or ask for fewer requests a minute.",
            Advice::TryLater => "The provider has trouble: try later, or use another one.",
            Advice::CheckNetwork => "Check the network and the provider's baseUrl, or try later.",
            Advice::RaiseLimit => {
                "Every attempt ran into the same limit of time: raise it under the provider's `limits`, or try later."
            }
            Advice::CheckCredential => "Check the API key and what it may do.",
            Advice::TopUp => "Top up the account or use another key.",
            Advice::ChangeRequest => "The same request would be refused again: change the prompt or the model.",
            Advice::CheckAdapter => "Check that the adapter fits the provider.",
            Advice::ShortenContext => "Start a new session or use a model with a longer context.",
            Advice::NameRoute => "Name a provider that the profile has.",
            Advice::ReadJournal => "`retake journal show` tells more.",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::{Evidence, Hint};
    use serde_json::json;

    fn kind(code: FailureCode, status: Option<u16>) -> FailureKind {
        FailureKind { code, status, limit: None, cause: None, provider_code: None }
    }

    fn request(kind: FailureKind) -> FailedRequest {
        FailedRequest { turn: 1, provider: "deepseek".into(), kind }
    }

    fn failed(code: FailureCode, status: Option<u16>) -> FailedRequest {
        request(kind(code, status))
    }

    fn state(failures: impl IntoIterator<Item = FailedRequest>) -> SessionState {
        let mut state = SessionState { prompt_time: 1_000, ..SessionState::default() };
        state.failures.extend(failures);
        state
    }

    #[test]
    fn a_final_failure_says_who_failed_how_often_how_long_and_why() {
        let wire =
            |cause: &str| request(FailureKind { cause: Some(cause.into()), ..kind(FailureCode::Transport, None) });
        let word = request(FailureKind {
            provider_code: Some("content_filter".into()),
            ..kind(FailureCode::InvalidRequest, None)
        });
        let state = state([
            failed(FailureCode::Server, Some(503)),
            wire("eof"),
            wire("dns"),
            word,
            failed(FailureCode::Server, Some(503)),
        ]);
        let last = Failure { status: Some(503), ..Failure::new(FailureCode::Server, "overloaded.") };
        assert_eq!(
            Tried::of(&state, &last, 42_000).to_string(),
            "deepseek failed 5 requests in 41.0 s (503 ×2, cut stream, name not found, content_filter). The last failure: \
             overloaded. The provider has trouble: try later, or use another one."
        );
    }

    #[test]
    fn a_program_reads_the_same_account_as_data() {
        let state = state([failed(FailureCode::Server, Some(503)), failed(FailureCode::Timeout, None)]);
        let last = Failure::new(FailureCode::Timeout, "late");
        assert_eq!(
            serde_json::to_value(Tried::of(&state, &last, 3_000)).unwrap(),
            json!({
                "providers": ["deepseek"], "requests": 2, "elapsedMs": 2000,
                "causes": [{"code": "SERVER", "status": 503, "count": 1}, {"code": "TIMEOUT", "count": 1}],
                "attempts": [
                    {"turn": 1, "provider": "deepseek", "code": "SERVER", "status": 503},
                    {"turn": 1, "provider": "deepseek", "code": "TIMEOUT"},
                ],
                "advice": "check-network",
            })
        );
    }

    #[test]
    fn very_many_attempts_are_counted_and_the_newest_are_listed() {
        let state = state((0..250).map(|turn| FailedRequest { turn, ..failed(FailureCode::Server, Some(500)) }));
        let tried = Tried::of(&state, &Failure::new(FailureCode::Server, "x"), 0);
        assert_eq!((tried.requests, tried.causes[0].count, tried.attempts.len()), (250, 250, MOST_LISTED));
        assert_eq!(tried.attempts.last().unwrap().turn, 249);
    }

    #[test]
    fn a_limit_that_passes_every_time_is_to_be_raised() {
        let late = request(FailureKind { limit: Some("total".into()), ..kind(FailureCode::Timeout, None) });
        let last = Failure::new(FailureCode::Timeout, "late");
        let tried = Tried::of(&state([late.clone(), late.clone()]), &last, 1_000);
        assert_eq!(tried.advice, Advice::RaiseLimit);
        assert!(tried.to_string().contains("(timeout (total) ×2)"), "{tried}");
        let mixed = Tried::of(&state([failed(FailureCode::Server, Some(500)), late]), &last, 1_000);
        assert_eq!(mixed.advice, Advice::CheckNetwork);
    }

    #[test]
    fn what_the_provider_asked_for_and_did_not_get_is_said() {
        let said = |evidence: Evidence| {
            let failure = Failure::new(FailureCode::Server, "overloaded");
            let failure = Failure { evidence: Some(Box::new(evidence)), ..failure };
            Tried::of(&SessionState::default(), &failure, 0).to_string()
        };
        let word = |should_retry| said(Evidence { should_retry, ..Evidence::default() });
        let forbidden = word(Some(false));
        assert!(forbidden.contains("overloaded. The provider asked not to retry it. The provider has"), "{forbidden}");
        assert!([None, Some(true)].into_iter().all(|asked| !word(asked).contains("asked")));
        let hint = |r#use| {
            let raw = "3600".to_owned();
            let hint = Hint { source: "retry-after".into(), raw, ms: Some(3_600_000.0), r#use: Some(r#use), why: None };
            said(Evidence { hint: Some(hint), ..Evidence::default() })
        };
        assert!(hint(HintUse::OverCap).contains("asked to wait 60 min, longer than"), "{}", hint(HintUse::OverCap));
        assert!(!hint(HintUse::Adopted).contains("asked"));
        let told = serde_json::to_value(Asked::ToWait { ms: 3_600_000.0 }).unwrap();
        assert_eq!(told.to_string(), r#"{"kind":"to-wait","ms":3600000}"#);
    }
}
