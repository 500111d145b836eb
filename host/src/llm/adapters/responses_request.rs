//! The body of a request in the Responses protocol.
//!
//! Pure. Equal requests give equal bytes. Called through [`super::Dialect`].

use crate::llm::{Block, Request, Role};
use serde::Serialize;
use serde_json::{Value, json};
use std::num::NonZeroU32;

/// Field order is the order on the wire.
#[derive(Serialize)]
struct WireRequest<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<&'a str>,
    input: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_output_tokens: Option<NonZeroU32>,
    stream: bool,
    /// Every request carries its whole conversation, so that the provider need not keep any.
    store: bool,
}

/// Writes the request as JSON. `max_tokens` bounds the answer; without it, the provider's own bound holds.
///
/// # Errors
/// None that is known.
pub(super) fn wire_body(request: &Request, max_tokens: Option<NonZeroU32>) -> Result<Vec<u8>, serde_json::Error> {
    let items = request.messages.iter().flat_map(|message| {
        let (role, kind) = match message.role {
            Role::User => ("user", "input_text"),
            Role::Assistant => ("assistant", "output_text"),
        };
        message.content.iter().filter_map(move |block| match block {
            Block::Text { text } => Some(json!({"role": role, "content": [{"type": kind, "text": text}]})),
            // Reasoning is only taken back as an item of the provider's own, which is not kept.
            Block::Reasoning { .. } => None,
            Block::ToolCall { id, name, arguments } => {
                Some(json!({"type": "function_call", "call_id": id, "name": name, "arguments": arguments}))
            }
        })
    });
    serde_json::to_vec(&WireRequest {
        model: &request.model,
        instructions: request.system.as_deref(),
        input: items.collect(),
        max_output_tokens: max_tokens,
        stream: true,
        store: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::Message;

    #[test]
    fn a_conversation_goes_out_as_items_without_reasoning() {
        let text = |text: &str| Block::Text { text: text.to_owned() };
        let call = Block::ToolCall { id: "a".to_owned(), name: "f".to_owned(), arguments: "{}".to_owned() };
        let messages = vec![
            Message { role: Role::User, content: vec![text("q")] },
            Message {
                role: Role::Assistant,
                content: vec![Block::Reasoning { text: "hm".to_owned() }, text("x"), call],
            },
        ];
        let request = Request { model: "m".to_owned(), system: Some("s".to_owned()), messages };
        let body = wire_body(&request, None).unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(&body).unwrap(),
            json!({
                "model": "m", "instructions": "s", "stream": true, "store": false,
                "input": [
                    {"role": "user", "content": [{"type": "input_text", "text": "q"}]},
                    {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
                    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
                ],
            })
        );
    }
}
