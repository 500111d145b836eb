//! Credentials, and keeping them out of everything that is written down.
//!
//! Adapters hold a [`Secret`] and pass every failure through a [`Redactor`] before anyone else sees it.

use crate::llm::{Failure, failure::MAX_KEPT_BODY};
use std::fmt;

const MARK: &str = "[redacted]";

/// A shorter value is not taken out of texts: it would be found in half of all words.
const SHORTEST_SECRET: usize = 4;

/// The longest message that is kept with a failure, in characters.
const LONGEST_MESSAGE: usize = 2000;

/// A credential. It is never printed, not even by `Debug`.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(value: impl Into<String>) -> Self {
        Secret(value.into())
    }

    /// The value itself, for the one place that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret([redacted])")
    }
}

/// Takes secrets out of texts: the known ones, and what looks like one.
#[derive(Clone, Default)]
pub(super) struct Redactor {
    known: Vec<String>,
}

impl Redactor {
    pub(super) fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Self {
        let mut known: Vec<String> =
            secrets.into_iter().map(str::trim).filter(|s| s.len() >= SHORTEST_SECRET).map(str::to_owned).collect();
        // The longest first, so that a secret which contains another leaves nothing behind.
        known.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        Redactor { known }
    }

    /// Cleans every text of a failure, and keeps the message printable and short.
    pub(super) fn clean(&self, failure: &mut Failure) {
        let message = self.text(&failure.message);
        // A provider's text must not steer a terminal.
        let printable = message.chars().filter(|c| !turns_text(*c)).map(|c| if breaks_line(c) { ' ' } else { c });
        failure.message = printable.take(LONGEST_MESSAGE).collect();
        let plain = |c: &char| !breaks_line(*c) && !turns_text(*c);
        let short = |text: &str| self.text(text).chars().filter(plain).take(256).collect::<String>();
        let code = failure.evidence.as_mut().and_then(|evidence| evidence.provider_code.as_mut());
        for text in [failure.request_id.as_mut(), code].into_iter().flatten() {
            *text = short(text);
        }
        if let Some(hint) = failure.evidence.as_mut().and_then(|evidence| evidence.hint.as_mut()) {
            hint.raw = short(&hint.raw);
        }
        if let Some(body) = failure.evidence.as_mut().and_then(|evidence| evidence.body.as_mut()) {
            *body = self.text(body);
            body.truncate(body.floor_char_boundary(MAX_KEPT_BODY));
        }
    }

    pub(super) fn text(&self, text: &str) -> String {
        let mut clean = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let length = self.known.iter().find_map(|secret| spelt_length(rest, secret));
            clean.push_str(if length.is_some() { MARK } else { &rest[..first.len_utf8()] });
            rest = &rest[length.unwrap_or(first.len_utf8())..];
        }
        without_tokens(&clean)
    }
}

/// Controls, and the separators of lines that are none.
fn breaks_line(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')
}

/// Marks that change the direction of the text after them, so that it reads as something else.
fn turns_text(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// How much of the text's start spells the secret, each character as it is or escaped. A text that ends within the
/// secret counts as well, because a body is cut at a length.
fn spelt_length(text: &str, secret: &str) -> Option<usize> {
    let (mut rest, mut left) = (text, secret.as_bytes());
    while !left.is_empty() {
        match spelt_first(rest, left) {
            Some((length, bytes)) => (rest, left) = (&rest[length..], &left[bytes..]),
            None => {
                let seen = secret.len() - left.len();
                return (seen >= SHORTEST_SECRET && is_cut(rest)).then_some(text.len());
            }
        }
    }
    Some(text.len() - rest.len())
}

/// How many bytes of the text spell how many of the secret: one character as it is, escaped as in JSON (however often),
/// as a numbered entity of HTML, or one byte as in a URL.
fn spelt_first(text: &str, secret: &[u8]) -> Option<(usize, usize)> {
    let number = |digits: &str, radix| {
        let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_alphanumeric());
        u32::from_str_radix(digits, radix).ok().filter(|_| plain)
    };
    let is = |sign: char, length: usize| {
        secret.starts_with(sign.encode_utf8(&mut [0; 4]).as_bytes()).then_some((length, sign.len_utf8()))
    };
    let first = text.chars().next()?;
    let escaped = match first {
        '%' => {
            let byte = text.get(1..3).and_then(|digits| number(digits, 16));
            byte.filter(|byte| u32::from(secret[0]) == *byte).map(|_| (3, 1))
        }
        '\\' => {
            let rest = text.trim_start_matches('\\');
            let slashes = text.len() - rest.len();
            let by_number = rest.strip_prefix('u').and_then(|rest| number(rest.get(..4)?, 16)).and_then(char::from_u32);
            let by_number = by_number.and_then(|sign| is(sign, slashes + 5));
            by_number.or_else(|| rest.chars().next().and_then(|sign| is(sign, slashes + sign.len_utf8())))
        }
        '&' => text.find(';').filter(|end| *end <= LONGEST_ENTITY).and_then(|end| {
            let digits = text[1..end].strip_prefix('#')?;
            let code = match digits.strip_prefix(['x', 'X']) {
                Some(digits) => number(digits, 16),
                None => number(digits, 10),
            };
            is(code.and_then(char::from_u32)?, end + 1)
        }),
        _ => None,
    };
    escaped.or_else(|| is(first, first.len_utf8()))
}

/// Whether a text ends here, perhaps within an escape.
fn is_cut(rest: &str) -> bool {
    match rest.chars().next() {
        None => true,
        Some('%') => rest.len() < 3,
        Some('\\') => {
            let rest = rest.trim_start_matches('\\');
            rest.is_empty() || (rest.starts_with('u') && rest.len() < 5)
        }
        Some('&') => rest.len() <= LONGEST_ENTITY && !rest.contains(';'),
        Some(_) => false,
    }
}

/// The longest numbered entity of HTML that a credential would need, `&#x10ffff;`, up to its end.
const LONGEST_ENTITY: usize = 9;

/// How credentials begin that nobody told us, and how long the whole is at least. A beginning that is also one of plain
/// words asks for more.
const OPENINGS: [(&str, usize); 40] = [
    ("sk-", 12),
    ("sk_", 12),
    ("pk-", 12),
    ("pk_live_", 16),
    ("pk_test_", 16),
    ("rk_", 12),
    ("key-", 12),
    ("gsk_", 12),
    ("xai-", 12),
    ("eyJ", 12),
    ("AIza", 12),
    ("ya29.", 12),
    ("AKIA", 16),
    ("ASIA", 16),
    ("ABSK", 20),
    ("bedrock-api-key-", 24),
    ("ghp_", 12),
    ("gho_", 12),
    ("ghu_", 12),
    ("ghs_", 12),
    ("ghr_", 12),
    ("github_pat_", 16),
    ("glpat-", 12),
    ("hf_", 20),
    ("xoxa-", 12),
    ("xoxb-", 12),
    ("xoxe-", 12),
    ("xoxp-", 12),
    ("xoxr-", 12),
    ("xoxs-", 12),
    ("xapp-", 12),
    ("nvapi-", 12),
    ("pplx-", 12),
    ("csk-", 12),
    ("r8_", 20),
    ("tgp_v1_", 16),
    ("dapi", 32),
    ("npm_", 24),
    ("lsv2_", 16),
    ("fw_", 20),
];

/// Takes out what looks like a credential though nobody knows it: what follows `Bearer`, and what begins as keys,
/// access tokens and JSON web tokens do, by itself or after an equals sign.
fn without_tokens(text: &str) -> String {
    let is_token = |c: char| c.is_ascii_alphanumeric() || "-_.~+/=*".contains(c);
    let mut clean = String::with_capacity(text.len());
    let mut rest = text;
    let mut after_bearer = false;
    while let Some(first) = rest.chars().next() {
        if !is_token(first) {
            after_bearer &= first == ' ';
            clean.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let end = rest.find(|c| !is_token(c)).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        let secret = if after_bearer && word.len() >= 8 { Some(0) } else { credential_start(word) };
        clean.push_str(&word[..secret.unwrap_or(word.len())]);
        if secret.is_some() {
            clean.push_str(MARK);
        }
        after_bearer = word.eq_ignore_ascii_case("bearer");
        rest = tail;
    }
    clean
}

/// Where in a word something begins that looks like a credential.
fn credential_start(word: &str) -> Option<usize> {
    let opens = |start: &usize| {
        let part = &word[*start..];
        OPENINGS.iter().any(|(opening, shortest)| part.len() >= *shortest && part.starts_with(opening))
    };
    std::iter::once(0).chain(word.match_indices('=').map(|(at, _)| at + 1)).find(opens)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::llm::{Evidence, FailureCode, Hint};
    use proptest::prelude::*;

    #[test]
    fn a_secret_does_not_print_itself() {
        assert!(!format!("{:?}", Secret::new("hunter2-hunter2")).contains("hunter2"));
    }

    #[test]
    fn known_secrets_and_what_looks_like_one_are_taken_out() {
        let redactor = Redactor::new(["hunter2-hunter2"]);
        for (text, clean) in [
            ("key hunter2-hunter2!", "key [redacted]!"),
            ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer [redacted]"),
            ("Incorrect API key provided: sk-abc***********xyz.", "Incorrect API key provided: [redacted]"),
            ("token eyJhbGciOiJIUzI1NiJ9.e30.abc here", "token [redacted] here"),
            ("the bearer of news", "the bearer of news"),
            ("cut here: hunter2-hun", "cut here: [redacted]"),
            ("nothing to see", "nothing to see"),
            ("ghp_abcdefghijklmnopqrstuvwxyz0123456789.", "[redacted]"),
            ("github_pat_11AAAAAAA0abcdefghij_klm and", "[redacted] and"),
            ("id AKIAIOSFODNN7EXAMPLE,", "id [redacted],"),
            ("hf_abcdefghijklmnopqrstuvwxyz0123456789", "[redacted]"),
            ("(xoxb-123456789012-abcdef)", "([redacted])"),
            ("POST /v1/models?key=AIzaSyA1234567890abcdef", "POST /v1/models?key=[redacted]"),
            (
                "hf_inference failed, AKIA, a key-word, task-list-of-many",
                "hf_inference failed, AKIA, a key-word, task-list-of-many",
            ),
        ] {
            assert_eq!(redactor.text(text), clean);
        }
    }

    #[test]
    fn a_known_secret_is_taken_out_however_it_is_escaped() {
        let redactor = Redactor::new(["ab/cd+ef/Secret=="]);
        for text in [
            r#"{"message":"bad ab\/cd+ef\/Secret=="}"#,
            r#"{"message":"bad \u0061b/cd+ef/Secret\u003d\u003D"}"#,
            r#"{"message":"{\"inner\":\"bad ab\\\/cd\\u002bef\/Secret==\"}"}"#,
            "bad ab%2Fcd%2Bef%2fSecret%3D%3D",
            "bad %61%62%2F%63%64%2B%65%66%2F%53%65%63%72%65%74%3D%3D",
            "<p>bad ab&#x2F;cd&#43;ef&#47;Secret&#x3d;=</p>",
        ] {
            let clean = redactor.text(text);
            assert!(clean.contains("bad [redacted]") && !clean.contains("ecret"), "{clean}");
        }
        for cut in [r"bad ab\/cd+e", r"bad ab\/cd\u00", "bad ab%2Fcd%2", "bad ab%2Fcd+", "bad ab&#47;cd&#4"] {
            assert_eq!(redactor.text(cut), "bad [redacted]", "{cut}");
        }
        for other in ["bad ab/cd-ef", "100% ab", r"c:\ab\u", "&amp;", "ab%", "%zz%+1%é"] {
            assert_eq!(redactor.text(other), other);
        }
        assert_eq!(Redactor::new(["éa%b\\c"]).text(r"x %C3%A9a%25b\\c é\u0061%b\c"), "x [redacted] [redacted]");
    }

    #[test]
    fn marks_that_turn_text_around_are_left_out_of_a_message() {
        let mut failure = Failure::new(FailureCode::Server, "a\u{202e}b\u{2066}c\u{200f}d\u{2028}e\u{61c}");
        failure.request_id = Some("r\u{202d}1".to_owned());
        Redactor::default().clean(&mut failure);
        assert_eq!((failure.message.as_str(), failure.request_id.as_deref()), ("abcd e", Some("r1")));
    }

    #[test]
    fn every_text_of_a_failure_is_cleaned_and_the_message_stays_printable() {
        let mut failure = Failure::new(FailureCode::Auth, "bad \u{1b}[31mkey hunter2-hunter2");
        failure.request_id = Some("hunter2-hunter2".to_owned());
        let evidence = Evidence {
            provider_code: Some("x hunter2-hunter2".to_owned()),
            hint: Some(Hint {
                source: "retry-after".to_owned(),
                raw: "hunter2-hunter2".to_owned(),
                ms: None,
                r#use: None,
                why: None,
            }),
            body: Some("é".repeat(MAX_KEPT_BODY) + "hunter2-hunter2"),
            ..Evidence::default()
        };
        failure.evidence = Some(Box::new(evidence));
        Redactor::new(["hunter2-hunter2"]).clean(&mut failure);
        let json = serde_json::to_string(&failure).unwrap();
        assert!(!json.contains("hunter2"), "{json}");
        assert!(!failure.message.contains('\u{1b}'));
        assert!(failure.evidence.unwrap().body.unwrap().len() <= MAX_KEPT_BODY);
    }

    proptest! {
        #[test]
        fn no_escape_hides_a_secret(
            before in "[^%\\\\&]{0,10}", secret in "[a-zA-Z0-9/+=é_-]{4,20}", after in "\\PC{0,10}",
            ways in proptest::collection::vec(0..6_usize, 20),
        ) {
            let spelt = |(sign, way): (char, &usize)| match way {
                0 => format!("\\u{:04x}", u32::from(sign)),
                1 => sign.to_string().bytes().map(|byte| format!("%{byte:02X}")).collect(),
                2 => format!("&#{};", u32::from(sign)),
                3 if !sign.is_alphanumeric() => format!("\\{sign}"),
                _ => sign.to_string(),
            };
            let spelt: String = secret.chars().zip(&ways).map(spelt).collect();
            let clean = Redactor::new([secret.as_str()]).text(&format!("{before}{spelt}{after}"));
            prop_assert!(clean.contains(MARK) && !clean.contains(&spelt), "{spelt} {clean}");
        }

        #[test]
        fn whatever_a_text_holds_it_can_be_cleaned(text in "([%\\\\&#u;x0-9a-f=é]|\\PC){0,60}", secret in "[%\\\\&a-f0-9é]{4,9}") {
            let _ = Redactor::new([secret.as_str()]).text(&text);
        }

        #[test]
        fn no_text_keeps_a_known_secret(before in "\\PC{0,40}", secret in "[a-zA-Z0-9_é-]{4,20}", after in "\\PC{0,40}") {
            let redactor = Redactor::new([secret.as_str()]);
            let clean = redactor.text(&format!("{before}{secret}{after}"));
            prop_assert!(MARK.contains(&secret) || !clean.replace(MARK, "").contains(&secret), "{clean}");
        }
    }
}
