//! The decision against a scripted host.

use super::*;
use crate::data::Backoff;
use std::collections::VecDeque;

const DEFAULT_CODES: [&str; 5] = ["EMPTY_RESPONSE", "RATE_LIMIT", "SERVER", "TIMEOUT", "TRANSPORT"];

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

fn backoff([initial_delay_ms, max_delay_ms, jitter_ratio]: [f64; 3]) -> Backoff {
    Backoff { initial_delay_ms, max_delay_ms, jitter_ratio }
}

fn normal(max_retries: u64, numbers: [f64; 3]) -> Policy {
    let retryable_codes = DEFAULT_CODES.map(str::to_owned).to_vec();
    Policy::Normal { max_retries, retryable_codes, backoff: backoff(numbers) }
}

fn always(numbers: [f64; 3]) -> Policy {
    Policy::Always { backoff: backoff(numbers) }
}

fn step(code: &str, policy: Policy) -> FailedStep {
    FailedStep {
        provider: "acme".to_owned(),
        code: code.to_owned(),
        retry_after_ms: None,
        should_retry: None,
        policy: Some(policy),
        pending: None,
    }
}

fn hinted(retry_after_ms: f64, step: FailedStep) -> FailedStep {
    FailedStep { retry_after_ms: Some(retry_after_ms), ..step }
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
    let policy = normal(3, [500.0, 10_000.0, 0.1]);
    let mut host = Script::with_samples([0.5]);
    assert_eq!(decide(&step("RATE_LIMIT", policy.clone()), &mut host), Ok(Decision::Retry));
    let key = policy_key(&policy);
    assert_eq!(
        host.did,
        [
            Did::Retry { id: "new-1".into(), key: key.clone(), retry: 1, max: Some(3), delay_ms: 500.0 },
            Did::Slept(500.0),
            Did::Started("new-1".into(), 1),
        ]
    );
    assert_eq!(host.asked_for, Some(("acme".into(), key)));
    assert!(host.samples.is_empty(), "one sample a local delay");
}

#[test]
fn a_later_retry_keeps_the_id_and_counts_on() {
    let mut host = Script { last: Some(("old".into(), 1)), ..Script::with_samples([1.0]) };
    assert_eq!(decide(&step("SERVER", normal(3, [500.0, 10_000.0, 0.1])), &mut host), Ok(Decision::Retry));
    assert!(matches!(&host.did[0], Did::Retry { id, retry: 2, .. } if id == "old"), "{:?}", host.did);
    assert_eq!(delay(&host), 1_100.0);
    assert_eq!(host.ids, 0, "no id is minted for a chain that has one");
}

#[test]
fn a_spent_budget_is_delegated() {
    let mut host = Script { last: Some(("old".into(), 3)), ..Script::default() };
    assert_eq!(decide(&step("SERVER", normal(3, [500.0, 10_000.0, 0.1])), &mut host), Ok(Decision::Unhandled));
    assert_eq!(host.did, [Did::Next]);
}

#[test]
fn a_policy_of_no_retries_delegates_the_first_failure() {
    let mut host = Script::default();
    assert_eq!(decide(&step("SERVER", normal(0, [500.0, 10_000.0, 0.1])), &mut host), Ok(Decision::Unhandled));
    assert_eq!(host.did, [Did::Next]);
}

#[test]
fn a_code_that_is_not_listed_is_delegated_and_the_answer_is_returned() {
    let mut host = Script { next: Ok(Decision::Retry), ..Script::default() };
    assert_eq!(decide(&step("AUTH", normal(3, [500.0, 10_000.0, 0.1])), &mut host), Ok(Decision::Retry));
    assert_eq!(host.did, [Did::Next]);
}

fn asked(should_retry: bool, step: FailedStep) -> FailedStep {
    FailedStep { should_retry: Some(should_retry), ..step }
}

#[test]
fn a_failure_that_the_provider_wants_left_alone_is_delegated_in_normal_mode_whatever_its_code_and_hint() {
    for code in DEFAULT_CODES {
        let mut host = Script { next: Ok(Decision::Retry), ..Script::default() };
        let failed = asked(false, hinted(2_000.0, step(code, normal(3, [500.0, 10_000.0, 0.1]))));
        assert_eq!(decide(&failed, &mut host), Ok(Decision::Retry), "{code}: the answer from behind is returned");
        assert_eq!(host.did, [Did::Next], "{code}");
    }
}

#[test]
fn a_failure_that_the_provider_wants_retried_is_eligible_in_normal_mode_within_the_budget() {
    for code in ["INVALID_REQUEST", "PROTOCOL", "SERVER", "UNKNOWN"] {
        let failed = asked(true, step(code, normal(3, [500.0, 10_000.0, 0.1])));
        let mut host = Script::with_samples([0.5]);
        assert_eq!(decide(&failed, &mut host), Ok(Decision::Retry), "{code}");
        assert_eq!(delay(&host), 500.0, "{code}");
        let mut host = Script { last: Some(("old".into(), 3)), ..Script::default() };
        assert_eq!(decide(&failed, &mut host), Ok(Decision::Unhandled), "{code}: the budget is spent");
    }
}

#[test]
fn a_credential_a_balance_and_a_size_are_not_retried_for_being_asked_to() {
    for code in ["AUTH", "QUOTA", "CONTEXT_OVERFLOW"] {
        let mut host = Script::default();
        let failed = asked(true, step(code, normal(3, [500.0, 10_000.0, 0.1])));
        assert_eq!(decide(&failed, &mut host), Ok(Decision::Unhandled), "{code}");
        assert_eq!(host.did, [Did::Next], "{code}");
        let backoff = backoff([500.0, 10_000.0, 0.1]);
        let listing = Policy::Normal { max_retries: 3, retryable_codes: vec![code.to_owned()], backoff };
        let mut host = Script::with_samples([0.5]);
        assert_eq!(decide(&asked(true, step(code, listing)), &mut host), Ok(Decision::Retry), "{code} is listed");
    }
}

#[test]
fn what_the_provider_says_changes_nothing_in_always_mode() {
    for should_retry in [true, false] {
        let mut host = Script::with_samples([0.5]);
        let failed = asked(should_retry, hinted(3.0, step("AUTH", always([1.0, 4.0, 0.1]))));
        assert_eq!(decide(&failed, &mut host), Ok(Decision::Retry));
        assert_eq!(delay(&host), 3.0, "its hint is still taken");
    }
}

#[test]
fn an_eligible_failure_in_normal_mode_does_not_ask_downstream() {
    let mut host = Script { next: Ok(Decision::Retry), ..Script::with_samples([0.5]) };
    decide(&step("SERVER", normal(3, [500.0, 10_000.0, 0.0])), &mut host).unwrap();
    assert!(!host.did.contains(&Did::Next));
}

#[test]
fn a_downstream_fault_is_passed_on_in_normal_mode() {
    let mut host = Script { next: Err("it trapped".into()), ..Script::default() };
    let outcome = decide(&step("AUTH", normal(3, [500.0, 10_000.0, 0.1])), &mut host);
    assert_eq!(outcome, Err("it trapped".into()));
}

#[test]
fn a_call_without_a_policy_is_delegated() {
    let mut host = Script { next: Ok(Decision::Retry), ..Script::default() };
    let step = FailedStep { policy: None, ..step("NO_ROUTE", always([1.0, 1.0, 0.0])) };
    assert_eq!(decide(&step, &mut host), Ok(Decision::Retry));
    assert_eq!(host.did, [Did::Next]);
}

#[test]
fn a_hint_within_the_cap_is_taken_verbatim_without_a_sample() {
    for hint in [2_000.0, 0.25, 10_000.0] {
        let mut host = Script::default();
        let failed = hinted(hint, step("RATE_LIMIT", normal(3, [500.0, 10_000.0, 1.0])));
        assert_eq!(decide(&failed, &mut host), Ok(Decision::Retry));
        assert_eq!(delay(&host), hint);
    }
}

#[test]
fn a_hint_beyond_the_cap_is_delegated_in_normal_mode() {
    let mut host = Script::default();
    let failed = hinted(10_001.0, step("RATE_LIMIT", normal(3, [500.0, 10_000.0, 1.0])));
    assert_eq!(decide(&failed, &mut host), Ok(Decision::Unhandled));
    assert_eq!(host.did, [Did::Next]);
}

#[test]
fn a_hint_beyond_the_cap_gives_the_local_delay_in_always_mode() {
    let mut host = Script::with_samples([1.0]);
    assert_eq!(decide(&hinted(10.0, step("AUTH", always([2.0, 4.0, 0.5]))), &mut host), Ok(Decision::Retry));
    assert_eq!(delay(&host), 3.0);
}

#[test]
fn a_hint_that_is_no_positive_number_is_no_hint() {
    for hint in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let mut host = Script::with_samples([0.5]);
        let failed = hinted(hint, step("RATE_LIMIT", normal(3, [500.0, 10_000.0, 0.1])));
        assert_eq!(decide(&failed, &mut host), Ok(Decision::Retry));
        assert_eq!(delay(&host), 500.0);
    }
}

#[test]
fn always_mode_retries_every_code_without_a_limit_in_the_record() {
    for (code, done, expected) in
        [("AUTH", 0, 1.1), ("QUOTA", 1, 2.2), ("INVALID_REQUEST", 2, 4.0), ("ABORTED", 999, 4.0)]
    {
        let last = (done > 0).then(|| ("old".to_owned(), done));
        let mut host = Script { last, ..Script::with_samples([1.0]) };
        assert_eq!(decide(&step(code, always([1.0, 4.0, 0.1])), &mut host), Ok(Decision::Retry));
        assert_eq!(delay(&host), expected);
        assert!(matches!(&host.did[1], Did::Retry { max: None, retry, .. } if *retry == done + 1), "{:?}", host.did);
    }
}

#[test]
fn always_mode_asks_downstream_first_and_a_retry_from_there_wins_without_a_record() {
    let mut host = Script { next: Ok(Decision::Retry), ..Script::default() };
    assert_eq!(decide(&step("SERVER", always([1.0, 4.0, 0.1])), &mut host), Ok(Decision::Retry));
    assert_eq!(host.did, [Did::Next]);
}

#[test]
fn always_mode_warns_of_a_downstream_fault_and_retries_by_itself() {
    let mut host = Script { next: Err("it trapped".into()), ..Script::with_samples([0.5]) };
    assert_eq!(decide(&step("SERVER", always([1.0, 4.0, 0.1])), &mut host), Ok(Decision::Retry));
    let Did::Warned(text) = &host.did[1] else { panic!("{:?}", host.did) };
    assert!(text.contains("\"acme\"") && text.contains("it trapped"), "{text}");
    assert!(matches!(host.did[2], Did::Retry { retry: 1, .. }));
}

#[test]
fn a_late_call_fails_closed_without_touching_downstream() {
    for policy in [normal(3, [500.0, 10_000.0, 0.1]), always([500.0, 10_000.0, 0.1])] {
        let mut host = Script { interrupted_after: Some(0), next: Ok(Decision::Retry), ..Script::default() };
        assert_eq!(decide(&step("SERVER", policy), &mut host), Ok(Decision::Unhandled));
        assert_eq!(host.did, []);
    }
}

#[test]
fn an_interruption_while_downstream_decides_discards_its_decision_and_its_fault() {
    for next in [Ok(Decision::Retry), Ok(Decision::Unhandled), Err("it trapped".to_owned())] {
        let mut host = Script { interrupted_after: Some(1), next, ..Script::default() };
        assert_eq!(decide(&step("SERVER", always([1.0, 4.0, 0.1])), &mut host), Ok(Decision::Unhandled));
        assert_eq!(host.did, [Did::Next]);
    }
}

#[test]
fn an_interruption_during_the_wait_writes_no_start() {
    // After the record (1), and after the wait has begun (2).
    for after in [1, 2] {
        let mut host = Script { interrupted_after: Some(after), ..Script::with_samples([0.5]) };
        let outcome = decide(&step("SERVER", normal(3, [500.0, 10_000.0, 0.1])), &mut host);
        assert_eq!(outcome, Ok(Decision::Unhandled));
        assert!(!host.did.iter().any(|did| matches!(did, Did::Started(..))), "{:?}", host.did);
    }
}

#[test]
fn a_refused_record_is_an_error_with_its_reason() {
    let mut host = Script { refuse: Some("the disk is full"), ..Script::with_samples([0.5]) };
    let outcome = decide(&step("SERVER", normal(3, [500.0, 10_000.0, 0.1])), &mut host);
    assert_eq!(outcome, Err("the disk is full".into()));
    assert_eq!(host.did, [], "there is no wait without a record");
}

fn pending(policy_key: String) -> Option<Pending> {
    Some(Pending { retry_id: "handed-over".into(), policy_key, retry: 2, remaining_ms: 300.5, waited_ms: 199.5 })
}

#[test]
fn a_pending_wait_of_the_same_key_is_carried_on_without_a_new_record() {
    for policy in [normal(3, [500.0, 10_000.0, 0.1]), always([500.0, 10_000.0, 0.1])] {
        let mut host = Script { last: Some(("old".into(), 1)), ..Script::default() };
        let step = FailedStep { pending: pending(policy_key(&policy)), ..step("SERVER", policy) };
        assert_eq!(decide(&step, &mut host), Ok(Decision::Retry));
        assert_eq!(host.did, [Did::Slept(300.5), Did::Started("handed-over".into(), 2)]);
    }
}

#[test]
fn a_pending_wait_that_is_interrupted_again_starts_nothing() {
    let policy = normal(3, [500.0, 10_000.0, 0.1]);
    let mut host = Script { interrupted_after: Some(1), ..Script::default() };
    let step = FailedStep { pending: pending(policy_key(&policy)), ..step("SERVER", policy) };
    assert_eq!(decide(&step, &mut host), Ok(Decision::Unhandled));
    assert_eq!(host.did, [Did::Slept(300.5)]);
}

#[test]
fn a_pending_wait_of_another_key_shortens_the_executors_own() {
    let mut host = Script::with_samples([0.5]);
    let failed =
        FailedStep { pending: pending("[\"other\"]".into()), ..step("SERVER", normal(3, [500.0, 10_000.0, 0.1])) };
    assert_eq!(decide(&failed, &mut host), Ok(Decision::Retry));
    assert!(matches!(&host.did[0], Did::Retry { id, retry: 1, .. } if id == "new-1"), "{:?}", host.did);
    assert_eq!(delay(&host), 300.5);
    assert_eq!(host.did[1], Did::Slept(300.5));
}

#[test]
fn a_pending_wait_of_another_key_never_makes_a_delay_negative() {
    let mut host = Script::with_samples([0.5]);
    let failed =
        FailedStep { pending: pending("[\"other\"]".into()), ..step("SERVER", normal(3, [100.0, 100.0, 0.0])) };
    assert_eq!(decide(&failed, &mut host), Ok(Decision::Retry));
    assert_eq!(delay(&host), 0.0);
}

#[test]
fn a_pending_wait_of_another_key_shortens_a_hint_after_it_was_held_against_the_cap() {
    let policy = normal(3, [500.0, 10_000.0, 0.0]);
    let with_hint =
        |hint| hinted(hint, FailedStep { pending: pending("[]".into()), ..step("RATE_LIMIT", policy.clone()) });
    let mut host = Script::default();
    assert_eq!(decide(&with_hint(2_000.0), &mut host), Ok(Decision::Retry));
    assert_eq!(delay(&host), 1_800.5);
    let mut host = Script::default();
    assert_eq!(decide(&with_hint(10_001.0), &mut host), Ok(Decision::Unhandled));
    assert_eq!(host.did, [Did::Next]);
}

#[test]
fn a_pending_wait_of_another_key_follows_the_usual_downstream_rules() {
    let mut host = Script { next: Ok(Decision::Retry), ..Script::default() };
    let failed = FailedStep { pending: pending("[]".into()), ..step("SERVER", always([1.0, 4.0, 0.1])) };
    assert_eq!(decide(&failed, &mut host), Ok(Decision::Retry));
    assert_eq!(host.did, [Did::Next]);
}
