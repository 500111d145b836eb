//! JSON as it comes over a wire: in pieces, with other things behind it, or cut.
//!
//! Pure. Called by `call`, which has to know when a body is whole, and by `report`, which reads whatever came.

use serde_json::{Deserializer, Value};

/// A text that is no whole JSON is read this far, in bytes; what names an error stands at its beginning.
const MAX_CUT: usize = 16 * 1024;

/// Follows the structure of one JSON object or list, byte by byte.
#[derive(Clone, Debug, Default)]
pub(super) struct Scan {
    /// What closes the structures that are open, outermost first.
    open: Vec<u8>,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// Takes the next bytes, and says how many of them complete the value, if they do.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Option<usize> {
        bytes.iter().position(|byte| self.step(*byte)).map(|last| last + 1)
    }

    /// Whether the byte completes the value.
    fn step(&mut self, byte: u8) -> bool {
        if self.in_string {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' => self.escaped = true,
                b'"' => self.in_string = false,
                _ => {}
            }
            return false;
        }
        match byte {
            b'"' => self.in_string = true,
            b'{' => self.open.push(b'}'),
            b'[' => self.open.push(b']'),
            b'}' | b']' => {
                self.open.pop();
                return self.open.is_empty();
            }
            _ => {}
        }
        false
    }

    /// The text, up to where the scan is, with everything closed that is open.
    fn closed(&self, text: &str) -> String {
        let mut whole = text.to_owned();
        if self.escaped {
            whole.pop();
        }
        if self.in_string {
            whole.push('"');
        }
        whole.extend(self.open.iter().rev().map(|byte| char::from(*byte)));
        whole
    }
}

/// Whether a text begins as a JSON object or list does.
pub(super) fn is_structure(text: &str) -> bool {
    text.starts_with(['{', '['])
}

/// The JSON that a text is, or begins with; of an object or a list that was cut, what came of it.
pub(super) fn value_of(text: &str) -> Option<Value> {
    let text = text.trim();
    match serde_json::from_str(text) {
        Ok(value) => return Some(value),
        Err(_) if !is_structure(text) => return None,
        Err(_) => {}
    }
    let text = &text[..text.floor_char_boundary(MAX_CUT)];
    match Deserializer::from_str(text).into_iter().next() {
        Some(Ok(value)) => Some(value),
        Some(Err(error)) if error.is_eof() => completed(text),
        _ => None,
    }
}

/// Closes what a cut left open; where it went through a key or a word, that is left out.
fn completed(text: &str) -> Option<Value> {
    let mut scan = Scan::default();
    let mut whole = (0, Scan::default());
    for (at, byte) in text.bytes().enumerate() {
        let outside = !scan.in_string;
        if outside && byte == b',' {
            whole = (at, scan.clone());
        }
        scan.step(byte);
        if outside && matches!(byte, b'{' | b'[' | b'}' | b']') {
            whole = (at + 1, scan.clone());
        }
    }
    let (length, scan_of_whole) = whole;
    serde_json::from_str(&scan.closed(text))
        .or_else(|_| serde_json::from_str(&scan_of_whole.closed(&text[..length])))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn the_end_of_a_value_is_found_whatever_its_strings_hold() {
        for (text, length) in
            [(r#"{"a":"}"} tail"#, 9), (r#"[{"a":"\"]"}]"#, 13), ("{}{}", 2), (r#"{"a":[1,2,{"b":null}]}"#, 22)]
        {
            assert_eq!(Scan::default().push(text.as_bytes()), Some(length), "{text}");
            let mut scan = Scan::default();
            let found = text.bytes().position(|byte| scan.push(&[byte]).is_some());
            assert_eq!(found, Some(length - 1), "{text}, in pieces");
        }
        assert_eq!(Scan::default().push(br#"{"a":"}]"#), None);
    }

    #[test]
    fn what_stands_before_a_cut_or_a_tail_is_read() {
        for (text, value) in [
            (r#"{"a":1}"#, Some(json!({"a": 1}))),
            ("{\"a\":1}\ntrailing", Some(json!({"a": 1}))),
            (r#"{"a":1}{"b":2}"#, Some(json!({"a": 1}))),
            (
                r#"{"error":{"code":503,"message":"Service Unav"#,
                Some(json!({"error": {"code": 503, "message": "Service Unav"}})),
            ),
            (r#"{"error":{"code":503,"mess"#, Some(json!({"error": {"code": 503}}))),
            (r#"{"error":{"code":503,"message":"a \"#, Some(json!({"error": {"code": 503, "message": "a "}}))),
            (r#"{"error":{"code":503},"x":tr"#, Some(json!({"error": {"code": 503}}))),
            (r#"[{"a":[1,2"#, Some(json!([{"a": [1, 2]}]))),
            ("{", Some(json!({}))),
            ("502 Bad Gateway", None),
            ("{not json}", None),
            ("", None),
        ] {
            assert_eq!(value_of(text), value, "{text}");
        }
    }

    #[test]
    fn a_text_that_only_opens_is_no_trouble() {
        assert_eq!(value_of(&"[".repeat(100_000)), None);
    }

    proptest! {
        #[test]
        fn a_value_that_is_cut_anywhere_never_panics(cut: prop::sample::Index, message in "\\PC{0,12}") {
            let text = json!({"error": {"code": 429, "message": message, "list": [1, {"a": null}]}}).to_string();
            let cut = text.floor_char_boundary(cut.index(text.len() + 1));
            let found = value_of(&text[..cut]);
            prop_assert!(found.is_some() || cut == 0, "{}", &text[..cut]);
            let mut scan = Scan::default();
            prop_assert_eq!(scan.push(text.as_bytes()), Some(text.len()));
        }
    }
}
