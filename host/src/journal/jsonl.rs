//! The JSONL store: one file a session, a header line and then one line an event.
//!
//! Files are private (0600), created by the first append, locked by their one writer, and never followed through a
//! symbolic link. A torn tail after the last closed turn is cut when a writer opens the file; earlier damage is refused.

use super::{
    event::Event,
    lease::{self, Lease},
    record,
    store::{self, Listed, Log, Store, StoreError},
    sync::SharedSync,
};
use futures_util::future::BoxFuture;
use rustix::fs::{FlockOperation, OFlags, flock};
use serde::Serialize;
use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, SeekFrom, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
    time::UNIX_EPOCH,
};

pub use super::record::{Contents, Dialect, FORMAT_VERSION, FileHeader, HeaderType, Raw, TornTail, session_path};

/// What [`JsonlLog::open`] found.
pub type Opened = store::Opened<JsonlLog>;

fn io_error(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> StoreError {
    let path = path.display().to_string();
    move |source| StoreError::Io { path, action, source }
}

/// Reads a file without changing it. A torn tail and damage are reported, and left out.
pub fn read(path: &Path) -> Result<Contents, StoreError> {
    record::parse(&path.display().to_string(), &read_raw(path)?)
}

/// Reads a file's bytes. Errors: it is a link, a directory or a pipe, or cannot be read.
pub fn read_raw(path: &Path) -> Result<Raw, StoreError> {
    // A pipe would wait for its writer for ever.
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path);
    let mut file = opened.map_err(|error| open_error(path, error))?;
    if !file.metadata().map_err(io_error(path, "read"))?.is_file() {
        return Err(StoreError::NotAFile { path: path.display().to_string() });
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).map_err(io_error(path, "read"))?;
    Ok(Raw { bytes, lost: None })
}

/// A directory of sessions, one file each.
pub struct JsonlStore {
    dir: PathBuf,
}

impl JsonlStore {
    /// The store in `dir`, which is created with its first session.
    pub fn new(dir: &Path) -> JsonlStore {
        JsonlStore { dir: dir.to_owned() }
    }
}

impl Store for JsonlStore {
    fn open(&self, id: &str) -> Result<store::Opened, StoreError> {
        Ok(JsonlLog::open(&self.dir, id)?.boxed())
    }

    fn raw(&self, id: &str) -> Result<Option<Raw>, StoreError> {
        match read_raw(&session_path(&self.dir, id)?) {
            Ok(raw) => Ok(Some(raw)),
            Err(StoreError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn list(&self) -> Result<Vec<Listed>, StoreError> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error(&self.dir, "read")(error)),
        };
        let mut listed = Vec::new();
        for entry in entries {
            let path = entry.map_err(io_error(&self.dir, "read"))?.path();
            let Some(id) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".jsonl")) else { continue };
            if record::check_id(id).is_err() {
                continue;
            }
            let modified = path.symlink_metadata().and_then(|metadata| metadata.modified()).unwrap_or(UNIX_EPOCH);
            let modified_ms = modified.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
            listed.push(Listed { id: id.to_owned(), modified_ms });
        }
        listed.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(listed)
    }

    fn writer_of(&self, id: &str) -> Option<u32> {
        lease::holder(&self.dir, id)
    }

    fn name_of(&self, id: &str) -> String {
        self.dir.join(format!("{id}.jsonl")).display().to_string()
    }
}

/// A session's file, open for writing.
pub struct JsonlLog {
    path: PathBuf,
    id: String,
    /// Absent until the first append.
    file: Option<Arc<File>>,
    /// The length that the file has unless something else writes it.
    len: u64,
    sync: Arc<SharedSync>,
    /// The directory's entry of the file is new, and survives a crash only when the directory is flushed too.
    entry_is_new: bool,
    _lease: Lease,
}

impl JsonlLog {
    /// A session that has no file yet. Nothing of it is written before the first event. Errors: another process is
    /// about to write it, or the directory cannot be written.
    pub fn create(dir: &Path, id: &str) -> Result<JsonlLog, StoreError> {
        let path = session_path(dir, id)?;
        Ok(JsonlLog {
            _lease: Lease::take(dir, id, &path.display().to_string())?,
            path,
            id: id.to_owned(),
            file: None,
            len: 0,
            sync: Arc::default(),
            entry_is_new: false,
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
                return Ok(Opened::empty(log));
            }
            Err(error) => return Err(open_error(&path, error)),
        };
        lock(&path, &file)?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(io_error(&path, "read"))?;
        if !bytes.contains(&b'\n') {
            if !record::begins_a_header(&bytes) {
                let reason = "it has no header line".into();
                return Err(StoreError::Unsupported { path: path.display().to_string(), reason });
            }
            // A crash during the very first write: no record of it was ever acknowledged.
            file.set_len(0).map_err(io_error(&path, "cut"))?;
            std::fs::remove_file(&path).map_err(io_error(&path, "removed"))?;
            return Ok(Opened::empty(log));
        }
        let len = bytes.len() as u64;
        let contents = record::parse(&path.display().to_string(), &Raw { bytes, lost: None })?;
        if let Some(obstacle) = contents.obstacle() {
            return Err(StoreError::damaged(path.display().to_string(), obstacle));
        }
        log.len = contents.torn.as_ref().map_or(len, |torn| torn.offset);
        if contents.torn.is_some() {
            file.set_len(log.len).and_then(|()| file.sync_all()).map_err(io_error(&path, "cut"))?;
        }
        file.seek(SeekFrom::Start(log.len)).map_err(io_error(&path, "read"))?;
        log.file = Some(Arc::new(file));
        Ok(Opened { log, state: contents.state, torn: contents.torn })
    }

    /// The session's file, which exists once the first event has been written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Begins the file with its header and its first event. Both are there before the file has its name, so that a
    /// crash leaves a session or none.
    fn begin(&mut self, first: &Event) -> Result<(), StoreError> {
        let mut bytes = self.encode(&FileHeader::new(&self.id, first.time))?;
        bytes.extend(self.encode(first)?);
        let unnamed = self.path.with_extension("jsonl.new");
        // What a crash left of an earlier beginning; nobody else has the lease.
        let _ = std::fs::remove_file(&unnamed);
        let opened = open_options().create_new(true).open(&unnamed);
        let mut file = opened.map_err(|error| open_error(&self.path, error))?;
        lock(&self.path, &file)?;
        let named = file.write_all(&bytes).and_then(|()| name_file(&unnamed, &self.path));
        let _ = std::fs::remove_file(&unnamed);
        named.map_err(io_error(&self.path, "written"))?;
        self.file = Some(Arc::new(file));
        self.entry_is_new = true;
        self.len = bytes.len() as u64;
        self.sync.wrote();
        Ok(())
    }

    fn encode(&self, value: &impl Serialize) -> Result<Vec<u8>, StoreError> {
        let mut line = serde_json::to_vec(value).map_err(|error| StoreError::Io {
            path: self.path.display().to_string(),
            action: "encoded",
            source: error.into(),
        })?;
        line.push(b'\n');
        Ok(line)
    }

    fn write_line(&mut self, mut file: &File, event: &Event) -> Result<(), StoreError> {
        let line = self.encode(event)?;
        self.check_tail(file)?;
        if let Err(write) = file.write_all(&line) {
            let path = self.path.display().to_string();
            // What stands of the half-written line is taken back, so that the log stays readable.
            return match file.set_len(self.len).and_then(|()| file.seek(SeekFrom::Start(self.len))) {
                Ok(_) => Err(StoreError::Io { path, action: "written", source: write }),
                Err(rollback) => Err(StoreError::Rollback { path, write, rollback }),
            };
        }
        self.len += line.len() as u64;
        self.sync.wrote();
        Ok(())
    }

    /// The file is still in its place, and ends where this writer left it.
    fn check_tail(&self, file: &File) -> Result<(), StoreError> {
        let path = || self.path.display().to_string();
        let metadata = file.metadata().map_err(io_error(&self.path, "read"))?;
        let in_place = std::fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.ino(), found.dev()) == (metadata.ino(), metadata.dev()));
        if !in_place {
            return Err(StoreError::Vanished { path: path() });
        }
        if metadata.len() != self.len {
            let found = format!("its length is {} bytes", metadata.len());
            return Err(StoreError::Stale { path: path(), expected: self.len, found });
        }
        Ok(())
    }
}

fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

/// Gives a file its name, unless there is one of that name.
fn name_file(unnamed: &Path, name: &Path) -> io::Result<()> {
    match std::fs::hard_link(unnamed, name) {
        // Not every file system has links.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => std::fs::rename(unnamed, name),
        linked => linked,
    }
}

fn open_error(path: &Path, error: io::Error) -> StoreError {
    if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
        StoreError::NotAFile { path: path.display().to_string() }
    } else {
        io_error(path, "opened")(error)
    }
}

/// Beside the lease, so that a writer whose lock file was removed by hand keeps others out all the same.
fn lock(path: &Path, file: &File) -> Result<(), StoreError> {
    if !file.metadata().map_err(io_error(path, "read"))?.is_file() {
        return Err(StoreError::NotAFile { path: path.display().to_string() });
    }
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StoreError::Locked { path: path.display().to_string(), by: None }),
        Err(error) => Err(io_error(path, "locked")(error.into())),
    }
}

impl Drop for JsonlLog {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // Said aloud: a flush, or a process that is being started this very moment, may hold a copy of the file.
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}

impl Log for JsonlLog {
    fn write(&mut self, event: &Event) -> Result<(), StoreError> {
        match self.file.clone() {
            Some(file) => self.write_line(&file, event),
            None => self.begin(event),
        }
    }

    fn durable(&mut self) -> BoxFuture<'static, Result<(), StoreError>> {
        let Some(file) = self.file.clone() else { return Box::pin(std::future::ready(Ok(()))) };
        let path = self.path.clone();
        let directory = self.entry_is_new.then(|| path.parent().map(Path::to_owned)).flatten();
        let flushed = self.sync.flushed(move || {
            file.sync_data()?;
            directory.as_deref().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
        });
        Box::pin(async move { flushed.await.map_err(io_error(&path, "flushed to disk")) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{
        event::{Body, StepRef, TurnEnd, TurnEndReason},
        fixture::turn,
    };
    use std::os::unix::fs::PermissionsExt;

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
        let path = log.path().to_owned();
        assert!(!path.exists());
        drop(log);
        write_session(dir.path(), turn(1));
        let mode = std::fs::metadata(path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_session_is_there_with_its_first_event_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let begun = dir.path().join("s.jsonl.new");
        // What a crash leaves that comes before the file has its name.
        std::fs::write(&begun, "{\"type\":\"ses").unwrap();
        assert_eq!(JsonlStore::new(dir.path()).list().unwrap(), []);
        let events = write_session(dir.path(), turn(1));
        assert_eq!(read(&dir.path().join("s.jsonl")).unwrap().events, events);
        assert!(!begun.exists());
        // Somebody else's file of that name is not written over.
        let mut log = JsonlLog::create(dir.path(), "t").unwrap();
        std::fs::write(dir.path().join("t.jsonl"), "mine").unwrap();
        assert!(log.write(&events[0]).is_err());
        assert_eq!(std::fs::read_to_string(dir.path().join("t.jsonl")).unwrap(), "mine");
        assert!(!dir.path().join("t.jsonl.new").exists());
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

    #[test]
    fn a_writer_whose_file_grew_or_vanished_fails_without_damage() {
        let dir = tempfile::tempdir().unwrap();
        let events = write_session(dir.path(), turn(1));
        let path = dir.path().join("s.jsonl");
        let next = Event { seq: 4, ..events[0].clone() };
        let mut log = JsonlLog::open(dir.path(), "s").unwrap().log;
        let before = std::fs::read(&path).unwrap();
        std::fs::write(&path, [&before[..], b"{}\n"].concat()).unwrap();
        assert!(matches!(log.write(&next), Err(StoreError::Stale { .. })));
        assert_eq!(std::fs::read(&path).unwrap().len(), before.len() + 3, "nothing was added");
        std::fs::write(&path, &before).unwrap();
        std::fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        assert!(matches!(log.write(&next), Err(StoreError::Vanished { .. })));
        assert!(!path.exists());
        std::fs::remove_file(dir.path().join("elsewhere")).unwrap();
        assert!(matches!(log.write(&next), Err(StoreError::Vanished { .. })));
        assert!(!path.exists());
    }

    /// Runs itself as a child whose files may not grow beyond one block, with the signal for that ignored.
    #[test]
    fn a_full_disk_is_a_clear_error_and_leaves_nothing_torn() {
        const CHILD: &str = "RETAKE_TEST_FULL_DISK";
        if let Some(dir) = std::env::var_os(CHILD) {
            let mut log = JsonlLog::create(Path::new(&dir), "s").unwrap();
            let error = (0..).find_map(|seq| {
                let body = Body::StepStart(StepRef { turn: 1, step: 1 });
                log.write(&Event { seq, time: 5, body, source_event_seqs: None }).err()
            });
            let error = error.unwrap();
            assert!(error.is_momentary());
            let sentence = error.to_string();
            assert!(sentence.contains("s.jsonl could not be written: File too large"), "{sentence}");
            // Room is made: the log goes on where it stopped.
            let seq = read(log.path()).unwrap().events.len() as u64;
            let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize);
            let limit = rustix::process::Rlimit { current: limit.maximum, ..limit };
            rustix::process::setrlimit(rustix::process::Resource::Fsize, limit).unwrap();
            let body = Body::TurnEnd(TurnEnd { turn: 1, reason: TurnEndReason::Aborted });
            log.write(&Event { seq, time: 5, body, source_event_seqs: None }).unwrap();
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let name = "journal::jsonl::tests::a_full_disk_is_a_clear_error_and_leaves_nothing_torn";
        let child = std::process::Command::new("sh")
            .args(["-c", "trap '' XFSZ; ulimit -S -f 1; exec \"$0\" --exact \"$1\""])
            .arg(std::env::current_exe().unwrap())
            .arg(name)
            .env(CHILD, dir.path())
            .output()
            .unwrap();
        assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
        let contents = read(&dir.path().join("s.jsonl")).unwrap();
        assert_eq!(contents.torn, None);
        assert!(contents.events.len() > 2);
        assert!(matches!(contents.events.last().unwrap().body, Body::TurnEnd(_)));
    }

    #[test]
    fn a_file_that_was_never_a_session_is_refused_and_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s.jsonl");
        for foreign in [&b"notes of mine"[..], &[0x28, 0xb5, 0x2f, 0xfd, 1, 2, 3]] {
            std::fs::write(&path, foreign).unwrap();
            assert!(matches!(JsonlLog::open(dir.path(), "s"), Err(StoreError::Unsupported { .. })));
            assert_eq!(std::fs::read(&path).unwrap(), foreign);
        }
        // What a crash in the very first write leaves.
        for torn in [&b""[..], b"{\"type\":\"ses", b"{\"type\":\"session\",\"version\":1,\"i", &[0; 64]] {
            std::fs::write(&path, torn).unwrap();
            assert_eq!(JsonlLog::open(dir.path(), "s").unwrap().state.next_seq, 0);
        }
    }
}
