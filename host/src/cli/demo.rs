//! `retake demo`: failing requests decided by a component, and executors swapped while turns wait; without a key or a
//! network.

use super::{
    Exit, Global,
    run::{start_host, watch_host},
    stdout::print_line,
    terminal::{WaitLine, chain_text, observe},
};
use crate::{
    agent::{Session, Target, TurnOutcome},
    env::Env,
    profile::{Home, Host, ProfileRef, ProfileSource, compose},
};
use anyhow::Context;
use clap::Args;
use std::{path::Path, sync::Arc, time::Duration};
use tokio_util::sync::CancellationToken;

#[derive(Args, Debug)]
pub(super) struct DemoArgs {
    /// What to ask in the first part.
    #[arg(default_value = "name one prime", value_name = "PROMPT")]
    prompt: String,
}

/// Two providers on loopback: one that fails in several ways, one that asks everybody to wait.
const PROFILE: &str = "\
model: { provider: flaky, model: demo }
providers:
  - provider: flaky
    adapter: openai-chat
    chaos: \"429:retry-after=1, 503, cut:3, ok\"
    retryPolicy: { mode: normal, backoff: { initialDelayMs: 200, maxDelayMs: 2000 } }
  - provider: busy
    adapter: openai-chat
    chaos: \"429:retry-after=4, ok\"
";

/// What the second part writes beside the profile while turns wait.
const PATCH: &str = "\
- id: llm-retry
  disabled: true
- insert:
    - id: retry-strategy
      component: builtin:retry-strategy
      config: { maxRetries: 10, strategy: fixed, initialDelayMs: 1000 }
";

const NO_PATCH: &str = "[]\n";

/// The turns of the second part.
const WAITING: [(&str, &str); 3] = [("A", "name one prime"), ("B", "greet me"), ("C", "count to three")];

/// How long the turns wait before the patch comes.
const BEFORE_PATCH: Duration = Duration::from_millis(1_200);

pub(super) async fn run(global: &Global, args: DemoArgs) -> anyhow::Result<Exit> {
    let home = global.home()?;
    let dir = tempfile::tempdir().context("a temporary directory for the demo's profile could not be made")?;
    write(&dir.path().join("profile.yml"), PROFILE)?;
    let source =
        ProfileSource { home: home.clone(), profile: ProfileRef::Path(dir.path().to_owned()), overlays: Vec::new() };
    let profile = compose(&home, &source.profile, &[])?;
    let env = Env::system();
    let host = Arc::new(start_host(profile, &home, env.clone()).await?);
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stop.cancel();
        }
    });
    let demo = Demo { host, home, env, cancel };
    let outcome = demo.play(&args.prompt, source, &dir.path().join("retake.patch.yml")).await;
    demo.host.close().await;
    outcome
}

struct Demo {
    host: Arc<Host>,
    home: Home,
    env: Env,
    cancel: CancellationToken,
}

impl Demo {
    async fn play(&self, prompt: &str, source: ProfileSource, patch: &Path) -> anyhow::Result<Exit> {
        eprintln!("1. A provider on loopback fails; a WebAssembly component decides about each failure.");
        eprintln!("   In service: {}.", chain_text(&self.host));
        eprintln!("> {prompt}");
        let (first, id) = self.turn("flaky", prompt, WaitLine::new()).await?;
        if let Some(exit) = report(first) {
            return Ok(exit);
        }

        eprintln!(
            "\n2. Three turns wait for a busy provider. Meanwhile a patch swaps the executor, without a restart."
        );
        let _watch = watch_host(&self.host, source);
        let turns = WAITING.map(|(name, prompt)| self.turn("busy", prompt, WaitLine::named(name)));
        let (turns, swapped) = tokio::join!(futures_util::future::join_all(turns), async {
            tokio::time::sleep(BEFORE_PATCH).await;
            write(patch, PATCH)
        });
        swapped?;
        for (turn, (name, _)) in turns.into_iter().zip(WAITING) {
            eprint!("{name} · ");
            if let Some(exit) = report(turn?.0) {
                return Ok(exit);
            }
        }

        eprintln!("\n3. The patch is withdrawn.");
        let generation = self.host.agent.waterfall.current().generation;
        write(patch, NO_PATCH)?;
        self.wait_for_generation_after(generation).await;
        // The watch tells about it in a task of its own.
        tokio::time::sleep(Duration::from_millis(50)).await;
        eprintln!("No turn was lost. Every step is on disk: retake journal show {id}");
        Ok(if self.cancel.is_cancelled() { Exit::Cancelled } else { Exit::Completed })
    }

    /// One prompt in a session of its own.
    async fn turn(&self, provider: &str, prompt: &str, line: WaitLine) -> anyhow::Result<(TurnOutcome, String)> {
        let id = self.env.entropy.uuid();
        let target = Target { provider: provider.into(), model: "demo".into() };
        let mut session = Session::open(&self.home.sessions_dir(), &id, target, None, &self.env)?;
        let (retries, events) = observe(&session.journal);
        let shown = line.spawn(events, retries);
        let outcome = self.host.agent.prompt(&mut session, prompt, &self.cancel).await;
        drop(session);
        shown.await?;
        Ok((outcome?, id))
    }

    async fn wait_for_generation_after(&self, generation: u64) {
        while self.host.agent.waterfall.current().generation == generation && !self.cancel.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Prints an outcome; an exit when it is not an answer.
fn report(outcome: TurnOutcome) -> Option<Exit> {
    match outcome {
        TurnOutcome::Answered { text, .. } => {
            if let Err(error) = print_line(&text) {
                eprintln!("error: {error:#}");
                return Some(Exit::Failed);
            }
            None
        }
        TurnOutcome::Failed { tried, .. } => {
            eprintln!("error: {tried}");
            Some(Exit::Failed)
        }
        TurnOutcome::Cancelled => {
            eprintln!("Cancelled.");
            Some(Exit::Cancelled)
        }
    }
}

fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("{} could not be written", path.display()))
}
