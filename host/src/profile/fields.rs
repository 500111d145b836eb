//! Strict reading of one mapping: every key is known, every value has its type and its bounds, every problem is kept.
//!
//! A reader goes on after a problem, so that a user sees all of a file's mistakes at once. Called by the readers of
//! profiles and patches.

use super::{
    error::{Place, ProfileError, nearest},
    source::{Source, join},
};
use serde_json::{Map, Value};

/// A file under reading, and what was wrong with it so far.
pub struct Reader<'s> {
    pub source: &'s Source,
    pub errors: Vec<ProfileError>,
}

impl<'s> Reader<'s> {
    pub fn new(source: &'s Source) -> Self {
        Reader { source, errors: Vec::new() }
    }

    pub fn place(&self, path: &str) -> Place {
        self.source.place(path)
    }

    pub fn wrong_type(&mut self, path: &str, found: &Value, expected: &str) {
        self.errors.push(ProfileError::WrongType {
            place: self.place(path),
            path: shown(path),
            found: describe(found),
            expected: expected.to_owned(),
        });
    }

    pub fn bad_value(&mut self, path: &str, value: impl Into<String>, allowed: impl Into<String>) {
        let error = ProfileError::BadValue {
            place: self.place(path),
            path: shown(path),
            value: value.into(),
            allowed: allowed.into(),
        };
        self.errors.push(error);
    }

    pub fn rule(&mut self, path: &str, message: impl Into<String>) {
        let error = ProfileError::Rule { place: self.place(path), path: shown(path), message: message.into() };
        self.errors.push(error);
    }

    /// Opens a mapping whose keys are `allowed`; reports every other key. `what` says what the mapping is.
    pub fn mapping(&mut self, value: &'s Value, path: &str, what: &str, allowed: &[&str]) -> Option<Fields<'s>> {
        let Value::Object(map) = value else {
            self.wrong_type(path, value, what);
            return None;
        };
        for key in map.keys().filter(|key| !allowed.contains(&key.as_str())) {
            let path = join(path, key);
            self.errors.push(ProfileError::UnknownKey {
                place: self.place(&path),
                key: key.clone(),
                nearest: nearest(key, allowed.iter().copied()),
                allowed: allowed.iter().map(|&key| key.to_owned()).collect(),
                path,
            });
        }
        Some(Fields { map, path: path.to_owned() })
    }
}

/// An opened mapping.
pub struct Fields<'s> {
    pub map: &'s Map<String, Value>,
    pub path: String,
}

impl<'s> Fields<'s> {
    pub fn at(&self, key: &str) -> String {
        join(&self.path, key)
    }

    pub fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    pub fn get(&self, key: &str) -> Option<&'s Value> {
        self.map.get(key)
    }

    /// A value that must be there. `expected` completes "the key … is missing; it is …".
    pub fn required(&self, key: &str, expected: &str, reader: &mut Reader<'_>) -> Option<&'s Value> {
        let value = self.get(key);
        if value.is_none() {
            reader.errors.push(ProfileError::MissingKey {
                place: reader.place(&self.path),
                path: shown(&self.path),
                key: key.to_owned(),
                expected: expected.to_owned(),
            });
        }
        value
    }

    /// A text, if it is there; it may be empty.
    pub fn text(&self, key: &str, expected: &str, reader: &mut Reader<'_>) -> Option<&'s str> {
        match self.get(key)? {
            Value::String(text) => Some(text),
            other => {
                reader.wrong_type(&self.at(key), other, expected);
                None
            }
        }
    }

    /// A text, if it is there, that is not blank.
    pub fn word(&self, key: &str, expected: &str, reader: &mut Reader<'_>) -> Option<&'s str> {
        let text = self.text(key, expected, reader)?;
        if text.trim().is_empty() {
            reader.bad_value(&self.at(key), "an empty text", format!("it is {expected}"));
            return None;
        }
        Some(text)
    }

    /// A text that must be there and not blank.
    pub fn required_word(&self, key: &str, expected: &str, reader: &mut Reader<'_>) -> Option<&'s str> {
        self.required(key, expected, reader)?;
        self.word(key, expected, reader)
    }

    /// A text out of a closed list, if it is there.
    pub fn choice<T: Copy>(
        &self,
        key: &str,
        choices: &[(&'static str, T)],
        expected: &str,
        reader: &mut Reader<'_>,
    ) -> Option<T> {
        let text = self.word(key, expected, reader)?;
        if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == text) {
            return Some(*choice);
        }
        let mut allowed =
            format!("it is one of {}", choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", "));
        if let Some(nearest) = nearest(text, choices.iter().map(|(name, _)| *name)) {
            allowed.push_str(&format!(" (did you mean {nearest:?}?)"));
        }
        reader.bad_value(&self.at(key), describe(&Value::from(text)), allowed);
        None
    }

    /// A whole number of milliseconds within bounds, both included, if it is there.
    pub fn whole_ms(&self, key: &str, min: u64, max: u64, reader: &mut Reader<'_>) -> Option<u64> {
        self.whole(key, "milliseconds", min, max, reader)
    }

    /// A whole number of something, named by `unit`, within bounds, both included, if it is there.
    pub fn whole(&self, key: &str, unit: &str, min: u64, max: u64, reader: &mut Reader<'_>) -> Option<u64> {
        let value = self.get(key)?;
        let Value::Number(number) = value else {
            reader.wrong_type(&self.at(key), value, &format!("a whole number of {unit}"));
            return None;
        };
        let whole = number.as_u64().or_else(|| {
            // `5e3` and `5000.0` are whole numbers too.
            number.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0 && *n <= max as f64).map(|n| n as u64)
        });
        match whole {
            Some(whole) if (min..=max).contains(&whole) => Some(whole),
            _ => {
                let allowed = format!("it is a whole number of {unit} from {min} to {max}");
                reader.bad_value(&self.at(key), number.to_string(), allowed);
                None
            }
        }
    }

    /// `true` or `false`, if it is there.
    pub fn flag(&self, key: &str, reader: &mut Reader<'_>) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(flag) => Some(*flag),
            other => {
                reader.wrong_type(&self.at(key), other, "true or false");
                None
            }
        }
    }
}

/// A path for people: the empty one is the file's top.
fn shown(path: &str) -> String {
    if path.is_empty() { "the top of the file".to_owned() } else { path.to_owned() }
}

/// What a value is, in a few words: its type, and the value itself when it is short.
pub fn describe(value: &Value) -> String {
    match value {
        Value::Null => "nothing (null)".to_owned(),
        Value::Bool(flag) => flag.to_string(),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) if text.chars().count() <= 60 => format!("the text {text:?}"),
        Value::String(text) => format!("the text {:?}…", text.chars().take(60).collect::<String>()),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}
