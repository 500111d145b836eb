//! `retake run`: prompts against a profile.

use super::{
    Exit, Global, runtime,
    stdout::print_line,
    terminal::{WaitLine, facts, observe, spawn_reload_lines},
};
use crate::{
    agent::{Session, Target, Tried, TurnOutcome},
    env::Env,
    journal::{
        Event, JsonlStore, SqliteStore, Store,
        projection::{RetryRow, RetryView},
    },
    llm::{Block, Failure, Usage},
    profile::{ComposedProfile, Home, Host, JournalKind, ProfileRef, ProfileSource, Watch, compose, watch},
};
use anyhow::{Context, anyhow};
use clap::Args;
use serde::Serialize;
use std::{
    io::{BufRead, IsTerminal},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

/// How long a compilation goes on before people are told about it.
const QUIET_COMPILE: Duration = Duration::from_millis(300);

#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  \
    retake run \"name one prime\"                      the built-in demo profile\n  \
    retake run --profile team \"summarise this\"       profiles/team/profile.yml in the home\n  \
    retake run --profile ./deepseek.yml \"hello\"      a profile file\n  \
    retake run --json \"name one prime\" | jq .event.type\n  \
    printf 'one\\ntwo\\n' | retake run                 one prompt a line\n  \
    retake run --resume ID                           go on with a failed turn after a crash\n\n\
    Ctrl-C cancels the turn; a second one ends the program at once.")]
pub(super) struct RunArgs {
    /// Prompts, each one turn of the same session; without any, one a line from stdin.
    #[arg(value_name = "PROMPT")]
    pub prompts: Vec<String>,
    #[command(flatten)]
    pub profile: ProfileArgs,
    /// The session to go on with or to begin [default: a new one].
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// Go on with this session's turn, which a crash interrupted: wait what remains, retry, answer. A request that was
    /// on its way is not repeated. Prompts follow when some are given.
    #[arg(long, value_name = "SESSION", conflicts_with = "session")]
    pub resume: Option<String>,
    /// Where sessions are kept, whatever the profile says.
    #[arg(long, value_name = "STORE", value_enum)]
    pub journal: Option<StoreName>,
    /// Print every event as one line of JSON, and last a line of type `result`.
    #[arg(long)]
    pub json: bool,
}

/// A kind of store, as `--journal` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum StoreName {
    /// A file for each session.
    Jsonl,
    /// One database for all.
    Sqlite,
}

impl StoreName {
    fn of(kind: JournalKind) -> StoreName {
        match kind {
            JournalKind::Jsonl => StoreName::Jsonl,
            JournalKind::Sqlite => StoreName::Sqlite,
        }
    }

    fn word(self) -> &'static str {
        match self {
            StoreName::Jsonl => "jsonl",
            StoreName::Sqlite => "sqlite",
        }
    }

    fn store(self, dir: &Path) -> Box<dyn Store> {
        match self {
            StoreName::Jsonl => Box::new(JsonlStore::new(dir)),
            StoreName::Sqlite => Box::new(SqliteStore::new(dir)),
        }
    }
}

/// The store that keeps, or is to keep, the session `id`. Errors: it stands in another store than the one that
/// `--journal` names, which would begin a second session of that name; or it is to be resumed and does not exist.
fn choose_store(args: &RunArgs, profile: JournalKind, dir: &Path, id: &str) -> anyhow::Result<Box<dyn Store>> {
    let wanted = args.journal.unwrap_or(StoreName::of(profile));
    let other = if wanted == StoreName::Jsonl { StoreName::Sqlite } else { StoreName::Jsonl };
    if wanted.store(dir).contains(id)? {
        return Ok(wanted.store(dir));
    }
    let elsewhere = match other.store(dir).contains(id) {
        Ok(elsewhere) => elsewhere,
        // A store that cannot be read keeps no session from being begun in the one that is asked for.
        Err(error) if args.resume.is_none() => {
            eprintln!("warning: {error}");
            false
        }
        Err(error) => return Err(error.into()),
    };
    // The profile says where new sessions go; an old one stays where it is.
    if elsewhere && args.journal.is_none() {
        return Ok(other.store(dir));
    }
    anyhow::ensure!(
        !elsewhere,
        "The session \"{id}\" is kept in the {} store: use --journal {}, or another --session.",
        other.word(),
        other.word()
    );
    anyhow::ensure!(args.resume.is_none(), "There is no session \"{id}\" in {}.", dir.display());
    Ok(wanted.store(dir))
}

#[derive(Args, Debug, Clone)]
pub(super) struct ProfileArgs {
    /// A profile's name in the home, a profile.yml, or a directory that holds one.
    #[arg(long, short, value_name = "PROFILE", default_value = "demo")]
    pub profile: String,
    /// A patch file that is laid over everything else; may be given several times.
    #[arg(long = "patch", value_name = "FILE")]
    pub patches: Vec<PathBuf>,
}

impl ProfileArgs {
    /// What the profile is composed from.
    pub fn source(&self, home: &Home) -> anyhow::Result<ProfileSource> {
        Ok(ProfileSource {
            home: home.clone(),
            profile: ProfileRef::parse(&self.profile)?,
            overlays: self.patches.clone(),
        })
    }

    /// The composed profile; its warnings go to stderr.
    pub fn compose(&self, home: &Home) -> anyhow::Result<ComposedProfile> {
        let profile = compose(home, &ProfileRef::parse(&self.profile)?, &self.patches)?;
        for warning in &profile.warnings {
            eprintln!("warning: {warning}");
        }
        Ok(profile)
    }
}

/// Starts a host for a profile, and tells people when a component takes long to compile.
pub(super) async fn start_host(profile: ComposedProfile, home: &Home, env: Env) -> anyhow::Result<Host> {
    let runtime = runtime(Some(home.cache_dir()))?;
    let environment = Arc::new(|name: &str| std::env::var(name).ok());
    let started = Host::start(profile, runtime.clone(), environment, env);
    tokio::pin!(started);
    tokio::select! {
        host = &mut started => Ok(host?),
        () = tokio::time::sleep(QUIET_COMPILE) => {
            for load in runtime.loads().borrow().iter() {
                eprintln!("Compiling component {} ({} KiB) …", load.digest.get(..12).unwrap_or(&load.digest), load.bytes / 1024);
            }
            Ok(started.await?)
        }
    }
}

/// Applies changes of the host's files while it runs, and tells people. Without a watch the host runs all the same.
pub(super) fn watch_host(host: &Arc<Host>, source: ProfileSource) -> Option<Watch> {
    let (reports, received) = tokio::sync::mpsc::unbounded_channel();
    spawn_reload_lines(received, host.clone());
    match watch(host.clone(), source, reports) {
        Ok(watch) => Some(watch),
        Err(error) => {
            eprintln!("warning: the profile's files cannot be watched ({error}); changes need a restart.");
            None
        }
    }
}

/// The last line of `--json`.
#[derive(Serialize)]
#[serde(tag = "type", rename = "result", rename_all = "camelCase")]
struct ResultLine<'a> {
    session_id: &'a str,
    output: &'a str,
    /// The tool calls of the answer, which nobody has run.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    tool_calls: &'a [Block],
    usage: Option<Usage>,
    /// `completed`, `failed` or `cancelled`; that of the last prompt.
    status: &'static str,
    /// The answer stopped at an output limit.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    max_tokens: bool,
    /// The sentence for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    /// The last request's failure, as in the journal.
    #[serde(skip_serializing_if = "Option::is_none")]
    failure: Option<&'a Failure>,
    /// What the sentence says, as data.
    #[serde(skip_serializing_if = "Option::is_none")]
    tried: Option<&'a Tried>,
    /// The session's newest retry, and what became of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    retry: Option<&'a RetryRow>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "session_event", rename_all = "camelCase")]
struct EventLine<'a> {
    session_id: &'a str,
    event: &'a Event,
}

pub(super) async fn run(global: &Global, mut args: RunArgs) -> anyhow::Result<Exit> {
    let home = global.home()?;
    let source = args.profile.source(&home)?;
    let profile = args.profile.compose(&home)?;
    let env = Env::system();
    let id = args.resume.clone().or(args.session.take()).unwrap_or_else(|| env.entropy.uuid());
    let target = Target { provider: profile.model.provider.clone(), model: profile.model.model.clone() };
    let system = profile.model.system.clone();
    let store = choose_store(&args, profile.journal, &home.sessions_dir(), &id)?;
    let host = Arc::new(start_host(profile, &home, env.clone()).await?);
    let _watch = watch_host(&host, source);
    let mut session = Session::open_in(&*store, &id, target, system, &env)?;
    if let Some(torn) = &session.torn {
        eprintln!("The journal's last line was cut short by a crash ({}); it was taken off.", torn.reason);
    }
    if args.resume.is_none() {
        if session.has_unfinished() {
            eprintln!("The last turn of the session {id} was left unfinished; it is closed, and not gone on with.");
        }
        session.abandon_unfinished()?;
    } else if let Some(provider) = session.unfinished_provider() {
        // Before anything is appended: the turn can still be resumed with the profile that it was begun with.
        anyhow::ensure!(
            host.agent.routes.policy(&provider).is_some(),
            "The session \"{id}\" waits for a retry of the provider \"{provider}\", which the profile \"{}\" does not \
             have; name the session's own with --profile.",
            args.profile.profile
        );
    }
    let printer = Printer { json: args.json, session: id.clone() };
    let (before, events) = observe(&session.journal);
    let shown =
        if args.json { tokio::spawn(print_events(events, before)) } else { WaitLine::new().spawn(events, before) };
    let exit = prompt_all(&host, session, args.prompts, args.resume.is_some(), &printer).await;
    host.close().await;
    // The session is gone, and with it the sender: what it had to say is printed.
    let retries = shown.await.context("the printer ended early")?;
    let (exit, last) = exit?;
    if let Err(error) = printer.result(&last, &retries) {
        eprintln!("error: {error:#}");
        return Ok(Exit::Failed);
    }
    Ok(exit)
}

/// How the last prompt ended, for the `result` line.
#[derive(Default)]
struct Last {
    output: String,
    tool_calls: Vec<Block>,
    usage: Option<Usage>,
    max_tokens: bool,
    status: Option<Exit>,
    error: Option<String>,
    failed: Option<(Failure, Box<Tried>)>,
}

async fn prompt_all(
    host: &Host,
    mut session: Session,
    prompts: Vec<String>,
    resume: bool,
    printer: &Printer,
) -> anyhow::Result<(Exit, Last)> {
    let cancel = CancellationToken::new();
    cancel_on_ctrl_c(cancel.clone());
    let mut exit = Exit::Completed;
    let mut last = Last::default();
    let mut any = resume;
    if resume {
        match host.agent.resume(&mut session, &cancel).await.transpose() {
            None => match session.interrupted {
                Some(turn) => {
                    let why = format!(
                        "Turn {turn} of the session {} was interrupted in its request. Whether the provider has answered, \
                         and charged for it, is not known, so it is not repeated by itself: ask again.",
                        printer.session
                    );
                    eprintln!("error: {why}");
                    last = Last { status: Some(Exit::Failed), error: Some(why), ..Last::default() };
                }
                None => {
                    eprintln!("Nothing is pending in the session {}.", printer.session);
                    last.status = Some(Exit::Completed);
                }
            },
            Some(outcome) => last = printer.outcome(outcome),
        }
        match last.status {
            Some(Exit::Cancelled) => return Ok((Exit::Cancelled, last)),
            Some(Exit::Failed) => exit = Exit::Failed,
            _ => {}
        }
    }
    let mut source =
        if prompts.is_empty() && !resume { Prompts::stdin() } else { Prompts::Listed(prompts.into_iter()) };
    while let Some(prompt) = source.next(&cancel).await? {
        any = true;
        let outcome = host.agent.prompt(&mut session, &prompt, &cancel).await;
        last = printer.outcome(outcome);
        match last.status {
            Some(Exit::Cancelled) => return Ok((Exit::Cancelled, last)),
            Some(Exit::Failed) => exit = Exit::Failed,
            _ => {}
        }
    }
    if cancel.is_cancelled() {
        return Ok((Exit::Cancelled, last));
    }
    if !any {
        return Err(anyhow!(
            "There is no prompt. Give one as an argument, for instance `retake run \"name one prime\"`, or one a line on stdin."
        ));
    }
    Ok((exit, last))
}

fn cancel_on_ctrl_c(cancel: CancellationToken) {
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            cancel.cancel();
        }
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(130);
        }
    });
}

/// Where prompts come from.
enum Prompts {
    Listed(std::vec::IntoIter<String>),
    Lines(UnboundedReceiver<std::io::Result<String>>),
}

impl Prompts {
    fn stdin() -> Prompts {
        let (sender, receiver) = tokio::sync::mpsc::unbounded_channel();
        // A thread of its own: a read of a terminal cannot be cancelled.
        std::thread::spawn(move || {
            let stdin = std::io::stdin();
            if stdin.is_terminal() {
                eprintln!("One prompt a line; end with Ctrl-D.");
            }
            for line in stdin.lock().lines() {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Prompts::Lines(receiver)
    }

    async fn next(&mut self, cancel: &CancellationToken) -> anyhow::Result<Option<String>> {
        match self {
            Prompts::Listed(prompts) => Ok(prompts.next().filter(|_| !cancel.is_cancelled())),
            Prompts::Lines(lines) => loop {
                let line = tokio::select! {
                    biased;
                    () = cancel.cancelled() => return Ok(None),
                    line = lines.recv() => line,
                };
                match line.transpose().context("stdin could not be read")? {
                    Some(line) if line.trim().is_empty() => {}
                    line => return Ok(line),
                }
            },
        }
    }
}

struct Printer {
    json: bool,
    session: String,
}

impl Printer {
    /// Prints how a prompt ended: an answer to stdout, anything else to stderr.
    fn outcome(&self, outcome: Result<TurnOutcome, crate::journal::JournalError>) -> Last {
        match outcome {
            Ok(TurnOutcome::Answered { text, tool_calls, usage, max_tokens }) => {
                let last = Last { output: text, tool_calls, usage, max_tokens, ..Last::default() };
                // An answer of tool calls alone has no text.
                let printed = !self.json && (!last.output.is_empty() || last.tool_calls.is_empty());
                if printed && let Err(error) = print_line(&last.output) {
                    eprintln!("error: {error:#}");
                    return Last { status: Some(Exit::Failed), error: Some(format!("{error:#}")), ..last };
                }
                for call in &last.tool_calls {
                    if let Block::ToolCall { name, arguments, .. } = call {
                        eprintln!("The answer calls the tool {name} with {arguments}. Retake runs no tools.");
                    }
                }
                if max_tokens {
                    eprintln!("The answer stopped at the output limit: the model's own, or the profile's `maxTokens`.");
                }
                Last { status: Some(Exit::Completed), ..last }
            }
            Ok(TurnOutcome::Failed { failure, tried }) => {
                eprintln!("error: {tried}\n  {}", facts(&failure, tried.requests));
                Last {
                    status: Some(Exit::Failed),
                    error: Some(tried.to_string()),
                    failed: Some((failure, tried)),
                    ..Last::default()
                }
            }
            Ok(TurnOutcome::Cancelled) => {
                eprintln!("Cancelled. The session {} keeps what was said.", self.session);
                Last { status: Some(Exit::Cancelled), ..Last::default() }
            }
            Err(error) => {
                eprintln!("error: the turn was ended, since its journal failed: {error}");
                Last { status: Some(Exit::Failed), error: Some(error.to_string()), ..Last::default() }
            }
        }
    }

    fn result(&self, last: &Last, retries: &RetryView) -> anyhow::Result<()> {
        if !self.json {
            return Ok(());
        }
        let status = match last.status {
            Some(Exit::Completed) => "completed",
            Some(Exit::Failed | Exit::Usage) => "failed",
            Some(Exit::Cancelled) | None => "cancelled",
        };
        let line = ResultLine {
            session_id: &self.session,
            output: &last.output,
            tool_calls: &last.tool_calls,
            usage: last.usage,
            status,
            max_tokens: last.max_tokens,
            error: last.error.as_deref(),
            failure: last.failed.as_ref().map(|(failure, _)| failure),
            tried: last.failed.as_ref().map(|(_, tried)| &**tried),
            retry: retries.current.as_ref(),
        };
        print_json(&line)
    }
}

/// Prints events until one cannot be printed; the `result` line fails then too, and says so. Returns what they add up
/// to, on top of what the session had brought with it.
async fn print_events(mut events: UnboundedReceiver<(String, Event)>, mut retries: RetryView) -> RetryView {
    let mut works = true;
    while let Some((session, event)) = events.recv().await {
        retries.apply(event.time, &event.body);
        works = works && print_json(&EventLine { session_id: &session, event: &event }).is_ok();
    }
    retries
}

fn print_json(line: &impl Serialize) -> anyhow::Result<()> {
    print_line(&serde_json::to_string(line).context("an event could not be encoded")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::{
        Body,
        event::{TurnEnd, TurnEndReason, TurnStart},
    };

    fn args(journal: Option<StoreName>, resume: Option<&str>) -> RunArgs {
        RunArgs {
            prompts: Vec::new(),
            profile: ProfileArgs { profile: "demo".into(), patches: Vec::new() },
            session: None,
            resume: resume.map(str::to_owned),
            journal,
            json: false,
        }
    }

    #[test]
    fn an_old_session_stays_in_its_store_and_no_name_is_used_in_two() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = StoreName::Sqlite.store(dir.path()).open("old").unwrap().log;
        let bodies = [
            Body::TurnStart(TurnStart { turn: 1, retry_of: None }),
            Body::TurnEnd(TurnEnd { turn: 1, reason: TurnEndReason::Aborted }),
        ];
        for (seq, body) in (0..).zip(bodies) {
            log.write(&Event { seq, time: 1, body, source_event_seqs: None }).unwrap();
        }
        drop(log);
        let chosen = |journal, resume, id: &str| {
            choose_store(&args(journal, resume), JournalKind::Jsonl, dir.path(), id)
                .map(|store| store.name_of(id))
                .map_err(|error| error.to_string())
        };
        assert!(chosen(None, None, "old").unwrap().contains("sessions.db"));
        assert!(chosen(None, Some("old"), "old").unwrap().contains("sessions.db"));
        assert!(chosen(None, None, "new").unwrap().ends_with("new.jsonl"));
        assert!(chosen(Some(StoreName::Sqlite), None, "new").unwrap().contains("sessions.db"));
        assert!(chosen(Some(StoreName::Jsonl), None, "old").unwrap_err().contains("kept in the sqlite store"));
        assert!(chosen(None, Some("new"), "new").unwrap_err().contains("There is no session"));
    }
}
