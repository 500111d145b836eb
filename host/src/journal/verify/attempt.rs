//! The chunks of the request that is being streamed: an answer cites these and nothing else.

use crate::journal::invariants::Violation;

/// One model request of a step.
#[derive(Default)]
pub(super) struct Attempt {
    /// The numbers of its chunks, rising.
    chunks: Vec<u64>,
    finished: bool,
    answered: bool,
}

impl Attempt {
    /// The chunks `seq` to `seq + span`. Returns whether they came behind the stream's end.
    pub fn chunk(&mut self, seq: u64, span: u64, finish: bool) -> bool {
        let late = self.finished;
        self.chunks.extend(seq..seq.saturating_add(span));
        self.finished |= finish;
        late
    }

    pub fn is_finished(&self) -> bool {
        self.finished
    }

    pub fn is_answered(&self) -> bool {
        self.answered
    }

    /// An answer stands here and cites `seqs`.
    pub fn answer(&mut self, seqs: Option<&[u64]>, broken: &mut Vec<Violation>) {
        if std::mem::replace(&mut self.answered, true) {
            broken.push(Violation {
                rule: "one-answer",
                message: "The step has an assistant/message already; a request has one answer.".into(),
            });
        }
        let foreign = seqs.unwrap_or_default().iter().find(|seq| self.chunks.binary_search(seq).is_err());
        if let Some(seq) = foreign {
            broken.push(Violation {
                rule: "citation",
                message: format!(
                    "The assistant/message cites event {seq}, which is not a chunk of the request that it answers."
                ),
            });
        }
    }
}
