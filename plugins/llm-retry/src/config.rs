//! The entry's configuration, which must be empty: the policy belongs to each provider.

use serde_json::Value;

/// The schema lets every object pass: [`problems`] refuses what is in it, and says where it belongs.
pub const SCHEMA: &str = r#"{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "llm-retry",
  "description": "Takes no settings: a retry policy stands under `retryPolicy` of its provider.",
  "type": "object"
}"#;

/// Something wrong in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key, or empty for the whole.
    pub path: String,
    pub message: String,
}

/// Every problem of a configuration; empty when it is `{}`.
pub fn problems(json: &str) -> Vec<Problem> {
    let whole = |message: String| vec![Problem { path: String::new(), message }];
    match serde_json::from_str(json) {
        Ok(Value::Object(config)) => {
            let mut keys: Vec<_> = config.keys().collect();
            // The map's own order depends on how serde_json was built.
            keys.sort();
            keys.into_iter().map(|key| refused(key)).collect()
        }
        Ok(other) => whole(format!("The configuration is {other}; it must be an empty object.")),
        Err(error) => whole(format!("The configuration is not JSON: {error}.")),
    }
}

fn refused(key: &str) -> Problem {
    let message = if key == "retryPolicy" {
        "`retryPolicy` belongs under each provider's configuration, not under the executor.".to_owned()
    } else {
        format!("Unknown key `{key}`: llm-retry takes no settings.")
    };
    Problem { path: key.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_empty_object_is_right() {
        assert_eq!(problems("{}"), []);
        assert_eq!(problems(" {\n} "), []);
    }

    #[test]
    fn a_retry_policy_is_sent_to_the_provider() {
        let found = problems(r#"{"retryPolicy": {"mode": "always"}}"#);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "retryPolicy");
        assert!(found[0].message.contains("belongs under each provider"), "{}", found[0].message);
    }

    #[test]
    fn any_other_key_is_unknown_and_each_is_reported() {
        let found = problems(r#"{"maxRetries": 3, "retryPolicy": {}, "jitter": 0}"#);
        let paths: Vec<&str> = found.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["jitter", "maxRetries", "retryPolicy"]);
        assert!(found[1].message.starts_with("Unknown key `maxRetries`"));
    }

    #[test]
    fn what_is_no_object_is_refused_as_a_whole() {
        for json in ["[]", "null", "3", "{", ""] {
            let found = problems(json);
            assert_eq!((found.len(), found[0].path.as_str()), (1, ""), "{json}");
        }
    }

    #[test]
    fn the_schema_is_json_and_leaves_the_refusal_to_validate() {
        let schema: Value = serde_json::from_str(SCHEMA).unwrap();
        assert_eq!(schema["type"], "object");
        assert_eq!(schema.get("additionalProperties"), None);
    }
}
