//! Components for tests, made from a few lines of WebAssembly text, and a native call that records what they ask for.

use crate::{
    llm::{Failure, FailureCode},
    waterfall::executor::{AppendError, Call, Decision, FailedStep, Interruption, LogLevel, Record, StartedRetry},
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio_util::sync::CancellationToken;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

pub(super) const WIT: &str = include_str!("../../../wit/executor.wit");

/// The imports of the world as a core module sees them; a guest gets those whose `$name` it uses.
const IMPORTS: [(&str, &str, &str, &str); 9] = [
    ("$next", "waterfall", "next", "(param i32)"),
    ("$append", "journal", "append", "(param i32 i32 i32 i64 i32 i64 i32 i64 f64 i32)"),
    ("$last_retry", "journal", "last-retry", "(param i32 i32 i32 i32 i32)"),
    ("$sleep", "timer", "sleep", "(param f64 i32)"),
    ("$interrupted", "timer", "interrupted", "(param i32)"),
    ("$unit", "random", "unit", "(result f64)"),
    ("$retry_id", "random", "retry-id", "(param i32)"),
    ("$log", "log", "write", "(param i32 i32 i32)"),
    ("$config", "config", "json", "(param i32)"),
];

/// Where `request_error` finds prepared answers, and a place for the results of host calls.
pub(super) const UNHANDLED: u32 = 128;
pub(super) const RETRY: u32 = 144;
pub(super) const BOOM: u32 = 160;
pub(super) const SCRATCH: u32 = 192;
/// Where `Guest::text` begins.
pub(super) const TEXT: u32 = 1024;

/// A guest of the whole world. Bodies are WebAssembly text; `request_error` has `$step` and returns an address.
pub(super) struct Guest {
    pub describe: String,
    pub validate: String,
    pub request_error: String,
    /// Module fields: functions and globals.
    pub extra: String,
    pub text: String,
    pub schema: String,
    pub pages: u32,
}

impl Default for Guest {
    fn default() -> Self {
        Guest {
            describe: "i32.const 16".into(),
            validate: "i32.const 96".into(),
            request_error: format!("i32.const {UNHANDLED}"),
            extra: String::new(),
            text: String::new(),
            schema: "{}".into(),
            pages: 2,
        }
    }
}

impl Guest {
    pub fn deciding(body: impl Into<String>) -> Guest {
        Guest { request_error: body.into(), ..Guest::default() }
    }

    pub fn text(self, text: &str) -> Guest {
        Guest { text: text.into(), ..self }
    }

    pub fn build(&self) -> Arc<[u8]> {
        let Guest { describe, validate, request_error, extra, text, schema, pages } = self;
        let code = format!("{describe}{validate}{request_error}{extra}");
        let imports: String = IMPORTS
            .iter()
            .filter(|(id, ..)| code.contains(id))
            .map(|(id, interface, name, ty)| {
                format!("(import \"retake:executor/{interface}@0.1.0\" \"{name}\" (func {id} {ty}))")
            })
            .collect();
        // The manifest: four strings, at 16; their bytes from 4096.
        let strings = ["fixture", "1.0.0", "A guest for tests.", schema];
        let mut manifest = Vec::new();
        let mut at = 4096;
        for string in strings {
            manifest.extend_from_slice(&(at as u32).to_le_bytes());
            manifest.extend_from_slice(&(string.len() as u32).to_le_bytes());
            at += string.len();
        }
        let boom = [1_u32.to_le_bytes(), 4096_u32.to_le_bytes(), 7_u32.to_le_bytes()].concat();
        let data: String = [
            (16, manifest),
            (RETRY as usize, vec![0, 0, 0, 0, 1]),
            (BOOM as usize, boom),
            (TEXT as usize, text.clone().into_bytes()),
            (4096, strings.concat().into_bytes()),
        ]
        .iter()
        .map(|(at, bytes)| {
            let escaped: String = bytes.iter().map(|byte| format!("\\{byte:02x}")).collect();
            format!("(data (i32.const {at}) \"{escaped}\")")
        })
        .collect();
        let export = "retake:executor/executor@0.1.0";
        component(
            WIT,
            "retry-executor",
            &format!(
                "(module {imports}
                (memory (export \"memory\") {pages})
                (global $heap (mut i32) (i32.const 65536))
                (func (export \"cabi_realloc\") (param i32 i32 i32 i32) (result i32)
                    (global.set $heap (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
                    (global.get $heap)
                    (global.set $heap (i32.add (global.get $heap) (local.get 3))))
                {extra}
                (func $describe (export \"{export}#describe\") (result i32) {describe})
                (func $validate (export \"{export}#validate\") (param i32 i32) (result i32) {validate})
                (func $request_error (export \"{export}#request-error\") (param $step i32) (result i32) {request_error})
                {data})"
            ),
        )
    }
}

/// A component of any world, from its core module.
pub(super) fn component(wit: &str, world: &str, wat: &str) -> Arc<[u8]> {
    let mut resolve = Resolve::default();
    let package = resolve.push_source("fixture.wit", wit).unwrap();
    let world = resolve.select_world(&[package], Some(world)).unwrap();
    let mut module = wat::parse_str(wat).unwrap_or_else(|error| panic!("{error}\n{wat}"));
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
    ComponentEncoder::default().validate(true).module(&module).unwrap().encode().unwrap().into()
}

pub(super) fn step() -> FailedStep {
    FailedStep {
        turn: 1,
        step: 1,
        provider: "deepseek".into(),
        model: "chat".into(),
        failure: Failure::new(FailureCode::RateLimit, "slow down"),
        policy: None,
        pending: None,
    }
}

/// A call that records. `cancel` interrupts it; `next` is asked as it was built.
pub(super) struct Recorder {
    pub records: Mutex<Vec<Record>>,
    pub lines: Mutex<Vec<(LogLevel, String)>>,
    pub sleeps: Mutex<Vec<f64>>,
    pub nexts: AtomicUsize,
    pub cancel: CancellationToken,
    pub depth: usize,
    pub next: Box<dyn Fn() -> BoxFuture<'static, Result<Decision, String>> + Send + Sync>,
    /// Appends panic.
    pub broken: bool,
}

impl Default for Recorder {
    fn default() -> Self {
        Recorder {
            records: Mutex::default(),
            lines: Mutex::default(),
            sleeps: Mutex::default(),
            nexts: AtomicUsize::new(0),
            cancel: CancellationToken::new(),
            depth: 0,
            next: Box::new(|| Box::pin(async { Ok(Decision::Unhandled) })),
            broken: false,
        }
    }
}

impl Call for Recorder {
    fn next(&self) -> BoxFuture<'_, Result<Decision, String>> {
        self.nexts.fetch_add(1, Ordering::Relaxed);
        (self.next)()
    }

    fn append(&self, record: Record) -> BoxFuture<'_, Result<u64, AppendError>> {
        assert!(!self.broken, "the journal is broken");
        let mut records = self.records.lock();
        records.push(record);
        let seq = records.len() as u64;
        Box::pin(async move { Ok(seq) })
    }

    fn last_retry(&self, _: &str, _: &str) -> Option<StartedRetry> {
        None
    }

    fn sleep(&self, ms: f64) -> BoxFuture<'_, Result<(), Interruption>> {
        self.sleeps.lock().push(ms);
        Box::pin(async move {
            tokio::select! {
                biased;
                () = self.cancel.cancelled() => Err(Interruption::Cancelled),
                () = tokio::time::sleep(Duration::from_secs_f64(ms / 1000.0)) => Ok(()),
            }
        })
    }

    fn interrupted(&self) -> Option<Interruption> {
        self.cancel.is_cancelled().then_some(Interruption::Cancelled)
    }

    fn unit(&self) -> f64 {
        0.5
    }

    fn retry_id(&self) -> String {
        "id".into()
    }

    fn log(&self, level: LogLevel, message: &str) {
        self.lines.lock().push((level, message.to_owned()));
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn until_interrupted(&self) -> BoxFuture<'_, Interruption> {
        Box::pin(async {
            self.cancel.cancelled().await;
            Interruption::Cancelled
        })
    }
}
