//! Whatever a server sends, every adapter ends with one finish whose code is one of the list, and never panics.

use super::tests::{adapter_of, failure_or_none};
use crate::llm::{FailureCode, adapters::Dialect};
use proptest::{prelude::*, test_runner::TestRunner};
use std::{cell::RefCell, collections::VecDeque, sync::Arc};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    runtime::Runtime,
};

/// Pieces of what real providers send, so that chance gets beyond the first byte.
fn body() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "\\PC{0,20}",
        Just("data: ".to_owned()),
        Just("\n\n".to_owned()),
        Just("data: [DONE]\n\n".to_owned()),
        Just("event: error\n".to_owned()),
        Just("data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x\"}}]}\n\n".to_owned()),
        Just("data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n".to_owned()),
        Just("data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n".to_owned()),
        Just("data: {\"type\":\"message_stop\"}\n\n".to_owned()),
        Just("data: {\"type\":\"response.output_text.delta\",\"output_index\":0,\"delta\":\"x\"}\n\n".to_owned()),
        Just("data: {\"type\":\"response.completed\",\"response\":{}}\n\n".to_owned()),
        Just("{\"error\":{\"code\":\"insufficient_quota\",\"message\":\"m\"}}".to_owned()),
        Just("{\"error\":{\"message\":\"rate limit\",\"details\":[{\"retryDelay\":\"9e9s\"}],\"retry_after\":1e308}}".to_owned()),
        Just("{\"error\":{}}".to_owned()),
        Just("{\"message\":\"Rate limit exceeded\",\"errors\":[[{\"http_code\":429}]]}\n".to_owned()),
        Just("{\"choices\":[{\"message\":{\"content\":\"x\"},\"finish_reason\":\"eos_token\"}]}".to_owned()),
        Just("{\"type\":\"message\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]".to_owned()),
        Just("data: 502 Bad Gateway\n".to_owned()),
        Just("<title>Too many".to_owned()),
        Just("{\"status\":\"failed\"}".to_owned()),
        Just("<html>".to_owned()),
    ];
    prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat())
}

fn header() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        Just("retry-after"),
        Just("retry-after-ms"),
        Just("date"),
        Just("age"),
        Just("x-should-retry"),
        Just("content-type"),
        Just("x-request-id"),
        Just("anthropic-ratelimit-input-tokens-limit"),
        Just("content-encoding"),
        Just("x-amzn-errortype"),
    ];
    let value = prop_oneof![
        "[ -~]{0,30}",
        "[0-9.]{1,24}",
        Just("Mon, 01 Jun 2026 10:00:30 GMT".to_owned()),
        Just("true".to_owned()),
        Just("false".to_owned()),
        Just("text/html".to_owned()),
    ];
    (name, value).prop_map(|(name, value)| format!("{name}: {value}\r\n"))
}

/// What the server sends next, one for each connection.
type Queue = Arc<parking_lot::Mutex<VecDeque<Vec<u8>>>>;

async fn serve(listener: TcpListener, queue: Queue) {
    while let Ok((mut socket, _)) = listener.accept().await {
        let mut request = Vec::new();
        let mut piece = [0; 4096];
        // The request of the test is small, and ends with the end of its JSON.
        while !request.ends_with(b"}") {
            match socket.read(&mut piece).await {
                Ok(0) | Err(_) => break,
                Ok(read) => request.extend_from_slice(&piece[..read]),
            }
        }
        let response = queue.lock().pop_front().unwrap_or_default();
        socket.write_all(&response).await.unwrap_or_default();
        socket.shutdown().await.unwrap_or_default();
    }
}

#[test]
fn whatever_a_server_sends_every_adapter_gives_a_code_of_the_list_and_a_hint_within_bounds() {
    let runtime = Runtime::new().unwrap();
    let queue = Queue::default();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let base = format!("http://{}/v1", listener.local_addr().unwrap());
    runtime.spawn(serve(listener, queue.clone()));
    let adapters = Dialect::ALL.map(|dialect| adapter_of(dialect, &base));
    let seen = RefCell::new(std::collections::BTreeSet::new());
    let strategy = (200_u16..=599, prop::collection::vec(header(), 0..4), body());
    let mut runner =
        TestRunner::new(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() });
    runner
        .run(&strategy, |(status, headers, body)| {
            // Half of the answers are successes, which have more ways to be none.
            let status = if status % 2 == 0 { 200 } else { status };
            let response = format!("HTTP/1.1 {status} X\r\n{}connection: close\r\n\r\n{body}", headers.concat());
            for adapter in &adapters {
                queue.lock().push_back(response.clone().into_bytes());
                let Some(failure) = runtime.block_on(failure_or_none(adapter)) else { continue };
                prop_assert!(FailureCode::SELECTABLE.contains(&failure.code), "{failure:?}");
                prop_assert!(!failure.message.trim().is_empty());
                prop_assert!(failure.evidence.as_ref().is_some_and(|evidence| evidence.row.is_some()), "{failure:?}");
                if let Some(ms) = failure.provider_retry_after_ms {
                    prop_assert!(ms.is_finite() && ms >= 1.0);
                }
                seen.borrow_mut().insert(failure.code);
            }
            Ok(())
        })
        .unwrap();
    assert!(seen.borrow().len() >= 4, "chance found too little: {seen:?}");
}
