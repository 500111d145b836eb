//! Compiled components on disk.
//!
//! A file is named after the component's digest and the engine's compatibility, and its header repeats both with the
//! length and the digest of what follows. Loading compiled code runs it: so it is read whole, checked, and loaded from
//! the checked bytes, never from a mapping that could change underneath. Whatever does not match is a miss, and the
//! component is compiled again. A cache that cannot be written is a warning.
//!
//! The digest guards against damage, not against an attacker who can write the directory: it is the user's own and
//! files are readable by the user alone. Called by `compile`, on its threads.

use sha2::{Digest as _, Sha256};
use std::{
    fs,
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::SystemTime,
};

/// The size to which old entries are pruned when one is added, in bytes.
const MAX_BYTES: u64 = 1 << 30;

const MAGIC: &[u8] = b"retake compiled component 1\n";

const EXTENSION: &str = "cwasm";

pub(super) struct Cache {
    dir: Option<PathBuf>,
    compatibility: String,
    warned: AtomicBool,
}

impl Cache {
    /// A cache in `dir`, which is made when the first entry is written; without one, everything is a miss.
    pub(super) fn new(dir: Option<PathBuf>, compatibility: String) -> Cache {
        Cache { dir, compatibility, warned: AtomicBool::new(false) }
    }

    /// The compiled code of the component with this digest, if an undamaged entry for this engine exists.
    pub(super) fn load(&self, digest: &str) -> Option<Vec<u8>> {
        let path = self.path(digest)?;
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "a compiled component could not be read; compiling again");
                return None;
            }
        };
        let payload = self.verified(digest, &bytes);
        if payload.is_none() {
            tracing::warn!(path = %path.display(), "a compiled component is damaged or foreign; compiling again");
        }
        payload.map(<[u8]>::to_vec)
    }

    /// Keeps compiled code. Readers see the old entry or the new, never a part of one.
    pub(super) fn store(&self, digest: &str, payload: &[u8]) {
        let (Some(path), Some(dir)) = (self.path(digest), &self.dir) else { return };
        if let Err(error) = self.write(dir, &path, digest, payload)
            && !self.warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                dir = %dir.display(), %error,
                "compiled components cannot be kept in the cache; they will be compiled anew at each start"
            );
        }
    }

    /// Forgets an entry that passed its checks and could still not be loaded.
    pub(super) fn discard(&self, digest: &str) {
        if let Some(path) = self.path(digest) {
            // A file that cannot be removed is overwritten by the entry that is about to be compiled.
            let _ = fs::remove_file(path);
        }
    }

    fn path(&self, digest: &str) -> Option<PathBuf> {
        let name = format!("{digest}-{}.{EXTENSION}", &self.compatibility[..16]);
        self.dir.as_ref().map(|dir| dir.join(name))
    }

    fn header(&self, digest: &str, payload: &[u8]) -> Vec<u8> {
        let mut header = MAGIC.to_vec();
        for line in [digest, &self.compatibility, &payload.len().to_string(), &super::hex(&Sha256::digest(payload))] {
            header.extend_from_slice(line.as_bytes());
            header.push(b'\n');
        }
        header
    }

    fn verified<'a>(&self, digest: &str, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let mut rest = bytes.strip_prefix(MAGIC)?;
        for _ in 0..4 {
            let end = rest.iter().position(|&byte| byte == b'\n')?;
            rest = &rest[end + 1..];
        }
        // The header is a function of what it describes, so it is checked by writing it once more.
        let header = self.header(digest, rest);
        (bytes.len() == header.len() + rest.len() && bytes.starts_with(&header)).then_some(rest)
    }

    fn write(&self, dir: &Path, path: &Path, digest: &str, payload: &[u8]) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        // `tempfile` makes files of mode 0600.
        let mut file = tempfile::Builder::new().prefix(".compiling-").tempfile_in(dir)?;
        file.write_all(&self.header(digest, payload))?;
        file.write_all(payload)?;
        file.as_file().sync_all()?;
        file.persist(path).map_err(|error| error.error)?;
        prune(dir, path, MAX_BYTES);
        Ok(())
    }
}

/// Removes the oldest entries until the directory's are within `max_bytes`; never `keep`.
fn prune(dir: &Path, keep: &Path, max_bytes: u64) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    let mut entries: Vec<(SystemTime, u64, PathBuf)> = entries
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == EXTENSION))
        .filter_map(|entry| {
            let meta = entry.metadata().ok()?;
            Some((meta.modified().ok()?, meta.len(), entry.path()))
        })
        .collect();
    entries.sort();
    let mut total: u64 = entries.iter().map(|(_, len, _)| len).sum();
    for (_, len, path) in entries {
        if total <= max_bytes {
            break;
        }
        if path != keep && fs::remove_file(&path).is_ok() {
            total -= len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "aa";

    fn cache(dir: &Path) -> Cache {
        Cache::new(Some(dir.to_owned()), "0123456789abcdef0123".into())
    }

    fn only_file(dir: &Path) -> PathBuf {
        let mut files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let file = files.next().unwrap();
        assert_eq!(files.next(), None);
        file
    }

    #[test]
    fn what_was_stored_is_loaded_again() {
        let dir = tempfile::tempdir().unwrap();
        cache(dir.path()).store(DIGEST, b"code");
        assert_eq!(cache(dir.path()).load(DIGEST).as_deref(), Some(&b"code"[..]));
        assert_eq!(cache(dir.path()).load("bb"), None);
    }

    #[test]
    fn every_truncation_and_every_flipped_bit_is_a_miss() {
        let dir = tempfile::tempdir().unwrap();
        let cache = cache(dir.path());
        cache.store(DIGEST, b"compiled code");
        let file = only_file(dir.path());
        let good = fs::read(&file).unwrap();
        for end in 0..good.len() {
            fs::write(&file, &good[..end]).unwrap();
            assert_eq!(cache.load(DIGEST), None, "truncated to {end}");
        }
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(&file, &bad).unwrap();
            assert_eq!(cache.load(DIGEST), None, "bit {bit} flipped");
        }
        let mut longer = good.clone();
        longer.push(0);
        fs::write(&file, &longer).unwrap();
        assert_eq!(cache.load(DIGEST), None, "longer");
        fs::write(&file, &good).unwrap();
        assert!(cache.load(DIGEST).is_some());
    }

    #[test]
    fn an_entry_of_another_engine_or_component_is_a_miss() {
        let dir = tempfile::tempdir().unwrap();
        let mine = cache(dir.path());
        mine.store(DIGEST, b"code");
        // The same first digits, so the same file name, but another engine.
        let other = Cache::new(Some(dir.path().to_owned()), "0123456789abcdefffff".into());
        assert_eq!(other.load(DIGEST), None);
        fs::rename(only_file(dir.path()), mine.path("bb").unwrap()).unwrap();
        assert_eq!(mine.load("bb"), None);
    }

    #[test]
    fn a_cache_that_cannot_be_written_is_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "in the way").unwrap();
        let cache = cache(&file);
        cache.store(DIGEST, b"code");
        assert_eq!(cache.load(DIGEST), None);
        assert!(cache.warned.load(Ordering::Relaxed));
    }

    #[cfg(unix)]
    #[test]
    fn entries_are_readable_by_their_owner_alone() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        cache(dir.path()).store(DIGEST, b"code");
        assert_eq!(fs::metadata(only_file(dir.path())).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn the_oldest_entries_are_pruned_and_the_newest_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let paths: Vec<_> = (0..3).map(|n| dir.path().join(format!("{n}.{EXTENSION}"))).collect();
        for (n, path) in paths.iter().enumerate() {
            fs::write(path, [0; 10]).unwrap();
            let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(n as u64);
            fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        }
        prune(dir.path(), &paths[0], 25);
        assert_eq!(paths.iter().map(|path| path.exists()).collect::<Vec<_>>(), [true, false, true]);
    }
}
