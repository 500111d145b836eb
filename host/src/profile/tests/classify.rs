use super::*;
use crate::llm::{FailureCode, classify::Signal};

const ROWS: &str = "    classify:
      - id: thinking
        status: [400, \"5xx\"]
        pointer: /error/type
        equals: invalid_request_error
        text: reasoning_text
        as: SERVER
        fixture: { status: 400, body: { error: { type: invalid_request_error, message: \"no reasoning_text here\" } } }
      - id: nineteen
        code: 19
        as: RATE_LIMIT
        fixture: { status: 200, body: '{\"error\": {\"code\": \"19\"}}' }
";

#[track_caller]
fn refused(rows: &str, expected: &[&str]) {
    let world = World::new(&format!("{PROVIDER}    classify:\n{rows}"));
    assert_eq!(world.errors().lines().collect::<Vec<_>>(), expected);
}

#[test]
fn rows_of_ones_own_go_before_the_table() {
    let profile = World::new(&format!("{PROVIDER}{ROWS}    textHints: true\n")).composed();
    let provider = &profile.providers[0];
    assert!(provider.text_hints);
    let rows = provider.classify.rows();
    assert_eq!(rows.iter().map(|row| row.id.as_str()).collect::<Vec<_>>(), ["thinking", "nineteen"]);
    assert_eq!(rows[0].when.statuses, [(400, 400), (500, 599)]);
    let signal = Signal { status: Some(429), code: Some("19"), ..Signal::default() };
    let found = provider.classify.find(&signal, None).unwrap();
    assert_eq!((found.code, found.row_id().as_str()), (FailureCode::RateLimit, "own/nineteen"));
    let shown = to_text(&profile);
    assert!(shown.contains("thinking → SERVER") && shown.contains("textHints"), "{shown}");
}

#[test]
fn a_fixture_of_a_success_may_be_a_text_or_a_stream() {
    let row = |body: &str| {
        format!(
            "    classify:\n      - {{ id: fire, text: house on fire, as: SERVER, fixture: {{ status: 200, body: {body} }} }}\n"
        )
    };
    for body in ["house on fire", "'{\"message\": \"house on fire\"}'", "\"event: error\\ndata: house on fire\\n\\n\""]
    {
        World::new(&format!("{PROVIDER}{}", row(body))).composed();
    }
    let answer = "'{\"choices\": [{\"message\": {\"content\": \"house on fire\"}}]}'";
    let world = World::new(&format!("{PROVIDER}{}", row(answer)));
    assert!(world.errors().contains("is no failure: a success that reports no error"), "{}", world.errors());
}

#[test]
fn a_patch_replaces_the_rows_as_a_whole() {
    let world = World::new(&format!("{PROVIDER}{ROWS}"));
    world.write("retake.patch.yml", "- provider: acme\n  classify: [{ id: other, status: 418, as: SERVER }]\n");
    let profile = world.composed();
    assert_eq!(profile.providers[0].classify.rows().len(), 1);
    assert_eq!(origin(&world, profile.providers[0].provenance.get("classify")), "profile patch, retake.patch.yml:2");
}

#[test]
fn a_row_with_a_code_that_does_not_exist_is_refused_at_its_line() {
    refused(
        "      - id: a\n        status: 400\n        as: SERVRE\n",
        &[
            "profile.yml:9:9: providers[0].classify[0].as: the text \"SERVRE\" is not allowed here; it is one of EMPTY_RESPONSE, RATE_LIMIT, SERVER, TIMEOUT, TRANSPORT, AUTH, QUOTA, INVALID_REQUEST, PROTOCOL, CONTEXT_OVERFLOW (did you mean \"SERVER\"?).",
        ],
    );
}

#[test]
fn a_row_that_can_never_match_is_refused_at_its_line() {
    refused(
        "      - { id: a, text: busy, as: SERVER }\n      - { id: b, text: server busy, as: RATE_LIMIT }\n      - { id: c, status: 200, as: SERVER }\n      - { id: d, as: SERVER }\n",
        &[
            "profile.yml:8:9: providers[0].classify[1]: the row can never match: the row \"a\" before it takes everything that it would take.",
            "profile.yml:9:9: providers[0].classify[2]: the status 200 never reaches a row: only 101 and 300 to 999 are failures by their status; for an error inside a success leave the status out.",
            "profile.yml:10:9: providers[0].classify[3]: the row demands nothing, so that it would name every failure; give it status, pointer, code or text.",
        ],
    );
}

#[test]
fn a_fixture_that_its_row_does_not_name_is_refused_at_its_line() {
    refused(
        "      - id: a\n        text: busy\n        as: SERVER\n        fixture: { status: 429, body: \"too many requests\" }\n",
        &[
            "profile.yml:10:9: providers[0].classify[0].fixture: the fixture of the row \"a\" is RATE_LIMIT by the row \"text/rate-exceeded\", not by this one.",
        ],
    );
}

#[test]
fn odd_values_in_a_row_are_refused() {
    refused(
        "      - { id: a, status: \"44x\", as: SERVER }\n      - { id: b, text: x, equals: 1, as: SERVER, colour: red }\n",
        &[
            "profile.yml:7:18: providers[0].classify[0].status: the text \"44x\" is not allowed here; it is a status such as 400, a class such as \"4xx\", or a list of these.",
            "profile.yml:8:50: providers[0].classify[1].colour: unknown key \"colour\"; allowed here: id, status, pointer, equals, code, text, as, fixture.",
            "profile.yml:8:27: providers[0].classify[1].equals: the key equals says what stands at a pointer, and the row has no pointer.",
        ],
    );
}

#[test]
fn all_limits_can_be_set_and_a_total_of_zero_is_none() {
    let limits =
        "    limits: { connectMs: 1, firstByteMs: 2, firstContentMs: 3, contentMs: 4, idleMs: 5, totalMs: 0 }\n";
    let profile = World::new(&format!("{PROVIDER}{limits}")).composed();
    let limits = profile.providers[0].limits;
    assert_eq!((limits.first_content_ms, limits.content_ms, limits.total_ms), (Some(3), Some(4), Some(0)));
}
