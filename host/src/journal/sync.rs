//! One file's flushes to disk, shared: whoever asks while a flush runs that began too early waits for one more, and
//! all who wait for that one share it.

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::{io, sync::Arc};
use tokio::sync::Notify;

/// The flushes of one file.
#[derive(Default)]
pub(super) struct SharedSync {
    state: Mutex<State>,
    settled: Notify,
}

#[derive(Default)]
struct State {
    /// How many writes there were.
    written: u64,
    /// How many of them survive a crash of the machine.
    synced: u64,
    running: bool,
    failed: Option<Failed>,
}

#[derive(Clone, Copy)]
struct Failed {
    kind: io::ErrorKind,
    os: Option<i32>,
}

impl SharedSync {
    /// The file has been written to.
    pub fn wrote(&self) {
        self.state.lock().written += 1;
    }

    /// Completes when everything written before this call has been flushed with `flush`, which runs on a thread that
    /// may block. A failure is final: the kernel may have dropped what it could not write.
    pub fn flushed(
        self: &Arc<Self>,
        flush: impl Fn() -> io::Result<()> + Clone + Send + 'static,
    ) -> BoxFuture<'static, io::Result<()>> {
        let this = self.clone();
        let target = this.state.lock().written;
        Box::pin(async move {
            loop {
                let settled = this.settled.notified();
                tokio::pin!(settled);
                settled.as_mut().enable();
                {
                    let mut state = this.state.lock();
                    if let Some(failed) = state.failed {
                        return Err(failed.os.map_or_else(|| failed.kind.into(), io::Error::from_raw_os_error));
                    }
                    if state.synced >= target {
                        return Ok(());
                    }
                    if !std::mem::replace(&mut state.running, true) {
                        let (this, flush) = (this.clone(), flush.clone());
                        // Not awaited: it settles for all, even when the one that began it goes away.
                        tokio::task::spawn_blocking(move || this.run(flush));
                    }
                }
                settled.await;
            }
        })
    }

    fn run(&self, flush: impl Fn() -> io::Result<()>) {
        let covered = self.state.lock().written;
        let flushed = flush();
        let mut state = self.state.lock();
        state.running = false;
        match flushed {
            Ok(()) => state.synced = covered,
            Err(error) => state.failed = Some(Failed { kind: error.kind(), os: error.raw_os_error() }),
        }
        drop(state);
        self.settled.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    #[tokio::test]
    async fn flushes_that_are_asked_for_together_share_one_and_none_ends_before_its_own_writes_are_safe() {
        let sync = Arc::new(SharedSync::default());
        let count = Arc::new(AtomicUsize::new(0));
        let (release, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let flush = {
            let count = count.clone();
            move || {
                gate.lock().recv().map_err(io::Error::other)?;
                count.fetch_add(1, Ordering::SeqCst);
                Ok(())
            }
        };
        sync.wrote();
        let first = tokio::spawn(sync.flushed(flush.clone()));
        while !sync.state.lock().running {
            tokio::task::yield_now().await;
        }
        // The flush that runs may have begun before this write, so that it does not count for it.
        sync.wrote();
        let later: Vec<_> = (0..10).map(|_| tokio::spawn(sync.flushed(flush.clone()))).collect();
        tokio::task::yield_now().await;
        assert!(later.iter().all(|task| !task.is_finished()));
        release.send(()).unwrap();
        first.await.unwrap().unwrap();
        release.send(()).unwrap();
        drop(release);
        for task in later {
            task.await.unwrap().unwrap();
        }
        assert!(count.load(Ordering::SeqCst) <= 2);
    }

    #[tokio::test]
    async fn a_failed_flush_is_final() {
        let sync = Arc::new(SharedSync::default());
        sync.wrote();
        let full = || Err(io::Error::from_raw_os_error(28));
        assert_eq!(sync.flushed(full).await.unwrap_err().raw_os_error(), Some(28));
        assert_eq!(sync.flushed(|| Ok(())).await.unwrap_err().raw_os_error(), Some(28));
    }
}
