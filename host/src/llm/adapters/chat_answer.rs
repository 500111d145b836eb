//! The answer of a chat-completions stream. Its terminator is `[DONE]`.

use super::{
    answer::{Answer, Blocks, CallPiece, Progress, Trouble, is_cut, not_json},
    provider_error::says_something,
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
    /// Where MiniMax puts its errors, beside what it answers.
    base_resp: Option<Value>,
}

#[derive(Deserialize)]
struct WireChoice {
    #[serde(default)]
    index: u64,
    delta: Option<WireDelta>,
    /// What an answer in one piece has instead of a delta.
    message: Option<Value>,
    finish_reason: Option<String>,
    error: Option<Value>,
}

#[derive(Deserialize)]
struct WireDelta {
    content: Option<WireContent>,
    refusal: Option<String>,
    reasoning_content: Option<String>,
    reasoning: Option<String>,
    reasoning_details: Option<Value>,
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
        match serde_json::from_str::<WireChunk>(data) {
            Ok(chunk) if chunk.reports_error() => Err(Trouble::Reported),
            // Nothing that a chunk has: an error without its key, or something that does not concern us.
            Ok(chunk) if chunk.choices.as_ref().is_none_or(Vec::is_empty) && !chunk.has_usage() => {
                Ok(Progress::Unknown)
            }
            Ok(chunk) => self.chunk(chunk, chunks),
            Err(error) if error.is_data() => {
                Err(Trouble::shape(format!("an event of the stream is not a chat completion chunk: {error}")))
            }
            Err(error) => Err(not_json(&error)),
        }
    }

    fn usage(&self) -> Option<Usage> {
        self.usage
    }

    fn is_reasoning(&self) -> bool {
        self.blocks.is_reasoning()
    }

    fn finish(self: Box<Self>, chunks: &mut Vec<Chunk>) -> Result<FinishReason, Trouble> {
        let cut = is_cut(self.finish_reason.as_deref())?;
        self.blocks.finish(cut, chunks)
    }

    fn whole(&mut self, body: &Value, chunks: &mut Vec<Chunk>) -> Result<bool, Trouble> {
        let choices = body.get("choices").and_then(Value::as_array);
        let is_whole = |choice: &Value| choice.get("message").is_some_and(Value::is_object);
        if !choices.is_some_and(|choices| choices.iter().all(is_whole)) {
            return Ok(false);
        }
        let chunk = WireChunk::deserialize(body)
            .map_err(|error| Trouble::shape(format!("the answer is not a chat completion: {error}")))?;
        self.chunk(chunk, chunks).map(|_| true)
    }
}

impl WireChunk {
    fn reports_error(&self) -> bool {
        let mut choices = self.choices.iter().flatten();
        self.error.as_ref().is_some_and(says_something)
            || choices.any(|choice| choice.error.as_ref().is_some_and(says_something))
            || self.base_resp.as_ref().and_then(|base| base.get("status_code")).is_some_and(says_something)
    }

    fn has_usage(&self) -> bool {
        self.usage.as_ref().is_some_and(Value::is_object)
    }
}

impl ChatAnswer {
    fn chunk(&mut self, chunk: WireChunk, chunks: &mut Vec<Chunk>) -> Result<Progress, Trouble> {
        if let Some(usage) = chunk.usage.as_ref().filter(|usage| usage.is_object()) {
            self.usage = Some(read_usage(usage));
        }
        let before = chunks.len();
        for choice in chunk.choices.into_iter().flatten().filter(|choice| choice.index == 0) {
            // Some servers repeat the whole message at the end of its deltas.
            let message = choice.message.filter(|message| message.is_object() && self.blocks.is_empty());
            if let Some(delta) = choice.delta {
                self.delta(delta, chunks)?;
            } else if let Some(message) = message {
                let message = WireDelta::deserialize(message)
                    .map_err(|error| Trouble::shape(format!("the message of the answer has an odd shape: {error}")))?;
                self.delta(message, chunks)?;
            }
            if let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) {
                self.finish_reason = Some(reason);
            }
        }
        Ok(if chunks.len() > before { Progress::Content } else { Progress::Nothing })
    }

    fn delta(&mut self, delta: WireDelta, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        // Gateways that know several names send the same text under each.
        let given = [delta.reasoning_content, delta.reasoning].into_iter().flatten().find(|text| !text.is_empty());
        match given {
            Some(text) => self.blocks.text(BlockType::Reasoning, &text, chunks)?,
            None => {
                // Encrypted reasoning has neither.
                let text =
                    |detail: &'_ Value| detail.get("text").or(detail.get("summary"))?.as_str().map(str::to_owned);
                let details = delta.reasoning_details.as_ref().and_then(Value::as_array);
                for text in details.into_iter().flatten().filter_map(text) {
                    self.blocks.text(BlockType::Reasoning, &text, chunks)?;
                }
            }
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
    use super::{super::answer::tests::play_whole, *};
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
            delta(
                json!({"reasoning_content": "h", "reasoning": "h", "reasoning_details": [{"type": "reasoning.text", "text": "h"}]}),
            ),
            delta(json!({"reasoning_details": [{"type": "reasoning.summary", "summary": "m"}, {"data": "x"}]})),
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
        assert!(
            matches!(outcome, Err(Trouble::Broken(StreamFault::ToolCall, text)) if text.contains("no JSON object"))
        );
        let list = call(json!(0), json!("a"), json!("f"), "[1]");
        assert!(matches!(play(&[list, ends("tool_calls")]).1, Err(Trouble::Broken(StreamFault::ToolCall, _))));
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
        for error in [
            json!({"error": {"message": "m", "code": 504}}),
            json!({"choices": [{"delta": {"content": "x"}}], "error": "busy"}),
            json!({"choices": [{"delta": {}, "finish_reason": "error", "error": {"code": 429}}]}),
            json!({"choices": [{"delta": {}}], "base_resp": {"status_code": 1002}}),
        ] {
            assert_eq!(play(std::slice::from_ref(&error)).1, Err(Trouble::Reported), "{error}");
        }
        let others = [
            json!({"type": "message_start"}),
            json!({"choices": [], "error": null}),
            json!({"choices": [{"delta": {"content": "x"}}], "error": ""}),
            json!({"choices": [{"delta": {"content": "y"}}], "error": {}, "base_resp": {"status_code": 0}}),
        ];
        let (chunks, outcome) = play(&others);
        assert_eq!((blocks(&chunks), outcome), (vec![Block::Text { text: "xy".to_owned() }], Ok(FinishReason::Stop)));
    }

    #[test]
    fn what_may_be_an_error_without_its_key_is_no_part_of_the_answer() {
        for value in [json!({"code": "Throttling", "message": "m"}), json!({"detail": "m"}), json!({"choices": null})] {
            let event = Event { name: String::new(), data: value.to_string() };
            assert_eq!(ChatAnswer::default().event(&event, &mut vec![]), Ok(Progress::Unknown), "{value}");
        }
    }

    #[test]
    fn an_answer_in_one_piece_is_taken() {
        let whole = |body: Value| play_whole(Box::new(ChatAnswer::default()), &body);
        let body = json!({"object": "chat.completion", "usage": {"prompt_tokens": 9, "completion_tokens": 3}, "choices": [{
            "index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": "Hel", "reasoning": "hm",
            "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}}]});
        let played = whole(body).unwrap();
        assert_eq!(played.outcome, Ok(FinishReason::ToolCalls));
        let text = |text: &str| text.to_owned();
        assert_eq!(
            played.blocks(),
            [Block::Reasoning { text: text("hm") }, Block::Text { text: text("Hel") }, tool("a", "f", "{}")]
        );
        assert_eq!(played.usage, Some(Usage { input_tokens: 9, output_tokens: 3, ..Usage::default() }));
        let ends = |message: Value, reason: &str| {
            whole(json!({"choices": [{"message": message, "finish_reason": reason}]})).unwrap().outcome
        };
        assert_eq!(ends(json!({"content": null, "refusal": "No."}), "stop"), Ok(FinishReason::Stop));
        assert_eq!(ends(json!({"content": ""}), "stop"), Err(Trouble::Empty));
        assert_eq!(ends(json!({"content": "x"}), "length"), Ok(FinishReason::MaxTokens));
        assert!(matches!(ends(json!({"content": 7}), "stop"), Err(Trouble::Broken(StreamFault::Shape, _))));
        for other in [json!({"choices": [{"delta": {"content": "x"}}]}), json!({"id": "x"}), json!([])] {
            assert!(whole(other).is_none());
        }
    }

    #[test]
    fn a_whole_message_in_a_stream_counts_where_no_delta_came() {
        let message = json!({"choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]});
        let text = vec![Block::Text { text: "Hello".to_owned() }];
        assert_eq!(blocks(&play(std::slice::from_ref(&message)).0), text);
        assert_eq!(blocks(&play(&[delta(json!({"content": "Hello"})), message]).0), text);
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
