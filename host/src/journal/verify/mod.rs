//! Offline verification: whether a session's record obeys every rule, whoever wrote it.
//!
//! Owns the recognition of a file's dialect, the reading of its lines in two threads, and the report. The rules of a
//! dialect stand in `closed_step` and `same_step`. It never changes a file and never stops at the first broken rule.
//! Called by `retake journal verify` and by tests.

mod attempt;
mod closed_step;
mod fields;
mod line;
mod same_step;
#[cfg(test)]
mod tests;
mod types;

use super::{
    invariants::Violation,
    jsonl::{Dialect, FORMAT_VERSION},
    store::StoreError,
};
use line::{Line, parse_line};
use serde::{Deserialize, Serialize, Serializer};
use std::{
    collections::BTreeMap,
    fmt,
    path::Path,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
};

/// How many bytes of lines one thread takes at a time.
const BATCH_BYTES: usize = 1 << 20;
/// More threads than this only wait for each other's results.
const THREADS: usize = 2;

/// Which set of rules a file was written under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rules {
    /// This program's own: a failed step is closed before its retry is scheduled.
    ClosedStep,
    /// That of the harness that this program grew out of: retries happen inside the open step, several a step.
    SameStep,
}

/// One broken rule, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// From 1; the header is line 1.
    pub line: usize,
    /// Where the line begins, in bytes from the start of the file.
    pub offset: u64,
    /// The rule's short, stable name.
    pub rule: &'static str,
    /// A sentence with the value that was wrong and the one that would be right, without control characters.
    pub message: String,
}

/// What was found in one session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The file, or the session of a database, as people know it.
    #[serde(serialize_with = "shown")]
    pub name: String,
    /// Absent when the header line does not tell.
    #[serde(rename = "dialect")]
    pub rules: Option<Rules>,
    pub events: u64,
    pub turns: u64,
    pub findings: Vec<Finding>,
    /// An incomplete record ends the file: no rule is broken, since the next writer takes it off.
    pub torn: Option<Finding>,
}

impl Report {
    /// No rule is broken. The record may end torn all the same.
    pub fn is_good(&self) -> bool {
        self.findings.is_empty()
    }

    /// No rule is broken and nothing is left of a write that a crash cut short.
    pub fn is_whole(&self) -> bool {
        self.is_good() && self.torn.is_none()
    }
}

/// One line when the session is good, otherwise one more for each finding.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = printable(&self.name);
        for finding in self.findings.iter().chain(&self.torn) {
            let Finding { line, offset, rule, message } = finding;
            writeln!(f, "{name}: line {line} (byte {offset}): {rule}: {message}")?;
        }
        let count = |n: u64, word: &str| format!("{n} {word}{}", if n == 1 { "" } else { "s" });
        let (events, turns) = (count(self.events, "event"), count(self.turns, "turn"));
        match (self.findings.len(), &self.torn) {
            (0, None) => write!(f, "{name} is good: {events}, {turns}"),
            (0, Some(_)) => write!(
                f,
                "{name} keeps every rule up to its torn end: {events}, {turns}; its next run takes the torn record off"
            ),
            (n, _) => write!(f, "{name} is not good: {} in {events}, {turns}", count(n as u64, "broken rule")),
        }
    }
}

/// A text of a file as it may be shown on a terminal: what would act on it, or hide, is written as an escape.
pub(crate) fn printable(text: &str) -> String {
    let acts = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if acts(c) { c.escape_unicode().to_string() } else { c.to_string() }).collect()
}

fn shown<S: Serializer>(text: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&printable(text))
}

/// Why a record cannot be read at all, whatever its rules.
pub fn unreadable(bytes: &[u8]) -> Option<&'static str> {
    bytes
        .starts_with(&[0x28, 0xb5, 0x2f, 0xfd])
        .then_some("it is compressed with zstd; verify what `zstd -d` makes of it")
}

/// Verifies the file at `path` as one of a store, named as its session, without changing it.
///
/// # Errors
/// The file could not be read.
pub fn verify_file(path: &Path) -> Result<Report, StoreError> {
    let name = path.display().to_string();
    let error = |source| StoreError::Io { path: name.clone(), action: "read", source };
    let bytes = std::fs::read(path).map_err(error)?;
    if let Some(why) = unreadable(&bytes) {
        return Err(error(std::io::Error::new(std::io::ErrorKind::InvalidData, why)));
    }
    let id = path.file_stem().map(|stem| stem.to_string_lossy());
    Ok(verify(&name, id.as_deref(), &bytes))
}

/// Verifies a header line and the event lines behind it; `name` is what the report calls them.
pub fn verify_bytes(name: &str, bytes: &[u8]) -> Report {
    verify(name, None, bytes)
}

/// The same for the record that a store keeps as the session `id`.
pub fn verify_session(name: &str, id: &str, bytes: &[u8]) -> Report {
    verify(name, Some(id), bytes)
}

fn verify(name: &str, id: Option<&str>, bytes: &[u8]) -> Report {
    let mut report =
        Report { name: name.to_owned(), rules: None, events: 0, turns: 0, findings: Vec::new(), torn: None };
    let header = |rule, message: String| Finding { line: 1, offset: 0, rule, message: printable(&message) };
    let header_end = bytes.iter().position(|&byte| byte == b'\n');
    let recognised = header_end
        .ok_or_else(|| "The file has no complete header line.".to_owned())
        .and_then(|end| recognise(&bytes[..end]));
    let (rules, header_id) = match recognised {
        Ok(recognised) => recognised,
        Err(message) => {
            report.findings.push(header("header", message));
            return report;
        }
    };
    // The other system keeps its sessions in directories, under names of its own making.
    if let Some(id) = id.filter(|id| rules == Rules::ClosedStep && *id != header_id) {
        let message = format!("The header's id is \"{header_id}\", but the session is kept as \"{id}\".");
        report.findings.push(header("header-id", message));
    }
    report.rules = Some(rules);
    let start = header_end.map_or(bytes.len(), |end| end + 1);
    let body = &bytes[start..];
    // What stands behind the last newline was never completed; zeros are what some file systems leave of a lost write.
    let complete = body.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
    let mut fold = match rules {
        Rules::ClosedStep => Fold::Closed(Box::default()),
        Rules::SameStep => Fold::Same(Box::default()),
    };
    let mut at = Place { line: 1, offset: 0 };
    read_lines(rules, &body[..complete], |offset, parsed| {
        at = Place { line: at.line + 1, offset: (start + offset) as u64 };
        take_in(&mut fold, &mut report, at, parsed);
    });
    if complete < body.len() {
        let tail = &body[complete..];
        let what = if tail.iter().all(|&byte| byte == 0) { "zeros" } else { "a line without an end" };
        report.torn = Some(Finding {
            line: at.line + 1,
            offset: (start + complete) as u64,
            rule: "torn-tail",
            message: format!("The file ends in {} bytes of {what}.", tail.len()),
        });
    }
    report.turns = match &fold {
        Fold::Closed(fold) => fold.turns(),
        Fold::Same(fold) => fold.turns(),
    };
    report
}

#[derive(Clone, Copy)]
struct Place {
    line: usize,
    offset: u64,
}

/// The rules of one dialect, and what they know of the lines so far.
enum Fold {
    Closed(Box<closed_step::ClosedStep>),
    Same(Box<same_step::SameStep>),
}

fn take_in(fold: &mut Fold, report: &mut Report, at: Place, parsed: Result<Line<'_>, Violation>) {
    let mut broken = Vec::new();
    match parsed {
        Ok(line) => {
            report.events += line.span;
            match fold {
                Fold::Closed(fold) => fold.take_in(line, &mut broken),
                Fold::Same(fold) => fold.take_in(line, &mut broken),
            }
        }
        Err(violation) => {
            broken.push(violation);
            // It stood for one event, so that the lines behind it are not all said to be out of order.
            match fold {
                Fold::Closed(fold) => fold.skip(),
                Fold::Same(fold) => fold.skip(),
            }
        }
    }
    report.findings.extend(broken.into_iter().map(|Violation { rule, message }| Finding {
        line: at.line,
        offset: at.offset,
        rule,
        message: printable(&message),
    }));
}

/// Tells a dialect, and the session's id, by the header line.
fn recognise(line: &[u8]) -> Result<(Rules, String), String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Header {
        r#type: String,
        version: u64,
        id: String,
        created_at: u64,
        #[serde(default)]
        dialect: Option<Dialect>,
        #[serde(default)]
        delegation_depth: Option<u64>,
    }
    if let Some(why) = unreadable(line) {
        return Err(format!("The file cannot be read: {why}."));
    }
    let header: Header =
        serde_json::from_slice(line).map_err(|error| format!("The first line is not a session's header: {error}."))?;
    if header.r#type != "session" {
        return Err(format!("The header's type is \"{}\", but it must be \"session\".", header.r#type));
    }
    if header.id.is_empty() {
        return Err("The header's id must not be empty.".into());
    }
    if header.created_at > crate::llm::policy::MAX_SAFE_INTEGER {
        return Err(format!("The header's createdAt is {}, which is no time.", header.created_at));
    }
    match (header.version, header.dialect, header.delegation_depth) {
        (FORMAT_VERSION, Some(Dialect::ClosedStep), _) => Ok((Rules::ClosedStep, header.id)),
        (0, None, Some(_)) => Ok((Rules::SameStep, header.id)),
        (FORMAT_VERSION, None, _) => {
            Err(format!("A header of version {FORMAT_VERSION} names its dialect, \"closed-step\"."))
        }
        (0, None, None) => Err("A header of version 0 has a delegationDepth.".into()),
        (version, ..) => Err(format!(
            "The header's version is {version}; this program reads {FORMAT_VERSION} with the dialect \"closed-step\", and 0."
        )),
    }
}

/// Parses `bytes`, whole lines, in threads, and hands each line with its offset to `each`, in order.
fn read_lines<'a>(rules: Rules, bytes: &'a [u8], mut each: impl FnMut(usize, Result<Line<'a>, Violation>)) {
    let batches = batches(bytes);
    if batches.len() <= 1 {
        for (offset, parsed) in parse_batch(rules, bytes, 0) {
            each(offset, parsed);
        }
        return;
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..THREADS {
            let (sender, next, batches) = (sender.clone(), &next, &batches);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&(from, to)) = batches.get(index) else { return };
                    if sender.send((index, parse_batch(rules, &bytes[from..to], from))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(sender);
        let mut early = BTreeMap::new();
        let mut wanted = 0;
        for (index, lines) in receiver {
            early.insert(index, lines);
            while let Some(lines) = early.remove(&wanted) {
                wanted += 1;
                for (offset, parsed) in lines {
                    each(offset, parsed);
                }
            }
        }
    });
}

/// Ranges of whole lines, each about [`BATCH_BYTES`] long.
fn batches(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut ranges = Vec::new();
    let mut from = 0;
    while from < bytes.len() {
        let least = (from + BATCH_BYTES).min(bytes.len());
        let to = bytes[least..].iter().position(|&byte| byte == b'\n').map_or(bytes.len(), |end| least + end + 1);
        ranges.push((from, to));
        from = to;
    }
    ranges
}

fn parse_batch(rules: Rules, bytes: &[u8], base: usize) -> Vec<(usize, Result<Line<'_>, Violation>)> {
    let mut lines = Vec::new();
    let mut offset = 0;
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        lines.push((base + offset, parse_line(rules, text)));
        offset += line.len();
    }
    lines
}
