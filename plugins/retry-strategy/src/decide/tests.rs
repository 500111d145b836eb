//! The decision against a scripted host.

use super::*;
use crate::{
    config::{Mode, Strategy},
    data::{Declared, Pending},
};
use std::collections::VecDeque;

/// What the decision did, in order.
#[derive(Clone, Debug, PartialEq)]
enum Did {
    Next,
    Retry { id: String, key: String, retry: u64, max: Option<u64>, delay_ms: f64 },
    Slept(f64),
    Started(String, u64),
    Warned(String),
}

/// A host that follows a script and writes down what was asked of it.
struct Script {
    did: Vec<Did>,
    next: Result<Decision, String>,
    last: Option<(String, u64)>,
    asked_for: Option<(String, String)>,
    samples: VecDeque<f64>,
    ids: u32,
    /// After how many of [`Script::did`] the call counts as interrupted.
    interrupted_after: Option<usize>,
    refuse: Option<&'static str>,
}

impl Default for Script {
    fn default() -> Self {
        Script {
            did: Vec::new(),
            next: Ok(Decision::Unhandled),
            last: None,
            asked_for: None,
            samples: VecDeque::new(),
            ids: 0,
            interrupted_after: None,
            refuse: None,
        }
    }
}

impl Script {
    fn with_samples(samples: impl IntoIterator<Item = f64>) -> Self {
        Script { samples: samples.into_iter().collect(), ..Script::default() }
    }

    fn append(&mut self, did: Did) -> Result<(), AppendError> {
        if self.interrupted() {
            return Err(AppendError::Interrupted);
        }
        if let Some(reason) = self.refuse {
            return Err(AppendError::Refused(reason.to_owned()));
        }
        self.did.push(did);
        Ok(())
    }
}

impl Host for Script {
    fn next(&mut self) -> Result<Decision, String> {
        self.did.push(Did::Next);
        self.next.clone()
    }

    fn append_retry(&mut self, retry: Retry<'_>) -> Result<(), AppendError> {
        self.append(Did::Retry {
            id: retry.retry_id.to_owned(),
            key: retry.policy_key.to_owned(),
            retry: retry.retry,
            max: retry.max_retries,
            delay_ms: retry.delay_ms,
        })
    }

    fn append_retry_started(&mut self, retry_id: &str, retry: u64) -> Result<(), AppendError> {
        self.append(Did::Started(retry_id.to_owned(), retry))
    }

    fn last_retry(&mut self, provider: &str, policy_key: &str) -> Option<(String, u64)> {
        self.asked_for = Some((provider.to_owned(), policy_key.to_owned()));
        self.last.clone()
    }

    fn sleep(&mut self, ms: f64) -> Result<(), Interrupted> {
        if self.interrupted() {
            return Err(Interrupted);
        }
        self.did.push(Did::Slept(ms));
        if self.interrupted() { Err(Interrupted) } else { Ok(()) }
    }

    fn interrupted(&mut self) -> bool {
        self.interrupted_after.is_some_and(|limit| self.did.len() >= limit)
    }

    fn random(&mut self) -> f64 {
        self.samples.pop_front().expect("no sample may be drawn here")
    }

    fn new_retry_id(&mut self) -> String {
        self.ids += 1;
        format!("new-{}", self.ids)
    }

    fn warn(&mut self, message: &str) {
        self.did.push(Did::Warned(message.to_owned()));
    }
}

fn fixed() -> Config {
    Config { strategy: Strategy::Fixed, jitter_ratio: 0.0, max_retries: 3, ..Config::default() }
}

fn always() -> Config {
    Config { mode: Mode::Always, ..fixed() }
}

fn step(code: &str) -> FailedStep {
    FailedStep {
        provider: "acme".to_owned(),
        code: code.to_owned(),
        retry_after_ms: None,
        should_retry: None,
        declared: Some(Declared::Normal),
        pending: None,
    }
}

fn hinted(retry_after_ms: f64) -> FailedStep {
    FailedStep { retry_after_ms: Some(retry_after_ms), ..step("RATE_LIMIT") }
}

fn pending(policy_key: String) -> FailedStep {
    let pending =
        Pending { retry_id: "handed-over".into(), policy_key, retry: 2, remaining_ms: 300.5, waited_ms: 199.5 };
    FailedStep { pending: Some(pending), ..step("SERVER") }
}

fn key(config: &Config) -> String {
    Policy::resolve(config, Declared::Normal).key()
}

/// The delay of the one scheduled retry.
fn delay(host: &Script) -> f64 {
    let delays: Vec<f64> = host
        .did
        .iter()
        .filter_map(|did| if let Did::Retry { delay_ms, .. } = did { Some(*delay_ms) } else { None })
        .collect();
    assert_eq!(delays.len(), 1, "{:?}", host.did);
    delays[0]
}

#[test]
fn a_retryable_failure_is_recorded_waited_for_and_started_in_this_order() {
    let mut host = Script::with_samples([0.5]);
    assert_eq!(decide(&fixed(), &step("RATE_LIMIT"), &mut host), Ok(Decision::Retry));
    assert_eq!(
        host.did,
        [
            Did::Retry { id: "new-1".into(), key: key(&fixed()), retry: 1, max: Some(3), delay_ms: 1_000.0 },
            Did::Slept(1_000.0),
            Did::Started("new-1".into(), 1),
        ]
    );
    assert_eq!(host.asked_for, Some(("acme".into(), key(&fixed()))));
    assert!(host.samples.is_empty(), "one sample a local delay");
}

#[test]
fn a_later_retry_keeps_the_id_and_its_wait_follows_its_number() {
    let config = Config { strategy: Strategy::Linear, ..fixed() };
    let mut host = Script { last: Some(("old".into(), 2)), ..Script::with_samples([0.5]) };
    assert_eq!(decide(&config, &step("SERVER"), &mut host), Ok(Decision::Retry));
    assert!(matches!(&host.did[0], Did::Retry { id, retry: 3, .. } if id == "old"), "{:?}", host.did);
    assert_eq!(delay(&host), 3_000.0);
}

#[test]
fn a_spent_budget_and_a_code_that_is_not_listed_are_delegated() {
    let mut host = Script { last: Some(("old".into(), 3)), ..Script::default() };
    assert_eq!(decide(&fixed(), &step("SERVER"), &mut host), Ok(Decision::Unhandled));
    assert_eq!(host.did, [Did::Next]);
    let mut host = Script { next: Ok(Decision::Retry), ..Script::default() };
    assert_eq!(decide(&fixed(), &step("AUTH"), &mut host), Ok(Decision::Retry));
    assert_eq!(host.did, [Did::Next]);
}

fn asked(should_retry: bool, step: FailedStep) -> FailedStep {
    FailedStep { should_retry: Some(should_retry), ..step }
}

#[test]
fn a_failure_that_the_provider_wants_left_alone_is_delegated_with_a_limit() {
    for config in [fixed(), Config { enabled: false, ..fixed() }] {
        let mut host = Script { next: Ok(Decision::Retry), ..Script::default() };
        assert_eq!(decide(&config, &asked(false, hinted(2_000.0)), &mut host), Ok(Decision::Retry));
        assert_eq!(host.did, [Did::Next], "the answer from behind is returned");
    }
}

#[test]
fn a_failure_that_the_provider_wants_retried_is_eligible_with_a_limit_unless_it_is_a_lasting_one() {
    for code in ["INVALID_REQUEST", "PROTOCOL"] {
        let mut host = Script::with_samples([0.5]);
        assert_eq!(decide(&fixed(), &asked(true, step(code)), &mut host), Ok(Decision::Retry), "{code}");
        let mut host = Script { last: Some(("old".into(), 3)), ..Script::default() };
        assert_eq!(decide(&fixed(), &asked(true, step(code)), &mut host), Ok(Decision::Unhandled), "{code}");
    }
    for code in ["AUTH", "QUOTA", "CONTEXT_OVERFLOW"] {
        let mut host = Script::default();
        assert_eq!(decide(&fixed(), &asked(true, step(code)), &mut host), Ok(Decision::Unhandled), "{code}");
        assert_eq!(host.did, [Did::Next], "{code}");
        let listing = Config { retryable_codes: vec![code.to_owned()], ..fixed() };
        let mut host = Script::with_samples([0.5]);
        assert_eq!(decide(&listing, &asked(true, step(code)), &mut host), Ok(Decision::Retry), "{code} is listed");
    }
}

#[test]
fn what_the_provider_says_changes_nothing_without_a_limit() {
    for should_retry in [true, false] {
        let mut host = Script::with_samples([0.5]);
        assert_eq!(decide(&always(), &asked(should_retry, step("AUTH")), &mut host), Ok(Decision::Retry));
        assert_eq!(delay(&host), 1_000.0);
    }
}

#[test]
fn a_budget_of_zero_never_retries() {
    let mut host = Script::default();
    let config = Config { max_retries: 0, ..fixed() };
    assert_eq!(decide(&config, &step("SERVER"), &mut host), Ok(Decision::Unhandled));
    assert_eq!(host.did, [Did::Next]);
}

#[test]
fn disabled_settings_still_retry_by_the_built_in_policy() {
    let config = Config { enabled: false, max_retries: 0, ..fixed() };
    let mut host = Script::with_samples([0.5]);
    assert_eq!(decide(&config, &step("SERVER"), &mut host), Ok(Decision::Retry));
    assert_eq!(delay(&host), 500.0);
    assert!(matches!(host.did[0], Did::Retry { max: Some(5), .. }));
}

#[test]
fn a_provider_that_declares_always_stays_without_a_limit() {
    for enabled in [true, false] {
        let step = FailedStep { declared: Some(Declared::Always), ..step("AUTH") };
        let mut host = Script { last: Some(("old".into(), 99)), ..Script::with_samples([0.5]) };
        assert_eq!(decide(&Config { enabled, ..fixed() }, &step, &mut host), Ok(Decision::Retry));
        assert_eq!(host.did[0], Did::Next);
        assert!(matches!(host.did[1], Did::Retry { retry: 100, max: None, .. }), "{:?}", host.did);
    }
}

#[test]
fn without_a_limit_downstream_goes_first_and_its_retry_wins_without_a_record() {
    let mut host = Script { next: Ok(Decision::Retry), ..Script::default() };
    assert_eq!(decide(&always(), &step("SERVER"), &mut host), Ok(Decision::Retry));
    assert_eq!(host.did, [Did::Next]);
}

#[test]
fn without_a_limit_a_downstream_fault_is_warned_of_and_passed_over() {
    let mut host = Script { next: Err("it trapped".into()), ..Script::with_samples([0.5]) };
    assert_eq!(decide(&always(), &step("SERVER"), &mut host), Ok(Decision::Retry));
    let Did::Warned(text) = &host.did[1] else { panic!("{:?}", host.did) };
    assert!(text.contains("acme") && text.contains("it trapped"), "{text}");
}

#[test]
fn with_a_limit_a_downstream_fault_is_passed_on() {
    let mut host = Script { next: Err("it trapped".into()), ..Script::default() };
    assert_eq!(decide(&fixed(), &step("AUTH"), &mut host), Err("it trapped".into()));
}

#[test]
fn a_call_without_a_policy_is_delegated() {
    let mut host = Script::default();
    let step = FailedStep { declared: None, ..step("NO_ROUTE") };
    assert_eq!(decide(&always(), &step, &mut host), Ok(Decision::Unhandled));
    assert_eq!(host.did, [Did::Next]);
}

#[test]
fn a_hint_within_the_cap_goes_first_and_is_never_cut_short() {
    for (hint, expected) in [(2_000.0, 2_000.0), (0.2, 1.0), (1_500.2, 1_501.0), (60_000.0, 60_000.0)] {
        let mut host = Script::default();
        assert_eq!(decide(&fixed(), &hinted(hint), &mut host), Ok(Decision::Retry));
        assert_eq!(delay(&host), expected);
    }
}

#[test]
fn a_hint_beyond_the_cap_is_delegated_with_a_limit_and_passed_over_without_one() {
    let mut host = Script::default();
    assert_eq!(decide(&fixed(), &hinted(60_001.0), &mut host), Ok(Decision::Unhandled));
    assert_eq!(host.did, [Did::Next]);
    let mut host = Script::with_samples([0.5]);
    assert_eq!(decide(&always(), &hinted(60_001.0), &mut host), Ok(Decision::Retry));
    assert_eq!(delay(&host), 1_000.0);
}

#[test]
fn a_hint_that_is_not_respected_is_as_none() {
    for hint in [2_000.0, 60_001.0] {
        let mut host = Script::with_samples([0.5]);
        let config = Config { respect_retry_after: false, ..fixed() };
        assert_eq!(decide(&config, &hinted(hint), &mut host), Ok(Decision::Retry));
        assert_eq!(delay(&host), 1_000.0);
    }
}

#[test]
fn a_late_call_fails_closed_without_touching_downstream() {
    for config in [fixed(), always()] {
        let mut host = Script { interrupted_after: Some(0), ..Script::default() };
        assert_eq!(decide(&config, &step("SERVER"), &mut host), Ok(Decision::Unhandled));
        assert_eq!(host.did, []);
    }
}

#[test]
fn an_interruption_while_downstream_decides_discards_its_decision() {
    let mut host = Script { interrupted_after: Some(1), next: Ok(Decision::Retry), ..Script::default() };
    assert_eq!(decide(&always(), &step("SERVER"), &mut host), Ok(Decision::Unhandled));
    assert_eq!(host.did, [Did::Next]);
}

#[test]
fn an_interruption_during_the_wait_writes_no_start() {
    for after in [1, 2] {
        let mut host = Script { interrupted_after: Some(after), ..Script::with_samples([0.5]) };
        assert_eq!(decide(&fixed(), &step("SERVER"), &mut host), Ok(Decision::Unhandled));
        assert!(!host.did.iter().any(|did| matches!(did, Did::Started(..))), "{:?}", host.did);
    }
}

#[test]
fn a_refused_record_is_an_error_with_its_reason() {
    let mut host = Script { refuse: Some("the disk is full"), ..Script::with_samples([0.5]) };
    assert_eq!(decide(&fixed(), &step("SERVER"), &mut host), Err("the disk is full".into()));
    assert_eq!(host.did, []);
}

#[test]
fn a_pending_wait_of_the_same_key_is_carried_on_without_a_new_record() {
    for config in [fixed(), always()] {
        let mut host = Script::default();
        assert_eq!(decide(&config, &pending(key(&config)), &mut host), Ok(Decision::Retry));
        assert_eq!(host.did, [Did::Slept(300.5), Did::Started("handed-over".into(), 2)]);
    }
}

#[test]
fn a_pending_wait_of_another_key_shortens_the_executors_own() {
    let mut host = Script::with_samples([0.5]);
    assert_eq!(decide(&fixed(), &pending("[]".into()), &mut host), Ok(Decision::Retry));
    assert!(matches!(&host.did[0], Did::Retry { id, retry: 1, .. } if id == "new-1"), "{:?}", host.did);
    assert_eq!(delay(&host), 801.0, "800.5 is rounded up, so that no hint is cut short");
}

#[test]
fn a_shortened_wait_is_never_below_one() {
    let config = Config { initial_delay_ms: 100, ..fixed() };
    let mut host = Script::with_samples([0.5]);
    assert_eq!(decide(&config, &pending("[]".into()), &mut host), Ok(Decision::Retry));
    assert_eq!(delay(&host), 1.0);
}
