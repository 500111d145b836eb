//! The classification table. Row ids stand in journals: a row may be added or removed, but an id is never reused.

use super::{
    On, Row, Scope,
    StreamFault::{Empty, NoBody, NoTerminator, NotAStream, NotJson, NotUtf8, Shape, TooLong, ToolCall},
    WireFault,
    wording::{
        COME_BACK, CONTEXT, LIMIT_ZERO, LONG_QUOTA, NO_OVERFLOW, PER_MINUTE, QUOTA, RATE_EXCEEDED, SERVER, THROTTLED,
    },
};
use crate::llm::failure::FailureCode::*;

const fn row(id: &'static str, scope: Scope, on: On, code: crate::llm::FailureCode) -> Row {
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

pub(super) const TABLE: &[Row] = &[
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
    // The adapter itself saw what is wrong with the answer.
    row("status/no-body", with_or_without(ALL), On::Stream(&[NoBody]), EmptyResponse),
    row("finish/empty", with_or_without(ALL), On::Stream(&[Empty]), EmptyResponse),
    row("stream/no-terminator", with_or_without(ALL), On::Stream(&[NoTerminator]), Transport),
    row("stream/none", with_or_without(ALL), On::Stream(&[NotAStream]), Protocol),
    row("stream/not-utf8", with_or_without(ALL), On::Stream(&[NotUtf8]), Protocol),
    row("stream/too-long", with_or_without(ALL), On::Stream(&[TooLong]), Protocol),
    row("stream/not-json", with_or_without(ALL), On::Stream(&[NotJson]), Protocol),
    row("stream/shape", with_or_without(ALL), On::Stream(&[Shape]), Protocol),
    row("stream/tool-call", with_or_without(ALL), On::Stream(&[ToolCall]), Protocol),
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
    // A limit that this very request exceeds: waiting does not help, a shorter request does. It goes before codes and
    // wording, which speak of throttling in general.
    row(
        "limit/request-too-large",
        with_or_without(&[(400, 400), (413, 413), (429, 429)]),
        On::TooLarge,
        ContextOverflow,
    ),
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
            "out_of_credits",
            "budget_exceeded",
            "usage_limit_reached",
            "usage_limit_exceeded",
            "spending_limit_reached",
            "arrearage",
            "prepaid_bill_overdue",
            "postpaid_bill_overdue",
            "allocation_quota_free_tier_only",
            "quota_exceeded",
            "quota_exceeded_error",
            "service_quota_exceeded_exception",
            "free_tier_exhausted",
            "quota",
            // Z.AI: in arrears, the day's calls, the limit of some hours, an expired plan, the limit of a week or month.
            "1113",
            "1304",
            "1308",
            "1309",
            "1310",
            // MiniMax: the balance.
            "1008",
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
            "context_window_exceeded_error",
            "context_size_exceeded",
            "context_limit_exceeded",
            "context_too_long",
            "context_overflow",
            "max_context_length_exceeded",
            "model_max_prompt_tokens_exceeded",
            "prompt_too_long",
            "tokens_limit_reached",
            // Z.AI: the prompt is too long.
            "1261",
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
            "internal_server_exception",
            "service_unavailable",
            "service_unavailable_error",
            "service_unavailable_exception",
            "model_not_ready_exception",
            "unavailable",
            "bad_gateway",
            "upstream_error",
            "1305",
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
            "too_many_requests",
            "too_many_requests_exception",
            "limit_requests",
            "throttled*",
            "throttling*",
            "1302",
            "1303",
        ]),
        RateLimit,
    ),
    row(
        "code/throttled-403",
        with_status(&[(403, 403)]),
        On::Code(&["rate_limit_exceeded", "too_many_requests"]),
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
            "access_denied",
            "access_denied_exception",
            "unrecognized_client_exception",
            "expired_token_exception",
            "account_deactivated",
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
    // Wording. What can never succeed goes first, then throttling, which often names billing pages. A limit of a day or
    // longer is a quota even if "too many requests" stands beside it, as it does beside every 429.
    row("text/limit-zero", with_or_without(PLAIN_4XX_AND_429), On::Text(LIMIT_ZERO), Quota),
    row("text/per-minute", with_or_without(&[(429, 429)]), On::Text(PER_MINUTE), RateLimit),
    // A provider that says when to come back throttles, whatever else it says.
    row("text/come-back", with_or_without(&[(429, 429)]), On::Text(COME_BACK), RateLimit),
    row("text/throttled", with_or_without(PLAIN_4XX_AND_429), On::Text(THROTTLED), RateLimit),
    row("text/long-quota", with_or_without(PLAIN_4XX_AND_429), On::Text(LONG_QUOTA), Quota),
    row("text/rate-exceeded", with_or_without(PLAIN_4XX_AND_429), On::Text(RATE_EXCEEDED), RateLimit),
    row("text/no-overflow", with_or_without(PLAIN_4XX), On::Text(NO_OVERFLOW), InvalidRequest),
    row("text/context", with_or_without(PLAIN_4XX), On::Text(CONTEXT), ContextOverflow),
    row("text/quota", with_or_without(PLAIN_4XX_AND_429), On::Text(QUOTA), Quota),
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
    row("text/status-402", with_or_without(NONE), On::Text(&["http|status|code|error code? 402"]), Quota),
    row("text/status-auth", with_or_without(NONE), On::Text(&["http|status|code|error code? 401|403"]), Auth),
    // Codes that only repeat an HTTP status, and generic ones, come after wording: many providers put them beside every
    // error.
    row("code/status-429", with_or_without(LOAD_4XX), On::Code(&["429", "resource_exhausted"]), RateLimit),
    row(
        "code/status-5xx",
        with_or_without(PLAIN_4XX),
        On::Code(&["500", "502", "503", "504", "520", "521", "522", "523", "524", "529"]),
        Server,
    ),
    row("code/status-auth", with_or_without(PLAIN_4XX), On::Code(&["401", "403"]), Auth),
    row("code/status-402", with_or_without(PLAIN_4XX), On::Code(&["402"]), Quota),
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
            "deployment_not_found",
            "resource_not_found_exception",
            "unsupported_parameter",
            "unsupported_value",
            "content_policy_violation",
            "content_filter",
            "request_too_large",
            "string_above_max_length",
            "bad_request",
            "400",
            "404",
            "405",
            "413",
            "422",
            "bad_request_error",
            "validation_exception",
        ]),
        InvalidRequest,
    ),
    // Statuses that codes and wording may refine, and did not.
    row("status/429", with_status(&[(429, 429)]), On::Status, RateLimit),
    row("status/4xx", with_status(&[(400, 499)]), On::Status, InvalidRequest),
    // No status: an error inside a stream, or inside the body of a 200. Only its words are left.
    row("text/server", with_or_without(NONE), On::Text(SERVER), Server),
    row(
        "text/timeout",
        with_or_without(NONE),
        On::Text(&["timed out", "timeout", "time out", "deadline exceeded", "http|status|code|error code? 408"]),
        Timeout,
    ),
    row(
        "text/transport",
        with_or_without(NONE),
        On::Text(&[
            "~econn",
            "connection|network|socket|fetch|stream *2 error|failed|failure|closed|reset|refused|lost|terminated|disconnected|aborted",
            "upstream connect error",
            "reset before headers",
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
            "http|status|code|error code? 400|404|405|413|415|422",
        ]),
        InvalidRequest,
    ),
    // A provider that ends a stream with an error and gives no reason is broken, as far as anyone can tell.
    row("said/unclear", with_or_without(NONE), On::Anything, Server),
    row("said/nothing", with_or_without(NONE), On::Reported, Server),
];
