//! Reads the `classify:` list of a provider: the user's own rows of classification.
//!
//! Every row must be able to match, name a code that exists, and name its own fixture, if it has one. Called by the
//! reader of a provider's keys.

use super::{
    error::nearest,
    fields::{Fields, Reader, describe},
};
use crate::llm::{
    FailureCode,
    adapters::classify_fixture,
    classify::{Condition, Fixture, OwnRow, OwnRows},
};
use serde_json::Value;

const ROW_KEYS: [&str; 8] = ["id", "status", "pointer", "equals", "code", "text", "as", "fixture"];
const FIXTURE_KEYS: [&str; 2] = ["status", "body"];
const STATUS: &str = "a status such as 400, a class such as \"4xx\", or a list of these";

/// The rows under `classify`, if the key is there; what is wrong with them goes into `reader.errors`.
pub fn own_rows<'s>(fields: &Fields<'s>, reader: &mut Reader<'s>) -> Option<OwnRows> {
    let path = fields.at("classify");
    let items = match fields.get("classify")? {
        Value::Array(items) => items,
        other => {
            reader.wrong_type(&path, other, "a list of rows, each with an id, conditions, and the code under \"as\"");
            return None;
        }
    };
    let before = reader.errors.len();
    let paths = (0..items.len()).map(|index| format!("{path}[{index}]"));
    let rows: Vec<OwnRow> = items.iter().zip(paths).filter_map(|(item, path)| row(item, &path, reader)).collect();
    if reader.errors.len() > before {
        return None;
    }
    // No row was left out, so the indexes are those of the list.
    match OwnRows::new(rows) {
        Ok(rows) => {
            check_fixtures(&rows, &path, reader);
            Some(rows)
        }
        Err(problems) => {
            for (index, problem) in problems {
                reader.rule(&format!("{path}[{index}]"), problem.to_string());
            }
            None
        }
    }
}

fn row<'s>(item: &'s Value, path: &str, reader: &mut Reader<'s>) -> Option<OwnRow> {
    let fields = reader.mapping(item, path, "a mapping with the keys of a row", &ROW_KEYS)?;
    let id = fields.required_word("id", "the name of the row, which journals show", reader);
    let code = fields
        .required_word("as", "the failure code that the row gives", reader)
        .and_then(|code| self::code(code, &fields.at("as"), reader));
    let pointer = fields.word("pointer", "a JSON pointer into the body, such as /error/type", reader);
    let equals = fields.get("equals");
    if equals.is_some() && pointer.is_none() {
        reader.rule(&fields.at("equals"), "the key equals says what stands at a pointer, and the row has no pointer");
    }
    let fixture = match fields.get("fixture") {
        Some(value) => fixture(value, &fields.at("fixture"), reader),
        None => None,
    };
    let when = Condition {
        statuses: statuses(&fields, reader),
        pointer: pointer.map(|pointer| (pointer.to_owned(), equals.cloned())),
        code: code_text(&fields, reader),
        text: fields.word("text", "words of the error", reader).map(str::to_owned),
    };
    Some(OwnRow { id: id?.to_owned(), when, code: code?, fixture })
}

fn code(name: &str, path: &str, reader: &mut Reader<'_>) -> Option<FailureCode> {
    let found = FailureCode::SELECTABLE.into_iter().find(|code| code.as_str() == name);
    if found.is_none() {
        let names = FailureCode::SELECTABLE.map(FailureCode::as_str);
        let mut allowed = format!("it is one of {}", names.join(", "));
        if let Some(nearest) = nearest(name, names) {
            allowed.push_str(&format!(" (did you mean {nearest:?}?)"));
        }
        reader.bad_value(path, describe(&Value::from(name)), allowed);
    }
    found
}

/// A provider's code may be written as a number.
fn code_text<'s>(fields: &Fields<'s>, reader: &mut Reader<'s>) -> Option<String> {
    match fields.get("code") {
        Some(Value::Number(number)) => Some(number.to_string()),
        _ => fields.word("code", "the provider's error code or type", reader).map(str::to_owned),
    }
}

fn statuses<'s>(fields: &Fields<'s>, reader: &mut Reader<'s>) -> Vec<(u16, u16)> {
    let path = fields.at("status");
    let items = match fields.get("status") {
        None => return Vec::new(),
        Some(Value::Array(items)) if items.is_empty() => {
            reader.bad_value(&path, "an empty list, which no status is in", format!("it is {STATUS}"));
            return Vec::new();
        }
        Some(Value::Array(items)) => items.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    let range = |item: &Value| match item {
        Value::Number(number) => number.as_u64().and_then(|status| u16::try_from(status).ok()).map(|s| (s, s)),
        Value::String(class) => {
            let hundred = class.strip_suffix("xx")?.parse::<u16>().ok().filter(|hundred| (1..=9).contains(hundred))?;
            Some((hundred * 100, hundred * 100 + 99))
        }
        _ => None,
    };
    let mut ranges = Vec::new();
    for item in items {
        match range(item) {
            Some(range) => ranges.push(range),
            None => reader.bad_value(&path, describe(item), format!("it is {STATUS}")),
        }
    }
    ranges
}

fn fixture<'s>(value: &'s Value, path: &str, reader: &mut Reader<'s>) -> Option<Fixture> {
    let fields = reader.mapping(value, path, "a mapping with the keys status and body", &FIXTURE_KEYS)?;
    let body = match fields.required("body", "what the provider sent, as text or as JSON", reader)? {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let status = fields.required("status", "the status of the response, from 101 to 999", reader)?;
    match status.as_u64().and_then(|status| u16::try_from(status).ok()).filter(|s| (101..=999).contains(s)) {
        Some(status) => Some(Fixture { status, body }),
        None => {
            reader.bad_value(&fields.at("status"), describe(status), "it is a status from 101 to 999");
            None
        }
    }
}

/// Classifies what each row was written for, with all rows and the table.
fn check_fixtures(rows: &OwnRows, path: &str, reader: &mut Reader<'_>) {
    for (index, row) in rows.rows().iter().enumerate() {
        let Some(fixture) = &row.fixture else { continue };
        let found = classify_fixture(rows, fixture);
        let message = match found {
            Some((_, id)) if id == row.row_id() => continue,
            Some((code, id)) => {
                format!("the fixture of the row {:?} is {code} by the row {id:?}, not by this one", row.id)
            }
            None => format!("the fixture of the row {:?} is no failure: a success that reports no error", row.id),
        };
        reader.rule(&format!("{path}[{index}].fixture"), message);
    }
}
