//! Where guest builds keep their files, and how a finished file gets to its place.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// The target directory for guests, `guest` in the target directory that contains `inside` (an `OUT_DIR`, or a path
/// of a built program). It is one of its own, so that a guest build never waits for the lock that an outer cargo
/// holds, and its standard library is compiled once for all guests.
pub fn guest_target_dir(inside: &Path) -> PathBuf {
    // Cargo marks the top of every target directory with this file. Where it is missing (a moved program, an unusual
    // build tool), the directory of `inside` serves.
    let top = inside.ancestors().skip(1).find(|dir| dir.join("CACHEDIR.TAG").is_file());
    top.or_else(|| inside.parent()).unwrap_or(inside).join("guest")
}

/// Writes a file whole: a reader sees the old bytes or the new, never a part. Does nothing when the bytes are there
/// already, so that nobody who watches the file is woken for nothing. Returns whether it wrote.
///
/// Errors: what the file system says; the old file is then untouched.
pub fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(false);
    }
    // Named after the process, so that two writers of one file never share a temporary one.
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(name);
    let written = File::create(&temporary)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written.map(|()| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guest_directory_stands_at_the_top_of_the_target_directory() {
        let root = tempfile::tempdir().unwrap();
        let out = root.path().join("target/debug/build/retake-0123/out");
        fs::create_dir_all(&out).unwrap();
        fs::write(root.path().join("target/CACHEDIR.TAG"), "Signature").unwrap();
        assert_eq!(guest_target_dir(&out), root.path().join("target/guest"));
    }

    #[test]
    fn without_a_mark_the_guest_directory_stands_beside_the_path() {
        assert_eq!(guest_target_dir(Path::new("/nonexistent/bin/retake")), Path::new("/nonexistent/bin/guest"));
    }

    #[test]
    fn a_file_is_written_whole_and_only_when_it_differs() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x.wasm");
        assert!(write_whole(&path, b"one").unwrap());
        assert!(!write_whole(&path, b"one").unwrap());
        assert!(write_whole(&path, b"two").unwrap());
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1, "no temporary file may remain");
    }

    #[test]
    fn a_directory_that_is_not_there_is_an_error() {
        assert!(write_whole(Path::new("/nonexistent/x.wasm"), b"one").is_err());
    }
}
