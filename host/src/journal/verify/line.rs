//! One line, parsed once into the few facts that the rules look at.
//!
//! Almost every line of a session is a piece of streamed text. Such a line is read in place: nothing of it is copied.

use super::{Rules, fields};
use crate::journal::{
    event::{AssistantChunk, Body},
    invariants::Violation,
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, value::RawValue};
use std::borrow::Cow;

/// What a line says.
pub(super) struct Line {
    pub kind: String,
    pub seq: u64,
    /// How many events it stands for: more than one when streamed pieces were packed into one line.
    pub span: u64,
    pub surface_op: bool,
    pub cites: Option<Vec<u64>>,
    pub fact: Fact,
}

pub(super) enum Fact {
    Chunk {
        turn: u64,
        step: u64,
        finish: bool,
    },
    /// An event of this program's own dialect, other than a chunk.
    Event(Box<Body>),
    TurnStart(u64),
    TurnEnd(u64),
    StepStart(u64, u64),
    StepEnd(u64, u64),
    Header {
        provider: String,
    },
    Answer {
        turn: u64,
        step: u64,
    },
    /// A record of the same-step dialect, whose fields have been checked.
    Retry(Box<fields::RetryFields>),
    Started(fields::StartedFields),
    /// An event without rules of its own.
    Other,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(default)]
    seq: Option<u64>,
    /// Of the first event of a packed line.
    #[serde(default)]
    seq0: Option<u64>,
    #[serde(default)]
    time: Option<u64>,
    #[serde(default)]
    time0: Option<u64>,
    #[serde(borrow)]
    data: &'a RawValue,
    #[serde(default)]
    ignorable: bool,
    #[serde(default)]
    source_event_seqs: Option<Vec<u64>>,
    #[serde(default, borrow)]
    surface_op: Option<Cow<'a, str>>,
}

/// A piece of streamed text, borrowed; `text` is absent in chunks of other kinds.
#[derive(Deserialize)]
struct Piece<'a> {
    turn: u64,
    step: u64,
    #[serde(borrow)]
    chunk: PieceChunk<'a>,
}

#[derive(Deserialize)]
struct PieceChunk<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    #[serde(default)]
    index: Option<u32>,
    #[serde(default, borrow)]
    text: Option<Text<'a>>,
}

/// Read for its type alone.
#[derive(Deserialize)]
struct Text<'a>(
    #[serde(borrow)]
    #[expect(dead_code)]
    Cow<'a, str>,
);

#[derive(Deserialize)]
struct TurnOnly {
    turn: u64,
}

#[derive(Deserialize)]
struct TurnAndStep {
    turn: u64,
    step: u64,
}

#[derive(Deserialize)]
struct Packed {
    turn: u64,
    step: u64,
    #[serde(default)]
    texts: Vec<IgnoredAny>,
    #[serde(default)]
    args: Vec<IgnoredAny>,
}

fn broken(rule: &'static str, message: String) -> Violation {
    Violation { rule, message }
}

fn read<'de, T: Deserialize<'de>>(kind: &str, data: &'de RawValue) -> Result<T, Violation> {
    serde_json::from_str(data.get()).map_err(|error| broken("shape", format!("The data of {kind} is wrong: {error}.")))
}

/// Parses a line without its newline. Errors: it is no event of these rules.
pub(super) fn parse_line(rules: Rules, line: &[u8]) -> Result<Line, Violation> {
    let envelope: Envelope<'_> = serde_json::from_slice(line).map_err(|error| {
        if !line.is_empty() && line.iter().all(|&byte| byte == 0) {
            broken("line", format!("The line is {} bytes of zeros.", line.len()))
        } else {
            broken("line", format!("The line is not an event: {error}."))
        }
    })?;
    let kind = envelope.r#type.as_ref();
    if matches!(kind, "text-chunks" | "reasoning-chunks" | "tool-call-chunks") && rules == Rules::SameStep {
        return packed(&envelope);
    }
    let Some(seq) = envelope.seq else { return Err(broken("envelope", format!("The event {kind} has no seq."))) };
    if envelope.time.is_none() {
        return Err(broken("envelope", format!("The event {kind} has no time.")));
    }
    if let Some(op) = envelope.surface_op.as_deref().filter(|op| *op != "append") {
        return Err(broken("surface-op", format!("surfaceOp is \"{op}\", but the only one is \"append\".")));
    }
    let fact = match (kind, rules) {
        ("assistant/chunk", _) => chunk(rules, envelope.data)?,
        (_, Rules::ClosedStep) => closed_step(kind, &envelope)?,
        (_, Rules::SameStep) => same_step(kind, envelope.data)?,
    };
    Ok(Line {
        seq,
        span: 1,
        surface_op: envelope.surface_op.is_some(),
        cites: envelope.source_event_seqs,
        fact,
        kind: envelope.r#type.into_owned(),
    })
}

fn chunk(rules: Rules, data: &RawValue) -> Result<Fact, Violation> {
    let piece: Piece<'_> = read("assistant/chunk", data)?;
    let kind = piece.chunk.r#type.as_ref();
    let streamed = matches!(kind, "text-delta" | "reasoning-delta");
    if !(streamed && piece.chunk.index.is_some() && piece.chunk.text.is_some()) && rules == Rules::ClosedStep {
        read::<AssistantChunk>("assistant/chunk", data)?;
    }
    Ok(Fact::Chunk { turn: piece.turn, step: piece.step, finish: kind == "finish" })
}

fn packed(envelope: &Envelope<'_>) -> Result<Line, Violation> {
    let kind = envelope.r#type.as_ref();
    let (Some(seq), Some(_)) = (envelope.seq0, envelope.time0) else {
        return Err(broken("envelope", format!("The packed line {kind} must have seq0 and time0.")));
    };
    let data: Packed = read(kind, envelope.data)?;
    let members = data.texts.len().max(data.args.len()) as u64;
    if members == 0 {
        return Err(broken("shape", format!("The packed line {kind} holds no pieces.")));
    }
    Ok(Line {
        kind: kind.to_owned(),
        seq,
        span: members,
        surface_op: false,
        cites: None,
        fact: Fact::Chunk { turn: data.turn, step: data.step, finish: false },
    })
}

fn closed_step(kind: &str, envelope: &Envelope<'_>) -> Result<Fact, Violation> {
    match Body::parse(kind, envelope.ignorable, envelope.data) {
        Ok(body) => Ok(Fact::Event(Box::new(body))),
        // The field that is wrong makes a better sentence than what the parser expected.
        Err(error) => {
            let value: Value = read(kind, envelope.data)?;
            let found = match kind {
                "llm/retry" => fields::retry(&value).err(),
                "llm/retry-started" => fields::started(&value).err(),
                _ => None,
            };
            let rule = if crate::journal::event::is_known(kind) { "shape" } else { "unknown-type" };
            Err(found.unwrap_or_else(|| broken(rule, format!("{kind}: {error}."))))
        }
    }
}

fn same_step(kind: &str, data: &RawValue) -> Result<Fact, Violation> {
    Ok(match kind {
        "turn/start" => Fact::TurnStart(read::<TurnOnly>(kind, data)?.turn),
        "turn/end" => Fact::TurnEnd(read::<TurnOnly>(kind, data)?.turn),
        "step/start" => step(kind, data, Fact::StepStart)?,
        "step/end" => step(kind, data, Fact::StepEnd)?,
        "assistant/message" => step(kind, data, |turn, step| Fact::Answer { turn, step })?,
        "request/header" => {
            let value: Value = read(kind, data)?;
            if value["reason"] == "fallback" {
                return Err(broken(
                    "legacy",
                    "A request/header with the reason \"fallback\" is no longer read.".into(),
                ));
            }
            match value["header"]["config"]["provider"].as_str() {
                Some(provider) => Fact::Header { provider: provider.to_owned() },
                None => return Err(broken("shape", "A request/header must name header.config.provider.".into())),
            }
        }
        "request/header-delta" => {
            return Err(broken("legacy", "The event type \"request/header-delta\" is no longer read.".into()));
        }
        "llm/retry" => Fact::Retry(Box::new(fields::retry(&read(kind, data)?)?)),
        "llm/retry-started" => Fact::Started(fields::started(&read(kind, data)?)?),
        // That system has many more, and what they mean is its own affair.
        _ => Fact::Other,
    })
}

fn step(kind: &str, data: &RawValue, fact: impl FnOnce(u64, u64) -> Fact) -> Result<Fact, Violation> {
    let TurnAndStep { turn, step } = read(kind, data)?;
    Ok(fact(turn, step))
}
