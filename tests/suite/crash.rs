//! Crashes: every point at which a record can stop, on a paused clock; and real processes, killed at random moments.
//!
//! `RETAKE_CRASH_ROUNDS` sets how many sessions of real processes are killed (10 unless it is set).

use retake::{
    agent::{Agent, Session, Target, TurnOutcome},
    env::Env,
    journal::{
        Body, Event,
        event::TurnEndReason,
        jsonl,
        projection::{RetryOutcome, RetryView},
        verify::verify_file,
    },
    llm::{Evidence, Failure, FailureCode, route::Registry},
    waterfall::{Decision, Record, Waterfall},
};
use retake_tests::*;
use std::{
    hash::{BuildHasher, RandomState},
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio_util::sync::CancellationToken;

const SESSION: &str = "s";

/// A host over JSONL files, with the official executor, two retries of 500 ms and 1 s.
struct Host {
    agent: Agent,
    adapter: Arc<ScriptedAdapter>,
    env: Env,
}

impl Host {
    async fn new(replies: Vec<Reply>, wall_ms: u64) -> Host {
        let env = Env::fixed(wall_ms, 7);
        let adapter = ScriptedAdapter::new(replies);
        let routes = Arc::new(Registry::new());
        routes.register("mock", adapter.clone(), test_policy()).unwrap();
        let waterfall = Arc::new(Waterfall::new(vec![official().await]));
        Host { agent: Agent::new(routes, waterfall, env.clone()), adapter, env }
    }

    fn open(&self, dir: &Path) -> Session {
        let target = Target { provider: "mock".into(), model: "mock-1".into() };
        Session::open(dir, SESSION, target, None, &self.env).unwrap()
    }
}

fn file(dir: &Path) -> PathBuf {
    jsonl::session_path(dir, SESSION).unwrap()
}

/// The lines, header first, of a session that failed twice, waited twice, and was answered.
async fn recorded() -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    let fail = |text| failing_after(partial_text(0, text), with_status(FailureCode::Server, 503));
    let host = Host::new(vec![fail("a"), fail("b"), answer("Seven.")], START_MS).await;
    let mut session = host.open(dir.path());
    let outcome = host.agent.prompt(&mut session, "hi", &CancellationToken::new()).await.unwrap();
    assert!(matches!(outcome, TurnOutcome::Answered { .. }), "{outcome:?}");
    std::fs::read_to_string(file(dir.path())).unwrap().lines().map(str::to_owned).collect()
}

/// A directory with the beginning of a record.
fn stopped_after(lines: &[String]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(file(dir.path()), lines.join("\n") + "\n").unwrap();
    dir
}

/// What becomes of a record that stopped there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The request is made, or made again.
    GoneOn,
    /// The answer had been recorded: it is given, and nothing is asked for again.
    Given,
    /// The request may have been answered and charged for: the turn is closed, and a person may ask again.
    Interrupted,
    Nothing,
}

fn fate(last: &Body) -> Fate {
    match last {
        Body::StepEnd(end) if end.failure.is_none() => Fate::Given,
        Body::AssistantMessage(_) => Fate::Given,
        Body::TurnEnd(end) if end.reason != TurnEndReason::Retry => Fate::Nothing,
        // Nothing to ask yet.
        Body::TurnStart(start) if start.retry_of.is_none() => Fate::Interrupted,
        Body::StepStart(_) | Body::RequestHeader(_) | Body::AssistantChunk(_) => Fate::Interrupted,
        _ => Fate::GoneOn,
    }
}

fn count(events: &[Event], is: impl Fn(&Body) -> bool) -> usize {
    events.iter().filter(|event| is(&event.body)).count()
}

fn answers(events: &[Event]) -> usize {
    count(events, |body| matches!(body, Body::AssistantMessage(_)))
}

fn retries(events: &[Event]) -> Vec<u64> {
    events
        .iter()
        .filter_map(|event| if let Body::Retry(record) = &event.body { Some(record.retry) } else { None })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_session_that_stopped_behind_any_event_is_gone_on_with_once_and_obeys_every_rule() {
    let lines = recorded().await;
    let mut kinds = std::collections::BTreeSet::new();
    for cut in 2..=lines.len() {
        let dir = stopped_after(&lines[..cut]);
        let before = jsonl::read(&file(dir.path())).unwrap().events;
        let last = before.last().unwrap();
        kinds.insert(last.body.type_name().to_owned());
        let what = format!("stopped behind line {cut}, {}", lines[cut - 1]);
        let host = Host::new(Vec::new(), last.time).await;
        let mut session = host.open(dir.path());
        let outcome = host.agent.resume(&mut session, &CancellationToken::new()).await.unwrap();
        let after = jsonl::read(&file(dir.path())).unwrap().events;
        let report = verify_file(&file(dir.path())).unwrap();
        assert!(report.is_good(), "{what}: {report}");
        assert_eq!(after[..before.len()], before[..], "{what}");
        let fate = fate(&last.body);
        if matches!(fate, Fate::GoneOn | Fate::Given) {
            assert!(matches!(outcome, Some(TurnOutcome::Answered { .. })), "{what}: {outcome:?}");
            let requests = usize::from(fate == Fate::GoneOn);
            assert_eq!((host.adapter.count(), answers(&after)), (requests, 1), "{what}");
            // The two failures cost two retries at most, whichever process had scheduled them.
            let expected: Vec<u64> =
                (1..=count(&after, |body| matches!(body, Body::StepEnd(end) if end.failure.is_some())) as u64)
                    .collect();
            assert_eq!(retries(&after), expected, "{what}");
            let retry = RetryView::of(&after).current.map(|row| row.outcome);
            assert!(matches!(retry, None | Some(RetryOutcome::Answered)), "{what}: {retry:?}");
        } else {
            assert_eq!((outcome, host.adapter.count()), (None, 0), "{what}");
            assert_eq!(answers(&after), answers(&before), "{what}");
            assert_eq!(session.interrupted.is_some(), fate == Fate::Interrupted, "{what}");
        }
        let Some(Body::TurnEnd(end)) = after.last().map(|event| &event.body) else { panic!("{what}: a turn is open") };
        let interrupted = end.reason == TurnEndReason::Interrupted;
        assert!(end.reason != TurnEndReason::Retry && interrupted == (fate == Fate::Interrupted), "{what}");
        // The session is as good as any other.
        let next = host.agent.prompt(&mut session, "and then?", &CancellationToken::new()).await.unwrap();
        assert!(matches!(next, TurnOutcome::Answered { .. }), "{what}: {next:?}");
        let report = verify_file(&file(dir.path())).unwrap();
        assert!(report.is_good(), "{what}: {report}");
    }
    for kind in ["llm/retry", "llm/retry-started", "turn/end", "assistant/chunk", "assistant/message", "step/end"] {
        assert!(kinds.contains(kind), "no record stopped behind {kind}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_line_of_a_real_session_fits_the_schema() {
    let validator = jsonschema::validator_for(&retake::journal::schema::schema()).unwrap();
    for line in recorded().await {
        let value = serde_json::from_str(&line).unwrap();
        if let Err(error) = validator.validate(&value) {
            panic!("{error}: {line}");
        }
    }
}

/// The lines up to the first event of a type.
fn up_to(lines: &[String], kind: &str) -> Vec<String> {
    let end = lines.iter().position(|line| line.starts_with(&format!("{{\"type\":\"{kind}\""))).unwrap();
    lines[..=end].to_vec()
}

#[tokio::test(start_paused = true)]
async fn a_resumed_wait_lasts_only_as_long_as_what_remains_of_it() {
    let lines = up_to(&recorded().await, "llm/retry");
    for (away_ms, expected_ms) in [(0, 500), (200, 300), (499, 1), (500, 0), (86_400_000, 0)] {
        let dir = stopped_after(&lines);
        let scheduled = jsonl::read(&file(dir.path())).unwrap().events.last().unwrap().time;
        let host = Host::new(Vec::new(), scheduled + away_ms).await;
        let mut session = host.open(dir.path());
        let begun = tokio::time::Instant::now();
        host.agent.resume(&mut session, &CancellationToken::new()).await.unwrap().unwrap();
        let waited = begun.elapsed().as_millis();
        assert!((expected_ms..=expected_ms + 1).contains(&waited), "away for {away_ms} ms, waited {waited} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_provider_said_about_a_retry_survives_a_crash() {
    for (code, status, should_retry, is_repeated) in [
        (FailureCode::Server, 503, Some(false), false),
        (FailureCode::Server, 503, None, true),
        (FailureCode::InvalidRequest, 400, Some(true), true),
        (FailureCode::InvalidRequest, 400, None, false),
    ] {
        let evidence = Evidence { should_retry, ..Evidence::default() };
        let failure = Failure { evidence: Some(Box::new(evidence)), ..with_status(code, status) };
        let dir = tempfile::tempdir().unwrap();
        let host = Host::new(vec![failing(failure)], START_MS).await;
        host.agent.prompt(&mut host.open(dir.path()), "hi", &CancellationToken::new()).await.unwrap();
        let text = std::fs::read_to_string(file(dir.path())).unwrap();
        let dir = stopped_after(&up_to(&text.lines().map(str::to_owned).collect::<Vec<_>>(), "step/end"));
        let host = Host::new(Vec::new(), START_MS).await;
        let outcome = host.agent.resume(&mut host.open(dir.path()), &CancellationToken::new()).await.unwrap().unwrap();
        let what = format!("{code} {should_retry:?}: {outcome:?}");
        match &outcome {
            TurnOutcome::Answered { .. } => assert!(is_repeated, "{what}"),
            TurnOutcome::Failed { failure, tried } => {
                let sentence = tried.to_string();
                assert!(!is_repeated, "{what}");
                assert_eq!(failure.should_retry(), should_retry, "{what}");
                assert_eq!(sentence.contains("asked not to retry"), should_retry == Some(false), "{what}");
            }
            TurnOutcome::Cancelled => panic!("{what}"),
        }
        assert_eq!(host.adapter.count(), usize::from(is_repeated), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_had_started_is_due_at_once_and_no_executor_is_asked_again() {
    let lines = up_to(&recorded().await, "llm/retry-started");
    let dir = stopped_after(&lines);
    let host = Host::new(Vec::new(), START_MS + 60_000).await;
    let mut session = host.open(dir.path());
    let begun = tokio::time::Instant::now();
    host.agent.resume(&mut session, &CancellationToken::new()).await.unwrap().unwrap();
    assert_eq!(begun.elapsed(), Duration::ZERO);
    let events = jsonl::read(&file(dir.path())).unwrap().events;
    assert_eq!(retries(&events), [1]);
    assert_eq!(count(&events, |body| matches!(body, Body::RetryHandover(_) | Body::ExecutorFault(_))), 0);
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_resumed_by_whatever_executor_is_enabled_now_and_the_record_says_which() {
    let dir = stopped_after(&up_to(&recorded().await, "llm/retry"));
    let mut host = Host::new(Vec::new(), START_MS).await;
    let other = native("other", |step, call| {
        Box::pin(async move {
            let pending = step.pending.expect("the wait is offered");
            call.sleep(pending.remaining_ms).await.expect("nobody ends it");
            let started = Record::RetryStarted { retry_id: pending.retry_id, retry: pending.retry };
            call.append(started).await.expect("the record is right");
            Ok(Decision::Retry)
        })
    });
    host.agent.waterfall = Arc::new(Waterfall::new(vec![other]));
    let mut session = host.open(dir.path());
    let outcome = host.agent.resume(&mut session, &CancellationToken::new()).await.unwrap();
    assert!(matches!(outcome, Some(TurnOutcome::Answered { .. })), "{outcome:?}");
    let events = jsonl::read(&file(dir.path())).unwrap().events;
    let chains: Vec<_> = events
        .iter()
        .filter_map(
            |event| if let Body::Chain(chain) = &event.body { Some(chain.executors[0].id.as_str()) } else { None },
        )
        .collect();
    assert_eq!(chains, ["llm-retry", "other"]);
    let handovers: Vec<_> = events
        .iter()
        .filter_map(
            |event| if let Body::RetryHandover(handover) = &event.body { Some(&handover.from.id) } else { None },
        )
        .collect();
    assert_eq!(handovers, ["llm-retry"]);
    assert!(verify_file(&file(dir.path())).unwrap().is_good());
}

#[tokio::test(start_paused = true)]
async fn a_resumed_wait_that_is_cancelled_ends_the_turn() {
    let dir = stopped_after(&up_to(&recorded().await, "llm/retry"));
    let host = Host::new(Vec::new(), START_MS).await;
    let mut session = host.open(dir.path());
    let cancel = CancellationToken::new();
    session.journal.observe(Arc::new(CancelOn { type_name: "llm/retry-handover", cancel: cancel.clone() }));
    let outcome = host.agent.resume(&mut session, &cancel).await.unwrap();
    assert_eq!((outcome, host.adapter.count()), (Some(TurnOutcome::Cancelled), 0));
    drop(session);
    assert!(!host.open(dir.path()).has_unfinished());
}

/// A home whose provider, at `base_url`, fails now and then; waits of 20 ms to 80 ms.
struct Home(tempfile::TempDir);

impl Home {
    fn new(base_url: &str) -> Home {
        let dir = tempfile::tempdir().unwrap();
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("command-cache");
        std::fs::create_dir_all(&cache).unwrap();
        std::os::unix::fs::symlink(&cache, dir.path().join("cache")).unwrap();
        let profile = dir.path().join("profiles/p/profile.yml");
        std::fs::create_dir_all(profile.parent().unwrap()).unwrap();
        std::fs::write(
            profile,
            format!(
                "model: {{ provider: mock, model: mock-1 }}\nproviders:\n  - provider: mock\n    adapter: openai-chat\n    \
                 baseUrl: {base_url}\n    retryPolicy: {{ mode: normal, maxRetries: 20, backoff: {{ initialDelayMs: 20, \
                 maxDelayMs: 80, jitterRatio: 0.5 }} }}\n"
            ),
        )
        .unwrap();
        Home(dir)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_retake-under-test"));
        command.args(arguments).env("RETAKE_HOME", self.0.path()).env_remove("RETAKE_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// What is on disk of the session; nothing when it was killed before its first event.
    fn exported(&self) -> Option<Vec<String>> {
        let listed = self.run(&["journal", "list", "--json"]);
        assert!(listed.status.success(), "{listed:?}");
        if listed.stdout.is_empty() {
            return None;
        }
        let verified = self.run(&["journal", "verify", SESSION]);
        assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stdout));
        let exported = self.run(&["journal", "export", SESSION]);
        assert!(exported.status.success(), "{exported:?}");
        Some(String::from_utf8(exported.stdout).unwrap().lines().map(str::to_owned).collect())
    }

    /// The arguments that begin the session, or go on with it.
    fn next_run(&self, store: &'static str, begun: bool) -> Vec<&'static str> {
        let which = if begun { ["--resume", SESSION, "--json"] } else { ["--session", SESSION, "name one prime"] };
        ["run", "-p", "p", "--journal", store].into_iter().chain(which).collect()
    }
}

/// A number below `limit`.
fn random(limit: u64) -> u64 {
    RandomState::new().hash_one(limit) % limit.max(1)
}

/// Kills a process after a while; what it had printed.
fn kill_after(command: &mut Command, delay: Duration) -> String {
    let mut child = command.spawn().unwrap();
    std::thread::sleep(delay);
    // SIGKILL; one that has ended by itself is as good.
    let _ = child.kill();
    String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
}

fn of_type<'a>(lines: &'a [String], kind: &str) -> impl Iterator<Item = &'a String> {
    let beginning = format!("{{\"type\":\"{kind}\"");
    lines.iter().filter(move |line| line.starts_with(&beginning))
}

#[test]
fn a_process_that_is_killed_at_any_moment_leaves_a_session_that_is_good_and_can_be_resumed() {
    let rounds = std::env::var("RETAKE_CRASH_ROUNDS").map_or(10, |rounds| rounds.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let provider = runtime.block_on(wire::chaos("503*2, cut:2, ok, loop"));
    let base_url = provider.base_url();
    // The first run compiles the component, and the second one shows how long a run takes.
    let home = Home::new(&base_url);
    assert!(home.run(&home.next_run("sqlite", false)).status.success());
    let home = Home::new(&base_url);
    let begun = Instant::now();
    let whole = home.run(&home.next_run("jsonl", false));
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
    let whole_run = begun.elapsed().as_millis() as u64;
    let (mut kills, mut waiting) = (0, 0);
    for round in 0..rounds {
        let store = if round % 2 == 0 { "jsonl" } else { "sqlite" };
        let home = Home::new(&base_url);
        let mut before: Vec<String> = Vec::new();
        let requests_before = provider.count();
        for _ in 0..3 {
            let delay = Duration::from_millis(random(whole_run));
            let printed = kill_after(&mut home.command(&home.next_run(store, !before.is_empty())), delay);
            kills += 1;
            let after = home.exported().unwrap_or_default();
            // A request is made only when everything before it is acknowledged, and an answer is told only then.
            let (requests, steps) = (provider.count() - requests_before, of_type(&after, "step/start").count() as u64);
            assert!(requests <= steps, "{store}, killed after {delay:?}: {steps} of {requests} requests are on disk");
            let told = printed
                .lines()
                .any(|line| line == "Seven." || line.starts_with("{\"type\":\"result\"") && line.contains("Seven."));
            assert!(
                !told || of_type(&after, "assistant/message").count() == 1,
                "{store}, killed after {delay:?}: an answer was printed and lost"
            );
            assert!(
                after.starts_with(&before),
                "{store}, killed after {delay:?}: what was on disk has changed\nbefore {before:#?}\nafter {after:#?}"
            );
            before = after;
            waiting += before.last().map_or(0, |last| of_type(std::slice::from_ref(last), "llm/retry").count());
        }
        let last = home.run(&home.next_run(store, !before.is_empty()));
        let after = home.exported().unwrap();
        assert!(after.starts_with(&before), "{store}");
        // A turn that was killed in its request is closed, and one that was answered stays so: neither is repeated.
        let end = after.last().unwrap();
        let code = i32::from(end.contains("\"kind\":\"interrupted\""));
        let stderr = String::from_utf8_lossy(&last.stderr);
        assert!([0, code].map(Some).contains(&last.status.code()), "{store}: {stderr}");
        assert!(end.starts_with("{\"type\":\"turn/end\"") && !end.contains("\"kind\":\"retry\""), "{store}: {end}");
        let answers = of_type(&after, "assistant/message").count();
        assert!(answers <= 1, "{store}: {answers} answers to one prompt");
    }
    println!("{rounds} sessions were killed {kills} times, {waiting} times while a retry was waiting: all are good");
}
