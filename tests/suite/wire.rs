//! The whole loop over the wire: real sockets and their failures, a journal on disk, the official component, real time.

use retake::{
    agent::TurnOutcome,
    chaos::{ChaosOptions, ChaosServer, PARTIAL_MARK, RawEnd, RecordedRequest, Script, Step},
    journal::{Body, event::TurnEndReason},
    llm::{Chunk, FailureCode, FinishReason, RetryPolicy, adapters::Limits, failure::MAX_KEPT_BODY},
};
use retake_tests::{policy, wire::*, within};
use serde_json::json;
use std::{
    net::TcpListener,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

/// How late a cancelled turn may end.
const CANCEL_LIMIT: Duration = Duration::from_millis(50);

/// Two retries after short waits; hints of up to two seconds are followed.
fn quick() -> RetryPolicy {
    with_retries(2)
}

fn with_retries(max: u64) -> RetryPolicy {
    policy(json!({
        "mode": "normal", "maxRetries": max,
        "backoff": { "initialDelayMs": 20, "maxDelayMs": 2_000, "jitterRatio": 0 }
    }))
}

/// A wait that no test outlasts.
fn long_wait() -> RetryPolicy {
    policy(json!({
        "mode": "normal", "backoff": { "initialDelayMs": 600_000, "maxDelayMs": 600_000, "jitterRatio": 0 }
    }))
}

/// The chunks of the first turn, as the journal has them.
fn chunks_of_turn(world: &WireWorld, turn: u64) -> Vec<Chunk> {
    let chunk = |body| match body {
        Body::AssistantChunk(chunk) if chunk.turn == turn => Some(chunk.chunk),
        _ => None,
    };
    world.events().into_iter().filter_map(|event| chunk(event.body)).collect()
}

fn assert_equal_bytes(requests: &[RecordedRequest]) {
    for request in &requests[1..] {
        assert_eq!(request.head, requests[0].head);
        assert_eq!(request.body, requests[0].body);
    }
}

#[tokio::test]
async fn a_refused_connection_is_retried_and_finds_the_server_that_came_up_during_the_wait() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let policy = policy(json!({ "mode": "normal", "backoff": { "initialDelayMs": 500, "jitterRatio": 0 } }));
    let mut world = WireWorld::new(&format!("http://{address}/v1"), policy).await;
    let seen = world.seen();
    let up = async {
        seen.wait_for(|body| matches!(body, Body::Retry(_))).await;
        let options = ChaosOptions { listen: address, ..ChaosOptions::default() };
        ChaosServer::start(Script::parse("ok").unwrap(), options).await.expect("the port is still free")
    };
    let (answer, server) = tokio::join!(world.answer("name one prime"), up);
    assert_eq!(answer, "Seven.");
    assert_eq!(server.count(), 1, "the refused attempt reached nobody");
    let retries = world.retries();
    assert_eq!(retries.len(), 1);
    assert_eq!((retries[0].failure.code, retries[0].failure.status), (FailureCode::Transport, None));
}

#[tokio::test]
async fn a_connection_dropped_before_any_output_is_retried_with_the_same_bytes() {
    for script in ["reset, ok", "cut:0, ok"] {
        let server = chaos(script).await;
        let mut world = WireWorld::new(&server.base_url(), quick()).await;
        assert_eq!(world.answer("name one prime").await, "Seven.", "{script}");
        assert!(matches!(chunks_of_turn(&world, 1)[..], [Chunk::Finish { reason: FinishReason::Error { .. } }]));
        assert_eq!(world.retries()[0].failure.code, FailureCode::Transport, "{script}");
        let requests = server.requests();
        assert_eq!(requests.len(), 2, "{script}");
        assert_equal_bytes(&requests);
    }
}

#[tokio::test]
async fn a_connection_dropped_after_partial_output_is_retried_and_the_text_is_nowhere_but_in_the_journals_chunks() {
    for script in ["cut:3, ok", "reset:3, ok"] {
        let server = chaos(script).await;
        let mut world = WireWorld::new(&server.base_url(), quick()).await;
        let answer = world.answer("say hello").await;
        assert!(answer.contains("say hello") && !answer.contains(PARTIAL_MARK), "{script}: {answer}");
        assert!(format!("{:?}", chunks_of_turn(&world, 1)).contains(PARTIAL_MARK), "{script}");
        let surface = world.session.journal.with_state(|state| format!("{:?}", state.surface));
        assert!(!surface.contains(PARTIAL_MARK), "{script}: {surface}");
        assert_eq!(world.count("assistant/message"), 1, "{script}");
        let requests = server.requests();
        assert_eq!(requests.len(), 2, "{script}");
        assert_equal_bytes(&requests);
    }
}

#[tokio::test]
async fn an_empty_answer_is_retried_and_leaves_no_empty_message() {
    let server = chaos("empty, ok").await;
    let mut world = WireWorld::new(&server.base_url(), quick()).await;
    assert_eq!(world.answer("name one prime").await, "Seven.");
    assert_eq!(world.retries()[0].failure.code, FailureCode::EmptyResponse);
    assert_eq!(world.count("assistant/message"), 1);
}

#[tokio::test]
async fn a_stream_that_ends_cleanly_without_its_terminator_is_a_transport_failure_and_retried() {
    let server = chaos("eof:3, ok").await;
    let mut world = WireWorld::new(&server.base_url(), quick()).await;
    let answer = world.answer("name one prime").await;
    assert_eq!(answer, "Seven.");
    assert_eq!(world.retries()[0].failure.code, FailureCode::Transport);
    assert_equal_bytes(&server.requests());
}

#[tokio::test]
async fn silence_is_ended_by_the_limit_that_it_passed_and_retried() {
    let brief = Duration::from_millis(150);
    let cases = [
        ("hang, ok", Limits { first_byte: brief, ..Limits::default() }, "first-byte"),
        ("stall:0, ok", Limits { idle: brief, ..Limits::default() }, "idle"),
        ("stall:2, ok", Limits { idle: brief, ..Limits::default() }, "idle"),
        ("stall:2:ping=20, ok", Limits { content: brief, ..Limits::default() }, "content"),
    ];
    for (script, limits, phase) in cases {
        let server = chaos(script).await;
        let mut world = WireWorld::with_limits(&server.base_url(), quick(), limits).await;
        assert_eq!(world.answer("name one prime").await, "Seven.", "{script}");
        let retries = world.retries();
        assert_eq!((retries.len(), retries[0].failure.code), (1, FailureCode::Timeout), "{script}");
        let evidence = retries[0].failure.evidence.clone().expect("it says which limit passed");
        assert_eq!(evidence.phase.as_deref(), Some(phase), "{script}");
        assert_equal_bytes(&server.requests());
    }
}

#[tokio::test]
async fn three_resets_use_up_two_retries_and_end_the_turn_with_the_last_failure() {
    let server = chaos("reset*3, ok").await;
    let mut world = WireWorld::new(&server.base_url(), quick()).await;
    let failure = world.failure("name one prime").await;
    assert_eq!(failure.code, FailureCode::Transport);
    assert_eq!(server.count(), 3);
    let numbers: Vec<_> = world.retries().iter().map(|retry| (retry.turn, retry.retry, retry.delay_ms)).collect();
    assert_eq!(numbers, [(1, 1, 20.0), (2, 2, 40.0)]);
    assert_eq!(world.count("llm/retry-started"), 2);
    assert_eq!(world.last_end(), TurnEndReason::Error { error: Box::new(failure) });
    assert_equal_bytes(&server.requests());
}

#[tokio::test]
async fn a_retry_after_within_the_cap_is_the_wait_and_one_over_it_ends_the_turn() {
    let server = chaos("429:retry-after=1, ok").await;
    let mut world = WireWorld::new(&server.base_url(), quick()).await;
    assert_eq!(world.answer("name one prime").await, "Seven.");
    let retry = &world.retries()[0];
    assert_eq!((retry.delay_ms, retry.failure.code), (1_000.0, FailureCode::RateLimit));
    assert_eq!(retry.failure.provider_retry_after_ms, Some(1_000.0));
    let requests = server.requests();
    let between = requests[1].arrived - requests[0].arrived;
    assert!(between >= Duration::from_secs(1), "the second request came after {between:?}");

    let server = chaos("429:retry-after=60, ok").await;
    let mut world = WireWorld::new(&server.base_url(), quick()).await;
    let failure = world.failure("name one prime").await;
    assert_eq!(failure.provider_retry_after_ms, Some(60_000.0));
    assert_eq!((server.count(), world.retries().len()), (1, 0));
}

#[tokio::test]
async fn the_turns_of_a_session_build_on_answers_alone_and_each_prompt_has_its_own_budget() {
    let server = chaos("503, ok:text=one, cut:2, 503, ok:text=two, ok:text=three").await;
    let mut world = WireWorld::new(&server.base_url(), quick()).await;
    assert_eq!(world.answer("first").await.trim(), "one");
    assert_eq!(world.answer("second").await.trim(), "two");
    let mut world = world.reopen();
    assert_eq!(world.answer("third").await.trim(), "three");
    let numbers: Vec<_> = world.retries().iter().map(|retry| (retry.turn, retry.retry)).collect();
    assert_eq!(numbers, [(1, 1), (3, 1), (4, 2)]);
    let requests = server.requests();
    assert_eq!(requests.len(), 6);
    assert_equal_bytes(&requests[..2]);
    assert_equal_bytes(&requests[2..5]);
    let last: serde_json::Value = serde_json::from_slice(&requests[5].body).unwrap();
    let said: Vec<_> = last["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| (message["role"].as_str().unwrap(), message["content"].as_str().unwrap().trim()))
        .collect();
    let expected =
        [("user", "first"), ("assistant", "one"), ("user", "second"), ("assistant", "two"), ("user", "third")];
    assert_eq!(said, expected);
    let seqs: Vec<_> = world.events().iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (0..seqs.len() as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn garbage_gets_a_code_that_a_policy_can_select_and_only_the_beginning_of_it_is_kept() {
    // Bytes that look like nothing, with the key in them, as a careless proxy might echo it.
    let mut garbage: Vec<u8> = (0..1_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    garbage.splice(100..100, API_KEY.bytes());
    let head = |status: &str| format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", garbage.len()).into_bytes();
    let cases = [
        ("not HTTP", garbage.clone()),
        ("200", [head("200 OK"), garbage.clone()].concat()),
        ("200 of JSON", [head("200 OK"), b"{\"".to_vec(), garbage[2..].to_vec()].concat()),
        ("400", [head("400 Bad Request"), garbage.clone()].concat()),
        ("500", [head("500 Oops"), garbage.clone()].concat()),
    ];
    for (name, bytes) in cases {
        let script = Script::of([Step::raw(bytes, RawEnd::Close)]).looping();
        let server = ChaosServer::start(script, ChaosOptions::default()).await.unwrap();
        let mut world = WireWorld::new(&server.base_url(), with_retries(0)).await;
        let failure = world.failure("hi").await;
        assert!(FailureCode::SELECTABLE.contains(&failure.code), "{name}: {failure:?}");
        if name == "500" {
            assert_eq!((failure.code, failure.status), (FailureCode::Server, Some(500)));
        }
        let body = failure.evidence.as_ref().and_then(|evidence| evidence.body.as_deref()).unwrap_or_default();
        assert!(body.len() <= MAX_KEPT_BODY, "{name}: {} bytes were kept", body.len());
        if ["200 of JSON", "400", "500"].contains(&name) {
            assert!(!body.is_empty(), "{name}: nothing of what the provider said is kept");
        }
        assert!(!format!("{failure:?}").contains(API_KEY), "{name}");
        assert!(!world.journal_text().contains(API_KEY), "{name}");
    }
}

#[tokio::test]
async fn an_api_key_that_the_provider_repeats_is_sent_and_never_written_down() {
    let script = format!("401:message=\"Incorrect API key provided: {API_KEY}\", 503:request-id={API_KEY}, ok");
    let server = chaos(&script).await;
    let always = policy(json!({ "mode": "always", "backoff": { "initialDelayMs": 20, "jitterRatio": 0 } }));
    let mut world = WireWorld::new(&server.base_url(), always).await;
    assert_eq!(world.answer("name one prime").await, "Seven.");
    let requests = server.requests();
    assert_eq!(requests.len(), 3);
    assert!(requests.iter().all(|request| request.header("authorization") == Some(&format!("Bearer {API_KEY}"))));
    assert_eq!(world.retries()[0].failure.code, FailureCode::Auth);
    assert!(!world.journal_text().contains(API_KEY));
}

/// Runs a turn against `script`, cancels it when `ready` is, and returns the world when the turn has been closed in
/// time.
async fn cancelled_in_time(script: &str, policy: &RetryPolicy, ready: impl AsyncFn(&ChaosServer, &Seen)) -> WireWorld {
    within(CANCEL_LIMIT, async || {
        let server = chaos(script).await;
        let mut world = WireWorld::new(&server.base_url(), policy.clone()).await;
        let (seen, cancel) = (world.seen(), world.cancel.clone());
        let stop = async {
            ready(&server, &seen).await;
            cancel.cancel();
            Instant::now()
        };
        let (outcome, cancelled) = tokio::join!(world.prompt("hi"), stop);
        let took = cancelled.elapsed();
        assert_eq!(outcome, TurnOutcome::Cancelled);
        assert_eq!(world.last_end(), TurnEndReason::Aborted);
        assert_eq!(server.count(), 1, "nothing was asked again");
        assert_eq!(world.count("llm/retry-started"), 0);
        (took, world)
    })
    .await
}

#[tokio::test]
async fn a_cancel_before_the_head_of_the_answer_closes_the_turn_at_once() {
    let world = cancelled_in_time("hang", &quick(), async |server, _| server.wait_for_requests(1).await).await;
    assert_eq!(world.count("assistant/chunk"), 0);
    assert_eq!(world.count("assistant/message"), 0);
}

#[tokio::test]
async fn a_cancel_in_the_middle_of_an_answer_closes_the_turn_at_once_and_keeps_what_was_visible() {
    let world = cancelled_in_time("stall:2", &quick(), async |_, seen| {
        let is_text =
            |body: &Body| matches!(body, Body::AssistantChunk(chunk) if matches!(chunk.chunk, Chunk::TextDelta { .. }));
        seen.wait_for(is_text).await;
    })
    .await;
    let messages: Vec<_> = world
        .events()
        .into_iter()
        .filter_map(|event| if let Body::AssistantMessage(message) = event.body { Some(message) } else { None })
        .collect();
    assert_eq!(messages.len(), 1);
    assert!(messages[0].interrupted);
}

#[tokio::test]
async fn a_cancel_in_the_wait_closes_the_turn_at_once_and_starts_no_retry() {
    let world = cancelled_in_time("503, ok", &long_wait(), async |_, seen| {
        seen.wait_for(|body| matches!(body, Body::Retry(_))).await;
    })
    .await;
    assert_eq!(world.retries().len(), 1);
}

#[tokio::test]
async fn a_turn_that_was_cancelled_before_it_began_sends_nothing_and_the_session_goes_on() {
    let server = chaos("ok").await;
    let mut world = WireWorld::new(&server.base_url(), quick()).await;
    world.cancel.cancel();
    assert_eq!(world.prompt("hi").await, TurnOutcome::Cancelled);
    assert_eq!((server.count(), world.last_end()), (0, TurnEndReason::Aborted));
    world.cancel = CancellationToken::new();
    assert_eq!(world.answer("name one prime").await, "Seven.");
}
