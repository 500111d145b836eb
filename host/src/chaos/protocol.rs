//! The protocols that the chaos provider speaks, told apart by the path of a request, and the events of a stream in
//! the two that are not chat completions. Pure. Called by [`super::response`] and [`super::server`].

use super::{
    answer::{self, Asked},
    response::error_json,
    script::{Ending, Stream, Words},
};
use serde_json::{Value, json};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Protocol {
    #[default]
    ChatCompletions,
    Messages,
    Responses,
}

impl Protocol {
    /// The protocol of a request's path, its query left out; `None` when nothing stands there.
    pub fn of(path: &str) -> Option<Self> {
        [
            ("/chat/completions", Protocol::ChatCompletions),
            ("/messages", Protocol::Messages),
            ("/responses", Protocol::Responses),
        ]
        .into_iter()
        .find_map(|(end, protocol)| path.ends_with(end).then_some(protocol))
    }
}

/// The words of a stream, in the pieces in which they are sent.
pub(super) fn words(stream: &Stream, asked: &Asked) -> Vec<String> {
    match &stream.words {
        Words::Answer => answer::pieces(&asked.answer()),
        Words::Text(text) => answer::pieces(text),
        Words::Count(count) => answer::filler(*count),
        Words::Partial(count) => answer::partial(*count),
    }
}

/// One piece of reasoning.
pub(super) fn consideration(number: usize) -> String {
    format!("Consideration {number}. ")
}

/// How a stream ends that reaches its end.
fn finish(stream: &Stream) -> Option<&str> {
    match &stream.ending {
        Ending::Finish(reason) => Some(reason.as_str()),
        Ending::ToolCall { .. } => Some("tool_calls"),
        Ending::Malformed => Some("stop"),
        Ending::Error(_) | Ending::Eof | Ending::Cut | Ending::Reset | Ending::Stall { .. } => None,
    }
}

fn event(data: &Value) -> String {
    // Both protocols name their events, and repeat the name in the data.
    let name = data["type"].as_str().unwrap_or("error");
    format!("event: {name}\ndata: {data}\n\n")
}

fn error(stream: &Stream) -> Option<String> {
    let Ending::Error(error) = &stream.ending else { return None };
    let mut data = error_json(error, error.status.unwrap_or(500));
    data["type"] = json!("error");
    Some(event(&data))
}

/// The events of a stream in the Messages protocol.
pub(super) fn messages_events(stream: &Stream, asked: &Asked) -> Vec<String> {
    let words = words(stream, asked);
    let usage = json!({"input_tokens": asked.words, "output_tokens": 0});
    let message = json!({"id": "msg_chaos", "type": "message", "role": "assistant", "model": asked.model, "content": [], "usage": usage});
    let mut events = vec![event(&json!({"type": "message_start", "message": message}))];
    let mut index = 0;
    let mut block = |begin: Value, deltas: Vec<Value>| {
        if deltas.is_empty() {
            return;
        }
        events.push(event(&json!({"type": "content_block_start", "index": index, "content_block": begin})));
        let delta = |delta| event(&json!({"type": "content_block_delta", "index": index, "delta": delta}));
        events.extend(deltas.into_iter().map(delta));
        // A stream that breaks off does so inside its last block, and the adapters take a missing end for no fault.
        index += 1;
    };
    let thoughts = (1..=stream.reasoning).map(consideration);
    block(
        json!({"type": "thinking", "thinking": ""}),
        thoughts.map(|text| json!({"type": "thinking_delta", "thinking": text})).collect(),
    );
    block(
        json!({"type": "text", "text": ""}),
        words.iter().map(|word| json!({"type": "text_delta", "text": word})).collect(),
    );
    if let Ending::ToolCall { name, arguments } = &stream.ending {
        let parts = answer::pieces(arguments);
        block(
            json!({"type": "tool_use", "id": "call_chaos", "name": name, "input": {}}),
            parts.iter().map(|part| json!({"type": "input_json_delta", "partial_json": part})).collect(),
        );
    }
    if stream.ending == Ending::Malformed {
        events.push("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\n\n".to_owned());
    }
    events.extend(error(stream));
    if let Some(reason) = finish(stream) {
        let reason = match reason {
            "stop" => "end_turn",
            "length" => "max_tokens",
            "tool_calls" => "tool_use",
            other => other,
        };
        let usage = json!({"output_tokens": words.len() + stream.reasoning});
        let delta = json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": usage});
        events.extend([event(&delta), event(&json!({"type": "message_stop"}))]);
    }
    events
}

/// The events of a stream in the Responses protocol.
pub(super) fn responses_events(stream: &Stream, asked: &Asked) -> Vec<String> {
    let words = words(stream, asked);
    let response = |status: &str| json!({"id": "resp_chaos", "object": "response", "model": asked.model, "status": status, "output": []});
    let mut events = vec![event(&json!({"type": "response.created", "response": response("in_progress")}))];
    let delta =
        |kind: &str, index: u64, delta: &str| event(&json!({"type": kind, "output_index": index, "delta": delta}));
    let thoughts = (1..=stream.reasoning).map(consideration);
    events.extend(thoughts.map(|text| delta("response.reasoning_text.delta", 0, &text)));
    events.extend(words.iter().map(|word| delta("response.output_text.delta", 1, word)));
    if let Ending::ToolCall { name, arguments } = &stream.ending {
        let item = json!({"type": "function_call", "call_id": "call_chaos", "name": name, "arguments": ""});
        events.push(event(&json!({"type": "response.output_item.added", "output_index": 2, "item": item})));
        let parts = answer::pieces(arguments);
        events.extend(parts.iter().map(|part| delta("response.function_call_arguments.delta", 2, part)));
    }
    if stream.ending == Ending::Malformed {
        events.push("event: response.output_text.delta\ndata: {\"type\":\n\n".to_owned());
    }
    events.extend(error(stream));
    if let Some(reason) = finish(stream) {
        let reason = match reason {
            "stop" | "tool_calls" => None,
            "length" => Some("max_output_tokens"),
            other => Some(other),
        };
        let status = if reason.is_some() { "incomplete" } else { "completed" };
        let mut response = response(status);
        if let Some(reason) = reason {
            response["incomplete_details"] = json!({"reason": reason});
        }
        response["usage"] = json!({"input_tokens": asked.words, "output_tokens": words.len() + stream.reasoning});
        events.push(event(&json!({"type": format!("response.{status}"), "response": response})));
    }
    events
}
