//! The retry policy of a provider route: its configuration, its defaults, and the rules that it must obey.
//!
//! Owns the step from a piece of configuration to a [`RetryPolicy`] in which nothing is left open. It decides nothing
//! about a failure: executors do. Called by `profile` when routes are composed.

use serde_json::{Map, Value};
use std::{collections::HashSet, sync::Arc};

/// The longest timer that every platform can hold, in milliseconds (2^31 - 1).
pub const MAX_TIMER_MS: f64 = 2_147_483_647.0;

/// The largest whole number that a double holds exactly (2^53 - 1).
pub const MAX_SAFE_INTEGER: u64 = 9_007_199_254_740_991;

/// Retries after the first attempt when a policy does not say.
pub const DEFAULT_MAX_RETRIES: u64 = 5;

/// The codes that are retried when a policy does not say: those that a later attempt may cure.
pub const DEFAULT_RETRYABLE_CODES: [&str; 5] = ["EMPTY_RESPONSE", "RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT"];

const POLICY_KEYS: [&str; 4] = ["mode", "maxRetries", "retryableCodes", "backoff"];
const BACKOFF_KEYS: [&str; 3] = ["initialDelayMs", "maxDelayMs", "jitterRatio"];

/// How the local delay grows; all in milliseconds, `0 < initial <= max <= MAX_TIMER_MS`, `0 <= jitter <= 1`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    pub initial_delay_ms: f64,
    pub max_delay_ms: f64,
    pub jitter_ratio: f64,
}

impl Default for Backoff {
    fn default() -> Self {
        Backoff { initial_delay_ms: 500.0, max_delay_ms: 10_000.0, jitter_ratio: 0.1 }
    }
}

/// A resolved policy: every default filled in, every rule checked. Only `normal` has a limit and a code list.
#[derive(Clone, Debug, PartialEq)]
pub enum RetryPolicy {
    /// Retry the listed codes, at most `max_retries` times after the first attempt.
    Normal { max_retries: u64, retryable_codes: Arc<[String]>, backoff: Backoff },
    /// Retry every failure until success or cancel.
    Always { backoff: Backoff },
}

impl RetryPolicy {
    /// The delay, in milliseconds, before a request that cannot succeed is repeated: under `always` the longest one, so
    /// that a hopeless request is never repeated in a hurry. Under `normal` there is none, since its budget ends anyway.
    pub fn slow_lane_ms(&self) -> Option<f64> {
        match self {
            RetryPolicy::Always { backoff } => Some(backoff.max_delay_ms),
            RetryPolicy::Normal { .. } => None,
        }
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy::Normal {
            max_retries: DEFAULT_MAX_RETRIES,
            retryable_codes: default_codes(),
            backoff: Backoff::default(),
        }
    }
}

/// Why a policy was refused. `path` is the full dotted path of the key, `value` its JSON text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    #[error("{path} (set to {value}) is not a known key; the keys allowed here are {allowed}")]
    UnknownKey { path: String, value: String, allowed: String },
    #[error("{path} is {value}, but it must be {allowed}")]
    Invalid { path: String, value: String, allowed: String },
    #[error("{path} is missing, but it must be {allowed}")]
    Missing { path: String, allowed: String },
}

impl PolicyError {
    /// The full dotted path of the key that is at fault.
    pub fn path(&self) -> &str {
        match self {
            PolicyError::UnknownKey { path, .. }
            | PolicyError::Invalid { path, .. }
            | PolicyError::Missing { path, .. } => path,
        }
    }

    fn invalid(path: String, value: &Value, allowed: impl Into<String>) -> Self {
        PolicyError::Invalid { path, value: value.to_string(), allowed: allowed.into() }
    }
}

impl RetryPolicy {
    /// Resolves the policy that stands at `path` in a configuration, for instance `providers[1].retryPolicy`.
    ///
    /// Without a policy, or with `null`, the answer is the default. A `null` inside it means that key's default. Under
    /// `always` the keys that only `normal` knows are accepted and dropped unseen, so that a layer which flips the mode
    /// need not clear what a lower layer set.
    ///
    /// # Errors
    /// The first rule that is broken: the mode, unknown keys, the limit, the codes, then the backoff.
    pub fn resolve(config: Option<&Value>, path: &str) -> Result<RetryPolicy, PolicyError> {
        let config = match config {
            None | Some(Value::Null) => return Ok(RetryPolicy::default()),
            Some(Value::Object(config)) => config,
            Some(other) => return Err(PolicyError::invalid(path.to_owned(), other, "a mapping with the key mode")),
        };
        let always = match config.get("mode") {
            Some(Value::String(mode)) if mode == "normal" => false,
            Some(Value::String(mode)) if mode == "always" => true,
            mode => {
                let (path, allowed) = (format!("{path}.mode"), "\"normal\" or \"always\"");
                return Err(match mode {
                    Some(mode) => PolicyError::invalid(path, mode, allowed),
                    None => PolicyError::Missing { path, allowed: allowed.to_owned() },
                });
            }
        };
        refuse_unknown_keys(config, &POLICY_KEYS, path)?;
        if always {
            return Ok(RetryPolicy::Always { backoff: resolve_backoff(config, path)? });
        }
        Ok(RetryPolicy::Normal {
            max_retries: resolve_max_retries(config, path)?,
            retryable_codes: resolve_codes(config, path)?,
            backoff: resolve_backoff(config, path)?,
        })
    }

    /// How delays grow, whatever the mode.
    pub fn backoff(&self) -> Backoff {
        match self {
            RetryPolicy::Normal { backoff, .. } | RetryPolicy::Always { backoff } => *backoff,
        }
    }
}

fn default_codes() -> Arc<[String]> {
    DEFAULT_RETRYABLE_CODES.map(str::to_owned).into()
}

/// The value at `key`, unless it is absent or `null`: both mean the default.
fn given<'a>(config: &'a Map<String, Value>, key: &str) -> Option<&'a Value> {
    config.get(key).filter(|value| !value.is_null())
}

fn refuse_unknown_keys(config: &Map<String, Value>, allowed: &[&str], path: &str) -> Result<(), PolicyError> {
    match config.iter().find(|(key, _)| !allowed.contains(&key.as_str())) {
        None => Ok(()),
        Some((key, value)) => Err(PolicyError::UnknownKey {
            path: format!("{path}.{key}"),
            value: value.to_string(),
            allowed: allowed.join(", "),
        }),
    }
}

fn resolve_max_retries(config: &Map<String, Value>, path: &str) -> Result<u64, PolicyError> {
    let Some(value) = given(config, "maxRetries") else { return Ok(DEFAULT_MAX_RETRIES) };
    // A whole number may have been written with a fraction of zero, as in `5.0`.
    let number = value.as_u64().or_else(|| {
        let float = value.as_f64()?;
        (float.fract() == 0.0 && (0.0..=MAX_SAFE_INTEGER as f64).contains(&float)).then_some(float as u64)
    });
    match number {
        Some(number) if number <= MAX_SAFE_INTEGER => Ok(number),
        _ => Err(PolicyError::invalid(
            format!("{path}.maxRetries"),
            value,
            format!("a whole number from 0 to {MAX_SAFE_INTEGER}"),
        )),
    }
}

fn resolve_codes(config: &Map<String, Value>, path: &str) -> Result<Arc<[String]>, PolicyError> {
    let Some(value) = given(config, "retryableCodes") else { return Ok(default_codes()) };
    let path = format!("{path}.retryableCodes");
    let Value::Array(items) = value else {
        return Err(PolicyError::invalid(path, value, "a list of failure codes"));
    };
    if items.is_empty() {
        return Err(PolicyError::invalid(path, value, "a list with at least one failure code"));
    }
    let mut codes = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        match item.as_str() {
            Some(code) if !code.is_empty() => codes.push(code.to_owned()),
            _ => return Err(PolicyError::invalid(format!("{path}[{index}]"), item, "a non-empty string")),
        }
    }
    let mut seen = HashSet::new();
    if let Some(index) = codes.iter().position(|code| !seen.insert(code.as_str())) {
        let allowed = "a code that the list does not name already";
        return Err(PolicyError::invalid(format!("{path}[{index}]"), &items[index], allowed));
    }
    Ok(codes.into())
}

fn resolve_backoff(config: &Map<String, Value>, path: &str) -> Result<Backoff, PolicyError> {
    let path = format!("{path}.backoff");
    let default = Backoff::default();
    let config = match given(config, "backoff") {
        None => return Ok(default),
        Some(Value::Object(config)) => config,
        Some(other) => {
            let allowed = format!("a mapping with keys of {}", BACKOFF_KEYS.join(", "));
            return Err(PolicyError::invalid(path, other, allowed));
        }
    };
    refuse_unknown_keys(config, &BACKOFF_KEYS, &path)?;
    let delay = |key: &str, default: f64| match given(config, key) {
        None => Ok(default),
        Some(value) => value.as_f64().filter(|ms| *ms > 0.0 && *ms <= MAX_TIMER_MS).ok_or_else(|| {
            let allowed = format!("a number of milliseconds above 0 and at most {MAX_TIMER_MS}");
            PolicyError::invalid(format!("{path}.{key}"), value, allowed)
        }),
    };
    let initial_delay_ms = delay("initialDelayMs", default.initial_delay_ms)?;
    let max_delay_ms = delay("maxDelayMs", default.max_delay_ms)?;
    if initial_delay_ms > max_delay_ms {
        return Err(PolicyError::Invalid {
            path: format!("{path}.initialDelayMs"),
            value: initial_delay_ms.to_string(),
            allowed: format!("at most maxDelayMs, which is {max_delay_ms}"),
        });
    }
    let jitter_ratio = match given(config, "jitterRatio") {
        None => default.jitter_ratio,
        Some(value) => value
            .as_f64()
            .filter(|ratio| (0.0..=1.0).contains(ratio))
            .ok_or_else(|| PolicyError::invalid(format!("{path}.jitterRatio"), value, "a number from 0 to 1"))?,
    };
    Ok(Backoff { initial_delay_ms, max_delay_ms, jitter_ratio })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn resolve(config: Value) -> Result<RetryPolicy, PolicyError> {
        RetryPolicy::resolve(Some(&config), "providers[1].retryPolicy")
    }

    /// The path and the sentence of the refusal.
    fn refusal(config: Value) -> (String, String) {
        let error = resolve(config.clone()).expect_err(&format!("{config} must be refused"));
        (error.path().to_owned(), error.to_string())
    }

    #[track_caller]
    fn refused_at(config: Value, key: &str) {
        let (path, sentence) = refusal(config);
        assert_eq!(path, format!("providers[1].retryPolicy.{key}"), "{sentence}");
        assert!(sentence.starts_with(&path), "{sentence}");
    }

    #[test]
    fn an_omitted_policy_is_normal_with_every_default() {
        let expected = RetryPolicy::Normal {
            max_retries: 5,
            retryable_codes: ["EMPTY_RESPONSE", "RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT"]
                .map(String::from)
                .into(),
            backoff: Backoff { initial_delay_ms: 500.0, max_delay_ms: 10_000.0, jitter_ratio: 0.1 },
        };
        assert_eq!(RetryPolicy::resolve(None, "p"), Ok(expected.clone()));
        assert_eq!(resolve(Value::Null), Ok(expected.clone()));
        assert_eq!(resolve(json!({"mode": "normal"})), Ok(expected.clone()));
        assert_eq!(RetryPolicy::default(), expected);
    }

    #[test]
    fn every_default_code_is_one_that_can_be_selected() {
        for code in DEFAULT_RETRYABLE_CODES {
            assert!(crate::llm::FailureCode::SELECTABLE.iter().any(|known| known.as_str() == code), "{code}");
        }
    }

    #[test]
    fn a_configured_policy_resolves_to_its_own_values_and_keeps_the_order_of_its_codes() {
        let config = json!({"mode": "normal", "maxRetries": 0, "retryableCodes": ["SERVER", "AUTH"],
            "backoff": {"initialDelayMs": 0.5, "maxDelayMs": 2147483647, "jitterRatio": 1}});
        let expected = RetryPolicy::Normal {
            max_retries: 0,
            retryable_codes: ["SERVER", "AUTH"].map(String::from).into(),
            backoff: Backoff { initial_delay_ms: 0.5, max_delay_ms: 2_147_483_647.0, jitter_ratio: 1.0 },
        };
        assert_eq!(resolve(config), Ok(expected));
    }

    #[test]
    fn always_without_backoff_has_the_default_backoff() {
        assert_eq!(resolve(json!({"mode": "always"})), Ok(RetryPolicy::Always { backoff: Backoff::default() }));
    }

    #[test]
    fn always_drops_stale_normal_keys_without_looking_at_them() {
        let config = json!({"mode": "always", "maxRetries": 5, "retryableCodes": ["SERVER"]});
        assert_eq!(resolve(config), Ok(RetryPolicy::Always { backoff: Backoff::default() }));
        let nonsense = json!({"mode": "always", "maxRetries": -3, "retryableCodes": []});
        assert_eq!(resolve(nonsense), Ok(RetryPolicy::Always { backoff: Backoff::default() }));
    }

    #[test]
    fn null_inside_a_policy_means_the_default_of_that_key() {
        let config = json!({"mode": "normal", "maxRetries": null, "retryableCodes": null,
            "backoff": {"initialDelayMs": null, "maxDelayMs": null, "jitterRatio": null}});
        assert_eq!(resolve(config), Ok(RetryPolicy::default()));
        assert_eq!(resolve(json!({"mode": "normal", "backoff": null})), Ok(RetryPolicy::default()));
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_zero_fraction() {
        let Ok(RetryPolicy::Normal { max_retries, .. }) = resolve(json!({"mode": "normal", "maxRetries": 7.0})) else {
            panic!("7.0 is a whole number");
        };
        assert_eq!(max_retries, 7);
    }

    #[test]
    fn a_limit_that_is_no_safe_whole_number_is_refused() {
        for bad in [json!(-1), json!(1.5), json!(9_007_199_254_740_992_u64), json!(1e300), json!(true), json!("5")] {
            refused_at(json!({"mode": "normal", "maxRetries": bad}), "maxRetries");
        }
        assert!(resolve(json!({"mode": "normal", "maxRetries": MAX_SAFE_INTEGER})).is_ok());
    }

    #[test]
    fn a_delay_outside_of_its_bounds_is_refused_in_both_modes() {
        for mode in ["normal", "always"] {
            for key in ["initialDelayMs", "maxDelayMs"] {
                for bad in [json!(0), json!(-1), json!(2_147_483_648_u64), json!("Infinity"), json!(1e300)] {
                    refused_at(json!({"mode": mode, "backoff": {key: bad}}), &format!("backoff.{key}"));
                }
            }
        }
    }

    #[test]
    fn an_initial_delay_above_the_longest_is_refused_with_both_values() {
        let (path, sentence) = refusal(json!({"mode": "normal", "backoff": {"initialDelayMs": 20, "maxDelayMs": 10}}));
        assert_eq!(path, "providers[1].retryPolicy.backoff.initialDelayMs");
        assert!(sentence.contains("20") && sentence.contains("maxDelayMs, which is 10"), "{sentence}");
        // Defaults take part: 20,000 is above the default longest delay.
        refused_at(json!({"mode": "always", "backoff": {"initialDelayMs": 20_000}}), "backoff.initialDelayMs");
        assert!(resolve(json!({"mode": "normal", "backoff": {"initialDelayMs": 10, "maxDelayMs": 10}})).is_ok());
    }

    #[test]
    fn a_jitter_outside_of_zero_to_one_is_refused() {
        for bad in [json!(1.1), json!(-0.1), json!("0.1")] {
            refused_at(json!({"mode": "always", "backoff": {"jitterRatio": bad}}), "backoff.jitterRatio");
        }
    }

    #[test]
    fn a_code_list_must_hold_distinct_non_empty_strings() {
        let codes = |codes: Value| json!({"mode": "normal", "retryableCodes": codes});
        refused_at(codes(json!([])), "retryableCodes");
        refused_at(codes(json!("SERVER")), "retryableCodes");
        refused_at(codes(json!(["SERVER", ""])), "retryableCodes[1]");
        refused_at(codes(json!([429])), "retryableCodes[0]");
        refused_at(codes(json!(["SERVER", "AUTH", "SERVER"])), "retryableCodes[2]");
        // Codes are compared exactly.
        assert!(resolve(codes(json!(["SERVER", "server"]))).is_ok());
    }

    #[test]
    fn a_misspelt_key_is_refused_and_the_known_ones_are_named() {
        let (path, sentence) = refusal(json!({"mode": "normal", "maxRetires": 3}));
        assert_eq!(path, "providers[1].retryPolicy.maxRetires");
        assert!(sentence.contains("mode, maxRetries, retryableCodes, backoff"), "{sentence}");
        let (path, sentence) = refusal(json!({"mode": "always", "backoff": {"initialDelay": 3}}));
        assert_eq!(path, "providers[1].retryPolicy.backoff.initialDelay");
        assert!(sentence.contains("initialDelayMs, maxDelayMs, jitterRatio"), "{sentence}");
    }

    #[test]
    fn a_mode_that_is_not_one_of_the_two_is_refused_and_both_are_named() {
        for config in [json!({"mode": "sometimes"}), json!({"mode": null}), json!({}), json!({"mode": 1})] {
            let (path, sentence) = refusal(config);
            assert_eq!(path, "providers[1].retryPolicy.mode");
            assert!(sentence.contains("\"normal\" or \"always\""), "{sentence}");
        }
    }

    #[test]
    fn a_policy_or_backoff_that_is_no_mapping_is_refused() {
        assert_eq!(refusal(json!("always")).0, "providers[1].retryPolicy");
        refused_at(json!({"mode": "normal", "backoff": 500}), "backoff");
    }

    #[test]
    fn the_first_broken_rule_wins() {
        refused_at(json!({"mode": "x", "maxRetires": 1}), "mode");
        refused_at(json!({"mode": "normal", "maxRetries": -1, "oops": 1}), "oops");
        refused_at(
            json!({"mode": "normal", "backoff": {"jitterRatio": 2}, "retryableCodes": [], "maxRetries": -1}),
            "maxRetries",
        );
        refused_at(json!({"mode": "normal", "retryableCodes": ["", "A", "A"]}), "retryableCodes[0]");
        refused_at(json!({"mode": "normal", "backoff": {"jitterRatio": 2, "maxDelayMs": 0}}), "backoff.maxDelayMs");
    }

    #[test]
    fn the_sentence_gives_path_value_and_what_is_allowed() {
        let (_, sentence) = refusal(json!({"mode": "normal", "backoff": {"jitterRatio": 1.1}}));
        assert_eq!(
            sentence,
            "providers[1].retryPolicy.backoff.jitterRatio is 1.1, but it must be a number from 0 to 1"
        );
    }
}
