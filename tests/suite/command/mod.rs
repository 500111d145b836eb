//! The `retake` command as a process: what it prints, how it exits, and what it leaves behind when it is stopped.

mod configuration;
mod files;
mod journal;
mod run;
mod stdout;
mod stop;
mod terminal;

use serde_json::Value;
use std::{
    ffi::OsStr,
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Condvar, Mutex},
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// How long a process may take to say what a test waits for. Far more than it needs, on a machine that does other things.
const PATIENCE: Duration = Duration::from_secs(60);

/// Five retries after waits of 20 ms, 40 ms, ….
const QUICK: &str = "{ mode: normal, backoff: { initialDelayMs: 20, maxDelayMs: 2000, jitterRatio: 0 } }";

/// Five retries, each after a wait that no test outlasts.
const SLOW: &str = "{ mode: normal, backoff: { initialDelayMs: 600000, maxDelayMs: 600000, jitterRatio: 0 } }";

/// A home directory of its own for each test.
struct Home(TempDir);

impl Home {
    fn new() -> Home {
        let home = Home(tempfile::tempdir().unwrap());
        // One compile cache for all: the official component is compiled once, not once a test.
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("command-cache");
        fs::create_dir_all(&cache).unwrap();
        std::os::unix::fs::symlink(&cache, home.path("cache")).unwrap();
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// The profile `p`, whose one provider is at `endpoint`: `chaos: '…'` or `baseUrl: …`.
    fn profile(&self, endpoint: &str, policy: &str) -> PathBuf {
        self.write(
            "profiles/p/profile.yml",
            format!(
                "model: {{ provider: mock, model: mock-1 }}\nproviders:\n  - provider: mock\n    \
                 adapter: openai-chat\n    {endpoint}\n    retryPolicy: {policy}\n"
            ),
        )
    }

    /// The same with a chaos provider that plays `script` for each distinct request.
    fn chaos(script: &str, policy: &str) -> Home {
        let home = Home::new();
        home.profile(&format!("chaos: '{script}'"), policy);
        home
    }

    fn command(&self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_retake-under-test"));
        command.args(arguments).env("RETAKE_HOME", self.0.path()).env_remove("RETAKE_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    fn retake<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Finished {
        Running::start(&mut self.command(arguments)).finish()
    }

    /// `retake run -p p …`.
    fn run<const N: usize>(&self, arguments: [&str; N]) -> Finished {
        self.retake(["run", "-p", "p"].into_iter().chain(arguments))
    }

    fn start_run<const N: usize>(&self, arguments: [&str; N]) -> Running {
        Running::start(&mut self.command(["run", "-p", "p"].into_iter().chain(arguments)))
    }

    /// The paths of all journals.
    fn journals(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("sessions")).into_iter().flatten();
        entries
            .map(|entry| entry.unwrap().path())
            // Beside a journal lies the lock of its writer.
            .filter(|path| path.extension().is_some_and(|extension| extension == "jsonl"))
            .collect()
    }

    /// The events of the home's one session; every line of the file must be complete.
    fn events(&self) -> Vec<Value> {
        let [journal] = &self.journals()[..] else { panic!("one journal was expected: {:?}", self.journals()) };
        let text = fs::read_to_string(journal).unwrap();
        assert!(text.ends_with('\n'), "the last line is not complete: {text}");
        let lines = json_lines(&text);
        let (header, events) = lines.split_first().unwrap();
        assert_eq!(header["type"], "session");
        for (seq, event) in events.iter().enumerate() {
            assert_eq!(event["seq"], seq);
        }
        events.to_vec()
    }
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
}

fn of_type<'e>(events: &'e [Value], name: &str) -> Vec<&'e Value> {
    events.iter().filter(|event| event["type"] == name).collect()
}

/// What a process left.
struct Finished {
    /// None when a signal ended it.
    code: Option<i32>,
    out: String,
    err: String,
}

impl Finished {
    #[track_caller]
    fn expect(self, code: i32) -> Finished {
        assert_eq!(self.code, Some(code), "stdout: {}\nstderr: {}", self.out, self.err);
        self
    }

    #[track_caller]
    fn says(self, words: &[&str]) -> Finished {
        for word in words {
            assert!(self.err.contains(word), "{word:?} is not in stderr: {}", self.err);
        }
        self
    }
}

/// A process in flight, its output read as it comes. Killed with the test.
struct Running {
    child: Child,
    out: Stream,
    err: Stream,
}

impl Running {
    /// Starts a command whose stdout is piped, and whose stderr may be.
    fn start(command: &mut Command) -> Running {
        let mut child = command.spawn().unwrap();
        let out = Stream::read(child.stdout.take().unwrap());
        let err = match child.stderr.take() {
            Some(stderr) => Stream::read(stderr),
            None => Stream::read(std::io::empty()),
        };
        Running { child, out, err }
    }

    /// Gives the process its whole stdin, which must be piped.
    fn feed(&mut self, input: &str) {
        self.child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    }

    /// Waits until stderr contains a text.
    #[track_caller]
    fn until_stderr(&mut self, text: &str) {
        assert!(self.err.wait_for(text), "stderr never said {text:?}: {}", self.err.text());
    }

    /// Waits for the first line of stdout.
    #[track_caller]
    fn first_line(&mut self) -> String {
        assert!(self.out.wait_for("\n"), "stdout has no line; stderr: {}", self.err.text());
        self.out.text().lines().next().unwrap().to_owned()
    }

    fn interrupt(&self) {
        self.signal(libc::SIGINT);
    }

    fn signal(&self, signal: i32) {
        // SAFETY: a plain system call; the child has not been waited for, so that the id is still its own.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    fn finish(mut self) -> Finished {
        drop(self.child.stdin.take());
        let deadline = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "the process does not end; stderr: {}", self.err.text());
            std::thread::sleep(Duration::from_millis(2));
        };
        Finished { code: status.code(), out: self.out.whole(), err: self.err.whole() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail when it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What one stream of a process said so far.
struct Stream {
    said: Arc<(Mutex<Vec<u8>>, Condvar)>,
    reader: Option<JoinHandle<()>>,
}

impl Stream {
    fn read(mut source: impl Read + Send + 'static) -> Stream {
        let said = Arc::new((Mutex::new(Vec::new()), Condvar::new()));
        let written = said.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // A terminal whose other side is closed ends in an error instead of an end.
            while let Ok(count @ 1..) = source.read(&mut buffer) {
                written.0.lock().unwrap().extend_from_slice(&buffer[..count]);
                written.1.notify_all();
            }
        });
        Stream { said, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.said.0.lock().unwrap()).into_owned()
    }

    fn wait_for(&self, text: &str) -> bool {
        let (said, changed) = &*self.said;
        let missing = |bytes: &mut Vec<u8>| !String::from_utf8_lossy(bytes).contains(text);
        let (_guard, result) = changed.wait_timeout_while(said.lock().unwrap(), PATIENCE, missing).unwrap();
        !result.timed_out()
    }

    /// Everything, when the stream has ended.
    fn whole(&mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.text()
    }
}
