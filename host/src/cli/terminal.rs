//! What a person sees on stderr while a turn runs: the live wait line on a terminal, plain lines elsewhere.

use crate::{
    journal::{
        Body, Event, Observer,
        event::{Retry, RetryHandover, TurnEndReason},
    },
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

/// Passes every event on, without waiting.
struct Forward(UnboundedSender<(String, Event)>);

impl Observer for Forward {
    fn appended(&self, session: &str, event: &Event) {
        // The receiver is gone only when the command is ending.
        let _ = self.0.send((session.to_owned(), event.clone()));
    }
}

/// An observer, and the events that it sees.
pub(super) fn observe() -> (Arc<dyn Observer>, UnboundedReceiver<(String, Event)>) {
    let (sender, receiver) = unbounded_channel();
    (Arc::new(Forward(sender)), receiver)
}

/// The wait line of one session.
pub(super) struct WaitLine {
    term: Term,
    /// Redraws in place; otherwise each change is a line of its own.
    live: bool,
    /// Stands before each line, when several sessions share the terminal.
    prefix: String,
    waiting: Option<Waiting>,
    executor: Option<String>,
}

struct Waiting {
    retry: Retry,
    due: Instant,
    drawn: String,
}

impl WaitLine {
    pub fn new() -> WaitLine {
        let term = Term::stderr();
        let live = term.is_term();
        WaitLine { term, live, prefix: String::new(), waiting: None, executor: None }
    }

    /// One of several sessions that share the terminal: its lines begin with a name and are never redrawn.
    pub fn named(name: &str) -> WaitLine {
        WaitLine { live: false, prefix: format!("{name} · "), ..WaitLine::new() }
    }

    /// Draws what `receiver` tells until its sender is gone.
    pub fn spawn(mut self, mut receiver: UnboundedReceiver<(String, Event)>) -> JoinHandle<()> {
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
            line.settle("Model request retry cancelled");
        })
    }

    pub fn take_in(&mut self, event: &Event) {
        match &event.body {
            Body::ExecutorNote(note) if note.kind == crate::journal::event::SCHEDULING_NOTE => {
                let generation = note.data.get("generation").and_then(serde_json::Value::as_u64).unwrap_or(0);
                let digest = note.digest.get(..8).unwrap_or(&note.digest);
                self.executor = Some(format!("{} {digest} g{generation}", note.id));
            }
            Body::Retry(retry) => {
                let due = Instant::now() + Duration::from_secs_f64(retry.delay_ms / 1_000.0);
                self.waiting = Some(Waiting { retry: retry.clone(), due, drawn: String::new() });
                self.redraw();
            }
            Body::RetryHandover(handover) => self.handed_over(handover),
            Body::RetryStarted(_) => self.settle("Retried model request"),
            Body::TurnEnd(end) => {
                // A wait that ends with its turn, and not with a retry, was given up.
                if !matches!(end.reason, TurnEndReason::Retry) {
                    self.settle("Model request retry cancelled");
                }
                self.waiting = None;
            }
            Body::ExecutorFault(fault) => self.note(&format!("Executor {} failed: {}", fault.id, fault.message)),
            _ => {}
        }
    }

    fn handed_over(&mut self, handover: &RetryHandover) {
        let remaining = seconds(handover.remaining_ms);
        self.note(&format!(
            "Handed over from {} to generation {} · {remaining}s of the wait remain",
            handover.from.id, handover.generation
        ));
        if let Some(waiting) = &mut self.waiting {
            waiting.due = Instant::now() + Duration::from_secs_f64(handover.remaining_ms / 1_000.0);
        }
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
        let Some(waiting) = &self.waiting else { return };
        let remaining = waiting.due.saturating_duration_since(Instant::now()).as_secs_f64() * 1_000.0;
        let text = describe("Retrying model request", &waiting.retry, remaining, self.executor.as_deref());
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
        let Some(waiting) = self.waiting.take() else { return };
        if self.live {
            self.clear();
        }
        if self.live || label.contains("cancelled") {
            let text = describe(label, &waiting.retry, waiting.retry.delay_ms, self.executor.as_deref());
            self.line(&text);
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
fn describe(label: &str, retry: &Retry, remaining_ms: f64, executor: Option<&str>) -> String {
    let limit = retry.max_retries.map_or_else(|| "∞".to_owned(), |max| max.to_string());
    let mut text = format!("{label} ({}/{limit}) · {}s · {}", retry.retry, seconds(remaining_ms), retry.failure.code);
    if let Some(status) = retry.failure.status.filter(|status| *status >= 400) {
        text.push_str(&format!(" {status}"));
    }
    if let Some(executor) = executor {
        text.push_str(&format!(" · {executor}"));
    }
    if let Some(why) = retry.failure.impossible() {
        text.push_str(&format!(" · it cannot succeed as it is: {why}"));
    }
    text
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
        journal::event::RetryMode,
        llm::{Failure, FailureCode},
    };

    fn retry(max_retries: Option<u64>) -> Retry {
        Retry {
            retry_id: "id".into(),
            turn: 1,
            step: 1,
            provider: "p".into(),
            mode: if max_retries.is_some() { RetryMode::Normal } else { RetryMode::Always },
            policy_key: "k".into(),
            retry: 2,
            max_retries,
            delay_ms: 3_000.0,
            failure: Failure { status: Some(429), ..Failure::new(FailureCode::RateLimit, "slow down") },
        }
    }

    #[test]
    fn a_wait_shows_number_limit_seconds_and_reason() {
        assert_eq!(
            describe("Retrying model request", &retry(Some(5)), 2_100.0, None),
            "Retrying model request (2/5) · 3s · RATE_LIMIT 429"
        );
    }

    #[test]
    fn a_wait_for_a_request_that_cannot_succeed_says_so() {
        let mut retry = retry(None);
        let evidence = crate::llm::Evidence { impossible: Some("too large".into()), ..Default::default() };
        retry.failure.evidence = Some(Box::new(evidence));
        let text = describe("Retrying model request", &retry, 0.0, None);
        assert!(text.ends_with(" · it cannot succeed as it is: too large"), "{text}");
    }

    #[test]
    fn an_always_wait_shows_infinity_and_who_decided() {
        assert_eq!(
            describe("Retrying model request", &retry(None), 0.0, Some("llm-retry 1a2b3c4d g1")),
            "Retrying model request (2/∞) · 1s · RATE_LIMIT 429 · llm-retry 1a2b3c4d g1"
        );
    }
}
