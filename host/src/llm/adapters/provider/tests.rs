use super::{
    super::call::{ERROR_BODY_LIMIT, MAX_WHOLE},
    *,
};
use crate::llm::{
    Block, BlockType, Evidence, Failure, FailureCode, FinishReason, Message, Role, Usage,
    classify::{Condition, OwnRow},
    failure::MAX_KEPT_BODY,
};
use futures_util::StreamExt;
use std::sync::Mutex;
use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Notify,
    time::timeout,
};

const KEY: &str = "sk-test-0123456789abcdef";

/// 2026-06-01 10:00:00 UTC.
const NOW: u64 = 1_780_308_000_000;

/// What the server does after it has read a request.
#[derive(Clone)]
enum Act {
    Send(String),
    Bytes(Vec<u8>),
    Pause(u64),
    /// Cuts the connection so that the peer gets a reset.
    Reset,
    /// Keeps the connection open and silent until the client leaves.
    Hang,
}

/// A server on loopback that plays one script for every connection and keeps what it was sent.
struct Server {
    address: std::net::SocketAddr,
    requests: Arc<Mutex<Vec<Vec<u8>>>>,
    /// Told when a client has left during [`Act::Hang`].
    left: Arc<Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    async fn start(script: Vec<Act>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (requests, left) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Notify::new()));
        let (log, leaving) = (requests.clone(), left.clone());
        let task = tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serve(socket, script.clone(), log.clone(), leaving.clone()));
            }
        });
        Server { address, requests, left, task }
    }

    /// Answers every request with these bytes and closes.
    async fn saying(response: impl Into<String>) -> Self {
        Server::start(vec![Act::Send(response.into())]).await
    }

    fn base_url(&self) -> String {
        format!("http://{}/v1", self.address)
    }

    fn adapter(&self) -> HttpProvider {
        self.adapter_with(Limits::default())
    }

    fn adapter_with(&self, limits: Limits) -> HttpProvider {
        adapter(&self.base_url(), limits)
    }

    async fn ask(&self) -> Vec<Chunk> {
        ask(&self.adapter()).await
    }

    fn requests(&self) -> Vec<Vec<u8>> {
        self.requests.lock().unwrap().clone()
    }
}

async fn serve(mut socket: TcpStream, script: Vec<Act>, log: Arc<Mutex<Vec<Vec<u8>>>>, left: Arc<Notify>) {
    let mut request = Vec::new();
    loop {
        let mut piece = [0; 4096];
        match socket.read(&mut piece).await {
            Ok(0) | Err(_) => return,
            Ok(read) => request.extend_from_slice(&piece[..read]),
        }
        let text = String::from_utf8_lossy(&request);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
        if body.len() >= length.parse::<usize>().unwrap() {
            break;
        }
    }
    log.lock().unwrap().push(request);
    for act in script {
        match act {
            Act::Send(text) => socket.write_all(text.as_bytes()).await.unwrap_or_default(),
            Act::Bytes(bytes) => {
                socket.write_all(&bytes).await.unwrap_or_default();
                socket.flush().await.unwrap_or_default();
            }
            Act::Pause(ms) => tokio::time::sleep(Duration::from_millis(ms)).await,
            Act::Reset => {
                // Give the client the time to read what was sent: a reset discards what is still on its way.
                tokio::time::sleep(Duration::from_millis(50)).await;
                socket.set_zero_linger().unwrap();
                return;
            }
            Act::Hang => {
                let mut byte = [0];
                while matches!(socket.read(&mut byte).await, Ok(1)) {}
                left.notify_one();
                return;
            }
        }
    }
}

fn adapter(base_url: &str, limits: Limits) -> HttpProvider {
    let config = ProviderConfig {
        base_url: base_url.to_owned(),
        api_key: Some(Secret::new(KEY)),
        headers: vec![],
        bounds: Bounds { limits, ..Bounds::default() },
        ..ProviderConfig::default()
    };
    HttpProvider::new(config, clock()).unwrap()
}

/// An adapter of a protocol, with the test's key.
pub(super) fn adapter_of(dialect: Dialect, base_url: &str) -> HttpProvider {
    let config = ProviderConfig {
        dialect,
        base_url: base_url.to_owned(),
        api_key: Some(Secret::new(KEY)),
        text_hints: true,
        ..ProviderConfig::default()
    };
    HttpProvider::new(config, clock()).unwrap()
}

/// How a call fails, if it does.
pub(super) async fn failure_or_none(adapter: &HttpProvider) -> Option<Failure> {
    match ask(adapter).await.pop() {
        Some(Chunk::Finish { reason: FinishReason::Error { failure } }) => Some(failure),
        _ => None,
    }
}

#[tokio::test]
async fn each_protocol_has_its_path_and_its_header_for_the_key() {
    for (dialect, path, key) in [
        (Dialect::OpenAiChat, "/v1/chat/completions", format!("authorization: Bearer {KEY}")),
        (Dialect::AnthropicMessages, "/v1/messages", format!("x-api-key: {KEY}")),
        (Dialect::OpenAiResponses, "/v1/responses", format!("authorization: Bearer {KEY}")),
    ] {
        let server = Server::saying(refusal("500 Oops", "", "")).await;
        ask(&adapter_of(dialect, &server.base_url())).await;
        let request = String::from_utf8(server.requests().remove(0)).unwrap();
        assert!(request.starts_with(&format!("POST {path} HTTP/1.1\r\n")), "{request}");
        assert!(request.contains(&format!("{key}\r\n")), "{request}");
        assert_eq!(request.contains("anthropic-version: 2023-06-01\r\n"), dialect == Dialect::AnthropicMessages);
    }
}

fn clock() -> Arc<dyn Clock> {
    struct Fixed;
    impl Clock for Fixed {
        fn wall_ms(&self) -> u64 {
            NOW
        }
    }
    Arc::new(Fixed)
}

fn request() -> Arc<Request> {
    let user = Message { role: Role::User, content: vec![Block::Text { text: "name one prime".to_owned() }] };
    Arc::new(Request { model: "acme-1".to_owned(), system: Some("You are terse.".to_owned()), messages: vec![user] })
}

async fn ask(adapter: &HttpProvider) -> Vec<Chunk> {
    let asking = adapter.stream(request(), CancellationToken::new()).collect();
    let chunks: Vec<Chunk> = timeout(Duration::from_secs(20), asking).await.expect("a call ends");
    let finishes = chunks.iter().filter(|chunk| matches!(chunk, Chunk::Finish { .. })).count();
    assert_eq!(finishes, 1, "{chunks:?}");
    let text = serde_json::to_string(&chunks).unwrap();
    assert!(!text.contains(KEY) && !text.contains("0123456789abcdef"), "a secret is shown: {text}");
    chunks
}

#[track_caller]
fn failure(chunks: &[Chunk]) -> &Failure {
    match chunks.last() {
        Some(Chunk::Finish { reason: FinishReason::Error { failure } | FinishReason::Aborted { failure } }) => failure,
        other => panic!("expected a failed finish, got {other:?}"),
    }
}

#[track_caller]
fn evidence(chunks: &[Chunk]) -> &Evidence {
    failure(chunks).evidence.as_ref().expect("the failure has evidence")
}

const STREAM_HEAD: &str =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: rq-7\r\nconnection: close\r\n\r\n";

/// A stream of these events.
fn stream_of(events: &[&str]) -> String {
    events.iter().fold(STREAM_HEAD.to_owned(), |text, event| text + "data: " + event + "\n\n")
}

fn says(text: &str) -> String {
    format!("{{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":{text:?}}}}}]}}")
}

const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;

fn refusal(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\nconnection: close\r\n\r\n{body}", body.len())
}

#[tokio::test]
async fn an_answer_is_streamed_as_chunks_with_one_finish() {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}"#;
    let server = Server::saying(stream_of(&[&says("Se"), &says("ven"), STOP, usage, "[DONE]", &says("late")])).await;
    let delta = |text: &str| Chunk::TextDelta { index: 0, text: text.to_owned() };
    assert_eq!(
        server.ask().await,
        [
            Chunk::BlockStart { index: 0, block_type: BlockType::Text },
            delta("Se"),
            delta("ven"),
            Chunk::BlockEnd { index: 0, block: Block::Text { text: "Seven".to_owned() } },
            Chunk::Usage { usage: Usage { input_tokens: 9, output_tokens: 3, ..Usage::default() } },
            Chunk::Finish { reason: FinishReason::Stop },
        ]
    );
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn equal_requests_are_equal_bytes_on_the_wire() {
    let server = Server::saying(stream_of(&[&says("x"), "[DONE]"])).await;
    let adapter = server.adapter();
    ask(&adapter).await;
    ask(&adapter).await;
    ask(&server.adapter()).await;
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| request == &requests[0]));
    let text = String::from_utf8(requests[0].clone()).unwrap();
    assert!(text.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{text}");
    assert!(text.contains(&format!("authorization: Bearer {KEY}\r\n")), "{text}");
    let body = r#"{"model":"acme-1","messages":[{"role":"system","content":"You are terse."},{"role":"user","content":"name one prime"}],"stream":true,"stream_options":{"include_usage":true}}"#;
    assert!(text.ends_with(&format!("\r\n\r\n{body}")), "{text}");
}

#[tokio::test]
async fn every_refusal_has_its_code_and_its_facts_after_one_request() {
    for (status, body, code, message) in [
        (
            "400 Bad Request",
            r#"{"error":{"message":"no","type":"invalid_request_error"}}"#,
            FailureCode::InvalidRequest,
            "no",
        ),
        (
            "400 Bad Request",
            r#"{"error":{"code":"context_length_exceeded","message":"too much"}}"#,
            FailureCode::ContextOverflow,
            "too much",
        ),
        (
            "401 Unauthorized",
            r#"{"error":{"message":"Incorrect API key provided: sk-test-0123456789abcdef."}}"#,
            FailureCode::Auth,
            "Incorrect API key provided: [redacted]",
        ),
        (
            "402 Payment Required",
            r#"{"error":{"message":"Insufficient Balance","code":"invalid_request_error"}}"#,
            FailureCode::Quota,
            "Insufficient Balance",
        ),
        ("408 Request Timeout", "", FailureCode::Timeout, "answered 408 Request Timeout"),
        ("413 Payload Too Large", "", FailureCode::InvalidRequest, "answered 413"),
        ("425 Too Early", "", FailureCode::Transport, "answered 425"),
        ("429 Too Many Requests", "", FailureCode::RateLimit, "answered 429"),
        (
            "429 Too Many Requests",
            r#"{"error":{"code":"insufficient_quota","message":"pay"}}"#,
            FailureCode::Quota,
            "pay",
        ),
        ("500 Internal Server Error", "<html>oops</html>", FailureCode::Server, "answered 500"),
        (
            "503 Service Unavailable",
            r#"{"error":{"message":"upstream overloaded","code":"invalid_request_error"}}"#,
            FailureCode::Server,
            "upstream overloaded",
        ),
        ("529 Overloaded", "", FailureCode::Server, "answered 529"),
        ("307 Temporary Redirect", "", FailureCode::Protocol, "redirects to http://127.0.0.1:1/"),
    ] {
        let headers = "x-request-id: rq-1\r\nlocation: http://127.0.0.1:1/\r\n";
        let server = Server::saying(refusal(status, headers, body)).await;
        let chunks = server.ask().await;
        assert_eq!(chunks.len(), 1);
        let failure = failure(&chunks);
        assert_eq!(failure.code, code, "{status} {body}");
        assert_eq!(failure.status.map(|status| status.to_string()).as_deref(), status.get(..3));
        assert_eq!(failure.request_id.as_deref(), Some("rq-1"));
        assert!(failure.message.contains(message), "{}", failure.message);
        assert!(evidence(&chunks).row.is_some());
        assert_eq!(server.requests().len(), 1, "{status}");
    }
}

#[tokio::test]
async fn hints_and_request_ids_are_taken_from_the_head_and_then_the_body() {
    let info = r#"{"error":{"details":[{"retryDelay":"6.19s"}]}}"#;
    for (headers, body, hint, id) in [
        ("retry-after: 2\r\nx-request-id: a\r\n", "", Some(2000.0), Some("a")),
        ("retry-after: 1.5\r\nrequest-id: b\r\n", "", Some(1500.0), Some("b")),
        ("retry-after-ms: 250\r\nretry-after: 9\r\n", info, Some(250.0), None),
        ("retry-after: Mon, 01 Jun 2026 10:00:30 GMT\r\n", "", Some(30_000.0), None),
        (
            "date: Mon, 01 Jun 2026 09:00:00 GMT\r\nretry-after: Mon, 01 Jun 2026 09:00:10 GMT\r\n",
            "",
            Some(10_000.0),
            None,
        ),
        ("retry-after: 0\r\nx-request-id: \r\nx-deepseek-request-id: d\r\n", "", None, Some("d")),
        ("retry-after: soon\r\n", info, Some(6190.0), None),
        ("retry-after: -1\r\n", "", None, None),
    ] {
        let server = Server::saying(refusal("429 Too Many Requests", headers, body)).await;
        let chunks = server.ask().await;
        let failure = failure(&chunks);
        assert_eq!((failure.provider_retry_after_ms, failure.request_id.as_deref()), (hint, id), "{headers}");
    }
    let server = Server::saying(refusal("429 Too Many Requests", "retry-after: soon\r\n", "")).await;
    assert_eq!(evidence(&server.ask().await).hint.as_ref().map(|hint| hint.raw.as_str()), Some("soon"));
}

#[tokio::test]
async fn a_long_or_endless_error_body_is_cut() {
    let long = "x".repeat(100_000);
    let server = Server::saying(refusal("500 Oops", "", &long)).await;
    assert_eq!(evidence(&server.ask().await).body.as_ref().unwrap().len(), MAX_KEPT_BODY);

    let head = "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 100\r\n\r\nslow".to_owned();
    let server = Server::start(vec![Act::Send(head), Act::Hang]).await;
    let start = std::time::Instant::now();
    let chunks = server.ask().await;
    assert!(start.elapsed() < ERROR_BODY_LIMIT + Duration::from_secs(3));
    assert_eq!((failure(&chunks).code, evidence(&chunks).body.as_deref()), (FailureCode::RateLimit, Some("slow")));
}

#[tokio::test]
async fn faults_of_the_wire_are_told_apart() {
    let partial = stream_of(&[&says("Hel")]);
    let with_length = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: 9999\r\n\r\ndata: ";
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\ndata:\r\n";
    for (script, code, phase, cause) in [
        (vec![], FailureCode::Transport, "first-byte", "eof"),
        (vec![Act::Reset], FailureCode::Transport, "first-byte", "reset"),
        (vec![Act::Send("SSH-2.0-nope\r\n\r\n".to_owned())], FailureCode::Protocol, "first-byte", "malformed"),
        (vec![Act::Send(STREAM_HEAD.to_owned())], FailureCode::Transport, "stream", "eof"),
        (vec![Act::Send(partial.clone())], FailureCode::Transport, "stream", "eof"),
        (vec![Act::Send(partial.clone()), Act::Reset], FailureCode::Transport, "stream", "reset"),
        (vec![Act::Send(with_length.to_owned())], FailureCode::Transport, "stream", "eof"),
        (vec![Act::Send(chunked.to_owned())], FailureCode::Transport, "stream", "eof"),
        (vec![Act::Send(format!("{chunked}zz\r\n"))], FailureCode::Protocol, "stream", "malformed"),
    ] {
        let server = Server::start(script).await;
        let chunks = server.ask().await;
        let text = format!("{phase} {cause}: {chunks:?}");
        assert_eq!(failure(&chunks).code, code, "{text}");
        assert_eq!(evidence(&chunks).phase.as_deref(), Some(phase), "{text}");
        assert!(evidence(&chunks).causes.iter().any(|kind| kind == cause), "{text}");
        assert!(failure(&chunks).message.contains(&server.address.to_string()), "{text}");
        assert_eq!(server.requests().len(), 1, "{text}");
    }
}

#[tokio::test]
async fn a_refused_connection_and_an_unknown_host_are_transport_failures() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let chunks = ask(&adapter(&format!("http://{address}/v1"), Limits::default())).await;
    assert_eq!(failure(&chunks).code, FailureCode::Transport);
    let evidence_of_refusal = evidence(&chunks);
    assert_eq!(
        (evidence_of_refusal.phase.as_deref(), &evidence_of_refusal.causes[..]),
        (Some("connect"), &["connect".to_owned()][..])
    );
    assert!(evidence_of_refusal.os_error.is_some());
    assert!(failure(&chunks).message.contains(&address.to_string()));

    let limits = Limits { connect: Duration::from_secs(5), ..Limits::default() };
    let unknown = adapter("http://no-such-host.localhost.invalid/v1", limits);
    // Through a proxy of the environment the name would be the proxy's to resolve.
    if ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"].iter().all(|name| std::env::var_os(name).is_none()) {
        let chunks = ask(&unknown).await;
        assert!(matches!(failure(&chunks).code, FailureCode::Transport | FailureCode::Timeout), "{chunks:?}");
        if failure(&chunks).code == FailureCode::Transport {
            assert_eq!(evidence(&chunks).causes.first().map(String::as_str), Some("dns"), "{chunks:?}");
        }
    }
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_a_tls_fault() {
    // The hello of a TLS client is no HTTP, so the script answers after the first bytes whatever they are.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let mut bytes = [0; 16];
        socket.read_exact(&mut bytes).await.unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
    });
    let chunks = ask(&adapter(&format!("https://{address}/v1"), Limits::default())).await;
    assert_eq!(failure(&chunks).code, FailureCode::Transport);
    assert!(evidence(&chunks).causes.contains(&"tls".to_owned()), "{chunks:?}");
    server.abort();
}

#[tokio::test]
async fn partial_output_is_given_and_then_the_failure() {
    let server = Server::saying(stream_of(&[&says("Hel"), &says("lo"), STOP])).await;
    let chunks = server.ask().await;
    assert_eq!(chunks.len(), 4, "{chunks:?}");
    assert!(!chunks.iter().any(|chunk| matches!(chunk, Chunk::BlockEnd { .. })));
    assert_eq!(failure(&chunks).request_id.as_deref(), Some("rq-7"));
}

#[tokio::test]
async fn a_terminator_without_its_blank_line_still_counts() {
    for tail in ["data: [DONE]", "data: [DONE]\n", "data:[DONE]\r\n"] {
        let server = Server::saying(stream_of(&[&says("x")]) + tail).await;
        assert_eq!(server.ask().await.last(), Some(&Chunk::Finish { reason: FinishReason::Stop }), "{tail:?}");
    }
    let server = Server::saying(stream_of(&[]) + "data: {\"choices\":[{\"del").await;
    assert_eq!(failure(&server.ask().await).code, FailureCode::Transport);
}

#[tokio::test]
async fn an_answer_with_nothing_in_it_is_empty_after_its_usage() {
    let stop = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":4,"completion_tokens":0}}"#;
    let server = Server::saying(stream_of(&[stop, "[DONE]"])).await;
    let chunks = server.ask().await;
    assert!(matches!(chunks[..], [Chunk::Usage { .. }, Chunk::Finish { .. }]), "{chunks:?}");
    assert_eq!(failure(&chunks).code, FailureCode::EmptyResponse);
    for response in [refusal("200 OK", "", ""), "HTTP/1.1 204 No Content\r\n\r\n".to_owned()] {
        assert_eq!(failure(&Server::saying(response).await.ask().await).code, FailureCode::EmptyResponse);
    }
    // Comments are no answer either, but this stream was cut.
    let server = Server::saying(format!("{STREAM_HEAD}: keep-alive\n\n: keep-alive\n\n")).await;
    assert_eq!(failure(&server.ask().await).code, FailureCode::Transport);
}

#[tokio::test]
async fn an_error_inside_a_success_is_named_by_the_same_table() {
    let event = "event: message_start\ndata: {\"type\":\"message_start\"}\n\nevent: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"Overloaded\"}}\n\n";
    for (response, code, status) in [
        (format!("{STREAM_HEAD}{event}"), FailureCode::Server, None),
        (
            stream_of(&[&says("x"), r#"{"error":{"message":"slow down","code":429}}"#]),
            FailureCode::RateLimit,
            Some(429),
        ),
        (stream_of(&[r#"{"error":{"message":"Insufficient quota"}}"#]), FailureCode::Quota, None),
        (
            refusal(
                "200 OK",
                "content-type: application/json\r\n",
                r#"{"error":{"message":"The operation was aborted","code":504}}"#,
            ),
            FailureCode::Server,
            Some(504),
        ),
        (
            refusal("200 OK", "", r#"{"id":"r","status":"failed","error":{"code":"server_error","message":"m"}}"#),
            FailureCode::Server,
            None,
        ),
        (refusal("200 OK", "content-type: text/html\r\n", "<html>Sign in</html>"), FailureCode::Protocol, None),
        (refusal("200 OK", "content-type: text/html\r\n", "<html>502 Bad Gateway</html>"), FailureCode::Server, None),
        (refusal("200 OK", "", r#"{"choices":[{"delta":{"content":"x"}}]}"#), FailureCode::Protocol, None),
        (stream_of(&["{\"choices\""]), FailureCode::Protocol, None),
        (
            stream_of(&[&says("x"), r#"{"choices":[{"delta":{},"finish_reason":"content_filter"}]}"#, "[DONE]"]),
            FailureCode::InvalidRequest,
            None,
        ),
        (stream_of(&[r#"{"choices":[{"delta":{},"finish_reason":"error"}]}"#, "[DONE]"]), FailureCode::Server, None),
    ] {
        let chunks = Server::saying(response.clone()).await.ask().await;
        let failure = failure(&chunks);
        assert_eq!((failure.code, failure.status), (code, status), "{response}");
        assert!(evidence(&chunks).row.is_some(), "{response}");
    }
}

#[tokio::test]
async fn a_row_of_ones_own_makes_an_error_of_a_success_and_of_an_event() {
    let when = Condition { text: Some("house on fire".to_owned()), ..Condition::default() };
    let row = OwnRow { id: "fire".to_owned(), when, code: FailureCode::Server, fixture: None };
    let rows = OwnRows::new(vec![row]).unwrap();
    for response in [
        refusal("200 OK", "", "house on fire"),
        refusal("200 OK", "", r#"{"message":"house on fire"}"#),
        stream_of(&["house on fire"]),
        stream_of(&[r#"{"message":"house on fire"}"#]),
        format!("{STREAM_HEAD}: hi\n\nhouse on fire\n"),
    ] {
        let server = Server::saying(response.clone()).await;
        for dialect in Dialect::ALL {
            let config = ProviderConfig {
                dialect,
                base_url: server.base_url(),
                own_rows: rows.clone(),
                ..ProviderConfig::default()
            };
            let failure = failure_or_none(&HttpProvider::new(config, clock()).unwrap()).await.unwrap();
            let row = failure.evidence.unwrap().row;
            assert_eq!((failure.code, row.as_deref()), (FailureCode::Server, Some("own/fire")), "{response}");
        }
    }
}

#[tokio::test]
async fn an_answer_in_one_piece_is_bounded_and_must_be_text() {
    let json = |content: &[u8]| {
        let head = "HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{\"choices\":[{\"message\":{\"content\":\"";
        [head.as_bytes(), content, b"\"}}]}"].concat()
    };
    for (content, row) in [(vec![b'x'; MAX_WHOLE + 1], "stream/too-long"), (vec![0xff], "stream/not-utf8")] {
        let server = Server::start(vec![Act::Bytes(json(&content))]).await;
        assert_eq!(evidence(&server.ask().await).row.as_deref(), Some(row));
    }
    let server = Server::start(vec![Act::Bytes(json("\u{4f60}".as_bytes())), Act::Hang]).await;
    assert!(server.ask().await.contains(&Chunk::TextDelta { index: 0, text: "\u{4f60}".to_owned() }));
    let server = Server::saying(refusal("200 OK", "", "[ERROR] 502 Bad Gateway")).await;
    assert_eq!(failure(&server.ask().await).code, FailureCode::Server);
}

#[tokio::test]
async fn an_excerpt_in_a_message_shows_no_part_of_a_secret() {
    let said = format!("{} {KEY}", "x".repeat(185));
    for status in ["200 OK", "500 Oops"] {
        let text = format!("Rate limit exceeded {said}");
        for response in [refusal(status, "", &said), refusal(status, "", &text), stream_of(&[&said])] {
            let message = failure(&Server::saying(response).await.ask().await).message.clone();
            assert!(!message.contains("sk-t"), "{message}");
        }
    }
}

#[tokio::test]
async fn bytes_that_are_not_utf8_break_the_protocol_and_split_characters_do_not() {
    let head = Act::Send(STREAM_HEAD.to_owned());
    let server = Server::start(vec![head.clone(), Act::Bytes(b"data: \xff\n\n".to_vec())]).await;
    assert_eq!(failure(&server.ask().await).code, FailureCode::Protocol);

    let event = format!("\u{feff}data:{}\n\ndata: [DONE]\n\n", says("你")).into_bytes();
    let cut = event.windows(2).position(|bytes| bytes == [0xE4, 0xBD]).unwrap() + 1;
    let pieces = [&event[..1], &event[1..cut], &event[cut..]];
    let acts = pieces.iter().flat_map(|piece| [Act::Bytes(piece.to_vec()), Act::Pause(20)]);
    let server = Server::start([head].into_iter().chain(acts).collect()).await;
    assert!(server.ask().await.contains(&Chunk::TextDelta { index: 0, text: "你".to_owned() }));
}

#[tokio::test]
async fn a_silent_server_runs_into_the_limit_of_its_phase() {
    let ms = Duration::from_millis;
    let limits = Limits { first_byte: ms(300), idle: ms(300), ..Limits::default() };
    let partial = Act::Send(stream_of(&[&says("Hel")]));
    for (script, phase) in [(vec![Act::Hang], "first-byte"), (vec![partial, Act::Hang], "idle")] {
        let server = Server::start(script).await;
        let chunks = ask(&server.adapter_with(limits)).await;
        assert_eq!(failure(&chunks).code, FailureCode::Timeout);
        assert_eq!(evidence(&chunks).phase.as_deref(), Some(phase));
        assert!(failure(&chunks).message.contains(phase) && failure(&chunks).message.contains("300ms"));
        timeout(Duration::from_secs(5), server.left.notified()).await.expect("the connection is closed");
    }
}

#[tokio::test]
async fn a_handshake_that_stands_still_runs_into_the_connect_limit() {
    // A server that takes the connection and waits for the end of a head that TLS never sends.
    let server = Server::start(vec![]).await;
    let limits = Limits { connect: Duration::from_millis(300), ..Limits::default() };
    let chunks = ask(&adapter(&format!("https://{}/v1", server.address), limits)).await;
    assert_eq!((failure(&chunks).code, evidence(&chunks).phase.as_deref()), (FailureCode::Timeout, Some("connect")));
    assert!(failure(&chunks).message.contains("300ms"), "{}", failure(&chunks).message);
}

#[tokio::test]
async fn comments_keep_a_stream_alive_but_not_for_ever_without_content() {
    let ms = Duration::from_millis;
    let comments = |count| (0..count).flat_map(|_| [Act::Pause(100), Act::Send(": wait\n\n".to_owned())]);
    let head = || std::iter::once(Act::Send(STREAM_HEAD.to_owned()));
    let answer = Act::Send(format!("data: {}\n\ndata: [DONE]\n\n", says("x")));

    let server = Server::start(head().chain(comments(8)).chain([answer]).collect()).await;
    let chunks = ask(&server.adapter_with(Limits { idle: ms(600), ..Limits::default() })).await;
    assert_eq!(chunks.last(), Some(&Chunk::Finish { reason: FinishReason::Stop }), "{chunks:?}");

    let server = Server::start(head().chain(comments(100)).collect()).await;
    let chunks =
        ask(&server.adapter_with(Limits { idle: ms(5000), first_content: ms(400), ..Limits::default() })).await;
    assert_eq!(
        (failure(&chunks).code, evidence(&chunks).phase.as_deref()),
        (FailureCode::Timeout, Some("first-content"))
    );
}

#[tokio::test]
async fn a_cancel_ends_the_call_at_once_in_every_phase() {
    let partial = Act::Send(stream_of(&[&says("Hel")]));
    let refused = Act::Send("HTTP/1.1 429 Too Many Requests\r\ncontent-length: 100\r\n\r\nslow".to_owned());
    for (script, chunks_before) in [(vec![Act::Hang], 0), (vec![partial, Act::Hang], 2), (vec![refused, Act::Hang], 0)]
    {
        let server = Server::start(script).await;
        let cancel = CancellationToken::new();
        let mut answer = server.adapter().stream(request(), cancel.clone());
        for _ in 0..chunks_before {
            assert!(!matches!(answer.next().await, None | Some(Chunk::Finish { .. })));
        }
        assert!(timeout(Duration::from_millis(150), answer.next()).await.is_err(), "the call waits");
        cancel.cancel();
        let start = std::time::Instant::now();
        let last = answer.next().await;
        assert!(start.elapsed() < Duration::from_millis(50), "{:?}", start.elapsed());
        assert!(
            matches!(&last, Some(Chunk::Finish { reason: FinishReason::Aborted { failure } }) if failure.code == FailureCode::Aborted),
            "{last:?}"
        );
        assert_eq!(answer.next().await, None);
        timeout(Duration::from_secs(5), server.left.notified()).await.expect("the connection is closed");
    }
}

#[tokio::test]
async fn a_call_that_is_cancelled_before_it_starts_sends_nothing() {
    let server = Server::saying(stream_of(&[&says("x"), "[DONE]"])).await;
    let cancel = CancellationToken::new();
    cancel.cancel();
    let chunks: Vec<_> = server.adapter().stream(request(), cancel).collect().await;
    assert!(matches!(&chunks[..], [Chunk::Finish { reason: FinishReason::Aborted { .. } }]));
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn dropping_the_stream_closes_the_connection() {
    let server = Server::start(vec![Act::Send(stream_of(&[&says("Hel")])), Act::Hang]).await;
    let mut answer = server.adapter().stream(request(), CancellationToken::new());
    assert!(answer.next().await.is_some());
    drop(answer);
    timeout(Duration::from_secs(5), server.left.notified()).await.expect("the connection is closed");
}

fn bounds(limits: Limits) -> Bounds {
    Bounds { limits, ..Bounds::default() }
}

/// The body of what an adapter with these bounds sends for a model.
async fn body_sent(dialect: Dialect, bounds: Bounds, models: &[(&str, Bounds)], model: &str) -> String {
    let server = Server::saying(refusal("500 Oops", "", "")).await;
    let models = models.iter().map(|(name, bounds)| ((*name).to_owned(), *bounds)).collect();
    let config = ProviderConfig { dialect, base_url: server.base_url(), bounds, models, ..ProviderConfig::default() };
    let adapter = HttpProvider::new(config, clock()).unwrap();
    let asked = Request { model: model.to_owned(), ..Request::clone(&request()) };
    let _: Vec<Chunk> = adapter.stream(Arc::new(asked), CancellationToken::new()).collect().await;
    let request = String::from_utf8(server.requests().remove(0)).unwrap();
    request.split_once("\r\n\r\n").unwrap().1.to_owned()
}

#[tokio::test]
async fn a_bound_on_the_answer_goes_out_under_the_protocols_own_name_and_its_models_own_goes_first() {
    let at_most = |tokens| Bounds { max_tokens: NonZeroU32::new(tokens), ..Bounds::default() };
    for (dialect, key, otherwise) in [
        (Dialect::OpenAiChat, "max_tokens", None),
        (Dialect::AnthropicMessages, "max_tokens", Some(8192)),
        (Dialect::OpenAiResponses, "max_output_tokens", None),
    ] {
        for (bounds, models, expected) in [
            (at_most(0), vec![], otherwise),
            (at_most(500), vec![], Some(500)),
            (at_most(500), vec![("acme-1", at_most(32_000))], Some(32_000)),
            (at_most(0), vec![("acme-1", at_most(32_000))], Some(32_000)),
            (at_most(500), vec![("acme-2", at_most(32_000))], Some(500)),
        ] {
            let body = body_sent(dialect, bounds, &models, "acme-1").await;
            let found: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!(found.get(key).and_then(serde_json::Value::as_u64), expected, "{dialect:?}: {body}");
            assert_eq!(body.matches("tokens").count(), usize::from(expected.is_some()), "{dialect:?}: {body}");
        }
    }
}

#[tokio::test]
async fn the_bytes_of_a_bounded_request_are_these() {
    let bounds = Bounds { max_tokens: NonZeroU32::new(7), ..Bounds::default() };
    let user = r#"{"role":"user","content":"name one prime"}"#;
    for (dialect, body) in [
        (
            Dialect::OpenAiChat,
            format!(
                r#"{{"model":"acme-1","messages":[{{"role":"system","content":"You are terse."}},{user}],"max_tokens":7,"stream":true,"stream_options":{{"include_usage":true}}}}"#
            ),
        ),
        (
            Dialect::AnthropicMessages,
            r#"{"model":"acme-1","max_tokens":7,"system":"You are terse.","messages":[{"role":"user","content":[{"type":"text","text":"name one prime"}]}],"stream":true}"#.to_owned(),
        ),
        (
            Dialect::OpenAiResponses,
            r#"{"model":"acme-1","instructions":"You are terse.","input":[{"role":"user","content":[{"type":"input_text","text":"name one prime"}]}],"max_output_tokens":7,"stream":true,"store":false}"#.to_owned(),
        ),
    ] {
        assert_eq!(body_sent(dialect, bounds, &[], "acme-1").await, body);
    }
}

#[tokio::test]
async fn a_slow_model_has_its_own_limit_to_the_first_content() {
    let ms = Duration::from_millis;
    let answer = format!("data: {}\n\ndata: [DONE]\n\n", says("x"));
    let server = Server::start(vec![Act::Send(STREAM_HEAD.to_owned()), Act::Pause(600), Act::Send(answer)]).await;
    let first_content = |limit| bounds(Limits { first_content: limit, ..Limits::default() });
    let config = ProviderConfig {
        base_url: server.base_url(),
        bounds: first_content(ms(200)),
        models: [("slow".to_owned(), first_content(ms(10_000)))].into(),
        ..ProviderConfig::default()
    };
    let adapter = HttpProvider::new(config, clock()).unwrap();
    let ask = async |model: &str| {
        let asked = Request { model: model.to_owned(), ..Request::clone(&request()) };
        adapter.stream(Arc::new(asked), CancellationToken::new()).collect::<Vec<Chunk>>().await
    };
    let chunks = ask("quick").await;
    assert_eq!(evidence(&chunks).limit.as_deref(), Some("first-content"), "{chunks:?}");
    assert!(failure(&chunks).message.contains("200ms"), "{chunks:?}");
    assert_eq!(ask("slow").await.last(), Some(&Chunk::Finish { reason: FinishReason::Stop }));
}

#[tokio::test]
async fn models_share_a_client_unless_their_limits_of_connecting_differ() {
    let limits = |connect| bounds(Limits { connect: Duration::from_secs(connect), ..Limits::default() });
    let config = ProviderConfig {
        base_url: "https://h.test/v1".to_owned(),
        bounds: limits(10),
        models: [("same".to_owned(), limits(10)), ("other".to_owned(), limits(60))].into(),
        ..ProviderConfig::default()
    };
    let HttpProvider(prepared) = HttpProvider::new(config, clock()).unwrap();
    let client = |model| &prepared.served(model).client;
    assert!(Arc::ptr_eq(client("same"), client("unnamed")));
    assert!(!Arc::ptr_eq(client("other"), client("unnamed")));
}

#[test]
fn a_configuration_that_cannot_work_is_refused_without_showing_a_secret() {
    let make =
        |config: ProviderConfig| HttpProvider::new(config, clock()).map(|_| ()).map_err(|error| error.to_string());
    let base = || ProviderConfig { base_url: "https://host.test/v1".to_owned(), ..ProviderConfig::default() };
    assert_eq!(make(base()), Ok(()));
    for (config, word) in [
        (ProviderConfig { base_url: "host/v1".to_owned(), ..base() }, "host/v1"),
        (ProviderConfig { base_url: "ftp://host/v1".to_owned(), ..base() }, "ftp"),
        (ProviderConfig { base_url: "https://me:hunter2@host.test/v1".to_owned(), ..base() }, "host.test"),
        (ProviderConfig { base_url: "//me:hunter2@host.test/v1".to_owned(), ..base() }, "hidden"),
        (ProviderConfig { api_key: Some(Secret::new("hunter2\n")), ..base() }, "API key"),
        (
            ProviderConfig { headers: vec![("content-type".to_owned(), Secret::new("hunter2"))], ..base() },
            "content-type",
        ),
        (ProviderConfig { headers: vec![("x-a".to_owned(), Secret::new("hunter2\r\n"))], ..base() }, "x-a"),
        (ProviderConfig { bounds: bounds(Limits { idle: Duration::ZERO, ..Limits::default() }), ..base() }, "idle"),
        (
            ProviderConfig {
                models: [("m".to_owned(), bounds(Limits { content: Duration::ZERO, ..Limits::default() }))].into(),
                ..base()
            },
            "content",
        ),
    ] {
        let error = make(config).unwrap_err();
        assert!(error.contains(word) && !error.contains("hunter2"), "{error}");
    }
}

#[test]
fn the_endpoint_is_joined_to_the_base_path_and_keeps_a_query() {
    for (base, url) in [
        ("https://h.test", "https://h.test/chat/completions"),
        ("https://h.test/v1/", "https://h.test/v1/chat/completions"),
        ("https://h.test/v1?api-version=2", "https://h.test/v1/chat/completions?api-version=2"),
    ] {
        assert_eq!(endpoint_url(base, "/chat/completions").unwrap().as_str(), url);
    }
}

#[test]
fn making_an_adapter_builds_no_client() {
    let adapter = adapter("https://h.test/v1", Limits::default());
    assert!(adapter.0.served("m").client.get().is_none());
}
