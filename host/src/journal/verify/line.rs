//! One line, parsed once into the few facts that the rules look at.
//!
//! Almost every line of a session is a piece of streamed text. Such a line is read in place: nothing of it is copied.

use super::{Rules, fields, types};
use crate::{
    journal::{
        event::{AssistantChunk, Body},
        invariants::Violation,
    },
    llm::BlockType,
};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Value, value::RawValue};
use std::borrow::Cow;

/// What a line says.
pub(super) struct Line<'a> {
    pub kind: Cow<'a, str>,
    pub seq: u64,
    /// How many events it stands for: more than one when streamed pieces were packed into one line.
    pub span: u64,
    pub surface_op: bool,
    pub cites: Option<Vec<u64>>,
    pub fact: Fact<'a>,
    /// A field breaks a rule, but what the line is about can be told.
    pub flaw: Option<Violation>,
}

pub(super) enum Fact<'a> {
    /// A piece of streamed text of this program's own dialect.
    Delta {
        turn: u64,
        step: u64,
        index: u32,
        block: BlockType,
        text: Cow<'a, str>,
    },
    /// Any other event of this program's own dialect.
    Event(Box<Body>),
    /// Chunks of the same-step dialect.
    Chunk {
        turn: u64,
        step: u64,
        finish: bool,
    },
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
    /// A failed request of the same-step dialect's newer line, which keeps no chunks.
    Attempt {
        turn: u64,
        step: u64,
    },
    /// What follows belongs to another process, or to the copy of a session.
    EndSeed,
    /// A record of the same-step dialect, or one of this program's own that could only be read in part.
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
    surface_op: Option<&'a RawValue>,
}

/// A chunk, borrowed; `index` and `text` are absent in those of other kinds.
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

#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

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
    /// The milliseconds between the pieces: one for each.
    dt: Vec<f64>,
    #[serde(default)]
    texts: Vec<IgnoredAny>,
    #[serde(default)]
    args: Vec<IgnoredAny>,
}

/// What a stream is made of, in both dialects.
const CHUNK_TYPES: [&str; 7] =
    ["block-start", "text-delta", "reasoning-delta", "tool-call-delta", "block-end", "usage", "finish"];

fn broken(rule: &'static str, message: String) -> Violation {
    Violation { rule, message }
}

fn read<'de, T: Deserialize<'de>>(kind: &str, data: &'de RawValue) -> Result<T, Violation> {
    serde_json::from_str(data.get()).map_err(|error| broken("shape", format!("The data of {kind} is wrong: {error}.")))
}

/// Parses a line without its newline. Errors: it is no event of these rules.
pub(super) fn parse_line(rules: Rules, line: &[u8]) -> Result<Line<'_>, Violation> {
    let mut envelope: Envelope<'_> = serde_json::from_slice(line).map_err(|error| {
        if !line.is_empty() && line.iter().all(|&byte| byte == 0) {
            broken("line", format!("The line is {} bytes of zeros.", line.len()))
        } else {
            broken("line", format!("The line is not an event: {error}."))
        }
    })?;
    let kind = envelope.r#type.as_ref();
    if kind.is_empty() {
        return Err(broken("type", "An event's type must not be empty.".into()));
    }
    if matches!(kind, "text-chunks" | "reasoning-chunks" | "tool-call-chunks") && rules == Rules::SameStep {
        return packed(envelope);
    }
    let Some(seq) = envelope.seq else { return Err(broken("envelope", format!("The event {kind} has no seq."))) };
    if envelope.time.is_none() {
        return Err(broken("envelope", format!("The event {kind} has no time.")));
    }
    let op_flaw = envelope.surface_op.and_then(|op| surface_op(rules, op).err());
    let (fact, flaw) = match (kind, rules) {
        ("assistant/chunk", Rules::ClosedStep) => own_chunk(envelope.data)?,
        (_, Rules::ClosedStep) => own_event(kind, &envelope)?,
        (_, Rules::SameStep) => same_step(kind, &envelope)?,
    };
    Ok(Line {
        seq,
        span: 1,
        surface_op: envelope.surface_op.is_some(),
        cites: envelope.source_event_seqs.take(),
        fact,
        flaw: op_flaw.or(flaw),
        kind: envelope.r#type,
    })
}

/// What a message does to the surface. Only the same-step dialect replaces messages, when it compacts a session.
fn surface_op(rules: Rules, op: &RawValue) -> Result<(), Violation> {
    let value: Value = read("surfaceOp", op)?;
    let replaces = value["op"] == "replace" || value.get("replace").is_some();
    if value == "append" || (rules == Rules::SameStep && replaces) {
        return Ok(());
    }
    let known = if rules == Rules::SameStep { "\"append\" or a replacement" } else { "\"append\"" };
    Err(broken("surface-op", format!("surfaceOp must be {known}, not {value}.")))
}

fn own_chunk(data: &RawValue) -> Result<(Fact<'_>, Option<Violation>), Violation> {
    let Piece { turn, step, chunk } = read("assistant/chunk", data)?;
    let block = match chunk.r#type.as_ref() {
        "text-delta" => Some(BlockType::Text),
        "reasoning-delta" => Some(BlockType::Reasoning),
        _ => None,
    };
    if let (Some(block), Some(index), Some(Text(text))) = (block, chunk.index, chunk.text) {
        return Ok((Fact::Delta { turn, step, index, block, text }, None));
    }
    let flaw = match chunk.r#type.as_ref() {
        "finish" => fields::carried_failure("assistant/chunk", &read("assistant/chunk", data)?).err(),
        _ => None,
    };
    match read::<AssistantChunk>("assistant/chunk", data) {
        Ok(chunk) => Ok((Fact::Event(Box::new(Body::AssistantChunk(chunk))), flaw)),
        Err(error) => Err(flaw.unwrap_or(error)),
    }
}

fn packed(envelope: Envelope<'_>) -> Result<Line<'_>, Violation> {
    let kind = envelope.r#type.as_ref();
    let (Some(seq), Some(_)) = (envelope.seq0, envelope.time0) else {
        return Err(broken("envelope", format!("The packed line {kind} must have seq0 and time0.")));
    };
    let data: Packed = read(kind, envelope.data)?;
    let (name, pieces) = if kind == "tool-call-chunks" { ("args", data.args) } else { ("texts", data.texts) };
    if pieces.is_empty() {
        return Err(broken("shape", format!("The packed line {kind} holds no pieces.")));
    }
    // A time for each piece, or for each behind the first, whose own is time0.
    let flaw = (![pieces.len(), pieces.len() - 1].contains(&data.dt.len())).then(|| {
        let (times, pieces) = (data.dt.len(), pieces.len());
        broken("shape", format!("The packed line {kind} has {times} times in dt for {pieces} pieces in {name}."))
    });
    Ok(Line {
        seq,
        span: pieces.len() as u64,
        surface_op: false,
        cites: None,
        fact: Fact::Chunk { turn: data.turn, step: data.step, finish: false },
        flaw,
        kind: envelope.r#type,
    })
}

fn own_event<'a>(kind: &str, envelope: &Envelope<'a>) -> Result<(Fact<'a>, Option<Violation>), Violation> {
    // The parser of events takes a null for an absent field, and does not look at bounds.
    let checked = matches!(kind, "llm/retry" | "llm/retry-started" | "step/end" | "turn/end");
    let value: Value = if checked { read(kind, envelope.data)? } else { Value::Null };
    let flaw = match kind {
        "llm/retry" => fields::retry(&value).err(),
        "llm/retry-started" => fields::started(&value).err(),
        "step/end" | "turn/end" => fields::carried_failure(kind, &value).err(),
        _ => None,
    };
    match Body::parse(kind, envelope.ignorable, envelope.data) {
        Ok(body) => Ok((Fact::Event(Box::new(body)), flaw)),
        Err(error) => {
            let rule = if crate::journal::event::is_known(kind) { "shape" } else { "unknown-type" };
            // The field that is wrong makes a better sentence than what the parser expected.
            let flaw = flaw.unwrap_or_else(|| broken(rule, format!("{kind}: {error}.")));
            match kind {
                "llm/retry" => Ok((Fact::Retry(Box::new(fields::readable(&value))), Some(flaw))),
                _ => Err(flaw),
            }
        }
    }
}

fn same_step<'a>(kind: &str, envelope: &Envelope<'a>) -> Result<(Fact<'a>, Option<Violation>), Violation> {
    let data = envelope.data;
    let sound = |fact| Ok((fact, None));
    match kind {
        "assistant/chunk" => {
            let Piece { turn, step, chunk } = read(kind, data)?;
            let finish = chunk.r#type == "finish";
            let flaw = if finish {
                fields::finish_reason(&read(kind, data)?).err()
            } else if !CHUNK_TYPES.contains(&chunk.r#type.as_ref()) {
                Some(broken("chunk-type", format!("A chunk's type is one of {CHUNK_TYPES:?}, not {:?}.", chunk.r#type)))
            } else {
                None
            };
            Ok((Fact::Chunk { turn, step, finish }, flaw))
        }
        "turn/start" => sound(Fact::TurnStart(read::<TurnOnly>(kind, data)?.turn)),
        "turn/end" => {
            Ok((Fact::TurnEnd(read::<TurnOnly>(kind, data)?.turn), fields::turn_reason(&read(kind, data)?).err()))
        }
        "step/start" => sound(step(kind, data, Fact::StepStart)?),
        "step/end" => sound(step(kind, data, Fact::StepEnd)?),
        "user/message" => Ok((Fact::Other, fields::content(kind, &read(kind, data)?).err())),
        "assistant/message" => {
            let value: Value = read(kind, data)?;
            let fact = step(kind, data, |turn, step| Fact::Answer { turn, step })?;
            Ok((fact, fields::content(kind, &value["message"]).err()))
        }
        "assistant/attempt" => sound(step(kind, data, |turn, step| Fact::Attempt { turn, step })?),
        "session/end-seed" => sound(Fact::EndSeed),
        "request/header" => {
            let value: Value = read(kind, data)?;
            if value["reason"] == "fallback" {
                let message = "A request/header with the reason \"fallback\" is no longer read.".into();
                return Err(broken("legacy", message));
            }
            match value["header"]["config"]["provider"].as_str() {
                Some(provider) => sound(Fact::Header { provider: provider.to_owned() }),
                None => Err(broken("shape", "A request/header must name header.config.provider.".into())),
            }
        }
        "request/header-delta" => {
            Err(broken("legacy", "The event type \"request/header-delta\" is no longer read.".into()))
        }
        "llm/retry" => {
            let value: Value = read(kind, data)?;
            let (fields, flaw) = match fields::retry(&value) {
                Ok(fields) => (fields, None),
                Err(flaw) => (fields::readable(&value), Some(flaw)),
            };
            Ok((Fact::Retry(Box::new(fields)), flaw))
        }
        "llm/retry-started" => sound(Fact::Started(fields::started(&read(kind, data)?)?)),
        _ if envelope.ignorable || types::is_known(kind) => sound(Fact::Other),
        _ => {
            let message = format!("The event type \"{kind}\" is not known and is not marked as ignorable.");
            Ok((Fact::Other, Some(broken("unknown-type", message))))
        }
    }
}

fn step(kind: &str, data: &RawValue, fact: impl FnOnce(u64, u64) -> Fact<'static>) -> Result<Fact<'static>, Violation> {
    let TurnAndStep { turn, step } = read(kind, data)?;
    Ok(fact(turn, step))
}
