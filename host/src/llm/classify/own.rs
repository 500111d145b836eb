//! A user's own rows of classification, for what a provider sends that the table does not know.
//!
//! They go before the table and are read in their order. A row that can never match is refused when it is read, so that
//! nobody waits for it. Made by `profile`, asked by the adapters.

use super::{Signal, normalised};
use crate::llm::{FailureCode, phrase::Words};
use serde_json::Value;
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
    /// Words that must stand in the code, the type, the message or the text, next to one another.
    pub text: Option<String>,
}

/// A response, as a provider sent it once.
#[derive(Clone, Debug, PartialEq)]
pub struct Fixture {
    /// 100 to 599; a success carries its error in the body.
    pub status: u16,
    pub body: String,
}

/// Why a row was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnRowError {
    #[error("the row demands nothing, so that it would name every failure; give it status, pointer, code or text")]
    NoCondition,
    #[error(
        "the status {status} never reaches a row: only 300 to 599 are failures by their status; for an error inside a success leave the status out"
    )]
    Status { status: u16 },
    #[error("the pointer {pointer:?} is no JSON pointer; it begins with a slash, as in \"/error/type\"")]
    Pointer { pointer: String },
    #[error("{key} has no letter or digit in it, so that it can never match")]
    NoWord { key: &'static str },
    #[error("the row can never match: the row {earlier:?} before it takes everything that it would take")]
    Shadowed { earlier: String },
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
        let status = self.statuses.is_empty()
            || signal
                .status
                .is_some_and(|status| self.statuses.iter().any(|(from, to)| (*from..=*to).contains(&status)));
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
            Words::of(said.into_iter().flatten()).contain_any(&[&pattern(text)])
        });
        status && pointer && code && text && !self.is_empty()
    }

    /// Whether everything that satisfies `other` satisfies this one too. It errs towards no.
    fn covers(&self, other: &Condition) -> bool {
        let within = |inner: &(u16, u16)| self.statuses.iter().any(|outer| outer.0 <= inner.0 && inner.1 <= outer.1);
        let statuses = self.statuses.is_empty() || (!other.statuses.is_empty() && other.statuses.iter().all(within));
        let pointer = match (&self.pointer, &other.pointer) {
            (None, _) => true,
            (Some((ours, None)), Some((theirs, _))) => ours == theirs,
            (ours, theirs) => ours == theirs,
        };
        let code = self.code.as_deref().map(normalised);
        let code = code.is_none() || code == other.code.as_deref().map(normalised);
        let text = match (&self.text, &other.text) {
            (None, _) => true,
            (Some(ours), Some(theirs)) => Words::of([theirs.as_str()]).contain_any(&[&pattern(ours)]),
            (Some(_), None) => false,
        };
        statuses && pointer && code && text
    }
}

/// A number and its digits are one code, as providers send either.
fn same(expected: &Value, found: &Value) -> bool {
    let plain = |value: &Value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    expected == found || (plain(expected).is_some() && plain(expected) == plain(found))
}

/// The words of a text, as a pattern that finds them in a row.
fn pattern(text: &str) -> String {
    Words::of([text]).joined()
}

fn problem(before: &[OwnRow], row: &OwnRow) -> Option<OwnRowError> {
    let when = &row.when;
    if when.is_empty() {
        return Some(OwnRowError::NoCondition);
    }
    if let Some(status) = when.statuses.iter().flat_map(|(from, to)| [*from, *to]).find(|s| !(300..=599).contains(s)) {
        return Some(OwnRowError::Status { status });
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
    let earlier = before.iter().find(|earlier| earlier.when.covers(when))?;
    Some(OwnRowError::Shadowed { earlier: earlier.id.clone() })
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
            (vec![status(400, 600)], OwnRowError::Status { status: 600 }),
            (vec![pointer("error", None)], OwnRowError::Pointer { pointer: "error".to_owned() }),
            (vec![text("--")], OwnRowError::NoWord { key: "text" }),
            (vec![status(400, 499), status(404, 404)], OwnRowError::Shadowed { earlier: "0".to_owned() }),
            (vec![text("busy"), text("server busy")], OwnRowError::Shadowed { earlier: "0".to_owned() }),
            (
                vec![pointer("/a", None), pointer("/a", Some(json!(1)))],
                OwnRowError::Shadowed { earlier: "0".to_owned() },
            ),
        ] {
            let rows: Vec<OwnRow> = rows.into_iter().enumerate().map(|(i, when)| row(&i.to_string(), when)).collect();
            let last = rows.len() - 1;
            assert_eq!(OwnRows::new(rows), Err(vec![(last, error)]));
        }
        let twice = vec![row("x", text("a")), row("x", text("b"))];
        assert_eq!(OwnRows::new(twice), Err(vec![(1, OwnRowError::DuplicateId { id: "x".to_owned() })]));
    }

    #[test]
    fn a_narrower_row_before_a_wider_one_is_fine() {
        for rows in [
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
