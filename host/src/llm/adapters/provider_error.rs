//! What a provider says about an error, found in the many shapes in which providers say it.

use serde_json::{Map, Value};

/// A text without structure is read this far for its wording, in bytes; beyond that, pages are decoration.
const MAX_PROSE: usize = 2048;

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
    /// Reads the body of a failed response, JSON or not.
    pub(super) fn of_body(body: &str) -> Self {
        match serde_json::from_str::<Value>(body) {
            Ok(value) => Self::of_value(&value),
            Err(_) => ProviderError { text: body[..body.floor_char_boundary(MAX_PROSE)].to_owned(), ..Self::default() },
        }
    }

    /// The error inside the data of a stream event or the body of a 200, if it is one.
    pub(super) fn inside(value: &Value, event_name: &str) -> Option<Self> {
        let object = unwrapped(value).as_object()?;
        let marked = event_name == "error"
            || ["object", "type"].iter().any(|key| object.get(*key).and_then(Value::as_str) == Some("error"));
        let failed = object.get("status").and_then(Value::as_str) == Some("failed");
        (error_of(object).is_some() || marked || failed).then(|| Self::of_value(value))
    }

    fn of_value(value: &Value) -> Self {
        match unwrapped(value) {
            Value::Object(outer) => match error_of(outer) {
                Some(Value::Object(error)) => {
                    let mut found = Self::of_object(error);
                    let outer = Self::of_object(outer);
                    found.status = found.status.or(outer.status);
                    found.code = found.code.or(outer.code);
                    found.message = found.message.or(outer.message);
                    found
                }
                Some(Value::String(message)) => {
                    let outer = Self::of_object(outer);
                    ProviderError { message: Some(message.clone()), ..outer }
                }
                _ => Self::of_object(outer),
            },
            Value::String(message) => ProviderError { message: Some(message.clone()), ..Self::default() },
            _ => Self::default(),
        }
    }

    fn of_object(object: &Map<String, Value>) -> Self {
        let text = |key: &str| match object.get(key) {
            Some(Value::String(text)) if !text.trim().is_empty() => Some(text.trim().to_owned()),
            Some(Value::Number(number)) => Some(number.to_string()),
            _ => None,
        };
        let status = ["status_code", "status", "code"]
            .into_iter()
            .find_map(|key| text(key)?.parse::<u16>().ok().filter(|status| (400..=599).contains(status)));
        ProviderError {
            code: text("code"),
            // The type `error` only says that this is an error. Google's `status` is a word such as UNAVAILABLE.
            kind: text("type")
                .filter(|kind| kind != "error")
                .or_else(|| text("status").filter(|word| word.parse::<u16>().is_err())),
            message: text("message").or_else(|| text("detail")).or_else(|| text("error_msg")),
            status,
            text: further_text(object),
        }
    }
}

/// What an error object says beside its message: the error of the provider behind a gateway, and the ids of the quotas
/// that were exceeded, which tell a limit per minute from one per day.
fn further_text(object: &Map<String, Value>) -> String {
    let mut texts = Vec::new();
    match object.get("metadata").and_then(|metadata| metadata.get("raw")) {
        Some(Value::String(raw)) => texts.push(raw.clone()),
        Some(other) => texts.push(other.to_string()),
        None => {}
    }
    let details = object.get("details").and_then(Value::as_array).into_iter().flatten();
    let violations = details.filter_map(|detail| detail.get("violations")?.as_array()).flatten();
    texts.extend(violations.filter_map(|violation| violation.get("quotaId")?.as_str().map(str::to_owned)));
    texts.join(" ")
}

/// Some providers wrap the object in a list of one.
fn unwrapped(value: &Value) -> &Value {
    value.as_array().and_then(|items| items.first()).unwrap_or(value)
}

fn error_of(object: &Map<String, Value>) -> Option<&Value> {
    let nested = || object.get("response")?.get("error");
    object
        .get("error")
        .filter(|error| !error.is_null() && **error != false)
        .or_else(|| nested().filter(|error| !error.is_null()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parts(body: Value) -> (Option<String>, Option<String>, Option<String>, Option<u16>) {
        let error = ProviderError::of_body(&body.to_string());
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
        let error = ProviderError::of_body("<html>502 Bad Gateway</html>");
        assert_eq!((error.message, error.text.as_str()), (None, "<html>502 Bad Gateway</html>"));
        assert!(ProviderError::of_body(&"é".repeat(5000)).text.len() <= MAX_PROSE);
    }

    #[test]
    fn an_error_inside_a_stream_is_told_from_a_chunk() {
        let inside = |value: Value, name: &str| ProviderError::inside(&value, name).is_some();
        assert!(inside(json!({"error": {"message": "m"}}), ""));
        assert!(inside(json!({"message": "m"}), "error"));
        assert!(inside(json!({"object": "error", "message": "m"}), ""));
        assert!(inside(json!({"status": "failed", "error": null}), ""));
        assert!(inside(json!({"type": "response.failed", "response": {"error": {"code": "c"}}}), ""));
        assert!(!inside(json!({"choices": [], "error": null}), ""));
        assert!(!inside(json!({"choices": []}), "message"));
        assert!(!inside(json!("error"), ""));
        assert!(!inside(json!([]), "error"));
    }
}
