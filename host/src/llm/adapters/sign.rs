//! Whether something that came with a success reports an error: the body of a 200, or an event of a stream.
//!
//! Pure, and the same for all protocols. Asked by the answers for what is surely an error, and by `report` for what
//! may be one.

use super::provider_error::{exception, inner, is_error_name, message_in, says_something, status_in, unwrapped, word};
use serde_json::{Map, Value};

/// What a value shows of being an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// It is a regular part of an answer, and no wording makes an error of it.
    Answer,
    /// Nothing speaks for an error.
    None,
    /// It has a message that may be anything; what it says has to tell.
    Weak,
    /// It is an error, whatever it says.
    Strong,
}

impl Sign {
    /// `event_name` is the type of the event that carried the value; empty where there is none.
    pub(super) fn of(value: &Value, event_name: &str) -> Self {
        let named = is_error_name(event_name);
        match unwrapped(value) {
            Value::Object(_) if named => Sign::Strong,
            Value::Object(object) => Self::of_object(object),
            Value::String(text) => Self::of_text(text, event_name),
            _ if named => Sign::Strong,
            _ => Sign::None,
        }
    }

    /// Of something without structure.
    pub(super) fn of_text(text: &str, event_name: &str) -> Self {
        // A broken piece of an answer holds words of the model, which are not the provider's.
        let is_piece = ["\"choices\"", "\"delta\"", "\"content_block\""].iter().any(|key| text.contains(key));
        match () {
            () if is_error_name(event_name) => Sign::Strong,
            () if is_piece => Sign::Answer,
            () => Sign::Weak,
        }
    }

    fn of_object(object: &Map<String, Value>) -> Self {
        let detail = || object.get("detail").filter(|detail| detail.is_object());
        match () {
            () if holds_error(object) => Sign::Strong,
            () if is_answer(object) => Sign::Answer,
            () if is_marked(object) => Sign::Strong,
            () if message_in(object).is_some() || object.get("code").is_some_and(Value::is_string) => Sign::Weak,
            () => detail().map_or(Sign::None, |detail| Self::of(detail, "")),
        }
    }
}

/// What makes an error also of a regular part of an answer.
fn holds_error(object: &Map<String, Value>) -> bool {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    let is_named = ["object", "type"].iter().any(|key| text(key).is_some_and(is_error_name));
    let response_failed =
        object.get("response").and_then(|response| response.get("status")?.as_str()) == Some("failed");
    let failed = text("status") == Some("failed") && !object.contains_key("choices");
    is_named
        || failed
        || response_failed
        || text("type") == Some("response.failed")
        || object.get("error") == Some(&Value::Bool(true))
        || inner(object).is_some_and(|(key, _)| ["error", "errors", "base_resp"].contains(&key))
}

/// What the protocols send as part of an answer.
fn is_answer(object: &Map<String, Value>) -> bool {
    let list = |key: &str| object.get(key).and_then(Value::as_array);
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default();
    let kind = text("type");
    list("choices").is_some_and(|choices| !choices.is_empty())
        || (list("output").is_some() && object.contains_key("status"))
        || (kind == "message" && list("content").is_some())
        || kind == "ping"
        || ["message_", "content_block_", "response."].iter().any(|lead| kind.starts_with(lead))
        || text("object").starts_with("chat.completion")
}

/// What makes an error of an object that is no part of an answer.
fn is_marked(object: &Map<String, Value>) -> bool {
    let text = |key: &str| object.get(key).and_then(Value::as_str);
    // An error object with nothing in it is one; an empty text is the usual way of saying that there is none.
    object.get("error").is_some_and(Value::is_object)
        || ["success", "ok"].iter().any(|key| object.get(*key) == Some(&Value::Bool(false)))
        || text("status").is_some_and(|status| ["error", "fail", "failure"].contains(&status))
        || ["error_code", "errcode", "errorCode", "error_msg", "error_message", "errorMessage"]
            .iter()
            .any(|key| object.get(*key).is_some_and(says_something))
        || object.contains_key("__type")
        || object.get("code").and_then(word).is_some_and(|code| is_error_name(&code))
        || exception(object).is_some()
        || status_in(object).is_some()
}

#[cfg(test)]
mod tests {
    use super::{Sign::*, *};
    use serde_json::json;

    fn sign(value: Value) -> Sign {
        Sign::of(&value, "")
    }

    #[test]
    fn what_says_that_it_is_an_error_is_one() {
        for value in [
            json!({"error": {"message": "m"}}),
            json!({"error": {}}),
            json!({"error": true, "code": 7}),
            json!({"error": 504}),
            json!([[{"error": {"code": 503}}]]),
            json!({"errors": [{"code": 503}]}),
            json!({"detail": {"error": {"code": 503}}}),
            json!({"object": "error", "message": "m"}),
            json!({"type": "overloaded_error"}),
            json!({"status": "failed", "error": null}),
            json!({"status": "error", "message": "m"}),
            json!({"success": false, "message": "m"}),
            json!({"status": 503, "message": "m"}),
            json!({"statusCode": 429, "message": "m"}),
            json!({"code": "504"}),
            json!({"code": "InternalError", "message": "m"}),
            json!({"error_code": 336_100, "error_msg": "m"}),
            json!({"base_resp": {"status_code": 1002, "status_msg": "m"}}),
            json!({"__type": "ThrottlingException"}),
            json!({"modelStreamErrorException": {"message": "m"}, "p": "abc"}),
            json!({"type": "response.failed", "response": {"status": "failed", "error": null}}),
            json!({"type": "response.completed", "response": {"status": "failed"}}),
            json!({"choices": [{"finish_reason": "error", "error": {"code": 429}}]}),
            json!({"choices": [{"delta": {}}], "error": {"code": 429}}),
        ] {
            assert_eq!(sign(value.clone()), Strong, "{value}");
        }
        for value in [json!({}), json!([]), json!(7), json!("m"), json!({"choices": []})] {
            assert_eq!(Sign::of(&value, "error"), Strong, "{value}");
        }
    }

    #[test]
    fn a_part_of_an_answer_is_no_error_whatever_its_words() {
        for value in [
            json!({"choices": [{"delta": {"content": "x"}}], "error": "", "message": "overloaded"}),
            json!({"choices": [{"delta": {"content": "x"}}], "error": {}, "status": 503}),
            json!({"choices": [{"delta": {"content": "x"}, "error": null}], "base_resp": {"status_code": 0}}),
            json!({"object": "chat.completion.chunk", "choices": [], "message": "overloaded"}),
            json!({"type": "message", "content": [{"type": "text", "text": "overloaded"}]}),
            json!({"type": "ping", "message": "overloaded"}),
            json!({"type": "message_start", "message": {}}),
            json!({"type": "response.created", "response": {"status": "in_progress", "error": null}}),
            json!({"status": "completed", "output": [], "error": null}),
        ] {
            assert_eq!(sign(value.clone()), Answer, "{value}");
        }
        assert_eq!(Sign::of_text("{\"choices\":[{\"delta\":{\"content\":\"rate limit", "message"), Answer);
    }

    #[test]
    fn a_message_alone_is_a_weak_sign_and_other_things_are_none() {
        for value in [
            json!({"message": "m"}),
            json!({"code": "Throttling.RateQuota", "message": "m"}),
            json!({"detail": "m"}),
            json!({"Message": "m"}),
            json!({"code": 0, "msg": "m"}),
            json!({"detail": {"message": "m"}}),
            json!({"detail": [{"loc": ["body"], "msg": "m"}]}),
            json!("m"),
        ] {
            assert_eq!(sign(value.clone()), Weak, "{value}");
        }
        for value in [
            json!(7),
            json!([]),
            json!(null),
            json!({"id": "x"}),
            json!({"error": "", "id": "x"}),
            json!({"errors": []}),
        ] {
            assert_eq!(sign(value.clone()), None, "{value}");
        }
        assert_eq!(Sign::of_text("502 Bad Gateway", "message"), Weak);
    }
}
