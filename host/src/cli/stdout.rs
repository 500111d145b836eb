//! Writes what was asked for to stdout.
//!
//! A reader that has had enough closes the pipe, which is no error; anything else that keeps the text from arriving is.
//! `println!` would panic at either. Called by every command that prints.

use anyhow::Context;
use std::io::{self, Write};

/// Writes a text as it is.
///
/// # Errors
/// Not all of it could be written, for instance since the disk is full.
pub(super) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("stdout could not be written"),
        _ => Ok(()),
    }
}

/// Writes a text and a line end.
///
/// # Errors
/// As [`print`].
pub(super) fn print_line(text: &str) -> anyhow::Result<()> {
    print(&format!("{text}\n"))
}
