//! `retake chaos`: runs the chaos provider until Ctrl-C. Thin: the server is in [`crate::chaos`].

use crate::{
    chaos::{
        ChaosEvent, ChaosOptions, ChaosServer, RawEnd, RecordedRequest, SCRIPT_LANGUAGE, Script, ScriptScope, Step,
    },
    env::{Clock as _, SystemClock},
};
use anyhow::Context as _;
use serde_json::{Map, Value, json};
use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};
use tokio::sync::mpsc;

/// Headers whose values are credentials; a record shows that they were there and no more.
const SECRET_HEADERS: [&str; 6] =
    ["authorization", "proxy-authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie"];

/// Run a local model provider that fails on a script.
///
/// It speaks streaming chat completions over HTTP on this machine alone. The first line on stdout is the base URL to
/// use in a profile; then stderr gets one line for each request that was answered.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = script_help())]
pub struct Args {
    /// What to do with each request, for instance `429:retry-after=1, 503*2, cut:3, ok`
    #[arg(long, value_name = "SCRIPT", default_value = "ok")]
    pub script: Script,
    /// Answer every request, whatever its path, with the bytes of this file, and close the connection
    #[arg(long, value_name = "FILE", conflicts_with = "script")]
    pub raw: Option<PathBuf>,
    /// Where to listen: a loopback address; port 0 takes any free port
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,
    /// Play the script separately for each distinct request body, so that each of many turns sees all of it
    #[arg(long)]
    pub per_body: bool,
    /// Append one JSON line for each request to this file; credentials are left out
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Print no line for each request
    #[arg(long, short)]
    pub quiet: bool,
}

/// The script language for `--help`: the documented text without its code fences.
fn script_help() -> String {
    let lines = SCRIPT_LANGUAGE.lines().filter(|line| !line.starts_with("```"));
    format!("The script language:\n\n{}", lines.collect::<Vec<_>>().join("\n"))
}

/// Runs the command until Ctrl-C; the exit status is 0.
///
/// # Errors
/// The address or a file cannot be used, or the record cannot be written.
pub async fn run(args: Args) -> anyhow::Result<u8> {
    let mut record = args.record.as_deref().map(open_record).transpose()?;
    let script = match &args.raw {
        Some(file) => {
            let bytes =
                std::fs::read(file).with_context(|| format!("cannot read the raw response {}", file.display()))?;
            Script::of([Step::raw(bytes, RawEnd::Close)]).looping()
        }
        None => args.script,
    };
    let (events, mut arrivals) = mpsc::unbounded_channel();
    let options = ChaosOptions {
        listen: args.listen,
        scope: if args.per_body { ScriptScope::PerBody } else { ScriptScope::Global },
        any_path: args.raw.is_some(),
        keep_bytes: 0,
        events: Some(events),
    };
    let server = ChaosServer::start(script, options).await?;
    let mut stdout = io::stdout();
    writeln!(stdout, "{}", server.base_url()).and_then(|()| stdout.flush()).context("cannot print the base URL")?;

    let mut report = Report { quiet: args.quiet, open: HashMap::new() };
    loop {
        tokio::select! {
            signal = tokio::signal::ctrl_c() => {
                signal.context("cannot wait for Ctrl-C")?;
                break;
            }
            Some(event) = arrivals.recv() => report.take(event, record.as_mut())?,
        }
    }
    // Responses that were cut off by the shutdown are reported too.
    server.shutdown().await;
    while let Ok(event) = arrivals.try_recv() {
        report.take(event, record.as_mut())?;
    }
    Ok(0)
}

fn open_record(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot append to the record {}", path.display()))
}

/// Prints and records what the server tells.
struct Report {
    quiet: bool,
    /// Requests whose response is not over.
    open: HashMap<u64, Arc<RecordedRequest>>,
}

impl Report {
    fn take(&mut self, event: ChaosEvent, record: Option<&mut File>) -> anyhow::Result<()> {
        match event {
            ChaosEvent::Arrived(request) => {
                if let Some(file) = record {
                    let line = format!("{}\n", record_line(&request, SystemClock.wall_ms()));
                    file.write_all(line.as_bytes()).context("cannot write to the record")?;
                }
                self.open.insert(request.number, request);
            }
            ChaosEvent::Answered { number, sent } => {
                if let Some(request) = self.open.remove(&number)
                    && !self.quiet
                {
                    let received = request.head.len() + request.body.len();
                    let step = request.step.as_deref().unwrap_or("(refused)");
                    // A closed stderr is no reason to stop serving.
                    let _ = writeln!(io::stderr(), "#{number} {step} · {received} bytes in · {sent} bytes out");
                }
            }
        }
        Ok(())
    }
}

/// One request as a JSON document. Header names are in lower case, and values of repeated ones are joined.
fn record_line(request: &RecordedRequest, time: u64) -> Value {
    let mut headers = Map::new();
    for (name, value) in &request.headers {
        let name = name.to_ascii_lowercase();
        let value = if SECRET_HEADERS.contains(&name.as_str()) { "(left out)" } else { value };
        let joined = match headers.get(&name).and_then(Value::as_str) {
            Some(before) => format!("{before}, {value}"),
            None => value.to_owned(),
        };
        headers.insert(name, joined.into());
    }
    json!({
        "number": request.number,
        "time": time,
        "step": request.step,
        "method": request.method,
        "path": request.target,
        "headers": headers,
        "body": request.body_text(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use clap::Parser;
    use tokio::time::Instant;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parse(arguments: &[&str]) -> Result<Args, String> {
        let all = ["chaos"].iter().chain(arguments);
        Command::try_parse_from(all).map(|command| command.args).map_err(|error| error.to_string())
    }

    fn request() -> RecordedRequest {
        RecordedRequest {
            number: 7,
            arrived: Instant::now(),
            method: "POST".into(),
            target: "/v1/chat/completions".into(),
            headers: vec![
                ("Authorization".into(), "Bearer sk-secret".into()),
                ("X-A".into(), "1".into()),
                ("x-a".into(), "2".into()),
            ],
            head: Bytes::from_static(b"head"),
            body: Bytes::from_static(b"{\"a\":\xff}"),
            step: Some("503".into()),
        }
    }

    #[test]
    fn a_record_line_is_readable_and_holds_no_credential() {
        let line = record_line(&request(), 5).to_string();
        assert_eq!(
            line,
            "{\"number\":7,\"time\":5,\"step\":\"503\",\"method\":\"POST\",\"path\":\"/v1/chat/completions\",\
             \"headers\":{\"authorization\":\"(left out)\",\"x-a\":\"1, 2\"},\"body\":\"{\\\"a\\\":\u{fffd}}\"}"
        );
    }

    #[test]
    fn a_wrong_script_is_a_usage_error_with_its_sentence() {
        let error = parse(&["--script", "ok, nap"]).unwrap_err();
        assert!(error.contains("`nap` at column 5 is no step"), "{error}");
        assert!(parse(&["--script", "503*2, ok"]).is_ok());
        assert!(parse(&["--script", "ok", "--raw", "file"]).is_err());
    }

    #[test]
    fn the_long_help_holds_the_script_language() {
        let help = parse(&["--help"]).unwrap_err();
        assert!(help.contains("stall        N  ms=MS  ping=MS"), "{help}");
        assert!(!help.contains("```"), "{help}");
    }

    #[tokio::test]
    async fn an_address_that_others_can_reach_is_refused() {
        let error = run(parse(&["--listen", "0.0.0.0:0"]).unwrap()).await.unwrap_err().to_string();
        assert!(error.contains("0.0.0.0:0 can be reached from others"), "{error}");
    }

    #[test]
    fn each_request_is_appended_to_the_record() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("requests.jsonl");
        for _ in 0..2 {
            let mut file = open_record(&path).unwrap();
            let mut report = Report { quiet: true, open: HashMap::new() };
            report.take(ChaosEvent::Arrived(Arc::new(request())), Some(&mut file)).unwrap();
            assert_eq!(report.open.len(), 1);
            report.take(ChaosEvent::Answered { number: 7, sent: 9 }, Some(&mut file)).unwrap();
            assert!(report.open.is_empty());
        }
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(text.lines().count(), 2);
        assert!(text.lines().all(|line| serde_json::from_str::<Value>(line).unwrap()["number"] == 7));
    }
}
