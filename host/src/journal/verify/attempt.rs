//! The chunks of the request that is being streamed, in the same-step dialect: an answer cites these and nothing else.

use crate::journal::invariants::Violation;

/// One model request of a step.
#[derive(Default)]
pub(super) struct Attempt {
    /// The numbers of its chunks, as ranges with an end, rising.
    chunks: Vec<(u64, u64)>,
    finished: bool,
    answered: bool,
}

impl Attempt {
    /// The chunks `seq` to `seq + span`.
    pub fn chunk(&mut self, seq: u64, span: u64, finish: bool) {
        let next = seq.saturating_add(span);
        match self.chunks.last_mut() {
            Some((_, end)) if *end == seq => *end = next,
            _ => self.chunks.push((seq, next)),
        }
        self.finished |= finish;
    }

    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// An answer stands here and cites `seqs`.
    pub fn answer(&mut self, seqs: Option<&[u64]>, broken: &mut Vec<Violation>) {
        if std::mem::replace(&mut self.answered, true) {
            broken.push(Violation {
                rule: "one-answer",
                message: "The step has an assistant/message already; a request has one answer.".into(),
            });
        }
        let is_chunk = |seq: u64| {
            let behind = self.chunks.partition_point(|(from, _)| *from <= seq);
            behind.checked_sub(1).is_some_and(|at| seq < self.chunks[at].1)
        };
        if let Some(pair) = seqs.unwrap_or_default().windows(2).find(|pair| pair[0] >= pair[1]) {
            broken.push(Violation {
                rule: "citation",
                message: format!(
                    "The assistant/message cites event {} behind event {}, but it cites each chunk once and in order.",
                    pair[1], pair[0]
                ),
            });
            return;
        }
        if let Some(seq) = seqs.unwrap_or_default().iter().find(|seq| !is_chunk(**seq)) {
            broken.push(Violation {
                rule: "citation",
                message: format!(
                    "The assistant/message cites event {seq}, which is not a chunk of the request that it answers."
                ),
            });
        }
    }
}
