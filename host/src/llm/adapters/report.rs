//! What a provider reports: read, judged whether it is an error at all, and given its code.
//!
//! The one reading of a response, for a running call and for a response that somebody wrote down. Called by `naming`
//! and by the reader of a user's own rows.

use super::{
    json_text,
    provider_error::ProviderError,
    sign::Sign,
    sse::{Decoder, Event, is_event_stream},
};
use crate::llm::{
    FailureCode,
    classify::{Fixture, OwnRows, Signal, classify},
};
use serde_json::Value;

/// Rows of the table that match whatever an error says, and so do not tell whether it is one.
const ROWS_WITHOUT_WORDS: [&str; 3] = ["said/unclear", "said/nothing", "none"];

/// An error that a provider reports.
pub(super) struct Report {
    pub(super) error: ProviderError,
    /// What was sent, where it is JSON, or what came of that.
    pub(super) json: Option<Value>,
    /// The status that it has; for a success the one inside its body.
    status: Option<u16>,
    /// A status inside the body of a refusal, which refines the outer one as a code does.
    inner_status: Option<String>,
    /// Whether it came with a success.
    reported: bool,
}

impl Report {
    /// Reads the body of a response whose status is no success.
    pub(super) fn of_refusal(status: u16, body: &str) -> Self {
        let event = first_event(body);
        let text = event.as_ref().map_or(body, |event| &event.data);
        let json = json_text::value_of(text);
        let error = json.as_ref().map_or_else(|| ProviderError::of_text(text), ProviderError::of_value);
        let inner_status = error.status.filter(|inner| *inner != status).map(|inner| inner.to_string());
        Report { error, json, status: Some(status), inner_status, reported: false }
    }

    /// Reads what came with a success, the body of a 200 or the data of an event; `None` when it is no error. Wording
    /// alone counts where a row of the user or of the table knows it.
    pub(super) fn in_success(rows: &OwnRows, text: &str, event_name: &str) -> Option<Self> {
        let json = json_text::value_of(text).filter(|json| !json.is_number());
        let (error, sign) = match &json {
            Some(json) => (ProviderError::of_value(json), Sign::of(json, event_name)),
            None => (ProviderError::of_text(text), Sign::of_text(text, event_name)),
        };
        let status = error.status;
        let report = Report { error, json, status, inner_status: None, reported: true };
        let owned = || rows.find(&report.signal(), report.json.as_ref()).is_some();
        let known = || !ROWS_WITHOUT_WORDS.contains(&classify(&report.signal()).row);
        let counts = match sign {
            Sign::Strong => true,
            Sign::Weak => owned() || known(),
            Sign::None => owned(),
            Sign::Answer => false,
        };
        counts.then_some(report)
    }

    pub(super) fn signal(&self) -> Signal<'_> {
        let error = &self.error;
        Signal {
            status: self.status,
            reported: self.reported,
            code: error.code.as_deref().or(self.inner_status.as_deref()),
            kind: error.kind.as_deref(),
            message: error.message.as_deref(),
            text: &error.text,
            ..Signal::default()
        }
    }
}

/// The first event of a body that is an event stream.
fn first_event(body: &str) -> Option<Event> {
    is_event_stream(body.as_bytes()).filter(|is_stream| *is_stream)?;
    events(body).into_iter().find(|event| !event.data.trim().is_empty())
}

fn events(body: &str) -> Vec<Event> {
    let mut decoder = Decoder::default();
    let mut events = decoder.push(body.as_bytes()).unwrap_or_default();
    events.extend(decoder.finish());
    events
}

/// The code and the row of a failure, by a user's rows and then by the table.
pub(super) fn name(rows: &OwnRows, signal: &Signal<'_>, body: Option<&Value>) -> (FailureCode, String) {
    match rows.find(signal, body) {
        Some(own) => (own.code, own.row_id()),
        None => {
            let verdict = classify(signal);
            (verdict.code, verdict.row.to_owned())
        }
    }
}

/// The code and the row of a response that was written down, by a user's rows and the table; `None` for a success that
/// reports no error.
pub fn classify_fixture(rows: &OwnRows, fixture: &Fixture) -> Option<(FailureCode, String)> {
    let report = match fixture.status {
        200..=299 if is_event_stream(fixture.body.as_bytes()) == Some(true) => {
            events(&fixture.body).iter().find_map(|event| Report::in_success(rows, &event.data, &event.name))?
        }
        200..=299 => Report::in_success(rows, &fixture.body, "")?,
        status => Report::of_refusal(status, &fixture.body),
    };
    Some(name(rows, &report.signal(), report.json.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::classify::{Condition, OwnRow};

    fn found(rows: &OwnRows, status: u16, body: &str) -> Option<(FailureCode, String)> {
        classify_fixture(rows, &Fixture { status, body: body.to_owned() })
    }

    fn of_table(status: u16, body: &str) -> Option<FailureCode> {
        found(&OwnRows::default(), status, body).map(|(code, _)| code)
    }

    #[test]
    fn a_success_is_an_error_where_its_shape_or_its_wording_says_so() {
        use FailureCode::*;
        for (body, code) in [
            (r#"{"code":"Throttling.RateQuota","message":"Requests rate limit exceeded"}"#, Some(RateLimit)),
            (r#"{"code":"Arrearage","message":"Access denied"}"#, Some(Quota)),
            (r#"{"detail":"Internal Server Error"}"#, Some(Server)),
            (r#"{"message":"Endpoint request timed out"}"#, Some(Timeout)),
            (r#"{"statusCode":429,"message":"Try again in 7 seconds."}"#, Some(RateLimit)),
            (r#"{"status":503,"message":"Service Unavailable"}"#, Some(Server)),
            (r#"{"base_resp":{"status_code":1008,"status_msg":"insufficient balance"}}"#, Some(Quota)),
            (r#"{"error_code":18,"error_msg":"Open api qps request limit reached"}"#, Some(RateLimit)),
            (r#"{"__type":"com.acme#ThrottlingException","message":"m"}"#, Some(RateLimit)),
            (r#"{"error":{"code":429.0}}"#, Some(RateLimit)),
            (r#"{"error":[{"code":429}]}"#, Some(RateLimit)),
            (r#"{"error":{"http_code":429}}"#, Some(RateLimit)),
            (r#"{"statusCode":401,"error":"Nope"}"#, Some(Auth)),
            (r#"{"choices":[{"finish_reason":"error","error":{"code":402}}]}"#, Some(Quota)),
            (r#"{"error":{"code":503,"message":"Service Unav"#, Some(Server)),
            ("event: error\ndata: Too many requests\n\n", Some(RateLimit)),
            ("data: Internal Server Error", Some(Server)),
            ("502 Bad Gateway", Some(Server)),
            ("{\"message\":\"hello\"}", None),
            ("Hello there", None),
            ("", None),
            (r#"{"choices":[{"message":{"content":"rate limit exceeded"}}]}"#, None),
        ] {
            assert_eq!(of_table(200, body), code, "{body}");
        }
    }

    #[test]
    fn what_stands_inside_refines_a_refusal() {
        use FailureCode::*;
        for (body, code) in [
            (r#"{"errors":[{"code":429}]}"#, RateLimit),
            (r#"{"error":[{"code":429}]}"#, RateLimit),
            (r#"{"error":{"error":{"code":"429"}}}"#, RateLimit),
            (r#"{"error":{"http_code":429}}"#, RateLimit),
            (r#"{"__type":"ThrottlingException"}"#, RateLimit),
            ("event: error\ndata: {\"error\":{\"type\":\"overloaded_error\"}}\n\n", Server),
            (r#"{"status":400,"error":"Nope"}"#, InvalidRequest),
        ] {
            assert_eq!(of_table(400, body), Some(code), "{body}");
        }
        assert_eq!(of_table(503, r#"{"error":{"http_code":429}}"#), Some(Server));
    }

    #[test]
    fn a_row_of_ones_own_makes_an_error_of_a_success_but_not_of_an_answer() {
        let when = Condition { text: Some("house on fire".to_owned()), ..Condition::default() };
        let row = OwnRow { id: "fire".to_owned(), when, code: FailureCode::Server, fixture: None };
        let rows = OwnRows::new(vec![row]).unwrap();
        for body in [
            "house on fire",
            r#"{"message":"house on fire"}"#,
            "data: house on fire",
            r#"{"state":1,"detail":{"msg":"house on fire"}}"#,
        ] {
            assert_eq!(of_table(200, body), None, "{body}");
            assert_eq!(found(&rows, 200, body), Some((FailureCode::Server, "own/fire".to_owned())), "{body}");
        }
        assert_eq!(found(&rows, 200, r#"{"choices":[{"delta":{}}],"message":"house on fire"}"#), None);
    }
}
