//! The answer of a chat-completions stream: events in, chunks out.
//!
//! Pure: it holds what one answer has said so far, and knows neither sockets nor time. `openai_chat` feeds it. What it
//! cannot accept it returns as a [`Trouble`], for `openai_chat` to name.

use super::{provider_error::ProviderError, sse::Event};
use crate::llm::{Block, BlockType, Chunk, FinishReason, Usage};
use serde::Deserialize;
use serde_json::Value;

/// More blocks than this are no answer of a model.
const MAX_BLOCKS: usize = 1024;

/// What an event brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing that the model said.
    Nothing,
    Content,
    /// The terminator: the answer is over.
    Done,
}

/// Why an answer is none.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Trouble {
    /// The provider reports an error inside the stream; `body` is what it sent.
    Provider { error: Box<ProviderError>, body: String },
    /// The stream does not follow the protocol.
    Malformed(String),
    /// The answer ended for a reason that is no normal end.
    Finish(String),
    /// The answer ended normally, with nothing in it.
    Empty,
}

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

/// A block that has been started. Text and reasoning end when the other begins; tool calls may be interleaved.
struct Open {
    block: Block,
    ended: bool,
    /// The provider's own number of a tool call.
    wire_index: Option<u64>,
    /// Whether the provider gave the tool call an id.
    has_id: bool,
}

/// One answer, as far as it has come.
#[derive(Default)]
pub(super) struct ChatAnswer {
    blocks: Vec<Open>,
    usage: Option<Usage>,
    finish_reason: Option<String>,
}

impl ChatAnswer {
    /// Takes one event and appends the chunks that it makes.
    pub(super) fn event(&mut self, event: &Event, chunks: &mut Vec<Chunk>) -> Result<Progress, Trouble> {
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
            match serde_json::from_str::<Value>(data) {
                Ok(value) => {
                    if let Some(error) = ProviderError::inside(&value, &event.name) {
                        return Err(Trouble::Provider { error: Box::new(error), body: data.to_owned() });
                    }
                }
                Err(error) => return Err(Trouble::Malformed(format!("an event of the stream is not JSON: {error}"))),
            }
        }
        let chunk = parsed.map_err(|error| {
            Trouble::Malformed(format!("an event of the stream is not a chat completion chunk: {error}"))
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

    /// The token counts that the provider has given so far.
    pub(super) fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Ends the answer after its terminator: appends the ends of its blocks and says how it ended.
    pub(super) fn finish(self, chunks: &mut Vec<Chunk>) -> Result<FinishReason, Trouble> {
        let reason = self.finish_reason.as_deref().map(str::to_ascii_lowercase);
        let cut = match reason.as_deref() {
            None
            | Some("stop" | "end_turn" | "eos" | "stop_sequence" | "tool_calls" | "tool_use" | "function_call") => {
                false
            }
            Some("length" | "max_tokens" | "max_output_tokens") => true,
            Some(_) => return Err(Trouble::Finish(self.finish_reason.unwrap_or_default())),
        };
        if self.blocks.is_empty() && !cut {
            return Err(Trouble::Empty);
        }
        let mut has_tool_calls = false;
        for open in &self.blocks {
            let Block::ToolCall { name, arguments, .. } = &open.block else { continue };
            has_tool_calls = true;
            // A call that was cut by the length limit is incomplete in an honest way; any other is broken.
            if !cut && name.is_empty() {
                return Err(Trouble::Malformed("a tool call of the answer has no name".to_owned()));
            }
            if !cut && !arguments.is_empty() && serde_json::from_str::<serde::de::IgnoredAny>(arguments).is_err() {
                return Err(Trouble::Malformed(format!("the arguments of the tool call {name:?} are not JSON")));
            }
        }
        for (index, open) in (0..).zip(self.blocks) {
            if !open.ended {
                chunks.push(Chunk::BlockEnd { index, block: open.block });
            }
        }
        Ok(if cut {
            FinishReason::MaxTokens
        } else if has_tool_calls {
            // Some providers say `stop` after tool calls too.
            FinishReason::ToolCalls
        } else {
            FinishReason::Stop
        })
    }

    fn delta(&mut self, delta: WireDelta, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        // Gateways that know both names send the same text under each.
        if let Some(text) = delta.reasoning_content.or(delta.reasoning) {
            self.text(BlockType::Reasoning, &text, chunks)?;
        }
        match delta.content {
            Some(WireContent::Text(text)) => self.text(BlockType::Text, &text, chunks)?,
            Some(WireContent::Parts(parts)) => {
                for text in parts.into_iter().filter_map(|part| part.text) {
                    self.text(BlockType::Text, &text, chunks)?;
                }
            }
            None => {}
        }
        if let Some(text) = delta.refusal {
            self.text(BlockType::Text, &text, chunks)?;
        }
        for call in delta.tool_calls.into_iter().flatten() {
            self.tool_call(call, chunks)?;
        }
        if let Some(function) = delta.function_call {
            self.tool_call(WireToolCall { index: Some(0), id: None, function: Some(function) }, chunks)?;
        }
        Ok(())
    }

    fn text(&mut self, kind: BlockType, more: &str, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        if more.is_empty() {
            return Ok(());
        }
        let continues = self.blocks.last().is_some_and(|open| !open.ended && block_type(&open.block) == kind);
        if !continues {
            let text = String::new();
            let block = match kind {
                BlockType::Reasoning => Block::Reasoning { text },
                _ => Block::Text { text },
            };
            self.start(block, None, chunks)?;
        }
        let index = self.blocks.len() as u32 - 1;
        if let Some(Open { block: Block::Text { text } | Block::Reasoning { text }, .. }) = self.blocks.last_mut() {
            text.push_str(more);
        }
        let text = more.to_owned();
        chunks.push(match kind {
            BlockType::Reasoning => Chunk::ReasoningDelta { index, text },
            _ => Chunk::TextDelta { index, text },
        });
        Ok(())
    }

    fn tool_call(&mut self, call: WireToolCall, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        let given_id = call.id.filter(|id| !id.is_empty());
        let found = self.blocks.iter().rposition(|open| {
            let Block::ToolCall { id, .. } = &open.block else { return false };
            let same_number = call.index.is_none() || open.wire_index == call.index;
            // Some providers number every call 0 and tell them apart by id alone.
            let same_id = given_id.as_ref().is_none_or(|given| !open.has_id || id == given);
            same_number && same_id
        });
        let position = match found {
            Some(position) => position,
            None => {
                let id = given_id.clone().unwrap_or_else(|| format!("call_{}", self.blocks.len()));
                let block = Block::ToolCall { id, name: String::new(), arguments: String::new() };
                self.start(block, call.index, chunks)?;
                self.blocks.len() - 1
            }
        };
        let open = &mut self.blocks[position];
        open.has_id |= given_id.is_some();
        let Block::ToolCall { id, name, arguments } = &mut open.block else { return Ok(()) };
        let function = call.function.unwrap_or(WireFunction { name: None, arguments: None });
        // A name comes whole, and some providers repeat it.
        let new_name = function.name.filter(|new| !new.is_empty() && name.is_empty());
        if let Some(new) = &new_name {
            name.clone_from(new);
        }
        let arguments_delta = function.arguments.unwrap_or_default();
        arguments.push_str(&arguments_delta);
        if new_name.is_some() || !arguments_delta.is_empty() {
            let index = position as u32;
            chunks.push(Chunk::ToolCallDelta { index, id: id.clone(), name: new_name, arguments_delta });
        }
        Ok(())
    }

    /// Opens a block, and ends a text that stood open before it.
    fn start(&mut self, block: Block, wire_index: Option<u64>, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        if self.blocks.len() >= MAX_BLOCKS {
            return Err(Trouble::Malformed(format!("the answer has more than {MAX_BLOCKS} blocks")));
        }
        let last = self.blocks.len().saturating_sub(1) as u32;
        if let Some(open) =
            self.blocks.last_mut().filter(|open| !open.ended && block_type(&open.block) != BlockType::ToolCall)
        {
            open.ended = true;
            chunks.push(Chunk::BlockEnd { index: last, block: open.block.clone() });
        }
        chunks.push(Chunk::BlockStart { index: self.blocks.len() as u32, block_type: block_type(&block) });
        self.blocks.push(Open { block, ended: false, wire_index, has_id: false });
        Ok(())
    }
}

fn block_type(block: &Block) -> BlockType {
    match block {
        Block::Text { .. } => BlockType::Text,
        Block::Reasoning { .. } => BlockType::Reasoning,
        Block::ToolCall { .. } => BlockType::ToolCall,
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
    use proptest::prelude::*;
    use serde_json::json;

    type Outcome = (Vec<Chunk>, Result<FinishReason, Trouble>);

    /// Plays events and then the terminator.
    fn play(events: &[Value]) -> Outcome {
        let mut answer = ChatAnswer::default();
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
        let (chunks, outcome) = play(&[delta(json!({"reasoning": "hm"})), ends("stop")]);
        assert_eq!((outcome, blocks(&chunks).len()), (Ok(FinishReason::Stop), 1));
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
        assert!(matches!(outcome, Err(Trouble::Malformed(text)) if text.contains("not JSON")));
        assert_eq!(blocks(&chunks), []);
        assert_eq!(play(&[broken, ends("length")]).1, Ok(FinishReason::MaxTokens));
        let nameless = call(json!(0), json!("a"), json!(null), "{}");
        assert!(matches!(play(&[nameless, ends("tool_calls")]).1, Err(Trouble::Malformed(_))));
    }

    #[test]
    fn an_answer_with_nothing_in_it_is_empty_unless_the_length_limit_cut_it() {
        assert_eq!(play(&[]).1, Err(Trouble::Empty));
        assert_eq!(play(&[delta(json!({"content": ""})), ends("stop")]).1, Err(Trouble::Empty));
        assert_eq!(play(&[ends("tool_calls")]).1, Err(Trouble::Empty));
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
            assert!(matches!(play(std::slice::from_ref(&value)).1, Err(Trouble::Malformed(_))), "{value}");
        }
        let event = Event { name: String::new(), data: "{\"choices\"".to_owned() };
        assert!(matches!(ChatAnswer::default().event(&event, &mut vec![]), Err(Trouble::Malformed(_))));
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
            let mut answer = ChatAnswer::default();
            let mut chunks = Vec::new();
            let fine = data.into_iter().all(|data| answer.event(&Event { name: String::new(), data }, &mut chunks).is_ok());
            if fine && answer.finish(&mut chunks).is_ok() {
                let count = |pick: fn(&Chunk) -> bool| chunks.iter().filter(|chunk| pick(chunk)).count();
                prop_assert_eq!(count(|c| matches!(c, Chunk::BlockStart { .. })), count(|c| matches!(c, Chunk::BlockEnd { .. })));
            }
        }
    }
}
