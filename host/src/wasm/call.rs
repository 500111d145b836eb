//! One call of a component: a fresh store, its limits and counters, and the host's side of the imports.
//!
//! Every call has a store and an instance of its own, so nothing of a call that trapped, was dropped or was killed can
//! reach another. What a guest passes is checked here before the waterfall sees it. Knows nothing of journals: it
//! hands records on. Called by `executor` (for a turn) and `component` (for the canary).

use super::{
    bindings::{self, RetryExecutor, RetryExecutorPre, config, journal, log, random, timer, types, waterfall},
    engine::Engines,
    fault::{self, Circumstances, Stage},
    limits::{Limits, TABLE_ELEMENTS},
    wasi::Wasi,
};
use crate::{
    llm::policy::MAX_TIMER_MS,
    waterfall::executor::{Call, Fault, LogLevel, Record, RetryLimit},
};
use futures_util::FutureExt as _;
use parking_lot::Mutex;
use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio_util::sync::CancellationToken;
use wasmtime::{ResourceLimiter, Store, StoreContextMut, UpdateDeadline};

/// The largest whole number that every reader of the journal holds exactly (2^53 - 1).
const MAX_NUMBER: u64 = (1 << 53) - 1;

/// The longest id or key of a record, in bytes.
const MAX_KEY: usize = 512;

/// The longest kind of a note, in bytes.
const MAX_NOTE_KIND: usize = 64;

/// What a call may reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// It decides about a failed step: everything.
    Turn,
    /// `describe` or `validate`, whose name it carries: `log` and `random`.
    Canary(&'static str),
}

/// What a call is started with.
pub(super) struct Setup {
    pub call: Arc<dyn Call>,
    pub kill: CancellationToken,
    pub config: Arc<str>,
    pub limits: Limits,
    pub scope: Scope,
}

/// The data of a call's store.
pub(super) struct CallState {
    call: Arc<dyn Call>,
    kill: CancellationToken,
    config: Arc<str>,
    limits: Limits,
    scope: Scope,
    /// Epochs that ended while the guest ran, since its budget began anew.
    ticks: u32,
    appends: u32,
    asked_next: bool,
    memory: Memory,
    pub(super) log: Arc<CallLog>,
    pub(super) wasi: Option<Box<Wasi>>,
}

/// The call's log with its budget; shared with the streams of WASI.
pub(super) struct CallLog {
    call: Arc<dyn Call>,
    limit: u32,
    used: AtomicUsize,
    last_error: Mutex<Option<String>>,
}

impl CallLog {
    pub(super) fn call(&self) -> &dyn Call {
        &*self.call
    }

    /// Writes a line, or ends the call when its budget of bytes is used up.
    pub(super) fn write(&self, level: LogLevel, line: &str) -> Result<(), Fault> {
        // A line costs at least a byte: empty ones are not free.
        let used = self.used.fetch_add(line.len().max(1), Ordering::Relaxed) + line.len().max(1);
        if used > self.limit as usize {
            return Err(fault::log(self.limit));
        }
        if level == LogLevel::Error {
            *self.last_error.lock() = Some(line.to_owned());
        }
        self.call.log(level, line);
        Ok(())
    }
}

/// The memory of a call's instance, and whether more was asked for than it may have.
struct Memory {
    limit_bytes: u64,
    used_bytes: u64,
    /// What the last growth added, to be taken back if it fails.
    last_growth: u64,
    refused: bool,
}

impl ResourceLimiter for Memory {
    fn memory_growing(&mut self, current: usize, desired: usize, maximum: Option<usize>) -> wasmtime::Result<bool> {
        let growth = desired.saturating_sub(current) as u64;
        // A memory that passes its own declared maximum fails by its own rule, not by ours.
        let over = self.used_bytes.saturating_add(growth) > self.limit_bytes;
        if over && maximum.is_none_or(|maximum| desired <= maximum || maximum as u64 >= self.limit_bytes) {
            self.refused = true;
        }
        if !over {
            self.used_bytes += growth;
            self.last_growth = growth;
        }
        Ok(!over)
    }

    fn memory_grow_failed(&mut self, _: wasmtime::Error) -> wasmtime::Result<()> {
        self.used_bytes = self.used_bytes.saturating_sub(std::mem::take(&mut self.last_growth));
        Ok(())
    }

    fn table_growing(&mut self, _: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        let over = desired > TABLE_ELEMENTS;
        self.refused |= over;
        Ok(!over)
    }
}

/// A started call: its store and its instance.
pub(super) struct Started {
    store: Store<CallState>,
    instance: RetryExecutor,
}

/// Why a call could not be started.
pub(super) enum StartError {
    /// The pool has no free slot. The caller starts the call on demand, with the same setup.
    PoolFull(Setup),
    Fault(Fault),
}

impl Started {
    /// Makes the store and the instance. A component's start code runs here, within the limits.
    pub(super) async fn new(pre: &RetryExecutorPre<CallState>, setup: Setup) -> Result<Started, StartError> {
        let Setup { call, kill, config, limits, scope } = setup;
        let log = Arc::new(CallLog {
            call: call.clone(),
            limit: limits.log_bytes,
            used: AtomicUsize::new(0),
            last_error: Mutex::new(None),
        });
        let state = CallState {
            call,
            kill,
            config,
            limits,
            scope,
            ticks: 0,
            appends: 0,
            asked_next: false,
            memory: Memory { limit_bytes: limits.memory_bytes(), used_bytes: 0, last_growth: 0, refused: false },
            log,
            wasi: None,
        };
        let mut store = Store::new(pre.engine(), state);
        store.limiter(|state| &mut state.memory);
        store.epoch_deadline_callback(on_epoch);
        store.set_epoch_deadline(1);
        match pre.instantiate_async(&mut store).await {
            Ok(instance) => Ok(Started { store, instance }),
            Err(error) if error.downcast_ref::<wasmtime::PoolConcurrencyLimitError>().is_some() => {
                let CallState { call, kill, config, limits, scope, .. } = store.into_data();
                Err(StartError::PoolFull(Setup { call, kill, config, limits, scope }))
            }
            Err(error) => Err(StartError::Fault(fault_of(&error, Stage::Start, &store))),
        }
    }

    pub(super) async fn describe(mut self) -> Result<bindings::WitManifest, Fault> {
        let result = self.instance.retake_executor_executor().call_describe(&mut self.store).await;
        result.map_err(|error| fault_of(&error, Stage::Run, &self.store))
    }

    pub(super) async fn validate(mut self, config: &str) -> Result<Result<(), Vec<bindings::WitProblem>>, Fault> {
        let result = self.instance.retake_executor_executor().call_validate(&mut self.store, config).await;
        result.map_err(|error| fault_of(&error, Stage::Run, &self.store))
    }

    pub(super) async fn request_error(mut self, step: &types::FailedStep) -> Result<types::Decision, Fault> {
        let result = self.instance.retake_executor_executor().call_request_error(&mut self.store, step).await;
        match result {
            Ok(Ok(decision)) => Ok(decision),
            Ok(Err(text)) => Err(fault::returned(&text)),
            Err(error) => Err(fault_of(&error, Stage::Run, &self.store)),
        }
    }
}

/// Runs a call until it ends, is killed, or the host's own code panics, whichever comes first.
///
/// The kill token is raced here, around everything, so that it also ends a guest that waits in a host function or in
/// WASI; a guest that computes comes back at every tick. wasmtime carries a panic of a host function across the guest's
/// stack to this place, where it ends as the fault of one call. The store is dropped with the future: the token and
/// everything in the call are plain data that no other call sees, so it cannot be left half-changed.
pub(super) async fn contained<T>(
    engines: &Engines,
    kill: &CancellationToken,
    call: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let _ticking = engines.tick().map_err(|error| fault::host(&error.to_string()))?;
    tokio::select! {
        biased;
        () = kill.cancelled() => Err(fault::killed()),
        result = AssertUnwindSafe(call).catch_unwind() => {
            result.unwrap_or_else(|payload| Err(fault::host_panic(&*payload)))
        }
    }
}

/// Called when an epoch ends while the guest runs. An epoch that passed in a host call brings it here once, right after
/// the call, so waits are not charged. Yields through the runtime's own queue, so that a spinning guest does not starve
/// timers and neighbours.
fn on_epoch(mut store: StoreContextMut<'_, CallState>) -> wasmtime::Result<UpdateDeadline> {
    let state = store.data_mut();
    if state.kill.is_cancelled() {
        return Err(fault::killed().into());
    }
    state.ticks += 1;
    if state.ticks >= state.limits.cpu_ticks() {
        return Err(fault::cpu(state.limits.cpu_budget_ms).into());
    }
    Ok(UpdateDeadline::YieldCustom(1, Box::pin(tokio::task::yield_now())))
}

fn fault_of(error: &wasmtime::Error, stage: Stage, store: &Store<CallState>) -> Fault {
    let state = store.data();
    if let Some(wasi) = &state.wasi {
        wasi.flush();
    }
    let last_error = state.log.last_error.lock();
    let circumstances = Circumstances {
        stage,
        refused_memory_mb: state.memory.refused.then_some(state.limits.memory_mb),
        last_error_line: last_error.as_deref(),
    };
    fault::of(error, circumstances)
}

impl CallState {
    /// Refuses what a canary call may not use.
    fn in_turn(&self, function: &str) -> Result<(), Fault> {
        match self.scope {
            Scope::Turn => Ok(()),
            Scope::Canary(export) => Err(fault::malformed(&format!(
                "control to `{function}` in `{export}`, which runs with no turn: only `log` and `random` answer"
            ))),
        }
    }

    /// Begins a new CPU budget. Only host calls that wait or record do so, and those are bounded: a loop over calls
    /// that answer at once would never be ended otherwise.
    fn budget_anew(&mut self) {
        self.ticks = 0;
    }
}

impl types::Host for CallState {}

impl waterfall::Host for CallState {
    async fn next(&mut self) -> wasmtime::Result<Result<types::Decision, String>> {
        self.in_turn("waterfall.next")?;
        let outcome = self.call.next().await;
        if !self.asked_next {
            self.asked_next = true;
            self.budget_anew();
        }
        Ok(outcome.map(Into::into))
    }
}

impl journal::Host for CallState {
    async fn append(&mut self, event: journal::Event) -> wasmtime::Result<Result<u64, journal::AppendError>> {
        self.in_turn("journal.append")?;
        if self.appends >= self.limits.appends {
            return Err(fault::appends(self.limits.appends).into());
        }
        self.appends += 1;
        let record = Record::from(event);
        check(&record, self.limits.append_bytes)?;
        let result = self.call.append(record).await;
        self.budget_anew();
        Ok(result.map_err(Into::into))
    }

    fn last_retry(&mut self, provider: String, policy_key: String) -> wasmtime::Result<Option<journal::StartedRetry>> {
        self.in_turn("journal.last-retry")?;
        let last = self.call.last_retry(&provider, &policy_key);
        Ok(last.map(|last| journal::StartedRetry { retry_id: last.retry_id, retry: last.retry }))
    }
}

impl timer::Host for CallState {
    async fn sleep(&mut self, ms: f64) -> wasmtime::Result<Result<(), types::Interruption>> {
        self.in_turn("timer.sleep")?;
        if !(0.0..=MAX_TIMER_MS).contains(&ms) {
            return Err(fault::malformed(&format!("{ms} to `timer.sleep`, which takes 0 to {MAX_TIMER_MS} ms")).into());
        }
        let result = self.call.sleep(ms).await;
        // A guest that goes on after an interruption, or that sleeps for no time, must not live on that.
        if result.is_ok() && ms >= 1.0 {
            self.budget_anew();
        }
        Ok(result.map_err(Into::into))
    }

    fn interrupted(&mut self) -> wasmtime::Result<Option<types::Interruption>> {
        self.in_turn("timer.interrupted")?;
        Ok(self.call.interrupted().map(Into::into))
    }
}

impl random::Host for CallState {
    fn unit(&mut self) -> wasmtime::Result<f64> {
        Ok(self.call.unit())
    }

    fn retry_id(&mut self) -> wasmtime::Result<String> {
        Ok(self.call.retry_id())
    }
}

impl log::Host for CallState {
    fn write(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        Ok(self.log.write(level.into(), &message)?)
    }
}

impl config::Host for CallState {
    fn json(&mut self) -> wasmtime::Result<String> {
        self.in_turn("config.json")?;
        Ok(self.config.to_string())
    }
}

/// Checks what the interface promises about a record; the journal checks what depends on the records before it.
fn check(record: &Record, max_bytes: u32) -> Result<(), Fault> {
    let bytes = match record {
        Record::Retry { retry_id, policy_key, .. } => retry_id.len() + policy_key.len(),
        Record::RetryStarted { retry_id, .. } => retry_id.len(),
        Record::Note { kind, json } => kind.len() + json.len(),
    };
    if bytes > max_bytes as usize {
        return Err(fault::append_bytes(bytes, max_bytes));
    }
    match record {
        Record::Retry { retry_id, policy_key, retry, limit, delay_ms } => {
            key("retry-id", retry_id)?;
            key("policy-key", policy_key)?;
            number("retry", *retry)?;
            if let RetryLimit::Normal(limit) = limit {
                number("limit", *limit)?;
                if limit < retry {
                    let what = format!("a record with retry {retry} over its limit {limit}");
                    return Err(fault::malformed(&what));
                }
            }
            if !(0.0..=MAX_TIMER_MS).contains(delay_ms) {
                let what = format!("a record with delay-ms {delay_ms}, which must be 0 to {MAX_TIMER_MS}");
                return Err(fault::malformed(&what));
            }
            Ok(())
        }
        Record::RetryStarted { retry_id, retry } => {
            key("retry-id", retry_id)?;
            number("retry", *retry)
        }
        Record::Note { kind, json } => {
            let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            if kind.is_empty() || kind.len() > MAX_NOTE_KIND || !kind.bytes().all(fits) {
                let what =
                    format!("a note of kind {kind:?}, which must be 1 to {MAX_NOTE_KIND} of `a-z`, `0-9` and `-`");
                return Err(fault::malformed(&what));
            }
            serde_json::from_str::<serde::de::IgnoredAny>(json)
                .map(drop)
                .map_err(|error| fault::malformed(&format!("a note of kind `{kind}` whose text is no JSON: {error}")))
        }
    }
}

fn key(name: &str, text: &str) -> Result<(), Fault> {
    if text.is_empty() || text.len() > MAX_KEY {
        let what = format!("a record with a {name} of {} bytes, which must be 1 to {MAX_KEY}", text.len());
        return Err(fault::malformed(&what));
    }
    Ok(())
}

fn number(name: &str, value: u64) -> Result<(), Fault> {
    if !(1..=MAX_NUMBER).contains(&value) {
        return Err(fault::malformed(&format!("a record with {name} {value}, which must be 1 to {MAX_NUMBER}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::waterfall::executor::FaultKind;

    fn retry() -> Record {
        Record::Retry {
            retry_id: "id".into(),
            policy_key: "key".into(),
            retry: 2,
            limit: RetryLimit::Normal(2),
            delay_ms: 0.0,
        }
    }

    fn kind(record: &Record) -> Option<FaultKind> {
        check(record, 1000).err().map(|fault| fault.kind)
    }

    fn with(change: impl FnOnce(&mut String, &mut String, &mut u64, &mut RetryLimit, &mut f64)) -> Option<FaultKind> {
        let mut record = retry();
        if let Record::Retry { retry_id, policy_key, retry, limit, delay_ms } = &mut record {
            change(retry_id, policy_key, retry, limit, delay_ms);
        }
        kind(&record)
    }

    #[test]
    fn a_record_within_the_rules_passes() {
        assert_eq!(kind(&retry()), None);
        assert_eq!(with(|_, _, _, limit, delay| (*limit, *delay) = (RetryLimit::Always, MAX_TIMER_MS)), None);
        assert_eq!(kind(&Record::RetryStarted { retry_id: "id".into(), retry: 1 }), None);
        assert_eq!(kind(&Record::Note { kind: "a-1".into(), json: "{\"a\":[1]}".into() }), None);
    }

    #[test]
    fn a_record_outside_the_rules_is_malformed() {
        let malformed = Some(FaultKind::Malformed);
        assert_eq!(with(|id, _, _, _, _| id.clear()), malformed);
        assert_eq!(with(|_, key, _, _, _| key.clear()), malformed);
        assert_eq!(with(|_, key, _, _, _| *key = "k".repeat(MAX_KEY + 1)), malformed);
        assert_eq!(with(|_, _, retry, _, _| *retry = 0), malformed);
        assert_eq!(with(|_, _, _, limit, _| *limit = RetryLimit::Normal(1)), malformed);
        assert_eq!(with(|_, _, _, limit, _| *limit = RetryLimit::Normal(1 << 53)), malformed);
        for bad in [f64::NAN, f64::INFINITY, -1.0, MAX_TIMER_MS + 1.0] {
            assert_eq!(with(|_, _, _, _, delay| *delay = bad), malformed, "{bad}");
        }
        for bad in ["", "Upper", "a b", &"k".repeat(MAX_NOTE_KIND + 1)] {
            assert_eq!(kind(&Record::Note { kind: bad.into(), json: "1".into() }), malformed, "{bad}");
        }
        for bad in ["", "{", "1 2", "nul"] {
            assert_eq!(kind(&Record::Note { kind: "k".into(), json: bad.into() }), malformed, "{bad}");
        }
    }

    #[test]
    fn a_large_record_names_its_limit() {
        let note = Record::Note { kind: "k".into(), json: "1".repeat(2000) };
        let fault = check(&note, 1000).unwrap_err();
        assert_eq!(fault.kind, FaultKind::AppendLimit);
        assert!(fault.message.contains("2001 bytes; the limit `appendBytes` of its entry is 1000"), "{fault}");
    }
}
