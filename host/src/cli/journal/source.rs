//! Which session a command is about: a file's path, or the id of one in a store of the home.

use crate::{
    journal::{
        JsonlStore, SqliteStore, Store, StoreError,
        jsonl::session_path,
        record::{self, Contents},
        verify::{Report, unreadable, verify_bytes, verify_session},
    },
    profile::Home,
};
use anyhow::Context;
use std::{path::PathBuf, rc::Rc};

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
    /// `name` is a session's id, or a path when it ends in `.jsonl` or has a separator.
    pub fn find(home: &Home, name: &str) -> anyhow::Result<Source> {
        if name.ends_with(".jsonl") || name.contains(std::path::is_separator) {
            return Ok(Source::File(PathBuf::from(name)));
        }
        session_path(&home.sessions_dir(), name)?;
        for store in stores(home) {
            if let Some(found) = store.list()?.into_iter().find(|listed| listed.id == name) {
                return Ok(Source::Stored { store, id: found.id, modified_ms: found.modified_ms });
            }
        }
        anyhow::bail!("There is no session \"{name}\" in {}.", home.sessions_dir().display())
    }

    /// Every session of the home, by store and id, and what kept a whole store from being read.
    pub fn listed(home: &Home) -> (Vec<Source>, Vec<StoreError>) {
        let (mut sources, mut errors) = (Vec::new(), Vec::new());
        for store in stores(home) {
            match store.list() {
                Ok(listed) => sources.extend(listed.into_iter().map(|listed| Source::Stored {
                    store: store.clone(),
                    id: listed.id,
                    modified_ms: listed.modified_ms,
                })),
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

    /// The session that was written to last.
    pub fn newest(home: &Home) -> anyhow::Result<Source> {
        Source::all(home)?.into_iter().max_by_key(Source::modified_ms).context("There are no sessions yet.")
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
    pub fn raw(&self) -> anyhow::Result<Vec<u8>> {
        match self {
            Source::File(path) => std::fs::read(path).with_context(|| format!("{} could not be read", path.display())),
            Source::Stored { store, id, .. } => {
                store.raw(id)?.with_context(|| format!("{} has been removed.", self.name()))
            }
        }
    }

    pub fn read(&self) -> anyhow::Result<Contents> {
        Ok(record::parse(&self.name(), &self.raw()?)?)
    }

    /// Errors: it cannot be read. A session that a store keeps must have its own name there; a copy may have any.
    pub fn verify(&self) -> anyhow::Result<Report> {
        let (name, raw) = (self.name(), self.raw()?);
        if let Some(why) = unreadable(&raw) {
            anyhow::bail!("{name} could not be read: {why}.");
        }
        Ok(match self {
            Source::File(_) => verify_bytes(&name, &raw),
            Source::Stored { id, .. } => verify_session(&name, id, &raw),
        })
    }
}
