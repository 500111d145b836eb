//! Puts a streamed answer together.

use crate::llm::{Block, BlockType, Chunk, Usage};
use std::collections::BTreeMap;

/// The parts of an answer that have arrived.
#[derive(Default)]
pub(super) struct Assembly {
    blocks: BTreeMap<u32, Part>,
    pub usage: Option<Usage>,
    /// The journal's numbers of the chunks, which the message cites.
    pub seqs: Vec<u64>,
}

enum Part {
    Open { kind: BlockType, text: String },
    Done(Block),
}

impl Assembly {
    pub fn take_in(&mut self, seq: u64, chunk: &Chunk) {
        self.seqs.push(seq);
        match chunk {
            Chunk::BlockStart { index, block_type } => {
                self.blocks.insert(*index, Part::Open { kind: *block_type, text: String::new() });
            }
            Chunk::TextDelta { index, text } => self.extend(*index, BlockType::Text, text),
            Chunk::ReasoningDelta { index, text } => self.extend(*index, BlockType::Reasoning, text),
            Chunk::BlockEnd { index, block } => {
                self.blocks.insert(*index, Part::Done(block.clone()));
            }
            Chunk::Usage { usage } => self.usage = Some(*usage),
            // A half-written tool call is never used, so its pieces need not be kept.
            Chunk::ToolCallDelta { .. } | Chunk::Finish { .. } => {}
        }
    }

    fn extend(&mut self, index: u32, kind: BlockType, more: &str) {
        if let Part::Open { text, .. } = self.blocks.entry(index).or_insert(Part::Open { kind, text: String::new() }) {
            text.push_str(more);
        }
    }

    /// The blocks of an answer that was cut short: what can be read of it. Half a tool call is dropped.
    pub fn visible(&self) -> Vec<Block> {
        self.blocks
            .values()
            .filter_map(|part| match part {
                Part::Done(block) => Some(block.clone()),
                Part::Open { text, .. } if text.is_empty() => None,
                Part::Open { kind: BlockType::Text, text } => Some(Block::Text { text: text.clone() }),
                Part::Open { kind: BlockType::Reasoning, text } => Some(Block::Reasoning { text: text.clone() }),
                Part::Open { kind: BlockType::ToolCall, .. } => None,
            })
            .collect()
    }
}

/// Content as people read it: its text, without reasoning and tool calls.
pub fn text_of(blocks: &[Block]) -> String {
    blocks
        .iter()
        .filter_map(|block| if let Block::Text { text } = block { Some(text.as_str()) } else { None })
        .collect()
}
