//! The inert WASI of a component that imports one: no files, no network, no environment, no arguments, an empty input.
//! What it prints goes to the call's log. Clocks tell the real time; random bytes come from the call's own source, so
//! that a simulation repeats.
//!
//! Linked only when imported, and made only when first used: an executor without WASI pays nothing. A wait through
//! WASI does not end on cancel or retirement as `timer.sleep` does; it ends when the call is killed.

use super::call::{CallLog, CallState};
use crate::waterfall::executor::LogLevel;
use bytes::Bytes;
use parking_lot::Mutex;
use rand::{SeedableRng as _, rngs::SmallRng};
use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::io::AsyncWrite;
use wasmtime_wasi::{
    ResourceTable, WasiCtx, WasiCtxBuilder, WasiCtxView, WasiView, async_trait,
    cli::{IsTerminal, StdoutStream},
    p2::{OutputStream, Pollable, StreamError, StreamResult},
};

/// Streams, pollables and the like that a call may hold at once.
const MAX_RESOURCES: usize = 1024;

/// Random bytes that one request may ask for.
const MAX_RANDOM: u64 = 64 * 1024;

/// The longest line that is held back until its end; a longer one is logged in pieces.
const MAX_LINE: usize = 8 * 1024;

/// Added to the linker of a component that imports WASI.
pub(super) fn add_to_linker(linker: &mut wasmtime::component::Linker<CallState>) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)
}

pub(super) struct Wasi {
    ctx: WasiCtx,
    table: ResourceTable,
    out: Lines,
    err: Lines,
}

impl Wasi {
    fn inert(log: &Arc<CallLog>) -> Wasi {
        let out = Lines::new(log.clone(), LogLevel::Info);
        let err = Lines::new(log.clone(), LogLevel::Error);
        let seed = || SmallRng::seed_from_u64(log.call().unit().to_bits());
        let mut builder = WasiCtxBuilder::new();
        builder
            .secure_random(seed())
            .insecure_random(seed())
            .insecure_random_seed(u128::from(log.call().unit().to_bits()))
            .max_random_size(MAX_RANDOM)
            .allow_tcp(false)
            .allow_udp(false)
            .allow_ip_name_lookup(false)
            .stdout(out.clone())
            .stderr(err.clone());
        let mut table = ResourceTable::new();
        table.set_max_capacity(MAX_RESOURCES);
        Wasi { ctx: builder.build(), table, out, err }
    }

    /// Logs what was printed without an end of line: after a crash that is often the reason.
    pub(super) fn flush(&self) {
        for lines in [&self.out, &self.err] {
            // The call is over; a limit that is passed here has nobody to tell.
            let _ = lines.flush_rest();
        }
    }
}

impl WasiView for CallState {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        let wasi = self.wasi.get_or_insert_with(|| Box::new(Wasi::inert(&self.log)));
        WasiCtxView { ctx: &mut wasi.ctx, table: &mut wasi.table }
    }
}

/// Turns printed bytes into log lines. All handles of one stream share the line that is being written.
#[derive(Clone)]
struct Lines {
    log: Arc<CallLog>,
    level: LogLevel,
    pending: Arc<Mutex<Vec<u8>>>,
}

impl Lines {
    fn new(log: Arc<CallLog>, level: LogLevel) -> Lines {
        Lines { log, level, pending: Arc::default() }
    }

    fn push(&self, bytes: &[u8]) -> StreamResult<()> {
        let mut pending = self.pending.lock();
        for piece in bytes.split_inclusive(|&byte| byte == b'\n') {
            for piece in piece.chunks(MAX_LINE) {
                pending.extend_from_slice(piece);
                if pending.ends_with(b"\n") || pending.len() >= MAX_LINE {
                    self.emit(&mut pending)?;
                }
            }
        }
        Ok(())
    }

    fn flush_rest(&self) -> StreamResult<()> {
        self.emit(&mut self.pending.lock())
    }

    fn emit(&self, pending: &mut Vec<u8>) -> StreamResult<()> {
        let line = String::from_utf8_lossy(pending).trim_end().to_owned();
        pending.clear();
        if line.is_empty() {
            return Ok(());
        }
        self.log.write(self.level, &line).map_err(|fault| StreamError::Trap(fault.into()))
    }
}

impl IsTerminal for Lines {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Lines {
    fn async_stream(&self) -> Box<dyn AsyncWrite + Send + Sync> {
        Box::new(self.clone())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

impl OutputStream for Lines {
    fn write(&mut self, bytes: Bytes) -> StreamResult<()> {
        self.push(&bytes)
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> StreamResult<usize> {
        Ok(MAX_LINE)
    }
}

#[async_trait]
impl Pollable for Lines {
    async fn ready(&mut self) {}
}

impl AsyncWrite for Lines {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(self.push(bytes).map(|()| bytes.len()).map_err(io::Error::other))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}
