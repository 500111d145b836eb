use super::*;
use crate::llm::FailureCode::*;
use proptest::prelude::*;

fn status(status: u16) -> Signal<'static> {
    Signal { status: Some(status), ..Signal::default() }
}

fn code_of(signal: Signal<'_>) -> FailureCode {
    classify(&signal).code
}

/// A status with the provider's code and message.
fn coded<'a>(status: u16, code: &'a str, message: &'a str) -> Signal<'a> {
    Signal { status: Some(status), code: Some(code), message: Some(message), ..Signal::default() }
}

fn said(status: u16, message: &str) -> FailureCode {
    code_of(Signal { status: Some(status), message: Some(message), ..Signal::default() })
}

fn in_stream(message: &str) -> FailureCode {
    code_of(Signal { message: Some(message), ..Signal::default() })
}

#[test]
fn every_status_without_a_body_has_its_code() {
    for value in 0..=999 {
        let expected = match value {
            200..=299 => Unknown,
            402 => Quota,
            401 | 403 => Auth,
            408 => Timeout,
            409 => Server,
            425 | 499 => Transport,
            429 => RateLimit,
            400..=499 => InvalidRequest,
            500..=599 => Server,
            _ => Protocol,
        };
        assert_eq!(code_of(status(value)), expected, "{value}");
    }
}

#[test]
fn row_ids_are_unique_and_every_row_can_be_told_from_the_fallback() {
    let mut ids: Vec<_> = TABLE.iter().map(|row| row.id).collect();
    ids.sort_unstable();
    let all = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), all);
    assert!(!ids.contains(&"none"));
    assert_eq!(classify(&Signal::default()), Verdict { code: Unknown, row: "none" });
}

#[test]
fn codes_and_patterns_of_the_table_are_spelt_so_that_they_can_match() {
    for row in TABLE {
        match row.on {
            On::Code(names) | On::Finish(names) => {
                for name in names {
                    assert_eq!(*name, normalised(name), "{}", row.id);
                }
            }
            On::Text(patterns) => {
                for token in patterns.iter().flat_map(|pattern| pattern.split(' ')) {
                    let token = token.strip_suffix('?').unwrap_or(token);
                    match token.strip_prefix('*') {
                        Some(gap) => assert!(gap.parse::<usize>().is_ok_and(|gap| gap <= 20), "{}: {token}", row.id),
                        None => assert!(
                            token.trim_start_matches('~').split('|').all(|word| {
                                word == "#"
                                    || !word.is_empty()
                                        && word.chars().all(|c| c.is_alphanumeric() && !c.is_uppercase())
                            }),
                            "{}: {token}",
                            row.id
                        ),
                    }
                }
            }
            _ => {}
        }
    }
}

#[test]
fn neither_code_nor_text_refines_a_server_error_or_a_payment_error() {
    let texts =
        ["maximum context length is 8", "insufficient quota", "invalid request", "Incorrect API key", "timed out", ""];
    let codes =
        ["invalid_request_error", "context_length_exceeded", "insufficient_quota", "invalid_api_key", "429", "x"];
    for text in texts {
        for code in codes {
            for value in [500, 502, 503, 504, 520, 529, 599] {
                assert_eq!(code_of(coded(value, code, text)), Server, "{value} {code} {text}");
            }
            assert_eq!(code_of(coded(402, code, text)), Quota, "402 {code} {text}");
        }
    }
}

#[test]
fn exact_codes_refine_a_client_error() {
    for (value, code, expected) in [
        (429, "insufficient_quota", Quota),
        (403, "insufficient_user_quota", Quota),
        (400, "context_length_exceeded", ContextOverflow),
        (413, "context_length_exceeded", ContextOverflow),
        (400, "exceed_context_size_error", ContextOverflow),
        (429, "1305", Server),
        (429, "1302", RateLimit),
        (429, "1113", Quota),
        (400, "ThrottlingException", RateLimit),
        (403, "rateLimitExceeded", RateLimit),
        (413, "rate_limit_exceeded", InvalidRequest),
        (400, "invalid_api_key", Auth),
        (400, "INVALID_ARGUMENT", InvalidRequest),
        (404, "model_not_found", InvalidRequest),
        (408, "invalid_request_error", Timeout),
        (429, "invalid_request_error", RateLimit),
        (401, "server_error", Auth),
    ] {
        assert_eq!(code_of(coded(value, code, "")), expected, "{value} {code}");
        let as_type = Signal { status: Some(value), kind: Some(code), ..Signal::default() };
        assert_eq!(code_of(as_type), expected, "{value} type {code}");
    }
}

#[test]
fn context_wording_is_recognised() {
    for text in [
        "context_length_exceeded",
        "Context window exceeded",
        "the context-window limit exceeded",
        "This model's maximum context length is 65536 tokens. However, you requested 70000 tokens",
        "max allowed context window is 8k",
        "Your request is too large for the model's context window",
        "messages too long for this model's context",
        "prompt too long for this model",
        "input exceeds the available context size",
        "The prompt you sent has 9000 tokens and overflows the model context length",
        "request is larger than the context window",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    ] {
        assert_eq!(said(400, text), ContextOverflow, "{text}");
        assert_eq!(in_stream(text), ContextOverflow, "{text}");
    }
}

#[test]
fn wording_that_is_only_near_context_is_not_taken_for_it() {
    for text in [
        "input too long",
        "prompt too long",
        "context must be an object",
        "the tool context is invalid",
        "lengthy context",
        "maximum length of a name is 64",
        "precontext length exceeded",
    ] {
        assert_eq!(said(400, text), InvalidRequest, "{text}");
    }
}

#[test]
fn quota_wording_is_recognised_and_beats_a_bare_429() {
    for text in [
        "insufficient_quota",
        "Insufficient Balance",
        "insufficient-credits",
        "Quota exceeded",
        "your quota has been exhausted",
        "usage limit reached",
        "You exceeded your current quota, please check your plan and billing details.",
        "requests exceed the quota",
        "credits exhausted",
        "balance depleted",
        "out of credits",
        "out of budget",
        "Your credit balance is too low to access the API",
        "Quota exceeded for metric: generate_content_free_tier_requests, limit: 0, model: m",
        "账户余额不足",
    ] {
        assert_eq!(said(429, text), Quota, "{text}");
        assert_eq!(said(400, text), Quota, "{text}");
        assert_eq!(in_stream(text), Quota, "{text}");
    }
}

#[test]
fn throttle_words_win_over_billing_words() {
    for text in [
        "Rate limit reached for requests per min (RPM): Limit 3. Visit the account/billing page to add a payment method.",
        "Quota exceeded: 80,000 input tokens per minute",
        "You exceeded your current quota of 3 requests per minute",
        "TPM quota exhausted",
        "ThrottlingException: Too many tokens, please wait before trying again.",
        "Throttling: allocated quota exceeded",
    ] {
        assert_eq!(said(429, text), RateLimit, "{text}");
        assert_eq!(in_stream(text), RateLimit, "{text}");
    }
    assert_eq!(said(429, "billing and quota documentation"), RateLimit);
    assert_eq!(said(429, "Too Many Requests"), RateLimit);
}

#[test]
fn an_error_without_a_status_is_named_by_its_words() {
    for (text, code) in [
        ("Overloaded", Server),
        ("Internal server error", Server),
        ("502 Bad Gateway", Server),
        ("该模型当前访问量过大，请您稍后再试", Server),
        ("Request timed out.", Timeout),
        ("deadline exceeded", Timeout),
        ("stream_read_error", Transport),
        ("stream disconnected before completion", Transport),
        ("upstream_http2_stream_error", Transport),
        ("read ECONNRESET", Transport),
        ("other side closed", Transport),
        ("Incorrect API key provided", Auth),
        ("Too many requests", RateLimit),
        ("invalid request body", InvalidRequest),
        ("something went wrong", Server),
    ] {
        assert_eq!(in_stream(text), code, "{text}");
    }
    let overloaded = Signal { kind: Some("overloaded_error"), message: Some("Overloaded"), ..Signal::default() };
    assert_eq!(classify(&overloaded), Verdict { code: Server, row: "code/overloaded" });
}

#[test]
fn the_kind_of_a_transport_fault_wins_over_every_text() {
    let text = "SSLV3_ALERT_BAD_RECORD_MAC: maximum context length, insufficient quota";
    for (transport, code) in [
        (WireFault::Dns, Transport),
        (WireFault::Connect, Transport),
        (WireFault::Tls, Transport),
        (WireFault::Proxy, Transport),
        (WireFault::Reset, Transport),
        (WireFault::Eof, Transport),
        (WireFault::Other, Transport),
        (WireFault::Timeout, Timeout),
        (WireFault::Malformed, Protocol),
    ] {
        for status in [None, Some(200), Some(400), Some(503)] {
            assert_eq!(code_of(Signal { transport: Some(transport), status, text, ..Signal::default() }), code);
        }
    }
}

#[test]
fn unusual_finish_reasons_have_a_code_of_the_list() {
    for (reason, code) in [
        ("content_filter", InvalidRequest),
        ("SAFETY", InvalidRequest),
        ("model_context_window_exceeded", ContextOverflow),
        ("insufficient_system_resource", Server),
        ("error", Server),
        ("MALFORMED_FUNCTION_CALL", Protocol),
        ("whatever", Protocol),
    ] {
        assert_eq!(code_of(Signal { finish_reason: Some(reason), ..Signal::default() }), code, "{reason}");
    }
}

proptest! {
    #[test]
    fn any_input_gets_a_code_and_a_row(
        value: Option<u16>, code in proptest::option::of(".{0,30}"), kind in proptest::option::of("[a-z_ ]{0,30}"),
        message in proptest::option::of("(quota|context|limit|exceeded|input|rate|per|minute|0| |_|\\PC){0,60}"), text in "\\PC{0,200}",
        too_large: bool, reported: bool, finish_reason in proptest::option::of("[a-z_]{0,12}"),
    ) {
        let signal = Signal {
            transport: None, stream: None, too_large, reported, status: value, code: code.as_deref(), kind: kind.as_deref(),
            message: message.as_deref(), text: &text, finish_reason: finish_reason.as_deref(),
        };
        let verdict = classify(&signal);
        prop_assert!(!verdict.row.is_empty());
        // A failure that an adapter saw has a status, or is reported inside a success.
        prop_assert!(verdict.code != Unknown || (!matches!(value, Some(0..=199 | 300..)) && !reported) || value.is_some_and(|v| (200..=299).contains(&v)));
        match value {
            Some(402) => prop_assert_eq!(verdict.code, Quota),
            Some(500..=599) => prop_assert_eq!(verdict.code, Server),
            Some(401) => prop_assert!(matches!(verdict.code, Auth | Quota | ContextOverflow)),
            _ => {}
        }
    }
}
