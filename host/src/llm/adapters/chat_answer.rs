//! The answer of a chat-completions stream. Its terminator is `[DONE]`.

use super::{
    answer::{Answer, Blocks, CallPiece, Progress, Trouble, read_event},
    sse::Event,
};
use crate::llm::{BlockType, Chunk, FinishReason, Usage};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct WireChunk {
    choices: Option<Vec<WireChoice>>,
    usage: Option<Value>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct WireChoice {
    #[serde(default)]
    index: u64,
    delta: Option<WireDelta>,
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct WireDelta {
    content: Option<WireContent>,
    refusal: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    tool_calls: Option<Vec<WireToolCall>>,
    function_call: Option<WireFunction>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum WireContent {
    Text(String),
    Parts(Vec<WirePart>),
}

#[derive(Deserialize)]
struct WirePart {
    text: Option<String>,
}

#[derive(Deserialize)]
struct WireToolCall {
    index: Option<u64>,
    id: Option<String>,
    function: Option<WireFunction>,
}

#[derive(Deserialize)]
struct WireFunction {
    name: Option<String>,
    arguments: Option<String>,
}

/// One answer, as far as it has come.
#[derive(Default)]
pub(super) struct ChatAnswer {
    blocks: Blocks,
    usage: Option<Usage>,
    finish_reason: Option<String>,
}

impl Answer for ChatAnswer {
    fn event(&mut self, event: &Event, chunks: &mut Vec<Chunk>) -> Result<Progress, Trouble> {
        let data = event.data.trim();
        if data == "[DONE]" {
            return Ok(Progress::Done);
        }
        if data.is_empty() {
            return Ok(Progress::Nothing);
        }
        let parsed = serde_json::from_str::<WireChunk>(data);
        let regular = matches!(&parsed, Ok(WireChunk { choices: Some(_), error: None | Some(Value::Null), .. }));
        if !regular || event.name == "error" {
            // An error, or a chunk of a shape that an error may have; otherwise something that does not concern us.
            read_event(event)?;
        }
        let chunk = parsed.map_err(|error| {
            Trouble::shape(format!("an event of the stream is not a chat completion chunk: {error}"))
        })?;
        if let Some(usage) = chunk.usage.as_ref().filter(|usage| usage.is_object()) {
            self.usage = Some(read_usage(usage));
        }
        let before = chunks.len();
        for choice in chunk.choices.into_iter().flatten().filter(|choice| choice.index == 0) {
            if let Some(delta) = choice.delta {
                self.delta(delta, chunks)?;
            }
            if let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) {
                self.finish_reason = Some(reason);
            }
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
        let reason = self.finish_reason.as_deref().map(str::to_ascii_lowercase);
        let cut = match reason.as_deref() {
            None
            | Some("stop" | "end_turn" | "eos" | "stop_sequence" | "tool_calls" | "tool_use" | "function_call") => {
                false
            }
            Some("length" | "max_tokens" | "max_output_tokens") => true,
            Some(_) => return Err(Trouble::Finish(self.finish_reason.unwrap_or_default())),
        };
        self.blocks.finish(cut, chunks)
    }
}

impl ChatAnswer {
    fn delta(&mut self, delta: WireDelta, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        // Gateways that know both names send the same text under each.
        if let Some(text) = delta.reasoning_content.or(delta.reasoning) {
            self.blocks.text(BlockType::Reasoning, &text, chunks)?;
        }
        match delta.content {
            Some(WireContent::Text(text)) => self.blocks.text(BlockType::Text, &text, chunks)?,
            Some(WireContent::Parts(parts)) => {
                for text in parts.into_iter().filter_map(|part| part.text) {
                    self.blocks.text(BlockType::Text, &text, chunks)?;
                }
            }
            None => {}
        }
        if let Some(text) = delta.refusal {
            self.blocks.text(BlockType::Text, &text, chunks)?;
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.tool_call(call, chunks)?;
        }
        if let Some(function) = delta.function_call {
            self.tool_call(WireToolCall { index: Some(0), id: None, function: Some(function) }, chunks)?;
        }
        Ok(())
    }

    fn tool_call(&mut self, call: WireToolCall, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        let function = call.function.unwrap_or(WireFunction { name: None, arguments: None });
        let piece = CallPiece {
            wire_index: call.index,
            id: call.id,
            name: function.name,
            arguments: function.arguments.unwrap_or_default(),
        };
        self.blocks.tool_call(piece, chunks)
    }
}

/// The wire's counts contain one another; ours are disjoint.
fn read_usage(usage: &Value) -> Usage {
    let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
    let cached = count("/prompt_tokens_details/cached_tokens").or_else(|| count("/prompt_cache_hit_tokens"));
    let reasoning = count("/completion_tokens_details/reasoning_tokens");
    Usage {
        input_tokens: count("/prompt_tokens").unwrap_or(0).saturating_sub(cached.unwrap_or(0)),
        output_tokens: count("/completion_tokens").unwrap_or(0).saturating_sub(reasoning.unwrap_or(0)),
        cache_read_tokens: cached,
        cache_write_tokens: None,
        reasoning_tokens: reasoning,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::{Block, classify::StreamFault};
    use proptest::prelude::*;
    use serde_json::json;

    type Outcome = (Vec<Chunk>, Result<FinishReason, Trouble>);

    /// Plays events and then the terminator.
    fn play(events: &[Value]) -> Outcome {
        let mut answer = Box::new(ChatAnswer::default());
        let mut chunks = Vec::new();
        for event in events {
            let event = Event { name: String::new(), data: event.to_string() };
            if let Err(trouble) = answer.event(&event, &mut chunks) {
                return (chunks, Err(trouble));
            }
        }
        let outcome = answer.finish(&mut chunks);
        (chunks, outcome)
    }

    fn delta(delta: Value) -> Value {
        json!({"choices": [{"index": 0, "delta": delta}]})
    }

    fn ends(reason: &str) -> Value {
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    }

    fn blocks(chunks: &[Chunk]) -> Vec<Block> {
        chunks
            .iter()
            .filter_map(|chunk| if let Chunk::BlockEnd { block, .. } = chunk { Some(block.clone()) } else { None })
            .collect()
    }

    #[test]
    fn text_is_one_block_of_deltas() {
        let (chunks, outcome) = play(&[
            delta(json!({"role": "assistant", "content": ""})),
            delta(json!({"content": "Se"})),
            delta(json!({"content": "ven"})),
            ends("stop"),
        ]);
        assert_eq!(outcome, Ok(FinishReason::Stop));
        let text = |text: &str| Chunk::TextDelta { index: 0, text: text.to_owned() };
        assert_eq!(
            chunks,
            [
                Chunk::BlockStart { index: 0, block_type: BlockType::Text },
                text("Se"),
                text("ven"),
                Chunk::BlockEnd { index: 0, block: Block::Text { text: "Seven".to_owned() } },
            ]
        );
    }

    #[test]
    fn reasoning_ends_when_text_begins_and_is_content_of_its_own() {
        let (chunks, outcome) = play(&[
            delta(json!({"reasoning_content": "hm", "reasoning": "hm"})),
            delta(json!({"content": "7"})),
            ends("stop"),
        ]);
        assert_eq!(outcome, Ok(FinishReason::Stop));
        assert_eq!(blocks(&chunks), [Block::Reasoning { text: "hm".to_owned() }, Block::Text { text: "7".to_owned() }]);
    }

    fn call(index: Value, id: Value, name: Value, arguments: &str) -> Value {
        delta(json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]}))
    }

    fn tool(id: &str, name: &str, arguments: &str) -> Block {
        Block::ToolCall { id: id.to_owned(), name: name.to_owned(), arguments: arguments.to_owned() }
    }

    #[test]
    fn interleaved_tool_calls_are_kept_apart() {
        let (chunks, outcome) = play(&[
            call(json!(0), json!("a"), json!("f"), ""),
            call(json!(1), json!("b"), json!("g"), "{\"y\""),
            call(json!(0), json!(null), json!("f"), "{}"),
            call(json!(1), json!(null), json!(null), ":1}"),
            ends("tool_calls"),
        ]);
        assert_eq!(outcome, Ok(FinishReason::ToolCalls));
        assert_eq!(blocks(&chunks), [tool("a", "f", "{}"), tool("b", "g", "{\"y\":1}")]);
        assert!(chunks.contains(&Chunk::ToolCallDelta {
            index: 0,
            id: "a".to_owned(),
            name: None,
            arguments_delta: "{}".to_owned()
        }));
    }

    #[test]
    fn tool_calls_without_numbers_or_ids_are_still_told_apart() {
        let (chunks, _) = play(&[
            call(json!(0), json!("a"), json!("f"), "{}"),
            call(json!(0), json!("b"), json!("g"), "{}"),
            ends("stop"),
        ]);
        assert_eq!(blocks(&chunks), [tool("a", "f", "{}"), tool("b", "g", "{}")]);
        let (chunks, outcome) = play(&[call(json!(null), json!(null), json!("f"), "{}"), ends("stop")]);
        assert_eq!((blocks(&chunks), outcome), (vec![tool("call_0", "f", "{}")], Ok(FinishReason::ToolCalls)));
    }

    #[test]
    fn a_broken_tool_call_never_becomes_one_unless_the_length_limit_cut_it() {
        let broken = call(json!(0), json!("a"), json!("f"), "{\"path\":\"a.t");
        let (chunks, outcome) = play(&[broken.clone(), ends("tool_calls")]);
        assert!(matches!(outcome, Err(Trouble::Broken(StreamFault::ToolCall, text)) if text.contains("not JSON")));
        assert_eq!(blocks(&chunks), []);
        assert_eq!(play(&[broken, ends("length")]).1, Ok(FinishReason::MaxTokens));
        let nameless = call(json!(0), json!("a"), json!(null), "{}");
        assert!(matches!(play(&[nameless, ends("tool_calls")]).1, Err(Trouble::Broken(StreamFault::ToolCall, _))));
    }

    #[test]
    fn an_answer_with_nothing_in_it_is_empty_unless_the_length_limit_cut_it() {
        assert_eq!(play(&[]).1, Err(Trouble::Empty));
        assert_eq!(play(&[delta(json!({"content": ""})), ends("stop")]).1, Err(Trouble::Empty));
        assert_eq!(play(&[ends("tool_calls")]).1, Err(Trouble::Empty));
        assert_eq!(play(&[delta(json!({"content": " \n"})), ends("stop")]).1, Err(Trouble::Empty));
        assert_eq!(play(&[delta(json!({"reasoning": "hm"})), ends("stop")]).1, Err(Trouble::Empty));
        assert_eq!(play(&[ends("length")]).1, Ok(FinishReason::MaxTokens));
    }

    #[test]
    fn an_unusual_finish_reason_is_trouble_even_after_text() {
        let (chunks, outcome) = play(&[delta(json!({"content": "x"})), ends("content_filter")]);
        assert_eq!(outcome, Err(Trouble::Finish("content_filter".to_owned())));
        assert_eq!(blocks(&chunks), []);
    }

    #[test]
    fn an_error_inside_the_stream_is_told_from_chunks_that_do_not_concern_us() {
        let error = json!({"error": {"message": "m", "code": 504}});
        assert!(matches!(play(&[error]).1, Err(Trouble::Provider { error, .. }) if error.status == Some(504)));
        let others =
            [json!({"type": "message_start"}), json!({"choices": [], "error": null}), delta(json!({"content": "x"}))];
        assert_eq!(play(&others).1, Ok(FinishReason::Stop));
    }

    #[test]
    fn what_is_no_chunk_is_malformed() {
        for value in [json!("text"), json!(7), json!({"choices": 7}), delta(json!({"content": 7}))] {
            assert!(
                matches!(play(std::slice::from_ref(&value)).1, Err(Trouble::Broken(StreamFault::Shape, _))),
                "{value}"
            );
        }
        let event = Event { name: String::new(), data: "{\"choices\"".to_owned() };
        assert!(matches!(
            ChatAnswer::default().event(&event, &mut vec![]),
            Err(Trouble::Broken(StreamFault::NotJson, _))
        ));
    }

    #[test]
    fn the_parts_of_a_usage_are_disjoint() {
        let usage = json!({"prompt_tokens": 100, "completion_tokens": 50, "prompt_tokens_details": {"cached_tokens": 30}, "completion_tokens_details": {"reasoning_tokens": 20}});
        let expected = Usage {
            input_tokens: 70,
            output_tokens: 30,
            cache_read_tokens: Some(30),
            cache_write_tokens: None,
            reasoning_tokens: Some(20),
        };
        assert_eq!(read_usage(&usage), expected);
        let plain = Usage { input_tokens: 9, output_tokens: 3, ..Usage::default() };
        assert_eq!(read_usage(&json!({"prompt_tokens": 9, "completion_tokens": 3})), plain);
        assert_eq!(read_usage(&json!({"prompt_tokens": 1, "prompt_cache_hit_tokens": 5})).input_tokens, 0);
    }

    #[test]
    fn other_choices_than_the_first_are_passed_over() {
        let (chunks, outcome) = play(&[
            json!({"choices": [{"index": 1, "delta": {"content": "no"}}, {"index": 0, "delta": {"content": "yes"}}]}),
        ]);
        assert_eq!((blocks(&chunks), outcome), (vec![Block::Text { text: "yes".to_owned() }], Ok(FinishReason::Stop)));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(data in proptest::collection::vec(
            "\\PC{0,40}|\\{\"choices\":\\[\\{\"delta\":\\{\"(content|reasoning|tool_calls|function_call|refusal)\":(\"x\"|null|7|\\[\\{\\}\\]|\\{\\}|\\[\\{\"index\":[0-3],\"function\":\\{\"name\":\"f\"\\}\\}\\])\\}\\}\\]\\}", 0..20)) {
            let mut answer = Box::new(ChatAnswer::default());
            let mut chunks = Vec::new();
            let fine = data.into_iter().all(|data| answer.event(&Event { name: String::new(), data }, &mut chunks).is_ok());
            if fine && answer.finish(&mut chunks).is_ok() {
                let count = |pick: fn(&Chunk) -> bool| chunks.iter().filter(|chunk| pick(chunk)).count();
                prop_assert_eq!(count(|c| matches!(c, Chunk::BlockStart { .. })), count(|c| matches!(c, Chunk::BlockEnd { .. })));
            }
        }
    }
}
