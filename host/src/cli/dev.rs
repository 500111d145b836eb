//! `retake dev`: for an author at work. Watches a plugin's source, rebuilds it, and swaps it into a session that keeps
//! failing and retrying.

use super::{
    Exit, Global,
    plugin::scratch_dir,
    run::start_host,
    terminal::{WaitLine, chain_text, observe},
};
use crate::{
    agent::{Session, Target, TurnOutcome},
    env::Env,
    profile::{Home, Host, ProfileRef, compose},
};
use anyhow::Context;
use clap::Args;
use notify::{EventKind, RecursiveMode, Watcher};
use retake_toolchain::{BuildError, Built, Toolchain, build_component, write_whole};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_util::sync::CancellationToken;

/// How long the sources must be quiet before they are built.
const SETTLE: Duration = Duration::from_millis(150);

/// How requests fail when the author does not say.
const DEFAULT_SCRIPT: &str = "503, 429:retry-after=1, cut:3, 503, ...";

#[derive(Args, Debug)]
#[command(after_help = "Example: retake dev plugins/retry-strategy --config '{\"strategy\":\"linear\"}'\n\n\
    Change the source and save: the next wait follows the new code. A build that fails keeps the last good one.\n\
    Ctrl-C ends it.")]
pub(super) struct DevArgs {
    /// The plugin's crate.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The entry's config, as JSON.
    #[arg(long, value_name = "JSON", default_value = "{}")]
    config: String,
    /// How the provider fails (see `retake chaos --help`).
    #[arg(long, value_name = "SCRIPT", default_value = DEFAULT_SCRIPT)]
    script: String,
    /// Install what is missing to build WebAssembly.
    #[arg(long)]
    install: bool,
}

pub(super) async fn run(global: &Global, args: DevArgs) -> anyhow::Result<Exit> {
    let config: serde_json::Value =
        serde_json::from_str(&args.config).with_context(|| format!("--config \"{}\" is not JSON", args.config))?;
    let home = global.home()?;
    let mut progress = |line: &str| eprintln!("{line}");
    let toolchain = if args.install { Toolchain::find_or_install(&mut progress)? } else { Toolchain::find()? };
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            stop.cancel();
        }
    });
    let files = tempfile::tempdir().context("a temporary directory for the session's profile could not be made")?;
    let workshop = Workshop {
        dir: args.dir.canonicalize().with_context(|| format!("{} cannot be opened", args.dir.display()))?,
        scratch: scratch_dir(global)?,
        toolchain: Arc::new(toolchain),
        files: files.path().to_owned(),
        home,
    };
    // Before the first build, so that an edit during it is seen.
    let (_watcher, mut changes) = watch_sources(&workshop.dir)?;
    let Some(built) = workshop.build_until_good(&mut changes, &cancel).await? else { return Ok(Exit::Cancelled) };
    workshop.write_profile(&config, &args.script)?;
    workshop.place(&built)?;
    let env = Env::system();
    let host =
        Arc::new(start_host(compose(&workshop.home, &workshop.profile(), &[])?, &workshop.home, env.clone()).await?);
    eprintln!("{}, built in {:.1} s. Change the source and save.", chain_text(&host), built.duration.as_secs_f64());
    let session = tokio::spawn(keep_failing(host.clone(), workshop.home.clone(), env, cancel.clone()));
    while workshop.changed(&mut changes, &cancel).await {
        match workshop.build().await? {
            Ok(built) => workshop.swap(&host, &built).await?,
            Err(error) => eprintln!("{error}\n{} goes on.", chain_text(&host)),
        }
    }
    session.await.context("the session ended early")??;
    host.close().await;
    Ok(Exit::Completed)
}

/// One prompt after another, each failing and retrying, until the author ends it.
async fn keep_failing(host: Arc<Host>, home: Home, env: Env, cancel: CancellationToken) -> anyhow::Result<()> {
    let id = env.entropy.uuid();
    let target = Target { provider: "failing".into(), model: "dev".into() };
    let mut session = Session::open(&home.sessions_dir(), &id, target, None, &env)?;
    let (retries, events) = observe(&session.journal);
    let shown = WaitLine::new().spawn(events, retries);
    while !cancel.is_cancelled() {
        match host.agent.prompt(&mut session, "Keep failing.", &cancel).await? {
            TurnOutcome::Failed { tried, .. } => eprintln!("The turn ended: {tried}"),
            TurnOutcome::Answered { text, .. } => eprintln!("The turn was answered: {text}"),
            TurnOutcome::Cancelled => break,
        }
        // An executor that never retries must not spin the session.
        tokio::select! {
            () = cancel.cancelled() => {}
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
        }
    }
    drop(session);
    shown.await?;
    Ok(())
}

/// The plugin at work on, and where its builds go.
struct Workshop {
    dir: PathBuf,
    scratch: PathBuf,
    toolchain: Arc<Toolchain>,
    files: PathBuf,
    home: Home,
}

impl Workshop {
    fn profile(&self) -> ProfileRef {
        ProfileRef::Path(self.files.clone())
    }

    fn component(&self) -> PathBuf {
        self.files.join("plugin.wasm")
    }

    fn id(&self) -> String {
        self.dir.file_name().map_or_else(|| "plugin".to_owned(), |name| name.to_string_lossy().into_owned())
    }

    fn write_profile(&self, config: &serde_json::Value, script: &str) -> anyhow::Result<()> {
        // JSON is YAML, and quotes for itself.
        let provider = serde_json::json!({
            "provider": "failing", "adapter": "openai-chat", "chaos": script,
            "retryPolicy": { "mode": "always", "backoff": { "initialDelayMs": 1000, "maxDelayMs": 8000 } },
        });
        let profile = serde_json::json!({
            "model": { "provider": "failing", "model": "dev" }, "providers": [provider], "bundles": [],
        });
        let patch =
            serde_json::json!([{ "insert": [{ "id": self.id(), "component": "./plugin.wasm", "config": config }] }]);
        for (name, value) in [("profile.yml", profile), ("retake.patch.yml", patch)] {
            let path = self.files.join(name);
            std::fs::write(&path, format!("{value:#}\n"))
                .with_context(|| format!("{} could not be written", path.display()))?;
        }
        Ok(())
    }

    fn place(&self, built: &Built) -> anyhow::Result<()> {
        write_whole(&self.component(), &built.component).context("the built component could not be written")?;
        Ok(())
    }

    async fn build(&self) -> anyhow::Result<Result<Built, BuildError>> {
        eprintln!("Building {} …", self.dir.display());
        let (toolchain, dir, scratch) = (self.toolchain.clone(), self.dir.clone(), self.scratch.clone());
        let building = tokio::task::spawn_blocking(move || {
            // Cargo's own lines are the progress; what a failed build says comes with its error.
            build_component(&toolchain, &dir, &scratch, &mut |line: &str| {
                if line.trim_start().starts_with("Compiling") {
                    eprintln!("{line}");
                }
            })
        });
        building.await.context("the build panicked")
    }

    /// `None` when the author gave up.
    async fn build_until_good(
        &self,
        changes: &mut UnboundedReceiver<()>,
        cancel: &CancellationToken,
    ) -> anyhow::Result<Option<Built>> {
        loop {
            match self.build().await? {
                Ok(built) => return Ok(Some(built)),
                Err(error) => eprintln!("{error}\nWaiting for a change."),
            }
            if !self.changed(changes, cancel).await {
                return Ok(None);
            }
        }
    }

    async fn swap(&self, host: &Host, built: &Built) -> anyhow::Result<()> {
        self.place(built)?;
        let begun = Instant::now();
        let profile = match compose(&self.home, &self.profile(), &[]) {
            Ok(profile) => profile,
            Err(errors) => {
                eprintln!("{errors}\n{} goes on.", chain_text(host));
                return Ok(());
            }
        };
        match host.apply(profile).await {
            Ok(change) if change.swapped => eprintln!(
                "{}, built in {:.1} s, swapped in {:.0} ms.",
                chain_text(host),
                built.duration.as_secs_f64(),
                begun.elapsed().as_secs_f64() * 1_000.0
            ),
            Ok(_) => eprintln!("The build gave the same bytes; {} goes on.", chain_text(host)),
            Err(error) => eprintln!("{error}\n{} goes on.", chain_text(host)),
        }
        Ok(())
    }

    /// Waits for a change of the sources, and for quiet. False when it is time to end.
    async fn changed(&self, changes: &mut UnboundedReceiver<()>, cancel: &CancellationToken) -> bool {
        tokio::select! {
            biased;
            () = cancel.cancelled() => return false,
            change = changes.recv() => if change.is_none() { return false },
        }
        while let Ok(Some(())) = tokio::time::timeout(SETTLE, changes.recv()).await {}
        !cancel.is_cancelled()
    }
}

/// Reports each change of a file that a build may depend on.
fn watch_sources(dir: &Path) -> anyhow::Result<(notify::RecommendedWatcher, UnboundedReceiver<()>)> {
    let (sender, changes) = unbounded_channel();
    let root = dir.to_owned();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        let source = |path: &PathBuf| {
            let inside = path.strip_prefix(&root).unwrap_or(path);
            let hidden = inside.components().any(|part| part.as_os_str().to_string_lossy().starts_with('.'));
            !hidden && !inside.starts_with("target") && path.extension().is_none_or(|extension| extension != "wasm")
        };
        if event.is_ok_and(|event| !matches!(event.kind, EventKind::Access(_)) && event.paths.iter().any(source)) {
            // The receiver is gone only when the command is ending.
            let _ = sender.send(());
        }
    })?;
    watcher.watch(dir, RecursiveMode::Recursive).with_context(|| format!("{} cannot be watched", dir.display()))?;
    Ok((watcher, changes))
}
