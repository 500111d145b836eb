//! What the chunks of one model request add up to, without keeping them.
//!
//! Owns their numbers, the fingerprints of the blocks that they make, and how the stream ended, so that an answer can
//! be held against its own chunks. Puts blocks together by the rules of the agent's `answer`, which keeps the texts;
//! it never judges. Called by `state`, and by `invariants` for what an answer must agree with.

use crate::llm::{Block, BlockType, Chunk, FinishReason, Usage};
use std::collections::BTreeMap;

/// One request's stream so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stream {
    /// The numbers of its chunks, as ranges with an end: a range for each row of chunks without another event.
    seqs: Vec<(u64, u64)>,
    blocks: BTreeMap<u32, Part>,
    pub usage: Option<Usage>,
    pub finish: Option<FinishReason>,
}

/// A block, finished or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    print: Print,
    done: bool,
}

/// A block's kind, and the length and hash (FNV-1a) of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Print {
    kind: BlockType,
    bytes: u64,
    hash: u64,
}

impl Print {
    fn empty(kind: BlockType) -> Print {
        Print { kind, bytes: 0, hash: 0xcbf2_9ce4_8422_2325 }
    }

    fn add(&mut self, text: &[u8]) {
        self.bytes += text.len() as u64;
        self.hash = text.iter().fold(self.hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3));
    }

    fn of(block: &Block) -> Print {
        match block {
            Block::Text { text } => Print::of_text(BlockType::Text, text),
            Block::Reasoning { text } => Print::of_text(BlockType::Reasoning, text),
            Block::ToolCall { id, name, arguments } => {
                let mut print = Print::empty(BlockType::ToolCall);
                for part in [id, name, arguments] {
                    print.add(part.as_bytes());
                    // No byte of a text, so that the parts cannot run into each other.
                    print.add(&[0xff]);
                }
                print
            }
        }
    }

    fn of_text(kind: BlockType, text: &str) -> Print {
        let mut print = Print::empty(kind);
        print.add(text.as_bytes());
        print
    }
}

impl Stream {
    /// Takes in the chunk with the number `seq`.
    pub fn take_in(&mut self, seq: u64, chunk: &Chunk) {
        match chunk {
            Chunk::TextDelta { index, text } => return self.delta(seq, *index, BlockType::Text, text),
            Chunk::ReasoningDelta { index, text } => return self.delta(seq, *index, BlockType::Reasoning, text),
            Chunk::BlockStart { index, block_type } => {
                self.blocks.insert(*index, Part { print: Print::empty(*block_type), done: false });
            }
            Chunk::BlockEnd { index, block } => {
                self.blocks.insert(*index, Part { print: Print::of(block), done: true });
            }
            Chunk::Usage { usage } => self.usage = Some(*usage),
            Chunk::Finish { reason } => self.finish = Some(reason.clone()),
            Chunk::ToolCallDelta { .. } => {}
        }
        self.count(seq);
    }

    /// Takes in a piece of streamed text.
    pub fn delta(&mut self, seq: u64, index: u32, kind: BlockType, text: &str) {
        self.count(seq);
        let part = self.blocks.entry(index).or_insert(Part { print: Print::empty(kind), done: false });
        if !part.done {
            part.print.add(text.as_bytes());
        }
    }

    fn count(&mut self, seq: u64) {
        match self.seqs.last_mut() {
            Some((_, end)) if *end == seq => *end = seq.saturating_add(1),
            _ => self.seqs.push((seq, seq.saturating_add(1))),
        }
    }

    /// How many chunks there are.
    pub fn chunks(&self) -> u64 {
        self.seqs.iter().map(|(from, end)| end - from).sum()
    }

    /// The first number in `cited` that is out of place, when it should name each chunk once, in order; `None` also
    /// when it only ends too early.
    pub fn misplaced(&self, cited: &[u64]) -> Option<u64> {
        let mut chunks = self.seqs.iter().flat_map(|(from, end)| *from..*end);
        cited.iter().copied().find(|seq| chunks.next() != Some(*seq))
    }

    /// Whether an answer of these blocks is what the chunks make. Half a tool call is no part of an answer.
    pub fn makes(&self, content: &[Block]) -> bool {
        let visible = self
            .blocks
            .values()
            .filter(|part| part.done || (part.print.bytes > 0 && part.print.kind != BlockType::ToolCall));
        visible.map(|part| part.print).eq(content.iter().map(Print::of))
    }

    /// The stream ended as that of an answer does.
    pub fn is_answer(&self) -> bool {
        matches!(self.finish, Some(FinishReason::Stop | FinishReason::ToolCalls | FinishReason::MaxTokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Block {
        Block::Text { text: text.into() }
    }

    fn stream(chunks: &[Chunk]) -> Stream {
        let mut stream = Stream::default();
        for (seq, chunk) in (5..).zip(chunks) {
            stream.take_in(seq, chunk);
        }
        stream
    }

    #[test]
    fn an_answer_is_held_against_its_pieces_however_they_were_cut() {
        let delta = |index, text: &str| Chunk::TextDelta { index, text: text.into() };
        let cut = stream(&[delta(1, "Se"), delta(0, "a"), delta(1, ""), delta(1, "ven.")]);
        assert!(cut.makes(&[text("a"), text("Seven.")]));
        for wrong in [
            vec![text("Seven."), text("a")],
            vec![text("a"), text("Seven")],
            vec![text("a"), text("Sevem.")],
            vec![text("a")],
            vec![text("a"), Block::Reasoning { text: "Seven.".into() }],
            vec![text("a"), text("Seven."), text("")],
        ] {
            assert!(!cut.makes(&wrong), "{wrong:?}");
        }
    }

    #[test]
    fn a_finished_block_stands_for_its_pieces_and_half_a_tool_call_is_dropped() {
        let call = Block::ToolCall { id: "c".into(), name: "look".into(), arguments: "{}".into() };
        let started = Chunk::BlockStart { index: 0, block_type: BlockType::ToolCall };
        let piece = Chunk::ToolCallDelta { index: 0, id: "c".into(), name: None, arguments_delta: "{".into() };
        assert!(stream(&[started.clone(), piece.clone()]).makes(&[]));
        let done = stream(&[started, piece, Chunk::BlockEnd { index: 0, block: call.clone() }]);
        assert!(done.makes(std::slice::from_ref(&call)));
        let moved = Block::ToolCall { id: "cl".into(), name: "ook".into(), arguments: "{}".into() };
        assert!(!done.makes(&[moved]));
    }

    #[test]
    fn chunks_are_cited_each_once_and_in_order() {
        let mut stream = stream(&vec![Chunk::TextDelta { index: 0, text: "x".into() }; 3]);
        stream.delta(9, 0, BlockType::Text, "y");
        assert_eq!(stream.chunks(), 4);
        assert_eq!(stream.misplaced(&[5, 6, 7, 9]), None);
        assert_eq!(stream.misplaced(&[5, 6]), None);
        for (cited, out_of_place) in [(&[5, 5][..], 5), (&[6], 6), (&[5, 6, 7, 8], 8), (&[5, 6, 7, 9, 9], 9)] {
            assert_eq!(stream.misplaced(cited), Some(out_of_place), "{cited:?}");
        }
    }
}
