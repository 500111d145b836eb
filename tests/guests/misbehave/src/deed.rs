//! What the guest can be told to do.

use serde_json::Value;

/// One deed, named in the configuration by its kebab-case name. `ms` and `text` are further keys.
#[derive(Clone, Debug, PartialEq)]
pub enum Deed {
    /// Computes for ever.
    Spin,
    /// Allocates, and touches, for ever.
    Grow,
    /// Panics with `text` (default `told to panic`).
    Panic(String),
    /// Executes `unreachable`, without a word.
    Trap,
    /// Recurses until the stack is used up.
    DeepRecursion,
    /// Appends small notes for ever.
    AppendForever,
    /// Appends one note of about a mebibyte.
    AppendHuge,
    /// Appends a note whose kind and JSON are both malformed, and returns the refusal as its error.
    BadNote,
    /// Appends a retry that numbers itself 7 and whose id is empty, and returns the refusal as its error.
    BadRetry,
    /// Appends one good note of kind `test` with `text` as its JSON string, then returns what `next` says.
    Note(String),
    /// Logs for ever.
    LogForever,
    /// Logs `text` once at each level, then returns what `next` says.
    Log(String),
    /// Sleeps for a time that is no time.
    SleepNan,
    /// Returns the error `text` (default `told to fail`).
    Error(String),
    /// Returns what `next` says.
    Next,
    /// Calls `next` twice, and returns an error unless both answers are equal.
    NextTwice,
    /// Asks `next`, then panics.
    NextThenPanic,
    /// Returns `unhandled` without asking anyone.
    Unhandled,
    /// Returns `retry` at once, without a record.
    Retry,
    /// Sleeps `ms`, then returns what `next` says; when the sleep is interrupted, `unhandled`.
    Sleep(f64),
    /// Sleeps `ms` (default 1,000) again and again, whatever it is told.
    IgnoreInterruption(f64),
    /// Appends a retry with a delay of `ms` (default 60,000), then panics.
    ScheduleThenPanic(f64),
    /// Appends a retry with a delay of `ms`, sleeps, appends the start, returns `retry`. Carries on a pending wait.
    Schedule(f64),
    /// Returns the error `reached` when it is asked at all: a chain should not have come here.
    Unreachable,
}

impl Deed {
    /// Reads `{"do": …}`. Errors: a sentence that says what is wrong.
    pub fn parse(json: &str) -> Result<Self, String> {
        let config: Value =
            serde_json::from_str(json).map_err(|error| format!("The configuration is not JSON: {error}."))?;
        let text = |default: &str| config["text"].as_str().unwrap_or(default).to_owned();
        let ms = |default: f64| config["ms"].as_f64().unwrap_or(default);
        Ok(match config["do"].as_str().ok_or("The configuration needs the key `do`.")? {
            "spin" => Deed::Spin,
            "grow" => Deed::Grow,
            "panic" => Deed::Panic(text("told to panic")),
            "trap" => Deed::Trap,
            "deep-recursion" => Deed::DeepRecursion,
            "append-forever" => Deed::AppendForever,
            "append-huge" => Deed::AppendHuge,
            "bad-note" => Deed::BadNote,
            "bad-retry" => Deed::BadRetry,
            "note" => Deed::Note(text("a note")),
            "log-forever" => Deed::LogForever,
            "log" => Deed::Log(text("a line")),
            "sleep-nan" => Deed::SleepNan,
            "error" => Deed::Error(text("told to fail")),
            "next" => Deed::Next,
            "next-twice" => Deed::NextTwice,
            "next-then-panic" => Deed::NextThenPanic,
            "unhandled" => Deed::Unhandled,
            "retry" => Deed::Retry,
            "sleep" => Deed::Sleep(ms(1_000.0)),
            "ignore-interruption" => Deed::IgnoreInterruption(ms(1_000.0)),
            "schedule-then-panic" => Deed::ScheduleThenPanic(ms(60_000.0)),
            "schedule" => Deed::Schedule(ms(1_000.0)),
            "unreachable" => Deed::Unreachable,
            other => return Err(format!("There is no deed {other:?}.")),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deed_is_read_with_its_further_keys() {
        assert_eq!(Deed::parse(r#"{"do": "sleep", "ms": 1.5}"#), Ok(Deed::Sleep(1.5)));
        assert_eq!(Deed::parse(r#"{"do": "panic"}"#), Ok(Deed::Panic("told to panic".into())));
        assert_eq!(Deed::parse(r#"{"do": "error", "text": "no"}"#), Ok(Deed::Error("no".into())));
    }

    #[test]
    fn an_unknown_or_missing_deed_is_an_error() {
        assert!(Deed::parse(r#"{"do": "dance"}"#).unwrap_err().contains("dance"));
        assert!(Deed::parse("{}").unwrap_err().contains("`do`"));
        assert!(Deed::parse("{").unwrap_err().contains("not JSON"));
    }
}
