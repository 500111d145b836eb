//! Streaming chat completions, the protocol that most providers speak.
//!
//! Owns the wire request, the limits of one call and the naming of its failures. It makes exactly one HTTP request for
//! a call, never a second. Called through [`crate::llm::PreparedCall`].

use super::{
    chat_answer::{ChatAnswer, Progress, Trouble},
    chat_request::wire_body,
    http::{self, Limits, WireError},
    provider_error::ProviderError,
    secret::{Redactor, Secret},
    sse::Decoder,
};
use crate::{
    env::Clock,
    llm::{
        Adapter, Chunk, Evidence, Failure, FailureCode, FinishReason, Request,
        classify::{Signal, WireFault, classify},
        failure::MAX_KEPT_BODY,
        retry_after::{HintHeaders, body_hint_ms, hint_ms},
    },
};
use bytes::Bytes;
use futures_util::{StreamExt, stream, stream::BoxStream};
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION},
};
use std::{
    collections::VecDeque,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

/// How long the body of a failed response is read. What it says is worth a moment, but not a wait.
const ERROR_BODY_LIMIT: Duration = Duration::from_secs(2);

/// Where providers put their id of a request, in the order of preference.
const REQUEST_ID_HEADERS: [&str; 5] =
    ["x-request-id", "request-id", "x-deepseek-request-id", "x-amzn-requestid", "apim-request-id"];

/// Headers that the protocol itself sets.
const RESERVED_HEADERS: [&str; 6] =
    ["host", "content-type", "content-length", "transfer-encoding", "connection", "accept"];

/// One provider that speaks chat completions.
#[derive(Clone, Debug, Default)]
pub struct OpenAiChatConfig {
    /// For instance `https://api.deepseek.com/v1`; `/chat/completions` is added to its path.
    pub base_url: String,
    /// Sent as a bearer token.
    pub api_key: Option<Secret>,
    /// Further headers, in the order in which they are sent. Their values are kept out of failures like the key.
    pub headers: Vec<(String, Secret)>,
    pub limits: Limits,
}

/// Why a provider's configuration cannot work. No variant shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("the base URL {url:?} is not one ({reason}); it must read like https://host/v1")]
    BadUrl { url: String, reason: String },
    #[error("the base URL of host {host:?} contains a user name or password; give the credential as the API key")]
    CredentialInUrl { host: String },
    #[error(
        "the API key contains characters that no HTTP header may hold; it must be printable ASCII, without line ends"
    )]
    BadKey,
    #[error(
        "{name:?} cannot be the name of an extra header; it must be an HTTP token that the adapter does not set itself"
    )]
    BadHeaderName { name: String },
    #[error("the value of the extra header {name:?} contains characters that no HTTP header may hold")]
    BadHeaderValue { name: String },
    #[error("the {name} limit is 0; it must be longer, or every call fails")]
    ZeroLimit { name: &'static str },
}

/// The adapter of one provider. Cheap to make: the HTTP client is built by the first call.
pub struct OpenAiChat(Arc<Shared>);

struct Shared {
    url: Url,
    /// Scheme, host and path, for messages.
    endpoint: String,
    headers: HeaderMap,
    limits: Limits,
    redactor: Redactor,
    clock: Arc<dyn Clock>,
    client: OnceLock<Result<Client, String>>,
}

impl OpenAiChat {
    /// Checks the configuration and makes the adapter. `clock` measures hints that name a point in time.
    ///
    /// # Errors
    /// A URL, key, header or limit that cannot work.
    pub fn new(config: OpenAiChatConfig, clock: Arc<dyn Clock>) -> Result<Self, ConfigError> {
        let url = endpoint_url(&config.base_url)?;
        let limits = config.limits;
        for (name, limit) in [
            ("connect", limits.connect),
            ("first-byte", limits.first_byte),
            ("idle", limits.idle),
            ("content", limits.content),
        ] {
            if limit.is_zero() {
                return Err(ConfigError::ZeroLimit { name });
            }
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        if let Some(key) = &config.api_key {
            let value = HeaderValue::from_str(&format!("Bearer {}", key.expose()));
            headers.insert(AUTHORIZATION, sensitive(value.map_err(|_| ConfigError::BadKey)?));
        }
        for (name, value) in &config.headers {
            let header =
                HeaderName::from_bytes(name.as_bytes()).ok().filter(|n| !RESERVED_HEADERS.contains(&n.as_str()));
            let header = header.ok_or_else(|| ConfigError::BadHeaderName { name: name.clone() })?;
            let value = HeaderValue::from_str(value.expose());
            let value = value.map_err(|_| ConfigError::BadHeaderValue { name: name.clone() })?;
            headers.insert(header, sensitive(value));
        }
        let secrets = config.api_key.iter().chain(config.headers.iter().map(|(_, value)| value)).map(Secret::expose);
        Ok(OpenAiChat(Arc::new(Shared {
            endpoint: format!("{}://{}{}", url.scheme(), authority(&url), url.path()),
            redactor: Redactor::new(secrets),
            url,
            headers,
            limits,
            clock,
            client: OnceLock::new(),
        })))
    }
}

impl Adapter for OpenAiChat {
    fn stream(&self, request: Arc<Request>, cancel: CancellationToken) -> BoxStream<'static, Chunk> {
        let call = Call {
            shared: self.0.clone(),
            request,
            cancel,
            queue: VecDeque::new(),
            state: State::Unsent,
            decoder: Decoder::default(),
            answer: ChatAnswer::default(),
            request_id: None,
            is_event_stream: false,
            last_content: Instant::now(),
        };
        stream::unfold(call, Call::next).boxed()
    }
}

fn sensitive(mut value: HeaderValue) -> HeaderValue {
    value.set_sensitive(true);
    value
}

fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or("");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn endpoint_url(base: &str) -> Result<Url, ConfigError> {
    // The text of a URL that holds a password must not be shown, even if the rest of it is wrong.
    let shown = if base.contains('@') { "[hidden]" } else { base };
    let bad = |reason: String| ConfigError::BadUrl { url: shown.to_owned(), reason };
    let mut url = Url::parse(base.trim()).map_err(|error| bad(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(bad(format!("its scheme is {}", url.scheme())));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(ConfigError::CredentialInUrl { host: authority(&url) });
    }
    let path = format!("{}/chat/completions", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url.set_fragment(None);
    Ok(url)
}

enum State {
    Unsent,
    /// The head was fine and the body is being read.
    Reading(Response),
    Over,
}

/// One call. Everything that it holds is made for it and dropped with it.
struct Call {
    shared: Arc<Shared>,
    request: Arc<Request>,
    cancel: CancellationToken,
    queue: VecDeque<Chunk>,
    state: State,
    decoder: Decoder,
    answer: ChatAnswer,
    request_id: Option<String>,
    /// Whether the body has shown that it is not JSON or a page.
    is_event_stream: bool,
    last_content: Instant,
}

impl Call {
    async fn next(mut self) -> Option<(Chunk, Self)> {
        loop {
            let over = matches!(self.state, State::Over);
            if !over && self.cancel.is_cancelled() {
                self.abort();
            }
            if let Some(chunk) = self.queue.pop_front() {
                return Some((chunk, self));
            }
            if over {
                return None;
            }
            let cancel = self.cancel.clone();
            tokio::select! {
                biased;
                () = cancel.cancelled() => self.abort(),
                () = self.advance() => {}
            }
        }
    }

    fn abort(&mut self) {
        self.queue.clear();
        self.state = State::Over;
        let failure = self.failure(Failure::new(FailureCode::Aborted, "the request was cancelled"));
        self.queue.push_back(Chunk::Finish { reason: FinishReason::Aborted { failure } });
    }

    /// Does the next thing that takes time. Dropping it midway is fine: the call is then dropped or aborted as well.
    async fn advance(&mut self) {
        let outcome = match std::mem::replace(&mut self.state, State::Over) {
            State::Unsent => self.send().await,
            State::Reading(response) => self.read(response).await,
            State::Over => return,
        };
        match outcome {
            Ok(state) => self.state = state,
            Err(failure) => {
                self.finish(FinishReason::Error { failure: *failure });
            }
        }
    }

    /// Queues the last chunks: the usage, if the provider gave one, and the finish.
    fn finish(&mut self, reason: FinishReason) {
        self.queue.extend(self.answer.usage().map(|usage| Chunk::Usage { usage }));
        self.queue.push_back(Chunk::Finish { reason });
    }

    async fn send(&mut self) -> Result<State, Box<Failure>> {
        let shared = self.shared.clone();
        let client = match shared
            .client
            .get_or_init(|| http::client(&shared.url, &shared.limits).map_err(|error| WireError::of(&error).text))
        {
            Ok(client) => client,
            Err(text) => {
                let evidence = Evidence { causes: vec!["tls".to_owned()], ..Evidence::default() };
                let message = format!("the HTTP client could not be set up: {text}");
                return Err(self.wire(WireFault::Tls, "setup", message, evidence));
            }
        };
        let body = wire_body(&self.request).map_err(|error| {
            let message = format!("the request could not be written as JSON: {error}");
            Box::new(self.failure(Failure::new(FailureCode::InvalidRequest, message)))
        })?;
        let sending = client.post(shared.url.clone()).headers(shared.headers.clone()).body(body).send();
        let limits = &shared.limits;
        let response = match timeout(limits.first_byte, sending).await {
            Err(_) => return Err(self.timeout("first-byte", limits.first_byte, "sent no response")),
            Ok(Err(error)) => {
                let connecting = error.is_connect();
                let phase = if connecting { "connect" } else { "first-byte" };
                let wire = WireError::of(&error.without_url());
                if wire.fault == WireFault::Timeout && connecting {
                    return Err(self.timeout("connect", limits.connect, "accepted no connection"));
                }
                let did = if connecting { "could not connect to" } else { "no response came from" };
                let message = format!("{did} {}: {}", shared.endpoint, wire.text);
                return Err(self.wire(wire.fault, phase, message, wire.evidence(phase)));
            }
            Ok(Ok(response)) => response,
        };
        self.last_content = Instant::now();
        self.request_id = REQUEST_ID_HEADERS
            .iter()
            .find_map(|name| header(&response, name).filter(|value| !value.is_empty()).map(str::to_owned));
        if !response.status().is_success() {
            return Err(self.refused(response).await);
        }
        if response.status() == StatusCode::NO_CONTENT || response.content_length() == Some(0) {
            let message = format!("{} answered {} without a body", shared.endpoint, response.status());
            return Err(self.named(FailureCode::EmptyResponse, "status/no-body", message));
        }
        Ok(State::Reading(response))
    }

    /// A response whose status is no success.
    async fn refused(&self, mut response: Response) -> Box<Failure> {
        let shared = &self.shared;
        let status = response.status();
        let body = read_text(&mut response, Vec::new()).await;
        let error = ProviderError::of_body(&body);
        let signal = Signal {
            status: Some(status.as_u16()),
            should_retry: header(&response, "x-should-retry").and_then(|word| word.parse().ok()),
            ..signal_of(&error)
        };
        let verdict = classify(&signal);
        let sentence = || match header(&response, LOCATION.as_str()).filter(|_| status.is_redirection()) {
            Some(target) => {
                format!("{} redirects to {target} ({status}); set the base URL to where the API is", shared.endpoint)
            }
            None => format!("{} answered {status}", shared.endpoint),
        };
        let mut failure = Failure::new(verdict.code, error.message.clone().unwrap_or_else(sentence));
        failure.status = Some(status.as_u16()).filter(|status| (100..=599).contains(status));
        let hints = HintHeaders {
            retry_after_ms: header(&response, "retry-after-ms"),
            retry_after: header(&response, "retry-after"),
            date: header(&response, "date"),
            age: header(&response, "age"),
        };
        let now = shared.clock.wall_ms();
        failure.provider_retry_after_ms = hint_ms(&hints, now).or_else(|| body_hint(&body, now));
        failure.evidence = Some(Evidence {
            row: Some(verdict.row.to_owned()),
            provider_code: error.code.or(error.kind),
            retry_after: hints.retry_after_ms.or(hints.retry_after).map(str::to_owned),
            body: Some(body).filter(|body| !body.is_empty()),
            ..Evidence::default()
        });
        Box::new(self.failure(failure))
    }

    /// Reads the next piece of the body.
    async fn read(&mut self, mut response: Response) -> Result<State, Box<Failure>> {
        let limits = self.shared.limits;
        let (idle, content) = (Instant::now() + limits.idle, self.last_content + limits.content);
        match timeout_at(idle.min(content), response.chunk()).await {
            Err(_) if content < idle => Err(self.timeout("content", limits.content, "sent no content")),
            Err(_) => Err(self.timeout("idle", limits.idle, "sent nothing")),
            Ok(Err(error)) => {
                let wire = WireError::of(&error.without_url());
                let message = format!("the answer of {} was cut: {}", self.shared.endpoint, wire.text);
                Err(self.wire(wire.fault, "stream", message, wire.evidence("stream")))
            }
            Ok(Ok(Some(bytes))) => self.bytes(response, bytes).await,
            Ok(Ok(None)) => self.end_of_body(),
        }
    }

    async fn bytes(&mut self, mut response: Response, bytes: Bytes) -> Result<State, Box<Failure>> {
        if !self.is_event_stream {
            // What stands before the first byte of substance is white space, or a byte order mark.
            let first = bytes.iter().find(|byte| !byte.is_ascii_whitespace() && !"\u{feff}".as_bytes().contains(byte));
            if let Some(b'{' | b'[' | b'<') = first {
                let body = read_text(&mut response, bytes.to_vec()).await;
                return Err(self.no_stream(&body));
            }
            self.is_event_stream = first.is_some();
        }
        self.events(response, &bytes)
    }

    fn events(&mut self, response: Response, bytes: &[u8]) -> Result<State, Box<Failure>> {
        let events = self.decoder.push(bytes).map_err(|error| {
            let message = format!("{} broke its protocol: {error}", self.shared.endpoint);
            self.named(FailureCode::Protocol, "stream/malformed", message)
        })?;
        for event in events {
            if self.event(&event)? {
                return Ok(State::Over);
            }
        }
        Ok(State::Reading(response))
    }

    /// Takes one event, and says whether the answer is over.
    fn event(&mut self, event: &super::sse::Event) -> Result<bool, Box<Failure>> {
        let mut chunks = Vec::new();
        let progress = self.answer.event(event, &mut chunks);
        self.queue.extend(chunks.drain(..));
        match progress.map_err(|trouble| self.troubled(trouble))? {
            Progress::Nothing => Ok(false),
            Progress::Content => {
                self.last_content = Instant::now();
                Ok(false)
            }
            Progress::Done => {
                let usage = self.answer.usage();
                let outcome = std::mem::take(&mut self.answer).finish(&mut chunks);
                self.queue.extend(chunks);
                self.queue.extend(usage.map(|usage| Chunk::Usage { usage }));
                let reason = outcome.map_err(|trouble| self.troubled(trouble))?;
                self.queue.push_back(Chunk::Finish { reason });
                Ok(true)
            }
        }
    }

    fn end_of_body(&mut self) -> Result<State, Box<Failure>> {
        // Some servers leave out the blank line after the last event. What is whole counts; what is not was cut.
        let last = std::mem::take(&mut self.decoder).finish();
        let whole = |data: &str| data.trim() == "[DONE]" || serde_json::from_str::<serde::de::IgnoredAny>(data).is_ok();
        if let Some(event) = last.filter(|event| whole(&event.data))
            && self.event(&event)?
        {
            return Ok(State::Over);
        }
        let message = format!("the answer of {} ended before its terminator", self.shared.endpoint);
        let evidence = Evidence {
            phase: Some("stream".to_owned()),
            causes: vec![WireFault::Eof.as_str().to_owned()],
            ..Evidence::default()
        };
        Err(self.wire(WireFault::Eof, "stream", message, evidence))
    }

    /// A success whose body is no event stream: an error in disguise, a page, or an answer in one piece.
    fn no_stream(&self, body: &str) -> Box<Failure> {
        let inside = match serde_json::from_str(body) {
            Ok(value) => ProviderError::inside(&value, ""),
            Err(_) => Some(ProviderError::of_body(body)).filter(|error| {
                // Only wording that says something counts; a page as such is no error of the provider.
                classify(&signal_of(error)).row != "said/unclear"
            }),
        };
        match inside {
            Some(error) => self.reported(&error, body, "body"),
            None => {
                let message = format!("{} answered with a body that is no event stream", self.shared.endpoint);
                let mut failure = self.named(FailureCode::Protocol, "stream/none", message);
                if let Some(evidence) = &mut failure.evidence {
                    evidence.body = Some(body.to_owned());
                }
                Box::new(self.failure(*failure))
            }
        }
    }

    fn troubled(&self, trouble: Trouble) -> Box<Failure> {
        let endpoint = &self.shared.endpoint;
        match trouble {
            Trouble::Provider { error, body } => self.reported(&error, &body, "stream"),
            Trouble::Malformed(text) => {
                self.named(FailureCode::Protocol, "stream/malformed", format!("{endpoint} broke its protocol: {text}"))
            }
            Trouble::Empty => {
                let message = format!("{endpoint} ended its answer normally, with nothing in it");
                self.named(FailureCode::EmptyResponse, "finish/empty", message)
            }
            Trouble::Finish(reason) => {
                let verdict = classify(&Signal { finish_reason: Some(&reason), ..Signal::default() });
                let message = format!("{endpoint} ended its answer with the finish reason {reason:?}");
                let mut failure = self.named(verdict.code, verdict.row, message);
                if let Some(evidence) = &mut failure.evidence {
                    evidence.provider_code = Some(reason);
                }
                Box::new(self.failure(*failure))
            }
        }
    }

    /// An error that the provider reports inside a success. An inner status counts as the status.
    fn reported(&self, error: &ProviderError, body: &str, phase: &str) -> Box<Failure> {
        let verdict = classify(&Signal { status: error.status, ..signal_of(error) });
        let sentence = || format!("{} reported an error without a message", self.shared.endpoint);
        let mut failure = Failure::new(verdict.code, error.message.clone().unwrap_or_else(sentence));
        failure.status = error.status;
        failure.provider_retry_after_ms = body_hint(body, self.shared.clock.wall_ms());
        failure.evidence = Some(Evidence {
            row: Some(verdict.row.to_owned()),
            phase: Some(phase.to_owned()),
            provider_code: error.code.clone().or_else(|| error.kind.clone()),
            body: Some(body.to_owned()),
            ..Evidence::default()
        });
        Box::new(self.failure(failure))
    }

    fn timeout(&self, phase: &str, limit: Duration, did: &str) -> Box<Failure> {
        let message = format!("{} {did} within {limit:?} (the {phase} limit)", self.shared.endpoint);
        let evidence = Evidence { phase: Some(phase.to_owned()), ..Evidence::default() };
        self.wire(WireFault::Timeout, phase, message, evidence)
    }

    /// A failure of the wire in the given phase.
    fn wire(&self, fault: WireFault, phase: &str, message: String, evidence: Evidence) -> Box<Failure> {
        let verdict = classify(&Signal { transport: Some(fault), ..Signal::default() });
        let mut failure = Failure::new(verdict.code, message);
        failure.evidence =
            Some(Evidence { row: Some(verdict.row.to_owned()), phase: Some(phase.to_owned()), ..evidence });
        Box::new(self.failure(failure))
    }

    /// A failure that needs no table: the adapter itself saw what it is.
    fn named(&self, code: FailureCode, row: &str, message: String) -> Box<Failure> {
        let mut failure = Failure::new(code, message);
        failure.evidence = Some(Evidence { row: Some(row.to_owned()), ..Evidence::default() });
        Box::new(self.failure(failure))
    }

    /// The one door through which failures leave: with the request's id, and without secrets.
    fn failure(&self, mut failure: Failure) -> Failure {
        failure.request_id = failure.request_id.or_else(|| self.request_id.clone());
        self.shared.redactor.clean(&mut failure);
        failure
    }
}

fn header<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response.headers().get(name)?.to_str().ok().map(str::trim)
}

fn signal_of(error: &ProviderError) -> Signal<'_> {
    Signal {
        code: error.code.as_deref(),
        kind: error.kind.as_deref(),
        message: error.message.as_deref(),
        text: &error.text,
        ..Signal::default()
    }
}

fn body_hint(body: &str, now: u64) -> Option<f64> {
    body_hint_ms(&serde_json::from_str(body).ok()?, now)
}

/// Reads what a body says, within bounds of size and time; what came until then is enough.
async fn read_text(response: &mut Response, mut bytes: Vec<u8>) -> String {
    let deadline = Instant::now() + ERROR_BODY_LIMIT;
    while bytes.len() < MAX_KEPT_BODY {
        match timeout_at(deadline, response.chunk()).await {
            Ok(Ok(Some(more))) => bytes.extend_from_slice(&more),
            _ => break,
        }
    }
    bytes.truncate(MAX_KEPT_BODY);
    String::from_utf8_lossy(&bytes).trim_start_matches('\u{feff}').trim().to_owned()
}

#[cfg(test)]
mod tests;
