//! The recovery of one failed step: ask the current chain, and ask it again when a wait was lost to a swap or a fault.

use super::{
    dispatch::{Dispatch, FaultsOfStep},
    executor::{Decision, FailedStep, PendingRetry},
    swap::{Chain, Waterfall},
};
use crate::{
    env::Env,
    journal::{
        Body, Journal, JournalError,
        event::{ChainMet, ExecutorRef, Retry, RetryHandover, RetryStarted},
    },
};
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What a recovery works with.
pub struct RecoveryContext {
    pub journal: Arc<Journal>,
    pub env: Env,
    /// The turn's own token: cancel beats everything.
    pub cancel: CancellationToken,
}

/// How a recovery ended.
#[derive(Debug)]
pub enum Recovered {
    /// Repeat the request.
    Retry,
    /// Nobody answered; the turn ends with its failure.
    Unhandled,
    /// The turn was cancelled; whatever was decided is discarded.
    Cancelled,
    /// The journal failed; the turn ends with that.
    Journal(JournalError),
}

/// Asks the waterfall's current chain about a failed step, for as long as swaps and faults keep it from answering.
///
/// The step must be closed. A wait that the journal holds for it and that has not started (after a swap, a fault, or a
/// restart of the process) is handed over, recorded first, with what remains of its delay.
pub async fn recover(waterfall: &Waterfall, context: Arc<RecoveryContext>, step: FailedStep) -> Recovered {
    let faults = Arc::new(FaultsOfStep::default());
    // Who is to be named in a handover, when the journal does not know who scheduled the wait.
    let mut last_chain: Option<Arc<Chain>> = None;
    loop {
        if context.cancel.is_cancelled() {
            return Recovered::Cancelled;
        }
        let chain = waterfall.current();
        let mut step = step.clone();
        match meet(&context, &chain).and_then(|()| hand_over(&context, &chain, last_chain.as_deref())) {
            Ok(pending) => step.pending = pending,
            Err(error) => return Recovered::Journal(error),
        }
        last_chain = Some(chain.clone());
        let pass = Dispatch::new(context.clone(), chain.clone(), step, faults.clone()).run();
        let pass = tokio::select! {
            biased;
            pass = pass => pass,
            // Delegated recovery is drained, but an executor that ignores the cancel cannot hold the turn for ever.
            () = async {
                context.cancel.cancelled().await;
                context.env.clock.sleep(waterfall.drain_timeout()).await;
            } => return Recovered::Cancelled,
        };
        if let Some(error) = pass.storage_error {
            return Recovered::Journal(error);
        }
        if context.cancel.is_cancelled() {
            return Recovered::Cancelled;
        }
        // A wait that has been served is due, whoever was swapped out meanwhile.
        let started = context.journal.with_state(|state| state.current_retry().is_some_and(|live| live.started));
        match pass.decision {
            Decision::Retry if started => return Recovered::Retry,
            Decision::Retry if !pass.ask_again => {
                return start_pending(&context).map_or_else(Recovered::Journal, |()| Recovered::Retry);
            }
            Decision::Unhandled if started => return Recovered::Retry,
            Decision::Unhandled if !pass.ask_again => return Recovered::Unhandled,
            Decision::Retry | Decision::Unhandled => {}
        }
    }
}

/// Records the chain when the session meets it for the first time.
fn meet(context: &RecoveryContext, chain: &Chain) -> Result<(), JournalError> {
    let executors = chain.activations.iter().map(|activation| activation.identity.for_journal()).collect();
    let met = ChainMet { generation: chain.generation, executors };
    if context.journal.with_state(|state| state.chain.as_ref() == Some(&met)) {
        return Ok(());
    }
    context.journal.append(Body::Chain(met)).map(|_| ())
}

/// Records that a wait which is still scheduled has ended: the request is repeated whoever decided so, and a retry that
/// nobody had started would spend no budget.
fn start_pending(context: &RecoveryContext) -> Result<(), JournalError> {
    let Some(live) = context.journal.with_state(|state| state.pending_retry().cloned()) else { return Ok(()) };
    let Retry { retry_id, turn, step, retry, .. } = live.record;
    context.journal.append(Body::RetryStarted(RetryStarted { retry_id, turn, step, retry })).map(|_| ())
}

/// Hands a wait that the journal holds over to `chain`, and describes it for its executors.
fn hand_over(
    context: &RecoveryContext,
    chain: &Chain,
    last: Option<&Chain>,
) -> Result<Option<PendingRetry>, JournalError> {
    let Some(live) = context.journal.with_state(|state| state.pending_retry().cloned()) else { return Ok(None) };
    let now = context.env.clock.wall_ms();
    let from = live.by.clone().unwrap_or_else(|| {
        let head = last.unwrap_or(chain).activations.first();
        head.map_or_else(ExecutorRef::unknown, |head| head.identity.reference())
    });
    context.journal.append(Body::RetryHandover(RetryHandover {
        retry_id: live.record.retry_id.clone(),
        turn: live.record.turn,
        step: live.record.step,
        retry: live.record.retry,
        remaining_ms: live.remaining_ms(now),
        from,
        generation: chain.generation,
    }))?;
    Ok(Some(PendingRetry {
        remaining_ms: live.remaining_ms(now),
        waited_ms: live.waited_ms(now),
        retry_id: live.record.retry_id,
        policy_key: live.record.policy_key,
        retry: live.record.retry,
    }))
}
