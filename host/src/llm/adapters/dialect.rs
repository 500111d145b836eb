//! The protocols, and what is different between them: the path, the credential's header, the body of a request, and
//! how an answer is read. All else is the same for each: one call, one table of failures.

use super::{
    answer::Answer, chat_answer::ChatAnswer, chat_request, messages_answer::MessagesAnswer, messages_request,
    responses_answer::ResponsesAnswer, responses_request,
};
use crate::llm::Request;
use reqwest::header::{AUTHORIZATION, HeaderName, HeaderValue, InvalidHeaderValue};
use std::num::NonZeroU32;

/// One protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Streaming chat completions, the protocol that most providers speak.
    #[default]
    OpenAiChat,
    /// The Messages protocol of Anthropic.
    AnthropicMessages,
    /// The Responses protocol of OpenAI.
    OpenAiResponses,
}

impl Dialect {
    pub const ALL: [Dialect; 3] = [Dialect::OpenAiChat, Dialect::AnthropicMessages, Dialect::OpenAiResponses];

    /// What is added to the path of the base URL.
    pub fn path(self) -> &'static str {
        match self {
            Dialect::OpenAiChat => "/chat/completions",
            Dialect::AnthropicMessages => "/messages",
            Dialect::OpenAiResponses => "/responses",
        }
    }

    /// Headers that every request of the protocol carries.
    pub(super) fn fixed_headers(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Dialect::OpenAiChat | Dialect::OpenAiResponses => &[],
            Dialect::AnthropicMessages => &[("anthropic-version", "2023-06-01")],
        }
    }

    /// The header that carries the API key.
    pub(super) fn key_header(self, key: &str) -> Result<(HeaderName, HeaderValue), InvalidHeaderValue> {
        Ok(match self {
            Dialect::OpenAiChat | Dialect::OpenAiResponses => {
                (AUTHORIZATION, HeaderValue::from_str(&format!("Bearer {key}"))?)
            }
            Dialect::AnthropicMessages => (HeaderName::from_static("x-api-key"), HeaderValue::from_str(key)?),
        })
    }

    /// The body of a request whose answer has at most `max_tokens`; equal requests give equal bytes.
    pub(super) fn body(self, request: &Request, max_tokens: Option<NonZeroU32>) -> Result<Vec<u8>, serde_json::Error> {
        match self {
            Dialect::OpenAiChat => chat_request::wire_body(request, max_tokens),
            Dialect::AnthropicMessages => messages_request::wire_body(request, max_tokens),
            Dialect::OpenAiResponses => responses_request::wire_body(request, max_tokens),
        }
    }

    /// An answer that has not begun.
    pub(super) fn answer(self) -> Box<dyn Answer> {
        match self {
            Dialect::OpenAiChat => Box::new(ChatAnswer::default()),
            Dialect::AnthropicMessages => Box::new(MessagesAnswer::default()),
            Dialect::OpenAiResponses => Box::new(ResponsesAnswer::default()),
        }
    }
}
