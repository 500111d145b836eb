//! One call: one wire request, its limits of time, and its stream.
//!
//! It makes exactly one HTTP request, never a second. What went wrong it leaves to `naming` to name; how a protocol
//! reads is in its `Answer`. Called by [`super::HttpProvider`].

use super::{
    answer::{Answer, Progress, Trouble},
    http::{self, WireError},
    json_text::{Scan, is_structure},
    naming::Naming,
    provider::{Bounds, Prepared, Served},
    provider_error::is_error_name,
    sse::{Decoder, Event, SseError, is_event_stream},
};
use crate::llm::{
    Chunk, Failure, FinishReason, Request,
    classify::{StreamFault, WireFault},
    failure::MAX_KEPT_BODY,
};
use bytes::Bytes;
use futures_util::{StreamExt, stream, stream::BoxStream};
use reqwest::{Response, StatusCode};
use serde::de::IgnoredAny;
use std::{collections::VecDeque, sync::Arc, time::Duration};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// How long the body of a failed response is read. What it says is worth a moment, but not a wait.
pub(super) const ERROR_BODY_LIMIT: Duration = Duration::from_secs(2);

/// The longest answer that is taken in one piece, in bytes; as long as the longest event.
pub(super) const MAX_WHOLE: usize = super::sse::MAX_LINE;

enum State {
    Unsent,
    /// The head was fine and the body is being read.
    Reading(Response),
    Over,
}

/// What the body of a success is, as far as its bytes have shown.
enum Form {
    /// The first bytes, which do not tell yet.
    Unknown(Vec<u8>),
    Events,
    /// One JSON value: an answer in one piece, or an error.
    Json {
        bytes: Vec<u8>,
        scan: Scan,
    },
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
    form: Form,
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
            form: Form::Unknown(Vec::new()),
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
        self.naming.answered(response.headers());
        let status = response.status();
        if !status.is_success() {
            let body = Self::read_text(response, Vec::new(), self.deadline()).await;
            return Err(self.naming.refused(status, &body));
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
        match std::mem::replace(&mut self.form, Form::Events) {
            Form::Events => self.events(response, &bytes),
            Form::Json { bytes: mut whole, mut scan } => {
                let end = scan.push(&bytes).map(|end| whole.len() + end);
                whole.extend_from_slice(&bytes);
                self.piece(response, whole, scan, end).await
            }
            Form::Unknown(mut head) => {
                head.extend_from_slice(&bytes);
                match is_event_stream(&head) {
                    Some(true) => self.events(response, &head),
                    Some(false) if is_structure(trimmed(&String::from_utf8_lossy(&head))) => {
                        let mut scan = Scan::default();
                        let end = scan.push(&head);
                        self.piece(response, head, scan, end).await
                    }
                    Some(false) => {
                        let body = Self::read_text(response, head, self.deadline()).await;
                        self.no_stream(&body)
                    }
                    None => {
                        // Some servers send blanks while the model is at work.
                        if head.iter().all(u8::is_ascii_whitespace) {
                            head.clear();
                        }
                        self.form = Form::Unknown(head);
                        Ok(State::Reading(response))
                    }
                }
            }
        }
    }

    /// Goes on with a body that is one JSON value, which ends at `end` if it has come so far.
    async fn piece(
        &mut self,
        response: Response,
        whole: Vec<u8>,
        scan: Scan,
        end: Option<usize>,
    ) -> Result<State, Box<Failure>> {
        let is_json = |bytes: &[u8]| {
            let bytes = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(bytes);
            serde_json::from_slice::<IgnoredAny>(bytes).is_ok()
        };
        if end.unwrap_or(whole.len()) > MAX_WHOLE {
            return Err(self.naming.too_long(MAX_WHOLE));
        }
        match end {
            Some(end) if is_json(&whole[..end]) => self.json(&whole[..end]),
            // It only looked like one.
            Some(_) => {
                let body = Self::read_text(response, whole, self.deadline()).await;
                self.no_stream(&body)
            }
            None => {
                self.form = Form::Json { bytes: whole, scan };
                Ok(State::Reading(response))
            }
        }
    }

    /// A success that is one JSON value, or as much of it as came.
    fn json(&mut self, body: &[u8]) -> Result<State, Box<Failure>> {
        match std::str::from_utf8(body) {
            Ok(body) => self.no_stream(trimmed(body)),
            Err(_) => {
                let failure = self.naming.error_in_success(trimmed(&String::from_utf8_lossy(body)));
                Err(failure.unwrap_or_else(|| self.naming.undecodable(&SseError::NotUtf8)))
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
        let progress = match is_error_name(&event.name) {
            true => Err(Trouble::Reported),
            false => self.answer.event(event, &mut chunks),
        };
        self.queue.extend(chunks);
        match progress {
            Ok(Progress::Nothing) => Ok(false),
            Ok(Progress::Content) => {
                self.last_content = Instant::now();
                self.has_content = true;
                Ok(false)
            }
            Ok(Progress::Unknown) => self.naming.error_in_event(event).map_or(Ok(false), Err),
            Ok(Progress::Done) => self.finish().map(|()| true),
            Err(trouble) => Err(self.naming.not_accepted(trouble, &self.with_stray(event))),
        }
    }

    /// An event with the lines that belong to no event: a page that was put into a stream has both.
    fn with_stray(&self, event: &Event) -> Event {
        let texts = [event.data.as_str(), self.decoder.stray()];
        let data = texts.into_iter().filter(|text| !text.trim().is_empty()).collect::<Vec<_>>().join("\n");
        Event { name: event.name.clone(), data }
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
        if let Form::Json { bytes, .. } = std::mem::replace(&mut self.form, Form::Events) {
            return self.json(&bytes);
        }
        // Some servers leave out the blank line after the last event. What is whole counts; what is not was cut.
        let whole = |data: &str| data.trim() == "[DONE]" || serde_json::from_str::<IgnoredAny>(data).is_ok();
        let mut last = self.decoder.finish().unwrap_or_default();
        if whole(&last.data) {
            if self.event(&last)? {
                return Ok(State::Over);
            }
            last = Event::default();
        }
        // What cut the stream may have said why.
        Err(self.naming.error_in_event(&self.with_stray(&last)).unwrap_or_else(|| self.naming.unterminated()))
    }

    /// A success whose body is no event stream: an error in disguise, a page, or an answer in one piece.
    fn no_stream(&mut self, body: &str) -> Result<State, Box<Failure>> {
        if let Some(failure) = self.naming.error_in_success(body) {
            return Err(failure);
        }
        let body_value = match serde_json::from_str(body) {
            Ok(value) => value,
            Err(error) if error.is_eof() && is_structure(body) => return Err(self.naming.unterminated()),
            Err(_) => return Err(self.naming.not_a_stream(body)),
        };
        let mut chunks = Vec::new();
        let whole = self.answer.whole(&body_value, &mut chunks);
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
        trimmed(&String::from_utf8_lossy(&bytes)).to_owned()
    }
}

/// A text without the byte order mark and the blanks around it.
fn trimmed(text: &str) -> &str {
    text.trim_start_matches(|c: char| c == '\u{feff}' || c.is_whitespace()).trim_end()
}
