//! Runs one child process to its end, hands on its lines as they come, and ends it when its time is over.

use std::{
    io::{self, BufRead, BufReader, Read},
    process::{Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

/// Where a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Out,
    Err,
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Exited(ExitStatus),
    /// It ran longer than its limit and was killed.
    TimedOut,
}

impl Ended {
    pub(crate) fn success(self) -> bool {
        matches!(self, Ended::Exited(status) if status.success())
    }
}

/// Runs `command` with no input. `on_line` gets each line of both outputs, without its end; bytes that are no UTF-8
/// are replaced.
pub(crate) fn run(
    command: &mut Command,
    limit: Option<Duration>,
    mut on_line: impl FnMut(Source, &str),
) -> io::Result<Ended> {
    let started = Instant::now();
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let (sender, lines) = mpsc::channel();
    if let Some(out) = child.stdout.take() {
        forward(out, Source::Out, sender.clone());
    }
    if let Some(err) = child.stderr.take() {
        forward(err, Source::Err, sender.clone());
    }
    drop(sender);
    // The channel closes when both outputs are closed, which is when the child and its own children have ended.
    loop {
        let next = match limit {
            None => lines.recv().map_err(|_| mpsc::RecvTimeoutError::Disconnected),
            Some(limit) => lines.recv_timeout(limit.saturating_sub(started.elapsed())),
        };
        match next {
            Ok((source, line)) => on_line(source, &line),
            Err(mpsc::RecvTimeoutError::Disconnected) => return child.wait().map(Ended::Exited),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                child.kill()?;
                child.wait()?;
                return Ok(Ended::TimedOut);
            }
        }
    }
}

fn forward(output: impl Read + Send + 'static, source: Source, lines: mpsc::Sender<(Source, String)>) {
    thread::spawn(move || {
        let mut reader = BufReader::new(output);
        let mut line = Vec::new();
        // A read error ends the output, as its end does: the exit status tells the rest.
        while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
            let text = String::from_utf8_lossy(&line);
            if lines.send((source, text.trim_end_matches(['\n', '\r']).to_owned())).is_err() {
                return;
            }
            line.clear();
        }
    });
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
    fn lines_of_both_outputs_arrive_without_their_ends() {
        let mut lines = Vec::new();
        let ended = run(&mut shell("echo one; echo two >&2; printf three; exit 3"), None, |source, line| {
            lines.push((source, line.to_owned()));
        })
        .unwrap();
        lines.sort_by_key(|(source, _)| *source == Source::Err);
        let expected = [(Source::Out, "one"), (Source::Out, "three"), (Source::Err, "two")];
        assert_eq!(lines, expected.map(|(source, line)| (source, line.to_owned())));
        assert!(matches!(ended, Ended::Exited(status) if status.code() == Some(3)));
        assert!(!ended.success());
    }

    #[test]
    fn a_child_that_outlives_its_limit_is_killed() {
        let started = Instant::now();
        let ended = run(&mut shell("exec sleep 60"), Some(Duration::from_millis(50)), |_, _| {}).unwrap();
        assert_eq!(ended, Ended::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        assert!(run(&mut Command::new("/nonexistent/program"), None, |_, _| {}).is_err());
    }
}
