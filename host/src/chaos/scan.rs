//! The grammar of the script language: cuts a script into steps, values and options, each with its column. Knows no
//! step by name. Called by [`super::parse`].

use super::parse::ScriptError;

/// A place in the text.
pub(super) struct Scan<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Scan<'a> {
    pub fn new(text: &'a str) -> Self {
        Scan { text, at: 0 }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    pub fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub fn bump(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn column(&self) -> usize {
        self.text[..self.at].chars().count() + 1
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(char::is_whitespace) {
            self.bump();
        }
    }

    /// The text up to the next sign of the grammar, without the spaces around it.
    fn word(&mut self, ends: &[char]) -> &'a str {
        self.skip_space();
        let rest = self.rest();
        let length = rest.find(ends).unwrap_or(rest.len());
        self.at += length;
        rest[..length].trim()
    }

    /// Bare or quoted text.
    fn value(&mut self) -> Result<String, ScriptError> {
        self.skip_space();
        if self.peek() == Some('"') { self.quoted() } else { Ok(self.word(&[',', ':', '*', '"']).to_owned()) }
    }

    fn quoted(&mut self) -> Result<String, ScriptError> {
        let column = self.column();
        self.bump();
        let mut value = String::new();
        loop {
            match self.bump() {
                None => return Err(ScriptError::OpenQuote { column }),
                Some('"') => break,
                Some('\\') => {
                    let column = self.column() - 1;
                    value.push(match self.bump() {
                        Some(sign @ ('"' | '\\')) => sign,
                        Some('n') => '\n',
                        Some('r') => '\r',
                        Some('t') => '\t',
                        Some(found) => return Err(ScriptError::Escape { found, column }),
                        None => return Err(ScriptError::OpenQuote { column }),
                    });
                }
                Some(other) => value.push(other),
            }
        }
        self.skip_space();
        Ok(value)
    }

    /// One step, up to its comma or the end.
    pub fn step(&mut self) -> Result<Written, ScriptError> {
        self.skip_space();
        let (start, column) = (self.at, self.column());
        let name = self.word(&[',', ':', '*', '=', '"']).to_owned();
        if name.is_empty() && matches!(self.peek(), None | Some(',')) {
            return Err(ScriptError::NoStep { column });
        }
        let mut written = Written { name, column, label: String::new(), value: None, options: Vec::new(), times: None };
        let mut end = self.at;
        let mut first = true;
        loop {
            match self.peek() {
                None | Some(',') => break,
                Some('=') if first => {
                    self.bump();
                    written.value = Some(At { column: self.column(), text: self.value()? });
                }
                Some(':') if written.times.is_none() => {
                    self.bump();
                    self.argument(&mut written)?;
                }
                Some('*') if written.times.is_none() => {
                    self.bump();
                    self.skip_space();
                    written.times = Some(At { column: self.column(), text: self.word(&[',', ':', '*', '"']).into() });
                    first = false;
                    continue; // the label ends before the repetition
                }
                Some(found) => {
                    let after = self.text[start..self.at].trim().to_owned();
                    return Err(ScriptError::Unexpected { found, column: self.column(), after });
                }
            }
            first = false;
            end = self.at;
        }
        written.label = self.text[start..end].trim().to_owned();
        Ok(written)
    }

    fn argument(&mut self, written: &mut Written) -> Result<(), ScriptError> {
        self.skip_space();
        let (start, column) = (self.at, self.column());
        let key = self.word(&[',', ':', '*', '=', '"']).to_owned();
        if self.peek() == Some('=') {
            self.bump();
            self.skip_space();
            let value = At { column: self.column(), text: self.value()? };
            if key != "header" && written.options.iter().any(|option| option.key == key) {
                return Err(ScriptError::Twice { step: written.name.clone(), key, column });
            }
            written.options.push(Keyed { key, column, value });
            return Ok(());
        }
        self.at = start;
        let value = At { column, text: self.value()? };
        if written.value.is_some() {
            return Err(ScriptError::ExtraValue {
                step: written.name.clone(),
                value: value.text,
                column,
                allowed: "one value and options of the form KEY=VALUE".into(),
            });
        }
        written.value = Some(value);
        Ok(())
    }
}

/// A text and the column where it begins.
pub(super) struct At {
    pub column: usize,
    pub text: String,
}

pub(super) struct Keyed {
    pub key: String,
    pub column: usize,
    pub value: At,
}

/// A step as it was written, before its meaning is looked up.
pub(super) struct Written {
    pub name: String,
    pub column: usize,
    pub label: String,
    pub value: Option<At>,
    pub options: Vec<Keyed>,
    pub times: Option<At>,
}
