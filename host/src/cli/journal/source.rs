//! Which session a command is about: a file's path, or the id of one in the home.

use crate::{
    journal::{
        jsonl::{self, Contents},
        verify::{Report, verify_file},
    },
    profile::Home,
};
use anyhow::Context;
use std::path::PathBuf;

/// A session's record, found.
pub(super) struct Source(PathBuf);

impl Source {
    /// `name` is a session's id, or a path when it ends in `.jsonl` or has a separator.
    pub fn find(home: &Home, name: &str) -> anyhow::Result<Source> {
        if name.ends_with(".jsonl") || name.contains(std::path::is_separator) {
            return Ok(Source(PathBuf::from(name)));
        }
        let sessions = home.sessions_dir();
        let path = jsonl::session_path(&sessions, name)?;
        anyhow::ensure!(path.exists(), "There is no session \"{name}\" in {}.", sessions.display());
        Ok(Source(path))
    }

    /// Every session of the home, by name.
    pub fn all(home: &Home) -> anyhow::Result<Vec<Source>> {
        let sessions = home.sessions_dir();
        let none = || format!("There are no sessions in {} yet; `retake demo` makes one.", sessions.display());
        let mut paths: Vec<_> = std::fs::read_dir(&sessions)
            .with_context(none)?
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
            .collect();
        anyhow::ensure!(!paths.is_empty(), none());
        paths.sort();
        Ok(paths.into_iter().map(Source).collect())
    }

    /// The session that was written to last.
    pub fn newest(home: &Home) -> anyhow::Result<Source> {
        let modified = |source: &Source| source.0.metadata().and_then(|metadata| metadata.modified()).ok();
        Source::all(home)?.into_iter().max_by_key(modified).context("There are no sessions yet.")
    }

    pub fn read(&self) -> anyhow::Result<Contents> {
        Ok(jsonl::read(&self.0)?)
    }

    pub fn verify(&self) -> anyhow::Result<Report> {
        Ok(verify_file(&self.0)?)
    }
}
