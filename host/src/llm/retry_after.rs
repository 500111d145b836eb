//! How long a provider asked to wait.
//!
//! A pure reading of what a failed response carried: it owns no clock, and it caps nothing, because what to do about
//! a long hint is a decision of an executor. Called by the adapters.

use super::failure::Hint;
use serde_json::Value;
use std::time::{SystemTime, UNIX_EPOCH};

/// Above this a number is no wait but a point in time, in seconds since 1970.
const EPOCH_SECONDS_ABOVE: f64 = 1e9;

/// Above this the point in time is in milliseconds.
const EPOCH_MILLIS_ABOVE: f64 = 1e12;

/// The header values that bear on a hint, as received.
#[derive(Clone, Copy, Debug, Default)]
pub struct HintHeaders<'a> {
    pub retry_after_ms: Option<&'a str>,
    pub retry_after: Option<&'a str>,
    pub date: Option<&'a str>,
    /// Present when a cache stored the response; its `Date` is then old.
    pub age: Option<&'a str>,
}

/// Where a hint may stand.
#[derive(Clone, Copy, Debug, Default)]
pub struct HintSources<'a> {
    pub headers: HintHeaders<'a>,
    /// The body, where it is JSON.
    pub body: Option<&'a Value>,
    /// The provider's message; only given where the user wants prose to be read.
    pub message: Option<&'a str>,
}

/// The wait that a response asks for.
///
/// In this order, the first that is usable: `retry-after-ms`; `retry-after`, which holds seconds (fractions allowed)
/// or a date; a `RetryInfo` detail of the body, or one of a few body fields whose unit is known; and, if given, the
/// message. A point in time is measured against the response's own `Date`, so that a wrong local clock does no harm;
/// without a `Date` that can be trusted, against `now_wall_ms`. Zero, a negative or infinite value, the past, and
/// nonsense are no wait: if nothing usable is found, the first such thing is returned without a wait and with the
/// reason.
pub fn read(sources: &HintSources<'_>, now_wall_ms: u64) -> Option<Hint> {
    let headers = &sources.headers;
    let now = trusted_date_ms(headers).unwrap_or(now_wall_ms as f64);
    let mut found = Vec::new();
    if let Some(raw) = headers.retry_after_ms {
        let wait = decimal(raw).ok_or(NO_NUMBER).and_then(|value| number_to_wait(value, 1.0, now));
        found.push(hint("retry-after-ms", raw, wait));
    }
    if let Some(raw) = headers.retry_after {
        let text = raw.trim();
        let wait = match decimal(text) {
            Some(value) => number_to_wait(value, 1000.0, now),
            None => http_date_ms(text).ok_or("it is neither seconds nor a date").and_then(|at| point_to_wait(at, now)),
        };
        found.push(hint("retry-after", raw, wait));
    }
    if let Some(body) = sources.body {
        body_hints(body, now, &mut found);
    }
    let usable = found.iter().position(|hint| hint.ms.is_some());
    match (usable, found.is_empty()) {
        (Some(position), _) => Some(found.swap_remove(position)),
        (None, _) => sources.message.and_then(text_hint).or_else(|| found.into_iter().next()),
    }
}

const NO_NUMBER: &str = "it is no number of milliseconds";

fn hint(source: &str, raw: &str, wait: Result<f64, &str>) -> Hint {
    let raw = raw.chars().take(256).collect();
    let why = wait.err().map(str::to_owned);
    Hint { source: source.to_owned(), raw, ms: wait.ok(), r#use: None, why }
}

/// Body fields that hold a wait or a point in time, with the factor that turns their unit into milliseconds.
const BODY_FIELDS: [(&str, f64); 8] = [
    ("retry_after_ms", 1.0),
    ("retry_after", 1000.0),
    ("retry_after_seconds", 1000.0),
    ("retryAfter", 1000.0),
    ("resets_in_ms", 1.0),
    ("resets_in_seconds", 1000.0),
    ("resets_at", 1000.0),
    ("reset_at", 1000.0),
];

fn body_hints(body: &Value, now: f64, found: &mut Vec<Hint>) {
    let body = body.as_array().and_then(|items| items.first()).unwrap_or(body);
    let error = body.get("error").or_else(|| body.pointer("/response/error")).filter(|error| error.is_object());
    let objects = [error, Some(body)];
    for detail in objects.iter().flatten().filter_map(|object| object.get("details")?.as_array()).flatten() {
        let Some(delay) = detail.get("retryDelay") else { continue };
        let seconds = match delay {
            Value::String(text) => text.trim().strip_suffix('s').and_then(decimal),
            Value::Object(_) => {
                let part = |key: &str| delay.get(key).map_or(Some(0.0), number);
                part("seconds").zip(part("nanos")).map(|(seconds, nanos)| seconds + nanos / 1e9)
            }
            _ => None,
        };
        let wait = seconds.ok_or("it is no duration").and_then(|seconds| usable(seconds * 1000.0));
        found.push(hint("RetryInfo", &shown(delay), wait));
    }
    for (object, (field, factor)) in objects.iter().flatten().flat_map(|o| BODY_FIELDS.iter().map(move |f| (o, f))) {
        let Some(value) = object.get(*field).filter(|value| value.is_number() || value.is_string()) else { continue };
        let wait = number(value).ok_or("it is no number").and_then(|number| number_to_wait(number, *factor, now));
        // A small number is no point in time, whatever the field is called.
        let wait = if field.ends_with("_at") && number(value).is_none_or(|number| number <= EPOCH_SECONDS_ABOVE) {
            Err("it is no point in time")
        } else {
            wait
        };
        found.push(hint(field, &shown(value), wait));
    }
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str().and_then(decimal))
}

/// What a wait in prose follows.
const TEXT_LEADS: [&str; 6] = ["again in", "again after", "retry in", "retry after", "retry-after", "available in"];

/// What may stand between those words and the wait.
const TEXT_FILLERS: [&str; 5] = ["about", "approximately", "another", "at least", "~"];

/// Units in which prose gives a wait, in milliseconds.
const TEXT_UNITS: [(&[&str], f64); 5] = [
    (&["ms", "msec", "msecs", "millisecond", "milliseconds"], 1.0),
    (&["s", "sec", "secs", "second", "seconds"], 1000.0),
    (&["m", "min", "mins", "minute", "minutes"], 60_000.0),
    (&["h", "hr", "hrs", "hour", "hours"], 3_600_000.0),
    (&["d", "day", "days"], 86_400_000.0),
];

/// A wait in prose: the first that follows one of the leads, such as `17 seconds`, `6.19s`, `1m30.5s` or `1 minute and
/// 2 seconds`.
fn text_hint(message: &str) -> Option<Hint> {
    let lower = message.to_ascii_lowercase();
    let leads = TEXT_LEADS.iter().flat_map(|lead| lower.match_indices(lead));
    let mut starts: Vec<usize> = leads.map(|(at, lead)| at + lead.len()).collect();
    starts.sort_unstable();
    starts.into_iter().find_map(|start| {
        let text = after_fillers(&lower[start..]);
        let (ms, length) = spoken_wait(text)?;
        Some(hint("text", &text[..length], usable(ms)))
    })
}

fn after_fillers(text: &str) -> &str {
    let text = text.trim_start_matches([' ', ':', '=']);
    let rest = TEXT_FILLERS.iter().find_map(|filler| text.strip_prefix(filler));
    rest.map_or(text, |rest| rest.trim_start_matches(' '))
}

/// The wait at the start of a text, the sum of its parts, and how much of the text it is.
fn spoken_wait(text: &str) -> Option<(f64, usize)> {
    let (first, mut length) = spoken_part(text)?;
    let mut ms = first;
    loop {
        let rest = &text[length..];
        let next = rest.trim_start_matches([' ', ',']);
        let next = next.strip_prefix("and ").unwrap_or(next).trim_start_matches(' ');
        let Some((part, part_length)) = spoken_part(next) else { return Some((ms, length)) };
        ms += part;
        length = text.len() - next.len() + part_length;
    }
}

/// One number and its unit.
fn spoken_part(text: &str) -> Option<(f64, usize)> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let value = decimal(text[..digits].trim_end_matches('.')).filter(|_| digits > 0)?;
    let after = text[digits..].trim_start_matches([' ', '-']);
    let word = after.len() - after.trim_start_matches(|c: char| c.is_ascii_alphabetic()).len();
    let (_, unit) = TEXT_UNITS.iter().find(|(names, _)| names.contains(&&after[..word]))?;
    Some((value * unit, text.len() - after.len() + word))
}

/// Digits with at most one point. Rust's own parser also takes `inf`, `nan`, signs and exponents, which no header has.
fn decimal(text: &str) -> Option<f64> {
    let text = text.trim();
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if plain { text.parse().ok() } else { None }
}

fn number_to_wait(value: f64, factor: f64, now: f64) -> Result<f64, &'static str> {
    if value > EPOCH_MILLIS_ABOVE {
        point_to_wait(value, now)
    } else if value > EPOCH_SECONDS_ABOVE {
        point_to_wait(value * 1000.0, now)
    } else {
        usable(value * factor)
    }
}

fn point_to_wait(at: f64, now: f64) -> Result<f64, &'static str> {
    usable(at - now).map_err(|_| "it names a point in time that has passed")
}

/// Rounds up to a whole millisecond, after taking off the noise of a decimal fraction times 1000.
fn usable(ms: f64) -> Result<f64, &'static str> {
    let whole = (ms - 1e-6).ceil();
    if ms.is_finite() && ms > 0.0 { Ok(whole.max(1.0)) } else { Err("it is not above zero") }
}

fn trusted_date_ms(headers: &HintHeaders<'_>) -> Option<f64> {
    if headers.age.is_some() {
        return None;
    }
    http_date_ms(headers.date?.trim())
}

fn http_date_ms(text: &str) -> Option<f64> {
    let time: SystemTime = httpdate::parse_http_date(text).ok()?;
    Some(time.duration_since(UNIX_EPOCH).ok()?.as_millis() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    /// 2026-06-01 10:00:00 UTC.
    const TEN_O_CLOCK: u64 = 1_780_308_000_000;

    fn hint_ms(headers: &HintHeaders<'_>, now: u64) -> Option<f64> {
        read(&HintSources { headers: *headers, ..HintSources::default() }, now).and_then(|hint| hint.ms)
    }

    fn body_hint_ms(body: &Value, now: u64) -> Option<f64> {
        read(&HintSources { body: Some(body), ..HintSources::default() }, now).and_then(|hint| hint.ms)
    }

    fn text_hint_ms(message: &str) -> Option<f64> {
        read(&HintSources { message: Some(message), ..HintSources::default() }, 0).and_then(|hint| hint.ms)
    }

    fn seconds(value: &str) -> Option<f64> {
        hint_ms(&HintHeaders { retry_after: Some(value), ..HintHeaders::default() }, TEN_O_CLOCK)
    }

    fn millis(value: &str) -> Option<f64> {
        hint_ms(&HintHeaders { retry_after_ms: Some(value), ..HintHeaders::default() }, TEN_O_CLOCK)
    }

    #[test]
    fn seconds_may_be_whole_or_have_a_fraction_and_round_up() {
        for (value, ms) in [
            ("1", 1000.0),
            ("42", 42_000.0),
            (" 7 ", 7000.0),
            ("1.5", 1500.0),
            ("0.001", 1.0),
            ("0.0001", 1.0),
            ("1.0001", 1001.0),
            ("2.1", 2100.0),
            ("4.35", 4350.0),
            ("1000000000", 1_000_000_000_000.0),
        ] {
            assert_eq!(seconds(value), Some(ms), "{value}");
        }
    }

    #[test]
    fn zero_the_past_and_nonsense_are_no_hint() {
        for value in [
            "0",
            "0.0",
            "00",
            "-1",
            "-100",
            "nan",
            "NaN",
            "inf",
            "Infinity",
            "-inf",
            "",
            " ",
            ".",
            "1.2.3",
            "1e3",
            "+5",
            "soon",
            "Wednesday-ish",
            "5s",
            "120, 120",
            "0x10",
            "Wed, 21 Oct 2015 07:28:00 GMT",
            "1433160000",
        ] {
            assert_eq!(seconds(value), None, "{value:?}");
        }
        for value in ["0", "-5", "nan", "inf", "abc", "Mon, 01 Jun 2026 10:00:30 GMT"] {
            assert_eq!(millis(value), None, "{value:?}");
        }
    }

    #[test]
    fn milliseconds_go_before_seconds_unless_they_are_unusable() {
        let both = |ms, s| {
            hint_ms(
                &HintHeaders { retry_after_ms: Some(ms), retry_after: Some(s), ..HintHeaders::default() },
                TEN_O_CLOCK,
            )
        };
        assert_eq!(both("250", "9"), Some(250.0));
        assert_eq!(both("250.5", "9"), Some(251.0));
        assert_eq!(both("nonsense", "9"), Some(9000.0));
        assert_eq!(both("0", "9"), Some(9000.0));
    }

    #[test]
    fn a_large_number_is_a_point_in_time() {
        assert_eq!(seconds("1780308030"), Some(30_000.0));
        assert_eq!(seconds("1780308030500"), Some(30_500.0));
        assert_eq!(millis("1780308030500"), Some(30_500.0));
        assert_eq!(millis("1780308030"), Some(30_000.0));
        assert_eq!(seconds("1780308000"), None);
    }

    #[test]
    fn all_three_date_formats_are_read() {
        for date in ["Mon, 01 Jun 2026 10:00:30 GMT", "Monday, 01-Jun-26 10:00:30 GMT", "Mon Jun  1 10:00:30 2026"] {
            assert_eq!(seconds(date), Some(30_000.0), "{date}");
        }
    }

    #[test]
    fn a_date_is_measured_against_the_response_and_not_the_local_clock() {
        let headers = HintHeaders {
            retry_after: Some("Mon, 01 Jun 2026 10:00:30 GMT"),
            date: Some("Mon, 01 Jun 2026 10:00:00 GMT"),
            ..HintHeaders::default()
        };
        for off_by in [-300_000_i64, 0, 300_000] {
            assert_eq!(hint_ms(&headers, TEN_O_CLOCK.saturating_add_signed(off_by)), Some(30_000.0), "{off_by}");
        }
    }

    #[test]
    fn the_date_of_a_cached_or_unreadable_response_is_not_trusted() {
        let retry_after = Some("Mon, 01 Jun 2026 10:00:30 GMT");
        let cached = HintHeaders {
            retry_after,
            date: Some("Mon, 01 Jun 2026 09:53:20 GMT"),
            age: Some("400"),
            ..HintHeaders::default()
        };
        assert_eq!(hint_ms(&cached, TEN_O_CLOCK), Some(30_000.0));
        assert_eq!(hint_ms(&cached, TEN_O_CLOCK + 300_000), None);
        let unreadable = HintHeaders { retry_after, date: Some("yesterday"), ..HintHeaders::default() };
        assert_eq!(hint_ms(&unreadable, TEN_O_CLOCK), Some(30_000.0));
    }

    #[test]
    fn a_retry_info_detail_and_known_fields_are_read_in_their_units() {
        let info = json!({"error": {"code": 429, "details": [{"@type": "x"}, {"retryDelay": "45.837906927s"}]}});
        assert_eq!(body_hint_ms(&info, TEN_O_CLOCK), Some(45_838.0));
        assert_eq!(body_hint_ms(&json!({"error": {"resets_in_seconds": 90}}), TEN_O_CLOCK), Some(90_000.0));
        assert_eq!(body_hint_ms(&json!({"error": {"retry_after_ms": 90}}), TEN_O_CLOCK), Some(90.0));
        assert_eq!(body_hint_ms(&json!({"retry_after": "2"}), TEN_O_CLOCK), Some(2000.0));
    }

    #[test]
    fn a_body_without_a_usable_field_has_no_hint() {
        for body in [
            json!({"error": {"message": "Please try again in 17 seconds."}}),
            json!({"error": {"retry_after": 0}}),
            json!({"error": {"retry_after": -4}}),
            json!({"error": {"details": [{"retryDelay": "soon"}, {"retryDelay": 5}, 7]}}),
            json!("text"),
            json!(null),
        ] {
            assert_eq!(body_hint_ms(&body, TEN_O_CLOCK), None, "{body}");
        }
    }

    #[test]
    fn prose_is_read_in_its_units_when_it_is_given() {
        for (message, ms) in [
            ("Rate limit reached. Please try again in 17 seconds.", 17_000.0),
            ("Please try again in 1.898s. Visit the docs", 1898.0),
            ("please retry in 45.837906927s.", 45_838.0),
            ("Please try again in 7m12s.", 432_000.0),
            ("try again in 250ms", 250.0),
            ("Retry after 2 minutes", 120_000.0),
            ("try again in 2 hours", 7_200_000.0),
            ("try again in 1 hour", 3_600_000.0),
            ("try again in 2 mins", 120_000.0),
            ("try again in 2 min.", 120_000.0),
            ("try again in 2 secs", 2000.0),
            ("try again in 2 days", 172_800_000.0),
            ("Retry after: 3 seconds", 3000.0),
            ("retry-after=3s", 3000.0),
            ("try again in 1 minute and 2 seconds", 62_000.0),
            ("try again in 1h 2m 3s", 3_723_000.0),
            ("try again in 1 hour, 2 minutes, and 3 seconds", 3_723_000.0),
            ("try again in about 30 seconds", 30_000.0),
            ("Request was throttled. Expected available in 3 seconds.", 3000.0),
            ("try again in a while, or try again in 5s", 5000.0),
            ("try again in 5 minutes, 30 requests are left", 300_000.0),
        ] {
            assert_eq!(text_hint_ms(message), Some(ms), "{message}");
        }
        for message in [
            "try again in a while",
            "try again in 5 fortnights",
            "try again in 0s",
            "17 seconds",
            "again in ..s",
            "try again in -3 seconds",
            "Retry after 3",
        ] {
            assert_eq!(text_hint_ms(message), None, "{message}");
        }
    }

    #[test]
    fn a_structured_hint_goes_before_prose() {
        let body = json!({"error": {"details": [{"retryDelay": {"seconds": "3", "nanos": 500_000_000}}]}});
        let sources = HintSources { body: Some(&body), message: Some("retry in 9s"), ..HintSources::default() };
        let hint = read(&sources, TEN_O_CLOCK).unwrap();
        assert_eq!((hint.source.as_str(), hint.ms), ("RetryInfo", Some(3500.0)));
    }

    #[test]
    fn what_was_received_is_kept_with_the_reason_why_it_is_no_wait() {
        for (value, why) in [
            ("Wednesday-ish", "it is neither seconds nor a date"),
            ("0", "it is not above zero"),
            ("Wed, 21 Oct 2015 07:28:00 GMT", "it names a point in time that has passed"),
        ] {
            let headers = HintHeaders { retry_after: Some(value), ..HintHeaders::default() };
            let hint = read(&HintSources { headers, ..HintSources::default() }, TEN_O_CLOCK).unwrap();
            assert_eq!((hint.source.as_str(), hint.raw.as_str(), hint.ms), ("retry-after", value, None));
            assert_eq!(hint.why.as_deref(), Some(why));
        }
        assert_eq!(read(&HintSources::default(), TEN_O_CLOCK), None);
    }

    #[test]
    fn a_reset_is_a_point_in_time_and_never_a_wait() {
        assert_eq!(body_hint_ms(&json!({"error": {"resets_at": 1_780_308_090}}), TEN_O_CLOCK), Some(90_000.0));
        assert_eq!(body_hint_ms(&json!({"error": {"resets_at": 90}}), TEN_O_CLOCK), None);
    }

    proptest! {
        #[test]
        fn any_prose_is_a_finite_hint_or_none(message in "\\PC{0,20}(again in |retry in |retry after: )([0-9.]{0,30} ?(mins|s|[a-zé]{0,8})(, | and )?){0,3}") {
            if let Some(ms) = text_hint_ms(&message) {
                prop_assert!(ms.is_finite() && ms >= 1.0);
            }
        }

        #[test]
        fn whatever_a_server_sends_a_hint_is_finite_and_above_zero(a in ".{0,40}", b in ".{0,40}", c in ".{0,40}", now: u64) {
            let headers = HintHeaders { retry_after_ms: Some(&a), retry_after: Some(&b), date: Some(&c), age: None };
            if let Some(ms) = hint_ms(&headers, now) {
                prop_assert!(ms.is_finite() && ms >= 1.0);
            }
        }

        #[test]
        fn any_number_is_a_finite_hint_or_none(value: f64, now: u64) {
            if let Some(ms) = seconds(&value.to_string()).or(hint_ms(&HintHeaders { retry_after_ms: Some(&format!("{value:e}")), ..HintHeaders::default() }, now)) {
                prop_assert!(ms.is_finite() && ms >= 1.0);
            }
        }
    }
}
