//! Finds a way to build WebAssembly on this machine, and turns a plugin crate into a component.
//!
//! It owns the search for a compiler ([`Toolchain`]), the installation of what is missing, and one guest build
//! ([`build_component`]). It never touches the crate's sources, never runs what it built, and does no network work
//! unless [`Toolchain::find_or_install`] was asked to install, or cargo must fetch a dependency.
//! Called by the host's build script, by `retake-setup`, by `retake plugin build` and by the tests' guests.

mod build;
pub mod build_script;
mod environment;
mod find;
mod install;
mod place;
mod process;

pub use build::{BuildError, Built, build_component};
pub use find::{MINIMUM_RUST, Toolchain, ToolchainError};
pub use place::{guest_target_dir, write_whole};

/// The target of every guest: the bare machine, without WASI.
pub const TARGET: &str = "wasm32-unknown-unknown";

/// Hears what is being done, one line at a time, for people. Any `FnMut(&str)` is one.
pub trait Progress {
    /// One line without its end. It may stand still for a minute between two lines.
    fn line(&mut self, text: &str);
}

impl<F: FnMut(&str)> Progress for F {
    fn line(&mut self, text: &str) {
        self(text);
    }
}
