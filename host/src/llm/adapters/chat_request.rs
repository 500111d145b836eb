//! The body of a chat-completions request.
//!
//! Pure. Equal requests give equal bytes, so that a retry repeats a request exactly. Called by `openai_chat`.

use crate::llm::{Block, Request, Role};
use serde::Serialize;
use std::num::NonZeroU32;

/// Field order is the order on the wire, here and below.
#[derive(Serialize)]
struct WireRequest<'a> {
    model: &'a str,
    messages: Vec<WireMessage<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<NonZeroU32>,
    stream: bool,
    stream_options: WireStreamOptions,
}

#[derive(Serialize)]
struct WireStreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'static str,
    content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireToolCall<'a>>,
}

#[derive(Serialize)]
struct WireToolCall<'a> {
    id: &'a str,
    r#type: &'static str,
    function: WireFunction<'a>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    name: &'a str,
    arguments: &'a str,
}

/// Writes the request as JSON. `max_tokens` bounds the answer; without it, the provider's own bound holds.
///
/// # Errors
/// None that is known: every part is a string, a list, a number or a flag.
pub(super) fn wire_body(request: &Request, max_tokens: Option<NonZeroU32>) -> Result<Vec<u8>, serde_json::Error> {
    let system = request.system.as_ref();
    let system = system.map(|text| WireMessage { role: "system", content: text.clone(), tool_calls: vec![] });
    let messages = request.messages.iter().map(|message| {
        let mut texts = Vec::new();
        let mut tool_calls = Vec::new();
        for block in &message.content {
            match block {
                Block::Text { text } => texts.push(text.as_str()),
                // Providers refuse to get their own reasoning back.
                Block::Reasoning { .. } => {}
                Block::ToolCall { id, name, arguments } => {
                    tool_calls.push(WireToolCall {
                        id,
                        r#type: "function",
                        function: WireFunction { name, arguments },
                    });
                }
            }
        }
        let (role, separator) = match message.role {
            Role::User => ("user", "\n"),
            // Pieces of one answer, which only tool calls or reasoning stood between.
            Role::Assistant => ("assistant", ""),
        };
        WireMessage { role, content: texts.join(separator), tool_calls }
    });
    serde_json::to_vec(&WireRequest {
        model: &request.model,
        messages: system.into_iter().chain(messages).collect(),
        max_tokens,
        stream: true,
        stream_options: WireStreamOptions { include_usage: true },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::Message;

    #[test]
    fn an_assistant_message_goes_out_with_its_calls_and_without_its_reasoning() {
        let text = |text: &str| Block::Text { text: text.to_owned() };
        let call = Block::ToolCall { id: "a".to_owned(), name: "f".to_owned(), arguments: "{}".to_owned() };
        let assistant = vec![Block::Reasoning { text: "hm".to_owned() }, text("x"), call, text("y")];
        let messages = vec![
            Message { role: Role::User, content: vec![text("a"), text("b")] },
            Message { role: Role::Assistant, content: assistant },
        ];
        let body = wire_body(&Request { model: "m".to_owned(), system: None, messages }, None).unwrap();
        let value: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            value["messages"],
            serde_json::json!([
                {"role": "user", "content": "a\nb"},
                {"role": "assistant", "content": "xy", "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            ])
        );
    }
}
