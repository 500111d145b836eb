//! What the answers of all protocols have in common: events go in, chunks come out.
//!
//! Pure: an answer holds what one stream has said so far, and knows neither sockets nor time. `call` feeds it. What it
//! cannot accept it returns as a [`Trouble`], for `naming` to name.

use super::{sign::Sign, sse::Event};
use crate::llm::{Block, BlockType, Chunk, FinishReason, Usage, classify::StreamFault};
use serde_json::Value;

/// More blocks than this are no answer of a model.
const MAX_BLOCKS: usize = 1024;

/// One answer of one protocol, as far as it has come.
pub(super) trait Answer: Send {
    /// Takes one event and appends the chunks that it makes.
    fn event(&mut self, event: &Event, chunks: &mut Vec<Chunk>) -> Result<Progress, Trouble>;

    /// The token counts that the provider has given so far.
    fn usage(&self) -> Option<Usage>;

    /// Whether the model was reasoning when it was last heard of.
    fn is_reasoning(&self) -> bool;

    /// Ends the answer after its terminator: appends the ends of its blocks and says how it ended.
    fn finish(self: Box<Self>, chunks: &mut Vec<Chunk>) -> Result<FinishReason, Trouble>;

    /// Takes a whole answer that came in one piece instead of a stream, and says whether it was one.
    fn whole(&mut self, body: &Value, chunks: &mut Vec<Chunk>) -> Result<bool, Trouble>;
}

/// What an event brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing that the model said.
    Nothing,
    Content,
    /// Something that the protocol does not have: the report of an error, or nothing that concerns us.
    Unknown,
    /// The terminator: the answer is over.
    Done,
}

/// Why an answer is none.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Trouble {
    /// The event reports an error.
    Reported,
    /// The stream does not follow the protocol.
    Broken(StreamFault, String),
    /// The answer ended for a reason that is no normal end.
    Finish(String),
    /// The answer ended normally, with nothing in it that could be used.
    Empty,
}

impl Trouble {
    pub(super) fn shape(text: String) -> Self {
        Trouble::Broken(StreamFault::Shape, text)
    }
}

/// Reads the data of an event as JSON, unless it is the report of an error.
pub(super) fn read_event(event: &Event) -> Result<Value, Trouble> {
    let value: Value = serde_json::from_str(event.data.trim()).map_err(|error| not_json(&error))?;
    match Sign::of(&value, "") {
        Sign::Strong => Err(Trouble::Reported),
        _ => Ok(value),
    }
}

pub(super) fn not_json(error: &serde_json::Error) -> Trouble {
    Trouble::Broken(StreamFault::NotJson, format!("an event of the stream is not JSON: {error}"))
}

/// Reasons of a normal end. Gateways pass on the names of whatever stands behind them, so all adapters know them all.
const NORMAL_ENDS: [&str; 19] = [
    "stop",
    "stop_sequence",
    "stop_token",
    "stop_str",
    "end_turn",
    "end",
    "end_of_text",
    "end_of_sequence",
    "eos",
    "eos_token",
    "complete",
    "completed",
    "finish",
    "finished",
    "tool_calls",
    "tool_call",
    "tool_use",
    "function_call",
    "pause_turn",
];

/// Reasons of an end by a limit of length.
const LENGTH_ENDS: [&str; 8] = [
    "length",
    "model_length",
    "max_length",
    "max_tokens",
    "max_output_tokens",
    "max_new_tokens",
    "max_completion_tokens",
    "token_limit",
];

/// Whether a finish reason says that a limit of length cut the answer. No reason is a normal end; one that is neither
/// is trouble.
pub(super) fn is_cut(reason: Option<&str>) -> Result<bool, Trouble> {
    let Some(given) = reason else { return Ok(false) };
    let name = given.trim().to_ascii_lowercase().replace(['-', ' '], "_");
    match name.as_str() {
        // Written out by programs that mean that there is none.
        "" | "null" | "none" => Ok(false),
        name if NORMAL_ENDS.contains(&name) => Ok(false),
        name if LENGTH_ENDS.contains(&name) => Ok(true),
        _ => Err(Trouble::Finish(given.to_owned())),
    }
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

/// A piece of a tool call, as a protocol sends it.
#[derive(Default)]
pub(super) struct CallPiece {
    pub(super) wire_index: Option<u64>,
    pub(super) id: Option<String>,
    pub(super) name: Option<String>,
    pub(super) arguments: String,
}

/// The blocks of one answer, and the chunks that tell of them.
#[derive(Default)]
pub(super) struct Blocks(Vec<Open>);

impl Blocks {
    /// More of a text or of reasoning; opens a block when none of the kind is open at the end.
    pub(super) fn text(&mut self, kind: BlockType, more: &str, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        if more.is_empty() {
            return Ok(());
        }
        let continues = self.0.last().is_some_and(|open| !open.ended && block_type(&open.block) == kind);
        if !continues {
            let text = String::new();
            let block = match kind {
                BlockType::Reasoning => Block::Reasoning { text },
                _ => Block::Text { text },
            };
            self.start(block, None, chunks)?;
        }
        let index = self.0.len() as u32 - 1;
        if let Some(Open { block: Block::Text { text } | Block::Reasoning { text }, .. }) = self.0.last_mut() {
            text.push_str(more);
        }
        let text = more.to_owned();
        chunks.push(match kind {
            BlockType::Reasoning => Chunk::ReasoningDelta { index, text },
            _ => Chunk::TextDelta { index, text },
        });
        Ok(())
    }

    /// The next text or reasoning begins a block of its own.
    pub(super) fn end_text(&mut self, chunks: &mut Vec<Chunk>) {
        let last = self.0.len().saturating_sub(1) as u32;
        let open = self.0.last_mut().filter(|open| !open.ended && block_type(&open.block) != BlockType::ToolCall);
        if let Some(open) = open {
            open.ended = true;
            chunks.push(Chunk::BlockEnd { index: last, block: open.block.clone() });
        }
    }

    /// A piece of a tool call; opens it when it is new.
    pub(super) fn tool_call(&mut self, piece: CallPiece, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        let given_id = piece.id.filter(|id| !id.is_empty());
        let found = self.0.iter().rposition(|open| {
            let Block::ToolCall { id, .. } = &open.block else { return false };
            let same_number = piece.wire_index.is_none() || open.wire_index == piece.wire_index;
            // Some providers number every call 0 and tell them apart by id alone.
            let same_id = given_id.as_ref().is_none_or(|given| !open.has_id || id == given);
            same_number && same_id
        });
        let position = match found {
            Some(position) => position,
            None => {
                let id = given_id.clone().unwrap_or_else(|| format!("call_{}", self.0.len()));
                let block = Block::ToolCall { id, name: String::new(), arguments: String::new() };
                self.start(block, piece.wire_index, chunks)?;
                self.0.len() - 1
            }
        };
        let open = &mut self.0[position];
        open.has_id |= given_id.is_some();
        let Block::ToolCall { id, name, arguments } = &mut open.block else { return Ok(()) };
        // A name comes whole, and some providers repeat it.
        let new_name = piece.name.filter(|new| !new.is_empty() && name.is_empty());
        if let Some(new) = &new_name {
            name.clone_from(new);
        }
        arguments.push_str(&piece.arguments);
        if new_name.is_some() || !piece.arguments.is_empty() {
            let index = position as u32;
            let arguments_delta = piece.arguments;
            chunks.push(Chunk::ToolCallDelta { index, id: id.clone(), name: new_name, arguments_delta });
        }
        Ok(())
    }

    /// Whether the tool call with this number has got any arguments yet.
    pub(super) fn has_arguments(&self, wire_index: Option<u64>) -> bool {
        self.0.iter().any(|open| {
            open.wire_index == wire_index
                && matches!(&open.block, Block::ToolCall { arguments, .. } if !arguments.is_empty())
        })
    }

    pub(super) fn is_reasoning(&self) -> bool {
        self.0.last().is_some_and(|open| !open.ended && block_type(&open.block) == BlockType::Reasoning)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Ends every block and says how the answer ended; `cut` when a length limit ended it.
    ///
    /// Reasoning alone, or white space alone, is nothing that anyone could use.
    pub(super) fn finish(self, cut: bool, chunks: &mut Vec<Chunk>) -> Result<FinishReason, Trouble> {
        let usable = self.0.iter().any(|open| match &open.block {
            Block::Text { text } => !text.trim().is_empty(),
            Block::Reasoning { .. } => false,
            Block::ToolCall { .. } => true,
        });
        if !usable && !cut {
            return Err(Trouble::Empty);
        }
        let mut has_tool_calls = false;
        for open in &self.0 {
            let Block::ToolCall { name, arguments, .. } = &open.block else { continue };
            has_tool_calls = true;
            let broken = |text: String| Err(Trouble::Broken(StreamFault::ToolCall, text));
            // A call that was cut by the length limit is incomplete in an honest way; any other is broken.
            if !cut && name.is_empty() {
                return broken("a tool call of the answer has no name".to_owned());
            }
            if !cut && !arguments.is_empty() && !is_object(arguments) {
                return broken(format!("the arguments of the tool call {name:?} are no JSON object"));
            }
        }
        for (index, open) in (0..).zip(self.0) {
            if !open.ended {
                chunks.push(Chunk::BlockEnd { index, block: open.block });
            }
        }
        Ok(if cut {
            FinishReason::MaxTokens
        } else if has_tool_calls {
            // Some providers give the reason of a plain text after tool calls too.
            FinishReason::ToolCalls
        } else {
            FinishReason::Stop
        })
    }

    /// Opens a block, and ends a text that stood open before it.
    fn start(&mut self, block: Block, wire_index: Option<u64>, chunks: &mut Vec<Chunk>) -> Result<(), Trouble> {
        if self.0.len() >= MAX_BLOCKS {
            return Err(Trouble::shape(format!("the answer has more than {MAX_BLOCKS} blocks")));
        }
        self.end_text(chunks);
        chunks.push(Chunk::BlockStart { index: self.0.len() as u32, block_type: block_type(&block) });
        self.0.push(Open { block, ended: false, wire_index, has_id: false });
        Ok(())
    }
}

fn is_object(text: &str) -> bool {
    text.trim_start().starts_with('{') && serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok()
}

fn block_type(block: &Block) -> BlockType {
    match block {
        Block::Text { .. } => BlockType::Text,
        Block::Reasoning { .. } => BlockType::Reasoning,
        Block::ToolCall { .. } => BlockType::ToolCall,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// What an answer made of some events.
    pub(in super::super) struct Played {
        pub(in super::super) chunks: Vec<Chunk>,
        pub(in super::super) usage: Option<Usage>,
        pub(in super::super) outcome: Result<FinishReason, Trouble>,
    }

    impl Played {
        pub(in super::super) fn blocks(&self) -> Vec<Block> {
            let ended =
                |chunk: &Chunk| if let Chunk::BlockEnd { block, .. } = chunk { Some(block.clone()) } else { None };
            self.chunks.iter().filter_map(ended).collect()
        }
    }

    /// Plays a whole answer; `None` when it is none of the protocol.
    pub(in super::super) fn play_whole(mut answer: Box<dyn Answer>, body: &Value) -> Option<Played> {
        let mut chunks = Vec::new();
        match answer.whole(body, &mut chunks) {
            Ok(false) => None,
            Ok(true) => {
                let usage = answer.usage();
                let outcome = answer.finish(&mut chunks);
                Some(Played { chunks, usage, outcome })
            }
            Err(trouble) => Some(Played { chunks, usage: answer.usage(), outcome: Err(trouble) }),
        }
    }

    #[test]
    fn the_names_of_an_end_are_known_in_any_spelling() {
        for reason in [None, Some("stop"), Some("eos_token"), Some("COMPLETE"), Some("null"), Some("tool-calls")] {
            assert_eq!(is_cut(reason), Ok(false), "{reason:?}");
        }
        for reason in ["length", "model_length", "MAX_TOKENS"] {
            assert_eq!(is_cut(Some(reason)), Ok(true), "{reason}");
        }
        for reason in ["content_filter", "MALFORMED_FUNCTION_CALL", "banana"] {
            assert_eq!(is_cut(Some(reason)), Err(Trouble::Finish(reason.to_owned())));
        }
    }

    /// Plays events to their end or to the first trouble, and then the terminator.
    pub(in super::super) fn play_events(mut answer: Box<dyn Answer>, events: &[Value]) -> Played {
        let mut chunks = Vec::new();
        for event in events {
            let event = Event { name: String::new(), data: event.to_string() };
            if let Err(trouble) = answer.event(&event, &mut chunks) {
                return Played { chunks, usage: answer.usage(), outcome: Err(trouble) };
            }
        }
        let usage = answer.usage();
        let outcome = answer.finish(&mut chunks);
        Played { chunks, usage, outcome }
    }
}
