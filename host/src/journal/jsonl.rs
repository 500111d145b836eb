//! The JSONL store: one file a session, a header line and then one line an event.
//!
//! Files are private (0600), created by the first append, locked by their one writer, and never followed through a
//! symbolic link. A torn tail after the last closed turn is cut when a writer opens the file; earlier damage is refused.

use super::{
    event::{Body, Event},
    state::SessionState,
    store::{Log, StoreError},
};
use futures_util::future::BoxFuture;
use rustix::fs::{FlockOperation, OFlags, flock};
use serde::{Deserialize, Serialize};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The version that this build writes.
pub const FORMAT_VERSION: u64 = 1;

/// The first line of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FileHeader {
    pub r#type: HeaderType,
    pub version: u64,
    pub id: String,
    /// Milliseconds since the Unix epoch.
    pub created_at: u64,
    /// `closed-step`: a failed step is closed before its retry is scheduled.
    pub dialect: Dialect,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeaderType {
    Session,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Dialect {
    ClosedStep,
}

/// The part at the end of a file that a crash left incomplete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornTail {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// Its line, from 1.
    pub line: usize,
    pub reason: String,
}

/// What a file holds.
#[derive(Debug)]
pub struct Contents {
    pub header: FileHeader,
    pub events: Vec<Event>,
    pub torn: Option<TornTail>,
}

/// The path of a session's file. Errors: the id could leave the directory, or is not printable.
pub fn session_path(dir: &Path, id: &str) -> Result<PathBuf, StoreError> {
    let valid = !id.is_empty()
        && id.len() <= 128
        && !id.starts_with('.')
        && id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
    if valid { Ok(dir.join(format!("{id}.jsonl"))) } else { Err(StoreError::SessionId(id.to_owned())) }
}

fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.display().to_string();
    move |source| StoreError::Io { path, action, source }
}

/// Reads a file without changing it. A torn tail is reported and left out; earlier damage is an error.
pub fn read(path: &Path) -> Result<Contents, StoreError> {
    let bytes = std::fs::read(path).map_err(io_error(path, "read"))?;
    parse(path, &bytes)
}

fn parse(path: &Path, bytes: &[u8]) -> Result<Contents, StoreError> {
    let name = || path.display().to_string();
    let Some(header_end) = bytes.iter().position(|&b| b == b'\n') else {
        return Err(StoreError::Unsupported { path: name(), reason: "it has no complete header line".into() });
    };
    let header: FileHeader = serde_json::from_slice(&bytes[..header_end]).map_err(|error| StoreError::Unsupported {
        path: name(),
        reason: format!("its header line is not one: {error}"),
    })?;
    if header.version != FORMAT_VERSION {
        let reason = format!("its format version is {}, and this build reads {FORMAT_VERSION}", header.version);
        return Err(StoreError::Unsupported { path: name(), reason });
    }
    let mut events = Vec::new();
    let mut torn = None;
    let mut offset = header_end + 1;
    let mut line = 2;
    while offset < bytes.len() {
        let rest = &bytes[offset..];
        let end = rest.iter().position(|&b| b == b'\n');
        let parsed = match end {
            None => Err("the line is not complete".to_owned()),
            Some(end) => parse_line(&rest[..end], events.len() as u64),
        };
        match parsed {
            Ok(event) => events.push(event),
            Err(reason) => {
                // A complete turn behind the damage means that this is no torn tail.
                let follows = end.is_some_and(|end| {
                    rest[end + 1..].split(|&b| b == b'\n').any(|later| {
                        serde_json::from_slice::<Event>(later).is_ok_and(|e| matches!(e.body, Body::TurnEnd(_)))
                    })
                });
                if follows {
                    return Err(StoreError::Damaged { path: name(), line, offset: offset as u64, reason });
                }
                torn = Some(TornTail { offset: offset as u64, line, reason });
                break;
            }
        }
        offset += end.map_or(rest.len(), |end| end + 1);
        line += 1;
    }
    Ok(Contents { header, events, torn })
}

fn parse_line(line: &[u8], expected_seq: u64) -> Result<Event, String> {
    let event: Event = serde_json::from_slice(line).map_err(|error| format!("the line is not an event: {error}"))?;
    if event.seq == expected_seq {
        Ok(event)
    } else {
        Err(format!("its seq is {}, where {expected_seq} was expected", event.seq))
    }
}

/// A session's file, open for writing.
pub struct JsonlLog {
    path: PathBuf,
    id: String,
    /// Absent until the first append.
    file: Option<Arc<File>>,
    len: u64,
    unsynced: Arc<AtomicBool>,
    directory_synced: bool,
}

/// What [`JsonlLog::open`] found.
pub struct Opened {
    pub log: JsonlLog,
    pub state: SessionState,
    /// What was cut from the end of the file.
    pub torn: Option<TornTail>,
}

impl JsonlLog {
    /// A session that has no file yet. Nothing is written before the first event.
    pub fn create(dir: &Path, id: &str) -> Result<JsonlLog, StoreError> {
        Ok(JsonlLog {
            path: session_path(dir, id)?,
            id: id.to_owned(),
            file: None,
            len: 0,
            unsynced: Arc::new(AtomicBool::new(false)),
            directory_synced: false,
        })
    }

    /// Opens an existing session for writing, or prepares a new one when there is no file. A torn tail is cut.
    /// Errors: another process writes it, it is damaged, or it is not a regular file.
    pub fn open(dir: &Path, id: &str) -> Result<Opened, StoreError> {
        let mut log = JsonlLog::create(dir, id)?;
        let path = log.path.clone();
        let mut file = match open_options().open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Opened { log, state: SessionState::default(), torn: None });
            }
            Err(error) => return Err(open_error(&path, error)),
        };
        lock(&path, &file)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io_error(&path, "read"))?;
        if !bytes.contains(&b'\n') {
            // A crash during the very first write: no record of it was ever acknowledged.
            file.set_len(0).map_err(io_error(&path, "cut"))?;
            std::fs::remove_file(&path).map_err(io_error(&path, "removed"))?;
            return Ok(Opened { log, state: SessionState::default(), torn: None });
        }
        let contents = parse(&path, &bytes)?;
        log.len = contents.torn.as_ref().map_or(bytes.len() as u64, |torn| torn.offset);
        if contents.torn.is_some() {
            file.set_len(log.len).and_then(|()| file.sync_all()).map_err(io_error(&path, "cut"))?;
        }
        file.seek(SeekFrom::Start(log.len)).map_err(io_error(&path, "read"))?;
        let mut state = SessionState::default();
        for event in &contents.events {
            state.apply(event.time, &event.body);
        }
        log.file = Some(Arc::new(file));
        log.directory_synced = true;
        Ok(Opened { log, state, torn: contents.torn })
    }

    /// The session's file, which exists once the first event has been written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn create_file(&mut self, created_at: u64) -> Result<Arc<File>, StoreError> {
        if let Some(dir) = self.path.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(io_error(dir, "created"))?;
        }
        let file = open_options().create_new(true).open(&self.path).map_err(|error| open_error(&self.path, error))?;
        lock(&self.path, &file)?;
        let file = Arc::new(file);
        self.file = Some(file.clone());
        let header = FileHeader {
            r#type: HeaderType::Session,
            version: FORMAT_VERSION,
            id: self.id.clone(),
            created_at,
            dialect: Dialect::ClosedStep,
        };
        self.write_line(&file, &header)?;
        Ok(file)
    }

    fn write_line(&mut self, mut file: &File, value: &impl Serialize) -> Result<(), StoreError> {
        let mut line = serde_json::to_vec(value).map_err(|error| StoreError::Io {
            path: self.path.display().to_string(),
            action: "encoded",
            source: error.into(),
        })?;
        line.push(b'\n');
        if let Err(write) = file.write_all(&line) {
            let path = self.path.display().to_string();
            // What stands of the half-written line is taken back, so that the log stays readable.
            return match file.set_len(self.len).and_then(|()| file.seek(SeekFrom::Start(self.len))) {
                Ok(_) => Err(StoreError::Io { path, action: "written", source: write }),
                Err(rollback) => Err(StoreError::Rollback { path, write, rollback }),
            };
        }
        self.len += line.len() as u64;
        self.unsynced.store(true, Ordering::Release);
        Ok(())
    }
}

fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

fn open_error(path: &Path, error: io::Error) -> StoreError {
    if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
        StoreError::NotAFile { path: path.display().to_string() }
    } else {
        io_error(path, "opened")(error)
    }
}

/// The operating system drops the lock when its owner dies.
fn lock(path: &Path, file: &File) -> Result<(), StoreError> {
    if !file.metadata().map_err(io_error(path, "read"))?.is_file() {
        return Err(StoreError::NotAFile { path: path.display().to_string() });
    }
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::Locked { path: path.display().to_string() }),
        Err(error) => Err(io_error(path, "locked")(error.into())),
    }
}

impl Log for JsonlLog {
    fn write(&mut self, event: &Event) -> Result<(), StoreError> {
        let file = match &self.file {
            Some(file) => file.clone(),
            None => self.create_file(event.time)?,
        };
        self.write_line(&file, event)
    }

    fn durable(&mut self) -> BoxFuture<'static, Result<(), StoreError>> {
        let (Some(file), true) = (self.file.clone(), self.unsynced.swap(false, Ordering::AcqRel)) else {
            return Box::pin(std::future::ready(Ok(())));
        };
        let path = self.path.clone();
        // A new file survives a crash only when its directory's entry does.
        let directory =
            (!std::mem::replace(&mut self.directory_synced, true)).then(|| path.parent().map(Path::to_owned)).flatten();
        Box::pin(async move {
            let shown = path.clone();
            let synced = tokio::task::spawn_blocking(move || {
                file.sync_data()?;
                if let Some(directory) = directory {
                    File::open(directory)?.sync_all()?;
                }
                Ok(())
            });
            synced.await.unwrap_or_else(|join| Err(io::Error::other(join))).map_err(io_error(&shown, "flushed to disk"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::event::{StepEnd, StepRef, TurnEnd, TurnEndReason, TurnStart};
    use std::os::unix::fs::PermissionsExt;

    fn turn(turn: u64) -> Vec<Body> {
        vec![
            Body::TurnStart(TurnStart { turn, retry_of: None }),
            Body::StepStart(StepRef { turn, step: 1 }),
            Body::StepEnd(StepEnd { turn, step: 1, failure: None }),
            Body::TurnEnd(TurnEnd { turn, reason: TurnEndReason::Completed }),
        ]
    }

    fn write_session(dir: &Path, bodies: Vec<Body>) -> Vec<Event> {
        let mut log = JsonlLog::create(dir, "s").unwrap();
        let events: Vec<_> = bodies
            .into_iter()
            .enumerate()
            .map(|(seq, body)| Event { seq: seq as u64, time: 5, body, source_event_seqs: None })
            .collect();
        for event in &events {
            log.write(event).unwrap();
        }
        events
    }

    #[test]
    fn nothing_is_written_before_the_first_event_and_the_file_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let log = JsonlLog::create(dir.path(), "s").unwrap();
        assert!(!log.path().exists());
        write_session(dir.path(), turn(1));
        let mode = std::fs::metadata(log.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn what_was_written_is_read_back() {
        let dir = tempfile::tempdir().unwrap();
        let events = write_session(dir.path(), turn(1));
        let contents = read(&dir.path().join("s.jsonl")).unwrap();
        assert_eq!(contents.events, events);
        assert_eq!(contents.torn, None);
    }

    #[test]
    fn a_second_writer_is_refused_while_the_first_lives() {
        let dir = tempfile::tempdir().unwrap();
        write_session(dir.path(), turn(1));
        let first = JsonlLog::open(dir.path(), "s").unwrap();
        assert!(matches!(JsonlLog::open(dir.path(), "s"), Err(StoreError::Locked { .. })));
        drop(first);
        assert!(JsonlLog::open(dir.path(), "s").is_ok());
    }

    #[test]
    fn a_file_cut_at_any_byte_keeps_every_closed_turn_that_was_complete() {
        let dir = tempfile::tempdir().unwrap();
        let mut bodies = turn(1);
        bodies.extend(turn(2));
        write_session(dir.path(), bodies);
        let path = dir.path().join("s.jsonl");
        let bytes = std::fs::read(&path).unwrap();
        let header_end = bytes.iter().position(|&b| b == b'\n').unwrap() + 1;
        for cut in header_end..bytes.len() {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let complete = bytes[header_end..cut].iter().filter(|&&b| b == b'\n').count();
            let opened = JsonlLog::open(dir.path(), "s").unwrap();
            assert_eq!(opened.state.next_seq as usize, complete, "cut at byte {cut}");
            assert_eq!(opened.torn.is_some(), bytes[cut - 1] != b'\n', "cut at byte {cut}");
        }
    }

    #[test]
    fn damage_before_a_closed_turn_is_refused_with_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let mut bodies = turn(1);
        bodies.extend(turn(2));
        write_session(dir.path(), bodies);
        let path = dir.path().join("s.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        let damaged = text.replacen("\"seq\":2", "\"seq\":9", 1);
        std::fs::write(&path, &damaged).unwrap();
        match JsonlLog::open(dir.path(), "s") {
            Err(StoreError::Damaged { line: 4, offset, reason, .. }) => {
                assert_eq!(offset as usize, text.lines().take(3).map(|line| line.len() + 1).sum::<usize>());
                assert!(reason.contains("expected"), "{reason}");
            }
            other => panic!("{:?}", other.err()),
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), damaged, "the damaged file is left as it was");
    }

    #[test]
    fn a_symbolic_link_is_never_followed() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("target");
        std::fs::write(&target, "").unwrap();
        std::os::unix::fs::symlink(&target, dir.path().join("s.jsonl")).unwrap();
        assert!(matches!(JsonlLog::open(dir.path(), "s"), Err(StoreError::NotAFile { .. })));
    }

    #[test]
    fn a_session_name_cannot_leave_the_directory() {
        for id in ["", "../x", "a/b", ".hidden", "a b", &"x".repeat(129)] {
            assert!(session_path(Path::new("/s"), id).is_err(), "{id:?}");
        }
        assert!(session_path(Path::new("/s"), "2026-01-01_a.b").is_ok());
    }
}
