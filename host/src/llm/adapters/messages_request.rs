//! The body of a request in the Messages protocol.
//!
//! Pure. Equal requests give equal bytes. Called through [`super::Dialect`].

use crate::llm::{Block, Request, Role};
use serde::Serialize;
use serde_json::{Value, json};
use std::num::NonZeroU32;

/// The protocol demands a bound on the answer, also when none is configured. Every current model allows this much.
const MAX_TOKENS: u32 = 8192;

/// Field order is the order on the wire.
#[derive(Serialize)]
struct WireRequest<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<&'a str>,
    messages: Vec<WireMessage>,
    stream: bool,
}

#[derive(Serialize)]
struct WireMessage {
    role: &'static str,
    content: Vec<Value>,
}

/// Writes the request as JSON. `max_tokens` bounds the answer; without it, [`MAX_TOKENS`] does. A message with nothing to send in it is left out, for the protocol refuses it.
///
/// # Errors
/// None that is known.
pub(super) fn wire_body(request: &Request, max_tokens: Option<NonZeroU32>) -> Result<Vec<u8>, serde_json::Error> {
    let messages = request.messages.iter().map(|message| WireMessage {
        role: match message.role {
            Role::User => "user",
            Role::Assistant => "assistant",
        },
        content: message.content.iter().filter_map(part).collect(),
    });
    serde_json::to_vec(&WireRequest {
        model: &request.model,
        max_tokens: max_tokens.map_or(MAX_TOKENS, NonZeroU32::get),
        system: request.system.as_deref(),
        messages: messages.filter(|message| !message.content.is_empty()).collect(),
        stream: true,
    })
}

fn part(block: &Block) -> Option<Value> {
    match block {
        Block::Text { text } if text.is_empty() => None,
        Block::Text { text } => Some(json!({"type": "text", "text": text})),
        // Reasoning is only taken back with the provider's signature, which is not kept.
        Block::Reasoning { .. } => None,
        Block::ToolCall { id, name, arguments } => {
            // The input is an object here; what the model wrote as something else cannot be said.
            let input =
                serde_json::from_str::<Value>(arguments).ok().filter(Value::is_object).unwrap_or_else(|| json!({}));
            Some(json!({"type": "tool_use", "id": id, "name": name, "input": input}))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::Message;

    #[test]
    fn a_conversation_goes_out_as_parts_without_reasoning_and_empty_messages() {
        let text = |text: &str| Block::Text { text: text.to_owned() };
        let call = |arguments: &str| Block::ToolCall {
            id: "a".to_owned(),
            name: "f".to_owned(),
            arguments: arguments.to_owned(),
        };
        let reasoning = Block::Reasoning { text: "hm".to_owned() };
        let messages = vec![
            Message { role: Role::User, content: vec![text("a"), text("")] },
            Message {
                role: Role::Assistant,
                content: vec![reasoning.clone(), text("x"), call("{\"b\":1}"), call("7")],
            },
            Message { role: Role::Assistant, content: vec![reasoning] },
        ];
        let request = Request { model: "m".to_owned(), system: Some("s".to_owned()), messages };
        let body = wire_body(&request, None).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            body,
            json!({
                "model": "m", "max_tokens": MAX_TOKENS, "system": "s", "stream": true,
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a"}]},
                    {"role": "assistant", "content": [
                        {"type": "text", "text": "x"},
                        {"type": "tool_use", "id": "a", "name": "f", "input": {"b": 1}},
                        {"type": "tool_use", "id": "a", "name": "f", "input": {}},
                    ]},
                ],
            })
        );
    }
}
