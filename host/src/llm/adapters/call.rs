//! One call: one wire request, its limits of time, and its stream.
//!
//! It makes exactly one HTTP request, never a second. What went wrong it leaves to `naming` to name; how a protocol
//! reads is in its `Answer`. Called by [`super::HttpProvider`].

use super::{
    answer::{Answer, Progress},
    http::{self, WireError},
    naming::{Naming, Refusal},
    provider::{Bounds, Prepared, Served},
    sse::{Decoder, Event},
};
use crate::llm::{
    Chunk, Failure, FinishReason, Request,
    classify::{StreamFault, WireFault},
    failure::MAX_KEPT_BODY,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream, stream::BoxStream};
use reqwest::{Response, StatusCode};
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// How long the body of a failed response is read. What it says is worth a moment, but not a wait.
pub(super) const ERROR_BODY_LIMIT: Duration = Duration::from_secs(2);

/// Where providers put their id of a request, in the order of preference.
const REQUEST_ID_HEADERS: [&str; 5] =
    ["x-request-id", "request-id", "x-deepseek-request-id", "x-amzn-requestid", "apim-request-id"];

/// The fields of an event stream. A comment has an empty one.
const SSE_FIELDS: [&[u8]; 5] = [b"", b"data", b"event", b"id", b"retry"];

enum State {
    Unsent,
    /// The head was fine and the body is being read.
    Reading(Response),
    Over,
}

/// One call. Everything that it holds is made for it and dropped with it.
pub(super) struct Call {
    provider: Arc<Prepared>,
    /// What the request's model is asked with.
    served: Served,
    request: Arc<Request>,
    cancel: CancellationToken,
    queue: VecDeque<Chunk>,
    state: State,
    decoder: Decoder,
    answer: Box<dyn Answer>,
    naming: Naming,
    /// The first bytes of the body, until they show whether it is an event stream.
    head: Option<Vec<u8>>,
    started: Instant,
    /// When the model was last heard of; before its first content, when the response began.
    last_content: Instant,
    has_content: bool,
}

impl Call {
    pub(super) fn stream(
        provider: Arc<Prepared>,
        request: Arc<Request>,
        cancel: CancellationToken,
    ) -> BoxStream<'static, Chunk> {
        let now = Instant::now();
        let call = Call {
            served: provider.served(&request.model).clone(),
            request,
            cancel,
            queue: VecDeque::new(),
            state: State::Unsent,
            decoder: Decoder::default(),
            answer: provider.dialect.answer(),
            naming: Naming::new(provider.clone()),
            provider,
            head: Some(Vec::new()),
            started: now,
            last_content: now,
            has_content: false,
        };
        stream::unfold(call, Call::next).boxed()
    }

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
        let failure = self.naming.aborted();
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
                // The tokens of a failed attempt were paid for all the same.
                self.queue.extend(self.answer.usage().map(|usage| Chunk::Usage { usage }));
                self.queue.push_back(Chunk::Finish { reason: FinishReason::Error { failure: *failure } });
            }
        }
    }

    async fn send(&mut self) -> Result<State, Box<Failure>> {
        self.started = Instant::now();
        let provider = self.provider.clone();
        let Bounds { limits, max_tokens } = self.served.bounds;
        let built = self
            .served
            .client
            .get_or_init(|| http::client(&provider.url, &limits).map_err(|error| WireError::of(&error).text));
        let client = built.as_ref().map_err(|text| self.naming.no_client(text))?;
        let body = provider.dialect.body(&self.request, max_tokens).map_err(|error| self.naming.unwritable(&error))?;
        self.naming.sending(&body);
        let sending = client.post(provider.url.clone()).headers(provider.headers.clone()).body(body).send();
        let first_byte = self.started + limits.first_byte;
        let response = match timeout_at(first_byte.min(self.deadline()), sending).await {
            Err(_) if first_byte <= self.deadline() => {
                return Err(self.naming.timeout("first-byte", "first-byte", limits.first_byte, "sent no response"));
            }
            Err(_) => return Err(self.over_total()),
            Ok(Err(error)) => {
                let connecting = error.is_connect();
                let wire = WireError::of(&error.without_url());
                if wire.fault == WireFault::Timeout && connecting {
                    return Err(self.naming.timeout("connect", "connect", limits.connect, "accepted no connection"));
                }
                return Err(self.naming.unsent(wire, connecting));
            }
            Ok(Ok(response)) => response,
        };
        self.last_content = Instant::now();
        self.naming.request_id = REQUEST_ID_HEADERS
            .iter()
            .find_map(|name| response.headers().get(*name)?.to_str().ok().filter(|value| !value.trim().is_empty()))
            .map(|value| value.trim().to_owned());
        let status = response.status();
        if !status.is_success() {
            let headers = response.headers().clone();
            let body = Self::read_text(response, Vec::new(), self.deadline()).await;
            return Err(self.naming.refused(&Refusal { status, headers: &headers, body: &body }));
        }
        if status == StatusCode::NO_CONTENT || response.content_length() == Some(0) {
            let message = format!("{} answered {status} without a body", provider.endpoint);
            return Err(self.naming.seen(StreamFault::NoBody, message));
        }
        Ok(State::Reading(response))
    }

    /// When the whole call has to be over; far away when there is no such limit.
    fn deadline(&self) -> Instant {
        const FAR: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        self.started + self.served.bounds.limits.total.unwrap_or(FAR)
    }

    fn over_total(&self) -> Box<Failure> {
        let total = self.served.bounds.limits.total.unwrap_or_default();
        self.naming.timeout("total", "total", total, "was not done with its answer")
    }

    /// Reads the next piece of the body.
    async fn read(&mut self, mut response: Response) -> Result<State, Box<Failure>> {
        let limits = self.served.bounds.limits;
        let (content, name) = match self.has_content {
            false => (limits.first_content, "first-content"),
            true => (limits.content, "content"),
        };
        let by_content = self.last_content + content;
        let by_idle = Instant::now() + limits.idle;
        let by_total = self.deadline();
        match timeout_at(by_idle.min(by_content).min(by_total), response.chunk()).await {
            Err(_) if by_total <= by_idle.min(by_content) => Err(self.over_total()),
            Err(_) if by_content <= by_idle => {
                let phase = if self.answer.is_reasoning() { "reasoning" } else { name };
                Err(self.naming.timeout(name, phase, content, "sent no content"))
            }
            Err(_) => {
                let phase = if self.answer.is_reasoning() { "reasoning" } else { "idle" };
                Err(self.naming.timeout("idle", phase, limits.idle, "sent nothing"))
            }
            Ok(Err(error)) => Err(self.naming.cut(WireError::of(&error.without_url()))),
            Ok(Ok(Some(bytes))) => self.bytes(response, bytes).await,
            Ok(Ok(None)) => self.end_of_body(),
        }
    }

    async fn bytes(&mut self, response: Response, bytes: Bytes) -> Result<State, Box<Failure>> {
        let Some(mut head) = self.head.take() else { return self.events(response, &bytes) };
        head.extend_from_slice(&bytes);
        match is_event_stream(&head) {
            Some(true) => self.events(response, &head),
            Some(false) => {
                let body = Self::read_text(response, head, self.deadline()).await;
                self.no_stream(&body)
            }
            None => {
                self.head = Some(head);
                Ok(State::Reading(response))
            }
        }
    }

    fn events(&mut self, response: Response, bytes: &[u8]) -> Result<State, Box<Failure>> {
        let events = self.decoder.push(bytes).map_err(|error| self.naming.undecodable(&error))?;
        for event in events {
            if self.event(&event)? {
                // What follows the terminator is no part of the answer, whatever it is.
                return Ok(State::Over);
            }
        }
        Ok(State::Reading(response))
    }

    /// Takes one event, and says whether the answer is over.
    fn event(&mut self, event: &Event) -> Result<bool, Box<Failure>> {
        let mut chunks = Vec::new();
        let progress = self.answer.event(event, &mut chunks);
        self.queue.extend(chunks);
        match progress.map_err(|trouble| self.naming.troubled(trouble))? {
            Progress::Nothing => Ok(false),
            Progress::Content => {
                self.last_content = Instant::now();
                self.has_content = true;
                Ok(false)
            }
            Progress::Done => self.finish().map(|()| true),
        }
    }

    /// Ends the answer: its blocks, its usage, and how it finished.
    fn finish(&mut self) -> Result<(), Box<Failure>> {
        let usage = self.answer.usage();
        let answer = std::mem::replace(&mut self.answer, self.provider.dialect.answer());
        let mut chunks = Vec::new();
        let outcome = answer.finish(&mut chunks);
        self.queue.extend(chunks);
        self.queue.extend(usage.map(|usage| Chunk::Usage { usage }));
        let reason = outcome.map_err(|trouble| self.naming.troubled(trouble))?;
        self.queue.push_back(Chunk::Finish { reason });
        Ok(())
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
        Err(self.naming.unterminated())
    }

    /// A success whose body is no event stream: an error in disguise, a page, or an answer in one piece.
    fn no_stream(&mut self, body: &str) -> Result<State, Box<Failure>> {
        if let Some(failure) = self.naming.error_in_success(body) {
            return Err(failure);
        }
        let mut chunks = Vec::new();
        let whole = serde_json::from_str(body).map(|body| self.answer.whole(&body, &mut chunks)).unwrap_or(Ok(false));
        self.queue.extend(chunks);
        if whole.map_err(|trouble| self.naming.troubled(trouble))? {
            self.finish()?;
            return Ok(State::Over);
        }
        Err(self.naming.not_a_stream(body))
    }

    /// Reads what a body says, within bounds of size and time; what came until then is enough.
    async fn read_text(mut response: Response, mut bytes: Vec<u8>, deadline: Instant) -> String {
        let deadline = deadline.min(Instant::now() + ERROR_BODY_LIMIT);
        while bytes.len() < MAX_KEPT_BODY {
            match timeout_at(deadline, response.chunk()).await {
                Ok(Ok(Some(more))) => bytes.extend_from_slice(&more),
                _ => break,
            }
        }
        bytes.truncate(MAX_KEPT_BODY);
        String::from_utf8_lossy(&bytes).trim_start_matches('\u{feff}').trim().to_owned()
    }
}

/// Whether a body that begins like this is an event stream; `None` when more is needed to tell. The content type is
/// not asked: it is wrong too often in both directions.
fn is_event_stream(head: &[u8]) -> Option<bool> {
    let blank = |byte: &u8| byte.is_ascii_whitespace() || "\u{feff}".as_bytes().contains(byte);
    let line = &head[head.iter().position(|byte| !blank(byte)).unwrap_or(head.len())..];
    match line.iter().position(|byte| matches!(byte, b':' | b'\r' | b'\n')) {
        Some(end) => Some(SSE_FIELDS.contains(&&line[..end])),
        None if SSE_FIELDS.iter().any(|field| field.starts_with(line)) => None,
        None => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_stream_is_known_by_its_first_field() {
        for head in
            ["data: x", "data:{", ": ping\n", "event:x", "\r\n\r\nid: 1", "\u{feff}data: ", "retry: 5", "data\n"]
        {
            assert_eq!(is_event_stream(head.as_bytes()), Some(true), "{head:?}");
        }
        for head in ["{\"a\":1}", "<html>", "upstream connect error", "Error: no", "dada:", "\n[1]", "data center: x"] {
            assert_eq!(is_event_stream(head.as_bytes()), Some(false), "{head:?}");
        }
        for head in ["", "\n\n", "da", "data", "\u{feff}", "ev"] {
            assert_eq!(is_event_stream(head.as_bytes()), None, "{head:?}");
        }
    }
}
