//! The environment of a guest build: this process's own, without what an outer cargo, clippy or make put there.
//!
//! A build script inherits flags, wrappers and a compiler that were chosen for the native build. A guest build that
//! saw them would compile with the wrong compiler, or rebuild everything whenever `cargo clippy` follows
//! `cargo build`. What the person set for all of cargo (homes, proxies, registries) stays.

use std::{ffi::OsStr, process::Command};

/// Variables of cargo that configure where crates come from, rather than how this crate is built.
const KEPT_PREFIXES: [&str; 5] = ["CARGO_HTTP_", "CARGO_NET_", "CARGO_REGISTR", "CARGO_SOURCE_", "CARGO_CACHE_"];

/// A command that runs in the scrubbed environment.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    let inside_cargo = std::env::var_os("CARGO").is_some();
    for (name, _) in std::env::vars_os() {
        let is_foreign = name.to_str().is_some_and(|name| is_foreign(name, inside_cargo));
        if is_foreign {
            command.env_remove(name);
        }
    }
    command
}

/// Whether a variable belongs to an outer build.
fn is_foreign(name: &str, inside_cargo: bool) -> bool {
    if name == "CARGO_HOME" || KEPT_PREFIXES.iter().any(|kept| name.starts_with(kept)) {
        return false;
    }
    name.starts_with("CARGO")
        || name.starts_with("RUSTC")
        || name.starts_with("RUSTDOC")
        || name.starts_with("CLIPPY_")
        // A jobserver of an outer make or cargo: its file descriptors do not reach this child.
        || matches!(name, "RUSTFLAGS" | "MAKEFLAGS" | "MFLAGS" | "MAKELEVEL")
        || inside_cargo
            && matches!(
                name,
                "TARGET" | "HOST" | "PROFILE" | "OPT_LEVEL" | "DEBUG" | "NUM_JOBS" | "OUT_DIR" | "LD_LIBRARY_PATH" | "DYLD_FALLBACK_LIBRARY_PATH"
            )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_outer_build_chose_is_foreign() {
        for name in
            ["CARGO", "CARGO_MANIFEST_DIR", "CARGO_ENCODED_RUSTFLAGS", "CARGO_TARGET_DIR", "CARGO_PROFILE_RELEASE_LTO"]
        {
            assert!(is_foreign(name, false), "{name}");
        }
        for name in ["RUSTC", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS", "RUSTDOCFLAGS", "CLIPPY_ARGS", "MAKEFLAGS"] {
            assert!(is_foreign(name, false), "{name}");
        }
    }

    #[test]
    fn what_a_person_set_for_all_of_cargo_stays() {
        for name in [
            "CARGO_HOME",
            "RUSTUP_HOME",
            "RUSTUP_TOOLCHAIN",
            "PATH",
            "HOME",
            "HTTPS_PROXY",
            "CARGO_HTTP_PROXY",
            "CARGO_NET_OFFLINE",
            "CARGO_REGISTRIES_MINE_INDEX",
            "CARGO_REGISTRY_TOKEN",
        ] {
            assert!(!is_foreign(name, true), "{name}");
        }
    }

    #[test]
    fn a_build_scripts_own_names_are_foreign_only_inside_cargo() {
        for name in ["TARGET", "OUT_DIR", "LD_LIBRARY_PATH", "DEBUG"] {
            assert!(is_foreign(name, true), "{name}");
            assert!(!is_foreign(name, false), "{name}");
        }
    }
}
