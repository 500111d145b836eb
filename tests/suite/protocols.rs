//! The scripted provider and the adapters, protocol by protocol: one script comes to the same in each.

use futures_util::StreamExt;
use retake::{
    chaos::{ChaosOptions, ChaosServer, Script},
    env::Env,
    llm::{
        Adapter, Block, Chunk, FinishReason, Message, Request, Role,
        adapters::{Dialect, HttpProvider, ProviderConfig},
    },
};
use retake_tests::START_MS;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

fn request() -> Arc<Request> {
    let user = Message { role: Role::User, content: vec![Block::Text { text: "Name one prime.".into() }] };
    Arc::new(Request { model: "chaos-1".into(), system: Some("You are terse.".into()), messages: vec![user] })
}

/// How a call ended, in a word, and its blocks.
async fn ask(adapter: &HttpProvider) -> (String, Vec<Block>) {
    let chunks: Vec<Chunk> = adapter.stream(request(), CancellationToken::new()).collect().await;
    let end = match chunks.last() {
        Some(Chunk::Finish { reason: FinishReason::Stop }) => "stop".to_owned(),
        Some(Chunk::Finish { reason: FinishReason::ToolCalls }) => "tool calls".to_owned(),
        Some(Chunk::Finish { reason: FinishReason::MaxTokens }) => "max tokens".to_owned(),
        Some(Chunk::Finish { reason: FinishReason::Error { failure } }) => {
            let row = failure.evidence.as_ref().and_then(|evidence| evidence.row.clone()).unwrap_or_default();
            format!("{} {row}", failure.code)
        }
        other => panic!("a stream ends with its finish, not with {other:?}"),
    };
    let ended = |chunk| if let Chunk::BlockEnd { block, .. } = chunk { Some(block) } else { None };
    (end, chunks.into_iter().filter_map(ended).collect())
}

#[tokio::test]
async fn one_script_comes_to_the_same_in_every_protocol() {
    let script = "ok, reasoning, tool:name=look:arguments=\"{\\\"a\\\": 1}\", length, empty, filter, \
                  error:1:code=overloaded, malformed, cut:3, eof, 429, ok";
    let expected = [
        "stop",
        "stop",
        "tool calls",
        "max tokens",
        "EMPTY_RESPONSE finish/empty",
        "INVALID_REQUEST finish/filter",
        "SERVER code/overloaded",
        "PROTOCOL stream/not-json",
        "TRANSPORT transport/cut",
        "TRANSPORT stream/no-terminator",
        "RATE_LIMIT code/throttled",
        "stop",
    ];
    for dialect in Dialect::ALL {
        let server = ChaosServer::start(Script::parse(script).expect("the script is right"), ChaosOptions::default())
            .await
            .expect("loopback has a free port");
        let config = ProviderConfig { dialect, base_url: server.base_url(), ..ProviderConfig::default() };
        let adapter = HttpProvider::new(config, Env::fixed(START_MS, 7).clock).expect("the address is fine");
        let mut ends = Vec::new();
        for number in 0..expected.len() {
            let (end, blocks) = ask(&adapter).await;
            match number {
                0 | 11 => assert_eq!(blocks, [Block::Text { text: "Seven.".into() }], "{dialect:?}"),
                1 => assert!(matches!(&blocks[..], [Block::Reasoning { .. }, Block::Text { .. }]), "{dialect:?}"),
                2 => assert!(
                    matches!(&blocks[..], [.., Block::ToolCall { name, arguments, .. }] if name == "look" && arguments == "{\"a\": 1}"),
                    "{dialect:?}: {blocks:?}"
                ),
                _ => {}
            }
            ends.push(end);
        }
        assert_eq!(ends, expected, "{dialect:?}");
    }
}
