//! Watches the files that a running host was composed from, and applies what changed as one swap.
//!
//! Directories are watched, not files, so that a rename over a file, a delete and a create are seen. A burst of writes
//! is waited out; what does not touch the profile's own files is ignored. A change that fails at any stage changes
//! nothing and is reported; the next one is tried anew.

use super::{
    compose::compose,
    home::{Home, ProfileRef},
    host::{Change, Host},
};
use notify::{
    Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher,
    event::{AccessKind, AccessMode, ModifyKind},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
};

/// How long files must be quiet before they are read, so that a file that is written in pieces is read once.
pub const SETTLE: Duration = Duration::from_millis(100);

/// The same after a file vanished: an editor that deletes and creates is about to bring it back.
pub const SETTLE_AFTER_REMOVAL: Duration = Duration::from_millis(300);

/// A file that is still open for writing is waited for this long after its last write.
pub const SETTLE_OPEN_WRITER: Duration = Duration::from_millis(1_000);

/// However long the noise goes on, changes are applied after this.
pub const SETTLE_AT_MOST: Duration = Duration::from_millis(3_000);

/// How long files must stay as they were read before a refusal of them is believed.
const REFUSAL_CONFIRMED: Duration = Duration::from_millis(30);

/// How many refusals in a row may be doubted, so that files that never rest are reported at last.
const REFUSALS_DOUBTED: u32 = 20;

/// What a watched profile is composed from.
#[derive(Clone, Debug)]
pub struct ProfileSource {
    pub home: Home,
    pub profile: ProfileRef,
    /// The `--patch` files.
    pub overlays: Vec<PathBuf>,
}

/// What became of a change of the files.
#[derive(Debug)]
pub enum Reload {
    /// It is in service. `took` is the time from the files being read to the publication.
    Applied { change: Change, took: Duration, warnings: Vec<String> },
    /// It was not applied; what was in service goes on. The text says what is wrong, with file and line.
    Refused { reason: String },
}

/// A watch in progress; ends when it is dropped.
pub struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Watches `source` for `host`, and reports what became of each change. An edit that was made since the host was
/// composed is applied at once.
///
/// # Errors
/// The operating system gives no watch (for instance, its limit is reached).
pub fn watch(host: Arc<Host>, source: ProfileSource, reports: UnboundedSender<Reload>) -> notify::Result<Watch> {
    let (sender, events) = unbounded_channel();
    let watcher = notify::recommended_watcher(move |event| {
        // The receiver is gone only when the watch has been dropped.
        let _ = sender.send(event);
    })?;
    let mut watching = Watching { watcher, host, source, reports, inputs: BTreeSet::new(), dirs: BTreeSet::new() };
    Ok(Watch(tokio::spawn(async move { watching.run(events).await })))
}

struct Watching {
    watcher: RecommendedWatcher,
    host: Arc<Host>,
    source: ProfileSource,
    reports: UnboundedSender<Reload>,
    /// The files that matter, whether they exist or not.
    inputs: BTreeSet<PathBuf>,
    dirs: BTreeSet<PathBuf>,
}

impl Watching {
    async fn run(&mut self, mut events: UnboundedReceiver<notify::Result<Event>>) {
        let profile = self.host.profile().await;
        self.follow(&profile.inputs);
        // What changed between the composition and the watch has no event.
        let mut seen = BTreeMap::new();
        let mut again = 0;
        loop {
            let now = stamps(&self.inputs);
            if now != seen {
                seen = now;
                if let Some(report) = self.reload().await {
                    // A file that changed while it was read may have been read half; a refusal of that says nothing.
                    let half_read = matches!(report, Reload::Refused { .. }) && {
                        tokio::time::sleep(REFUSAL_CONFIRMED).await;
                        stamps(&self.inputs) != seen
                    };
                    if half_read && again < REFUSALS_DOUBTED {
                        again += 1;
                        continue;
                    }
                    // Nobody listens when the command is ending.
                    let _ = self.reports.send(report);
                }
                again = 0;
            }
            if self.settle(&mut events).await.is_none() {
                return;
            }
        }
    }

    /// Waits for an event that matters, and then for quiet. `None` when the watcher is gone.
    async fn settle(&self, events: &mut UnboundedReceiver<notify::Result<Event>>) -> Option<()> {
        let mut burst = Burst::default();
        while !burst.begun() {
            burst.take_in(&events.recv().await?, &self.inputs);
        }
        while let Some(pause) = burst.pause() {
            match tokio::time::timeout(pause, events.recv()).await {
                Ok(event) => burst.take_in(&event?, &self.inputs),
                Err(_quiet) => break,
            }
        }
        Some(())
    }

    /// Composes and applies what the files say now. `None` when that is what is in service.
    async fn reload(&mut self) -> Option<Reload> {
        let begun = Instant::now();
        let source = self.source.clone();
        // Reads files, so not on the runtime's own threads.
        let composed =
            tokio::task::spawn_blocking(move || compose(&source.home, &source.profile, &source.overlays)).await;
        Some(match composed {
            Err(join) => Reload::Refused { reason: format!("The profile could not be read: {join}.") },
            Ok(Err(errors)) => {
                self.follow(&errors.inputs);
                Reload::Refused { reason: errors.to_string() }
            }
            Ok(Ok(profile)) => {
                self.follow(&profile.inputs);
                let warnings = profile.warnings.iter().map(ToString::to_string).collect();
                match self.host.apply(profile).await {
                    Ok(change) if !change.swapped && !change.routes_changed => return None,
                    Ok(change) => Reload::Applied { change, took: begun.elapsed(), warnings },
                    Err(error) => Reload::Refused { reason: error.to_string() },
                }
            }
        })
    }

    /// Watches the directories of these files from now on. What was followed before stays followed: a bundle that was
    /// taken out by a mistake comes back.
    fn follow(&mut self, inputs: &[PathBuf]) {
        for input in inputs {
            if !self.inputs.insert(input.clone()) {
                continue;
            }
            // A link's own directory tells when it is turned; its target's directory tells when that is written.
            let target = std::fs::canonicalize(input).ok();
            for file in [Some(input), target.as_ref()].into_iter().flatten() {
                self.inputs.insert(file.clone());
                let Some(dir) = file.ancestors().skip(1).find(|dir| dir.is_dir()) else { continue };
                if self.dirs.insert(dir.to_owned())
                    && let Err(error) = self.watcher.watch(dir, RecursiveMode::NonRecursive)
                {
                    tracing::warn!("{} cannot be watched: {error}. Changes of it are not seen.", dir.display());
                }
            }
        }
    }
}

/// What identifies a file's content without reading it; `None` when there is no file.
type Stamp = Option<(u64, u64, i64, i64, i64, i64)>;

fn stamps(inputs: &BTreeSet<PathBuf>) -> BTreeMap<PathBuf, Stamp> {
    inputs
        .iter()
        .map(|path| {
            let stamp = std::fs::metadata(path)
                .ok()
                .map(|m| (m.ino(), m.len(), m.mtime(), m.mtime_nsec(), m.ctime(), m.ctime_nsec()));
            (path.clone(), stamp)
        })
        .collect()
}

/// A burst of events that belong together.
#[derive(Default)]
struct Burst {
    begun: Option<Instant>,
    last: Option<Instant>,
    removed: bool,
    /// Files that were written and not yet closed.
    open: BTreeSet<PathBuf>,
}

impl Burst {
    fn begun(&self) -> bool {
        self.begun.is_some()
    }

    fn take_in(&mut self, event: &notify::Result<Event>, inputs: &BTreeSet<PathBuf>) {
        let event = match event {
            Ok(event) => event,
            // The queue overflowed or a watch was lost: look at the files.
            Err(_) => return self.touch(),
        };
        if matches!(event.kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write)) {
            return;
        }
        // A directory on the way to a file matters too: it may have come into being.
        let ours: Vec<&Path> = event
            .paths
            .iter()
            .map(PathBuf::as_path)
            .filter(|path| inputs.iter().any(|input| input == path || input.starts_with(path)))
            .collect();
        if ours.is_empty() && !event.need_rescan() {
            return;
        }
        for path in ours {
            match event.kind {
                EventKind::Modify(ModifyKind::Data(_)) => {
                    self.open.insert(path.to_owned());
                }
                EventKind::Access(_) => {
                    self.open.remove(path);
                }
                EventKind::Remove(_) | EventKind::Modify(ModifyKind::Name(_)) => {
                    self.open.remove(path);
                    self.removed = !path.exists();
                }
                EventKind::Create(_) => self.removed = false,
                _ => {}
            }
        }
        self.touch();
    }

    fn touch(&mut self) {
        let now = Instant::now();
        self.begun.get_or_insert(now);
        self.last = Some(now);
    }

    /// How long to wait for the next event; `None` when it has been long enough.
    fn pause(&self) -> Option<Duration> {
        let (begun, last) = (self.begun?, self.last?);
        let quiet = match (self.open.is_empty(), self.removed) {
            (false, _) => SETTLE_OPEN_WRITER,
            (true, true) => SETTLE_AFTER_REMOVAL,
            (true, false) => SETTLE,
        };
        let due = (last + quiet).min(begun + SETTLE_AT_MOST);
        due.checked_duration_since(Instant::now()).filter(|pause| !pause.is_zero())
    }
}
