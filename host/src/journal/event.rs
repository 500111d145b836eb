//! The events of a session, and their one-line JSON form.
//!
//! The envelope is `{type, seq, time, data}`, times in milliseconds since the Unix epoch, fields in the order in which
//! the structs list them. An event of a type that this build does not know is kept when it is marked `ignorable`, and
//! refused otherwise.

use super::number;
use crate::{
    llm::{
        Block, Chunk, Failure, Usage,
        policy::{MAX_SAFE_INTEGER, MAX_TIMER_MS},
    },
    waterfall::executor::FaultKind,
};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::SerializeMap};
use serde_json::value::RawValue;
use std::borrow::Cow;

/// One record of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The position in the session, from 0, without gaps.
    pub seq: u64,
    /// When it was appended, in milliseconds since the Unix epoch.
    pub time: u64,
    pub body: Body,
    /// The events that a surface message was made of.
    pub source_event_seqs: Option<Vec<u64>>,
}

/// What happened. Each variant is one event type.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Body {
    TurnStart(TurnStart),
    UserMessage(UserMessage),
    StepStart(StepRef),
    RequestHeader(RequestHeader),
    AssistantChunk(AssistantChunk),
    AssistantMessage(AssistantMessage),
    StepEnd(StepEnd),
    Chain(ChainMet),
    Retry(Retry),
    RetryStarted(RetryStarted),
    RetryHandover(RetryHandover),
    ExecutorFault(ExecutorFault),
    ExecutorNote(ExecutorNote),
    TurnEnd(TurnEnd),
    /// A type from a newer version, marked as one that a reader may skip.
    Ignorable {
        r#type: String,
        data: serde_json::Value,
    },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnStart {
    /// From 1, counting up over the whole session.
    #[schemars(range(min = 1))]
    pub turn: u64,
    /// The failed turn that this one repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "u64", range(min = 1))]
    pub retry_of: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct UserMessage {
    pub content: Vec<Block>,
    pub source: UserSource,
    pub role: UserRole,
    #[schemars(length(min = 1))]
    pub id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum UserSource {
    User,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum UserRole {
    User,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct StepRef {
    #[schemars(range(min = 1))]
    pub turn: u64,
    /// From 1 in each turn.
    #[schemars(range(min = 1))]
    pub step: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RequestHeader {
    pub header: Header,
    pub reason: HeaderReason,
}

/// What the following requests have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Header {
    pub config: HeaderConfig,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HeaderConfig {
    pub provider: String,
    pub model: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum HeaderReason {
    /// The session's first request.
    Initial,
    /// The first request since the session was opened again.
    Resume,
    /// The header differs from the last one.
    Change,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AssistantChunk {
    #[schemars(range(min = 1))]
    pub turn: u64,
    #[schemars(range(min = 1))]
    pub step: u64,
    pub chunk: Chunk,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct AssistantMessage {
    #[schemars(range(min = 1))]
    pub turn: u64,
    #[schemars(range(min = 1))]
    pub step: u64,
    pub message: Answer,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The turn was cancelled while this was streaming; the message is the visible beginning.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Answer {
    pub role: AnswerRole,
    pub content: Vec<Block>,
    pub source: AnswerSource,
    #[schemars(length(min = 1))]
    pub id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AnswerRole {
    Assistant,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AnswerSource {
    Model { provider: String, model: String },
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepEnd {
    #[schemars(range(min = 1))]
    pub turn: u64,
    #[schemars(range(min = 1))]
    pub step: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Failure")]
    pub failure: Option<Failure>,
}

/// The session meets a generation of the chain for the first time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ChainMet {
    pub generation: u64,
    pub executors: Vec<ExecutorIdentity>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutorIdentity {
    pub id: String,
    pub name: String,
    pub version: String,
    /// SHA-256 of the component, in hex.
    pub digest: String,
}

/// A retry is scheduled; durable before its wait begins. Field order is fixed: readers of other systems rely on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = super::schema::limit_by_mode)]
pub struct Retry {
    #[schemars(length(min = 1))]
    pub retry_id: String,
    #[serde(deserialize_with = "number::whole")]
    #[schemars(range(min = 1))]
    pub turn: u64,
    #[serde(deserialize_with = "number::whole")]
    #[schemars(range(min = 1))]
    pub step: u64,
    #[schemars(length(min = 1))]
    pub provider: String,
    pub mode: RetryMode,
    #[schemars(length(min = 1))]
    pub policy_key: String,
    /// From 1, along the chain of retry turns.
    #[serde(deserialize_with = "number::whole")]
    #[schemars(range(min = 1, max = MAX_SAFE_INTEGER))]
    pub retry: u64,
    /// Absent under `always`.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "number::whole_option")]
    #[schemars(with = "u64", range(min = 1, max = MAX_SAFE_INTEGER))]
    pub max_retries: Option<u64>,
    #[serde(with = "number")]
    #[schemars(with = "f64", range(min = 0, max = MAX_TIMER_MS))]
    pub delay_ms: f64,
    pub failure: Failure,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RetryMode {
    Normal,
    Always,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryStarted {
    #[schemars(length(min = 1))]
    pub retry_id: String,
    #[serde(deserialize_with = "number::whole")]
    #[schemars(range(min = 1))]
    pub turn: u64,
    #[serde(deserialize_with = "number::whole")]
    #[schemars(range(min = 1))]
    pub step: u64,
    #[serde(deserialize_with = "number::whole")]
    #[schemars(range(min = 1, max = MAX_SAFE_INTEGER))]
    pub retry: u64,
}

/// A pending wait moves to the executors of `generation`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RetryHandover {
    #[schemars(length(min = 1))]
    pub retry_id: String,
    #[serde(deserialize_with = "number::whole")]
    #[schemars(range(min = 1))]
    pub turn: u64,
    #[serde(deserialize_with = "number::whole")]
    #[schemars(range(min = 1))]
    pub step: u64,
    #[serde(deserialize_with = "number::whole")]
    #[schemars(range(min = 1, max = MAX_SAFE_INTEGER))]
    pub retry: u64,
    #[serde(with = "number")]
    #[schemars(with = "f64", range(min = 0, max = MAX_TIMER_MS))]
    pub remaining_ms: f64,
    /// Who had scheduled it.
    pub from: ExecutorRef,
    #[serde(deserialize_with = "number::whole")]
    pub generation: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutorRef {
    pub id: String,
    pub digest: String,
}

impl ExecutorRef {
    /// Whoever scheduled a wait that no note tells about, when there is no executor whom it could have been.
    pub fn unknown() -> ExecutorRef {
        ExecutorRef { id: "unknown".into(), digest: String::new() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutorFault {
    pub id: String,
    pub digest: String,
    pub kind: FaultKind,
    pub message: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ExecutorNote {
    pub id: String,
    pub digest: String,
    pub kind: String,
    pub data: serde_json::Value,
}

/// The kind of the note that the host itself writes just before each `llm/retry`: its data names the generation and
/// the retry, so that a reader knows which executor scheduled it.
pub const SCHEDULING_NOTE: &str = "scheduling";

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TurnEnd {
    #[schemars(range(min = 1))]
    pub turn: u64,
    pub reason: TurnEndReason,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum TurnEndReason {
    Completed,
    /// The turn failed and the next one repeats it.
    Retry,
    Error {
        error: Box<Failure>,
    },
    /// Cancelled by its caller.
    Aborted,
    /// The model reached its output limit.
    MaxTokens,
    /// The process ended in the middle of the turn; written when the session is opened again.
    Interrupted,
}

/// The types that this build writes.
pub const KNOWN_TYPES: [&str; 14] = [
    "turn/start",
    "user/message",
    "step/start",
    "request/header",
    "assistant/chunk",
    "assistant/message",
    "step/end",
    "chain",
    "llm/retry",
    "llm/retry-started",
    "llm/retry-handover",
    "executor/fault",
    "executor/note",
    "turn/end",
];

/// Whether this build knows the event type.
pub fn is_known(kind: &str) -> bool {
    KNOWN_TYPES.contains(&kind)
}

impl Body {
    /// The event's `type`.
    pub fn type_name(&self) -> &str {
        match self {
            Body::TurnStart(_) => "turn/start",
            Body::UserMessage(_) => "user/message",
            Body::StepStart(_) => "step/start",
            Body::RequestHeader(_) => "request/header",
            Body::AssistantChunk(_) => "assistant/chunk",
            Body::AssistantMessage(_) => "assistant/message",
            Body::StepEnd(_) => "step/end",
            Body::Chain(_) => "chain",
            Body::Retry(_) => "llm/retry",
            Body::RetryStarted(_) => "llm/retry-started",
            Body::RetryHandover(_) => "llm/retry-handover",
            Body::ExecutorFault(_) => "executor/fault",
            Body::ExecutorNote(_) => "executor/note",
            Body::TurnEnd(_) => "turn/end",
            Body::Ignorable { r#type, .. } => r#type,
        }
    }

    /// Whether the event adds a message to what the model sees.
    pub fn is_surface(&self) -> bool {
        matches!(self, Body::UserMessage(_) | Body::AssistantMessage(_))
    }

    /// The event of type `kind` with this data. Errors: the data does not fit, or the type is unknown and not ignorable.
    pub(super) fn parse(kind: &str, ignorable: bool, data: &RawValue) -> Result<Body, serde_json::Error> {
        fn read<'de, T: Deserialize<'de>>(data: &'de RawValue) -> Result<T, serde_json::Error> {
            serde_json::from_str(data.get())
        }
        Ok(match kind {
            "turn/start" => Body::TurnStart(read(data)?),
            "user/message" => Body::UserMessage(read(data)?),
            "step/start" => Body::StepStart(read(data)?),
            "request/header" => Body::RequestHeader(read(data)?),
            "assistant/chunk" => Body::AssistantChunk(read(data)?),
            "assistant/message" => Body::AssistantMessage(read(data)?),
            "step/end" => Body::StepEnd(read(data)?),
            "chain" => Body::Chain(read(data)?),
            "llm/retry" => Body::Retry(read(data)?),
            "llm/retry-started" => Body::RetryStarted(read(data)?),
            "llm/retry-handover" => Body::RetryHandover(read(data)?),
            "executor/fault" => Body::ExecutorFault(read(data)?),
            "executor/note" => Body::ExecutorNote(read(data)?),
            "turn/end" => Body::TurnEnd(read(data)?),
            other if ignorable => Body::Ignorable { r#type: other.to_owned(), data: read(data)? },
            other => {
                return Err(serde_json::Error::custom(format!(
                    "the event type \"{other}\" is not known to this version and is not marked as ignorable"
                )));
            }
        })
    }
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("type", self.body.type_name())?;
        map.serialize_entry("seq", &self.seq)?;
        map.serialize_entry("time", &self.time)?;
        match &self.body {
            Body::Ignorable { data, .. } => {
                map.serialize_entry("data", data)?;
                map.serialize_entry("ignorable", &true)?;
            }
            body => map.serialize_entry("data", body)?,
        }
        if let Some(seqs) = &self.source_event_seqs {
            map.serialize_entry("sourceEventSeqs", seqs)?;
        }
        if self.body.is_surface() {
            map.serialize_entry("surfaceOp", "append")?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Envelope<'a> {
            r#type: String,
            seq: u64,
            time: u64,
            #[serde(borrow)]
            data: &'a RawValue,
            #[serde(default)]
            ignorable: bool,
            #[serde(default)]
            source_event_seqs: Option<Vec<u64>>,
            #[serde(default, borrow)]
            surface_op: Option<Cow<'a, str>>,
        }
        let envelope = Envelope::deserialize(deserializer)?;
        let body = Body::parse(&envelope.r#type, envelope.ignorable, envelope.data)
            .map_err(|error| D::Error::custom(format!("{}: {error}", envelope.r#type)))?;
        // Derived from the type when written: what reaches a request says so, and nothing else does.
        let expected = body.is_surface().then_some("append");
        if envelope.surface_op.as_deref() != expected && !matches!(body, Body::Ignorable { .. }) {
            let kind = envelope.r#type;
            let must = expected.map_or_else(|| "be absent".to_owned(), |op| format!("be \"{op}\""));
            return Err(D::Error::custom(format!("{kind}: surfaceOp must {must}")));
        }
        Ok(Event { seq: envelope.seq, time: envelope.time, body, source_event_seqs: envelope.source_event_seqs })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::{FailureCode, FinishReason};

    fn event(body: Body) -> Event {
        Event { seq: 7, time: 1_790_000_000_131, body, source_event_seqs: None }
    }

    #[test]
    fn a_normal_retry_is_written_with_the_fixed_fields_in_the_fixed_order() {
        let retry = event(Body::Retry(Retry {
            retry_id: "6e0f".into(),
            turn: 1,
            step: 1,
            provider: "acme".into(),
            mode: RetryMode::Normal,
            policy_key: "[\"normal\",3]".into(),
            retry: 1,
            max_retries: Some(3),
            delay_ms: 200.0,
            failure: Failure { status: Some(503), ..Failure::new(FailureCode::Server, "overloaded") },
        }));
        let line = serde_json::to_string(&retry).unwrap();
        assert_eq!(
            line,
            r#"{"type":"llm/retry","seq":7,"time":1790000000131,"data":{"retryId":"6e0f","turn":1,"step":1,"provider":"acme","mode":"normal","policyKey":"[\"normal\",3]","retry":1,"maxRetries":3,"delayMs":200,"failure":{"message":"overloaded","code":"SERVER","status":503}}}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), retry);
    }

    #[test]
    fn an_always_retry_has_no_limit_and_keeps_a_fractional_delay() {
        let retry = event(Body::Retry(Retry {
            retry_id: "a".into(),
            turn: 2,
            step: 1,
            provider: "acme".into(),
            mode: RetryMode::Always,
            policy_key: "k".into(),
            retry: 9,
            max_retries: None,
            delay_ms: 1.1,
            failure: Failure::new(FailureCode::Auth, "no"),
        }));
        let line = serde_json::to_string(&retry).unwrap();
        assert!(line.contains(r#""retry":9,"delayMs":1.1,"failure""#), "{line}");
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), retry);
    }

    #[test]
    fn a_surface_event_says_so_and_cites_its_chunks() {
        let mut answer = event(Body::AssistantMessage(AssistantMessage {
            turn: 1,
            step: 1,
            message: Answer {
                role: AnswerRole::Assistant,
                content: vec![Block::Text { text: "Seven.".into() }],
                source: AnswerSource::Model { provider: "acme".into(), model: "acme-1".into() },
                id: "m-2".into(),
            },
            usage: None,
            interrupted: false,
        }));
        answer.source_event_seqs = Some(vec![4, 5]);
        let line = serde_json::to_string(&answer).unwrap();
        assert_eq!(
            line,
            r#"{"type":"assistant/message","seq":7,"time":1790000000131,"data":{"turn":1,"step":1,"message":{"role":"assistant","content":[{"type":"text","text":"Seven."}],"source":{"kind":"model","provider":"acme","model":"acme-1"},"id":"m-2"}},"sourceEventSeqs":[4,5],"surfaceOp":"append"}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), answer);
    }

    #[test]
    fn a_finish_chunk_carries_its_failure() {
        let chunk = event(Body::AssistantChunk(AssistantChunk {
            turn: 1,
            step: 1,
            chunk: Chunk::Finish {
                reason: FinishReason::Error { failure: Failure::new(FailureCode::RateLimit, "slow down") },
            },
        }));
        let line = serde_json::to_string(&chunk).unwrap();
        assert!(
            line.contains(r#""chunk":{"type":"finish","reason":{"kind":"error","failure":{"message":"slow down","code":"RATE_LIMIT"}}}"#),
            "{line}"
        );
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), chunk);
    }

    #[test]
    fn an_unknown_type_is_refused_unless_it_is_ignorable() {
        let error = serde_json::from_str::<Event>(r#"{"type":"new/thing","seq":0,"time":1,"data":{}}"#)
            .unwrap_err()
            .to_string();
        assert!(error.contains("new/thing"), "{error}");
        let kept = r#"{"type":"new/thing","seq":0,"time":1,"data":{"a":[1]},"ignorable":true}"#;
        let event = serde_json::from_str::<Event>(kept).unwrap();
        assert_eq!(serde_json::to_string(&event).unwrap(), kept);
    }
}
