//! Which session a command is about: a file's path, or the id of one in a store of the home.

use crate::{
    journal::{
        JsonlStore, SqliteStore, Store, StoreError,
        jsonl::{read_raw, session_path},
        record::{self, Contents, Raw},
        sqlite,
        store::Listed,
        verify::{Finding, Report, unreadable, verify_bytes, verify_session},
    },
    profile::Home,
};
use anyhow::Context;
use std::{
    path::{Path, PathBuf},
    rc::Rc,
};

/// A session's record, found.
pub(super) enum Source {
    File(PathBuf),
    Stored { store: Rc<dyn Store>, id: String, modified_ms: u64 },
}

/// The stores of a home.
fn stores(home: &Home) -> [Rc<dyn Store>; 2] {
    let dir = home.sessions_dir();
    [Rc::new(JsonlStore::new(&dir)), Rc::new(SqliteStore::new(&dir))]
}

impl Source {
    /// `name` is a session's id, or the path of a file: it ends in `.jsonl`, has a separator, or is there.
    pub fn find(home: &Home, name: &str) -> anyhow::Result<Source> {
        if name.ends_with(".jsonl") || name.contains(std::path::is_separator) {
            return Ok(Source::File(PathBuf::from(name)));
        }
        session_path(&home.sessions_dir(), name)?;
        let (sources, errors) = Source::listed(home);
        if let Some(source) = sources.into_iter().find(|source| source.id() == name) {
            return Ok(source);
        }
        // A store that cannot be read may be the one that has it.
        if let Some(error) = errors.into_iter().next() {
            return Err(error.into());
        }
        if Path::new(name).is_file() {
            return Ok(Source::File(PathBuf::from(name)));
        }
        anyhow::bail!("There is no session \"{name}\" in {}.", home.sessions_dir().display())
    }

    /// The sessions that `name` stands for: those of a database when it is the path of one, and else the one of
    /// [`Source::find`].
    pub fn find_all(home: &Home, name: &str) -> anyhow::Result<Vec<Source>> {
        let path = Path::new(name);
        if path.file_name().is_none_or(|name| name != sqlite::FILE_NAME) || !path.is_file() {
            return Ok(vec![Source::find(home, name)?]);
        }
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(Source::of(Rc::new(SqliteStore::new(dir)))?)
    }

    fn of(store: Rc<dyn Store>) -> Result<Vec<Source>, StoreError> {
        let stored =
            |listed: Listed| Source::Stored { store: store.clone(), id: listed.id, modified_ms: listed.modified_ms };
        Ok(store.list()?.into_iter().map(stored).collect())
    }

    /// Every session of the home, by store and id, and what kept a whole store from being read.
    pub fn listed(home: &Home) -> (Vec<Source>, Vec<StoreError>) {
        let (mut sources, mut errors) = (Vec::new(), Vec::new());
        for store in stores(home) {
            match Source::of(store) {
                Ok(listed) => sources.extend(listed),
                Err(error) => errors.push(error),
            }
        }
        (sources, errors)
    }

    /// Every session of the home. Errors: there is none, or a store cannot be read.
    pub fn all(home: &Home) -> anyhow::Result<Vec<Source>> {
        let (sources, errors) = Source::listed(home);
        if let Some(error) = errors.into_iter().next() {
            return Err(error.into());
        }
        anyhow::ensure!(
            !sources.is_empty(),
            "There are no sessions in {} yet; `retake demo` makes one.",
            home.sessions_dir().display()
        );
        Ok(sources)
    }

    /// The session that was written to last, in a store that can be read.
    pub fn newest(home: &Home) -> anyhow::Result<Source> {
        match Source::listed(home).0.into_iter().max_by_key(Source::modified_ms) {
            Some(source) => Ok(source),
            None => Source::all(home)?.pop().context("There are no sessions yet."),
        }
    }

    /// When it was last written, in milliseconds since the Unix epoch.
    pub fn modified_ms(&self) -> u64 {
        match self {
            Source::File(_) => 0,
            Source::Stored { modified_ms, .. } => *modified_ms,
        }
    }

    /// What people call it.
    pub fn name(&self) -> String {
        match self {
            Source::File(path) => path.display().to_string(),
            Source::Stored { store, id, .. } => store.name_of(id),
        }
    }

    /// Its id, as its store knows it.
    pub fn id(&self) -> String {
        match self {
            Source::File(path) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            Source::Stored { id, .. } => id.clone(),
        }
    }

    /// The process that writes it now, where that can be told.
    pub fn written_by(&self) -> Option<u32> {
        match self {
            Source::File(_) => None,
            Source::Stored { store, id, .. } => store.writer_of(id),
        }
    }

    /// The record as bytes.
    pub fn raw(&self) -> Result<Raw, StoreError> {
        match self {
            Source::File(path) => read_raw(path),
            Source::Stored { store, id, .. } => {
                store.raw(id)?.ok_or_else(|| StoreError::Missing { id: id.clone(), path: self.name() })
            }
        }
    }

    pub fn read(&self) -> Result<Contents, StoreError> {
        record::parse(&self.name(), &self.raw()?)
    }

    /// Errors: it cannot be read. A session that a store keeps must have its own name there; a copy may have any.
    pub fn verify(&self) -> Result<Report, StoreError> {
        let (name, raw) = (self.name(), self.raw()?);
        if let Some(why) = unreadable(&raw.bytes) {
            return Err(StoreError::Unreadable { path: name, reason: why.to_owned() });
        }
        let mut report = match self {
            Source::File(_) => verify_bytes(&name, &raw.bytes),
            Source::Stored { id, .. } => verify_session(&name, id, &raw.bytes),
        };
        if let Some(reason) = raw.lost {
            let line = 1 + raw.bytes.iter().filter(|&&byte| byte == b'\n').count();
            let message = format!("Events are missing from here on: {reason}.");
            report.findings.push(Finding { line, offset: raw.bytes.len() as u64, rule: "lost-events", message });
        }
        Ok(report)
    }
}
