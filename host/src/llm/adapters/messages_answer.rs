//! The answer of a stream in the Messages protocol. Its terminator is the event `message_stop`.

use super::{
    answer::{Answer, Blocks, CallPiece, Progress, Trouble, is_cut, read_event},
    sse::Event,
};
use crate::llm::{BlockType, Chunk, FinishReason, Usage};
use serde_json::Value;

/// One answer, as far as it has come.
#[derive(Default)]
pub(super) struct MessagesAnswer {
    blocks: Blocks,
    usage: Option<Usage>,
    stop_reason: Option<String>,
}

impl Answer for MessagesAnswer {
    fn event(&mut self, event: &Event, chunks: &mut Vec<Chunk>) -> Result<Progress, Trouble> {
        if event.data.trim().is_empty() {
            return Ok(Progress::Nothing);
        }
        let value = read_event(event)?;
        let Some(kind) = value.get("type").and_then(Value::as_str) else {
            return Err(Trouble::shape("an event of the stream has no type".to_owned()));
        };
        let before = chunks.len();
        match kind {
            "message_start" => self.count(value.pointer("/message/usage")),
            "content_block_start" => self.begin(&value, chunks)?,
            "content_block_delta" => self.delta(&value, chunks)?,
            "message_delta" => {
                self.count(value.get("usage"));
                if let Some(reason) = value.pointer("/delta/stop_reason").and_then(Value::as_str) {
                    self.stop_reason = Some(reason.to_owned());
                }
            }
            "message_stop" => return Ok(Progress::Done),
            // Blocks end by what follows them.
            "ping" | "content_block_stop" => {}
            // What the protocol may add, or an error of a gateway.
            _ => return Ok(Progress::Unknown),
        }
        Ok(if chunks.len() > before { Progress::Content } else { Progress::Nothing })
    }

    fn usage(&self) -> Option<Usage> {
        self.usage
    }

    fn is_reasoning(&self) -> bool {
        self.blocks.is_reasoning()
    }

    fn finish(self: Box<Self>, chunks: &mut Vec<Chunk>) -> Result<FinishReason, Trouble> {
        let cut = is_cut(self.stop_reason.as_deref())?;
        self.blocks.finish(cut, chunks)
    }

    fn whole(&mut self, body: &Value, chunks: &mut Vec<Chunk>) -> Result<bool, Trouble> {
        let content = body.get("content").and_then(Value::as_array);
        let Some(content) = content.filter(|_| body.get("type").is_some_and(|kind| kind == "message")) else {
            return Ok(false);
        };
        self.count(body.get("usage"));
        self.stop_reason = body.get("stop_reason").and_then(Value::as_str).map(str::to_owned);
        for (index, block) in (0..).zip(content) {
            self.block(block, Some(index), chunks)?;
        }
        Ok(true)
    }
}

impl MessagesAnswer {
    /// Later counts of one answer replace earlier ones.
    fn count(&mut self, usage: Option<&Value>) {
        let Some(usage) = usage.filter(|usage| usage.is_object()) else { return };
        let count = |key: &str| usage.get(key).and_then(Value::as_u64);
        let so_far = self.usage.get_or_insert_default();
        so_far.input_tokens = count("input_tokens").unwrap_or(so_far.input_tokens);
        so_far.output_tokens = count("output_tokens").unwrap_or(so_far.output_tokens);
        so_far.cache_read_tokens = count("cache_read_input_tokens").or(so_far.cache_read_tokens);
        so_far.cache_write_tokens = count("cache_creation_input_tokens").or(so_far.cache_write_tokens);
    }

    fn begin(&mut self, value: &Value, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        let Some(block) = value.get("content_block").filter(|block| block.is_object()) else {
            return Err(Trouble::shape("an event that begins a block has no block".to_owned()));
        };
        self.block(block, value.get("index").and_then(Value::as_u64), chunks)
    }

    /// A block, with whatever of its content it has already.
    fn block(&mut self, block: &Value, index: Option<u64>, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        self.blocks.end_text(chunks);
        let text = |key: &str| block.get(key).and_then(Value::as_str).unwrap_or_default();
        match text("type") {
            "text" => self.blocks.text(BlockType::Text, text("text"), chunks),
            "thinking" => self.blocks.text(BlockType::Reasoning, text("thinking"), chunks),
            "tool_use" => {
                let whole = block.get("input").filter(|input| input.as_object().is_some_and(|input| !input.is_empty()));
                let piece = CallPiece {
                    wire_index: index,
                    id: Some(text("id").to_owned()),
                    name: Some(text("name").to_owned()),
                    arguments: whole.map(Value::to_string).unwrap_or_default(),
                };
                self.blocks.tool_call(piece, chunks)
            }
            // Hidden reasoning, and blocks of tools that run at the provider.
            _ => Ok(()),
        }
    }

    fn delta(&mut self, value: &Value, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        let Some(delta) = value.get("delta").filter(|delta| delta.is_object()) else {
            return Err(Trouble::shape("an event that continues a block has no delta".to_owned()));
        };
        let text = |key: &str| match delta.get(key) {
            Some(Value::String(text)) => Ok(text.as_str()),
            _ => Err(Trouble::shape(format!("a delta of the stream has no text under {key:?}"))),
        };
        match delta.get("type").and_then(Value::as_str) {
            Some("text_delta") => self.blocks.text(BlockType::Text, text("text")?, chunks),
            Some("thinking_delta") => self.blocks.text(BlockType::Reasoning, text("thinking")?, chunks),
            Some("input_json_delta") => {
                let piece = CallPiece {
                    wire_index: value.get("index").and_then(Value::as_u64),
                    arguments: text("partial_json")?.to_owned(),
                    ..CallPiece::default()
                };
                self.blocks.tool_call(piece, chunks)
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::answer::tests::*, *};
    use crate::llm::{Block, classify::StreamFault};
    use serde_json::json;

    fn play(events: &[Value]) -> Played {
        play_events(Box::new(MessagesAnswer::default()), events)
    }

    fn begins(index: u64, block: Value) -> Value {
        json!({"type": "content_block_start", "index": index, "content_block": block})
    }

    fn delta(index: u64, delta: Value) -> Value {
        json!({"type": "content_block_delta", "index": index, "delta": delta})
    }

    fn stops(reason: &str) -> Value {
        json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}})
    }

    #[test]
    fn reasoning_text_and_tool_calls_are_carried_through() {
        let played = play(&[
            json!({"type": "message_start", "message": {"id": "msg_1", "usage": {"input_tokens": 9, "output_tokens": 1, "cache_read_input_tokens": 4}}}),
            begins(0, json!({"type": "thinking", "thinking": ""})),
            delta(0, json!({"type": "thinking_delta", "thinking": "hm"})),
            delta(0, json!({"type": "signature_delta", "signature": "xyz"})),
            json!({"type": "content_block_stop", "index": 0}),
            json!({"type": "ping"}),
            begins(1, json!({"type": "text", "text": ""})),
            delta(1, json!({"type": "text_delta", "text": "Se"})),
            delta(1, json!({"type": "text_delta", "text": "ven"})),
            begins(2, json!({"type": "tool_use", "id": "t", "name": "f", "input": {}})),
            delta(2, json!({"type": "input_json_delta", "partial_json": ""})),
            delta(2, json!({"type": "input_json_delta", "partial_json": "{\"a\":"})),
            delta(2, json!({"type": "input_json_delta", "partial_json": "1}"})),
            stops("tool_use"),
            json!({"type": "message_stop"}),
        ]);
        assert_eq!(played.outcome, Ok(FinishReason::ToolCalls));
        assert_eq!(
            played.blocks(),
            [
                Block::Reasoning { text: "hm".to_owned() },
                Block::Text { text: "Seven".to_owned() },
                Block::ToolCall { id: "t".to_owned(), name: "f".to_owned(), arguments: "{\"a\":1}".to_owned() },
            ]
        );
        let usage = Usage { input_tokens: 9, output_tokens: 5, cache_read_tokens: Some(4), ..Usage::default() };
        assert_eq!(played.usage, Some(usage));
    }

    #[test]
    fn reasons_have_their_ends() {
        let text = [begins(0, json!({"type": "text", "text": "x"}))];
        let with = |reason: &str| play(&[text.as_slice(), &[stops(reason)]].concat()).outcome;
        assert_eq!(with("end_turn"), Ok(FinishReason::Stop));
        assert_eq!(with("max_tokens"), Ok(FinishReason::MaxTokens));
        assert_eq!(with("refusal"), Err(Trouble::Finish("refusal".to_owned())));
        let thought = [begins(0, json!({"type": "thinking", "thinking": "hm"})), stops("end_turn")];
        assert_eq!(play(&thought).outcome, Err(Trouble::Empty));
    }

    #[test]
    fn an_answer_in_one_piece_is_taken() {
        let whole = |reason: &str, content: Value| {
            let body = json!({"type": "message", "role": "assistant", "content": content, "stop_reason": reason,
                "usage": {"input_tokens": 9, "output_tokens": 5}});
            play_whole(Box::new(MessagesAnswer::default()), &body).unwrap()
        };
        let played = whole(
            "tool_use",
            json!([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "a"}, {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}, {"type": "tool_use", "id": "u", "name": "f", "input": {}}]),
        );
        assert_eq!(played.outcome, Ok(FinishReason::ToolCalls));
        let tool = |id: &str, arguments: &str| Block::ToolCall {
            id: id.to_owned(),
            name: "f".to_owned(),
            arguments: arguments.to_owned(),
        };
        let text = |text: &str| Block::Text { text: text.to_owned() };
        let thought = Block::Reasoning { text: "hm".to_owned() };
        assert_eq!(played.blocks(), [thought, text("a"), text("b"), tool("t", "{\"a\":1}"), tool("u", "")]);
        assert_eq!(played.usage, Some(Usage { input_tokens: 9, output_tokens: 5, ..Usage::default() }));
        assert_eq!(whole("max_tokens", json!([{"type": "text", "text": "a"}])).outcome, Ok(FinishReason::MaxTokens));
        assert_eq!(whole("end_turn", json!([])).outcome, Err(Trouble::Empty));
        assert_eq!(whole("refusal", json!([])).outcome, Err(Trouble::Finish("refusal".to_owned())));
        assert!(play_whole(Box::new(MessagesAnswer::default()), &json!({"type": "message"})).is_none());
    }

    #[test]
    fn what_the_protocol_does_not_have_may_be_an_error() {
        let event = Event { name: String::new(), data: json!({"type": "new", "message": "m"}).to_string() };
        assert_eq!(MessagesAnswer::default().event(&event, &mut vec![]), Ok(Progress::Unknown));
    }

    #[test]
    fn errors_and_odd_shapes_are_trouble() {
        let error = json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}});
        assert!(matches!(play(&[error]).outcome, Err(Trouble::Reported)));
        for odd in [
            json!(7),
            json!({"index": 0}),
            json!({"type": "content_block_start"}),
            json!({"type": "content_block_delta", "delta": 7}),
            delta(0, json!({"type": "text_delta"})),
        ] {
            let outcome = play(std::slice::from_ref(&odd)).outcome;
            assert!(matches!(outcome, Err(Trouble::Broken(StreamFault::Shape, _))), "{odd}");
        }
    }
}
