//! Events for tests of the stores: turns that every rule allows.

use super::{
    Body,
    event::{AssistantChunk, StepEnd, StepRef, TurnEnd, TurnEndReason, TurnStart, UserMessage, UserRole, UserSource},
};
use crate::llm::Chunk;

pub(crate) fn prompt() -> Body {
    Body::UserMessage(UserMessage {
        content: Vec::new(),
        source: UserSource::User,
        role: UserRole::User,
        id: "m-1".into(),
    })
}

/// A closed turn whose answer was cut short after one piece of an awkward text; six events.
pub(crate) fn turn(turn: u64) -> Vec<Body> {
    let text = "line\u{2028}break \"quoted\" \n \0".into();
    vec![
        Body::TurnStart(TurnStart { turn, retry_of: None }),
        prompt(),
        Body::StepStart(StepRef { turn, step: 1 }),
        Body::AssistantChunk(AssistantChunk { turn, step: 1, chunk: Chunk::TextDelta { index: 0, text } }),
        Body::StepEnd(StepEnd { turn, step: 1, failure: None }),
        Body::TurnEnd(TurnEnd { turn, reason: TurnEndReason::Interrupted }),
    ]
}
