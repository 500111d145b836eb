//! What a person sees on stderr while a turn runs: the live wait line on a terminal, plain lines elsewhere.

use crate::{
    agent::wait_words,
    env::{Clock, SystemClock},
    journal::{
        Body, Event, Journal, Observer,
        projection::{RetryRow, RetryView},
    },
    llm::{Failure, HintUse},
    profile::{Host, Reload},
};
use console::Term;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::JoinHandle,
};

/// How often the countdown is redrawn.
const TICK: Duration = Duration::from_millis(250);
/// How a wait is told that no retry followed.
const CANCELLED: &str = "Model request retry cancelled";

/// Passes every event on, without waiting.
struct Forward(UnboundedSender<(String, Event)>);

impl Observer for Forward {
    fn appended(&self, session: &str, event: &Event) {
        // The receiver is gone only when the command is ending.
        let _ = self.0.send((session.to_owned(), event.clone()));
    }
}

/// A journal's retries so far, and every event from now on.
pub(super) fn observe(journal: &Journal) -> (RetryView, UnboundedReceiver<(String, Event)>) {
    let (sender, receiver) = unbounded_channel();
    journal.observe(Arc::new(Forward(sender)));
    (journal.with_state(|state| state.retries.clone()), receiver)
}

/// The wait line of one session.
pub(super) struct WaitLine {
    term: Term,
    /// Redraws in place; otherwise each change is a line of its own.
    live: bool,
    /// Stands before each line, when several sessions share the terminal.
    prefix: String,
    retries: RetryView,
    waiting: Option<Waiting>,
}

/// The wait that the line shows.
struct Waiting {
    /// Counted from when it was told, so that a clock that is set meanwhile changes nothing.
    due: Instant,
    drawn: String,
}

impl WaitLine {
    pub fn new() -> WaitLine {
        let term = Term::stderr();
        let live = term.is_term();
        WaitLine { term, live, prefix: String::new(), retries: RetryView::default(), waiting: None }
    }

    /// One of several sessions that share the terminal: its lines begin with a name and are never redrawn.
    pub fn named(name: &str) -> WaitLine {
        WaitLine { live: false, prefix: format!("{name} · "), ..WaitLine::new() }
    }

    /// Draws what `receiver` tells on top of `retries`, until its sender is gone; returns what it all adds up to.
    pub fn spawn(
        mut self,
        mut receiver: UnboundedReceiver<(String, Event)>,
        retries: RetryView,
    ) -> JoinHandle<RetryView> {
        self.retries = retries;
        tokio::spawn(async move {
            let line = &mut self;
            let mut tick = tokio::time::interval(TICK);
            loop {
                tokio::select! {
                    received = receiver.recv() => match received {
                        Some((_, event)) => line.take_in(&event),
                        None => break,
                    },
                    _ = tick.tick(), if line.live && line.waiting.is_some() => line.redraw(),
                }
            }
            line.settle(CANCELLED);
            self.retries
        })
    }

    fn take_in(&mut self, event: &Event) {
        self.retries.apply(event.time, &event.body);
        match &event.body {
            Body::Retry(_) => {
                self.await_row();
                self.redraw();
            }
            Body::RetryHandover(handover) => {
                let remains = match handover.remaining_ms {
                    0.0 => "the wait is over".to_owned(),
                    ms => format!("{}s of the wait remain", seconds(ms)),
                };
                // A wait that an earlier process had begun is new to this one.
                let resumed = self.waiting.is_none();
                self.await_row();
                self.note(&format!(
                    "Handed over from {} to generation {} · {remains}",
                    handover.from.id, handover.generation
                ));
                if resumed {
                    self.redraw();
                }
            }
            Body::RetryStarted(_) => self.settle("Retried model request"),
            // A wait that ends with its turn, and not with a retry, is given up.
            Body::TurnEnd(_) => self.settle(CANCELLED),
            Body::ExecutorFault(fault) => self.note(&format!("Executor {} failed: {}", fault.id, fault.message)),
            _ => {}
        }
    }

    /// Begins to show the row that waits, or what has changed about it.
    fn await_row(&mut self) {
        let now_ms = SystemClock.wall_ms();
        self.waiting = self.retries.waiting().map(|row| Waiting {
            due: Instant::now() + Duration::from_millis(row.remaining_ms(now_ms)),
            drawn: String::new(),
        });
    }

    /// A line of its own, above the live one.
    fn note(&mut self, text: &str) {
        if self.live {
            self.clear();
        }
        self.line(text);
        if self.live
            && let Some(waiting) = &mut self.waiting
        {
            waiting.drawn.clear();
            self.redraw();
        }
    }

    fn redraw(&mut self) {
        let (Some(waiting), Some(row)) = (&self.waiting, &self.retries.current) else { return };
        let remaining = waiting.due.saturating_duration_since(Instant::now()).as_secs_f64() * 1_000.0;
        let text = describe("Retrying model request", row, remaining);
        if text == waiting.drawn {
            return;
        }
        if self.live {
            self.clear();
            let width = usize::from(self.term.size().1);
            // A terminal that went away takes nothing more; the turn goes on all the same.
            let _ = self.term.write_str(&console::truncate_str(&text, width.saturating_sub(1), "…"));
        } else {
            self.line(&text);
        }
        if let Some(waiting) = &mut self.waiting {
            waiting.drawn = text;
        }
    }

    /// The wait is over: the line stays, with its end.
    fn settle(&mut self, label: &str) {
        let (Some(_), Some(row)) = (self.waiting.take(), &self.retries.current) else { return };
        if self.live {
            self.clear();
        }
        if self.live || label == CANCELLED {
            self.line(&describe(label, row, row.delay_ms));
        }
    }

    fn clear(&self) {
        let _ = self.term.clear_line();
    }

    fn line(&self, text: &str) {
        let _ = self.term.write_line(&format!("{}{text}", self.prefix));
    }
}

/// `Retrying model request (2/5) · 3s · RATE_LIMIT 429 · llm-retry 1a2b3c4d g1`.
fn describe(label: &str, row: &RetryRow, remaining_ms: f64) -> String {
    let mut text = format!("{label} ({}) · {}s · {}", row.count(), seconds(remaining_ms), row.failure.code);
    if let Some(status) = row.failure.status.filter(|status| *status >= 400) {
        text.push_str(&format!(" {status}"));
    }
    if let Some(by) = &row.executor {
        let generation = row.generation.map_or_else(String::new, |generation| format!(" g{generation}"));
        text.push_str(&format!(" · {} {}{generation}", by.id, by.digest.get(..8).unwrap_or(&by.digest)));
    }
    if let Some(asked) = asked(&row.failure) {
        text.push_str(&format!(" · {asked}"));
    }
    if let Some(why) = row.failure.impossible() {
        text.push_str(&format!(" · it cannot succeed as it is: {why}"));
    }
    text
}

/// What the provider asked for, and what becomes of it: `the provider asked for 2 s`.
fn asked(failure: &Failure) -> Option<String> {
    let hint = failure.evidence.as_ref()?.hint.as_ref()?;
    let why = hint.why.as_deref().unwrap_or("no reason is given");
    Some(match (hint.ms, hint.r#use) {
        (Some(ms), Some(HintUse::Adopted)) => format!("the provider asked for {}", wait_words(ms)),
        (Some(ms), Some(HintUse::OverCap)) => {
            format!("the provider asked for {}, beyond the longest delay", wait_words(ms))
        }
        (Some(ms), _) => format!("the provider asked for {}, which is ignored: {why}", wait_words(ms)),
        (None, _) => format!("the provider's {} of {:?} is ignored: {why}", hint.source, hint.raw),
    })
}

/// The facts behind a final failure, on one line: `RATE_LIMIT 429 · row status/429 · not retried`.
pub(super) fn facts(failure: &Failure, requests: u64) -> String {
    let mut parts = vec![failure.code.to_string()];
    if let Some(status) = failure.status {
        parts[0].push_str(&format!(" {status}"));
    }
    let evidence = failure.evidence.as_deref();
    parts.extend(evidence.and_then(|evidence| evidence.row.as_ref()).map(|row| format!("row {row}")));
    parts.extend(evidence.and_then(|evidence| evidence.phase.as_ref()).map(|phase| format!("phase {phase}")));
    parts.extend(asked(failure));
    parts.push(if requests > 1 { format!("given up after {requests} requests") } else { "not retried".into() });
    parts.join(" · ")
}

/// Tells people what became of each change of a running host's files, until the watch ends.
pub(super) fn spawn_reload_lines(mut reports: UnboundedReceiver<Reload>, host: Arc<Host>) -> JoinHandle<()> {
    tokio::spawn(async move {
        while let Some(report) = reports.recv().await {
            match report {
                Reload::Applied { change, took, warnings } => {
                    for warning in warnings {
                        eprintln!("warning: {warning}");
                    }
                    let routes = if change.routes_changed { ", routes changed" } else { "" };
                    eprintln!(
                        "Profile applied in {:.1} ms: {}{routes}",
                        took.as_secs_f64() * 1_000.0,
                        chain_text(&host)
                    );
                }
                Reload::Refused { reason } => {
                    eprintln!("The change was not applied, {} goes on.\n  {reason}", chain_text(&host));
                }
            }
        }
    })
}

/// `generation 2 (retry-strategy 1a2b3c4d)`.
pub(super) fn chain_text(host: &Host) -> String {
    let chain = host.agent.waterfall.current();
    let executors: Vec<_> = chain
        .activations
        .iter()
        .map(|activation| {
            let quarantined = if activation.is_quarantined() { ", quarantined" } else { "" };
            let digest = activation.identity.digest.get(..8).unwrap_or(&activation.identity.digest);
            format!("{} {digest}{quarantined}", activation.identity.id)
        })
        .collect();
    let executors = if executors.is_empty() { "no executor".to_owned() } else { executors.join(" → ") };
    format!("generation {} ({executors})", chain.generation)
}

/// Whole seconds, rounded up, at least 1.
fn seconds(ms: f64) -> u64 {
    ((ms / 1_000.0).ceil() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        journal::{event::ExecutorRef, projection::RetryOutcome},
        llm::{Evidence, FailureCode, Hint},
    };

    fn row(limit: Option<u64>) -> RetryRow {
        RetryRow {
            retry_id: "id".into(),
            turn: 1,
            step: 1,
            provider: "p".into(),
            retry: 2,
            limit,
            delay_ms: 3_000.0,
            due_at: 3_000,
            executor: None,
            generation: None,
            failure: Failure { status: Some(429), ..Failure::new(FailureCode::RateLimit, "slow down") },
            outcome: RetryOutcome::Waiting,
        }
    }

    #[test]
    fn a_wait_shows_number_limit_seconds_and_reason() {
        assert_eq!(
            describe("Retrying model request", &row(Some(5)), 2_100.0),
            "Retrying model request (2/5) · 3s · RATE_LIMIT 429"
        );
    }

    fn hinted(ms: Option<f64>, r#use: HintUse) -> Failure {
        let why = (r#use == HintUse::Ignored).then(|| "it is not above zero".to_owned());
        let hint = Hint { source: "retry-after".into(), raw: "0".into(), ms, r#use: Some(r#use), why };
        let evidence = Evidence { hint: Some(hint), row: Some("status/429".into()), ..Evidence::default() };
        Failure {
            status: Some(429),
            evidence: Some(Box::new(evidence)),
            ..Failure::new(FailureCode::RateLimit, "slow down")
        }
    }

    #[test]
    fn a_wait_and_a_final_failure_say_what_became_of_a_hint() {
        let row = RetryRow { failure: hinted(Some(2_000.0), HintUse::Adopted), ..row(Some(5)) };
        let text = describe("Retrying model request", &row, 2_000.0);
        assert!(text.ends_with("· RATE_LIMIT 429 · the provider asked for 2 s"), "{text}");
        assert_eq!(
            facts(&hinted(Some(3_600_000.0), HintUse::OverCap), 1),
            "RATE_LIMIT 429 · row status/429 · the provider asked for 60 min, beyond the longest delay · not retried"
        );
        let text = facts(&hinted(None, HintUse::Ignored), 6);
        assert!(text.contains("the provider's retry-after of \"0\" is ignored: it is not above zero"), "{text}");
        assert!(text.ends_with(" · given up after 6 requests"), "{text}");
    }

    #[test]
    fn a_wait_for_a_request_that_cannot_succeed_says_so() {
        let mut row = row(None);
        let evidence = Evidence { impossible: Some("too large".into()), ..Default::default() };
        row.failure.evidence = Some(Box::new(evidence));
        let text = describe("Retrying model request", &row, 0.0);
        assert!(text.ends_with(" · it cannot succeed as it is: too large"), "{text}");
    }

    #[test]
    fn an_always_wait_shows_infinity_and_who_decided() {
        let executor = Some(ExecutorRef { id: "llm-retry".into(), digest: "1a2b3c4d5e6f".into() });
        let row = RetryRow { executor, generation: Some(1), ..row(None) };
        assert_eq!(
            describe("Retrying model request", &row, 0.0),
            "Retrying model request (2/∞) · 1s · RATE_LIMIT 429 · llm-retry 1a2b3c4d g1"
        );
    }
}
