//! The classification table as a page for people: `docs/failures.md`.

use super::{On, Row, Scope, table::TABLE};
use crate::llm::{
    FailureCode,
    adapters::Limits,
    policy::{DEFAULT_MAX_RETRIES, DEFAULT_RETRYABLE_CODES},
};
use std::fmt::Write as _;

const OPENING: &str = "\
# Failures, and what they are called

This page is written by the program from the table that it uses. A test fails when the two differ; run it with
`UPDATE_DOCS=1` to write the page anew.

The rows are read from the top, and the first that matches gives the code. Its id is kept in the failure's
`evidence.row`. All adapters share the table, so that one fault has one code wherever it shows: as the status of a
response, as an error event inside a stream, or as an error in the body of a success. An HTTP status inside such a body
counts as the status, and the headers of the response hold for it. *none* among the statuses means a failure that has
none.

What comes with a success is an error if its shape says so: an `error` or `errors` with something in it, a type or a name
that ends in `error` or `exception`, `success: false`, a status of 400 to 599, and the like. A message alone (`message`,
`detail`, `msg`, …), plain text, and a page are one where a row below knows what they say, or a row of one's own does. A
regular part of an answer is none, whatever its words.

A provider's own rows are read before these; their ids begin with `own/`. A row names a code under `as`, and demands one
or more of: a status (`400`, `4xx`, or a list), a JSON pointer into the body (and what it `equals`), the provider's code or
type, words of the error. Words are found whole; in a language without spaces, also within a longer run. A row that can
never match is refused with its line, and so is one whose `fixture` it does not name.

```yaml
providers:
  - provider: acme
    adapter: openai-chat
    baseUrl: https://acme.example/v1
    classify:
      - id: thinking
        status: 400
        pointer: /error/type
        equals: invalid_request_error
        text: reasoning_text
        as: SERVER
        fixture: { status: 400, body: '{\"error\": {\"type\": \"invalid_request_error\", \"message\": \"no reasoning_text\"}}' }
```

## Codes and what happens

What happens is what the official executor does under a policy that does not say otherwise, when the provider does not
say what is to be done.

";

const NOTATION: &str = "\
Codes, types and finish reasons are compared without case and separators: `rate_limit_exceeded` is `RateLimitExceeded`
too. A star at the end stands for any rest.

Wording is matched by whole words; case and separators do not matter, and a name in camel case counts as one word and as
several. `a|b` is a choice, `x?` may be missing, `~x` is a part of a word, `#` a word that begins with a digit, `*8` up to
eight words of anything.

";

/// Writes the page.
pub fn document() -> String {
    let mut page = OPENING.to_owned();
    // Writing to a string cannot fail.
    let _ = codes(&mut page)
        .and_then(|()| rows(&mut page))
        .and_then(|()| hints(&mut page))
        .and_then(|()| limits(&mut page));
    page
}

fn codes(page: &mut String) -> std::fmt::Result {
    writeln!(page, "| code | default action |\n|---|---|")?;
    for code in FailureCode::SELECTABLE {
        let most = if is_retried(code) { format!(", at most {DEFAULT_MAX_RETRIES} times") } else { String::new() };
        writeln!(page, "| `{code}` | {}{most} |", action(code))?;
    }
    writeln!(page, "| `ABORTED` | the turn was cancelled; nothing is retried |")?;
    writeln!(page, "| `NO_ROUTE` | ends the turn: no provider has the name |")?;
    writeln!(page, "| `UNKNOWN` | ends the turn: a fault of the program |")
}

fn is_retried(code: FailureCode) -> bool {
    DEFAULT_RETRYABLE_CODES.contains(&code.as_str())
}

fn action(code: FailureCode) -> &'static str {
    if is_retried(code) { "retried" } else { "ends the turn" }
}

fn rows(page: &mut String) -> std::fmt::Result {
    write!(page, "\n## Rows\n\n{NOTATION}")?;
    writeln!(page, "| row | status | shape | code | default action |\n|---|---|---|---|---|")?;
    for row in TABLE {
        let (status, shape, action) = (statuses(&row.scope), shape(row), action(row.code));
        writeln!(page, "| `{}` | {status} | {shape} | `{}` | {action} |", row.id, row.code)?;
    }
    Ok(())
}

fn statuses(scope: &Scope) -> String {
    let none = scope.none.then(|| "none".to_owned());
    if scope.ranges.contains(&(0, u16::MAX)) {
        return "any, none".to_owned();
    }
    let ranges = scope.ranges.iter().map(|(from, to)| match (*from, *to) {
        (from, to) if from == to => from.to_string(),
        (0, to) => format!("up to {to}"),
        (from, u16::MAX) => format!("{from} and above"),
        (from, to) => format!("{from}–{to}"),
    });
    ranges.chain(none).collect::<Vec<_>>().join(", ")
}

fn shape(row: &Row) -> String {
    // A bar would end the cell of a table.
    let listed = |items: &[&str]| {
        let items: Vec<String> = items.iter().map(|item| format!("`{}`", item.replace('|', "\\|"))).collect();
        items.join(", ")
    };
    match &row.on {
        On::Status => "whatever is said".to_owned(),
        On::Wire(kinds) => {
            let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
            format!("the connection failed: {}", kinds.join(", "))
        }
        On::Stream(kinds) => {
            let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
            format!("the answer {}", kinds.join("; "))
        }
        On::TooLarge => "the request itself exceeds the limit that the error names".to_owned(),
        On::Code(names) => format!("code or type {}", listed(names)),
        On::Finish(names) => format!("finish reason {}", listed(names)),
        On::AnyFinish => "any other finish reason that is no normal end".to_owned(),
        On::Text(patterns) => format!("wording {}", listed(patterns)),
        On::Anything => "an error that says anything else".to_owned(),
        On::Reported => "an error that says nothing".to_owned(),
    }
}

fn hints(page: &mut String) -> std::fmt::Result {
    page.push_str(
        "
## What the provider asks for

### How long to wait

The first of these that is usable, in this order: the header `retry-after-ms`; `retry-after` in seconds, with a fraction
if need be, or as a date; a `RetryInfo` detail of the body (`\"retryDelay\": \"45.8s\"`); a body field whose unit is known
(`retry_after_ms`, `retry_after`, `resets_in_seconds`, `resets_at`, …); and, for a provider with `textHints: true`, the
message itself, or a body of plain text (`try again in 17 seconds`). A number above 10⁹ is a point in time, in seconds since 1970, or above 10¹² in
milliseconds. A point in time is measured against the response's `Date`, unless it carries an `Age`.

Zero, the past and nonsense are no wait. What was received is kept in `evidence.hint` either way, with what the serving
policy makes of it: `adopted`, `over-cap` (longer than `backoff.maxDelayMs`: normal mode ends the turn, always mode waits
by its own backoff) or `ignored`.

### Whether to retry

The response header `x-should-retry`, `true` or `false`, says what to do and not what failed: it never changes the code,
and is kept beside it in `evidence.shouldRetry`. Under `mode: normal`, a failure with `false` is left alone as if the
policy did not list its code, and one with `true` is retried whatever its code, within `maxRetries`. Only `AUTH`, `QUOTA`
and `CONTEXT_OVERFLOW` are not retried for being asked to: a credential, a balance and a size stay what they are. Under
`mode: always` the word changes nothing. `evidence.shouldRetryUse` says what the serving policy makes of it: `obeyed` or
`ignored`.
",
    );
    Ok(())
}

fn limits(page: &mut String) -> std::fmt::Result {
    let defaults = Limits::default();
    let total = defaults.total.map_or_else(|| "none".to_owned(), |total| format!("{} ms", total.as_millis()));
    write!(
        page,
        "
## Limits of time

Each can be set for a provider under `limits:`, and for one of its models under `models:`, where it goes before the
provider's. One that passes gives `TIMEOUT`, and `evidence.limit` names it.

| key | limit | default | what it bounds |
|---|---|---|---|
| `connectMs` | `connect` | {} ms | name, connection and TLS |
| `firstByteMs` | `first-byte` | {} ms | from the start of the call to the response's head |
| `firstContentMs` | `first-content` | {} ms | from the head to the first content |
| `contentMs` | `content` | {} ms | between two pieces of content, reasoning included |
| `idleMs` | `idle` | {} ms | between two reads of the body; comments and pings count here, and only here |
| `totalMs` | `total` | {total} | the whole call; 0 is none |
",
        defaults.connect.as_millis(),
        defaults.first_byte.as_millis(),
        defaults.first_content.as_millis(),
        defaults.content.as_millis(),
        defaults.idle.as_millis(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_on_failures_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/failures.md");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::create_dir_all(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs")).unwrap();
            std::fs::write(path, document()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap_or_default().replace("\r\n", "\n");
        assert!(page == document(), "docs/failures.md is not current; run this test with UPDATE_DOCS=1");
    }

    #[test]
    fn every_row_is_on_the_page_in_its_order() {
        let page = document();
        let places: Vec<_> = TABLE.iter().map(|row| page.find(&format!("| `{}` |", row.id)).unwrap()).collect();
        assert!(places.is_sorted());
    }
}
