//! What a provider says about an error, found in the many shapes in which providers say it.
//!
//! Pure. It takes apart what is known to be an error, or may be one; which of the two, `sign` says.

use super::page;
use serde_json::{Map, Value};

/// A text without structure is read this far for its wording, in bytes; beyond that, pages are decoration.
const MAX_PROSE: usize = 2048;

/// Errors inside errors are followed this far.
const MAX_DEPTH: usize = 4;

/// At most so many problems of a list stand in one message.
const MAX_PROBLEMS: usize = 8;

/// Where a message stands. What is called an error's goes before what may be anything's.
const MESSAGE_KEYS: [&str; 10] = [
    "message",
    "detail",
    "error_msg",
    "error_message",
    "errorMessage",
    "errmsg",
    "status_msg",
    "msg",
    "Message",
    "error_description",
];

const CODE_KEYS: [&str; 4] = ["code", "error_code", "errcode", "errorCode"];

const STATUS_KEYS: [&str; 10] = [
    "status_code",
    "statusCode",
    "http_code",
    "httpCode",
    "http_status",
    "httpStatus",
    "status",
    "code",
    "error_code",
    "originalStatusCode",
];

/// Words under `type` or `status` that only say that something is an error; so do the events of a response.
const BARE_KINDS: [&str; 4] = ["error", "failed", "fail", "failure"];

/// An error object, taken apart. All parts are optional.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ProviderError {
    /// Numbers are given as their digits.
    pub(super) code: Option<String>,
    pub(super) kind: Option<String>,
    pub(super) message: Option<String>,
    /// A status that stands inside the body; 400 to 599.
    pub(super) status: Option<u16>,
    /// Further text to read for its wording.
    pub(super) text: String,
}

impl ProviderError {
    /// Reads a text without structure.
    pub(super) fn of_text(text: &str) -> Self {
        ProviderError { text: page::prose(text, MAX_PROSE), ..Self::default() }
    }

    pub(super) fn of_value(value: &Value) -> Self {
        Self::within(value, MAX_DEPTH)
    }

    /// What was said, in words: the message, or the text that stands in its place.
    pub(super) fn said(&self) -> &str {
        self.message.as_deref().unwrap_or(&self.text)
    }

    fn within(value: &Value, depth: usize) -> Self {
        match unwrapped(value) {
            Value::Object(outer) => match inner(outer).filter(|_| depth > 0) {
                Some((key, inner)) => {
                    let found = Self::within(inner, depth - 1);
                    let kind = found
                        .kind
                        .or_else(|| Some(key).filter(|key| is_error_name(key) && *key != "error").map(str::to_owned));
                    ProviderError { kind, ..found }
                        .beside(Self::of_object(outer), inner.is_object() || inner.is_array())
                }
                None => Self::of_object(outer),
            },
            Value::String(message) => ProviderError { message: plain(message), ..Self::default() },
            number @ Value::Number(_) => {
                let code = word(number);
                ProviderError { status: code.as_deref().and_then(status_of), code, ..Self::default() }
            }
            _ => Self::default(),
        }
    }

    /// What stands in the error itself goes before what stands beside it.
    fn beside(self, outer: Self, is_whole: bool) -> Self {
        // The type of an object that holds an error is seldom about the error.
        let outer_kind = outer.kind.filter(|kind| !is_whole || is_error_name(kind));
        let further = outer.message.clone().filter(|message| self.message.as_ref().is_some_and(|own| own != message));
        let texts = [Some(self.text), Some(outer.text), further];
        ProviderError {
            code: self.code.or(outer.code),
            kind: self.kind.or(outer_kind),
            message: self.message.or(outer.message),
            status: self.status.or(outer.status),
            text: texts.into_iter().flatten().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" "),
        }
    }

    fn of_object(object: &Map<String, Value>) -> Self {
        let text = |key: &str| object.get(key).and_then(word);
        let says_more = |kind: &String| {
            !BARE_KINDS.contains(&kind.as_str()) && !kind.starts_with("response.") && kind.parse::<f64>().is_err()
        };
        // Google's `status` is a word such as UNAVAILABLE.
        let kind = ["__type", "type", "status"].into_iter().find_map(|key| text(key).filter(says_more));
        ProviderError {
            code: CODE_KEYS.into_iter().find_map(text).or_else(|| own_number(object)).filter(|code| code != "0"),
            kind: kind.map(|kind| bare_name(&kind).to_owned()),
            message: message_in(object),
            status: status_in(object),
            text: further_text(object),
        }
    }
}

/// The message that stands in an object itself.
pub(super) fn message_in(object: &Map<String, Value>) -> Option<String> {
    MESSAGE_KEYS.into_iter().find_map(|key| message(object.get(key)?))
}

/// The HTTP status of an error that stands in an object itself.
pub(super) fn status_in(object: &Map<String, Value>) -> Option<u16> {
    STATUS_KEYS.into_iter().find_map(|key| status_of(&word(object.get(key)?)?))
}

/// A `status_code` that is none of HTTP is a code of the provider's own.
fn own_number(object: &Map<String, Value>) -> Option<String> {
    object.get("status_code").and_then(word).filter(|code| status_of(code).is_none())
}

/// A status of HTTP that is about an error.
fn status_of(text: &str) -> Option<u16> {
    text.parse().ok().filter(|status| (400..=599).contains(status))
}

/// A word or a number, as text; a whole number without a fraction.
pub(super) fn word(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.trim().to_owned()).filter(|text| !text.is_empty()),
        Value::Number(number) => {
            let whole = number.as_f64().filter(|number| number.fract() == 0.0 && number.abs() < 1e15);
            Some(whole.map_or_else(|| number.to_string(), |number| format!("{number:.0}")))
        }
        _ => None,
    }
}

/// A text of its own, or a list of problems, each with its place.
fn message(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => plain(text),
        Value::Array(problems) => {
            let problems: Vec<String> = problems.iter().take(MAX_PROBLEMS).filter_map(problem).collect();
            Some(problems.join("; ")).filter(|text| !text.is_empty())
        }
        _ => None,
    }
}

fn problem(value: &Value) -> Option<String> {
    let Value::Object(problem) = value else { return message(value).filter(|_| value.is_string()) };
    let text = ["msg", "message"].into_iter().find_map(|key| problem.get(key).and_then(word))?;
    let place: Vec<String> =
        problem.get("loc").and_then(Value::as_array).into_iter().flatten().filter_map(word).collect();
    Some(if place.is_empty() { text } else { format!("{}: {text}", place.join(".")) })
}

/// A message, also one that is a page.
fn plain(text: &str) -> Option<String> {
    let text = text.trim();
    let text = if text.starts_with('<') { page::prose(text, MAX_PROSE) } else { text.to_owned() };
    Some(text).filter(|text| !text.is_empty())
}

/// `com.acme#ThrottlingException:http://…` is a `ThrottlingException`.
pub(super) fn bare_name(name: &str) -> &str {
    let name = name.rsplit_once('#').map_or(name, |(_, name)| name);
    name.split_once(':').map_or(name, |(name, _)| name).trim()
}

/// Whether a name says that what it names is an error.
pub(super) fn is_error_name(name: &str) -> bool {
    let name = name.trim_end();
    ["error", "exception"].iter().any(|end| {
        let start = name.len().checked_sub(end.len());
        start.and_then(|start| name.get(start..)).is_some_and(|tail| tail.eq_ignore_ascii_case(end))
    })
}

/// What an error object says beside its message: the error of the provider behind a gateway, when to come back, and the
/// ids of the quotas that were exceeded, which tell a limit per minute from one per day.
fn further_text(object: &Map<String, Value>) -> String {
    let mut texts = Vec::new();
    match object.get("metadata").and_then(|metadata| metadata.get("raw")) {
        Some(Value::String(raw)) => texts.push(raw.clone()),
        Some(other) => texts.push(other.to_string()),
        None => {}
    }
    let details = object.get("details").and_then(Value::as_array).into_iter().flatten();
    // Whoever says when to come back throttles, though the message speaks of a quota.
    let delays = details.clone().filter_map(|detail| detail.get("retryDelay")?.as_str());
    texts.extend(delays.map(|delay| format!("retry in {delay}")));
    let violations = details.filter_map(|detail| detail.get("violations")?.as_array()).flatten();
    texts.extend(violations.filter_map(|violation| violation.get("quotaId")?.as_str().map(str::to_owned)));
    texts.join(" ")
}

/// Some providers wrap the object in a list of one, or in two.
pub(super) fn unwrapped(mut value: &Value) -> &Value {
    while let Some(first) = value.as_array().and_then(|items| items.first()) {
        value = first;
    }
    value
}

/// Whether there is anything in it.
pub(super) fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.trim().is_empty(),
        Value::Array(items) => items.iter().any(says_something),
        Value::Object(fields) => fields.values().any(says_something),
    }
}

/// The error that an object holds, if it says something, and the key that it stands under.
pub(super) fn inner(object: &Map<String, Value>) -> Option<(&str, &Value)> {
    let structured = |value: &&Value| says_something(value) && !value.is_boolean();
    let named = |key: &'static str| Some((key, object.get(key).filter(structured)?));
    let response = || Some(("error", object.get("response")?.get("error").filter(structured)?));
    let choice = || {
        let choices = object.get("choices")?.as_array()?;
        Some(("error", choices.iter().find_map(|choice| choice.get("error").filter(structured))?))
    };
    let detail = || named("detail").filter(|(_, detail)| detail.is_object());
    let base = || {
        Some(("base_resp", object.get("base_resp").filter(|base| base.get("status_code").is_some_and(says_something))?))
    };
    named("error")
        .or_else(|| named("errors"))
        .or_else(response)
        .or_else(choice)
        .or_else(detail)
        .or_else(base)
        .or_else(|| exception(object))
}

/// An error under its own name, as in `{"throttlingException": {"message": …}}`.
pub(super) fn exception(object: &Map<String, Value>) -> Option<(&str, &Value)> {
    let named = |(key, value): &(&String, &Value)| is_error_name(key) && value.is_object() && says_something(value);
    object.iter().find(named).map(|(key, value)| (key.as_str(), value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parts(body: Value) -> (Option<String>, Option<String>, Option<String>, Option<u16>) {
        let error = ProviderError::of_value(&body);
        (error.code, error.kind, error.message, error.status)
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn the_usual_shapes_are_read() {
        assert_eq!(
            parts(json!({"error": {"message": "m", "type": "t", "param": null, "code": "c"}})),
            (some("c"), some("t"), some("m"), None)
        );
        assert_eq!(
            parts(json!({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})),
            (None, some("overloaded_error"), some("Overloaded"), None)
        );
        assert_eq!(parts(json!({"error": "plain"})), (None, None, some("plain"), None));
        assert_eq!(parts(json!({"detail": "Not Found"})), (None, None, some("Not Found"), None));
        assert_eq!(
            parts(json!({"object": "error", "message": "m", "code": 40303})),
            (some("40303"), None, some("m"), None)
        );
        assert_eq!(
            parts(json!([{"error": {"code": 429, "message": "m", "status": "RESOURCE_EXHAUSTED"}}])),
            (some("429"), some("RESOURCE_EXHAUSTED"), some("m"), Some(429))
        );
        assert_eq!(parts(json!({"code": "504", "message": "m"})), (some("504"), None, some("m"), Some(504)));
    }

    #[test]
    fn text_without_structure_is_kept_for_its_wording() {
        let error = ProviderError::of_text("<html>502 Bad Gateway</html>");
        assert_eq!((error.message, error.text.as_str()), (None, "502 Bad Gateway"));
        assert!(ProviderError::of_text(&"é".repeat(5000)).text.len() <= MAX_PROSE);
    }

    #[test]
    fn errors_inside_errors_are_found_with_what_stands_beside_them() {
        for (body, expected) in [
            (json!({"error": {"error": {"code": "429", "message": "m"}}}), (some("429"), None, some("m"), Some(429))),
            (json!({"errors": [{"code": 503, "message": "m"}]}), (some("503"), None, some("m"), Some(503))),
            (json!({"error": [{"code": 429.0}]}), (some("429"), None, None, Some(429))),
            (json!({"error": 504}), (some("504"), None, None, Some(504))),
            (json!([[{"error": {"code": 503}}]]), (some("503"), None, None, Some(503))),
            (json!({"error": {"http_code": 429, "message": "m"}}), (None, None, some("m"), Some(429))),
            (json!({"error": {"http_status": 401}}), (None, None, None, Some(401))),
            (json!({"statusCode": 401, "error": "Nope", "message": "m"}), (None, None, some("Nope"), Some(401))),
            (json!({"base_resp": {"status_code": 1002, "status_msg": "m"}}), (some("1002"), None, some("m"), None)),
            (json!({"error_code": 18, "error_msg": "m"}), (some("18"), None, some("m"), None)),
            (json!({"code": 500, "msg": "m"}), (some("500"), None, some("m"), Some(500))),
            (json!({"__type": "com.acme#ThrottlingException"}), (None, some("ThrottlingException"), None, None)),
            (json!({"throttlingException": {"message": "m"}}), (None, some("throttlingException"), some("m"), None)),
            (json!({"detail": {"error": {"code": 503}}}), (some("503"), None, None, Some(503))),
            (json!({"choices": [{"error": {"code": 429, "message": "m"}}]}), (some("429"), None, some("m"), Some(429))),
            (json!({"error": {"message": "<h1>Bad</h1>"}}), (None, None, some("Bad"), None)),
            (json!({"status": "failed", "error": null}), (None, None, None, None)),
        ] {
            assert_eq!(parts(body.clone()), expected, "{body}");
        }
        let beside = ProviderError::of_value(&json!({"error": "Forbidden", "message": "out of credits"}));
        assert_eq!((beside.message.as_deref(), beside.text.as_str()), (Some("Forbidden"), "out of credits"));
    }

    #[test]
    fn a_list_of_problems_is_one_message() {
        let list =
            json!({"detail": [{"loc": ["body", "model"], "msg": "Field required", "type": "missing"}, "too long", 7]});
        assert_eq!(parts(list).2, some("body.model: Field required; too long"));
    }

    #[test]
    fn errors_without_an_end_are_no_trouble() {
        let deep = (0..100).fold(json!({"message": "m"}), |inner, _| json!({"error": [inner]}));
        assert_eq!(parts(deep).2, None);
    }
}
