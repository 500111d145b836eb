//! From what a failed request showed to its [`FailureCode`]: one ordered table, the first matching row wins.
//!
//! Pure. It reads plain facts and knows neither HTTP clients nor policies; the adapters call it for a failed
//! connection, a status, an error inside a stream, and an odd finish reason alike, so that one fault has one code
//! wherever it shows. The id of the row that matched travels in the failure's evidence.
//!
//! The order of the rows is the precedence: the kind of a transport fault, an unusual finish reason, the provider's
//! own word on retrying, structured codes, statuses that leave no room for doubt, wording, and last the statuses that
//! codes and wording may refine. A 5xx and a 402 are never refined: gateways put misleading codes beside them.

use super::failure::FailureCode::{self, *};
use super::phrase::Words;

/// How a transport failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireFault {
    /// The name could not be resolved.
    Dns,
    /// No connection: refused, unreachable.
    Connect,
    Tls,
    /// The proxy refused or failed.
    Proxy,
    /// The peer cut the connection.
    Reset,
    /// The peer closed before the end of its answer.
    Eof,
    /// The bytes that came are no HTTP, or no event stream.
    Malformed,
    /// One of the host's own limits passed.
    Timeout,
    /// A fault of the connection that has no better name.
    Other,
}

impl WireFault {
    /// The name as it stands in an evidence's causes.
    pub fn as_str(self) -> &'static str {
        match self {
            WireFault::Dns => "dns",
            WireFault::Connect => "connect",
            WireFault::Tls => "tls",
            WireFault::Proxy => "proxy",
            WireFault::Reset => "reset",
            WireFault::Eof => "eof",
            WireFault::Malformed => "malformed",
            WireFault::Timeout => "timeout",
            WireFault::Other => "transport",
        }
    }
}

/// What is known of a failed request. Every part may be absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signal<'a> {
    pub transport: Option<WireFault>,
    /// The HTTP status, or the one that stands inside the body of a 200.
    pub status: Option<u16>,
    /// The provider's own word, `x-should-retry`.
    pub should_retry: Option<bool>,
    /// The provider's error code; a number is given as its digits.
    pub code: Option<&'a str>,
    /// The provider's error type.
    pub kind: Option<&'a str>,
    pub message: Option<&'a str>,
    /// Further text, such as a body that has no structure.
    pub text: &'a str,
    /// A finish reason that ends no answer normally.
    pub finish_reason: Option<&'a str>,
}

/// The code, and the id of the row that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub code: FailureCode,
    pub row: &'static str,
}

/// Names a failure. Total: any input gets a code.
pub fn classify(signal: &Signal<'_>) -> Verdict {
    let facts = Facts {
        signal,
        codes: [signal.code, signal.kind, signal.finish_reason].map(|code| code.map(normalised)),
        words: Words::of([signal.code, signal.kind, signal.message, Some(signal.text)].into_iter().flatten()),
    };
    match TABLE.iter().find(|row| row.matches(&facts)) {
        Some(row) => Verdict { code: row.code, row: row.id },
        None => Verdict { code: Unknown, row: "none" },
    }
}

struct Facts<'a> {
    signal: &'a Signal<'a>,
    /// Code, type and finish reason, in one spelling.
    codes: [Option<String>; 3],
    words: Words,
}

/// `Rate-Limit Exceeded` and `rate_limit_exceeded` are one code.
fn normalised(code: &str) -> String {
    code.trim().to_lowercase().replace(['-', ' ', '.', '/'], "_")
}

/// One row: with a status of `scope`, whatever `on` says means `code`.
struct Row {
    id: &'static str,
    scope: Scope,
    on: On,
    code: FailureCode,
}

/// The statuses that a row is about.
struct Scope {
    /// Whether it is about failures without a status.
    none: bool,
    ranges: &'static [(u16, u16)],
}

enum On {
    /// The status alone decides.
    Status,
    Wire(&'static [WireFault]),
    ShouldRetry(bool),
    /// The code or the type is one of these.
    Code(&'static [&'static str]),
    Finish(&'static [&'static str]),
    AnyFinish,
    /// The wording is one of these (see `phrase`).
    Text(&'static [&'static str]),
    /// The provider said anything at all.
    Anything,
}

impl Row {
    fn matches(&self, facts: &Facts<'_>) -> bool {
        let signal = facts.signal;
        let in_scope = match signal.status {
            None => self.scope.none,
            Some(status) => self.scope.ranges.iter().any(|(from, to)| (*from..=*to).contains(&status)),
        };
        let [code, kind, finish] = &facts.codes;
        let one_of =
            |names: &[&str], found: &Option<String>| found.as_deref().is_some_and(|name| names.contains(&name));
        in_scope
            && match &self.on {
                On::Status => true,
                On::Wire(kinds) => signal.transport.is_some_and(|kind| kinds.contains(&kind)),
                On::ShouldRetry(word) => signal.should_retry == Some(*word),
                On::Code(names) => one_of(names, code) || one_of(names, kind),
                On::Finish(names) => one_of(names, finish),
                On::AnyFinish => finish.is_some(),
                On::Text(patterns) => facts.words.contain_any(patterns),
                On::Anything => !facts.words.is_empty(),
            }
    }
}

const fn row(id: &'static str, scope: Scope, on: On, code: FailureCode) -> Row {
    Row { id, scope, on, code }
}

const fn with_status(ranges: &'static [(u16, u16)]) -> Scope {
    Scope { none: false, ranges }
}

const fn with_or_without(ranges: &'static [(u16, u16)]) -> Scope {
    Scope { none: true, ranges }
}

const ALL: &[(u16, u16)] = &[(0, u16::MAX)];
const NONE: &[(u16, u16)] = &[];
/// 4xx that say no more than that the request failed.
const PLAIN_4XX: &[(u16, u16)] = &[(400, 400), (404, 407), (410, 412), (414, 424), (426, 428), (430, 498)];
/// The same and 429: what wording may refine.
const PLAIN_4XX_AND_429: &[(u16, u16)] = &[(400, 400), (404, 407), (410, 412), (414, 424), (426, 498)];
/// Every 4xx but 402: what an exact code may refine.
const ANY_4XX: &[(u16, u16)] = &[(400, 401), (403, 499)];
/// The same without those about credentials and size, which stay what they are when a code speaks of load.
const LOAD_4XX: &[(u16, u16)] = &[(400, 400), (404, 412), (414, 499)];
/// 4xx that are about the moment and not about the request.
const MOMENTARY_4XX: &[(u16, u16)] = &[(408, 409), (425, 425), (499, 499)];

const TABLE: &[Row] = &[
    // The connection itself failed; no text that came with it may say otherwise.
    row("transport/timeout", with_or_without(ALL), On::Wire(&[WireFault::Timeout]), Timeout),
    row("transport/malformed", with_or_without(ALL), On::Wire(&[WireFault::Malformed]), Protocol),
    row(
        "transport/connect",
        with_or_without(ALL),
        On::Wire(&[WireFault::Dns, WireFault::Connect, WireFault::Proxy]),
        Transport,
    ),
    row("transport/tls", with_or_without(ALL), On::Wire(&[WireFault::Tls]), Transport),
    row("transport/cut", with_or_without(ALL), On::Wire(&[WireFault::Reset, WireFault::Eof]), Transport),
    row("transport/other", with_or_without(ALL), On::Wire(&[WireFault::Other]), Transport),
    // Finish reasons. A filter judges this very content and would judge it the same again.
    row(
        "finish/filter",
        with_or_without(NONE),
        On::Finish(&[
            "content_filter",
            "safety",
            "recitation",
            "refusal",
            "prohibited_content",
            "blocklist",
            "spii",
            "sensitive",
        ]),
        InvalidRequest,
    ),
    row(
        "finish/context",
        with_or_without(NONE),
        On::Finish(&["model_context_window_exceeded", "context_length_exceeded"]),
        ContextOverflow,
    ),
    // The provider gave up on its own account: a broken or overloaded server, whatever it calls that.
    row(
        "finish/server",
        with_or_without(NONE),
        On::Finish(&[
            "error",
            "insufficient_system_resource",
            "abort",
            "aborted",
            "cancelled",
            "network_error",
            "overloaded",
        ]),
        Server,
    ),
    // Any other reason, such as a malformed function call, is not one that the protocol knows.
    row("finish/unknown", with_or_without(NONE), On::AnyFinish, Protocol),
    // The provider's word on retrying, where the status leaves room for it.
    row("should-retry/yes", with_status(PLAIN_4XX), On::ShouldRetry(true), Server),
    row("should-retry/no-429", with_status(&[(429, 429)]), On::ShouldRetry(false), Quota),
    row("should-retry/no", with_status(MOMENTARY_4XX), On::ShouldRetry(false), InvalidRequest),
    // Exact codes and types.
    row(
        "code/quota",
        with_or_without(ANY_4XX),
        On::Code(&[
            "insufficient_quota",
            "insufficient_balance",
            "insufficient_balance_error",
            "insufficient_user_quota",
            "insufficient_credits",
            "insufficient_funds",
            "exceeded_current_quota_error",
            "billing_hard_limit_reached",
            "billing_not_active",
            "billing_error",
            "payment_required",
            "credits_exhausted",
            "usage_limit_reached",
            "arrearage",
            "quota",
            "1113",
        ]),
        Quota,
    ),
    row(
        "code/context",
        with_or_without(ANY_4XX),
        On::Code(&[
            "context_length_exceeded",
            "context_window_exceeded",
            "model_context_window_exceeded",
            "exceed_context_size_error",
            "contextwindowexceedederror",
            "context_overflow",
        ]),
        ContextOverflow,
    ),
    row(
        "code/overloaded",
        with_or_without(LOAD_4XX),
        On::Code(&[
            "overloaded",
            "overloaded_error",
            "engine_overloaded",
            "engine_overloaded_error",
            "server_overloaded",
            "model_overloaded",
            "server_error",
            "internal_error",
            "internal_server_error",
            "internalserverexception",
            "service_unavailable",
            "serviceunavailableexception",
            "unavailable",
            "bad_gateway",
            "1305",
            "500",
            "502",
            "503",
            "529",
        ]),
        Server,
    ),
    row(
        "code/throttled",
        with_or_without(LOAD_4XX),
        On::Code(&[
            "rate_limit_exceeded",
            "rate_limit_error",
            "rate_limit_reached_error",
            "rate_limit",
            "rate_limited",
            "ratelimitexceeded",
            "too_many_requests",
            "limit_requests",
            "throttled",
            "throttling",
            "throttlingexception",
            "throttling_ratequota",
            "throttling_allocationquota",
            "1302",
            "1303",
            "429",
        ]),
        RateLimit,
    ),
    row(
        "code/throttled-403",
        with_status(&[(403, 403)]),
        On::Code(&["rate_limit_exceeded", "ratelimitexceeded", "too_many_requests"]),
        RateLimit,
    ),
    row(
        "code/auth",
        with_or_without(PLAIN_4XX),
        On::Code(&[
            "invalid_api_key",
            "incorrect_api_key",
            "authentication_error",
            "invalid_authentication_error",
            "permission_error",
            "permission_denied",
            "unauthorized",
            "unauthenticated",
            "account_deactivated",
            "401",
            "403",
        ]),
        Auth,
    ),
    row(
        "code/timeout",
        with_or_without(PLAIN_4XX),
        On::Code(&["timeout", "request_timeout", "timeout_error", "deadline_exceeded"]),
        Timeout,
    ),
    // Statuses that codes and wording do not refine any further.
    row("status/402", with_status(&[(402, 402)]), On::Status, Quota),
    row("status/auth", with_status(&[(401, 401), (403, 403)]), On::Status, Auth),
    row("status/408", with_status(&[(408, 408)]), On::Status, Timeout),
    row("status/409", with_status(&[(409, 409)]), On::Status, Server),
    row("status/413", with_status(&[(413, 413)]), On::Status, InvalidRequest),
    row("status/425", with_status(&[(425, 425), (499, 499)]), On::Status, Transport),
    row("status/5xx", with_status(&[(500, 599)]), On::Status, Server),
    // An answer that is no error, where an error or a stream was due: a redirect, an upgrade, no status at all.
    row("status/odd", with_status(&[(0, 199), (300, 399), (600, u16::MAX)]), On::Status, Protocol),
    // Wording. What can never succeed goes first, then throttling, which often names billing pages.
    row("text/limit-zero", with_or_without(PLAIN_4XX_AND_429), On::Text(&["quota exceeded *20 limit 0"]), Quota),
    row(
        "text/per-minute",
        with_or_without(&[(429, 429)]),
        On::Text(&["rpm|tpm", "requests|tokens|request|token|calls per min|minute|second|sec|hour", "per minute"]),
        RateLimit,
    ),
    row(
        "text/throttled",
        with_or_without(PLAIN_4XX_AND_429),
        On::Text(&["~throttl", "too many tokens please wait"]),
        RateLimit,
    ),
    row(
        "text/context",
        with_or_without(PLAIN_4XX),
        On::Text(&[
            "context length|window exceed|exceeds|exceeded|overflow|overflowed",
            "context length|window limit exceeded",
            "max|maximum allowed|supported? context length|window",
            "request|prompt|input|message|messages is|are|was|were? too large|long for this|the|our? model? s? context",
            "input|prompt|request is|was? too long|large for this|the model",
            "input|prompt|request|message|messages *8 exceed|exceeds|exceeded|overflow|overflows *7 context length|window|size|limit?",
            "input|prompt|request|message|messages *8 is|are larger than *7 context length|window|size|limit?",
            "prompt is too long *2 tokens",
            "input token count *3 exceeds *2 maximum number of tokens",
            "reduce the length of the messages|prompt|input",
            "range of input length should be",
            "~上下文长度",
            "~最大上下文",
        ]),
        ContextOverflow,
    ),
    row(
        "text/quota",
        with_or_without(PLAIN_4XX_AND_429),
        On::Text(&[
            "insufficient account|user? quota|balance|credit|credits|funds",
            "quota is|has|was? been? exceeded|exhausted|reached",
            "usage limit is|has|was? been? exceeded|exhausted|reached",
            "exceed|exceeds|exceeded your|the? current? quota",
            "balance|credit|credits is|are|has|have? been? exhausted|depleted",
            "out of credit|credits|budget",
            "credit|account? balance is too low",
            "not enough quota|balance|credit|credits|funds",
            "reached your|the usage|spend|spending limit",
            "~余额不足",
            "~额度不足",
            "~欠费",
        ]),
        Quota,
    ),
    row(
        "text/auth",
        with_or_without(PLAIN_4XX),
        On::Text(&[
            "invalid|incorrect|expired|missing api key",
            "api key is|was? not? valid|invalid|incorrect|expired|missing",
            "unauthorized",
        ]),
        Auth,
    ),
    row(
        "text/rate-limit",
        with_or_without(PLAIN_4XX),
        On::Text(&[
            "rate limit|limits|limited|limiting",
            "~ratelimit",
            "too many requests",
            "http|status|code|error code? 429",
        ]),
        RateLimit,
    ),
    // Generic codes come after wording, since many providers put them beside every error.
    row(
        "code/invalid",
        with_or_without(PLAIN_4XX),
        On::Code(&[
            "invalid_request_error",
            "invalid_request",
            "invalid_argument",
            "invalid_parameter",
            "invalid_prompt",
            "not_found_error",
            "model_not_found",
            "unsupported_parameter",
            "unsupported_value",
            "content_policy_violation",
            "content_filter",
            "request_too_large",
            "string_above_max_length",
            "bad_request",
            "badrequesterror",
            "validationexception",
            "400",
            "404",
            "422",
        ]),
        InvalidRequest,
    ),
    // Statuses that codes and wording may refine, and did not.
    row("status/429", with_status(&[(429, 429)]), On::Status, RateLimit),
    row("status/4xx", with_status(&[(400, 499)]), On::Status, InvalidRequest),
    // No status: an error inside a stream, or inside the body of a 200. Only its words are left.
    row(
        "text/server",
        with_or_without(NONE),
        On::Text(&[
            "overloaded",
            "internal server|service? error",
            "server error|overload",
            "bad gateway",
            "gateway timeout|timed",
            "service unavailable",
            "service is? temporarily unavailable",
            "at capacity",
            "server|model is? busy",
            "http|status|code|error code? 500|502|503|504|529",
            "~访问量过大",
            "~繁忙",
        ]),
        Server,
    ),
    row(
        "text/timeout",
        with_or_without(NONE),
        On::Text(&["timed out", "timeout", "time out", "deadline exceeded"]),
        Timeout,
    ),
    row(
        "text/transport",
        with_or_without(NONE),
        On::Text(&[
            "~econn",
            "connection|network|socket|fetch|stream *2 error|failed|failure|closed|reset|refused|lost|terminated|disconnected|aborted",
            "premature close",
            "other side closed",
            "socket hang up",
            "unexpected eof|end",
            "connection|stream ended",
        ]),
        Transport,
    ),
    row(
        "text/invalid",
        with_or_without(NONE),
        On::Text(&[
            "invalid request|argument|parameter",
            "payload|request|entity too large",
            "model not found",
            "model *6 does not exist",
            "bad request",
        ]),
        InvalidRequest,
    ),
    // A provider that ends a stream with an error and gives no reason is broken, as far as anyone can tell.
    row("said/unclear", with_or_without(NONE), On::Anything, Server),
];

#[cfg(test)]
mod tests;
