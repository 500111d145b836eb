//! Adds what a build of guests lacks: the rustup target, else Debian's compiler with its library source.

use crate::{
    Progress, TARGET, Toolchain, ToolchainError, environment,
    find::has_linker,
    process::{self, Ended},
};
use std::{path::Path, process::Command, time::Duration};

/// Debian's compiler for browsers: it is kept current in stable releases, and comes with its library's source.
pub(crate) const PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];

/// What a person can run, to end a sentence with.
pub(crate) const WAYS: &str = "run one of these:
  rustup target add wasm32-unknown-unknown
  sudo apt-get install -y --no-install-recommends rustc-web cargo-web rust-web-src    (Debian and its kin)";

/// rustup fetches some 30 MB; where it cannot, it says so within seconds or hangs.
const RUSTUP_LIMIT: Duration = Duration::from_secs(180);
/// apt fetches some 200 MB, perhaps behind another apt.
const APT_LIMIT: Duration = Duration::from_secs(1_200);

/// Tries rustup, then apt, and looks again after each.
pub(crate) fn install(progress: &mut dyn Progress) -> Result<Toolchain, ToolchainError> {
    let mut tried = Vec::new();
    for attempt in [add_rustup_target, add_debian_packages] {
        match attempt(progress) {
            Ok(()) => match Toolchain::find() {
                Ok(toolchain) => return Ok(toolchain),
                Err(ToolchainError::NoTarget { found }) => {
                    tried.push(format!("- It was installed, and still {found}."))
                }
                Err(other) => return Err(other),
            },
            Err(reason) => {
                progress.line(&reason);
                tried.push(format!("- {reason}"));
            }
        }
    }
    Err(ToolchainError::NotInstalled { tried: tried.join("\n") })
}

fn add_rustup_target(progress: &mut dyn Progress) -> Result<(), String> {
    attempt(environment::command("rustup").args(["target", "add", TARGET]), RUSTUP_LIMIT, progress)
}

fn add_debian_packages(progress: &mut dyn Progress) -> Result<(), String> {
    if !Path::new("/usr/bin/apt-get").is_file() {
        return Err("There is no apt-get here.".into());
    }
    let sudo = if is_root() {
        false
    } else if attempt(environment::command("sudo").args(["-n", "true"]), Duration::from_secs(10), &mut |_: &str| {})
        .is_ok()
    {
        true
    } else {
        return Err("`apt-get` needs root, and `sudo` needs a password.".into());
    };
    let apt = |arguments: &[&str], progress: &mut dyn Progress| {
        let mut command = environment::command(if sudo { "sudo" } else { "/usr/bin/apt-get" });
        if sudo {
            // Named to env, since sudo does not hand variables on.
            command.args(["-n", "/usr/bin/env", "DEBIAN_FRONTEND=noninteractive", "/usr/bin/apt-get"]);
        }
        attempt(command.env("DEBIAN_FRONTEND", "noninteractive").args(arguments), APT_LIMIT, progress)
    };
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(PACKAGES);
    if !has_linker() {
        install.push("lld");
    }
    // The lists may be missing or stale: where the first try fails, they are renewed. A machine that is up to date
    // is so spared the wait.
    apt(&install, progress).or_else(|_| apt(&["update"], progress).and_then(|()| apt(&install, progress)))
}

/// Runs a command and shows its lines; the error is a sentence with the last lines that it printed.
fn attempt(command: &mut Command, limit: Duration, progress: &mut dyn Progress) -> Result<(), String> {
    let shown = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|part| part.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ");
    progress.line(&format!("$ {shown}"));
    let mut said = Vec::new();
    let ended = process::run(command, Some(limit), |_, line| {
        progress.line(line);
        said.push(line.trim().to_owned());
    });
    match ended {
        Ok(ended) if ended.success() => Ok(()),
        Ok(Ended::TimedOut) => Err(format!("`{shown}` did not end within {} s.", limit.as_secs())),
        Ok(Ended::Exited(status)) => {
            let from = said.len().saturating_sub(4);
            Err(format!("`{shown}` failed ({status}): {}", said[from..].join(" ").trim()))
        }
        Err(error) => Err(format!("`{shown}` could not be started: {error}.")),
    }
}

/// Whether this process may install packages. Apt is Linux's, and there the owner of this file is the process's user.
fn is_root() -> bool {
    #[cfg(target_os = "linux")]
    {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
    }
    #[cfg(not(target_os = "linux"))]
    {
        false
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_failed_attempt_says_what_was_run_and_what_it_printed() {
        let mut lines = Vec::new();
        let reason = attempt(&mut shell("echo no route to host >&2; exit 7"), RUSTUP_LIMIT, &mut |line: &str| {
            lines.push(line.to_owned());
        })
        .unwrap_err();
        assert!(reason.contains("no route to host") && reason.contains("exit status: 7"), "{reason}");
        assert_eq!(lines.last().unwrap(), "no route to host");
        assert!(lines[0].starts_with("$ /bin/sh"));
    }

    #[test]
    fn an_attempt_that_hangs_is_ended() {
        let reason = attempt(&mut shell("exec sleep 60"), Duration::from_millis(50), &mut |_: &str| {}).unwrap_err();
        assert!(reason.contains("did not end"), "{reason}");
    }

    #[test]
    fn a_program_that_is_missing_is_a_reason() {
        let reason = attempt(&mut Command::new("/nonexistent/rustup"), RUSTUP_LIMIT, &mut |_: &str| {}).unwrap_err();
        assert!(reason.contains("/nonexistent/rustup"), "{reason}");
    }
}
