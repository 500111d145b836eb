//! What a failed model request is called: the codes, and the facts that travel with them.

use super::policy::RetryPolicy;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The longest text of a provider that is kept with a failure, in bytes.
pub const MAX_KEPT_BODY: usize = 16 * 1024;

/// The provider-neutral name of a failure. The first ten can be named in a `retryableCodes` list and are emitted by
/// the adapters; the last three never reach a provider's own list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum FailureCode {
    /// The request was answered, with nothing in it.
    EmptyResponse,
    /// The provider throttles.
    RateLimit,
    /// The provider is broken or overloaded.
    Server,
    /// A limit of time passed; the evidence names the phase.
    Timeout,
    /// The connection failed, or the stream ended before its terminator.
    Transport,
    /// The credential is missing, wrong, or not allowed.
    Auth,
    /// The account has no quota or balance left.
    Quota,
    /// The provider refuses this request, and would refuse it again.
    InvalidRequest,
    /// The answer does not follow the provider's protocol.
    Protocol,
    /// The request is longer than the model's context.
    ContextOverflow,
    /// The request was cancelled.
    Aborted,
    /// No provider is registered under the name that was asked for.
    NoRoute,
    /// Anything that could not be named.
    Unknown,
}

impl FailureCode {
    /// The codes that an adapter emits and a policy may select, in the order in which documents list them.
    pub const SELECTABLE: [FailureCode; 10] = [
        FailureCode::EmptyResponse,
        FailureCode::RateLimit,
        FailureCode::Server,
        FailureCode::Timeout,
        FailureCode::Transport,
        FailureCode::Auth,
        FailureCode::Quota,
        FailureCode::InvalidRequest,
        FailureCode::Protocol,
        FailureCode::ContextOverflow,
    ];

    /// The code as it stands in journals and policies, for instance `RATE_LIMIT`.
    pub fn as_str(self) -> &'static str {
        match self {
            FailureCode::EmptyResponse => "EMPTY_RESPONSE",
            FailureCode::RateLimit => "RATE_LIMIT",
            FailureCode::Server => "SERVER",
            FailureCode::Timeout => "TIMEOUT",
            FailureCode::Transport => "TRANSPORT",
            FailureCode::Auth => "AUTH",
            FailureCode::Quota => "QUOTA",
            FailureCode::InvalidRequest => "INVALID_REQUEST",
            FailureCode::Protocol => "PROTOCOL",
            FailureCode::ContextOverflow => "CONTEXT_OVERFLOW",
            FailureCode::Aborted => "ABORTED",
            FailureCode::NoRoute => "NO_ROUTE",
            FailureCode::Unknown => "UNKNOWN",
        }
    }
}

impl fmt::Display for FailureCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a model request failed. Field order is that of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// What happened, in words; never empty.
    #[schemars(length(min = 1))]
    pub message: String,
    pub code: FailureCode,
    /// The HTTP status, 100 to 599.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "crate::journal::number::whole_option"
    )]
    #[schemars(with = "u16", range(min = 100, max = 599))]
    pub status: Option<u16>,
    /// The wait that the provider asked for, in milliseconds; finite and above 0.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::journal::number::option")]
    #[schemars(with = "f64", extend("exclusiveMinimum" = 0))]
    pub provider_retry_after_ms: Option<f64>,
    /// The provider's own id of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", length(min = 1))]
    pub request_id: Option<String>,
    /// What the code was derived from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evidence: Option<Box<Evidence>>,
}

impl Failure {
    /// A failure with a code and a message; an empty message is replaced by the code's name, since a record needs one.
    pub fn new(code: FailureCode, message: impl Into<String>) -> Self {
        let message = message.into();
        let message = if message.trim().is_empty() { code.as_str().to_owned() } else { message };
        Failure { message, code, status: None, provider_retry_after_ms: None, request_id: None, evidence: None }
    }
}

impl Failure {
    /// Whether it is about the request or the account, and not about the moment.
    pub fn is_refusal(&self) -> bool {
        use FailureCode::*;
        matches!(self.code, Auth | Quota | InvalidRequest | Protocol | ContextOverflow)
    }

    /// Whether another failure says the same, whatever the ids, numbers and times in the two messages.
    pub fn is_alike(&self, other: &Failure) -> bool {
        let facts = |failure: &Failure| {
            let evidence = failure.evidence.as_deref();
            evidence.map(|evidence| (evidence.row.clone(), evidence.provider_code.clone())).unwrap_or_default()
        };
        fn words(failure: &Failure) -> impl Iterator<Item = &str> {
            failure.message.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit()))
        }
        self.code == other.code
            && self.status == other.status
            && facts(self) == facts(other)
            && words(self).eq(words(other))
    }

    /// Whether the provider asked for a retry, if it said anything about that.
    pub fn should_retry(&self) -> Option<bool> {
        self.evidence.as_ref()?.should_retry
    }

    /// Writes into the evidence what a policy makes of what the provider asked for, after `failed_before` requests that
    /// failed since the prompt. An executor of one's own may do otherwise; its record then says so.
    pub fn judge(&mut self, policy: &RetryPolicy, failed_before: u64) {
        let (code, asked) = (self.code, self.should_retry());
        let left = match policy {
            RetryPolicy::Normal { max_retries, .. } => max_retries.saturating_sub(failed_before),
            RetryPolicy::Always { .. } => 1,
        };
        let retried = left > 0 && is_retried(policy, code, asked);
        let Some(evidence) = &mut self.evidence else { return };
        evidence.should_retry_use =
            asked.map(|asked| if asked == retried { ShouldRetryUse::Obeyed } else { ShouldRetryUse::Ignored });
        if let Some(hint) = &mut evidence.hint {
            let unused = (!retried).then(|| match asked {
                _ if left == 0 && failed_before > 0 => "the policy's retries are used up".to_owned(),
                _ if left == 0 => "the policy allows no retry".to_owned(),
                Some(false) => "the provider asks not to retry".to_owned(),
                Some(true) | None => format!("the policy does not retry {code}"),
            });
            hint.judge(policy, unused);
        }
    }

    /// Why the same request cannot succeed however often it is repeated, if that is known.
    pub fn impossible(&self) -> Option<&str> {
        self.evidence.as_ref()?.impossible.as_deref()
    }
}

/// Whether a policy retries a failure at all, for which the provider `asked` or asked not to, as the official executor
/// reads both.
fn is_retried(policy: &RetryPolicy, code: FailureCode, asked: Option<bool>) -> bool {
    use FailureCode::*;
    match policy {
        RetryPolicy::Always { .. } => true,
        RetryPolicy::Normal { retryable_codes, .. } => match asked {
            Some(false) => false,
            // A credential, a balance and a size stay what they are.
            Some(true) if !matches!(code, Auth | Quota | ContextOverflow) => true,
            Some(true) | None => retryable_codes.iter().any(|listed| listed == code.as_str()),
        },
    }
}

/// What a failure's code was derived from, kept so that a reader of the journal can check it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Evidence {
    /// The id of the classification row that matched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub row: Option<String>,
    /// Where a failure happened: `setup`, `connect`, `first-byte`, `stream`, `body`; for a limit of time its name, or
    /// `reasoning` when the model fell silent in its reasoning.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// The kinds of the cause chain, outermost first: `dns`, `connect`, `tls`, `reset`, `eof`, ….
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<String>,
    /// The operating system's number of the innermost error, where it gave one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os_error: Option<i32>,
    /// The provider's own error code or type.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_code: Option<String>,
    /// The limit of time that passed: `connect`, `first-byte`, `first-content`, `content`, `idle` or `total`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// The wait that the provider asked for, and what became of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<Hint>,
    /// Whether the provider asked for a retry (true) or asked not to (false), in the header `x-should-retry`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub should_retry: Option<bool>,
    /// What the serving policy makes of that; absent when no policy was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub should_retry_use: Option<ShouldRetryUse>,
    /// Why the same request cannot succeed however often it is repeated. Absent when it may.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub impossible: Option<String>,
    /// The beginning of the body, at most [`MAX_KEPT_BODY`] bytes, with secrets taken out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}

/// A wait that a provider asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hint {
    /// Where it stood: a header's name, a body field's name, `RetryInfo`, or `text`.
    pub source: String,
    /// As received, at most 256 characters.
    pub raw: String,
    /// What it asks for, in milliseconds; finite and at least 1. Absent when it is no usable wait.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "crate::journal::number::option")]
    #[schemars(with = "Option<f64>")]
    pub ms: Option<f64>,
    /// What the serving policy makes of it; absent when no policy was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub r#use: Option<HintUse>,
    /// Why it is not adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What a policy makes of a provider's word on retrying.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ShouldRetryUse {
    /// The failure is retried, or is not, as the provider asked.
    Obeyed,
    /// The policy does the opposite.
    Ignored,
}

/// What a policy makes of a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HintUse {
    /// It is the delay.
    Adopted,
    /// It is longer than the policy's longest delay: normal mode gives up, always mode waits by its own backoff.
    OverCap,
    /// It is no usable wait, or the failure is not retried at all.
    Ignored,
}

impl Hint {
    /// Records what a policy makes of it; `unused` is why its failure is not retried at all.
    fn judge(&mut self, policy: &RetryPolicy, unused: Option<String>) {
        let cap = policy.backoff().max_delay_ms;
        let (r#use, why) = match (self.ms, unused) {
            (None, _) => (HintUse::Ignored, self.why.take()),
            (Some(_), Some(unused)) => (HintUse::Ignored, Some(unused)),
            (Some(ms), None) if ms > cap => {
                (HintUse::OverCap, Some(format!("it is longer than backoff.maxDelayMs, which is {cap}")))
            }
            (Some(_), None) => (HintUse::Adopted, None),
        };
        self.r#use = Some(r#use);
        self.why = why;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The evidence of a failure with a hint and a word on retrying, after a policy has judged both.
    fn judge(policy: serde_json::Value, code: FailureCode, ms: Option<f64>, should_retry: Option<bool>) -> Evidence {
        let policy = RetryPolicy::resolve(Some(&policy), "retryPolicy").unwrap();
        let why = ms.is_none().then(|| "it is not above zero".to_owned());
        let hint = Hint { source: "retry-after".into(), raw: "x".into(), ms, r#use: None, why };
        let evidence = Evidence { hint: Some(hint), should_retry, ..Evidence::default() };
        let mut failure = Failure { evidence: Some(Box::new(evidence)), ..Failure::new(code, "no") };
        failure.judge(&policy, 0);
        *failure.evidence.unwrap()
    }

    fn judged(policy: serde_json::Value, code: FailureCode, ms: Option<f64>) -> (Option<HintUse>, Option<String>) {
        let hint = judge(policy, code, ms, None).hint.unwrap();
        (hint.r#use, hint.why)
    }

    #[test]
    fn a_hint_is_adopted_up_to_the_cap_and_told_why_it_is_not() {
        let normal = || json!({"mode": "normal", "backoff": {"maxDelayMs": 4000}});
        let code = FailureCode::RateLimit;
        assert_eq!(judged(normal(), code, Some(4000.0)), (Some(HintUse::Adopted), None));
        let (r#use, why) = judged(normal(), code, Some(4001.0));
        assert_eq!(r#use, Some(HintUse::OverCap));
        assert!(why.unwrap().contains("4000"));
        assert_eq!(judged(normal(), code, None), (Some(HintUse::Ignored), Some("it is not above zero".to_owned())));
        assert_eq!(judged(normal(), FailureCode::Auth, Some(1.0)).0, Some(HintUse::Ignored));
        assert_eq!(judged(json!({"mode": "always"}), FailureCode::Auth, Some(1.0)).0, Some(HintUse::Adopted));
        assert_eq!(judged(json!({"mode": "normal", "maxRetries": 0}), code, Some(1.0)).0, Some(HintUse::Ignored));
    }

    #[test]
    fn the_providers_word_is_obeyed_by_a_normal_policy_and_changes_nothing_for_always() {
        use FailureCode::*;
        let normal = || json!({"mode": "normal"});
        let listing = |code: FailureCode| json!({"mode": "normal", "retryableCodes": [code.as_str()]});
        for (policy, code, asked, expected) in [
            (normal(), Server, false, ShouldRetryUse::Obeyed),
            (normal(), InvalidRequest, false, ShouldRetryUse::Obeyed),
            (normal(), InvalidRequest, true, ShouldRetryUse::Obeyed),
            (normal(), Auth, true, ShouldRetryUse::Ignored),
            (normal(), Quota, true, ShouldRetryUse::Ignored),
            (normal(), ContextOverflow, true, ShouldRetryUse::Ignored),
            (listing(Auth), Auth, true, ShouldRetryUse::Obeyed),
            (listing(Auth), Auth, false, ShouldRetryUse::Obeyed),
            (json!({"mode": "normal", "maxRetries": 0}), Server, true, ShouldRetryUse::Ignored),
            (json!({"mode": "always"}), Server, false, ShouldRetryUse::Ignored),
            (json!({"mode": "always"}), Auth, true, ShouldRetryUse::Obeyed),
        ] {
            let evidence = judge(policy.clone(), code, Some(1.0), Some(asked));
            assert_eq!(evidence.should_retry_use, Some(expected), "{policy} {code} {asked}");
        }
        assert_eq!(judge(normal(), Server, Some(1.0), None).should_retry_use, None);
    }

    #[test]
    fn a_hint_beside_a_word_is_used_as_the_word_is() {
        let normal = || json!({"mode": "normal"});
        let hint = judge(normal(), FailureCode::RateLimit, Some(1.0), Some(false)).hint.unwrap();
        assert_eq!(hint.r#use, Some(HintUse::Ignored));
        assert_eq!(hint.why.as_deref(), Some("the provider asks not to retry"));
        let hint = judge(normal(), FailureCode::InvalidRequest, Some(1.0), Some(true)).hint.unwrap();
        assert_eq!(hint.r#use, Some(HintUse::Adopted));
        let hint = judge(json!({"mode": "always"}), FailureCode::RateLimit, Some(1.0), Some(false)).hint.unwrap();
        assert_eq!(hint.r#use, Some(HintUse::Adopted));
    }

    #[test]
    fn the_providers_word_stands_in_a_journal_with_what_was_made_of_it() {
        let evidence = Evidence {
            should_retry: Some(false),
            should_retry_use: Some(ShouldRetryUse::Obeyed),
            ..Evidence::default()
        };
        let json = serde_json::to_string(&evidence).unwrap();
        assert_eq!(json, r#"{"shouldRetry":false,"shouldRetryUse":"obeyed"}"#);
        assert_eq!(serde_json::from_str::<Evidence>(&json).unwrap(), evidence);
    }

    #[test]
    fn a_hint_stands_in_a_journal_under_short_names() {
        let hint = Hint {
            source: "text".into(),
            raw: "7s".into(),
            ms: Some(7000.0),
            r#use: Some(HintUse::OverCap),
            why: None,
        };
        let json = serde_json::to_string(&hint).unwrap();
        assert_eq!(json, r#"{"source":"text","raw":"7s","ms":7000,"use":"over-cap"}"#);
        assert_eq!(serde_json::from_str::<Hint>(&json).unwrap(), hint);
    }
}
