//! The answer of a stream in the Responses protocol. Its terminators are the events `response.completed` and
//! `response.incomplete`; `response.failed` and `error` report an error.

use super::{
    answer::{Answer, Blocks, CallPiece, Progress, Trouble, is_cut, read_event},
    sse::Event,
};
use crate::llm::{BlockType, Chunk, FinishReason, Usage};
use serde_json::Value;

/// One answer, as far as it has come.
#[derive(Default)]
pub(super) struct ResponsesAnswer {
    blocks: Blocks,
    usage: Option<Usage>,
    /// Why the answer is incomplete or was given up, if it was.
    unfinished: Option<String>,
}

impl Answer for ResponsesAnswer {
    fn event(&mut self, event: &Event, chunks: &mut Vec<Chunk>) -> Result<Progress, Trouble> {
        let data = event.data.trim();
        // Some gateways end every stream in the way of chat completions. It says nothing about the answer here.
        if data.is_empty() || data == "[DONE]" {
            return Ok(Progress::Nothing);
        }
        let value = read_event(event)?;
        let Some(kind) = value.get("type").and_then(Value::as_str) else {
            return Err(Trouble::shape("an event of the stream has no type".to_owned()));
        };
        let before = chunks.len();
        let delta = || match value.get("delta") {
            Some(Value::String(delta)) => Ok(delta.as_str()),
            _ => Err(Trouble::shape(format!("the event {kind} has no text under \"delta\""))),
        };
        match kind {
            "response.output_text.delta" | "response.refusal.delta" => {
                self.blocks.text(BlockType::Text, delta()?, chunks)?;
            }
            "response.reasoning_text.delta" | "response.reasoning_summary_text.delta" => {
                self.blocks.text(BlockType::Reasoning, delta()?, chunks)?;
            }
            "response.function_call_arguments.delta" => {
                let wire_index = output_index(&value);
                let arguments = delta()?.to_owned();
                self.blocks.tool_call(CallPiece { wire_index, arguments, ..CallPiece::default() }, chunks)?;
            }
            "response.output_item.added" => self.item(&value, chunks)?,
            // A gateway may give a call in one piece, and then only here.
            "response.output_item.done"
                if value.pointer("/item/type").and_then(Value::as_str) == Some("function_call")
                    && !self.blocks.has_arguments(output_index(&value)) =>
            {
                self.item(&value, chunks)?;
            }
            "response.completed" | "response.incomplete" | "response.cancelled" => {
                let Some(response) = value.get("response").filter(|response| response.is_object()) else {
                    return Err(Trouble::shape(format!("the event {kind} has no response")));
                };
                let status = response.get("status").and_then(Value::as_str);
                // A gateway may end every stream with one event, and tell the ends apart by the status alone.
                self.ended(response, status.unwrap_or(&kind["response.".len()..]), chunks)?;
                return Ok(Progress::Done);
            }
            kind if kind.starts_with("response.") => {}
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
        let cut = match self.unfinished.as_deref() {
            Some(reason) if is_cut(Some(reason)) != Ok(true) => return Err(Trouble::Finish(reason.to_owned())),
            reason => reason.is_some(),
        };
        self.blocks.finish(cut, chunks)
    }

    fn whole(&mut self, body: &Value, chunks: &mut Vec<Chunk>) -> Result<bool, Trouble> {
        let is_response = body.get("object").is_some_and(|object| object == "response");
        let status = match body.get("status").and_then(Value::as_str) {
            Some(status @ ("completed" | "incomplete" | "cancelled")) => status,
            None if is_response && body.get("output").is_some_and(Value::is_array) => "completed",
            _ => return Ok(false),
        };
        self.ended(body, status, chunks)?;
        Ok(true)
    }
}

impl ResponsesAnswer {
    /// A new item of the output. Only a call says something by itself; texts come in deltas.
    fn item(&mut self, event: &Value, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        let Some(item) = event.get("item").filter(|item| item.is_object()) else {
            return Err(Trouble::shape("an event about an item has no item".to_owned()));
        };
        self.blocks.end_text(chunks);
        self.call(item, output_index(event), chunks)
    }

    fn call(&mut self, item: &Value, wire_index: Option<u64>, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        let text = |key: &str| item.get(key).and_then(Value::as_str).map(str::to_owned);
        if text("type").as_deref() != Some("function_call") {
            return Ok(());
        }
        let piece = CallPiece {
            wire_index,
            id: text("call_id").or_else(|| text("id")),
            name: text("name"),
            arguments: text("arguments").unwrap_or_default(),
        };
        self.blocks.tool_call(piece, chunks)
    }

    /// The final state of the response. What came in no delta is taken from it.
    fn ended(&mut self, response: &Value, status: &str, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        self.usage = response.get("usage").filter(|usage| usage.is_object()).map(read_usage).or(self.usage);
        if ["incomplete", "cancelled"].contains(&status) {
            let reason = response.pointer("/incomplete_details/reason").and_then(Value::as_str);
            self.unfinished = Some(reason.unwrap_or(status).to_owned());
        }
        if !self.blocks.is_empty() {
            return Ok(());
        }
        for (index, item) in (0..).zip(response.get("output").and_then(Value::as_array).into_iter().flatten()) {
            let kind = match item.get("type").is_some_and(|kind| kind == "reasoning") {
                true => BlockType::Reasoning,
                false => BlockType::Text,
            };
            let parts = ["summary", "content"].iter().filter_map(|key| item.get(*key)?.as_array()).flatten();
            for part in parts {
                let text = part.get("text").or_else(|| part.get("refusal")).and_then(Value::as_str);
                self.blocks.text(kind, text.unwrap_or_default(), chunks)?;
            }
            self.call(item, Some(index), chunks)?;
        }
        Ok(())
    }
}

fn output_index(event: &Value) -> Option<u64> {
    event.get("output_index").and_then(Value::as_u64)
}

/// The wire's counts contain one another; ours are disjoint.
fn read_usage(usage: &Value) -> Usage {
    let count = |pointer: &str| usage.pointer(pointer).and_then(Value::as_u64);
    let cached = count("/input_tokens_details/cached_tokens");
    let reasoning = count("/output_tokens_details/reasoning_tokens");
    Usage {
        input_tokens: count("/input_tokens").unwrap_or(0).saturating_sub(cached.unwrap_or(0)),
        output_tokens: count("/output_tokens").unwrap_or(0).saturating_sub(reasoning.unwrap_or(0)),
        cache_read_tokens: cached,
        cache_write_tokens: None,
        reasoning_tokens: reasoning,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::answer::tests::*, *};
    use crate::llm::{Block, classify::StreamFault};
    use serde_json::json;

    fn play(events: &[Value]) -> Played {
        play_events(Box::new(ResponsesAnswer::default()), events)
    }

    fn tool(id: &str, arguments: &str) -> Block {
        Block::ToolCall { id: id.to_owned(), name: "f".to_owned(), arguments: arguments.to_owned() }
    }

    #[test]
    fn reasoning_text_and_tool_calls_are_carried_through() {
        let call = |index: u64, arguments: &str| json!({"output_index": index, "item": {"type": "function_call", "id": "fc", "call_id": format!("c{index}"), "name": "f", "arguments": arguments}});
        let named = |kind: &str, mut event: Value| {
            event["type"] = json!(kind);
            event
        };
        let played = play(&[
            json!({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "error": null}}),
            json!({"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "hm"}),
            json!({"type": "response.output_item.added", "output_index": 1, "item": {"type": "message"}}),
            json!({"type": "response.output_text.delta", "output_index": 1, "delta": "Se"}),
            json!({"type": "response.output_text.delta", "output_index": 1, "delta": "ven"}),
            named("response.output_item.added", call(2, "")),
            json!({"type": "response.function_call_arguments.delta", "output_index": 2, "delta": "{\"a\":"}),
            json!({"type": "response.function_call_arguments.delta", "output_index": 2, "delta": "1}"}),
            named("response.output_item.done", call(2, "{\"a\":1}")),
            named("response.output_item.done", call(3, "{}")),
            json!({"type": "response.completed", "response": {"usage": {"input_tokens": 10, "output_tokens": 7,
                "input_tokens_details": {"cached_tokens": 4}, "output_tokens_details": {"reasoning_tokens": 2}}}}),
        ]);
        assert_eq!(played.outcome, Ok(FinishReason::ToolCalls));
        assert_eq!(
            played.blocks(),
            [
                Block::Reasoning { text: "hm".to_owned() },
                Block::Text { text: "Seven".to_owned() },
                tool("c2", "{\"a\":1}"),
                tool("c3", "{}"),
            ]
        );
        let usage = Usage {
            input_tokens: 6,
            output_tokens: 5,
            cache_read_tokens: Some(4),
            reasoning_tokens: Some(2),
            ..Usage::default()
        };
        assert_eq!(played.usage, Some(usage));
    }

    #[test]
    fn an_incomplete_answer_is_cut_by_its_length_or_refused() {
        let text = json!({"type": "response.output_text.delta", "output_index": 0, "delta": "x"});
        let ends = |reason: Value| json!({"type": "response.incomplete", "response": {"incomplete_details": reason}});
        let with = |reason: Value| play(&[text.clone(), ends(reason)]).outcome;
        assert_eq!(with(json!({"reason": "max_output_tokens"})), Ok(FinishReason::MaxTokens));
        assert_eq!(with(json!({"reason": "content_filter"})), Err(Trouble::Finish("content_filter".to_owned())));
        assert_eq!(with(json!(null)), Err(Trouble::Finish("incomplete".to_owned())));
    }

    #[test]
    fn the_status_of_a_completed_response_tells_how_it_ended() {
        let text = json!({"type": "response.output_text.delta", "output_index": 0, "delta": "x"});
        let with = |kind: &str, mut response: Value| {
            response["output"] = json!([]);
            play(&[text.clone(), json!({"type": kind, "response": response})]).outcome
        };
        let incomplete = |reason: &str| json!({"status": "incomplete", "incomplete_details": {"reason": reason}});
        assert_eq!(with("response.completed", incomplete("max_output_tokens")), Ok(FinishReason::MaxTokens));
        let filtered = Err(Trouble::Finish("content_filter".to_owned()));
        assert_eq!(with("response.completed", incomplete("content_filter")), filtered);
        assert_eq!(with("response.completed", json!({"status": "failed", "error": null})), Err(Trouble::Reported));
        let cancelled = Err(Trouble::Finish("cancelled".to_owned()));
        assert_eq!(with("response.cancelled", json!({"status": "cancelled"})), cancelled);
    }

    #[test]
    fn an_answer_in_one_piece_is_taken() {
        let whole = |body: Value| play_whole(Box::new(ResponsesAnswer::default()), &body);
        let body = json!({"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}, "output": [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
            {"type": "message", "content": [{"type": "output_text", "text": "Hel"}]}]});
        let played = whole(body).unwrap();
        assert_eq!(played.outcome, Ok(FinishReason::MaxTokens));
        let text = |text: &str| text.to_owned();
        assert_eq!(played.blocks(), [Block::Reasoning { text: text("hm") }, Block::Text { text: text("Hel") }]);
        let bare = json!({"object": "response", "output": [{"type": "message", "content": [{"refusal": "No."}]}]});
        assert_eq!(whole(bare).unwrap().outcome, Ok(FinishReason::Stop));
        assert_eq!(whole(json!({"status": "completed", "output": []})).unwrap().outcome, Err(Trouble::Empty));
        assert!(whole(json!({"status": "queued"})).is_none());
    }

    #[test]
    fn errors_and_odd_shapes_are_trouble() {
        for error in [
            json!({"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error", "message": "m"}}}),
            json!({"type": "error", "code": "rate_limit_exceeded", "message": "m"}),
            json!({"type": "response.failed", "response": {"status": "failed", "error": null}}),
        ] {
            assert!(matches!(play(std::slice::from_ref(&error)).outcome, Err(Trouble::Reported)), "{error}");
        }
        for odd in [
            json!([]),
            json!({"delta": "x"}),
            json!({"type": "response.output_text.delta", "delta": 7}),
            json!({"type": "response.output_item.added"}),
            json!({"type": "response.completed"}),
        ] {
            let outcome = play(std::slice::from_ref(&odd)).outcome;
            assert!(matches!(outcome, Err(Trouble::Broken(StreamFault::Shape, _))), "{odd}");
        }
    }
}
