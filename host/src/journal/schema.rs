//! The JSON Schema of a session's lines, generated from the types that write them.

use super::{
    event::{
        AssistantChunk, AssistantMessage, ChainMet, ExecutorFault, ExecutorNote, KNOWN_TYPES, RequestHeader, Retry,
        RetryHandover, RetryStarted, StepEnd, StepRef, TurnEnd, TurnStart, UserMessage,
    },
    record::FileHeader,
};
use schemars::{Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Value, json};

/// The schema (draft 2020-12) of one line: the header, an event of a known type, or one marked as ignorable.
pub fn schema() -> Value {
    let mut generator = SchemaSettings::draft2020_12().into_generator();
    let mut lines = vec![generator.subschema_for::<FileHeader>().to_value()];
    lines.extend(data_schemas(&mut generator).into_iter().map(|(kind, data)| event(kind, &data)));
    lines.push(json!({
        "title": "An event of a type from a newer version, which a reader may skip",
        "type": "object",
        "properties": {
            "type": { "type": "string", "not": { "enum": KNOWN_TYPES.iter().chain(&["session"]).collect::<Vec<_>>() } },
            "seq": whole_number(),
            "time": whole_number(),
            "ignorable": { "const": true },
        },
        "required": ["type", "seq", "time", "data", "ignorable"],
    }));
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a Retake session",
        "oneOf": lines,
        "$defs": generator.take_definitions(true),
    })
}

/// The data of each event type.
fn data_schemas(generator: &mut SchemaGenerator) -> Vec<(&'static str, Schema)> {
    vec![
        ("turn/start", generator.subschema_for::<TurnStart>()),
        ("user/message", generator.subschema_for::<UserMessage>()),
        ("step/start", generator.subschema_for::<StepRef>()),
        ("request/header", generator.subschema_for::<RequestHeader>()),
        ("assistant/chunk", generator.subschema_for::<AssistantChunk>()),
        ("assistant/message", generator.subschema_for::<AssistantMessage>()),
        ("step/end", generator.subschema_for::<StepEnd>()),
        ("chain", generator.subschema_for::<ChainMet>()),
        ("llm/retry", generator.subschema_for::<Retry>()),
        ("llm/retry-started", generator.subschema_for::<RetryStarted>()),
        ("llm/retry-handover", generator.subschema_for::<RetryHandover>()),
        ("executor/fault", generator.subschema_for::<ExecutorFault>()),
        ("executor/note", generator.subschema_for::<ExecutorNote>()),
        ("turn/end", generator.subschema_for::<TurnEnd>()),
    ]
}

/// A finite limit is told under normal mode, and none under always.
pub(super) fn limit_by_mode(schema: &mut Schema) {
    schema.insert("if".into(), json!({ "properties": { "mode": { "const": "normal" } } }));
    schema.insert("then".into(), json!({ "required": ["maxRetries"] }));
    schema.insert("else".into(), json!({ "properties": { "maxRetries": false } }));
}

fn whole_number() -> Value {
    json!({ "type": "integer", "minimum": 0 })
}

fn event(kind: &str, data: &Schema) -> Value {
    let mut properties = json!({
        "type": { "const": kind },
        "seq": whole_number(),
        "time": whole_number(),
        "data": data,
    });
    let mut required = vec!["type", "seq", "time", "data"];
    if matches!(kind, "user/message" | "assistant/message") {
        properties["surfaceOp"] = json!({ "const": "append" });
        required.push("surfaceOp");
    }
    if kind == "assistant/message" {
        properties["sourceEventSeqs"] = json!({ "type": "array", "items": whole_number() });
    }
    json!({ "title": kind, "type": "object", "properties": properties, "required": required })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_type_has_its_data_described() {
        let schema = schema();
        let lines = schema["oneOf"].as_array().unwrap();
        for kind in KNOWN_TYPES {
            let described = lines.iter().filter(|line| line["properties"]["type"]["const"] == kind).count();
            assert_eq!(described, 1, "{kind}");
        }
    }

    #[test]
    fn numbers_enums_and_options_are_described_as_they_are_written() {
        let validator = jsonschema::validator_for(&schema()).unwrap();
        let retry = json!({"type":"llm/retry","seq":4,"time":9,"data":{"retryId":"r","turn":1,"step":1,"provider":"p",
            "mode":"always","policyKey":"k","retry":1,"delayMs":1.5,"failure":{"message":"m","code":"RATE_LIMIT",
            "evidence":{"shouldRetry":false,"shouldRetryUse":"ignored"}}}});
        validator.validate(&retry).unwrap();
        for (path, value) in [
            ("/data/delayMs", json!("400")),
            ("/data/mode", json!("sometimes")),
            ("/data/failure/code", json!("NEW")),
            ("/data/failure/evidence/shouldRetry", json!("no")),
            ("/data/failure/evidence/shouldRetryUse", json!("adopted")),
            ("/data/retry", json!(-1)),
            ("/seq", json!(1.5)),
            ("/type", json!("llm/other")),
        ] {
            let mut wrong = retry.clone();
            *wrong.pointer_mut(path).unwrap() = value;
            assert!(!validator.is_valid(&wrong), "{path}");
        }
        let mut newer = json!({"type":"new/thing","seq":0,"time":1,"data":[1],"ignorable":true});
        assert!(validator.is_valid(&newer));
        newer["ignorable"] = json!(false);
        assert!(!validator.is_valid(&newer));
    }

    /// The bounds of a retry's record that can be said of one line; the rest is for `verify`.
    #[test]
    fn every_bound_of_a_retry_is_in_the_schema() {
        let validator = jsonschema::validator_for(&schema()).unwrap();
        let line = |kind: &str, data: Value| json!({"type":kind,"seq":4,"time":9,"data":data});
        let failure = || json!({"message":"m","code":"SERVER","status":503,"providerRetryAfterMs":0.5,"requestId":"q"});
        let retry = line(
            "llm/retry",
            json!({"retryId":"r","turn":1,"step":1,"provider":"p","mode":"normal",
            "policyKey":"k","retry":1,"maxRetries":2.0,"delayMs":2147483647,"failure":failure()}),
        );
        let started = line("llm/retry-started", json!({"retryId":"r","turn":1,"step":1,"retry":1}));
        let handover = line(
            "llm/retry-handover",
            json!({"retryId":"r","turn":1,"step":1,"retry":1,"remainingMs":0,
            "from":{"id":"e","digest":"d"},"generation":1}),
        );
        let header = json!({"type":"session","version":1,"id":"s","createdAt":1,"dialect":"closed-step"});
        let step_end = line("step/end", json!({"turn":1,"step":1,"failure":failure()}));
        let turn_end = line("turn/end", json!({"turn":1,"reason":{"kind":"error","error":failure()}}));
        let turn_start = line("turn/start", json!({"turn":2,"retryOf":1}));
        let cases = [
            (&retry, "/data/retryId", vec![json!("")]),
            (&retry, "/data/turn", vec![json!(0)]),
            (&retry, "/data/step", vec![json!(0)]),
            (&retry, "/data/provider", vec![json!("")]),
            (&retry, "/data/policyKey", vec![json!("")]),
            (&retry, "/data/mode", vec![json!("always")]),
            (&retry, "/data/retry", vec![json!(0), json!(1.5), json!(9_007_199_254_740_992_u64)]),
            (&retry, "/data/maxRetries", vec![json!(0), json!(1.5), Value::Null, json!(9_007_199_254_740_992_u64)]),
            (&retry, "/data/delayMs", vec![json!(-1), json!(2_147_483_648_u64)]),
            (&retry, "/data/failure/message", vec![json!("")]),
            (&retry, "/data/failure/status", vec![json!(99), json!(600), json!(429.5), Value::Null]),
            (&retry, "/data/failure/providerRetryAfterMs", vec![json!(0), json!("1"), Value::Null]),
            (&retry, "/data/failure/requestId", vec![json!(""), Value::Null]),
            (&started, "/data/retryId", vec![json!("")]),
            (&started, "/data/retry", vec![json!(0)]),
            (&handover, "/data/remainingMs", vec![json!(-1), json!(2_147_483_648_u64)]),
            (&header, "/version", vec![json!(0), json!(2)]),
            (&header, "/id", vec![json!("")]),
            (&step_end, "/data/step", vec![json!(0)]),
            (&step_end, "/data/failure", vec![Value::Null]),
            (&turn_end, "/data/reason/error/status", vec![json!(42)]),
            (&turn_start, "/data/retryOf", vec![json!(0), Value::Null]),
        ];
        for (line, path, values) in cases {
            validator.validate(line).unwrap();
            for value in values {
                let mut wrong = line.clone();
                *wrong.pointer_mut(path).unwrap() = value;
                assert!(!validator.is_valid(&wrong), "{wrong}");
            }
        }
        let mut unlimited = retry.clone();
        unlimited["data"].as_object_mut().unwrap().remove("maxRetries");
        assert!(!validator.is_valid(&unlimited), "a limit is told under normal mode");
        unlimited["data"]["mode"] = json!("always");
        validator.validate(&unlimited).unwrap();
    }
}
