//! From what went wrong in a call to the failure that says so: its message, its code and its evidence.
//!
//! Every failure of a call is made here, and leaves through one door that takes secrets out. Called by `call`.

use super::{
    answer::Trouble,
    http::{self, WireError},
    provider::Prepared,
    provider_error::ProviderError,
    sse::SseError,
};
use crate::llm::{
    Evidence, Failure, FailureCode, Hint,
    classify::{Fixture, OwnRows, Signal, StreamFault, WireFault, classify},
    oversize::Oversize,
    retry_after::{self, HintHeaders, HintSources},
};
use reqwest::{
    StatusCode,
    header::{HeaderMap, LOCATION},
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// A token is at least this many bytes of a request, on average. It is on the low side for most texts, so that a
/// request is rather thought smaller than larger.
const BYTES_A_TOKEN: u64 = 4;

/// Names the failures of one call.
pub(super) struct Naming {
    provider: Arc<Prepared>,
    /// The provider's own id of the request, once its head has come.
    pub(super) request_id: Option<String>,
    /// The request's tokens, estimated from its size.
    estimate: u64,
}

/// A response whose status is no success.
pub(super) struct Refusal<'a> {
    pub(super) status: StatusCode,
    pub(super) headers: &'a HeaderMap,
    pub(super) body: &'a str,
}

impl Refusal<'_> {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok().map(str::trim)
    }
}

impl Naming {
    pub(super) fn new(provider: Arc<Prepared>) -> Self {
        Naming { provider, request_id: None, estimate: 0 }
    }

    /// Takes note of the request that is about to be sent.
    pub(super) fn sending(&mut self, body: &[u8]) {
        self.estimate = body.len() as u64 / BYTES_A_TOKEN;
    }

    pub(super) fn aborted(&self) -> Failure {
        self.clean(Failure::new(FailureCode::Aborted, "the request was cancelled"))
    }

    pub(super) fn no_client(&self, text: &str) -> Box<Failure> {
        let evidence = Evidence { causes: vec![WireFault::Tls.as_str().to_owned()], ..Evidence::default() };
        self.wire(WireFault::Tls, "setup", format!("the HTTP client could not be set up: {text}"), evidence)
    }

    pub(super) fn unwritable(&self, error: &serde_json::Error) -> Box<Failure> {
        let message = format!("the request could not be written as JSON: {error}");
        Box::new(self.clean(Failure::new(FailureCode::InvalidRequest, message)))
    }

    /// No response came.
    pub(super) fn unsent(&self, wire: WireError, connecting: bool) -> Box<Failure> {
        let (phase, did) = match connecting {
            true => ("connect", "could not connect to"),
            false => ("first-byte", "no response came from"),
        };
        let (wire, through) = match http::proxy_of(&self.provider.url).filter(|_| connecting) {
            Some(proxy) => (wire.through_proxy(), format!(" through the proxy {proxy} of the environment")),
            None => (wire, String::new()),
        };
        let message = format!("{did} {}{through}: {}", self.provider.endpoint, wire.text);
        self.wire(wire.fault, phase, message, wire.evidence(phase))
    }

    /// The connection failed in the middle of the body.
    pub(super) fn cut(&self, wire: WireError) -> Box<Failure> {
        let message = format!("the answer of {} was cut: {}", self.provider.endpoint, wire.text);
        self.wire(wire.fault, "stream", message, wire.evidence("stream"))
    }

    /// A limit of time passed.
    pub(super) fn timeout(&self, limit: &str, phase: &str, length: Duration, did: &str) -> Box<Failure> {
        let message = format!("{} {did} within {length:?} (the {limit} limit)", self.provider.endpoint);
        let evidence = Evidence { limit: Some(limit.to_owned()), ..Evidence::default() };
        self.wire(WireFault::Timeout, phase, message, evidence)
    }

    pub(super) fn unterminated(&self) -> Box<Failure> {
        let message = format!("the answer of {} ended before its terminator", self.provider.endpoint);
        let mut failure = self.seen(StreamFault::NoTerminator, message);
        if let Some(evidence) = &mut failure.evidence {
            evidence.causes = vec![WireFault::Eof.as_str().to_owned()];
        }
        failure
    }

    pub(super) fn undecodable(&self, error: &SseError) -> Box<Failure> {
        let fault = match error {
            SseError::TooLong => StreamFault::TooLong,
            SseError::NotUtf8 => StreamFault::NotUtf8,
        };
        self.seen(fault, format!("{} broke its protocol: {error}", self.provider.endpoint))
    }

    pub(super) fn troubled(&self, trouble: Trouble) -> Box<Failure> {
        let endpoint = &self.provider.endpoint;
        match trouble {
            Trouble::Provider { error, body } => self.reported(&error, &body, "stream"),
            Trouble::Broken(fault, text) => self.seen(fault, format!("{endpoint} broke its protocol: {text}")),
            Trouble::Empty => {
                self.seen(StreamFault::Empty, format!("{endpoint} ended its answer normally, with nothing in it"))
            }
            Trouble::Finish(reason) => {
                let message = format!("{endpoint} ended its answer with the finish reason {reason:?}");
                let evidence = Evidence {
                    phase: Some("stream".to_owned()),
                    provider_code: Some(reason.clone()),
                    ..Evidence::default()
                };
                let signal = Signal { finish_reason: Some(&reason), ..Signal::default() };
                self.named(&signal, None, message, evidence)
            }
        }
    }

    /// A success whose body reports an error, if it does.
    pub(super) fn error_in_success(&self, body: &str) -> Option<Box<Failure>> {
        let error = match serde_json::from_str(body) {
            Ok(value) => ProviderError::inside(&value, "")?,
            // Only wording that says something counts; a page as such is no error of the provider.
            Err(_) => {
                let error = ProviderError::of_body(body);
                let verdict = classify(&signal_of(&error));
                let says = !matches!(verdict.row, "said/unclear" | "none");
                Some(error).filter(|_| says)?
            }
        };
        Some(self.reported(&error, body, "body"))
    }

    pub(super) fn not_a_stream(&self, body: &str) -> Box<Failure> {
        let message = format!("{} answered with a body that is no event stream", self.provider.endpoint);
        let evidence = Evidence { phase: Some("body".to_owned()), body: Some(body.to_owned()), ..Evidence::default() };
        let signal = Signal { stream: Some(StreamFault::NotAStream), ..Signal::default() };
        self.named(&signal, None, message, evidence)
    }

    /// What the adapter itself saw.
    pub(super) fn seen(&self, fault: StreamFault, message: String) -> Box<Failure> {
        let evidence = Evidence { phase: Some("stream".to_owned()), ..Evidence::default() };
        self.named(&Signal { stream: Some(fault), ..Signal::default() }, None, message, evidence)
    }

    pub(super) fn refused(&self, refusal: &Refusal<'_>) -> Box<Failure> {
        let status = refusal.status;
        let error = ProviderError::of_body(refusal.body);
        let stated = refusal.header("anthropic-ratelimit-input-tokens-limit").and_then(|limit| limit.parse().ok());
        let signal = Signal { status: Some(status.as_u16()), ..signal_of(&error) };
        let oversize = self.oversize(&error, stated).or_else(|| {
            // A throttle may say nothing of a limit that the request alone exceeds.
            let throttled = status == StatusCode::TOO_MANY_REQUESTS && classify(&signal).code == FailureCode::RateLimit;
            Oversize::by_estimate(stated.filter(|_| throttled)?, self.estimate)
        });
        let signal = Signal { too_large: oversize.is_some(), ..signal };
        let endpoint = &self.provider.endpoint;
        let sentence = || match refusal.header(LOCATION.as_str()).filter(|_| status.is_redirection()) {
            Some(target) => {
                format!("{endpoint} redirects to {target} ({status}); set the base URL to where the API is")
            }
            None => format!("{endpoint} answered {status}"),
        };
        let json = serde_json::from_str::<Value>(refusal.body).ok();
        let headers = HintHeaders {
            retry_after_ms: refusal.header("retry-after-ms"),
            retry_after: refusal.header("retry-after"),
            date: refusal.header("date"),
            age: refusal.header("age"),
        };
        let evidence = Evidence {
            provider_code: error.code.clone().or_else(|| error.kind.clone()),
            hint: self.hint(headers, json.as_ref(), &error),
            should_retry: refusal.header("x-should-retry").and_then(|word| word.to_ascii_lowercase().parse().ok()),
            impossible: oversize.map(|oversize| impossible(&oversize)),
            body: Some(refusal.body.to_owned()).filter(|body| !body.is_empty()),
            ..Evidence::default()
        };
        self.named(&signal, json.as_ref(), error.message.clone().unwrap_or_else(sentence), evidence)
    }

    /// An error that the provider reports inside a success. An inner status counts as the status.
    fn reported(&self, error: &ProviderError, body: &str, phase: &str) -> Box<Failure> {
        let oversize = self.oversize(error, None);
        let signal = Signal { status: error.status, reported: true, too_large: oversize.is_some(), ..signal_of(error) };
        let json = serde_json::from_str::<Value>(body).ok();
        let evidence = Evidence {
            phase: Some(phase.to_owned()),
            provider_code: error.code.clone().or_else(|| error.kind.clone()),
            hint: self.hint(HintHeaders::default(), json.as_ref(), error),
            impossible: oversize.map(|oversize| impossible(&oversize)),
            body: Some(body.to_owned()),
            ..Evidence::default()
        };
        let sentence = || format!("{} reported an error without a message", self.provider.endpoint);
        self.named(&signal, json.as_ref(), error.message.clone().unwrap_or_else(sentence), evidence)
    }

    fn oversize(&self, error: &ProviderError, stated: Option<u64>) -> Option<Oversize> {
        Oversize::read(prose(error), stated, self.estimate)
    }

    fn hint(&self, headers: HintHeaders<'_>, body: Option<&Value>, error: &ProviderError) -> Option<Hint> {
        let message = Some(prose(error)).filter(|_| self.provider.text_hints);
        retry_after::read(&HintSources { headers, body, message }, self.provider.clock.wall_ms())
    }

    /// A failure of the wire in the given phase.
    fn wire(&self, fault: WireFault, phase: &str, message: String, evidence: Evidence) -> Box<Failure> {
        let evidence = Evidence { phase: Some(phase.to_owned()), ..evidence };
        self.named(&Signal { transport: Some(fault), ..Signal::default() }, None, message, evidence)
    }

    /// Asks the user's rows and then the table for the code.
    fn named(&self, signal: &Signal<'_>, body: Option<&Value>, message: String, evidence: Evidence) -> Box<Failure> {
        let (code, row) = match self.provider.own_rows.find(signal, body) {
            Some(own) => (own.code, own.row_id()),
            None => {
                let verdict = classify(signal);
                (verdict.code, verdict.row.to_owned())
            }
        };
        let mut failure = Failure::new(code, message);
        failure.status = signal.status.filter(|status| (100..=599).contains(status));
        failure.provider_retry_after_ms = evidence.hint.as_ref().and_then(|hint| hint.ms);
        failure.evidence = Some(Box::new(Evidence { row: Some(row), ..evidence }));
        Box::new(self.clean(failure))
    }

    /// The one door through which failures leave: with the request's id, and without secrets.
    fn clean(&self, mut failure: Failure) -> Failure {
        failure.request_id = failure.request_id.or_else(|| self.request_id.clone());
        self.provider.redactor.clean(&mut failure);
        failure
    }
}

fn impossible(oversize: &Oversize) -> String {
    let Oversize { asked, limit } = oversize;
    format!("the request asks for about {asked} tokens, and the limit is {limit}")
}

/// What a provider says: its message, or a body that is plain text.
fn prose(error: &ProviderError) -> &str {
    error.message.as_deref().unwrap_or(&error.text)
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

/// The code and the row of a response that was written down, by a user's rows and the table; `None` for a success that
/// reports no error.
pub fn classify_fixture(rows: &OwnRows, fixture: &Fixture) -> Option<(FailureCode, String)> {
    let json = serde_json::from_str::<Value>(&fixture.body).ok();
    let success = (200..=299).contains(&fixture.status);
    let error = match (&json, success) {
        (Some(json), true) => ProviderError::inside(json, "")?,
        _ => ProviderError::of_body(&fixture.body),
    };
    let status = if success { error.status } else { Some(fixture.status) };
    let signal = Signal { status, reported: success, ..signal_of(&error) };
    Some(match rows.find(&signal, json.as_ref()) {
        Some(own) => (own.code, own.row_id()),
        None => {
            let verdict = classify(&signal);
            (verdict.code, verdict.row.to_owned())
        }
    })
}
