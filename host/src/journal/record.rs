//! A session's record as bytes, whatever store keeps it: a header line, and then one line an event.
//!
//! Owns the header and the reading of lines, with what a crash or a fault of the disk may have left among them; what is
//! read is held against the rules and summed up on the way. It never writes and never repairs.

use super::{event::Event, invariants, state::SessionState, store::StoreError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::{
    borrow::Cow,
    path::{Path, PathBuf},
};

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
    /// What the events add up to.
    pub state: SessionState,
    /// The end that a crash left incomplete. The next writer takes it off.
    pub torn: Option<TornTail>,
    /// Why nobody may write behind the events: a closed turn follows an unreadable place, a whole record is one that this
    /// version does not know, or the store knows of more than it can give.
    pub damage: Option<TornTail>,
    /// The first event that breaks a rule of an append: no writer of this version has written it, so that none may go on
    /// from it.
    pub broken: Option<TornTail>,
}

impl Contents {
    /// Why the session cannot be gone on with, if it cannot.
    pub fn obstacle(&self) -> Option<&TornTail> {
        match (&self.broken, &self.damage) {
            (Some(broken), Some(damage)) => Some(if broken.offset < damage.offset { broken } else { damage }),
            (broken, damage) => broken.as_ref().or(damage.as_ref()),
        }
    }
}

/// A record as a store gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Raw {
    /// A header line and one line an event.
    pub bytes: Vec<u8>,
    /// Why the store knows that there is more than these.
    pub lost: Option<String>,
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
pub fn parse(name: &str, raw: &Raw) -> Result<Contents, StoreError> {
    let bytes = &raw.bytes[..];
    let unsupported = |reason: String| StoreError::Unsupported { path: name.to_owned(), reason };
    let Some(header_end) = bytes.iter().position(|&b| b == b'\n') else {
        return Err(unsupported("it has no complete header line".into()));
    };
    let header = read_header(&bytes[..header_end]).map_err(unsupported)?;
    let (torn, damage, broken) = (None, None, None);
    let mut contents = Contents { header, events: Vec::new(), state: SessionState::default(), torn, damage, broken };
    let mut offset = header_end + 1;
    let mut line = 2;
    while offset < bytes.len() {
        let rest = &bytes[offset..];
        let end = rest.iter().position(|&b| b == b'\n');
        let place = |reason| TornTail { offset: offset as u64, line, reason };
        let parsed = match end {
            None => Err(BadLine::Torn("the line is not complete".to_owned())),
            Some(end) => parse_line(&rest[..end], contents.events.len() as u64),
        };
        match parsed {
            Ok(event) => {
                if contents.broken.is_none()
                    && let Err(violation) =
                        invariants::check(&contents.state, &event.body, event.source_event_seqs.as_deref())
                {
                    contents.broken = Some(place(format!("it breaks a rule of the journal, {violation}")));
                }
                contents.state.apply(event.time, &event.body);
                contents.events.push(event);
            }
            Err(BadLine::Unknown(reason)) => {
                contents.damage = Some(place(reason));
                break;
            }
            Err(BadLine::Torn(reason)) => {
                // A complete turn behind it means that this is no torn tail.
                if end.is_some_and(|end| closes_a_turn(&rest[end + 1..])) {
                    contents.damage = Some(place(reason));
                } else {
                    contents.torn = Some(place(reason));
                }
                break;
            }
        }
        offset += end.map_or(rest.len(), |end| end + 1);
        line += 1;
    }
    if let Some(reason) = raw.lost.clone() {
        contents.damage.get_or_insert(TornTail { offset: offset as u64, line, reason });
        contents.torn = None;
    }
    Ok(contents)
}

fn read_header(line: &[u8]) -> Result<FileHeader, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u64,
    }
    match serde_json::from_slice(line).map(|Version { version }| version) {
        Ok(FORMAT_VERSION) | Err(_) => {
            serde_json::from_slice(line).map_err(|error| format!("its header line is not one: {error}"))
        }
        Ok(0) => {
            Err("it is one of a harness that retries inside the open step; `retake journal verify` reads it".into())
        }
        Ok(version) => Err(format!("its format version is {version}, and this build reads {FORMAT_VERSION}")),
    }
}

/// What every event has, whatever its type.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    r#type: Cow<'a, str>,
    seq: u64,
    #[serde(rename = "time")]
    _time: u64,
    #[serde(borrow, rename = "data")]
    _data: &'a RawValue,
}

fn closes_a_turn(bytes: &[u8]) -> bool {
    bytes
        .split(|&b| b == b'\n')
        .any(|line| serde_json::from_slice::<Envelope<'_>>(line).is_ok_and(|event| event.r#type == "turn/end"))
}

/// Why a line is not the next event.
enum BadLine {
    /// What a crash or a fault of the disk leaves.
    Torn(String),
    /// It is whole and in its place: a newer version, or somebody's hand, has written it.
    Unknown(String),
}

fn parse_line(line: &[u8], expected_seq: u64) -> Result<Event, BadLine> {
    let seq = |seq: u64| {
        if seq == expected_seq { Ok(()) } else { Err(format!("its seq is {seq}, where {expected_seq} was expected")) }
    };
    match serde_json::from_slice::<Event>(line) {
        Ok(event) => seq(event.seq).map(|()| event).map_err(BadLine::Torn),
        Err(error) => Err(match serde_json::from_slice::<Envelope<'_>>(line) {
            Ok(envelope) if envelope.seq == expected_seq => {
                BadLine::Unknown(format!("the event is not one of this version, but maybe of a newer one: {error}"))
            }
            _ => BadLine::Torn(format!("the line is not an event: {error}")),
        }),
    }
}
