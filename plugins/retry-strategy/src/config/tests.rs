//! The settings and their schema.

use super::*;

fn paths(json: &str) -> Vec<String> {
    Config::parse(json).unwrap_err().into_iter().map(|problem| problem.path).collect()
}

fn schema() -> Value {
    serde_json::from_str(SCHEMA).unwrap()
}

#[test]
fn what_is_not_named_has_its_default() {
    assert_eq!(Config::parse("{}"), Ok(Config::default()));
    let config = Config::parse(r#"{"maxRetries": 3}"#).unwrap();
    assert_eq!(config, Config { max_retries: 3, ..Config::default() });
}

#[test]
fn every_setting_is_read() {
    let config = Config::parse(
        r#"{"enabled": false, "mode": "always", "maxRetries": 1000, "strategy": "linear", "initialDelayMs": 3600000,
            "maxDelayMs": 2147483647, "multiplier": 1.5, "jitterRatio": 1, "retryableCodes": ["AUTH", "QUOTA"],
            "respectRetryAfter": false}"#,
    );
    let expected = Config {
        enabled: false,
        mode: Mode::Always,
        max_retries: 1_000,
        strategy: Strategy::Linear,
        initial_delay_ms: 3_600_000,
        max_delay_ms: 2_147_483_647,
        multiplier: 1.5,
        jitter_ratio: 1.0,
        retryable_codes: vec!["AUTH".into(), "QUOTA".into()],
        respect_retry_after: false,
    };
    assert_eq!(config, Ok(expected));
}

#[test]
fn every_problem_is_reported_with_its_path() {
    let found = paths(
        r#"{"enabled": 1, "mode": "sometimes", "maxRetries": 1001, "strategy": "cubic", "initialDelayMs": 0,
            "maxDelayMs": 1.5, "multiplier": 0.5, "jitterRatio": 1.1, "retryableCodes": ["AUTH", "NOPE", "AUTH", 7],
            "respectRetryAfter": null, "maxRetires": 3}"#,
    );
    let expected = [
        "enabled",
        "mode",
        "maxRetries",
        "strategy",
        "initialDelayMs",
        "maxDelayMs",
        "multiplier",
        "jitterRatio",
        "retryableCodes[1]",
        "retryableCodes[2]",
        "retryableCodes[3]",
        "respectRetryAfter",
        "maxRetires",
    ];
    assert_eq!(found, expected);
}

#[test]
fn each_bound_is_refused_just_outside() {
    for json in [
        r#"{"maxRetries": -1}"#,
        r#"{"maxRetries": 1.5}"#,
        r#"{"maxRetries": "3"}"#,
        r#"{"initialDelayMs": 3600001, "maxDelayMs": 4000000}"#,
        r#"{"maxDelayMs": 2147483648}"#,
        r#"{"multiplier": 100.5}"#,
        r#"{"jitterRatio": -0.1}"#,
        r#"{"retryableCodes": []}"#,
        r#"{"retryableCodes": "AUTH"}"#,
        r#"{"retryableCodes": ["rate_limit"]}"#,
        r#"{"retryableCodes": ["ABORTED"]}"#,
    ] {
        assert_eq!(Config::parse(json).unwrap_err().len(), 1, "{json}");
    }
}

#[test]
fn the_first_wait_may_not_exceed_the_longest() {
    let found = Config::parse(r#"{"initialDelayMs": 2000, "maxDelayMs": 1000}"#).unwrap_err();
    assert_eq!((found.len(), found[0].path.as_str()), (1, "initialDelayMs"));
    assert!(found[0].message.contains("2000") && found[0].message.contains("1000"), "{}", found[0].message);
    // Against the default of the other one, too.
    assert_eq!(paths(r#"{"maxDelayMs": 999}"#), ["initialDelayMs"]);
    assert!(Config::parse(r#"{"initialDelayMs": 5, "maxDelayMs": 5}"#).is_ok());
}

#[test]
fn a_number_that_is_whole_counts_as_an_integer() {
    assert_eq!(Config::parse(r#"{"maxRetries": 10.0}"#).unwrap().max_retries, 10);
}

#[test]
fn what_is_no_object_is_refused_as_a_whole() {
    for json in ["[]", "null", "{", ""] {
        assert_eq!(paths(json), [""], "{json}");
    }
}

#[test]
fn the_defaults_of_the_schema_are_those_of_the_code() {
    let schema = schema();
    let defaults: Map<String, Value> = schema["properties"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, field)| (name.clone(), field["default"].clone()))
        .collect();
    assert_eq!(defaults.len(), 10);
    assert_eq!(Config::parse(&Value::from(defaults).to_string()), Ok(Config::default()));
}

#[test]
fn the_bounds_of_the_schema_are_those_of_the_code() {
    for (name, field) in schema()["properties"].as_object().unwrap() {
        for (bound, outside) in [("minimum", -0.5), ("maximum", 0.5)] {
            let Some(limit) = field[bound].as_f64() else { continue };
            // The other delay is moved out of the way, so that only the bound is tried.
            let others = if name == "initialDelayMs" { ", \"maxDelayMs\": 3600000" } else { ", \"initialDelayMs\": 1" };
            assert!(Config::parse(&format!("{{\"{name}\": {limit}{others}}}")).is_ok(), "{name} {bound}");
            let beyond = if field["type"] == "integer" { limit + 2.0 * outside } else { limit + outside };
            assert_eq!(paths(&format!("{{\"{name}\": {beyond}{others}}}")), [name.as_str()], "{name} {bound}");
        }
    }
}

#[test]
fn the_codes_of_the_schema_are_those_of_the_code() {
    assert_eq!(schema()["properties"]["retryableCodes"]["items"]["enum"], Value::from(CODES.to_vec()));
}
