//! What went wrong in a call, in one sentence: from wasmtime's errors, and from the limits, to a [`Fault`].
//!
//! Called by `call` when a call did not give an answer. It decides nothing.

use super::engine::one_line;
use crate::waterfall::executor::{Fault, FaultKind};
use std::any::Any;
use wasmtime::{Trap, WasmBacktrace};

/// How far the call had come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// The instance was being made: what fails here without a trap is the host's.
    Start,
    /// The guest was running: what fails here without a trap is a value that does not fit the interface.
    Run,
}

/// What the call itself knows about its end.
pub(super) struct Circumstances<'a> {
    pub stage: Stage,
    /// The most memory it may have, in MiB, if more was asked for and refused.
    pub refused_memory_mb: Option<u32>,
    /// The last line that it logged as an error. Guests report a panic there before they abort.
    pub last_error_line: Option<&'a str>,
}

pub(super) fn of(error: &wasmtime::Error, circumstances: Circumstances<'_>) -> Fault {
    if let Some(fault) = error.downcast_ref::<Fault>() {
        return fault.clone();
    }
    let place = place(error);
    if let Some(limit) = circumstances.refused_memory_mb {
        return memory(limit, &place);
    }
    if let Some(trap) = error.downcast_ref::<Trap>() {
        let said = circumstances.last_error_line.filter(|_| *trap == Trap::UnreachableCodeReached);
        return trapped(*trap, said, &place);
    }
    if let Some(exit) = error.downcast_ref::<wasmtime_wasi::I32Exit>() {
        let said = circumstances
            .last_error_line
            .map_or(String::new(), |line| format!(" Its last error line: {}", sentence(line)));
        let message = format!("The component exited with status {} instead of answering{place}.{said}", exit.0);
        return Fault { kind: FaultKind::Trap, message };
    }
    match circumstances.stage {
        Stage::Start => host(&format!("an instance of the component could not be made: {}", cause(error))),
        Stage::Run => malformed(&format!("a value that the interface does not allow: {}", cause(error))),
    }
}

fn trapped(trap: Trap, said: Option<&str>, place: &str) -> Fault {
    let message = match said.map(shortened) {
        Some(line) if line.starts_with("panicked ") => {
            let place = if place.is_empty() { String::new() } else { format!(" ({})", place.trim_start()) };
            format!("The component {}{place}.", line.trim_end_matches('.'))
        }
        Some(line) => format!("The component aborted{place}; its last error line: {}", sentence(&line)),
        None => {
            let reason = trap.to_string();
            format!("The component trapped{place}: {}.", reason.trim_start_matches("wasm trap: "))
        }
    };
    Fault { kind: FaultKind::Trap, message }
}

pub(super) fn memory(limit_mb: u32, place: &str) -> Fault {
    let message = format!(
        "The component asked for more memory than it may have{place}; the limit `memoryMb` of its entry is {limit_mb}."
    );
    Fault { kind: FaultKind::MemoryLimit, message }
}

pub(super) fn cpu(budget_ms: u32) -> Fault {
    let message = format!(
        "The component computed longer than it may between two host calls; the limit `cpuBudgetMs` of its entry is \
         {budget_ms}."
    );
    Fault { kind: FaultKind::CpuLimit, message }
}

pub(super) fn appends(limit: u32) -> Fault {
    let message =
        format!("The component appended too many records; the limit `appends` of its entry is {limit} a call.");
    Fault { kind: FaultKind::AppendLimit, message }
}

pub(super) fn append_bytes(bytes: usize, limit: u32) -> Fault {
    let message =
        format!("The component appended a record of {bytes} bytes; the limit `appendBytes` of its entry is {limit}.");
    Fault { kind: FaultKind::AppendLimit, message }
}

pub(super) fn log(limit: u32) -> Fault {
    let message = format!("The component logged too much; the limit `logBytes` of its entry is {limit} bytes a call.");
    Fault { kind: FaultKind::LogLimit, message }
}

pub(super) fn depth(limit: u32) -> Fault {
    host(&format!("executors are nested too deep; the limit `nestedDepth` of the entry is {limit}"))
}

pub(super) fn killed() -> Fault {
    let message = "The executor was ended by force, since it did not end when it was told to.".to_owned();
    Fault { kind: FaultKind::Killed, message }
}

/// `what` completes "The component passed …".
pub(super) fn malformed(what: &str) -> Fault {
    Fault { kind: FaultKind::Malformed, message: format!("The component passed {}", sentence(what)) }
}

/// The component's own `err`.
pub(super) fn returned(text: &str) -> Fault {
    let message = match text.trim() {
        "" => "The component returned an error without a text.".to_owned(),
        text => format!("The component returned an error: {}", sentence(&shortened(text))),
    };
    Fault { kind: FaultKind::Error, message }
}

/// `what` completes "The host could not run the call: …".
pub(super) fn host(what: &str) -> Fault {
    Fault { kind: FaultKind::Host, message: format!("The host could not run the call: {}", sentence(what)) }
}

/// A panic of the host's own code, in a host function or around one.
pub(super) fn host_panic(payload: &(dyn Any + Send)) -> Fault {
    let text = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".into());
    host(&format!("its own code panicked ({text})"))
}

/// The error without the backtrace that wasmtime puts around it.
fn cause(error: &wasmtime::Error) -> String {
    if error.downcast_ref::<WasmBacktrace>().is_none() {
        return one_line(error);
    }
    let text = error.root_cause().to_string();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `, in f, called from g and h`, as far as functions have names; empty without a backtrace.
fn place(error: &wasmtime::Error) -> String {
    const SHOWN: usize = 3;
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else { return String::new() };
    let names: Vec<String> = backtrace
        .frames()
        .iter()
        .map(|frame| match frame.symbols().first().and_then(|symbol| symbol.name()).or(frame.func_name()) {
            Some(name) => {
                let line = frame
                    .symbols()
                    .first()
                    .and_then(|symbol| Some(format!(" ({}:{})", symbol.file()?, symbol.line()?)));
                format!("`{:#}`{}", rustc_demangle::demangle(name), line.unwrap_or_default())
            }
            None => format!("function {}", frame.func_index()),
        })
        .collect();
    // The way from a panic, or from a memory that was refused, to the abort is the same in every program and says nothing.
    let own = names.iter().filter(|name| !is_panic_plumbing(name)).take(SHOWN).cloned().collect::<Vec<_>>();
    let shown = if own.is_empty() { names.into_iter().take(SHOWN).collect() } else { own };
    match shown.split_first() {
        None => String::new(),
        Some((first, [])) => format!(" in {first}"),
        Some((first, callers)) => format!(" in {first}, called from {}", callers.join(" and ")),
    }
}

fn is_panic_plumbing(name: &str) -> bool {
    const PLUMBING: [&str; 11] = [
        "`abort",
        "`alloc::",
        "`rust_panic",
        "`rust_begin_unwind",
        "`__rust",
        "`core::panicking",
        "`core::option::unwrap_failed",
        "`core::option::expect_failed",
        "`core::result::unwrap_failed",
        "`std::",
        "`__rustc",
    ];
    PLUMBING.iter().any(|prefix| name.starts_with(prefix))
}

/// Text of a guest, on one line and not endless.
fn shortened(text: &str) -> String {
    const KEPT: usize = 2000;
    let line = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(KEPT) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Text with a full stop at its end.
fn sentence(text: &str) -> String {
    let text = shortened(text);
    if text.ends_with(['.', '!', '?', '…']) { text } else { format!("{text}.") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circumstances(stage: Stage) -> Circumstances<'static> {
        Circumstances { stage, refused_memory_mb: None, last_error_line: None }
    }

    #[test]
    fn a_panic_keeps_its_own_text_and_place() {
        let error = wasmtime::Error::from(Trap::UnreachableCodeReached);
        let said = Some("panicked at src/lib.rs:7:9:\nindex out of bounds");
        let fault = of(&error, Circumstances { last_error_line: said, ..circumstances(Stage::Run) });
        assert_eq!(fault.kind, FaultKind::Trap);
        assert_eq!(fault.message, "The component panicked at src/lib.rs:7:9: index out of bounds.");
    }

    #[test]
    fn an_error_line_explains_an_abort_and_no_other_trap() {
        let said = Some("could not read config");
        let of =
            |trap: Trap| of(&trap.into(), Circumstances { last_error_line: said, ..circumstances(Stage::Run) }).message;
        assert_eq!(
            of(Trap::UnreachableCodeReached),
            "The component aborted; its last error line: could not read config."
        );
        assert_eq!(of(Trap::IntegerDivisionByZero), "The component trapped: integer divide by zero.");
    }

    #[test]
    fn a_refused_memory_explains_the_abort_that_follows() {
        let error = wasmtime::Error::from(Trap::UnreachableCodeReached);
        let fault = of(&error, Circumstances { refused_memory_mb: Some(3), ..circumstances(Stage::Run) });
        assert_eq!(fault.kind, FaultKind::MemoryLimit);
        assert!(fault.message.contains("`memoryMb` of its entry is 3"), "{fault}");
    }

    #[test]
    fn what_fails_before_the_guest_runs_is_the_hosts_and_what_fails_after_is_the_guests() {
        let error = wasmtime::format_err!("no more stacks");
        assert_eq!(of(&error, circumstances(Stage::Start)).kind, FaultKind::Host);
        assert_eq!(of(&error, circumstances(Stage::Run)).kind, FaultKind::Malformed);
    }

    #[test]
    fn a_typed_fault_passes_through_a_context() {
        let error = wasmtime::Error::from(killed()).context("while it slept");
        assert_eq!(of(&error, circumstances(Stage::Run)), killed());
    }

    #[test]
    fn a_long_error_of_a_guest_is_cut() {
        assert!(returned(&"x".repeat(1 << 20)).message.len() < 2100);
        assert_eq!(returned(" \n").message, "The component returned an error without a text.");
    }
}
