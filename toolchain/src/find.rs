//! The search for a compiler that can build guests. Looks only; what it lacks, `install` may add.

use crate::{Progress, TARGET, environment, install};
use std::{
    fmt,
    path::{Path, PathBuf},
};

/// The oldest Rust that builds this project and its plugins, as `major.minor`.
pub const MINIMUM_RUST: &str = env!("CARGO_PKG_RUST_VERSION");

/// A compiler for [`TARGET`], with all that a build needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    pub(crate) cargo: PathBuf,
    /// The compiler to name to cargo; `None` where cargo finds its own.
    pub(crate) rustc: Option<PathBuf>,
    pub(crate) library: Library,
    pub(crate) version: String,
}

/// Where the standard library of the target comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Library {
    /// It is installed, compiled.
    Compiled,
    /// Its source is installed and belongs to the compiler; the first guest build compiles it (about two minutes).
    Source { linker: PathBuf },
}

/// Why no toolchain can be had.
#[derive(Debug, thiserror::Error)]
pub enum ToolchainError {
    /// There is no cargo, or no compiler beside it.
    #[error(
        "No Rust was found: `rustc` or `cargo` is not on PATH. Install Rust {MINIMUM} or newer, for instance with \
         `curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh`, and try again.",
        MINIMUM = MINIMUM_RUST
    )]
    NoRust,
    /// There is a Rust, but none that can build WebAssembly.
    #[error("This machine cannot build WebAssembly: {found}. Run `make setup`, or {WAYS}", WAYS = install::WAYS)]
    NoTarget {
        /// What was found, one clause.
        found: String,
    },
    /// What would have helped could not be installed.
    #[error("The WebAssembly toolchain could not be installed.\n{tried}\nTo do it by hand, {WAYS}", WAYS = install::WAYS)]
    NotInstalled {
        /// Each attempt and how it failed, one a line.
        tried: String,
    },
}

impl Toolchain {
    /// Looks for a toolchain, in this order: the compiler on PATH with the target installed; Debian's compiler in
    /// `/usr/bin` with the target installed; either of them with its own library source and a linker. Starts at most
    /// five short processes; touches neither the network nor the disk.
    pub fn find() -> Result<Self, ToolchainError> {
        let compilers: Vec<Compiler> = [Compiler::on_path(), Compiler::of_debian()].into_iter().flatten().collect();
        if compilers.is_empty() {
            return Err(ToolchainError::NoRust);
        }
        choose(&compilers, || find_linker(&compilers)).ok_or_else(|| {
            let found = compilers.iter().map(|compiler| compiler.shortcoming()).collect::<Vec<_>>().join("; ");
            ToolchainError::NoTarget { found }
        })
    }

    /// As [`Toolchain::find`], and when nothing is there, installs what is missing: the rustup target, else Debian's
    /// packages. It asks nothing: `sudo` is used only where it needs no password.
    pub fn find_or_install(progress: &mut dyn Progress) -> Result<Self, ToolchainError> {
        match Self::find() {
            Err(ToolchainError::NoTarget { found }) => {
                progress.line(&format!("No WebAssembly toolchain yet: {found}."));
                install::install(progress)
            }
            other => other,
        }
    }

    /// Whether the first build of a target directory compiles the standard library, which takes about two minutes.
    pub fn compiles_library(&self) -> bool {
        matches!(self.library, Library::Source { .. })
    }
}

impl fmt::Display for Toolchain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let compiler = self.rustc.as_deref().unwrap_or(Path::new("rustc"));
        write!(f, "{} {} for {TARGET}", compiler.display(), self.version)?;
        match &self.library {
            Library::Compiled => Ok(()),
            Library::Source { linker } => {
                write!(f, ", standard library from source, linked by {}", linker.display())
            }
        }
    }
}

/// A compiler that was found, and what it has.
#[derive(Clone, Debug)]
struct Compiler {
    cargo: PathBuf,
    rustc: Option<PathBuf>,
    version: String,
    sysroot: PathBuf,
    host: String,
}

impl Compiler {
    fn on_path() -> Option<Self> {
        // Asked, not only found: a rustup proxy without a toolchain is on PATH and still no cargo.
        ask(environment::command("cargo").arg("--version"))?;
        Self::probe("cargo".into(), None)
    }

    fn of_debian() -> Option<Self> {
        let (cargo, rustc) = (PathBuf::from("/usr/bin/cargo"), PathBuf::from("/usr/bin/rustc"));
        if cargo.is_file() && rustc.is_file() { Self::probe(cargo, Some(rustc)) } else { None }
    }

    fn probe(cargo: PathBuf, rustc: Option<PathBuf>) -> Option<Self> {
        let program = rustc.clone().unwrap_or_else(|| "rustc".into());
        let version = ask(environment::command(&program).arg("-vV"))?;
        let sysroot = ask(environment::command(&program).args(["--print", "sysroot"]))?.trim_end().into();
        let field = |name: &str| version.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        Some(Compiler { cargo, rustc, version: field("release: ")?, sysroot, host: field("host: ")? })
    }

    fn is_new_enough(&self) -> bool {
        fn number(text: &str) -> Option<(u32, u32)> {
            let mut parts = text.split(['.', '-']);
            Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
        }
        number(&self.version) >= number(MINIMUM_RUST)
    }

    fn has_target(&self) -> bool {
        self.sysroot.join("lib/rustlib").join(TARGET).join("lib").is_dir()
    }

    fn has_source(&self) -> bool {
        self.sysroot.join("lib/rustlib/src/rust/library/std/Cargo.toml").is_file()
    }

    fn own_linker(&self) -> PathBuf {
        self.sysroot.join("lib/rustlib").join(&self.host).join("bin/rust-lld")
    }

    /// Why this compiler was not taken, as a clause of a sentence.
    fn shortcoming(&self) -> String {
        let name = self.rustc.as_deref().unwrap_or(Path::new("rustc")).display();
        let version = &self.version;
        if !self.is_new_enough() {
            format!("{name} is {version}, older than {MINIMUM_RUST}")
        } else if self.has_source() {
            format!("{name} {version} has the library's source but no linker (`rust-lld` or `wasm-ld`) is installed")
        } else {
            format!("{name} {version} has neither the target {TARGET} nor the library's source")
        }
    }

    fn with(&self, library: Library) -> Toolchain {
        Toolchain { cargo: self.cargo.clone(), rustc: self.rustc.clone(), library, version: self.version.clone() }
    }
}

/// The first compiler with the target; else the first with its own source, if there is a linker.
fn choose(compilers: &[Compiler], linker: impl FnOnce() -> Option<PathBuf>) -> Option<Toolchain> {
    let usable = || compilers.iter().filter(|compiler| compiler.is_new_enough());
    if let Some(compiler) = usable().find(|compiler| compiler.has_target()) {
        return Some(compiler.with(Library::Compiled));
    }
    let compiler = usable().find(|compiler| compiler.has_source())?;
    Some(compiler.with(Library::Source { linker: linker()? }))
}

/// A linker for WebAssembly: that of a compiler's own distribution, else one on PATH.
fn find_linker(compilers: &[Compiler]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).flat_map(|dir| [dir.join("rust-lld"), dir.join("wasm-ld")]);
    compilers.iter().map(Compiler::own_linker).chain(on_path).find(|linker| linker.is_file())
}

/// Whether a linker stands anywhere that [`Toolchain::find`] looks.
pub(crate) fn has_linker() -> bool {
    find_linker(&[Compiler::on_path(), Compiler::of_debian()].into_iter().flatten().collect::<Vec<_>>()).is_some()
}

/// What a command prints, if it succeeds.
fn ask(command: &mut std::process::Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    String::from_utf8(output.stdout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn compiler(sysroot: &Path, version: &str) -> Compiler {
        Compiler {
            cargo: "cargo".into(),
            rustc: None,
            version: version.into(),
            sysroot: sysroot.into(),
            host: "some-host".into(),
        }
    }

    fn add(sysroot: &Path, file: &str) {
        let path = sysroot.join("lib/rustlib").join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "").unwrap();
    }

    const SOURCE: &str = "src/rust/library/std/Cargo.toml";
    const COMPILED: &str = "wasm32-unknown-unknown/lib/libstd.rlib";

    #[test]
    fn an_installed_target_wins_over_a_source_that_comes_first() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        add(first.path(), SOURCE);
        add(second.path(), COMPILED);
        let compilers = [compiler(first.path(), "1.95.0"), compiler(second.path(), "1.96.0")];
        let chosen = choose(&compilers, || Some("rust-lld".into())).unwrap();
        assert_eq!((chosen.library, chosen.version.as_str()), (Library::Compiled, "1.96.0"));
    }

    #[test]
    fn a_source_needs_a_linker() {
        let root = tempfile::tempdir().unwrap();
        add(root.path(), SOURCE);
        let compilers = [compiler(root.path(), "1.96.0")];
        assert_eq!(choose(&compilers, || None), None);
        assert!(compilers[0].shortcoming().contains("no linker"));
        let chosen = choose(&compilers, || Some("/x/rust-lld".into())).unwrap();
        assert_eq!(chosen.library, Library::Source { linker: "/x/rust-lld".into() });
        assert!(chosen.compiles_library());
    }

    #[test]
    fn a_compiler_older_than_the_project_is_passed_over() {
        let root = tempfile::tempdir().unwrap();
        add(root.path(), COMPILED);
        let compilers = [compiler(root.path(), "1.63.0")];
        assert_eq!(choose(&compilers, || None), None);
        assert!(compilers[0].shortcoming().contains("1.63.0, older than"));
        assert!(choose(&[compiler(root.path(), "2.0.0-nightly")], || None).is_some());
    }

    #[test]
    fn the_linker_of_a_compilers_own_distribution_is_found() {
        let root = tempfile::tempdir().unwrap();
        add(root.path(), "some-host/bin/rust-lld");
        let found = find_linker(&[compiler(root.path(), "1.96.0")]).unwrap();
        assert_eq!(found, root.path().join("lib/rustlib/some-host/bin/rust-lld"));
    }

    #[test]
    fn the_error_says_what_is_missing_and_what_to_install() {
        let root = tempfile::tempdir().unwrap();
        let found = compiler(root.path(), "1.96.0").shortcoming();
        let text = ToolchainError::NoTarget { found }.to_string();
        assert!(text.contains("neither the target wasm32-unknown-unknown"), "{text}");
        assert!(text.contains("rustup target add wasm32-unknown-unknown"), "{text}");
        assert!(text.contains("apt-get install -y --no-install-recommends rustc-web cargo-web rust-web-src"), "{text}");
    }
}
