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
                let mut spelt: Vec<String> = names.iter().map(|name| normalised(name)).collect();
                spelt.sort_unstable();
                assert!(!spelt.iter().any(String::is_empty), "{}", row.id);
                assert!(spelt.windows(2).all(|pair| pair[0] != pair[1]), "{}: a name stands twice", row.id);
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
        (429, "InsufficientQuota", Quota),
        (400, "ContextLengthExceeded", ContextOverflow),
        (400, "contextLengthExceeded", ContextOverflow),
        (400, "CONTEXT LENGTH EXCEEDED", ContextOverflow),
        (400, "InvalidApiKey", Auth),
        (429, "ServiceUnavailable", Server),
        (400, "RateLimitExceeded", RateLimit),
        (400, "AccessDeniedException", Auth),
        (400, "ServiceQuotaExceededException", Quota),
        (404, "DeploymentNotFound", InvalidRequest),
        (429, "1310", Quota),
        (429, "1308", Quota),
        (429, "1304", Quota),
        (400, "1261", ContextOverflow),
        (400, "Arrearage", Quota),
        (403, "AllocationQuota.FreeTierOnly", Quota),
        (429, "PostpaidBillOverdue", Quota),
        (400, "Throttling.RateQuota", RateLimit),
        (400, "Throttling.AllocationQuota", RateLimit),
        (400, "Throttling.BurstRate", RateLimit),
        (400, "com.amazonaws#ThrottlingException", RateLimit),
        (400, "ThrottlingException:http://internal.example/x", RateLimit),
        (413, "tokens_limit_reached", ContextOverflow),
    ] {
        assert_eq!(code_of(coded(value, code, "")), expected, "{value} {code}");
        let as_type = Signal { status: Some(value), kind: Some(code), ..Signal::default() };
        assert_eq!(code_of(as_type), expected, "{value} type {code}");
    }
}

#[test]
fn a_code_without_a_status_is_known_in_any_spelling() {
    for (code, expected) in [
        ("DeploymentNotFound", InvalidRequest),
        ("1261", ContextOverflow),
        ("1310", Quota),
        ("InvalidApiKey", Auth),
        ("ServiceUnavailable", Server),
        ("Throttling.RateQuota", RateLimit),
        ("requestTimeout", Timeout),
    ] {
        let signal = Signal { code: Some(code), message: Some("x"), reported: true, ..Signal::default() };
        assert_eq!(code_of(signal), expected, "{code}");
    }
}

#[test]
fn codes_are_one_in_every_spelling_of_case_and_separators() {
    for code in ["rate_limit_exceeded", "Rate-Limit Exceeded", "rateLimitExceeded", " RATE.LIMIT/EXCEEDED "] {
        assert_eq!(normalised(code), "ratelimitexceeded", "{code}");
    }
    assert_eq!(normalised("a.b#C_d:http://e/"), "cd");
    assert_eq!(normalised("#"), "");
    assert!(names("throttling*", "throttlingratequota") && !names("throttling", "throttlingratequota"));
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
        "Input is too long for requested model.",
        "The model returned the following errors: Input is too long for requested model.",
        "Input Tokens Exceeded: Number of input tokens exceeds maximum length. Please update the input to try again.",
        "This model's maximum prompt length is 131072 but the request contains 150000 tokens.",
        "Invalid request: Your request exceeded model token limit: 8192",
        "prompt token count of 150000 exceeds the limit of 128000",
        "Unable to submit request because the input token count is 40000 but model only supports up to 32768.",
        "too many tokens: total number of tokens in this prompt cannot exceed 4081 - received 5000. Try using a shorter prompt",
        "The decoder prompt (length 5000) is longer than the maximum model length of 4096. Make sure that `max_model_len` is no smaller.",
        "The prompt (total length 5000) is too long to fit into the model (context length 4096).",
        "The input (10000 tokens) is longer than the model's context length (8192 tokens).",
        "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 500 `max_new_tokens`",
        "Input validation error: `inputs` must have less than 1024 tokens. Given: 2000",
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000, decrease input length",
        "Context size has been exceeded.",
        "context overflow",
        "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough.",
        "The number of tokens to keep from the initial prompt is greater than the context length.",
        "conversation is too long for the context window",
        "Your prompt has 9000 tokens, more than the model context length 8192",
        "The total number of tokens exceeds the model's limit of 8192",
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
        "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
        "Requested tokens (5000) exceed context window of 4096",
        "Please reduce the length of the messages or completion. Current length is 10000 while limit is 8192",
        "Please reduce the length of the input messages.",
        "Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens.",
        "the number of input tokens 9000 cannot exceed the total tokens limit 4096 for this model",
        "The estimated number of input and maximum output tokens (9000) exceeded this model context window limit (8192).",
        "invalid params, context window exceeds limit (2013)",
        "This model only supports 8192 tokens of context; you sent 9000",
        "exceeded maximum context tokens",
        "max_prompt_tokens exceeded",
        "The prompt length must be less than 4096 tokens",
        "The request's total token count, 9000, is over the model's context length of 8192",
        "Request body too large for acme-4 model. Max size: 8000 tokens.",
        "context length of 4096 was exceeded",
        "Chat history exceeds model context",
        "tokens in request more than max tokens allowed",
        "Range of input length should be [1, 30720]",
        "litellm.ContextWindowExceededError: x",
        "Prompt 超长",
        "prompt超长",
        "输入内容超过模型最大长度限制",
        "请求超出上下文窗口",
        "Die Eingabe überschreitet die maximale Kontextlänge",
        "入力がコンテキスト長を超えています",
        "Le message dépasse la longueur maximale du contexte",
        "La entrada supera la ventana de contexto",
        "입력이 컨텍스트 길이를 초과했습니다",
        "Превышена длина контекста",
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
        "The maximum context length parameter must be an integer",
        "num_ctx maximum context window must be a power of two",
        "Invalid value for max_context_window",
        "Unknown parameter: context_overflow_strategy",
        "max_tokens is too large: 200000. This model supports at most 128000 completion tokens, whereas you provided 200000.",
        "max_tokens: 300000 > 64000, which is the maximum allowed number of output tokens for m",
        "Invalid request: max_tokens exceeds the model's token limit",
        "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 7000000 bytes > 5242880 bytes",
        "Invalid 'messages[0].content': string too long. Expected a string with maximum length 1048576, but got 2000000.",
        "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 140 instead.",
        "The `context` parameter is not supported",
        "metadata.context: maximum length 512 exceeded",
        "Missing context for tool call; window size parameter invalid",
        "input is too long for this field: user_id",
        "Your request was rejected: the message is too long for the subject field",
        "thinking.budget_tokens exceeds max_tokens",
        "Too many images in request: 25 exceeds limit of 20",
        "The prompt violates policy",
        "number of tokens in logit_bias exceeds 300",
        "The thinking budget exceeds the limit",
        "Invalid schema for function 'pay': 'payment' is required",
        "参数 name 超长",
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
        "Your spending limit has been reached",
        "Billing hard limit has been reached",
        "You have reached your specified API usage limits. You will regain access on 2026-02-01 at 00:00 UTC.",
        "You've hit your usage limit. Upgrade to Pro or try again at 5 PM",
        "You have exceeded your monthly included credits for Inference Providers.",
        "This organization has exceeded its quota",
        "Your quota has been used up",
        "quota limit reached for this key",
        "The free tier of the model has been exhausted. If you wish to go on, use a paid plan.",
        "no remaining credit",
        "Weekly/Monthly Limit Exhausted. Your limit will reset at 2026-02-01",
        "Usage limit reached for 5 hour. Your limit will reset at 2026-01-01 10:00:00",
        "Monthly usage limit reached",
        "daily quota exceeded",
        "Too many requests: the monthly quota is exceeded",
        "Your team has either used all available credits or reached its monthly spending limit.",
        "You have run out of credits. Please add more.",
        "You don't have enough credits",
        "You do not have sufficient balance",
        "Budget has been exceeded! Current cost: 10, Max budget: 10",
        "Your account is suspended, please check your plan and billing details",
        "Please top up your account",
        "Free trial has expired",
        "Free tier limit reached",
        "The quota for this API key has been exceeded",
        "Token quota is not enough",
        "Your credits have run out",
        "litellm.RateLimitError: OpenAIException - You exceeded your current quota, please check your plan and billing details.",
        "You exceeded your current quota. Read https://ai.example/docs/rate-limits",
        "配额已用尽",
        "免费额度已用尽",
        "您的账户额度已用完",
        "额度已用完，请充值",
        "您的账户已欠费",
        "您已达到每周/每月使用上限",
        "Guthaben aufgebraucht",
        "Ihr Kontingent ist erschöpft",
        "Nicht genügend Guthaben",
        "Solde insuffisant",
        "Le quota est épuisé",
        "Saldo insuficiente",
        "Créditos agotados",
        "La cuota ha sido superada",
        "Cota excedida",
        "残高が不足しています",
        "クレジットが不足しています",
        "недостаточно средств",
        "Квота исчерпана",
        "잔액이 부족합니다",
        "할당량을 초과했습니다",
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
        "Rate limit exceeded: insufficient credits to raise limit",
        "Too many requests. Add credits: insufficient credits for higher limits.",
        "Too many requests. Insufficient credits may also cause this.",
        "Your requests have exceeded call rate limit of your current pricing tier. Increase your quota.",
        "You have reached the rate limit. Buy more credits to raise it.",
        "Rate limit exceeded: free-models-per-day. Add 10 credits to unlock 1000 free model requests per day",
        "RPM limit exceeded. Please complete identity verification. Insufficient balance.",
        "concurrency limit reached, upgrade your plan: usage limit reached",
        "Quota exceeded for acme.example/generate_content_requests_per_minute_per_project_per_base_model",
        "You exceeded your current quota. GenerateRequestsPerMinutePerProjectPerModel-FreeTier",
        "请求过于频繁，余额不足",
        "每分钟请求配额已用尽",
        "Limit: 10 req/min, quota exceeded",
        "limit of 5 RPS, quota exceeded",
        "Kontingent von 3 Anfragen pro Minute überschritten",
    ] {
        assert_eq!(said(429, text), RateLimit, "{text}");
        assert_eq!(in_stream(text), RateLimit, "{text}");
    }
    assert_eq!(said(429, "billing and quota documentation"), RateLimit);
    assert_eq!(said(429, "Too Many Requests"), RateLimit);
    for text in [
        "Resource has been exhausted (e.g. check quota).",
        "Too many tokens per day, please wait",
        "daily rate limit exceeded",
    ] {
        assert_eq!(said(429, text), RateLimit, "{text}");
    }
    for text in ["Rate exceeded", "ThrottlingException: Rate exceeded", "Rate limit exceeded: insufficient credits"] {
        assert_eq!(said(400, text), RateLimit, "{text}");
    }
    let coded_quota = coded(429, "insufficient_quota", "Rate limit exceeded: too many requests per minute");
    assert_eq!(code_of(coded_quota), Quota, "a structured code wins over every wording");
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
        ("acme.example | 520: Web server is returning an unknown error", Server),
        ("acme.example | 521: Web server is down", Server),
        ("acme.example | 522: Connection timed out", Server),
        ("acme.example | 524: A timeout occurred", Server),
        ("acme.example | 525: SSL handshake failed", Server),
        ("error code: 521", Server),
        ("error code: 524", Server),
        ("error code: 1015", RateLimit),
        ("no healthy upstream", Server),
        ("<h1>504 Gateway Time-out</h1><hr>nginx", Server),
        ("503 Service Temporarily Unavailable", Server),
        ("Error 503 Backend fetch failed", Server),
        ("Request failed with status code 401", Auth),
        ("Request failed with status code 402", Quota),
        ("Request failed with status code 408", Timeout),
        ("Request failed with status code 422", InvalidRequest),
        ("Request failed with status code 429", RateLimit),
        ("APIConnectionError", Transport),
        ("APITimeoutError", Timeout),
        ("InternalServerError", Server),
        ("请求过于频繁，请稍后再试", RateLimit),
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
