//! How long a provider asked to wait.
//!
//! A pure reading of what a failed response carried: it owns no clock, and it caps nothing, because what to do about
//! a long hint is a decision of an executor. Called by the adapters.

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

/// The wait that the headers ask for, in whole milliseconds (rounded up), finite and above 0.
///
/// `retry-after-ms` goes before `retry-after`, which holds seconds (fractions allowed) or a date. A point in time is
/// measured against the response's own `Date`, so that a wrong local clock does no harm; without a `Date` that can be
/// trusted, against `now_wall_ms`. Zero, a negative or infinite value, the past, and nonsense are no hint.
pub fn hint_ms(headers: &HintHeaders<'_>, now_wall_ms: u64) -> Option<f64> {
    let now = trusted_date_ms(headers).unwrap_or(now_wall_ms as f64);
    let millis = headers.retry_after_ms.and_then(decimal).and_then(|value| number_to_wait(value, 1.0, now));
    millis.or_else(|| {
        let text = headers.retry_after?.trim();
        match decimal(text) {
            Some(value) => number_to_wait(value, 1000.0, now),
            None => usable(http_date_ms(text)? - now),
        }
    })
}

/// Body fields that hold a wait, with the factor that turns their unit into milliseconds.
const BODY_FIELDS: [(&str, f64); 4] =
    [("retry_after_ms", 1.0), ("retry_after", 1000.0), ("retry_after_seconds", 1000.0), ("resets_in_seconds", 1000.0)];

/// The wait that a structured error body asks for, in whole milliseconds: a `RetryInfo` detail (`"retryDelay":
/// "45.8s"`), or one of a few fields whose unit is known. Headers go before it; prose is never read.
pub fn body_hint_ms(body: &Value, now_wall_ms: u64) -> Option<f64> {
    let error = body.get("error").filter(|error| error.is_object()).unwrap_or(body);
    let details = error.get("details").and_then(Value::as_array).into_iter().flatten();
    let mut delays = details.filter_map(|detail| detail.get("retryDelay")?.as_str()?.trim().strip_suffix('s'));
    if let Some(ms) = delays.find_map(decimal).and_then(|seconds| usable(seconds * 1000.0)) {
        return Some(ms);
    }
    BODY_FIELDS.iter().find_map(|(field, factor)| {
        let value = error.get(field)?;
        let number = value.as_f64().or_else(|| value.as_str().and_then(decimal))?;
        number_to_wait(number, *factor, now_wall_ms as f64)
    })
}

/// Digits with at most one point. Rust's own parser also takes `inf`, `nan`, signs and exponents, which no header has.
fn decimal(text: &str) -> Option<f64> {
    let text = text.trim();
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    if plain { text.parse().ok() } else { None }
}

fn number_to_wait(value: f64, factor: f64, now: f64) -> Option<f64> {
    if value > EPOCH_MILLIS_ABOVE {
        usable(value - now)
    } else if value > EPOCH_SECONDS_ABOVE {
        usable(value * 1000.0 - now)
    } else {
        usable(value * factor)
    }
}

/// Rounds up to a whole millisecond, after taking off the noise of a decimal fraction times 1000.
fn usable(ms: f64) -> Option<f64> {
    let whole = (ms - 1e-6).ceil();
    (ms.is_finite() && ms > 0.0).then_some(whole.max(1.0))
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

    proptest! {
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
