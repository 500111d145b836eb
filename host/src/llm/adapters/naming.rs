//! From what went wrong in a call to the failure that says so: its message, its code and its evidence.
//!
//! Every failure of a call is made here, and leaves through one door that takes secrets out. Called by `call`.

use super::{
    answer::Trouble,
    http::{self, WireError},
    page,
    provider::Prepared,
    provider_error::{ProviderError, bare_name},
    report::{self, Report},
    sse::{Event, SseError},
};
use crate::llm::{
    Evidence, Failure, FailureCode, Hint,
    classify::{Signal, StreamFault, WireFault, classify},
    failure::MAX_KEPT_BODY,
    oversize::Oversize,
    retry_after::{self, HintHeaders, HintSources},
};
use reqwest::{
    StatusCode,
    header::{CONTENT_ENCODING, HeaderMap, LOCATION},
};
use serde_json::Value;
use std::{sync::Arc, time::Duration};

/// A token is at least this many bytes of a request, on average. It is on the low side for most texts, so that a
/// request is rather thought smaller than larger.
const BYTES_A_TOKEN: u64 = 4;

/// Where providers put their id of a request, in the order of preference.
const REQUEST_ID_HEADERS: [&str; 5] =
    ["x-request-id", "request-id", "x-deepseek-request-id", "x-amzn-requestid", "apim-request-id"];

/// Names the failures of one call.
pub(super) struct Naming {
    provider: Arc<Prepared>,
    /// The response's headers, once its head has come.
    headers: HeaderMap,
    /// The request's tokens, estimated from its size.
    estimate: u64,
}

impl Naming {
    pub(super) fn new(provider: Arc<Prepared>) -> Self {
        Naming { provider, headers: HeaderMap::new(), estimate: 0 }
    }

    /// Takes note of the request that is about to be sent.
    pub(super) fn sending(&mut self, body: &[u8]) {
        self.estimate = body.len() as u64 / BYTES_A_TOKEN;
    }

    /// Takes note of the response's head, whatever its status: what it says holds for an error in its body too.
    pub(super) fn answered(&mut self, headers: &HeaderMap) {
        self.headers = headers.clone();
    }

    fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok().map(str::trim).filter(|value| !value.is_empty())
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
        let endpoint = &self.provider.endpoint;
        // The one encoding that is asked for, and taken off before anyone here sees the body.
        let message = match wire.fault == WireFault::Malformed && wire.text.to_ascii_lowercase().contains("gzip") {
            true => format!("the answer of {endpoint} is not what its content-encoding, gzip, says: {}", wire.text),
            false => format!("the answer of {endpoint} was cut: {}", wire.text),
        };
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
        self.seen(
            fault,
            format!("{} broke its protocol: {error}{}", self.provider.endpoint, self.encoding().unwrap_or_default()),
        )
    }

    /// What the adapter did not accept while it read an event. Such an event is often an error: the provider's own, or
    /// that of something on the way which knows nothing of the protocol.
    pub(super) fn not_accepted(&self, trouble: Trouble, event: &Event) -> Box<Failure> {
        let (fault, text) = match trouble {
            Trouble::Broken(fault @ (StreamFault::NotJson | StreamFault::Shape), text) => (fault, text),
            Trouble::Reported => (StreamFault::Shape, "an event reports an error that cannot be read".to_owned()),
            trouble => return self.troubled(trouble),
        };
        if let Some(failure) = self.error_in_event(event) {
            return failure;
        }
        let shown = self.excerpt(&event.data).map(|said| format!("; it reads: {said}")).unwrap_or_default();
        let message = format!("{} broke its protocol: {text}{shown}", self.provider.endpoint);
        let evidence = Evidence { phase: phase("stream"), body: kept(&event.data), ..Evidence::default() };
        self.named(&Signal { stream: Some(fault), ..Signal::default() }, None, message, evidence)
    }

    /// The error that an event reports, if it does.
    pub(super) fn error_in_event(&self, event: &Event) -> Option<Box<Failure>> {
        let report = Report::in_success(&self.provider.own_rows, &event.data, &event.name)?;
        Some(self.reported(report, &event.data, "stream"))
    }

    pub(super) fn troubled(&self, trouble: Trouble) -> Box<Failure> {
        let endpoint = &self.provider.endpoint;
        match trouble {
            Trouble::Reported => self.seen(StreamFault::Shape, format!("{endpoint} reported an error")),
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
        let report = Report::in_success(&self.provider.own_rows, body, "")?;
        Some(self.reported(report, body, "body"))
    }

    pub(super) fn not_a_stream(&self, body: &str) -> Box<Failure> {
        let unreadable = self.unreadable(body);
        let (body, note) = match &unreadable {
            Some(note) => ("", note.clone()),
            None => (
                body,
                self.excerpt(&page::prose(body, MAX_KEPT_BODY)).map(|said| format!(": {said}")).unwrap_or_default(),
            ),
        };
        let endpoint = &self.provider.endpoint;
        let message =
            format!("{endpoint} answered with a body that is no answer, and reports no error that is known{note}");
        let evidence = Evidence { phase: phase("body"), body: kept(body), ..Evidence::default() };
        let signal = Signal { stream: Some(StreamFault::NotAStream), ..Signal::default() };
        self.named(&signal, None, message, evidence)
    }

    /// A whole answer that is longer than any is.
    pub(super) fn too_long(&self, bound: usize) -> Box<Failure> {
        let message = format!("{} sent more than {bound} bytes in one piece", self.provider.endpoint);
        self.seen(StreamFault::TooLong, message)
    }

    /// What the adapter itself saw.
    pub(super) fn seen(&self, fault: StreamFault, message: String) -> Box<Failure> {
        let evidence = Evidence { phase: phase("stream"), ..Evidence::default() };
        self.named(&Signal { stream: Some(fault), ..Signal::default() }, None, message, evidence)
    }

    /// A response whose status is no success.
    pub(super) fn refused(&self, status: StatusCode, body: &str) -> Box<Failure> {
        let endpoint = &self.provider.endpoint;
        let sentence = match self.header(LOCATION.as_str()).filter(|_| status.is_redirection()) {
            Some(target) => {
                format!("{endpoint} redirects to {target} ({status}); set the base URL to where the API is")
            }
            None => format!("{endpoint} answered {status}"),
        };
        if let Some(note) = self.unreadable(body) {
            return self.told(Report::of_refusal(status.as_u16(), ""), None, None, sentence + &note);
        }
        let report = Report::of_refusal(status.as_u16(), body);
        let sentence = match self.excerpt(&report.error.text) {
            Some(said) => format!("{sentence}: {said}"),
            None => sentence,
        };
        self.told(report, kept(body), None, sentence)
    }

    /// An error that the provider reports inside a success.
    fn reported(&self, report: Report, body: &str, at: &str) -> Box<Failure> {
        let endpoint = &self.provider.endpoint;
        let sentence = match self.excerpt(&report.error.text) {
            Some(said) => format!("{endpoint} reported an error: {said}"),
            None => format!("{endpoint} reported an error without a message"),
        };
        self.told(report, kept(body), phase(at), sentence)
    }

    /// An error of the provider, with what its headers say. `sentence` is for one without a message.
    fn told(&self, mut report: Report, body: Option<String>, phase: Option<String>, sentence: String) -> Box<Failure> {
        let kind = || self.header("x-amzn-errortype").map(|name| bare_name(name).to_owned());
        report.error.kind = report.error.kind.take().or_else(kind);
        let oversize = self.oversize(&report);
        let signal = Signal { too_large: oversize.is_some(), ..report.signal() };
        let error = &report.error;
        let evidence = Evidence {
            phase,
            provider_code: error.code.clone().or_else(|| error.kind.clone()),
            hint: self.hint(report.json.as_ref(), error),
            should_retry: self.should_retry(),
            impossible: oversize.map(|oversize| impossible(&oversize)),
            body,
            ..Evidence::default()
        };
        self.named(&signal, report.json.as_ref(), error.message.clone().unwrap_or(sentence), evidence)
    }

    /// The provider's own word on retrying.
    fn should_retry(&self) -> Option<bool> {
        self.header("x-should-retry")?.to_ascii_lowercase().parse().ok()
    }

    /// The limit that the request alone exceeds, as the provider's words or its headers tell.
    fn oversize(&self, report: &Report) -> Option<Oversize> {
        let stated = self.header("anthropic-ratelimit-input-tokens-limit").and_then(|limit| limit.parse().ok());
        Oversize::read(report.error.said(), stated, self.estimate).or_else(|| {
            // A throttle may say nothing of a limit that the request alone exceeds.
            let signal = report.signal();
            let throttled = signal.status == Some(429) && classify(&signal).code == FailureCode::RateLimit;
            Oversize::by_estimate(stated.filter(|_| throttled)?, self.estimate)
        })
    }

    fn hint(&self, body: Option<&Value>, error: &ProviderError) -> Option<Hint> {
        let headers = HintHeaders {
            retry_after_ms: self.header("retry-after-ms"),
            retry_after: self.header("retry-after"),
            date: self.header("date"),
            age: self.header("age"),
        };
        let message = Some(error.said()).filter(|_| self.provider.text_hints);
        retry_after::read(&HintSources { headers, body, message }, self.provider.clock.wall_ms())
    }

    /// A line of what was said, for a message. Secrets go first: a cut through one would hide it from those who look.
    fn excerpt(&self, text: &str) -> Option<String> {
        page::excerpt(&self.provider.redactor.text(&text[..text.floor_char_boundary(MAX_KEPT_BODY)]))
    }

    /// A note on an encoding of the body that nobody asked for and nobody here takes off, if it has one.
    fn encoding(&self) -> Option<String> {
        let name = self.header(CONTENT_ENCODING.as_str()).filter(|name| !name.eq_ignore_ascii_case("identity"))?;
        Some(format!(" (its body is in the encoding {name}, which was not asked for and cannot be read)"))
    }

    /// The same note, where the body is indeed none that can be read.
    fn unreadable(&self, body: &str) -> Option<String> {
        self.encoding().filter(|_| body.contains(char::REPLACEMENT_CHARACTER))
    }

    /// A failure of the wire in the given phase.
    fn wire(&self, fault: WireFault, phase: &str, message: String, evidence: Evidence) -> Box<Failure> {
        let evidence = Evidence { phase: Some(phase.to_owned()), ..evidence };
        self.named(&Signal { transport: Some(fault), ..Signal::default() }, None, message, evidence)
    }

    /// Asks the user's rows and then the table for the code.
    fn named(&self, signal: &Signal<'_>, body: Option<&Value>, message: String, evidence: Evidence) -> Box<Failure> {
        let (code, row) = report::name(&self.provider.own_rows, signal, body);
        let mut failure = Failure::new(code, message);
        failure.status = signal.status.filter(|status| (100..=599).contains(status));
        failure.provider_retry_after_ms = evidence.hint.as_ref().and_then(|hint| hint.ms);
        failure.evidence = Some(Box::new(Evidence { row: Some(row), ..evidence }));
        Box::new(self.clean(failure))
    }

    /// The one door through which failures leave: with the request's id, and without secrets.
    fn clean(&self, mut failure: Failure) -> Failure {
        let id = || REQUEST_ID_HEADERS.iter().find_map(|name| self.header(name)).map(str::to_owned);
        failure.request_id = failure.request_id.or_else(id);
        self.provider.redactor.clean(&mut failure);
        failure
    }
}

fn impossible(oversize: &Oversize) -> String {
    let Oversize { asked, limit } = oversize;
    format!("the request asks for about {asked} tokens, and the limit is {limit}")
}

fn phase(name: &str) -> Option<String> {
    Some(name.to_owned())
}

/// The part of a body that is kept as evidence.
fn kept(body: &str) -> Option<String> {
    Some(body[..body.floor_char_boundary(MAX_KEPT_BODY)].to_owned()).filter(|body| !body.is_empty())
}
