//! The format of a case file. `tests/cases/README.md` explains it.

use retake::llm::adapters::Dialect;
use retake_tests::START_MS;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Case {
    pub says: String,
    #[serde(default)]
    pub adapters: Vec<Adapter>,
    pub replies: Vec<Reply>,
    #[serde(default)]
    pub repeat: bool,
    #[serde(default)]
    pub prompt_bytes: usize,
    #[serde(default = "start")]
    pub clock: u64,
    #[serde(default)]
    pub limits: BTreeMap<String, u64>,
    #[serde(default)]
    pub text_hints: bool,
    #[serde(default)]
    pub policy: Option<Value>,
    #[serde(default)]
    pub cancel: Option<Cancel>,
    pub expect: Expect,
}

fn start() -> u64 {
    START_MS
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Adapter {
    #[serde(rename = "openai-chat")]
    OpenAiChat,
    AnthropicMessages,
    #[serde(rename = "openai-responses")]
    OpenAiResponses,
}

impl Adapter {
    pub const ALL: [Adapter; 3] = [Adapter::OpenAiChat, Adapter::AnthropicMessages, Adapter::OpenAiResponses];

    pub fn dialect(self) -> Dialect {
        match self {
            Adapter::OpenAiChat => Dialect::OpenAiChat,
            Adapter::AnthropicMessages => Dialect::AnthropicMessages,
            Adapter::OpenAiResponses => Dialect::OpenAiResponses,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Adapter::OpenAiChat => "openai-chat",
            Adapter::AnthropicMessages => "anthropic-messages",
            Adapter::OpenAiResponses => "openai-responses",
        }
    }
}

/// One answer of the server: a `status`, a `stream` or the bare `wire`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reply {
    pub status: Option<u16>,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub body: String,
    pub stream: Option<Vec<Step>>,
    pub wire: Option<Vec<Step>>,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub struct Step {
    pub say: Option<String>,
    pub think: Option<String>,
    pub call: Option<String>,
    pub end: Option<String>,
    pub raw: Option<String>,
    pub raws: Option<BTreeMap<String, String>>,
    pub hex: Option<String>,
    pub fill: Option<usize>,
    pub pause: Option<u64>,
    #[serde(default)]
    pub reset: bool,
    #[serde(default)]
    pub hang: bool,
}

/// When the user cancels.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cancel {
    /// As soon as a retry is scheduled.
    Wait,
    /// At the first content.
    Stream,
    /// After 100 ms.
    Time,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    pub failures: Option<Vec<Value>>,
    pub delays: Option<Vec<f64>>,
    pub requests: Option<usize>,
    pub turn: Turn,
    pub text: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Turn {
    Answered,
    Failed,
    Cancelled,
}
