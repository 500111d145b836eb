//! The parser of the script language: looks up what each written step means. Owns the table of steps and the sentences
//! that say what is wrong with a script; the grammar is in [`super::scan`]. Called by [`Script::parse`].

use super::scan::{At, Keyed, Scan, Written};
use super::script::{Body, Ending, ErrorObject, Play, RawEnd, RawSource, Script, Step, Stream, Words};
use std::{ops::RangeInclusive, sync::Arc, time::Duration};

/// The most requests that one step may be repeated for.
pub const MAX_TIMES: u64 = 1_000_000;
/// The most words in one stream.
pub const MAX_WORDS: u64 = 100_000;
/// The longest pause, in milliseconds: a day.
pub const MAX_PAUSE_MS: u64 = 86_400_000;
/// The largest `split`, in bytes.
const MAX_SPLIT: u64 = 1_048_576;

/// What is wrong with a script. Columns count characters from 1.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScriptError {
    #[error("the script is empty: write at least one step, for instance `503*2, ok`")]
    Empty,
    #[error("there is no step at column {column} of the script: write a step between two commas, for instance `ok`")]
    NoStep { column: usize },
    #[error("`{step}` at column {column} is no step: use a status from 100 to 599, or one of {}", names())]
    UnknownStep { step: String, column: usize },
    #[error("step `{step}` has no option `{key}` (column {column}): it takes {allowed}")]
    UnknownOption { step: String, key: String, column: usize, allowed: String },
    #[error("step `{step}` has a value that it has no place for, `{value}` (column {column}): it takes {allowed}")]
    ExtraValue { step: String, value: String, column: usize, allowed: String },
    #[error("step `{step}` names `{key}` twice (column {column}): name it once")]
    Twice { step: String, key: String, column: usize },
    #[error(
        "step `{step}` would ignore its option `{key}` (column {column}), because another value rules it out: leave one out"
    )]
    NoEffect { step: String, key: String, column: usize },
    #[error("step `{step}` has `{value}` for {what} (column {column}): write a whole number from {least} to {most}")]
    Number { step: String, what: String, value: String, column: usize, least: u64, most: u64 },
    #[error("step `{step}` has `{value}` for {what} (column {column}): write one of {allowed}")]
    Choice { step: String, what: String, value: String, column: usize, allowed: &'static str },
    #[error("step `{step}` at column {column} lacks {what}: write for instance `{example}`")]
    Missing { step: String, column: usize, what: &'static str, example: &'static str },
    #[error("step `{step}` has a value that no header can carry, `{value}` (column {column}): {right}")]
    Header { step: String, value: String, column: usize, right: &'static str },
    #[error("the quoted text that begins at column {column} has no end: close it with a quote")]
    OpenQuote { column: usize },
    #[error("`\\{found}` at column {column} means nothing: inside quotes only \\\" \\\\ \\n \\r \\t are known")]
    Escape { found: char, column: usize },
    #[error(
        "`{found}` at column {column} was not expected after `{after}`: write `:`, `*`, `,` or nothing, and put text that holds such signs in quotes"
    )]
    Unexpected { found: char, column: usize, after: String },
    #[error("`{step}` at column {column} must stand alone at the end of the script, after at least one step")]
    LoopPlace { step: String, column: usize },
    #[error("step `{step}` cannot be repeated (column {column}): it lasts until its time is over")]
    NoRepeat { step: String, column: usize },
}

/// A step's name, the plain value that it takes, and its own options.
struct Form {
    name: &'static str,
    value: Option<&'static str>,
    options: &'static [&'static str],
}

const fn form(name: &'static str, value: Option<&'static str>, options: &'static [&'static str]) -> Form {
    Form { name, value, options }
}

const STATUS_FORM: Form = form("STATUS", None, &["retry-after", "retry-after-ms", "message", "code", "type", "body"]);

const FORMS: &[Form] = &[
    form("ok", None, &["text", "tokens", "delay", "split"]),
    form("slow", None, &["ms", "text", "delay", "split"]),
    form("reasoning", Some("N"), &["text", "delay", "split"]),
    form("tool", None, &["name", "arguments", "delay", "split"]),
    form("length", None, &["text", "delay", "split"]),
    form("json", None, &["body", "message", "code", "type"]),
    form("down", Some("STATUS"), &["ms", "retry-after", "retry-after-ms", "message", "code", "type", "body"]),
    form("empty", None, &["delay", "split"]),
    form("filter", Some("N"), &["delay", "split"]),
    form("finish", Some("REASON"), &["delay", "split"]),
    form("error", Some("N"), &["message", "code", "type", "status", "delay", "split"]),
    form("malformed", Some("N"), &["delay", "split"]),
    form("cut", Some("N"), &["delay", "split"]),
    form("eof", Some("N"), &["delay", "split"]),
    form("reset", Some("N"), &["delay", "split"]),
    form("stall", Some("N"), &["ms", "ping", "delay", "split"]),
    form("hang", None, &["ms"]),
    form("html", Some("STATUS"), &[]),
    form("raw", Some("FILE"), &["end"]),
];

/// The options that a step with a head takes besides its own. A raw response and a hang have no head of ours.
const HEAD_OPTIONS: &[&str] = &["after", "header", "request-id"];

impl Form {
    fn common(&self) -> &'static [&'static str] {
        match self.name {
            "raw" => &["after"],
            "hang" => &[],
            _ => HEAD_OPTIONS,
        }
    }

    fn takes(&self, key: &str) -> bool {
        self.options.contains(&key) || self.common().contains(&key)
    }

    fn allowed(&self) -> String {
        let value = self.value.map(|value| format!("a value {value}"));
        let options = self.options.iter().chain(self.common()).map(|key| format!("{key}="));
        let all: Vec<_> = value.into_iter().chain(options).collect();
        all.join(", ")
    }
}

fn names() -> String {
    FORMS.iter().map(|form| form.name).collect::<Vec<_>>().join(", ")
}

/// Parses a whole script.
pub(super) fn script(text: &str) -> Result<Script, ScriptError> {
    if text.trim().is_empty() {
        return Err(ScriptError::Empty);
    }
    let mut scan = Scan::new(text);
    let mut steps = Vec::new();
    loop {
        let written = scan.step()?;
        let last = scan.peek().is_none();
        if matches!(written.name.as_str(), "..." | "loop") {
            if steps.is_empty() || !last || !written.is_bare() {
                return Err(ScriptError::LoopPlace { step: written.label, column: written.column });
            }
            return Ok(Script { steps, loops: true });
        }
        steps.push(Arc::new(written.build()?));
        if last {
            return Ok(Script { steps, loops: false });
        }
        scan.bump(); // the comma
    }
}

impl Written {
    fn is_bare(&self) -> bool {
        self.value.is_none() && self.options.is_empty() && self.times.is_none()
    }

    fn build(mut self) -> Result<Step, ScriptError> {
        let status = self.status_name();
        let form = match status {
            Some(_) => &STATUS_FORM,
            None => FORMS
                .iter()
                .find(|form| form.name == self.name)
                .ok_or_else(|| ScriptError::UnknownStep { step: self.name.clone(), column: self.column })?,
        };
        self.check(form)?;
        let times = match self.times.take() {
            Some(at) if form.name == "down" => {
                return Err(ScriptError::NoRepeat { step: self.name, column: at.column });
            }
            Some(at) => self.whole("the repetition", &at, 1..=MAX_TIMES)? as u32,
            None => 1,
        };
        let mut headers = self.headers()?;
        let mut after = self.pause("after")?;
        let play = match form.name {
            "STATUS" => {
                let status = status.unwrap_or_default();
                if status < 200 { Play::Interim { status } } else { Play::Reply { status, body: self.error_body()? } }
            }
            "down" => {
                let until = self.take("ms").ok_or_else(|| ScriptError::Missing {
                    step: self.name.clone(),
                    column: self.column,
                    what: "how long it lasts",
                    example: "down:503:ms=3000",
                })?;
                let until = Duration::from_millis(self.whole("`ms`", &until, 0..=MAX_PAUSE_MS)?);
                let status = self.value_number("the status", 200..=599, 503)? as u16;
                Play::Down { until, status, body: self.error_body()? }
            }
            "json" => Play::Reply { status: 200, body: self.json_body()? },
            "html" => Play::Reply { status: self.value_number("the status", 200..=599, 200)? as u16, body: Body::Html },
            "hang" => Play::Hang { limit: self.pause("ms")? },
            "raw" => Play::Raw { source: self.raw_source()?, end: self.raw_end()? },
            "reset" => match self.words(0)? {
                0 => Play::Reset,
                words => Play::Stream(self.stream(Words::Partial(words), Ending::Reset)?),
            },
            _ => {
                if form.name == "slow" {
                    after = Some(self.pause("ms")?.or(after).unwrap_or(Duration::from_secs(1)));
                }
                Play::Stream(self.completion(form.name)?)
            }
        };
        headers.extend(self.hints()?);
        if let Some(Keyed { key, column, .. }) = self.options.pop() {
            return Err(ScriptError::NoEffect { step: self.name, key, column });
        }
        Ok(Step { label: self.label, times, after: after.unwrap_or_default(), headers, play })
    }

    fn status_name(&self) -> Option<u16> {
        if self.name.len() != 3 || !self.name.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        self.name.parse().ok().filter(|status| (100..=599).contains(status))
    }

    /// Every option and value must be one that the step takes.
    fn check(&self, form: &Form) -> Result<(), ScriptError> {
        for option in &self.options {
            if !form.takes(&option.key) {
                return Err(ScriptError::UnknownOption {
                    step: self.name.clone(),
                    key: option.key.clone(),
                    column: option.column,
                    allowed: form.allowed(),
                });
            }
        }
        match (&self.value, form.value) {
            (Some(value), None) => Err(ScriptError::ExtraValue {
                step: self.name.clone(),
                value: value.text.clone(),
                column: value.column,
                allowed: form.allowed(),
            }),
            _ => Ok(()),
        }
    }

    fn completion(&mut self, name: &str) -> Result<Stream, ScriptError> {
        let stop = || Ending::Finish("stop".into());
        let (words, ending) = match name {
            "tool" => {
                let name = self.text("name").unwrap_or_else(|| "lookup".into());
                let arguments = self.text("arguments").unwrap_or_else(|| r#"{"query":"prime"}"#.into());
                (Words::Text(String::new()), Ending::ToolCall { name, arguments })
            }
            "length" => (self.answer()?, Ending::Finish("length".into())),
            "empty" => (Words::Text(String::new()), stop()),
            "filter" => (Words::Partial(self.words(2)?), Ending::Finish("content_filter".into())),
            "finish" => {
                let reason = self.value.take().ok_or_else(|| ScriptError::Missing {
                    step: self.name.clone(),
                    column: self.column,
                    what: "a finish reason",
                    example: "finish:error",
                })?;
                (Words::Partial(2), Ending::Finish(reason.text))
            }
            "error" => (Words::Partial(self.words(0)?), Ending::Error(self.error_object()?)),
            "malformed" => (Words::Partial(self.words(1)?), Ending::Malformed),
            "cut" => (Words::Partial(self.words(2)?), Ending::Cut),
            "eof" => (Words::Partial(self.words(2)?), Ending::Eof),
            "stall" => {
                let ending = Ending::Stall { limit: self.pause("ms")?, ping: self.pause_of("ping", 1)? };
                (Words::Partial(self.words(0)?), ending)
            }
            // ok, slow and reasoning
            _ => (self.answer()?, stop()),
        };
        let mut stream = self.stream(words, ending)?;
        if name == "reasoning" {
            stream.reasoning = self.words(3)?;
        }
        Ok(stream)
    }

    fn stream(&mut self, words: Words, ending: Ending) -> Result<Stream, ScriptError> {
        let split = match self.take("split") {
            Some(at) => Some(self.whole("`split`", &at, 1..=MAX_SPLIT)? as usize),
            None => None,
        };
        Ok(Stream { delay: self.pause("delay")?.unwrap_or_default(), split, ..Stream::new(words, ending) })
    }

    fn answer(&mut self) -> Result<Words, ScriptError> {
        if let Some(text) = self.text("text") {
            return Ok(Words::Text(text));
        }
        Ok(match self.take("tokens") {
            Some(at) => Words::Count(self.whole("`tokens`", &at, 0..=MAX_WORDS)? as usize),
            None => Words::Answer,
        })
    }

    /// The plain value as a number of words.
    fn words(&mut self, usual: u64) -> Result<usize, ScriptError> {
        Ok(self.value_number("the number of words", 0..=MAX_WORDS, usual)? as usize)
    }

    fn value_number(&mut self, what: &str, range: RangeInclusive<u64>, usual: u64) -> Result<u64, ScriptError> {
        match self.value.take() {
            Some(at) => self.whole(what, &at, range),
            None => Ok(usual),
        }
    }

    fn error_object(&mut self) -> Result<ErrorObject, ScriptError> {
        let status = match self.take("status") {
            Some(at) => Some(self.whole("`status`", &at, 100..=599)? as u16),
            None => None,
        };
        Ok(ErrorObject { message: self.text("message"), kind: self.text("type"), code: self.text("code"), status })
    }

    fn error_body(&mut self) -> Result<Body, ScriptError> {
        match self.text("body") {
            Some(body) => Ok(Body::Json(body)),
            None => Ok(Body::Error(self.error_object()?)),
        }
    }

    fn json_body(&mut self) -> Result<Body, ScriptError> {
        if let Some(body) = self.text("body") {
            return Ok(Body::Json(body));
        }
        let error = self.error_object()?;
        Ok(if error == ErrorObject::default() { Body::Completion } else { Body::Error(error) })
    }

    fn raw_source(&mut self) -> Result<RawSource, ScriptError> {
        match self.value.take().filter(|value| !value.text.is_empty()) {
            Some(file) => Ok(RawSource::File(file.text.into())),
            None => Err(ScriptError::Missing {
                step: self.name.clone(),
                column: self.column,
                what: "a file",
                example: "raw:answer.http",
            }),
        }
    }

    fn raw_end(&mut self) -> Result<RawEnd, ScriptError> {
        let Some(at) = self.take("end") else { return Ok(RawEnd::Close) };
        match at.text.as_str() {
            "close" => Ok(RawEnd::Close),
            "reset" => Ok(RawEnd::Reset),
            "stall" => Ok(RawEnd::Stall),
            _ => Err(ScriptError::Choice {
                step: self.name.clone(),
                what: "`end`".into(),
                value: at.text,
                column: at.column,
                allowed: "close, reset, stall",
            }),
        }
    }

    /// The `header` and `request-id` options.
    fn headers(&mut self) -> Result<Vec<(String, String)>, ScriptError> {
        let mut headers = Vec::new();
        while let Some(at) = self.take("header") {
            headers.push(self.header(at)?);
        }
        if let Some(at) = self.take("request-id") {
            headers.push(("x-request-id".into(), self.header_value(at)?));
        }
        Ok(headers)
    }

    /// The `retry-after` and `retry-after-ms` options. Any text is sent: nonsense hints are worth testing.
    fn hints(&mut self) -> Result<Vec<(String, String)>, ScriptError> {
        let mut headers = Vec::new();
        for name in ["retry-after", "retry-after-ms"] {
            if let Some(at) = self.take(name) {
                headers.push((name.into(), self.header_value(at)?));
            }
        }
        Ok(headers)
    }

    fn header(&self, at: At) -> Result<(String, String), ScriptError> {
        let wrong = |value: String, right| {
            Err(ScriptError::Header { step: self.name.clone(), value, column: at.column, right })
        };
        let Some((name, value)) = at.text.split_once(':') else {
            return wrong(at.text, "write header=\"name: value\"");
        };
        let name = name.trim().to_ascii_lowercase();
        let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
        if name.is_empty() || !name.bytes().all(is_token) {
            return wrong(at.text, "the name of a header is made of letters, digits and hyphens");
        }
        if ["content-length", "transfer-encoding", "connection"].contains(&name.as_str()) {
            return wrong(at.text, "the frame of a response is the server's own; a `raw` step can break it");
        }
        let value = self.header_value(At { column: at.column, text: value.trim().to_owned() })?;
        Ok((name, value))
    }

    fn header_value(&self, at: At) -> Result<String, ScriptError> {
        if at.text.chars().any(|sign| sign.is_control() && sign != '\t') {
            let right = "a header is one line without control characters";
            return Err(ScriptError::Header { step: self.name.clone(), value: at.text, column: at.column, right });
        }
        Ok(at.text)
    }

    fn take(&mut self, key: &str) -> Option<At> {
        let index = self.options.iter().position(|option| option.key == key)?;
        Some(self.options.remove(index).value)
    }

    fn text(&mut self, key: &str) -> Option<String> {
        self.take(key).map(|at| at.text)
    }

    fn pause(&mut self, key: &str) -> Result<Option<Duration>, ScriptError> {
        self.pause_of(key, 0)
    }

    fn pause_of(&mut self, key: &str, least: u64) -> Result<Option<Duration>, ScriptError> {
        match self.take(key) {
            Some(at) => self.whole(&format!("`{key}`"), &at, least..=MAX_PAUSE_MS).map(Duration::from_millis).map(Some),
            None => Ok(None),
        }
    }

    fn whole(&self, what: &str, at: &At, range: RangeInclusive<u64>) -> Result<u64, ScriptError> {
        at.text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| ScriptError::Number {
            step: self.name.clone(),
            what: what.into(),
            value: at.text.clone(),
            column: at.column,
            least: *range.start(),
            most: *range.end(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(text: &str) -> Step {
        let script = Script::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(script.steps.len(), 1, "{text}");
        Step::clone(&script.steps[0])
    }

    fn wrong(text: &str) -> ScriptError {
        Script::parse(text).expect_err(text)
    }

    #[test]
    fn a_status_carries_its_hints_and_its_error() {
        let step =
            one(r#"429:retry-after="Wed, 21 Oct 2015 07:28:00 GMT":code=1305:message="Busy, \"later\"":request-id=r1"#);
        assert_eq!(
            step.headers,
            [
                ("x-request-id".to_owned(), "r1".to_owned()),
                ("retry-after".to_owned(), "Wed, 21 Oct 2015 07:28:00 GMT".to_owned())
            ]
        );
        let error = ErrorObject {
            message: Some("Busy, \"later\"".into()),
            code: Some("1305".into()),
            ..ErrorObject::default()
        };
        assert_eq!(step.play, Play::Reply { status: 429, body: Body::Error(error) });
    }

    #[test]
    fn the_label_is_the_step_as_written_without_its_repetition() {
        let script = Script::parse("  429 : retry-after = 1 * 3 ,cut:4*2, ok").unwrap();
        let labels: Vec<_> = script.steps.iter().map(|step| (step.label.as_str(), step.times)).collect();
        assert_eq!(labels, [("429 : retry-after = 1", 3), ("cut:4", 2), ("ok", 1)]);
    }

    #[test]
    fn an_equals_sign_after_the_name_gives_the_value() {
        assert_eq!(one("cut=4").play, one("cut:4").play);
        assert_eq!(
            one("raw=a.http:end=reset").play,
            Play::Raw { source: RawSource::File("a.http".into()), end: RawEnd::Reset }
        );
    }

    #[test]
    fn headers_may_be_repeated_and_are_lower_cased() {
        let step = one(r#"503:header="X-Should-Retry: false":header="date: Mon, 01 Jun 2026 10:00:00 GMT""#);
        assert_eq!(step.headers[0], ("x-should-retry".into(), "false".into()));
        assert_eq!(step.headers[1], ("date".into(), "Mon, 01 Jun 2026 10:00:00 GMT".into()));
    }

    #[test]
    fn every_step_of_the_table_is_parsed_and_documented() {
        for form in FORMS {
            let text = match form.name {
                "down" => "down:ms=1",
                "finish" => "finish:error",
                "raw" => "raw:file",
                name => name,
            };
            one(text);
            let documented = super::super::SCRIPT_LANGUAGE;
            assert!(documented.lines().any(|line| line.split_whitespace().next() == Some(form.name)), "{text}");
            for key in form.options.iter().chain(HEAD_OPTIONS) {
                assert!(documented.contains(&format!("{key}=")), "{} of {text} is not documented", key);
            }
        }
    }

    #[test]
    fn slow_is_an_answer_with_a_late_first_byte() {
        let slow = one("slow:ms=20");
        assert_eq!((slow.after, &slow.play), (Duration::from_millis(20), &Step::ok().play));
        assert_eq!(one("503:after=20").after, Duration::from_millis(20));
    }

    #[test]
    fn a_wrong_script_is_told_where_and_what_would_be_right() {
        let table = [
            ("", "the script is empty: write at least one step, for instance `503*2, ok`"),
            ("ok,,ok", "there is no step at column 4 of the script"),
            ("ok, ", "there is no step at column 5 of the script"),
            ("ok, nap", "`nap` at column 5 is no step: use a status from 100 to 599, or one of ok, slow,"),
            ("600", "`600` at column 1 is no step: use a status from 100 to 599"),
            ("ok:retry-after=1", "step `ok` has no option `retry-after` (column 4): it takes text=, tokens="),
            ("ok:3", "step `ok` has a value that it has no place for, `3` (column 4)"),
            ("cut:3:4", "step `cut` has a value that it has no place for, `4` (column 7)"),
            ("ok:text=a:text=b", "step `ok` names `text` twice (column 11)"),
            ("cut:x", "step `cut` has `x` for the number of words (column 5): write a whole number from 0 to 100000"),
            ("ok:text=a:tokens=3", "step `ok` would ignore its option `tokens` (column 11)"),
            ("503:body=a:code=b", "step `503` would ignore its option `code` (column 12)"),
            ("reset:delay=5", "step `reset` would ignore its option `delay` (column 7)"),
            ("100:body=a", "step `100` would ignore its option `body` (column 5)"),
            ("503*0", "step `503` has `0` for the repetition (column 5): write a whole number from 1 to 1000000"),
            ("503*", "step `503` has `` for the repetition (column 5)"),
            ("raw:f:end=later", "step `raw` has `later` for `end` (column 11): write one of close, reset, stall"),
            ("raw", "step `raw` at column 1 lacks a file: write for instance `raw:answer.http`"),
            ("down", "step `down` at column 1 lacks how long it lasts: write for instance `down:503:ms=3000`"),
            ("finish", "step `finish` at column 1 lacks a finish reason"),
            ("down:ms=1*2", "step `down` cannot be repeated (column 11)"),
            ("ok:text=\"abc", "the quoted text that begins at column 9 has no end"),
            ("ok:text=\"a\\q\"", "`\\q` at column 11 means nothing"),
            ("ok:text=\"a\"b", "`b` at column 12 was not expected after `ok:text=\"a\"`"),
            ("ok:text=a\"b\"", "`\"` at column 10 was not expected"),
            ("503*2*3", "`*` at column 6 was not expected after `503*2`"),
            ("503*2:code=1", "`:` at column 6 was not expected after `503*2`"),
            ("...", "`...` at column 1 must stand alone at the end of the script"),
            ("loop, ok", "`loop` at column 1 must stand alone at the end"),
            ("ok, loop*2", "`loop` at column 5 must stand alone at the end"),
            ("503:header=x", "step `503` has a value that no header can carry, `x` (column 12): write header="),
            ("503:header=\"a b: c\"", "the name of a header is made of letters, digits and hyphens"),
            ("503:header=\"content-length: 3\"", "the frame of a response is the server's own"),
            ("503:retry-after=\"1\\r\\nx: y\"", "a header is one line without control characters"),
            ("é:x", "`é` at column 1 is no step"),
        ];
        for (text, sentence) in table {
            let error = wrong(text).to_string();
            assert!(error.contains(sentence), "{text:?} gave: {error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in any::<String>()) {
            let _ = Script::parse(&text);
        }

        #[test]
        fn no_text_of_the_grammars_own_signs_makes_the_parser_panic(
            text in r#"((ok|429|cut|down|raw|stall|loop|\.\.\.|text|ms|header|é|[0-9]|"|\\|[ ,:*=\r\n])){0,24}"#
        ) {
            if let Ok(script) = Script::parse(&text) {
                prop_assert!(!script.steps.is_empty());
                prop_assert!(script.steps.iter().all(|step| step.times >= 1));
            }
        }

        #[test]
        fn any_text_survives_quoting(text in any::<String>()) {
            let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
            let step = one(&format!("ok:text=\"{quoted}\""));
            prop_assert_eq!(step.play, Play::Stream(Stream::new(Words::Text(text), Ending::Finish("stop".into()))));
        }
    }
}
