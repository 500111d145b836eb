//! The server over real sockets: what each step puts on the wire, and how it ends.

use super::*;
use serde_json::{Value, json};
use std::{io::ErrorKind, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Instant, timeout},
};

/// Far longer than anything here takes; only a hanging test meets it.
const PATIENCE: Duration = Duration::from_secs(20);

async fn server(script: &str) -> ChaosServer {
    server_with(script, ChaosOptions::default()).await
}

async fn server_with(script: &str, options: ChaosOptions) -> ChaosServer {
    ChaosServer::start(Script::parse(script).unwrap(), options).await.unwrap()
}

fn prompt(text: &str) -> String {
    json!({"model": "m", "stream": true, "messages": [{"role": "user", "content": text}]}).to_string()
}

fn post(body: &str, extra: &str) -> String {
    let length = body.len();
    format!("POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n{extra}content-length: {length}\r\n\r\n{body}")
}

#[derive(Debug, PartialEq)]
enum Close {
    Fin,
    Rst,
}

/// Sends bytes on a new connection and reads until it ends.
async fn talk(server: &ChaosServer, request: &str) -> (String, Close) {
    let mut socket = TcpStream::connect(server.addr()).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut got = Vec::new();
    let end = loop {
        match timeout(PATIENCE, socket.read_buf(&mut got)).await.expect("the connection ends") {
            Ok(0) => break Close::Fin,
            Ok(_) => {}
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::ConnectionReset);
                break Close::Rst;
            }
        }
    };
    (String::from_utf8_lossy(&got).into_owned(), end)
}

/// One request that closes its connection.
async fn ask(server: &ChaosServer, text: &str) -> (String, Close) {
    talk(server, &post(&prompt(text), "connection: close\r\n")).await
}

/// The first response of a new server with this script.
async fn first(script: &str) -> (String, Close) {
    ask(&server(script).await, "one prime").await
}

/// Takes the chunked coding off a response. The flag says whether its terminator came.
fn body(response: &str) -> (String, bool) {
    let (head, mut rest) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("transfer-encoding: chunked"), "{head}");
    let mut body = String::new();
    while let Some((size, after)) = rest.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).unwrap();
        if size == 0 {
            assert_eq!(after, "\r\n");
            return (body, true);
        }
        body.push_str(&after[..size]);
        rest = after[size..].strip_prefix("\r\n").unwrap();
    }
    assert_eq!(rest, "", "a chunk is whole");
    (body, false)
}

/// The data lines of a stream.
fn data(body: &str) -> Vec<&str> {
    body.split_terminator("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
}

fn content(body: &str) -> String {
    let chunks = data(body).into_iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    chunks.filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str().map(str::to_owned)).collect()
}

fn finish(body: &str) -> Option<String> {
    let chunks = data(body).into_iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    chunks.filter_map(|chunk| chunk["choices"][0]["finish_reason"].as_str().map(str::to_owned)).next_back()
}

#[tokio::test]
async fn ok_streams_the_answer_with_usage_and_done() {
    let (response, end) = first("ok").await;
    assert_eq!(end, Close::Fin);
    assert!(response.starts_with("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"), "{response}");
    let (body, complete) = body(&response);
    assert!(complete);
    let chunk = |rest: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-chaos\",\"object\":\"chat.completion.chunk\",\"created\":0,\"model\":\"m\",{rest}}}\n\n"
        )
    };
    let delta = |delta: &str, finish: &str| {
        chunk(&format!("\"choices\":[{{\"index\":0,\"delta\":{delta},\"finish_reason\":{finish}}}]"))
    };
    let expected = [
        delta(r#"{"content":"Sev","role":"assistant"}"#, "null"),
        delta(r#"{"content":"en."}"#, "null"),
        delta("{}", r#""stop""#),
        chunk(r#""choices":[],"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}"#),
        "data: [DONE]\n\n".to_owned(),
    ];
    assert_eq!(body, expected.concat());
}

#[tokio::test]
async fn a_status_is_sent_with_its_hint_and_error() {
    let (response, end) =
        first(r#"429:retry-after=1:retry-after-ms=900:request-id=r1:message="Slow, please":code=c"#).await;
    assert_eq!(end, Close::Fin);
    let body = r#"{"error":{"message":"Slow, please","type":"rate_limit_error","param":null,"code":"c"}}"#;
    let head = "HTTP/1.1 429 Too Many Requests\r\ncontent-type: application/json\r\n";
    let length = format!("content-length: {}\r\n", body.len());
    let hints = "x-request-id: r1\r\nretry-after: 1\r\nretry-after-ms: 900\r\n\r\n";
    assert_eq!(response, format!("{head}{length}{hints}{body}"));
}

#[tokio::test]
async fn an_interim_status_comes_before_the_answer() {
    let (response, _) = first("103").await;
    let answer = response.strip_prefix("HTTP/1.1 103 Early Hints\r\n\r\n").unwrap();
    assert_eq!(content(&body(answer).0), "Seven.");
}

#[tokio::test]
async fn cut_eof_and_reset_end_the_stream_each_in_its_way() {
    let (response, end) = first("cut:3").await;
    let (cut, complete) = body(&response);
    assert_eq!((complete, end), (false, Close::Fin));
    assert_eq!(content(&cut), "A partial answer, partial words, partial ");

    let (response, end) = first("eof:2").await;
    let (eof, complete) = body(&response);
    assert_eq!((complete, end), (true, Close::Fin));
    assert_eq!(content(&eof), "A partial answer, partial ");

    let (response, end) = first("reset:1").await;
    let (reset, complete) = body(&response);
    assert_eq!((complete, end), (false, Close::Rst));
    assert_eq!(content(&reset), "A partial ");

    for stream in [cut, eof, reset] {
        assert_eq!((finish(&stream), stream.contains("[DONE]")), (None, false), "{stream}");
    }
}

#[tokio::test]
async fn a_reset_without_words_sends_no_head() {
    assert_eq!(first("reset").await, (String::new(), Close::Rst));
    let (head_alone, end) = first("cut:0").await;
    assert!(head_alone.ends_with("transfer-encoding: chunked\r\n\r\n"), "{head_alone}");
    assert_eq!(end, Close::Fin);
}

#[tokio::test]
async fn a_stall_sends_its_words_and_then_only_pings() {
    let (response, end) = first("stall:1:ping=10:ms=35").await;
    let (stalled, complete) = body(&response);
    assert_eq!((complete, end), (false, Close::Fin));
    assert_eq!(content(&stalled), "A partial ");
    assert_eq!(stalled.matches(": keep-alive\n\n").count(), 3);
    assert_eq!(first("hang:ms=5").await, (String::new(), Close::Fin));
}

#[tokio::test]
async fn a_stall_ends_when_its_client_goes_away() {
    let (events, mut told) = tokio::sync::mpsc::unbounded_channel();
    let server = server_with("stall:1", ChaosOptions { events: Some(events), ..ChaosOptions::default() }).await;
    let mut socket = TcpStream::connect(server.addr()).await.unwrap();
    socket.write_all(post(&prompt("x"), "").as_bytes()).await.unwrap();
    let arrived = timeout(PATIENCE, told.recv()).await.unwrap();
    assert!(matches!(arrived, Some(ChaosEvent::Arrived(request)) if request.step.as_deref() == Some("stall:1")));
    let mut byte = [0];
    socket.read_exact(&mut byte).await.unwrap();
    assert!(timeout(Duration::from_millis(30), told.recv()).await.is_err(), "it is silent while the client waits");
    drop(socket);
    let over = timeout(PATIENCE, told.recv()).await.unwrap();
    assert!(matches!(over, Some(ChaosEvent::Answered { number: 1, sent }) if sent > 0), "{over:?}");
}

#[tokio::test]
async fn slow_keeps_the_first_byte_back() {
    let began = Instant::now();
    let (response, _) = first("slow:ms=60").await;
    assert!(began.elapsed() >= Duration::from_millis(60));
    assert_eq!(content(&body(&response).0), "Seven.");
}

#[tokio::test]
async fn streams_that_end_without_a_usable_answer() {
    let table = [
        ("empty", "", "stop"),
        ("length", "Seven.", "length"),
        ("filter:1", "A partial ", "content_filter"),
        ("finish:error", "A partial answer, partial ", "error"),
        ("malformed", "A partial ", "stop"),
        ("reasoning:2:text=\"\"", "", "stop"),
        ("tool", "", "tool_calls"),
    ];
    for (step, words, reason) in table {
        let (response, _) = first(step).await;
        let (stream, complete) = body(&response);
        assert!(complete && stream.ends_with("data: [DONE]\n\n"), "{step}: {stream}");
        assert_eq!((content(&stream).as_str(), finish(&stream).as_deref()), (words, Some(reason)), "{step}");
        let broken = data(&stream).into_iter().filter(|line| serde_json::from_str::<Value>(line).is_err()).count();
        assert_eq!(broken, if step == "malformed" { 2 } else { 1 }, "{step}: [DONE] is the only other line");
    }
}

#[tokio::test]
async fn a_tool_call_adds_up_to_its_arguments() {
    let (response, _) = first(r#"tool:name=add:arguments="{\"a\": 1}""#).await;
    let stream = body(&response).0;
    let calls: Vec<Value> = data(&stream)
        .into_iter()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter_map(|chunk| chunk["choices"][0]["delta"]["tool_calls"][0].as_object().cloned().map(Value::Object))
        .collect();
    assert_eq!((calls[0]["id"].as_str(), calls[0]["function"]["name"].as_str()), (Some("call_chaos"), Some("add")));
    let arguments: String = calls.iter().filter_map(|call| call["function"]["arguments"].as_str()).collect();
    assert_eq!(arguments, r#"{"a": 1}"#);
}

#[tokio::test]
async fn an_error_inside_the_stream_is_its_last_event() {
    let (response, _) = first(r#"error:1:code=overloaded:message="Busy, \"later\"":status=529"#).await;
    let (stream, complete) = body(&response);
    assert!(complete);
    let error = r#"{"error":{"message":"Busy, \"later\"","type":"overloaded_error","param":null,"code":"overloaded","status":529}}"#;
    assert_eq!(data(&stream).last(), Some(&error));
    assert_eq!(content(&stream), "A partial ");
}

#[tokio::test]
async fn json_and_html_are_whole_documents() {
    let (response, _) = first("json").await;
    let document: Value = serde_json::from_str(response.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(document["choices"][0]["message"]["content"], "Seven.");
    assert!(first(r#"json:body="{}""#).await.0.ends_with("\r\n\r\n{}"));
    let (html, _) = first("html:502").await;
    assert!(html.starts_with("HTTP/1.1 502 Bad Gateway\r\ncontent-type: text/html\r\n"), "{html}");
    assert!(html.contains("<h1>502 Bad Gateway</h1>"), "{html}");
}

#[tokio::test]
async fn raw_bytes_are_the_whole_response_on_any_path() {
    let bytes = "HTTP/1.1 200 OK\r\n\r\nevent: ping\n\n";
    let script = Script::of([Step::raw(bytes, RawEnd::Close), Step::raw(bytes, RawEnd::Reset)]);
    let options = ChaosOptions { any_path: true, ..ChaosOptions::default() };
    let server = ChaosServer::start(script, options).await.unwrap();
    let request = "POST /v1/anything HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(talk(&server, request).await, (bytes.to_owned(), Close::Fin));
    assert_eq!(talk(&server, request).await, (bytes.to_owned(), Close::Rst));
}

#[tokio::test]
async fn a_raw_file_is_read_when_the_script_is_given() {
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("answer.http");
    std::fs::write(&file, "not HTTP").unwrap();
    let script = format!("raw:\"{}\"", file.display().to_string().replace('\\', "\\\\"));
    let server = server(&script).await;
    std::fs::remove_file(&file).unwrap();
    assert_eq!(ask(&server, "x").await, ("not HTTP".to_owned(), Close::Fin));
    let error = server.set_script(Script::parse(&script).unwrap()).await.unwrap_err();
    assert!(error.to_string().contains("answer.http` of a raw step cannot be read"), "{error}");
}

#[tokio::test]
async fn one_connection_carries_several_requests() {
    let server = server("503:body=a, ok:text=b, 500:body=c").await;
    let mut socket = TcpStream::connect(server.addr()).await.unwrap();
    let mut got = Vec::new();
    for end in ["\r\n\r\na", "0\r\n\r\n", "\r\n\r\nc"] {
        got.clear();
        socket.write_all(post(&prompt("x"), "").as_bytes()).await.unwrap();
        while !got.ends_with(end.as_bytes()) {
            let read = timeout(PATIENCE, socket.read_buf(&mut got)).await.unwrap().unwrap();
            assert_ne!(read, 0, "the connection stays open");
        }
    }
    assert_eq!(server.count(), 3);
}

#[tokio::test]
async fn the_script_ends_in_ok_and_can_be_replaced() {
    let server = server("503").await;
    let status = async || ask(&server, "x").await.0[9..12].to_owned();
    assert_eq!([status().await, status().await, status().await], ["503", "200", "200"]);
    server.set_script(Script::parse("500, 502, ...").unwrap()).await.unwrap();
    assert_eq!([status().await, status().await, status().await], ["500", "502", "500"]);
}

#[tokio::test]
async fn every_body_sees_the_whole_script_under_per_body() {
    let options = ChaosOptions { scope: ScriptScope::PerBody, ..ChaosOptions::default() };
    let server = server_with("429, ok", options).await;
    let ask = |text: &'static str| {
        let server = &server;
        async move { ask(server, text).await.0[9..12].to_owned() }
    };
    assert_eq!([ask("a").await, ask("b").await, ask("b").await, ask("a").await], ["429", "429", "200", "200"]);
}

#[tokio::test]
async fn an_outage_lasts_its_time_and_then_the_script_goes_on() {
    let server = server("down:ms=150:503:retry-after=2, 429").await;
    let began = Instant::now();
    let mut during = 0;
    let after = loop {
        let (response, _) = ask(&server, "x").await;
        if !response.starts_with("HTTP/1.1 503 ") {
            break response;
        }
        assert!(response.contains("retry-after: 2\r\n"), "{response}");
        during += 1;
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert!(during > 1 && began.elapsed() >= Duration::from_millis(140), "{during} in {:?}", began.elapsed());
    assert!(after.starts_with("HTTP/1.1 429 "), "{after}");
}

#[tokio::test]
async fn every_request_is_recorded_byte_for_byte() {
    let server = server("503").await;
    let request = post(&prompt("é"), "Connection: close\r\nX-Who: me\r\n");
    talk(&server, &request).await;
    talk(&server, "GET /v1/models HTTP/1.1\r\n\r\n").await;
    timeout(PATIENCE, server.wait_for_requests(2)).await.unwrap();
    let requests = server.requests();
    let (head, body) = request.split_at(request.find("\r\n\r\n").unwrap() + 4);
    assert_eq!((&requests[0].head[..], &requests[0].body[..]), (head.as_bytes(), body.as_bytes()));
    assert_eq!((requests[0].number, requests[0].step.as_deref()), (1, Some("503")));
    assert_eq!((requests[0].header("x-who"), requests[0].method.as_str()), (Some("me"), "POST"));
    assert_eq!((requests[1].target.as_str(), requests[1].step.as_deref()), ("/v1/models", None));
    assert!(requests[0].arrived <= requests[1].arrived);
}

#[tokio::test]
async fn the_oldest_requests_are_forgotten_when_the_record_is_full() {
    let server = server_with("ok", ChaosOptions { keep_bytes: 2_000, ..ChaosOptions::default() }).await;
    for _ in 0..5 {
        ask(&server, "x").await;
    }
    let numbers: Vec<_> = server.requests().iter().map(|request| request.number).collect();
    assert_eq!(server.count(), 5);
    assert!(numbers.len() < 5 && numbers.last() == Some(&5), "{numbers:?}");
}

#[tokio::test]
async fn a_chunked_body_is_read_like_any_other() {
    let server = server("ok").await;
    let head = "POST /chat/completions HTTP/1.1\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let (whole, _) = talk(&server, &format!("{head}3;x=y\r\n{{\"a\r\n5\r\n\": 1}}\r\n0\r\nx: y\r\n\r\n")).await;
    assert!(whole.starts_with("HTTP/1.1 200 "), "{whole}");
    assert_eq!(server.requests()[0].body_text(), r#"{"a": 1}"#);
    for wrong in ["zz\r\n", "2\r\nabc\r\n", "ffffffffffffffff\r\n"] {
        let (refused, end) = talk(&server, &format!("{head}{wrong}")).await;
        assert!(refused.starts_with("HTTP/1.1 4"), "{wrong:?}: {refused}");
        assert_eq!(end, Close::Fin);
    }
}

#[tokio::test]
async fn what_is_no_request_is_refused_with_a_reason_and_uses_up_no_step() {
    let server = server("503").await;
    let long = format!("POST / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(70_000));
    let table = [
        ("nonsense\r\n\r\n", "400"),
        ("POST /v1/chat/completions HTTP/1.1\r\ncontent-length: many\r\n\r\n", "400"),
        ("POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 16777217\r\n\r\n", "413"),
        ("POST /v1/chat/completions HTTP/1.0\r\n\r\n", "505"),
        ("POST /v1/models HTTP/1.1\r\n\r\n", "404"),
        ("GET /v1/chat/completions HTTP/1.1\r\n\r\n", "405"),
        (long.as_str(), "431"),
    ];
    for (request, status) in table {
        let (response, end) = talk(&server, request).await;
        assert_eq!((&response[9..12], end), (status, Close::Fin), "{response}");
        assert!(response.contains("\"message\":\""), "{response}");
    }
    assert_eq!(server.count(), table.len() as u64);
    assert!(server.requests().iter().all(|request| request.step.is_none()));
    assert!(ask(&server, "x").await.0.starts_with("HTTP/1.1 503 "));
}

#[tokio::test]
async fn a_client_that_waits_for_permission_gets_it() {
    let server = server("ok").await;
    let request = post(&prompt("x"), "expect: 100-continue\r\nconnection: close\r\n");
    let (response, _) = talk(&server, &request).await;
    assert!(response.starts_with("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"), "{response}");
}

#[tokio::test]
async fn many_clients_are_served_at_once() {
    let server = server_with("ok:delay=5", ChaosOptions { keep_bytes: 0, ..ChaosOptions::default() }).await;
    let request = post(&prompt("a prime"), "connection: close\r\n");
    let (server, request) = (&server, &request);
    // Two descriptors each, and the limit of a process may be 1,024.
    let answers = futures_util::future::join_all((0..300).map(|_| talk(server, request))).await;
    assert!(answers.iter().all(|(response, _)| content(&body(response).0) == "Seven."));
    assert_eq!((server.count(), server.requests().len()), (300, 0));
}

#[tokio::test]
async fn dropping_the_server_closes_its_connections_and_its_port() {
    let server = server("stall:1").await;
    let addr = server.addr();
    let mut socket = TcpStream::connect(addr).await.unwrap();
    socket.write_all(post(&prompt("x"), "").as_bytes()).await.unwrap();
    server.wait_for_requests(1).await;
    drop(server);
    let mut rest = Vec::new();
    timeout(PATIENCE, socket.read_to_end(&mut rest)).await.expect("the connection is closed").unwrap();
    let refused = timeout(PATIENCE, async { while TcpStream::connect(addr).await.is_ok() {} }).await;
    assert!(refused.is_ok(), "the port is closed");
}

#[tokio::test]
async fn only_loopback_is_listened_on_and_a_taken_port_is_named() {
    let start = |listen: std::net::SocketAddr| {
        ChaosServer::start(Script::of([]), ChaosOptions { listen, ..ChaosOptions::default() })
    };
    let open = start("0.0.0.0:0".parse().unwrap()).await.err().unwrap().to_string();
    assert!(open.contains("0.0.0.0:0 can be reached from others"), "{open}");
    let server = server("ok").await;
    let taken = start(server.addr()).await.err().unwrap().to_string();
    assert!(taken.contains(&format!("cannot listen on {}", server.addr())), "{taken}");
    server.shutdown().await;
}
