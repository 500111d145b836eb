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
        let printable = message.chars().map(|c| if c.is_control() { ' ' } else { c });
        failure.message = printable.take(LONGEST_MESSAGE).collect();
        let short = |text: &str| self.text(text).chars().filter(|c| !c.is_control()).take(256).collect::<String>();
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
        let mut clean = text.to_owned();
        for secret in &self.known {
            clean = clean.replace(secret.as_str(), MARK);
            // A body is cut at a length; the cut may go through a secret.
            let cut = (SHORTEST_SECRET..secret.len())
                .rev()
                .filter(|length| secret.is_char_boundary(*length))
                .find(|length| clean.ends_with(&secret[..*length]));
            if let Some(length) = cut {
                clean.truncate(clean.len() - length);
                clean.push_str(MARK);
            }
        }
        without_tokens(&clean)
    }
}

/// Takes out what looks like a credential though nobody knows it: what follows `Bearer`, keys that open with `sk-`
/// and the like, and JSON web tokens.
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
        let long = word.len() >= 12;
        let looks_secret =
            ["sk-", "sk_", "pk-", "rk_", "key-", "gsk_", "xai-", "eyJ", "AIza"].iter().any(|p| word.starts_with(p));
        let secret = (after_bearer && word.len() >= 8) || (long && looks_secret);
        clean.push_str(if secret { MARK } else { word });
        after_bearer = word.eq_ignore_ascii_case("bearer");
        rest = tail;
    }
    clean
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
        ] {
            assert_eq!(redactor.text(text), clean);
        }
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
        fn no_text_keeps_a_known_secret(before in "\\PC{0,40}", secret in "[a-zA-Z0-9_é-]{4,20}", after in "\\PC{0,40}") {
            let redactor = Redactor::new([secret.as_str()]);
            let clean = redactor.text(&format!("{before}{secret}{after}"));
            prop_assert!(MARK.contains(&secret) || !clean.replace(MARK, "").contains(&secret), "{clean}");
        }
    }
}
