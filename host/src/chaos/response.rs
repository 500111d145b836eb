//! Turns a step and a request into the bytes that go over the wire, with their pauses and their end. Pure; the sockets
//! are in [`super::connection`].

use super::{
    answer::{self, Asked},
    protocol::{Protocol, consideration, messages_events, responses_events, words},
    script::{Body, Ending, ErrorObject, Play, RawEnd, RawSource, Step, Stream},
};
use bytes::Bytes;
use serde_json::{Value, json};
use std::{fmt::Write as _, time::Duration};

/// A response, ready to be written.
#[derive(Debug, PartialEq)]
pub(super) struct Response {
    pub pieces: Vec<Piece>,
    pub end: End,
}

/// Bytes that are written at once, after a pause.
#[derive(Debug, PartialEq)]
pub(super) struct Piece {
    pub pause: Duration,
    pub bytes: Bytes,
}

/// What happens to the connection after the last piece.
#[derive(Debug, PartialEq)]
pub(super) enum End {
    /// It waits for the next request.
    KeepAlive,
    /// It is closed in the usual way (FIN).
    Close,
    /// It is reset (RST).
    Reset,
    /// Nothing more is sent until the client goes away, or until `limit` has passed and the connection is closed.
    /// `ping` is sent at its interval meanwhile.
    Silence { limit: Option<Duration>, ping: Option<(Duration, Bytes)> },
}

impl Response {
    /// The response of `step` to a request with this body.
    pub fn render(step: &Step, protocol: Protocol, body: &[u8]) -> Self {
        let mut response = Self::render_at_once(step, protocol, body);
        match response.pieces.first_mut() {
            Some(first) => first.pause += step.after,
            None => response.pieces.push(Piece { pause: step.after, bytes: Bytes::new() }),
        }
        response
    }

    fn render_at_once(step: &Step, protocol: Protocol, request: &[u8]) -> Self {
        match &step.play {
            Play::Reply { status, body } | Play::Down { status, body, .. } => {
                let (content_type, text) = body_text(body, *status, request);
                Self::whole(*status, content_type, &step.headers, &text)
            }
            Play::Interim { status } => {
                let mut head = status_line(*status);
                write_headers(&mut head, &[], &step.headers);
                let mut response = Self::stream(&Stream::answer(), &[], protocol, request);
                response.pieces.insert(0, Piece { pause: Duration::ZERO, bytes: head.into() });
                response
            }
            Play::Stream(stream) => Self::stream(stream, &step.headers, protocol, request),
            Play::Raw { source, end } => {
                let bytes = match source {
                    RawSource::Bytes(bytes) => bytes.clone(),
                    // A server reads the files of its script before it plays it.
                    RawSource::File(_) => Bytes::new(),
                };
                let end = match end {
                    RawEnd::Close => End::Close,
                    RawEnd::Reset => End::Reset,
                    RawEnd::Stall => End::Silence { limit: None, ping: None },
                };
                Response { pieces: vec![Piece { pause: Duration::ZERO, bytes }], end }
            }
            Play::Hang { limit } => Response { pieces: Vec::new(), end: End::Silence { limit: *limit, ping: None } },
            Play::Reset => Response { pieces: Vec::new(), end: End::Reset },
        }
    }

    /// A complete response that keeps the connection.
    fn whole(status: u16, content_type: &str, headers: &[(String, String)], body: &str) -> Self {
        // These two have no body, and a client would take one for the next response.
        let body = if matches!(status, 204 | 304) { "" } else { body };
        let length = body.len().to_string();
        let mut text = status_line(status);
        match status {
            204 | 304 => write_headers(&mut text, &[], headers),
            _ => write_headers(&mut text, &[("content-type", content_type), ("content-length", &length)], headers),
        }
        text.push_str(body);
        Response { pieces: vec![Piece { pause: Duration::ZERO, bytes: text.into() }], end: End::KeepAlive }
    }

    /// The server's own refusal of a request that never reached the script.
    pub fn refusal(status: u16, message: &str) -> Self {
        let error = ErrorObject { message: Some(message.into()), ..ErrorObject::default() };
        let body = error_json(&error, status).to_string();
        let headers = [("connection".to_owned(), "close".to_owned())];
        Response { end: End::Close, ..Self::whole(status, JSON, &headers, &body) }
    }

    fn stream(stream: &Stream, headers: &[(String, String)], protocol: Protocol, request: &[u8]) -> Self {
        let mut head = status_line(200);
        let usual =
            [("content-type", "text/event-stream"), ("cache-control", "no-cache"), ("transfer-encoding", "chunked")];
        write_headers(&mut head, &usual, headers);
        let mut pieces = vec![Piece { pause: Duration::ZERO, bytes: head.into() }];
        let asked = Asked::read(request);
        let events = match protocol {
            Protocol::ChatCompletions => events(stream, &asked),
            Protocol::Messages => messages_events(stream, &asked),
            Protocol::Responses => responses_events(stream, &asked),
        };
        for event in events {
            let size = stream.split.unwrap_or(event.len()).max(1);
            for (index, part) in event.as_bytes().chunks(size).enumerate() {
                let pause = if index == 0 { stream.delay } else { Duration::ZERO };
                pieces.push(Piece { pause, bytes: http_chunk(part) });
            }
        }
        let end = match &stream.ending {
            Ending::Cut => End::Close,
            Ending::Reset => End::Reset,
            Ending::Stall { limit, ping } => {
                let comment = http_chunk(b": keep-alive\n\n");
                End::Silence { limit: *limit, ping: ping.map(|interval| (interval, comment)) }
            }
            Ending::Finish(_) | Ending::ToolCall { .. } | Ending::Malformed | Ending::Error(_) | Ending::Eof => {
                pieces.push(Piece { pause: Duration::ZERO, bytes: Bytes::from_static(b"0\r\n\r\n") });
                End::KeepAlive
            }
        };
        Response { pieces, end }
    }
}

const JSON: &str = "application/json";

/// The events of a stream, each as its bytes.
fn events(stream: &Stream, asked: &Asked) -> Vec<String> {
    let words = words(stream, asked);
    let chunk = |delta: Value, finish: Option<&str>| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        event(&frame(asked, json!([choice])).to_string())
    };
    let mut deltas: Vec<Value> = Vec::new();
    for number in 1..=stream.reasoning {
        deltas.push(json!({"reasoning_content": consideration(number)}));
    }
    deltas.extend(words.iter().map(|word| json!({"content": word})));
    if let Ending::ToolCall { name, arguments } = &stream.ending {
        let opening =
            json!({"index": 0, "id": "call_chaos", "type": "function", "function": {"name": name, "arguments": ""}});
        deltas.push(json!({"tool_calls": [opening]}));
        deltas.extend(
            answer::pieces(arguments)
                .iter()
                .map(|part| json!({"tool_calls": [{"index": 0, "function": {"arguments": part}}]})),
        );
    }
    let finish = match &stream.ending {
        Ending::Finish(reason) => Some(reason.as_str()),
        Ending::ToolCall { .. } => Some("tool_calls"),
        Ending::Malformed => Some("stop"),
        Ending::Error(_) | Ending::Eof | Ending::Cut | Ending::Reset | Ending::Stall { .. } => None,
    };
    if deltas.is_empty() && finish.is_some() {
        deltas.push(json!({"content": ""}));
    }
    if let Some(Value::Object(first)) = deltas.first_mut() {
        first.insert("role".into(), "assistant".into());
    }
    let mut events: Vec<String> = deltas.into_iter().map(|delta| chunk(delta, None)).collect();
    match &stream.ending {
        Ending::Malformed => events.push(event(r#"{"choices":[{"index":0,"delta":{"content":"#)),
        Ending::Error(error) => events.push(event(&error_json(error, error.status.unwrap_or(500)).to_string())),
        _ => {}
    }
    if let Some(reason) = finish {
        events.push(chunk(json!({}), Some(reason)));
        let mut last = frame(asked, json!([]));
        last["usage"] = usage(asked, words.len(), stream.reasoning);
        events.push(event(&last.to_string()));
        events.push(event("[DONE]"));
    }
    events
}

/// What every chunk of a stream has in common.
fn frame(asked: &Asked, choices: Value) -> Value {
    json!({"id": "chatcmpl-chaos", "object": "chat.completion.chunk", "created": 0, "model": asked.model, "choices": choices})
}

fn usage(asked: &Asked, words: usize, reasoning: usize) -> Value {
    let completion = words + reasoning;
    let mut usage = json!({
        "prompt_tokens": asked.words,
        "completion_tokens": completion,
        "total_tokens": asked.words + completion,
    });
    if reasoning > 0 {
        usage["completion_tokens_details"] = json!({"reasoning_tokens": reasoning});
    }
    usage
}

fn event(data: &str) -> String {
    format!("data: {data}\n\n")
}

/// One chunk of the chunked transfer coding.
fn http_chunk(data: &[u8]) -> Bytes {
    let mut bytes = format!("{:x}\r\n", data.len()).into_bytes();
    bytes.extend_from_slice(data);
    bytes.extend_from_slice(b"\r\n");
    bytes.into()
}

fn body_text(body: &Body, status: u16, request: &[u8]) -> (&'static str, String) {
    match body {
        Body::Error(error) => (JSON, error_json(error, status).to_string()),
        Body::Json(text) => (JSON, text.clone()),
        Body::Completion => {
            let asked = Asked::read(request);
            let text = asked.answer();
            let words = answer::pieces(&text).len();
            let message = json!({"role": "assistant", "content": text});
            let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
            let completion = json!({
                "id": "chatcmpl-chaos", "object": "chat.completion", "created": 0, "model": asked.model,
                "choices": [choice], "usage": usage(&asked, words, 0),
            });
            (JSON, completion.to_string())
        }
        Body::Html => {
            let title = format!("{status} {}", reason(status));
            (
                "text/html",
                format!(
                    "<!doctype html><html><head><title>{title}</title></head><body><h1>{title}</h1></body></html>\n"
                ),
            )
        }
    }
}

pub(super) fn error_json(error: &ErrorObject, status: u16) -> Value {
    let (usual_message, usual_kind) = match status {
        401 => ("The API key is not valid.", "authentication_error"),
        402 => ("The balance is used up.", "insufficient_quota"),
        403 => ("This key may not use this model.", "permission_error"),
        404 => ("There is no such model.", "not_found_error"),
        408 | 504 => ("The request took too long.", "timeout_error"),
        413 => ("The request is too large.", "invalid_request_error"),
        429 => ("Too many requests, slow down.", "rate_limit_error"),
        529 => ("The service is overloaded.", "overloaded_error"),
        400..=499 => ("The request is not valid.", "invalid_request_error"),
        500..=599 => ("The service failed.", "server_error"),
        _ => ("The service answered with an unusual status.", "api_error"),
    };
    let code = match &error.code {
        Some(code) => match code.parse::<u64>() {
            Ok(number) if code.bytes().all(|byte| byte.is_ascii_digit()) => json!(number),
            _ => json!(code),
        },
        None => Value::Null,
    };
    let mut object = json!({
        "message": error.message.as_deref().unwrap_or(usual_message),
        "type": error.kind.as_deref().unwrap_or(usual_kind),
        "param": null,
        "code": code,
    });
    if let Some(status) = error.status {
        object["status"] = json!(status);
    }
    json!({"error": object})
}

fn status_line(status: u16) -> String {
    format!("HTTP/1.1 {status} {}\r\n", reason(status))
}

/// Writes `usual` headers, except those that `own` replaces, then `own`, then the blank line.
fn write_headers(head: &mut String, usual: &[(&str, &str)], own: &[(String, String)]) {
    let usual = usual.iter().filter(|(name, _)| !own.iter().any(|(other, _)| other == name)).copied();
    for (name, value) in usual.chain(own.iter().map(|(name, value)| (name.as_str(), value.as_str()))) {
        // Writing to a string cannot fail.
        let _ = write!(head, "{name}: {value}\r\n");
    }
    head.push_str("\r\n");
}

/// The reason phrases of the statuses that providers and their proxies send.
fn reason(status: u16) -> &'static str {
    match status {
        100 => "Continue",
        101 => "Switching Protocols",
        102 => "Processing",
        103 => "Early Hints",
        200 => "OK",
        204 => "No Content",
        301 => "Moved Permanently",
        302 => "Found",
        304 => "Not Modified",
        307 => "Temporary Redirect",
        308 => "Permanent Redirect",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        409 => "Conflict",
        413 => "Content Too Large",
        422 => "Unprocessable Content",
        425 => "Too Early",
        429 => "Too Many Requests",
        431 => "Request Header Fields Too Large",
        499 => "Client Closed Request",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        505 => "HTTP Version Not Supported",
        529 => "Site Is Overloaded",
        _ => "Status",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chaos::Script;

    const ASK: &[u8] = br#"{"model":"m","messages":[{"role":"user","content":"one prime"}]}"#;

    fn rendered(step: &str) -> Response {
        Response::render(&Script::parse(step).unwrap().steps[0], Protocol::ChatCompletions, ASK)
    }

    fn text(response: &Response) -> String {
        response.pieces.iter().map(|piece| String::from_utf8_lossy(&piece.bytes)).collect()
    }

    #[test]
    fn every_status_is_sent_with_its_number() {
        for status in 200..=599u16 {
            let response = rendered(&status.to_string());
            assert!(text(&response).starts_with(&format!("HTTP/1.1 {status} ")), "{status}");
            assert_eq!(response.end, End::KeepAlive);
            assert_eq!(text(&response).ends_with("\r\n\r\n"), matches!(status, 204 | 304), "{status}");
        }
    }

    #[test]
    fn a_header_of_the_step_replaces_the_usual_one() {
        let sent = text(&rendered(r#"503:body=busy:header="content-type: text/plain""#));
        assert_eq!(
            sent,
            "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\ncontent-type: text/plain\r\n\r\nbusy"
        );
    }

    #[test]
    fn a_code_of_digits_is_a_number() {
        assert!(text(&rendered("json:code=504")).contains(r#""code":504"#));
        assert!(text(&rendered("json:code=busy")).contains(r#""code":"busy""#));
        assert!(text(&rendered("json:code=+5")).contains(r#""code":"+5""#));
    }

    #[test]
    fn pauses_stand_where_the_step_says() {
        let response = rendered("ok:text=\"a b\":delay=5:after=7");
        let pauses: Vec<_> = response.pieces.iter().map(|piece| piece.pause.as_millis()).collect();
        assert_eq!(pauses, [7, 5, 5, 5, 5, 5, 0], "head, two words, finish, usage, [DONE], terminator");
        assert_eq!(rendered("reset:after=9").pieces[0].pause, Duration::from_millis(9));
    }

    #[test]
    fn a_split_body_is_the_same_body() {
        let body = |step: &str| {
            let response = rendered(step);
            let mut data = Vec::new();
            for piece in &response.pieces[1..] {
                let start = piece.bytes.windows(2).position(|pair| pair == b"\r\n").unwrap() + 2;
                data.extend_from_slice(&piece.bytes[start..piece.bytes.len() - 2]);
            }
            (String::from_utf8(data).unwrap(), response.pieces.len())
        };
        let (whole, few) = body("ok:text=\"né 你\"");
        let (split, many) = body("ok:text=\"né 你\":split=1");
        assert_eq!(whole, split);
        assert!(many > few * 10);
    }

    #[test]
    fn usage_counts_words_and_reasoning() {
        let sent = text(&rendered("reasoning:2:text=\"a b c\""));
        assert!(sent.contains(r#""usage":{"prompt_tokens":2,"completion_tokens":5,"total_tokens":7,"completion_tokens_details":{"reasoning_tokens":2}}"#));
        assert_eq!(sent.matches("reasoning_content").count(), 2);
    }
}
