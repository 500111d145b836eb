//! The right to write a session: one process has it at a time, and the operating system takes it back when that
//! process dies.
//!
//! The lease is a lock on the file `<id>.lock` beside the sessions, which holds the writer's process id for the one
//! that comes too late. Taken by every store before it opens a session for writing.

use super::store::StoreError;
use rustix::fs::{FlockOperation, OFlags, flock};
use std::{
    fs::{DirBuilder, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// The right to write one session, until it is dropped.
pub(super) struct Lease {
    /// Its lock is the lease.
    file: File,
    path: PathBuf,
}

impl Lease {
    /// Takes the lease of session `id` in `dir`, which is created when it is absent; `record` is what an error calls
    /// the session. Errors: another process has it, or `dir` cannot be written.
    pub fn take(dir: &Path, id: &str, record: &str) -> Result<Lease, StoreError> {
        let failed = |path: &Path, action: &'static str| {
            let path = path.display().to_string();
            move |source: io::Error| StoreError::Io { path, action, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed(dir, "created"))?;
        let path = dir.join(format!("{id}.lock"));
        loop {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(OFlags::NOFOLLOW.bits() as i32)
                .open(&path)
                .map_err(failed(&path, "opened for writing"))?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    let mut text = String::new();
                    // Whoever holds it may be about to write its number; the sentence does without, then.
                    let _ = file.read_to_string(&mut text);
                    return Err(StoreError::Locked { path: record.to_owned(), by: text.trim().parse().ok() });
                }
                Err(error) => return Err(failed(&path, "locked")(error.into())),
            }
            // The last holder may have removed the file between the open and the lock: then the lock is of a file that
            // nobody else can find.
            let ours = file.metadata().map_err(failed(&path, "read"))?;
            if std::fs::symlink_metadata(&path)
                .is_ok_and(|found| found.ino() == ours.ino() && found.dev() == ours.dev())
            {
                // The number is for whoever comes too late. On a full disk the lock serves without it.
                let _ = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
                return Ok(Lease { file, path });
            }
        }
    }
}

/// The process that has the lease of session `id` in `dir` now, as far as can be told without being in its way.
pub(super) fn holder(dir: &Path, id: &str) -> Option<u32> {
    let mut file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NOFOLLOW.bits() as i32)
        .open(dir.join(format!("{id}.lock")))
        .ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let number: u32 = text.trim().parse().ok()?;
    let process = rustix::process::Pid::from_raw(i32::try_from(number).ok()?)?;
    // The file of a writer that was killed stays behind, and nobody may take even a moment's lock of it for nothing.
    if matches!(rustix::process::test_kill_process(process), Err(rustix::io::Errno::SRCH)) {
        return None;
    }
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Err(rustix::io::Errno::WOULDBLOCK) => Some(number),
        _ => None,
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // While the lock is still held, so that no other holder's file is taken away. What stays behind is harmless.
        let _ = std::fs::remove_file(&self.path);
        // Said aloud: a process that is being started this very moment holds a copy of the file for an instant.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_comes_too_late_is_told_who_writes() {
        let dir = tempfile::tempdir().unwrap();
        let lease = Lease::take(dir.path(), "s", "s.jsonl").unwrap();
        let Err(error) = Lease::take(dir.path(), "s", "s.jsonl") else { panic!("two leases") };
        let sentence = error.to_string();
        assert!(sentence.contains(&format!("another process ({})", std::process::id())), "{sentence}");
        assert!(Lease::take(dir.path(), "t", "t.jsonl").is_ok());
        drop(lease);
        assert!(!dir.path().join("s.lock").exists());
        assert!(Lease::take(dir.path(), "s", "s.jsonl").is_ok());
    }

    #[test]
    fn a_lock_file_that_a_dead_process_left_is_no_obstacle() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("s.lock"), "4194304\n").unwrap();
        drop(Lease::take(dir.path(), "s", "s.jsonl").unwrap());
    }
}
