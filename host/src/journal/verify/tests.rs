use super::*;
use serde_json::{Value, json};

/// A session of this program: a failure, a wait that is handed over, a retry turn that is answered, and a second prompt.
const CLOSED: &str = r#"{"type":"session","version":1,"id":"harbour","createdAt":1790000100000,"dialect":"closed-step"}
{"type":"turn/start","seq":0,"time":1790000100001,"data":{"turn":1}}
{"type":"user/message","seq":1,"time":1790000100001,"data":{"content":[{"type":"text","text":"which tide is it"}],"source":{"kind":"user"},"role":"user","id":"m-1"},"surfaceOp":"append"}
{"type":"step/start","seq":2,"time":1790000100002,"data":{"turn":1,"step":1}}
{"type":"request/header","seq":3,"time":1790000100002,"data":{"header":{"config":{"provider":"port","model":"port-2"}},"reason":"initial"}}
{"type":"assistant/chunk","seq":4,"time":1790000100050,"data":{"turn":1,"step":1,"chunk":{"type":"block-start","index":0,"blockType":"text"}}}
{"type":"assistant/chunk","seq":5,"time":1790000100051,"data":{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"The ti"}}}
{"type":"assistant/chunk","seq":6,"time":1790000100052,"data":{"turn":1,"step":1,"chunk":{"type":"finish","reason":{"kind":"error","failure":{"message":"the line went dead","code":"TRANSPORT","status":503,"providerRetryAfterMs":350.5,"requestId":"q-7"}}}}}
{"type":"step/end","seq":7,"time":1790000100052,"data":{"turn":1,"step":1,"failure":{"message":"the line went dead","code":"TRANSPORT","status":503,"providerRetryAfterMs":350.5,"requestId":"q-7"}}}
{"type":"chain","seq":8,"time":1790000100053,"data":{"generation":1,"executors":[{"id":"llm-retry","name":"llm-retry","version":"0.1.0","digest":"aa"}]}}
{"type":"executor/note","seq":9,"time":1790000100054,"data":{"id":"llm-retry","digest":"aa","kind":"scheduling","data":{"generation":1,"retryId":"r-1","retry":1}}}
{"type":"llm/retry","seq":10,"time":1790000100054,"data":{"retryId":"r-1","turn":1,"step":1,"provider":"port","mode":"normal","policyKey":"k","retry":1,"maxRetries":2,"delayMs":400,"failure":{"message":"the line went dead","code":"TRANSPORT","status":503,"providerRetryAfterMs":350.5,"requestId":"q-7"}}}
{"type":"chain","seq":11,"time":1790000100100,"data":{"generation":2,"executors":[]}}
{"type":"llm/retry-handover","seq":12,"time":1790000100101,"data":{"retryId":"r-1","turn":1,"step":1,"retry":1,"remainingMs":353,"from":{"id":"llm-retry","digest":"aa"},"generation":2}}
{"type":"llm/retry-started","seq":13,"time":1790000100454,"data":{"retryId":"r-1","turn":1,"step":1,"retry":1}}
{"type":"turn/end","seq":14,"time":1790000100455,"data":{"turn":1,"reason":{"kind":"retry"}}}
{"type":"turn/start","seq":15,"time":1790000100455,"data":{"turn":2,"retryOf":1}}
{"type":"step/start","seq":16,"time":1790000100456,"data":{"turn":2,"step":1}}
{"type":"assistant/chunk","seq":17,"time":1790000100500,"data":{"turn":2,"step":1,"chunk":{"type":"text-delta","index":0,"text":"Ebb.\u2028"}}}
{"type":"assistant/chunk","seq":18,"time":1790000100501,"data":{"turn":2,"step":1,"chunk":{"type":"finish","reason":{"kind":"stop"}}}}
{"type":"assistant/message","seq":19,"time":1790000100502,"data":{"turn":2,"step":1,"message":{"role":"assistant","content":[{"type":"text","text":"Ebb.\u2028"}],"source":{"kind":"model","provider":"port","model":"port-2"},"id":"m-2"}},"sourceEventSeqs":[17,18],"surfaceOp":"append"}
{"type":"step/end","seq":20,"time":1790000100502,"data":{"turn":2,"step":1}}
{"type":"turn/end","seq":21,"time":1790000100503,"data":{"turn":2,"reason":{"kind":"completed"}}}
{"type":"weather/seen","seq":22,"time":1790000100600,"data":{"wind":4},"ignorable":true}
{"type":"turn/start","seq":23,"time":1790000100700,"data":{"turn":3}}
{"type":"turn/end","seq":24,"time":1790000100701,"data":{"turn":3,"reason":{"kind":"aborted"}}}
"#;

/// A session of the same-step dialect: two retries of two policies in one open step, and a second turn.
const SAME: &str = r#"{"type":"session","version":0,"id":"orchard","createdAt":1790000200000,"cwd":"/srv/orchard","delegationDepth":0}
{"type":"agent/inbox/spliced","seq":0,"time":1790000200001,"data":{"target":"next-turn","start":0,"inserted":[]}}
{"type":"turn/start","seq":1,"time":1790000200002,"data":{"turn":1}}
{"type":"step/start","seq":2,"time":1790000200003,"data":{"turn":1,"step":1}}
{"type":"user/message","seq":3,"time":1790000200003,"data":{"content":[{"type":"text","text":"name one apple"}],"source":{"kind":"user"},"role":"user","id":"m-1"},"surfaceOp":"append"}
{"type":"session/title","seq":4,"time":1790000200004,"data":{"title":"name one apple"}}
{"type":"request/header","seq":5,"time":1790000200005,"data":{"header":{"config":{"provider":"grove","model":"grove-1"}},"reason":"initial"}}
{"type":"request/context","seq":6,"time":1790000200005,"data":{"provider":"grove","model":"grove-1","contextWindow":32000}}
{"type":"text-chunks","seq0":7,"time0":1790000200040,"data":{"turn":1,"step":1,"index":0,"dt":[0,1,1],"texts":["Bos","ko","op"]}}
{"type":"assistant/chunk","seq":10,"time":1790000200050,"data":{"turn":1,"step":1,"chunk":{"type":"finish","reason":{"kind":"error","failure":{"message":"too busy","code":"SERVER"}}}}}
{"type":"llm/retry","seq":11,"time":1790000200051,"data":{"retryId":"g-1","turn":1,"step":1,"provider":"grove","mode":"normal","policyKey":"p","retry":1,"maxRetries":3,"delayMs":100,"failure":{"message":"too busy","code":"SERVER","status":503,"providerRetryAfterMs":80,"requestId":"q-1"}}}
{"type":"llm/retry-started","seq":12,"time":1790000200152,"data":{"retryId":"g-1","turn":1,"step":1,"retry":1}}
{"type":"assistant/chunk","seq":13,"time":1790000200160,"data":{"turn":1,"step":1,"chunk":{"type":"finish","reason":{"kind":"error","failure":{"message":"too busy","code":"SERVER"}}}}}
{"type":"llm/retry","seq":14,"time":1790000200161,"data":{"retryId":"g-1","turn":1,"step":1,"provider":"grove","mode":"normal","policyKey":"p","retry":2,"maxRetries":3,"delayMs":0,"failure":{"message":"too busy","code":"VENDOR_SPECIFIC"}}}
{"type":"llm/retry-started","seq":15,"time":1790000200162,"data":{"retryId":"g-1","turn":1,"step":1,"retry":2}}
{"type":"llm/retry","seq":16,"time":1790000200170,"data":{"retryId":"g-2","turn":1,"step":1,"provider":"grove","mode":"always","policyKey":"q","retry":1,"delayMs":1.5,"failure":{"message":"too busy","code":"SERVER"}}}
{"type":"llm/retry-started","seq":17,"time":1790000200172,"data":{"retryId":"g-2","turn":1,"step":1,"retry":1}}
{"type":"assistant/chunk","seq":18,"time":1790000200180,"data":{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"Cox."}}}
{"type":"assistant/chunk","seq":19,"time":1790000200181,"data":{"turn":1,"step":1,"chunk":{"type":"finish","reason":{"kind":"stop"}}}}
{"type":"assistant/message","seq":20,"time":1790000200182,"data":{"turn":1,"step":1,"message":{"role":"assistant","content":[{"type":"text","text":"Cox."}],"source":{"kind":"model","provider":"grove","model":"grove-1"},"id":"m-2"}},"sourceEventSeqs":[18,19],"surfaceOp":"append"}
{"type":"step/end","seq":21,"time":1790000200182,"data":{"turn":1,"step":1}}
{"type":"turn/end","seq":22,"time":1790000200183,"data":{"turn":1,"reason":{"kind":"completed"}}}
{"type":"turn/start","seq":23,"time":1790000200300,"data":{"turn":2}}
{"type":"step/start","seq":24,"time":1790000200301,"data":{"turn":2,"step":1}}
{"type":"llm/retry","seq":25,"time":1790000200310,"data":{"retryId":"g-3","turn":2,"step":1,"provider":"grove","mode":"always","policyKey":"q","retry":1,"delayMs":2147483647,"failure":{"message":"too busy","code":"SERVER"}}}
{"type":"step/end","seq":26,"time":1790000200311,"data":{"turn":2,"step":1}}
{"type":"turn/end","seq":27,"time":1790000200312,"data":{"turn":2,"reason":{"kind":"aborted"}}}
"#;

fn verify(text: &str) -> Report {
    verify_bytes("sample", text.as_bytes())
}

/// The sample as values, the header first.
fn lines(sample: &str) -> Vec<Value> {
    sample.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The text of `lines`, with their numbers made gapless again.
fn renumbered(mut lines: Vec<Value>) -> String {
    for (seq, line) in lines.iter_mut().skip(1).enumerate() {
        line["seq"] = json!(seq);
    }
    text(&lines)
}

fn text(lines: &[Value]) -> String {
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn at(lines: &[Value], kind: &str, nth: usize) -> usize {
    lines.iter().enumerate().filter(|(_, line)| line["type"] == kind).nth(nth).unwrap().0
}

fn rules_of(text: &str) -> Vec<&'static str> {
    verify(text).findings.iter().map(|finding| finding.rule).collect()
}

/// Changes one field of the `nth` event of `kind`; `null` of the outer kind takes it away.
fn with_field(sample: &str, kind: &str, nth: usize, path: &str, value: Option<Value>) -> String {
    let mut lines = lines(sample);
    let index = at(&lines, kind, nth);
    let (parent, key) = path.rsplit_once('/').unwrap();
    let object = lines[index].pointer_mut(parent).unwrap().as_object_mut().unwrap();
    match value {
        Some(value) => object.insert(key.into(), value),
        None => object.remove(key),
    };
    text(&lines)
}

#[test]
fn both_dialects_are_told_by_their_header_and_found_good() {
    let closed = verify(CLOSED);
    assert_eq!(closed.findings, []);
    assert_eq!((closed.rules, closed.events, closed.turns), (Some(Rules::ClosedStep), 25, 3));
    assert_eq!(closed.to_string(), "sample is good: 25 events, 3 turns");
    let same = verify(SAME);
    assert_eq!(same.findings, []);
    assert_eq!((same.rules, same.events, same.turns), (Some(Rules::SameStep), 28, 2));
}

#[test]
fn a_finding_names_line_byte_rule_and_what_would_be_right() {
    let report = verify(&CLOSED.replace("\"retry\":1,\"maxRetries\":2", "\"retry\":2,\"maxRetries\":2"));
    let offset = CLOSED.lines().take(11).map(|line| line.len() as u64 + 1).sum();
    assert_eq!(
        report.findings[0],
        Finding { line: 12, offset, rule: "retry-number", message: "retry must be 1 in a new chain, not 2.".into() }
    );
    assert!(report.to_string().starts_with(&format!("sample: line 12 (byte {offset}): retry-number: retry must be")));
}

/// IN4 to IN28: each field of a record, in both dialects.
#[test]
fn every_wrong_field_of_a_retry_is_found_in_both_dialects() {
    let cases: Vec<(&str, Option<Value>, &str)> = vec![
        ("/data/failure", Some(Value::Null), "failure"),
        ("/data/failure", None, "failure"),
        ("/data/failure/message", Some(json!(5)), "failure-message"),
        ("/data/failure/message", Some(json!("")), "failure-message"),
        ("/data/failure/code", Some(json!(5)), "failure-code"),
        ("/data/failure/code", Some(json!("")), "failure-code"),
        ("/data/failure/status", Some(json!(429.5)), "failure-status"),
        ("/data/failure/status", Some(json!(99)), "failure-status"),
        ("/data/failure/status", Some(json!(600)), "failure-status"),
        ("/data/failure/status", Some(Value::Null), "failure-status"),
        ("/data/failure/providerRetryAfterMs", Some(Value::Null), "failure-retry-after"),
        ("/data/failure/requestId", Some(Value::Null), "failure-request-id"),
        ("/data/failure/providerRetryAfterMs", Some(json!("80")), "failure-retry-after"),
        ("/data/failure/providerRetryAfterMs", Some(json!(0)), "failure-retry-after"),
        ("/data/failure/requestId", Some(json!(5)), "failure-request-id"),
        ("/data/failure/requestId", Some(json!("")), "failure-request-id"),
        ("/data/retryId", Some(json!("")), "retry-id"),
        ("/data/retry", Some(json!(0)), "retry-number"),
        ("/data/retry", Some(json!(1.5)), "retry-number"),
        ("/data/maxRetries", Some(json!(0)), "max-retries"),
        ("/data/maxRetries", Some(json!(1.5)), "max-retries"),
        ("/data/maxRetries", Some(json!(9_007_199_254_740_993_u64)), "max-retries"),
        ("/data/maxRetries", None, "max-retries"),
        ("/data/retry", Some(json!(4)), "max-retries"),
        ("/data/mode", Some(json!("always")), "max-retries"),
        ("/data/mode", Some(json!("sometimes")), "mode"),
        ("/data/provider", Some(json!("")), "provider"),
        ("/data/provider", Some(json!("elsewhere")), "provider"),
        ("/data/policyKey", Some(json!("")), "policy-key"),
        ("/data/delayMs", Some(json!(-1)), "delay"),
        ("/data/delayMs", Some(json!(2_147_483_648_u64)), "delay"),
        ("/data/delayMs", Some(json!("400")), "delay"),
        ("/data/step", Some(json!(2)), "step-number"),
        ("/data/turn", Some(json!(2)), "turn-number"),
    ];
    for sample in [CLOSED, SAME] {
        for (path, value, rule) in &cases {
            // What follows a wrong record is judged as if it were the right one.
            let found = rules_of(&with_field(sample, "llm/retry", 0, path, value.clone()));
            assert_eq!(found, [*rule], "{path} = {value:?}");
        }
    }
}

#[test]
fn every_wrong_field_of_a_start_is_found_in_both_dialects() {
    for sample in [CLOSED, SAME] {
        for (path, value, rule) in [
            ("/data/retryId", json!(""), "retry-id"),
            ("/data/retryId", json!("other"), "live-record"),
            ("/data/retry", json!(2), "live-record"),
        ] {
            let found = rules_of(&with_field(sample, "llm/retry-started", 0, path, Some(value.clone())));
            assert_eq!(found.first(), Some(&rule), "{path} = {value}, all: {found:?}");
        }
        let found = rules_of(&with_field(sample, "llm/retry-started", 0, "/data/turn", Some(json!(9))));
        assert!(matches!(found[0], "turn-number" | "live-record"), "{found:?}");
    }
}

/// Takes events away, adds some, or puts them somewhere else. The answer goes on citing those that it cited.
fn edited(sample: &str, edit: impl FnOnce(&mut Vec<Value>)) -> Vec<&'static str> {
    let mut lines = lines(sample);
    edit(&mut lines);
    let numbers: Vec<_> = lines.iter().skip(1).map(|line| line["seq"].clone()).collect();
    for cited in lines.iter_mut().filter_map(|line| line["sourceEventSeqs"].as_array_mut()).flatten() {
        *cited = json!(numbers.iter().position(|number| number == cited).unwrap());
    }
    rules_of(&renumbered(lines))
}

#[test]
fn every_structural_rule_of_the_closed_step_dialect_is_hit() {
    let duplicate = |kind: &'static str, nth: usize| {
        edited(CLOSED, |lines| {
            let index = at(lines, kind, nth);
            lines.insert(index, lines[index].clone());
        })
    };
    let without = |kind: &'static str, nth: usize| {
        edited(CLOSED, |lines| {
            let index = at(lines, kind, nth);
            lines.remove(index);
        })
    };
    let field =
        |kind: &str, nth: usize, path: &str, value: Value| rules_of(&with_field(CLOSED, kind, nth, path, Some(value)));
    let table: Vec<(&str, Vec<&'static str>, &str)> = vec![
        ("a turn that starts twice", duplicate("turn/start", 0), "turn-open"),
        ("a turn without an end", without("turn/end", 0), "turn-open"),
        ("a turn that ends twice", duplicate("turn/end", 1), "turn-closed"),
        ("a turn out of order", field("turn/start", 2, "/data/turn", json!(5)), "turn-number"),
        ("a retry of an older turn", field("turn/start", 1, "/data/retryOf", json!(7)), "retry-of"),
        ("a retry of a turn that completed", field("turn/start", 2, "/data/retryOf", json!(2)), "retry-of"),
        ("a step that starts twice", duplicate("step/start", 0), "step-open"),
        ("a step without an end", without("step/end", 1), "step-open"),
        ("a step that ends twice", duplicate("step/end", 1), "step-closed"),
        ("a step out of order", field("step/start", 0, "/data/step", json!(2)), "step-number"),
        ("a record in an open step", without("step/end", 0), "step-open"),
        (
            "a record of a step that succeeded",
            {
                let mut changed = lines(CLOSED);
                let index = at(&changed, "step/end", 0);
                changed[index]["data"].as_object_mut().unwrap().remove("failure");
                rules_of(&text(&changed))
            },
            "step-succeeded",
        ),
        ("two live records", duplicate("llm/retry", 0), "one-live-record"),
        ("a start without a record", without("llm/retry", 0), "live-record"),
        ("a start that stands twice", duplicate("llm/retry-started", 0), "live-record"),
        ("a handover of another record", field("llm/retry-handover", 0, "/data/retryId", json!("x")), "live-record"),
        (
            "a handover with a wait below zero",
            field("llm/retry-handover", 0, "/data/remainingMs", json!(-1)),
            "remaining",
        ),
        (
            "a handover of what another scheduled",
            field("llm/retry-handover", 0, "/data/from/id", json!("x")),
            "handover-from",
        ),
        (
            "a handover to an unmet chain",
            field("llm/retry-handover", 0, "/data/generation", json!(3)),
            "handover-generation",
        ),
        (
            "a chunk outside a step",
            edited(CLOSED, |lines| {
                let chunk = lines[at(lines, "assistant/chunk", 0)].clone();
                lines.push(chunk);
            }),
            "turn-closed",
        ),
        ("a chunk behind the finish", duplicate("assistant/chunk", 2), "stream-end"),
        (
            "a citation of a failed attempt's chunk",
            field("assistant/message", 0, "/sourceEventSeqs", json!([5, 18])),
            "citation",
        ),
        ("a citation by a prompt", field("user/message", 0, "/sourceEventSeqs", json!([0])), "citation"),
        (
            "an answer that is not surface",
            {
                let mut changed = lines(CLOSED);
                let index = at(&changed, "assistant/message", 0);
                changed[index].as_object_mut().unwrap().remove("surfaceOp");
                rules_of(&text(&changed))
            },
            "surface-op",
        ),
        ("a chunk that is surface", field("assistant/chunk", 1, "/surfaceOp", json!("append")), "surface-op"),
        ("a retry that is surface", field("llm/retry", 0, "/surfaceOp", json!("append")), "surface-op"),
        ("another surface operation", field("user/message", 0, "/surfaceOp", json!("replace")), "surface-op"),
        ("two answers", duplicate("assistant/message", 0), "one-answer"),
        (
            "an answer of a step that failed",
            field("step/end", 1, "/data/failure", json!({"message": "m", "code": "SERVER"})),
            "failed-answer",
        ),
        (
            "a prompt in a retry turn",
            edited(CLOSED, |lines| {
                let message = lines[at(lines, "user/message", 0)].clone();
                let index = at(lines, "step/start", 1);
                lines.insert(index, message);
            }),
            "retry-surface",
        ),
        ("an unknown type that is required", field("weather/seen", 0, "/ignorable", json!(false)), "unknown-type"),
        ("a turn without its number", field("turn/start", 0, "/data/turn", json!("one")), "shape"),
        ("a chunk without its text", field("assistant/chunk", 1, "/data/chunk/text", json!(5)), "shape"),
        ("a sequence with a gap", rules_of(&with_field(CLOSED, "chain", 1, "/seq", Some(json!(40)))), "seq"),
    ];
    for (what, found, rule) in table {
        assert!(found.contains(&rule), "{what}: expected {rule}, found {found:?}");
    }
}

const FAILED: &str = r#"{"message":"the line went dead","code":"TRANSPORT","status":503,"providerRetryAfterMs":350.5,"requestId":"q-7"}"#;

/// [`CLOSED`] up to the `nth` event of `kind`, and an end of its first turn for this reason.
fn ended(kind: &str, nth: usize, reason: Value) -> Vec<&'static str> {
    edited(CLOSED, |lines| {
        lines.truncate(at(lines, kind, nth) + 1);
        lines.push(json!({"type":"turn/end","seq":0,"time":1,"data":{"turn":1,"reason":reason}}));
    })
}

#[test]
fn a_turn_ends_as_its_step_did() {
    let failed = || serde_json::from_str::<Value>(FAILED).unwrap();
    let error = |change: &dyn Fn(&mut Value)| {
        let mut error = failed();
        change(&mut error);
        json!({"kind":"error","error":error})
    };
    let given_up = |change: &dyn Fn(&mut Value)| ended("step/end", 0, error(change));
    let answered = |reason| rules_of(&with_field(CLOSED, "turn/end", 1, "/data/reason", Some(reason)));
    for legal in [
        given_up(&|_| {}),
        ended("llm/retry", 0, error(&|_| {})),
        ended("step/end", 0, json!({"kind":"retry"})),
        ended("step/end", 0, json!({"kind":"aborted"})),
        ended("llm/retry-started", 0, json!({"kind":"aborted"})),
        ended("user/message", 0, json!({"kind":"interrupted"})),
        answered(json!({"kind":"interrupted"})),
    ] {
        assert_eq!(legal, Vec::<&str>::new());
    }
    for (what, found, rule) in [
        ("an answered step is repeated", answered(json!({"kind":"retry"})), "turn-reason"),
        ("an answered step is given up", answered(json!({"kind":"error","error":failed()})), "turn-reason"),
        ("an answered step is aborted", answered(json!({"kind":"aborted"})), "turn-reason"),
        ("an answer was not cut", answered(json!({"kind":"max-tokens"})), "turn-reason"),
        ("a failed step is completed", ended("step/end", 0, json!({"kind":"completed"})), "turn-reason"),
        ("no step is completed", ended("user/message", 0, json!({"kind":"completed"})), "turn-reason"),
        ("a wait has not ended", ended("llm/retry", 0, json!({"kind":"retry"})), "turn-reason"),
        ("a wait moved and has not ended", ended("llm/retry-handover", 0, json!({"kind":"retry"})), "turn-reason"),
        ("a retry has started", ended("llm/retry-started", 0, error(&|_| {})), "turn-reason"),
        ("another error", given_up(&|error| error["code"] = json!("SERVER")), "turn-error"),
        ("an error without words", given_up(&|error| error["message"] = json!("")), "failure-message"),
        ("an error of no status", given_up(&|error| error["status"] = json!(42)), "failure-status"),
        ("an error with a null", given_up(&|error| error["status"] = Value::Null), "failure-status"),
        (
            "nothing was said",
            edited(CLOSED, |lines| {
                lines.remove(at(lines, "assistant/message", 0));
            }),
            "turn-reason",
        ),
        (
            "the answer was cut at the model's limit",
            rules_of(&with_field(CLOSED, "assistant/chunk", 4, "/data/chunk/reason/kind", Some(json!("max-tokens")))),
            "turn-reason",
        ),
    ] {
        assert_eq!(found, [rule], "{what}");
    }
}

#[test]
fn a_budget_is_not_refilled_and_a_repeated_request_stays_the_same() {
    let message_behind = |kind: &'static str| {
        edited(CLOSED, |lines| {
            let message = lines[at(lines, "user/message", 0)].clone();
            lines.insert(at(lines, kind, 0) + 1, message);
        })
    };
    let again = edited(CLOSED, |lines| {
        let mut record = lines[at(lines, "llm/retry", 0)].clone();
        record["data"]["retryId"] = json!("r-2");
        lines.insert(at(lines, "llm/retry-handover", 0) + 1, record);
        let started = at(lines, "llm/retry-started", 0);
        lines[started]["data"]["retryId"] = json!("r-2");
    });
    let from = |id: &str, digest: &str| {
        edited(CLOSED, |lines| {
            lines.remove(at(lines, "executor/note", 0));
            let handover = at(lines, "llm/retry-handover", 0);
            lines[handover]["data"]["from"] = json!({"id":id,"digest":digest});
        })
    };
    // An executor that does not know of pending waits makes its turn wait anew, and breaks nothing.
    assert_eq!(again, Vec::<&str>::new());
    assert_eq!(from("llm-retry", "aa"), Vec::<&str>::new());
    for (what, found, rule) in [
        (
            "a turn neither repeats nor has a prompt",
            rules_of(&with_field(CLOSED, "turn/start", 1, "/data/retryOf", None)),
            "no-prompt",
        ),
        ("a prompt behind the failed step", message_behind("step/end"), "prompt-place"),
        ("a prompt behind the record", message_behind("llm/retry"), "prompt-place"),
        (
            "a prompt without an id",
            rules_of(&with_field(CLOSED, "user/message", 0, "/data/id", Some(json!("")))),
            "message-id",
        ),
        ("a handover from an executor that was never met", from("zzz", "yy"), "handover-from"),
        ("a handover from another component", from("llm-retry", "bb"), "handover-from"),
        (
            "a handover from somebody whom only a note knows",
            rules_of(&CLOSED.replace("\"id\":\"llm-retry\",\"digest\":\"aa\"", "\"id\":\"ghost\",\"digest\":\"aa\"")),
            "handover-from",
        ),
        (
            "a header behind a chunk",
            edited(CLOSED, |lines| {
                let header = at(lines, "request/header", 0);
                lines.swap(header, header + 1);
            }),
            "header-place",
        ),
    ] {
        assert_eq!(found, [rule], "{what}");
    }
}

#[test]
fn a_failure_is_the_same_wherever_it_stands() {
    let field =
        |kind: &str, nth: usize, path: &str, value: Value| rules_of(&with_field(CLOSED, kind, nth, path, Some(value)));
    let finish = |key: &str, value: Value| field("assistant/chunk", 2, &format!("/data/chunk/reason/{key}"), value);
    // The host may take a hint away that it will not follow, and adds to the evidence.
    let stripped = CLOSED.replace(r#","requestId":"q-7"}}}}}"#, r#","requestId":"q-7","evidence":{"row":"x"}}}}}}"#);
    let (finish_line, rest) = stripped.split_once("\n{\"type\":\"step/end\"").unwrap();
    let stripped =
        format!("{finish_line}\n{{\"type\":\"step/end\"{}", rest.replace(r#""providerRetryAfterMs":350.5,"#, ""));
    assert_eq!(rules_of(&stripped), Vec::<&str>::new());
    for (what, found, rule) in [
        ("the record has another", field("llm/retry", 0, "/data/failure/message", json!("x")), "retry-failure"),
        ("the finish has another", finish("failure/message", json!("x")), "step-failure"),
        ("the finish has none", finish("kind", json!("stop")), "step-failure"),
        ("the finish has a null", finish("failure", Value::Null), "failure"),
        ("the finish has no words", finish("failure/message", json!("")), "failure-message"),
        ("the step has a null", field("step/end", 0, "/data/failure/requestId", Value::Null), "failure-request-id"),
    ] {
        assert!(found.contains(&rule), "{what}: {found:?}");
    }
}

#[test]
fn an_answer_is_what_its_chunks_say() {
    let field = |path: &str, value: Value| rules_of(&with_field(CLOSED, "assistant/message", 0, path, Some(value)));
    let cites = |seqs: Value| field("/sourceEventSeqs", seqs);
    for (what, found, rule) in [
        ("cites nothing", rules_of(&with_field(CLOSED, "assistant/message", 0, "/sourceEventSeqs", None)), "citation"),
        ("cites an empty list", cites(json!([])), "citation"),
        ("cites some", cites(json!([17])), "citation"),
        ("cites one twice", cites(json!([17, 17])), "citation"),
        ("cites one twice, and all", cites(json!([17, 18, 18])), "citation"),
        ("cites out of order", cites(json!([18, 17])), "citation"),
        ("other words", field("/data/message/content/0/text", json!("Flow.")), "answer-content"),
        ("no words", field("/data/message/content", json!([])), "answer-content"),
        ("another provider", field("/data/message/source/provider", json!("p")), "answer-source"),
        ("another model", field("/data/message/source/model", json!("m")), "answer-source"),
        ("another usage", field("/data/usage", json!({"inputTokens":1,"outputTokens":1})), "answer-usage"),
        ("interrupted, and whole", field("/data/interrupted", json!(true)), "answer-finish"),
    ] {
        assert_eq!(found.first(), Some(&rule), "{what}: {found:?}");
    }
    let unfinished = |message: &dyn Fn(&mut Value)| {
        edited(CLOSED, |lines| {
            lines.remove(at(lines, "assistant/chunk", 4));
            let answer = at(lines, "assistant/message", 0);
            lines[answer]["sourceEventSeqs"] = json!([17]);
            message(&mut lines[answer]);
        })
    };
    assert_eq!(unfinished(&|_| {}), ["answer-finish"]);
    // The visible beginning of an answer that was cancelled; such a turn does not complete.
    assert_eq!(unfinished(&|message| message["data"]["interrupted"] = json!(true)), ["turn-reason"]);
}

#[test]
fn a_whole_number_may_be_written_with_a_point_in_both_dialects() {
    for sample in [CLOSED, SAME] {
        for (path, value) in [("/data/maxRetries", 3.0), ("/data/retry", 1.0), ("/data/failure/status", 503.0)] {
            let found = rules_of(&with_field(sample, "llm/retry", 0, path, Some(json!(value))));
            assert_eq!(found, Vec::<&str>::new(), "{path}");
        }
    }
}

#[test]
fn an_event_has_a_type_and_what_stands_in_a_file_cannot_act_on_a_terminal() {
    for sample in [CLOSED, SAME] {
        let mut named = lines(sample);
        named.insert(2, json!({"type":"","seq":0,"time":1,"data":{},"ignorable":true}));
        assert!(rules_of(&text(&named)).contains(&"type"));
        named[2]["type"] = json!("a\u{1b}[2Jb\u{202e}c");
        named[2]["ignorable"] = json!(false);
        let report = verify_bytes("dir\u{7}/s", text(&named).as_bytes());
        let found = report.findings.iter().find(|finding| finding.rule == "unknown-type").unwrap();
        assert!(found.message.contains("a\\u{1b}[2Jb\\u{202e}c"), "{}", found.message);
        assert!(!report.to_string().contains(|c: char| c.is_control() && c != '\n'), "{report}");
    }
}

#[test]
fn numbers_as_large_as_there_are_break_rules_and_nothing_else() {
    let most = json!(u64::MAX);
    for sample in [CLOSED, SAME] {
        for line in 2..lines(sample).len() {
            for path in ["/seq", "/data/turn", "/data/step", "/data/retry", "/data/retryOf", "/data/maxRetries"] {
                let mut changed = lines(sample);
                let Some(value) = changed[line].pointer_mut(path) else { continue };
                *value = most.clone();
                assert!(!verify(&text(&changed)).is_good(), "line {line}, {path}");
            }
        }
    }
}

#[test]
fn a_session_is_kept_under_its_own_name() {
    assert_eq!(verify_session("x", "harbour", CLOSED.as_bytes()).findings, []);
    let found = verify_session("x", "lagoon", CLOSED.as_bytes()).findings;
    assert_eq!((found.len(), found[0].line, found[0].rule), (1, 1, "header-id"));
    assert!(found[0].message.contains("\"harbour\"") && found[0].message.contains("\"lagoon\""));
    // The other system names its files by its own rules.
    assert_eq!(verify_session("x", "session", SAME.as_bytes()).findings, []);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("lagoon.jsonl");
    std::fs::write(&path, CLOSED).unwrap();
    assert_eq!(verify_file(&path).unwrap().findings[0].rule, "header-id");
    std::fs::write(&path, [0x28, 0xb5, 0x2f, 0xfd, b'\n']).unwrap();
    assert!(verify_file(&path).unwrap_err().to_string().contains("could not be read: it is compressed with zstd"));
}

#[test]
fn a_report_is_told_as_data_too() {
    let bad = CLOSED.replacen("\"delayMs\":400", "\"delayMs\":-4", 1);
    let report = serde_json::to_value(verify(&bad[..bad.len() - 10])).unwrap();
    let keys: Vec<_> = report.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(keys.len(), 6, "{keys:?}");
    assert_eq!((&report["name"], &report["dialect"]), (&json!("sample"), &json!("closed-step")));
    assert_eq!((&report["events"], &report["turns"]), (&json!(24), &json!(3)));
    assert_eq!((&report["findings"][0]["line"], &report["findings"][0]["rule"]), (&json!(12), &json!("delay")));
    assert!(report["findings"][0]["offset"].is_u64() && report["findings"][0]["message"].is_string());
    assert_eq!(report["torn"]["rule"], "torn-tail");
    assert_eq!(serde_json::to_value(verify(SAME)).unwrap()["torn"], Value::Null);
}

/// IN29 to IN36.
#[test]
fn every_structural_rule_of_the_same_step_dialect_is_hit() {
    let retry = |nth: usize, path: &str, value: Value| rules_of(&with_field(SAME, "llm/retry", nth, path, Some(value)));
    // The packed line stands in for three numbers, so that the edited texts are unpacked first.
    let plain = || {
        let mut all = lines(SAME);
        let index = at(&all, "text-chunks", 0);
        all[index] = json!({"type":"assistant/chunk","seq":0,"time":1,"data":{"turn":1,"step":1,"chunk":{"type":"text-delta","index":0,"text":"x"}}});
        let shift = |seq: &Value| json!(seq.as_u64().unwrap() - 2);
        let index = at(&all, "assistant/message", 0);
        let cited: Vec<_> = all[index]["sourceEventSeqs"].as_array().unwrap().iter().map(shift).collect();
        all[index]["sourceEventSeqs"] = json!(cited);
        all
    };
    assert_eq!(rules_of(&renumbered(plain())), Vec::<&str>::new());
    let changed = |edit: &dyn Fn(&mut Vec<Value>)| {
        let mut all = plain();
        edit(&mut all);
        rules_of(&renumbered(all))
    };
    let field =
        |kind: &str, nth: usize, path: &str, value: Option<Value>| rules_of(&with_field(SAME, kind, nth, path, value));
    let without = |kind: &'static str| {
        changed(&|all| {
            all.remove(at(all, kind, 0));
        })
    };
    let copied = |kind: &'static str, behind: &'static str| {
        changed(&|all| {
            let copy = all[at(all, kind, 0)].clone();
            all.insert(at(all, behind, 0) + 1, copy);
        })
    };
    let table: Vec<(&str, Vec<&'static str>, &str)> = vec![
        (
            "no open turn",
            changed(&|all| {
                all.remove(at(all, "turn/start", 0));
            }),
            "turn-closed",
        ),
        (
            "a closed step",
            changed(&|all| {
                let end = all.remove(at(all, "step/end", 0));
                all.insert(at(all, "llm/retry", 0), end);
            }),
            "step-closed",
        ),
        (
            "a turn without a step",
            changed(&|all| {
                all.remove(at(all, "step/start", 0));
            }),
            "step-closed",
        ),
        (
            "a closed turn",
            changed(&|all| {
                let end = all.remove(at(all, "turn/end", 0));
                all.insert(at(all, "llm/retry", 0), end);
            }),
            "turn-closed",
        ),
        ("another policy that begins at 2", retry(2, "/data/retry", json!(2)), "retry-number"),
        ("a number that repeats", retry(1, "/data/retry", json!(1)), "retry-number"),
        ("a new step that goes on counting", retry(3, "/data/retry", json!(2)), "retry-number"),
        ("an id that changes in its chain", retry(1, "/data/retryId", json!("new")), "retry-id"),
        ("an id of another chain", retry(2, "/data/retryId", json!("g-1")), "retry-id"),
        ("an id of an older step", retry(3, "/data/retryId", json!("g-2")), "retry-id"),
        (
            "a step without a header",
            changed(&|all| {
                all.remove(at(all, "request/header", 0));
            }),
            "provider",
        ),
        (
            "a start that stands twice",
            changed(&|all| {
                let index = at(all, "llm/retry-started", 0);
                all.insert(index, all[index].clone());
            }),
            "live-record",
        ),
        (
            "an answer that cites a failed attempt",
            rules_of(&with_field(SAME, "assistant/message", 0, "/sourceEventSeqs", Some(json!([13, 18])))),
            "citation",
        ),
        (
            "a title that is surface",
            rules_of(&with_field(SAME, "session/title", 0, "/surfaceOp", Some(json!("append")))),
            "surface-op",
        ),
        (
            "a legacy header",
            rules_of(&with_field(SAME, "request/header", 0, "/data/reason", Some(json!("fallback")))),
            "legacy",
        ),
        (
            "a packed line that is one short",
            rules_of(&with_field(SAME, "text-chunks", 0, "/data/texts", Some(json!(["a", "b"])))),
            "seq",
        ),
        (
            "a packed line with times too few",
            rules_of(&with_field(SAME, "text-chunks", 0, "/data/dt", Some(json!([0])))),
            "shape",
        ),
        (
            "a chunk of a kind that no stream has",
            rules_of(&with_field(SAME, "assistant/chunk", 0, "/data/chunk/type", Some(json!("paragraph")))),
            "chunk-type",
        ),
        (
            "an answer that cites a chunk twice",
            rules_of(&with_field(SAME, "assistant/message", 0, "/sourceEventSeqs", Some(json!([18, 18])))),
            "citation",
        ),
        (
            "an answer behind its turn",
            changed(&|all| {
                let answer = all.remove(at(all, "assistant/message", 0));
                all.insert(at(all, "turn/end", 0) + 1, answer);
            }),
            "turn-closed",
        ),
        ("a chunk of another step", field("assistant/chunk", 1, "/data/step", Some(json!(2))), "step-number"),
        ("a chunk of another turn", field("assistant/chunk", 1, "/data/turn", Some(json!(2))), "turn-number"),
        ("a packed line of another step", field("text-chunks", 0, "/data/step", Some(json!(2))), "step-number"),
        ("a chunk behind its turn", copied("assistant/chunk", "turn/end"), "turn-closed"),
        ("an end of another turn", field("turn/end", 0, "/data/turn", Some(json!(2))), "turn-number"),
        ("an end of another step", field("step/end", 0, "/data/step", Some(json!(2))), "step-number"),
        ("a step without an end", without("step/end"), "step-open"),
        (
            "a step's end behind its turn's",
            changed(&|all| {
                let end = all.remove(at(all, "step/end", 0));
                all.insert(at(all, "turn/end", 0) + 1, end);
            }),
            "step-open",
        ),
        ("a step out of order", field("step/start", 0, "/data/step", Some(json!(2))), "step-number"),
        ("a step that starts twice", copied("step/start", "step/start"), "step-open"),
        ("a turn that starts twice", copied("turn/start", "turn/start"), "turn-open"),
        ("a turn that ends twice", copied("turn/end", "turn/end"), "turn-closed"),
        ("a turn that comes again", field("turn/start", 1, "/data/turn", Some(json!(1))), "turn-number"),
        ("an end without a reason", field("turn/end", 0, "/data/reason", None), "turn-reason"),
        ("an end for no known reason", field("turn/end", 0, "/data/reason/kind", Some(json!("zzz"))), "turn-reason"),
        ("an error without a failure", field("turn/end", 0, "/data/reason", Some(json!({"kind": "error"}))), "failure"),
        ("a prompt that is not surface", field("user/message", 0, "/surfaceOp", None), "surface-op"),
        ("an answer that is not surface", field("assistant/message", 0, "/surfaceOp", None), "surface-op"),
        ("a surface operation of no kind", field("user/message", 0, "/surfaceOp", Some(json!("cut"))), "surface-op"),
        ("a prompt of nothing", field("user/message", 0, "/data", Some(Value::Null)), "shape"),
        ("an answer of nothing", field("assistant/message", 0, "/data/message", Some(Value::Null)), "shape"),
        (
            "a finish without its failure",
            field("assistant/chunk", 0, "/data/chunk/reason/failure", Some(Value::Null)),
            "failure",
        ),
        ("a finish of no kind", field("assistant/chunk", 0, "/data/chunk/reason/kind", Some(json!("zzz"))), "shape"),
        (
            "a required type that nobody knows",
            changed(&|all| {
                let index = at(all, "session/title", 0);
                all[index]["type"] = json!("session/colour");
            }),
            "unknown-type",
        ),
    ];
    for (what, found, rule) in table {
        assert!(found.contains(&rule), "{what}: expected {rule}, found {found:?}");
    }
}

/// IN34: a history may have been taken over with its earlier turns in pieces.
#[test]
fn an_older_turn_in_pieces_is_no_offence_in_the_same_step_dialect() {
    let mut all = lines(SAME);
    let end = at(&all, "turn/end", 0);
    all[end] = json!({"type":"session/end-seed","seq":22,"time":1,"data":{}});
    assert_eq!(rules_of(&text(&all)), Vec::<&str>::new());
    let second = |before: Vec<Value>| {
        let mut all = lines(SAME);
        let header = all[at(&all, "request/header", 0)].clone();
        let rest = all.split_off(at(&all, "turn/start", 1));
        all.truncate(1);
        all.extend(before);
        all.push(rest[0].clone());
        all.push(rest[1].clone());
        all.push(header);
        all.extend_from_slice(&rest[2..]);
        rules_of(&renumbered(all))
    };
    let message = lines(SAME)[4].clone();
    let end = |reason: Value| json!({"type":"turn/end","seq":0,"time":1,"data":{"turn":1,"reason":reason}});
    assert_eq!(message["type"], "user/message");
    for before in [
        vec![message.clone()],
        vec![end(json!({"kind":"completed"})), message],
        vec![end(json!({"kind":"error","error":{"message":"m","code":"RATE_LIMIT"}}))],
    ] {
        assert_eq!(second(before.clone()), Vec::<&str>::new(), "{before:?}");
    }
}

/// What a harness of the same-step dialect may write: exhausted, cancelled, delegated, newer, and closed after a crash.
#[test]
fn every_way_in_which_a_same_step_session_may_go_is_good() {
    let event = |kind: &str, data: Value| json!({"type":kind,"seq":0,"time":1,"data":data});
    let step_end = || event("step/end", json!({"turn":1,"step":1}));
    let turn_end = |reason: Value| event("turn/end", json!({"turn":1,"reason":reason}));
    let failure = || json!({"message":"too busy","code":"SERVER"});
    let header = |provider: &str| {
        event("request/header", json!({"header":{"config":{"provider":provider,"model":"m"}},"reason":"change"}))
    };
    // Without its packed line, and without its second turn.
    let first_turn = || {
        let mut all = lines(SAME);
        all.truncate(at(&all, "turn/end", 0) + 1);
        all.remove(at(&all, "text-chunks", 0));
        let answer = at(&all, "assistant/message", 0);
        all[answer]["sourceEventSeqs"] = json!([15, 16]);
        all
    };
    let up_to = |kind: &str, nth: usize, more: Vec<Value>| {
        let mut all = first_turn();
        all.truncate(at(&all, kind, nth) + 1);
        all.extend(more);
        all
    };
    let delegated = || {
        let mut all = first_turn();
        all.retain(|line| !line["type"].as_str().unwrap().starts_with("llm/"));
        let answer = at(&all, "assistant/message", 0);
        all[answer]["sourceEventSeqs"] = json!([9, 10]);
        all
    };
    let interleaved = || {
        let mut all = first_turn();
        let index = at(&all, "llm/retry", 1);
        let (mut record, mut started) = (all[at(&all, "llm/retry", 0)].clone(), all[index - 2].clone());
        record["data"]["provider"] = json!("meadow");
        record["data"]["retryId"] = json!("m-1");
        started["data"]["retryId"] = json!("m-1");
        let finish = all[index - 1].clone();
        all.splice(index..index, [header("meadow"), record, started, finish, header("grove")]);
        let answer = at(&all, "assistant/message", 0);
        all[answer]["sourceEventSeqs"] = json!([20, 21]);
        all
    };
    let newer = || {
        let mut all = first_turn();
        all.retain(|line| line["type"] != "assistant/chunk");
        let attempt = event("assistant/attempt", json!({"turn":1,"step":1,"stream":[]}));
        all.insert(at(&all, "llm/retry", 0), attempt);
        let mut system = event("system/message", json!({"turn":1,"step":1,"message":{}}));
        system["surfaceOp"] = json!("append");
        all.insert(at(&all, "user/message", 0), system);
        let answer = at(&all, "assistant/message", 0);
        all[answer].as_object_mut().unwrap().remove("sourceEventSeqs");
        all[answer]["data"]["stream"] = json!([]);
        let end = at(&all, "turn/end", 0);
        all[end]["data"]["reason"] = json!({"kind":"forked"});
        all.insert(end, event("image/offload", json!({})));
        all
    };
    let compacted = || {
        let mut all = first_turn();
        let mut summary = all[at(&all, "user/message", 0)].clone();
        summary["surfaceOp"] = json!({"op":"replace","startSeq":3,"endSeq":3});
        summary["sourceEventSeqs"] = json!([3]);
        all.push(event("compaction/start", json!({"compactionId":"c"})));
        all.push(summary);
        all
    };
    let closed_by_repair = up_to("llm/retry-started", 0, {
        let mut result = event("tool/result", json!({"turn":1,"step":1,"message":{}}));
        result["surfaceOp"] = json!("append");
        vec![result, step_end(), turn_end(json!({"kind":"interrupted"}))]
    });
    for (what, all) in [
        (
            "exhausted",
            up_to("assistant/chunk", 1, vec![step_end(), turn_end(json!({"kind":"error","error":failure()}))]),
        ),
        (
            "cancelled in backoff",
            up_to("llm/retry", 1, vec![step_end(), turn_end(json!({"kind":"aborted","reason":{"kind":"user"}}))]),
        ),
        (
            "executor unloaded",
            up_to("llm/retry", 1, vec![step_end(), turn_end(json!({"kind":"error","error":failure()}))]),
        ),
        ("no step at all", up_to("turn/start", 0, vec![turn_end(json!({"kind":"blocked"}))])),
        ("delegated", delegated()),
        ("interleaved providers", interleaved()),
        ("the newer line", newer()),
        ("compacted", compacted()),
        ("closed by a repair", closed_by_repair),
    ] {
        assert_eq!(verify(&renumbered(all)).findings, [], "{what}");
    }
}

#[test]
fn a_header_that_is_none_says_what_it_lacks() {
    for (from, to, part) in [
        ("\"version\":1", "\"version\":7", "version is 7"),
        (",\"dialect\":\"closed-step\"", "", "names its dialect"),
        ("\"dialect\":\"closed-step\"", "\"dialect\":\"open\"", "unknown variant"),
        ("\"type\":\"session\"", "\"type\":\"song\"", "must be \"session\""),
        ("\"id\":\"harbour\"", "\"id\":\"\"", "must not be empty"),
    ] {
        let report = verify(&CLOSED.replacen(from, to, 1));
        assert_eq!((report.findings[0].line, report.findings[0].rule), (1, "header"));
        assert!(report.findings[0].message.contains(part), "{}", report.findings[0].message);
    }
    assert_eq!(verify("").findings[0].rule, "header");
    let report = verify(&SAME.replacen(",\"delegationDepth\":0", "", 1));
    assert!(report.findings[0].message.contains("delegationDepth"));
}

#[test]
fn a_torn_tail_breaks_no_rule_and_is_told() {
    let cut = &CLOSED[..CLOSED.len() - 10];
    let report = verify(cut);
    assert!(report.is_good());
    assert_eq!(report.torn.as_ref().map(|torn| torn.line), Some(26));
    assert!(!report.is_whole());
    assert!(report.to_string().contains("line 26 (byte "), "{report}");
    assert!(report.to_string().contains("torn-tail: ") && report.to_string().contains("its torn end"), "{report}");
    let padded = format!("{CLOSED}{}", "\0".repeat(4096));
    let report = verify(&padded);
    assert!(report.is_good());
    assert!(report.torn.unwrap().message.contains("4096 bytes of zeros"));
}

#[test]
fn everything_behind_a_bad_line_is_still_judged() {
    let bad = CLOSED
        .replacen("{\"type\":\"executor/note\"", "{\"type\":executor/note\"", 1)
        .replacen("\"delayMs\":400", "\"delayMs\":-4", 1)
        .replacen("[17,18]", "[4]", 1);
    assert_eq!(
        rules_of(&bad).iter().filter(|rule| **rule != "live-record").collect::<Vec<_>>(),
        [&"line", &"delay", &"citation"]
    );
}

#[test]
fn a_long_session_is_read_in_batches_and_every_line_keeps_its_place() {
    let mut all: Vec<String> = CLOSED.lines().take(6).map(str::to_owned).collect();
    let piece = "x".repeat(300);
    for seq in 5..20_000 {
        all.push(format!(
            r#"{{"type":"assistant/chunk","seq":{seq},"time":1,"data":{{"turn":1,"step":1,"chunk":{{"type":"text-delta","index":0,"text":"{piece}"}}}}}}"#
        ));
    }
    let good = all.join("\n") + "\n";
    assert!(good.len() > 3 * BATCH_BYTES);
    let report = verify(&good);
    assert_eq!((report.findings.as_slice(), report.events), (&[][..], 20_000));
    all[15_000] = all[15_000].replace("\"step\":1", "\"step\":2");
    let report = verify(&(all.join("\n") + "\n"));
    assert_eq!((report.findings.len(), report.findings[0].line), (1, 15_001));
    assert_eq!(report.findings[0].offset, all.iter().take(15_000).map(|line| line.len() as u64 + 1).sum::<u64>());
}
