//! A user's own rows of classification, for what a provider sends that the table does not know.
//!
//! They go before the table and are read in their order. A row that can never match is refused when it is read, so that
//! nobody waits for it. Made by `profile`, asked by the adapters.

use super::{Signal, normalised};
use crate::llm::{
    FailureCode,
    phrase::{Words, tokens_of},
};
use serde_json::{Number, Value};
use std::sync::Arc;

/// One row: when everything that it demands is so, the failure has its code.
#[derive(Clone, Debug, PartialEq)]
pub struct OwnRow {
    /// Unique among the rows of a provider.
    pub id: String,
    pub when: Condition,
    /// One of [`FailureCode::SELECTABLE`].
    pub code: FailureCode,
    /// What the row was written for; checked when it is read.
    pub fixture: Option<Fixture>,
}

/// What a row demands. At least one part is there; all that are there must hold.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Condition {
    /// Ranges of statuses, both ends included; empty for any status and for none.
    pub statuses: Vec<(u16, u16)>,
    /// A JSON pointer into the body, and the value that must stand there; without one, that anything does.
    pub pointer: Option<(String, Option<Value>)>,
    /// The provider's code, type or finish reason, in any spelling of case and separators.
    pub code: Option<String>,
    /// Words that must stand in the code, the type, the message or the text, next to one another; those of a language
    /// without spaces may stand within a longer run.
    pub text: Option<String>,
}

/// A response, as a provider sent it once.
#[derive(Clone, Debug, PartialEq)]
pub struct Fixture {
    /// 101 to 999; a success carries its error in the body.
    pub status: u16,
    pub body: String,
}

/// Why a row was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnRowError {
    #[error("the row demands nothing, so that it would name every failure; give it status, pointer, code or text")]
    NoCondition,
    #[error(
        "the status {status} never reaches a row: only 101 and 300 to 999 are failures by their status; for an error inside a success leave the status out"
    )]
    Status { status: u16 },
    #[error("the pointer {pointer:?} is no JSON pointer; it begins with a slash, as in \"/error/type\"")]
    Pointer { pointer: String },
    #[error("{key} has no letter or digit in it, so that it can never match")]
    NoWord { key: &'static str },
    #[error("the row can never match: {} everything that it would take", takers(earlier))]
    Shadowed { earlier: Vec<String> },
    #[error("the id {id:?} is given twice; each row needs one of its own")]
    DuplicateId { id: String },
}

/// The rows of one provider, all of which can match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OwnRows(Arc<[OwnRow]>);

impl OwnRows {
    /// Checks rows, and keeps their order.
    ///
    /// # Errors
    /// Every row that is wrong, by its index.
    pub fn new(rows: Vec<OwnRow>) -> Result<Self, Vec<(usize, OwnRowError)>> {
        let errors: Vec<_> =
            (0..rows.len()).filter_map(|index| Some((index, problem(&rows[..index], &rows[index])?))).collect();
        if errors.is_empty() { Ok(OwnRows(rows.into())) } else { Err(errors) }
    }

    pub fn rows(&self) -> &[OwnRow] {
        &self.0
    }

    /// The first row that matches. `body` is what the provider sent, where it is JSON.
    pub fn find(&self, signal: &Signal<'_>, body: Option<&Value>) -> Option<&OwnRow> {
        self.0.iter().find(|row| row.when.holds(signal, body))
    }
}

impl OwnRow {
    /// The id under which the row stands in a failure's evidence.
    pub fn row_id(&self) -> String {
        format!("own/{}", self.id)
    }
}

impl Condition {
    fn is_empty(&self) -> bool {
        *self == Condition::default()
    }

    fn holds(&self, signal: &Signal<'_>, body: Option<&Value>) -> bool {
        let status = self.statuses.is_empty() || signal.status.is_some_and(|status| self.takes_status(status));
        let pointer = self.pointer.as_ref().is_none_or(|(pointer, expected)| {
            let found = body.and_then(|body| body.pointer(pointer));
            found.is_some_and(|found| expected.as_ref().is_none_or(|expected| same(expected, found)))
        });
        let code = self.code.as_ref().is_none_or(|code| {
            let code = normalised(code);
            [signal.code, signal.kind, signal.finish_reason]
                .into_iter()
                .flatten()
                .any(|given| normalised(given) == code)
        });
        let text = self.text.as_ref().is_none_or(|text| {
            let said = [signal.code, signal.kind, signal.message, Some(signal.text)];
            Words::of(said.into_iter().flatten()).contain_any(&[&tokens_of(text).join(" ")])
        });
        status && pointer && code && text && !self.is_empty()
    }

    /// Whether everything that satisfies the parts of `other` beside its statuses satisfies those of this one too. It
    /// errs towards no.
    fn covers_beside_statuses(&self, other: &Condition) -> bool {
        let pointer = match (&self.pointer, &other.pointer) {
            (None, _) => true,
            (Some((ours, None)), Some((theirs, _))) => ours == theirs,
            (Some((ours, Some(our_value))), Some((theirs, Some(their_value)))) => {
                ours == theirs && same(our_value, their_value)
            }
            (Some(_), _) => false,
        };
        let code = self.code.as_deref().map(normalised);
        let code = code.is_none() || code == other.code.as_deref().map(normalised);
        let text = match (&self.text, &other.text) {
            (None, _) => true,
            (Some(ours), Some(theirs)) => found_wherever(&tokens_of(ours), &tokens_of(theirs)),
            (Some(_), None) => false,
        };
        pointer && code && text
    }

    fn takes_status(&self, status: u16) -> bool {
        self.statuses.is_empty() || self.statuses.iter().any(|(from, to)| (*from..=*to).contains(&status))
    }
}

/// Whether the tokens of `ours` are found in every text in which those of `theirs` are.
fn found_wherever(ours: &[String], theirs: &[String]) -> bool {
    let implied = |(ours, theirs): (&String, &String)| match ours.strip_prefix('~') {
        Some(part) => theirs.contains(part),
        None => ours == theirs,
    };
    !ours.is_empty() && theirs.windows(ours.len()).any(|window| ours.iter().zip(window).all(implied))
}

/// A number and its digits are one code, as providers send either.
fn same(expected: &Value, found: &Value) -> bool {
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(digits(number)),
        _ => None,
    };
    expected == found || (plain(expected).is_some() && plain(expected) == plain(found))
}

/// A number as it prints, without a fraction of zero.
fn digits(number: &Number) -> String {
    let mut digits = number.to_string();
    if digits.ends_with(".0") {
        digits.truncate(digits.len() - 2);
    }
    digits
}

/// The earlier rows that leave nothing for a row, if there are such: each takes some of its statuses, or all it demands.
fn shadow(before: &[OwnRow], when: &Condition) -> Option<Vec<String>> {
    let wider: Vec<&OwnRow> = before.iter().filter(|row| row.when.covers_beside_statuses(when)).collect();
    if let Some(whole) = wider.iter().find(|row| row.when.statuses.is_empty()) {
        return Some(vec![whole.id.clone()]);
    }
    let mut takers = Vec::new();
    for status in when.statuses.iter().flat_map(|(from, to)| *from..=*to).filter(|status| reaches(*status)) {
        let taker = wider.iter().find(|row| row.when.takes_status(status))?;
        if !takers.contains(&taker.id) {
            takers.push(taker.id.clone());
        }
    }
    Some(takers).filter(|takers| !takers.is_empty())
}

/// The rows that take everything, as the subject and the verb of a sentence.
fn takers(ids: &[String]) -> String {
    let quoted: Vec<String> = ids.iter().map(|id| format!("{id:?}")).collect();
    match quoted.as_slice() {
        [one] => format!("the row {one} before it takes"),
        many => format!("the rows {} before it take", many.join(" and ")),
    }
}

/// Whether a failure may have this status. What is below 200 is never the end of an answer, but for an upgrade; what is
/// in the 200s is a success.
fn reaches(status: u16) -> bool {
    status == 101 || (300..=999).contains(&status)
}

fn problem(before: &[OwnRow], row: &OwnRow) -> Option<OwnRowError> {
    let when = &row.when;
    if when.is_empty() {
        return Some(OwnRowError::NoCondition);
    }
    let unreachable = |(from, to): &&(u16, u16)| !(*from..=*to).any(reaches);
    if let Some((status, _)) = when.statuses.iter().find(unreachable) {
        return Some(OwnRowError::Status { status: *status });
    }
    if let Some((pointer, _)) = when.pointer.as_ref().filter(|(pointer, _)| !pointer.starts_with('/')) {
        return Some(OwnRowError::Pointer { pointer: pointer.clone() });
    }
    let wordless = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.contains(char::is_alphanumeric));
    for (key, text) in [("text", &when.text), ("code", &when.code)] {
        if wordless(text) {
            return Some(OwnRowError::NoWord { key });
        }
    }
    if before.iter().any(|earlier| earlier.id == row.id) {
        return Some(OwnRowError::DuplicateId { id: row.id.clone() });
    }
    shadow(before, when).map(|earlier| OwnRowError::Shadowed { earlier })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn row(id: &str, when: Condition) -> OwnRow {
        OwnRow { id: id.to_owned(), when, code: FailureCode::Server, fixture: None }
    }

    fn status(from: u16, to: u16) -> Condition {
        Condition { statuses: vec![(from, to)], ..Condition::default() }
    }

    fn either(statuses: &[u16]) -> Condition {
        Condition { statuses: statuses.iter().map(|status| (*status, *status)).collect(), ..Condition::default() }
    }

    fn text(text: &str) -> Condition {
        Condition { text: Some(text.to_owned()), ..Condition::default() }
    }

    fn pointer(path: &str, value: Option<Value>) -> Condition {
        Condition { pointer: Some((path.to_owned(), value)), ..Condition::default() }
    }

    #[test]
    fn all_parts_of_a_row_must_hold() {
        let when = Condition {
            statuses: vec![(400, 400)],
            pointer: Some(("/error/code".to_owned(), Some(json!("17")))),
            code: Some("Busy Now".to_owned()),
            text: Some("reasoning_text".to_owned()),
        };
        let rows = OwnRows::new(vec![row("a", when)]).unwrap();
        let body = json!({"error": {"code": 17}});
        let fine = Signal {
            status: Some(400),
            kind: Some("busy-now"),
            message: Some("the field `reasoning_text` is missing"),
            ..Signal::default()
        };
        assert_eq!(rows.find(&fine, Some(&body)).map(OwnRow::row_id).as_deref(), Some("own/a"));
        for other in [
            Signal { status: Some(401), ..fine },
            Signal { status: None, ..fine },
            Signal { kind: Some("busy"), ..fine },
            Signal { message: Some("text of reasoning"), ..fine },
        ] {
            assert_eq!(rows.find(&other, Some(&body)), None);
        }
        assert_eq!(rows.find(&fine, Some(&json!({"error": {"code": 18}}))), None);
        assert_eq!(rows.find(&fine, None), None);
    }

    #[test]
    fn a_failure_of_the_wire_is_never_renamed() {
        let rows = OwnRows::new(vec![row("a", status(300, 599))]).unwrap();
        let cut = Signal { transport: Some(super::super::WireFault::Reset), ..Signal::default() };
        assert_eq!(rows.find(&cut, None), None);
    }

    #[test]
    fn a_row_that_can_never_match_is_refused() {
        for (rows, error) in [
            (vec![Condition::default()], OwnRowError::NoCondition),
            (vec![status(200, 299)], OwnRowError::Status { status: 200 }),
            (vec![status(100, 100)], OwnRowError::Status { status: 100 }),
            (vec![status(1000, 1000)], OwnRowError::Status { status: 1000 }),
            (vec![pointer("error", None)], OwnRowError::Pointer { pointer: "error".to_owned() }),
            (vec![text("--")], OwnRowError::NoWord { key: "text" }),
            (vec![status(400, 499), status(404, 404)], OwnRowError::Shadowed { earlier: vec!["0".to_owned()] }),
            (vec![text("busy"), text("server busy")], OwnRowError::Shadowed { earlier: vec!["0".to_owned()] }),
            (
                vec![pointer("/a", None), pointer("/a", Some(json!(1)))],
                OwnRowError::Shadowed { earlier: vec!["0".to_owned()] },
            ),
            (
                vec![pointer("/a", Some(json!(5))), pointer("/a", Some(json!("5")))],
                OwnRowError::Shadowed { earlier: vec!["0".to_owned()] },
            ),
            (vec![text("额度已用完"), text("您的额度已用完")], OwnRowError::Shadowed { earlier: vec!["0".to_owned()] }),
            (
                vec![either(&[400, 401]), status(402, 402), either(&[400, 402])],
                OwnRowError::Shadowed { earlier: vec!["0".to_owned(), "1".to_owned()] },
            ),
            (vec![status(101, 101), status(100, 199)], OwnRowError::Shadowed { earlier: vec!["0".to_owned()] }),
        ] {
            let rows: Vec<OwnRow> = rows.into_iter().enumerate().map(|(i, when)| row(&i.to_string(), when)).collect();
            let last = rows.len() - 1;
            assert_eq!(OwnRows::new(rows), Err(vec![(last, error)]));
        }
        let twice = vec![row("x", text("a")), row("x", text("b"))];
        assert_eq!(OwnRows::new(twice), Err(vec![(1, OwnRowError::DuplicateId { id: "x".to_owned() })]));
    }

    #[test]
    fn rows_that_together_take_everything_are_named() {
        let error = OwnRowError::Shadowed { earlier: vec!["a".to_owned(), "b".to_owned()] };
        assert_eq!(
            error.to_string(),
            "the row can never match: the rows \"a\" and \"b\" before it take everything that it would take"
        );
    }

    #[test]
    fn a_row_in_a_language_without_spaces_matches_within_a_sentence() {
        let rows = OwnRows::new(vec![row("a", text("额度已用完"))]).unwrap();
        let said = |message| Signal { status: Some(429), message: Some(message), ..Signal::default() };
        assert!(rows.find(&said("您的账户额度已用完，请充值"), None).is_some());
        assert!(rows.find(&said("您的账户额度充足"), None).is_none());
    }

    #[test]
    fn a_status_that_is_odd_reaches_a_row() {
        for value in [101, 300, 600, 999] {
            let rows = OwnRows::new(vec![row("a", status(value, value))]).unwrap();
            assert!(rows.find(&Signal { status: Some(value), ..Signal::default() }, None).is_some(), "{value}");
        }
    }

    #[test]
    fn a_number_matches_its_digits_with_or_without_a_fraction_of_zero() {
        for (expected, found) in
            [(json!(5), json!("5")), (json!("5"), json!(5)), (json!(5), json!(5.0)), (json!(1.5), json!("1.5"))]
        {
            assert!(same(&expected, &found), "{expected} {found}");
        }
        assert!(!same(&json!(5), &json!(50)) && !same(&json!("5"), &json!("5 ")));
    }

    #[test]
    fn a_narrower_row_before_a_wider_one_is_fine() {
        for rows in [
            [either(&[400, 401]), either(&[400, 402])],
            [text("额度已用完"), text("额度")],
            [text("ratelimiterror"), text("rate limit")],
            [text("rate limit"), text("RateLimitError")],
            [status(404, 404), status(400, 499)],
            [text("server busy"), text("busy")],
            [status(400, 499), text("busy")],
            [pointer("/a", Some(json!(1))), pointer("/a", None)],
        ] {
            let rows = rows.into_iter().enumerate().map(|(i, when)| row(&i.to_string(), when)).collect();
            assert!(OwnRows::new(rows).is_ok());
        }
    }
}
