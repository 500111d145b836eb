//! The canonical policy key: one text for all policies of equal behaviour, byte for byte what ECMAScript's
//! `JSON.stringify` makes of the array, so that journals of either origin group alike.

use crate::data::{Backoff, Policy};

/// `["normal",maxRetries,[codes sorted],initial,max,jitter]` or `["always",initial,max,jitter]`.
pub fn policy_key(policy: &Policy) -> String {
    match policy {
        Policy::Normal { max_retries, retryable_codes, backoff } => {
            let mut codes: Vec<&str> = retryable_codes.iter().map(String::as_str).collect();
            // ECMAScript sorts by UTF-16 units, which differs from Rust's order for some characters beyond U+D7FF.
            codes.sort_by(|a, b| a.encode_utf16().cmp(b.encode_utf16()));
            let codes: Vec<String> = codes.into_iter().map(quoted).collect();
            format!(r#"["normal",{max_retries},[{}],{}]"#, codes.join(","), numbers(backoff))
        }
        Policy::Always { backoff } => format!(r#"["always",{}]"#, numbers(backoff)),
    }
}

fn numbers(backoff: &Backoff) -> String {
    [backoff.initial_delay_ms, backoff.max_delay_ms, backoff.jitter_ratio].map(number).join(",")
}

fn number(value: f64) -> String {
    ryu_js::Buffer::new().format(value).to_owned()
}

fn quoted(text: &str) -> String {
    // The two escape alike: quotes, backslashes, control characters, and nothing beyond ASCII. A Rust string holds
    // no lone surrogate, the one case in which they could differ.
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(max_retries: u64, codes: &[&str], numbers: [f64; 3]) -> Policy {
        let retryable_codes = codes.iter().map(|code| (*code).to_owned()).collect();
        Policy::Normal { max_retries, retryable_codes, backoff: backoff(numbers) }
    }

    fn backoff([initial_delay_ms, max_delay_ms, jitter_ratio]: [f64; 3]) -> Backoff {
        Backoff { initial_delay_ms, max_delay_ms, jitter_ratio }
    }

    #[test]
    fn the_default_policies_have_the_documented_keys() {
        let codes = ["EMPTY_RESPONSE", "RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT"];
        assert_eq!(
            policy_key(&normal(5, &codes, [500.0, 10_000.0, 0.1])),
            r#"["normal",5,["EMPTY_RESPONSE","RATE_LIMIT","SERVER","TIMEOUT","TRANSPORT"],500,10000,0.1]"#
        );
        let always = Policy::Always { backoff: backoff([500.0, 10_000.0, 0.1]) };
        assert_eq!(policy_key(&always), r#"["always",500,10000,0.1]"#);
    }

    #[test]
    fn the_order_of_the_codes_does_not_matter() {
        let numbers = [200.0, 4_000.0, 0.0];
        let key = policy_key(&normal(3, &["SERVER", "RATE_LIMIT"], numbers));
        assert_eq!(key, r#"["normal",3,["RATE_LIMIT","SERVER"],200,4000,0]"#);
        assert_eq!(key, policy_key(&normal(3, &["RATE_LIMIT", "SERVER"], numbers)));
    }

    #[test]
    fn any_other_difference_makes_another_key() {
        let base = policy_key(&normal(3, &["SERVER"], [200.0, 4_000.0, 0.0]));
        for other in [
            normal(4, &["SERVER"], [200.0, 4_000.0, 0.0]),
            normal(3, &["SERVER", "AUTH"], [200.0, 4_000.0, 0.0]),
            normal(3, &["SERVER"], [201.0, 4_000.0, 0.0]),
            normal(3, &["SERVER"], [200.0, 4_001.0, 0.0]),
            normal(3, &["SERVER"], [200.0, 4_000.0, 0.5]),
        ] {
            assert_ne!(policy_key(&other), base);
        }
    }

    #[test]
    fn codes_are_sorted_by_utf16_units() {
        // U+1F600 is d83d de00 in UTF-16 and so comes before U+FF21, although its code point is greater.
        let key = policy_key(&normal(0, &["\u{ff21}", "\u{1f600}", "Z", "a"], [1.0, 1.0, 1.0]));
        assert_eq!(key, "[\"normal\",0,[\"Z\",\"a\",\"\u{1f600}\",\"\u{ff21}\"],1,1,1]");
    }

    #[test]
    fn codes_are_escaped_as_json_stringify_does() {
        let key = policy_key(&normal(0, &["a\"b\\c\n\u{8}\u{1f}\u{7f}é\u{2028}/"], [1.0, 1.0, 0.0]));
        assert_eq!(key, "[\"normal\",0,[\"a\\\"b\\\\c\\n\\b\\u001f\u{7f}é\u{2028}/\"],1,1,0]");
    }

    #[test]
    fn numbers_are_written_as_ecmascript_does() {
        for (value, text) in [
            (500.0, "500"),
            (0.1, "0.1"),
            (0.0, "0"),
            (1e21, "1e+21"),
            (1e-7, "1e-7"),
            (0.000_001, "0.000001"),
            (2_147_483_647.0, "2147483647"),
            (0.1 + 0.2, "0.30000000000000004"),
        ] {
            assert_eq!(number(value), text);
        }
        assert!(policy_key(&normal(9_007_199_254_740_991, &["X"], [1.0, 1.0, 0.0])).contains("9007199254740991"));
    }
}
