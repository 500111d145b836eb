//! A session's record as bytes, whatever store keeps it: a header line, and then one line an event.
//!
//! Owns the header and the reading of lines, with what a crash or a fault of the disk may have left among them. It
//! never writes and never repairs.

use super::{
    event::{Body, Event},
    store::StoreError,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The version that this build writes.
pub const FORMAT_VERSION: u64 = 1;

/// The first line of a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FileHeader {
    pub r#type: HeaderType,
    #[schemars(extend("const" = FORMAT_VERSION))]
    pub version: u64,
    #[schemars(length(min = 1))]
    pub id: String,
    /// Milliseconds since the Unix epoch.
    pub created_at: u64,
    /// `closed-step`: a failed step is closed before its retry is scheduled.
    pub dialect: Dialect,
}

impl FileHeader {
    /// The header of a session of this version; `created_at` in milliseconds since the Unix epoch.
    pub fn new(id: &str, created_at: u64) -> FileHeader {
        FileHeader {
            r#type: HeaderType::Session,
            version: FORMAT_VERSION,
            id: id.to_owned(),
            created_at,
            dialect: Dialect::ClosedStep,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HeaderType {
    Session,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    ClosedStep,
}

/// Where a record stops being readable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its line, from 1.
    pub line: usize,
    pub reason: String,
}

/// What a record holds.
#[derive(Debug)]
pub struct Contents {
    pub header: FileHeader,
    /// Everything before the tear or the damage.
    pub events: Vec<Event>,
    /// The end that a crash left incomplete. The next writer takes it off.
    pub torn: Option<TornTail>,
    /// Unreadable in the middle: a closed turn follows. Nobody may write behind it.
    pub damage: Option<TornTail>,
}

/// Whether `id` may name a session: it cannot leave a directory, and is printable. Errors: it may not.
pub fn check_id(id: &str) -> Result<(), StoreError> {
    let valid = !id.is_empty()
        && id.len() <= 128
        && !id.starts_with('.')
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if valid { Ok(()) } else { Err(StoreError::SessionId(id.to_owned())) }
}

/// The path of a session's JSONL file. Errors: the id could leave the directory, or is not printable.
pub fn session_path(dir: &Path, id: &str) -> Result<PathBuf, StoreError> {
    check_id(id)?;
    Ok(dir.join(format!("{id}.jsonl")))
}

/// Whether `bytes`, without a line end, can be what a crash left of a record's first write.
pub(super) fn begins_a_header(bytes: &[u8]) -> bool {
    const BEGINNING: &[u8] = b"{\"type\":\"session\"";
    bytes.iter().all(|&byte| byte == 0) || BEGINNING.starts_with(bytes) || bytes.starts_with(BEGINNING)
}

/// Reads a whole record; `name` is what errors call it. Errors: its header is not one that this build reads.
pub fn parse(name: &str, bytes: &[u8]) -> Result<Contents, StoreError> {
    let unsupported = |reason: String| StoreError::Unsupported { path: name.to_owned(), reason };
    let Some(header_end) = bytes.iter().position(|&b| b == b'\n') else {
        return Err(unsupported("it has no complete header line".into()));
    };
    let header: FileHeader = serde_json::from_slice(&bytes[..header_end])
        .map_err(|error| unsupported(format!("its header line is not one: {error}")))?;
    if header.version != FORMAT_VERSION {
        return Err(unsupported(format!(
            "its format version is {}, and this build reads {FORMAT_VERSION}",
            header.version
        )));
    }
    let mut contents = Contents { header, events: Vec::new(), torn: None, damage: None };
    let mut offset = header_end + 1;
    let mut line = 2;
    while offset < bytes.len() {
        let rest = &bytes[offset..];
        let end = rest.iter().position(|&b| b == b'\n');
        let parsed = match end {
            None => Err("the line is not complete".to_owned()),
            Some(end) => parse_line(&rest[..end], contents.events.len() as u64),
        };
        match parsed {
            Ok(event) => contents.events.push(event),
            Err(reason) => {
                let place = TornTail { offset: offset as u64, line, reason };
                // A complete turn behind it means that this is no torn tail.
                if end.is_some_and(|end| closes_a_turn(&rest[end + 1..])) {
                    contents.damage = Some(place);
                } else {
                    contents.torn = Some(place);
                }
                break;
            }
        }
        offset += end.map_or(rest.len(), |end| end + 1);
        line += 1;
    }
    Ok(contents)
}

fn closes_a_turn(bytes: &[u8]) -> bool {
    bytes
        .split(|&b| b == b'\n')
        .any(|line| serde_json::from_slice::<Event>(line).is_ok_and(|event| matches!(event.body, Body::TurnEnd(_))))
}

fn parse_line(line: &[u8], expected_seq: u64) -> Result<Event, String> {
    let event: Event = serde_json::from_slice(line).map_err(|error| format!("the line is not an event: {error}"))?;
    if event.seq == expected_seq {
        Ok(event)
    } else {
        Err(format!("its seq is {}, where {expected_seq} was expected", event.seq))
    }
}
