//! What is refused before it runs, and how a component comes from bytes to an executor.

use super::super::{ConfigProblem, LoadError, Origin};
use super::*;
use crate::waterfall::executor::{FaultKind, LogLevel};
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};
use std::{fs, path::Path};

async fn refused(bytes: impl Into<Arc<[u8]>>) -> LoadError {
    match runtime().load(bytes.into()).await {
        Ok(_) => panic!("it was loaded"),
        Err(error) => error,
    }
}

async fn refused_entry(guest: Guest, config: Value) -> LoadError {
    let component = runtime().load(guest.build()).await.unwrap();
    component.prepare(EntrySpec { id: "test".into(), config, limits: Value::Null }).await.unwrap_err()
}

#[tokio::test]
async fn a_file_that_is_no_component_is_named_for_what_it_is() {
    assert_eq!(refused(*b"").await, LoadError::Empty);
    assert_eq!(
        refused(*b"export function f() {}").await.to_string(),
        "The file is text (it begins with \"export function f() {}\"), but a WebAssembly component was expected."
    );
    assert!(matches!(refused(*b"\x7fELF\x02\x01\x01\0\0").await, LoadError::NotWasm { .. }));
    assert!(matches!(refused(*b"\0asm\x0d").await, LoadError::Truncated { bytes: 5, .. }));
    let core = refused(wat::parse_str("(module)").unwrap()).await;
    assert_eq!(core, LoadError::CoreModule);
    assert!(core.advice().unwrap().contains("wasm-tools component new"));
    let mut resolve = wit_parser::Resolve::default();
    let package = resolve.push_source("executor.wit", WIT).unwrap();
    assert_eq!(refused(wit_component::encode(&resolve, package).unwrap()).await, LoadError::WitPackage);
}

#[tokio::test]
async fn a_file_that_is_cut_anywhere_is_refused_and_never_panics() {
    let bytes = Guest::default().build();
    for end in (8..bytes.len()).step_by(61) {
        let error = refused(&bytes[..end]).await;
        let named = matches!(error, LoadError::Truncated { .. } | LoadError::Malformed { .. } | LoadError::Unfit(_));
        assert!(named, "cut at {end} of {}: {error}", bytes.len());
    }
    assert!(matches!(refused(&bytes[..bytes.len() / 2]).await, LoadError::Truncated { .. }));
}

#[tokio::test]
async fn random_bytes_and_random_damage_never_panic() {
    let mut random = SmallRng::seed_from_u64(7);
    let good = Guest::default().build();
    for round in 0..60 {
        let mut bytes = good.to_vec();
        if round % 2 == 0 {
            bytes.truncate(8 + random.next_u32() as usize % 2000);
            random.fill_bytes(&mut bytes[8..]);
        } else {
            let at = 8 + random.next_u32() as usize % (bytes.len() - 8);
            bytes[at] ^= 1 << (random.next_u32() % 8);
        }
        // Some damage (of a name, of a text) leaves a component that can be used. None may be the host's failure.
        if let Err(error) = runtime().load(bytes.into()).await {
            assert!(!matches!(error, LoadError::Internal { .. }), "{error}");
        }
    }
}

#[tokio::test]
async fn every_import_and_export_that_does_not_fit_is_named_at_once() {
    let wit = "
        package retake:executor@0.1.0;
        interface timer { sleep: func(ms: u32); wake: func(); }
        interface lights { on: func(); }
        interface executor { describe: func() -> string; }
        world other { import timer; import lights; import wasi:http/fetch@0.2.0; import old:thing/clock@1.0.0; export executor; }
        package wasi:http@0.2.0 { interface fetch { get: func(); } }
        package old:thing@1.0.0 { interface clock { now: func() -> u64; } }
    ";
    let wit = wit.replacen("package retake:executor@0.1.0;", "", 1);
    let (main, rest) = wit.split_at(wit.find("package wasi").unwrap());
    let wit = format!("package retake:executor@0.1.0 {{ {main} }} {rest}");
    let error = refused(nested(
        &wit,
        "(module
            (import \"retake:executor/timer@0.1.0\" \"sleep\" (func (param i32)))
            (import \"retake:executor/timer@0.1.0\" \"wake\" (func))
            (import \"retake:executor/lights@0.1.0\" \"on\" (func))
            (import \"wasi:http/fetch@0.2.0\" \"get\" (func))
            (import \"old:thing/clock@1.0.0\" \"now\" (func (result i64)))
            (memory (export \"memory\") 1)
            (func (export \"cabi_realloc\") (param i32 i32 i32 i32) (result i32) i32.const 0)
            (func (export \"retake:executor/executor@0.1.0#describe\") (result i32) i32.const 0))",
    ))
    .await;
    let LoadError::Unfit(mismatches) = &error else { panic!("{error}") };
    let items: Vec<_> = mismatches.iter().map(|mismatch| mismatch.item.as_str()).collect();
    assert_eq!(
        items,
        [
            "import retake:executor/timer@0.1.0, function sleep",
            "import retake:executor/timer@0.1.0, function wake",
            "import retake:executor/lights@0.1.0",
            "import wasi:http/fetch@0.2.0",
            "import old:thing/clock@1.0.0",
            "export retake:executor/executor@0.1.0, function describe",
            "export retake:executor/executor@0.1.0, function validate",
            "export retake:executor/executor@0.1.0, function request-error",
        ],
        "{error}"
    );
    assert_eq!(mismatches[0].needs, "func(ms: u32)");
    assert_eq!(mismatches[0].offers, "func(ms: f64) -> result<_, enum { cancelled, retired }>");
    assert!(mismatches[3].advice.contains("no network"), "{error}");
    assert!(error.to_string().lines().count() == 9, "{error}");
}

/// A component of the world `other` of a file with nested packages.
fn nested(wit: &str, wat: &str) -> Arc<[u8]> {
    component(&format!("package test:root; world unused {{}} {wit}"), "retake:executor/other@0.1.0", wat)
}

#[tokio::test]
async fn another_version_of_the_package_is_named_with_both_versions() {
    let wit = WIT.replace("package retake:executor@0.1.0;", "package retake:executor@0.2.0;");
    let wat = "(module
        (import \"retake:executor/random@0.2.0\" \"unit\" (func (result f64)))
        (memory (export \"memory\") 1)
        (func (export \"cabi_realloc\") (param i32 i32 i32 i32) (result i32) i32.const 0)
        (func (export \"retake:executor/executor@0.2.0#describe\") (result i32) i32.const 0)
        (func (export \"retake:executor/executor@0.2.0#validate\") (param i32 i32) (result i32) i32.const 0)
        (func (export \"retake:executor/executor@0.2.0#request-error\") (param i32) (result i32) i32.const 0))";
    let error = refused(component(&wit, "retry-executor", wat)).await;
    let text = error.to_string();
    assert!(
        text.contains(
            "import retake:executor/random@0.2.0: the component needs version 0.2.0; this host offers version 0.1.0. \
             Build the component against `retake:executor@0.1.0`."
        ),
        "{text}"
    );
    assert!(text.contains("it exports `retake:executor/executor@0.2.0`"), "{text}");
}

#[tokio::test]
async fn loads_of_the_same_bytes_share_one_compilation() {
    let runtime = small_runtime(8);
    let bytes = Guest::default().build();
    let progress = runtime.loads();
    let loads = (0..32).map(|_| {
        let (runtime, bytes) = (runtime.clone(), bytes.clone());
        tokio::spawn(async move { runtime.load(bytes).await.unwrap() })
    });
    let mut components = Vec::new();
    for load in loads.collect::<Vec<_>>() {
        components.push(load.await.unwrap());
    }
    assert_eq!(runtime.compiled(), 1);
    assert!(components.iter().all(|component| Arc::ptr_eq(component, &components[0])));
    assert!(matches!(components[0].origin(), Origin::Compiled(_)));
    assert!(progress.has_changed().unwrap());
    assert!(progress.borrow().is_empty());
}

#[tokio::test]
async fn a_load_goes_on_when_its_asker_has_gone() {
    let runtime = small_runtime(8);
    let bytes = Guest::default().build();
    {
        let mut load = std::pin::pin!(runtime.load(bytes.clone()));
        assert!(futures_util::poll!(load.as_mut()).is_pending());
        assert_eq!(runtime.loads().borrow().len(), 1);
    }
    runtime.load(bytes).await.unwrap();
    assert_eq!(runtime.compiled(), 1);
}

async fn load_with_cache(dir: &Path, bytes: &Arc<[u8]>) -> Origin {
    let runtime = Runtime::new(RuntimeConfig { cache_dir: Some(dir.to_owned()), max_parked: 1 }).unwrap();
    let component = runtime.load(bytes.clone()).await.unwrap();
    let executor = component.prepare(EntrySpec::default()).await.unwrap();
    assert_eq!(ask(&executor, &Arc::default()).await, Ok(Decision::Unhandled));
    component.origin()
}

#[tokio::test]
async fn a_second_start_takes_the_code_from_the_cache_unless_it_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = Guest::default().build();
    assert!(matches!(load_with_cache(dir.path(), &bytes).await, Origin::Compiled(_)));
    assert_eq!(load_with_cache(dir.path(), &bytes).await, Origin::Cache);
    let entry = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    let good = fs::read(&entry).unwrap();
    for damage in [0, 40, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[damage] ^= 0x40;
        fs::write(&entry, bad).unwrap();
        assert!(matches!(load_with_cache(dir.path(), &bytes).await, Origin::Compiled(_)), "damage at {damage}");
        assert_eq!(load_with_cache(dir.path(), &bytes).await, Origin::Cache);
    }
    fs::write(&entry, &good[..good.len() / 3]).unwrap();
    assert!(matches!(load_with_cache(dir.path(), &bytes).await, Origin::Compiled(_)));
}

#[tokio::test]
async fn a_cache_entry_may_be_overwritten_while_its_code_runs() {
    let dir = tempfile::tempdir().unwrap();
    let bytes = Guest::default().build();
    load_with_cache(dir.path(), &bytes).await;
    let runtime = Runtime::new(RuntimeConfig { cache_dir: Some(dir.path().to_owned()), max_parked: 1 }).unwrap();
    let executor = runtime.load(bytes).await.unwrap().prepare(EntrySpec::default()).await.unwrap();
    let entry = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    fs::write(&entry, vec![0; fs::metadata(&entry).unwrap().len() as usize]).unwrap();
    assert_eq!(ask(&executor, &Arc::default()).await, Ok(Decision::Unhandled));
}

#[tokio::test]
async fn a_component_is_described_before_it_is_used() {
    let executor = executor(Guest::default()).await;
    let manifest = executor.manifest();
    assert_eq!((manifest.name.as_str(), manifest.version.as_str()), ("fixture", "1.0.0"));
    assert_eq!(manifest.summary, "A guest for tests.");
    assert_eq!((executor.id(), executor.config()), ("test", "{}"));
}

#[tokio::test]
async fn a_describe_that_fails_says_how() {
    let error = refused_entry(Guest { describe: "unreachable".into(), ..Guest::default() }, Value::Null).await;
    assert!(matches!(&error, LoadError::Describe(fault) if fault.kind == FaultKind::Trap), "{error}");
    let sleeps = format!("(call $sleep (f64.const 1) (i32.const {SCRATCH})) i32.const 16");
    let error = refused_entry(Guest { describe: sleeps, ..Guest::default() }, Value::Null).await;
    assert!(error.to_string().contains("`timer.sleep` in `describe`, which runs with no turn"), "{error}");
    let error =
        refused_entry(Guest { describe: "(loop (br 0)) unreachable".into(), ..Guest::default() }, Value::Null).await;
    assert!(matches!(&error, LoadError::Describe(fault) if fault.kind == FaultKind::CpuLimit), "{error}");
}

#[tokio::test]
async fn a_config_is_checked_by_the_schema_and_then_by_the_component() {
    let schema = r#"{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}}}"#;
    // A result with one problem: its path is the text "fix", its message "fixture".
    let validate = format!(
        "(i32.store8 (i32.const {SCRATCH}) (i32.const 1)) (i32.store offset=4 (i32.const {SCRATCH}) (i32.const 400))
         (i32.store offset=8 (i32.const {SCRATCH}) (i32.const 1))
         (i32.store (i32.const 400) (i32.const 4096)) (i32.store (i32.const 404) (i32.const 3))
         (i32.store (i32.const 408) (i32.const 4096)) (i32.store (i32.const 412) (i32.const 7)) i32.const {SCRATCH}"
    );
    let guest = || Guest { schema: schema.into(), validate: validate.clone(), ..Guest::default() };
    let LoadError::Config(problems) = refused_entry(guest(), json!({"a": "x", "b": 1})).await else { panic!() };
    assert_eq!(problems.iter().map(|problem| problem.path.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let error = refused_entry(guest(), json!({"a": 1})).await;
    assert_eq!(error, LoadError::Config(vec![ConfigProblem { path: "fix".into(), message: "fixture".into() }]));
    assert_eq!(error.to_string(), "The entry's config does not fit the component: `fix`: fixture");
}

#[tokio::test]
async fn a_schema_that_cannot_be_read_is_the_components_fault() {
    for schema in ["not json", "{\"type\": 5}"] {
        let error = refused_entry(Guest { schema: schema.into(), ..Guest::default() }, Value::Null).await;
        assert!(matches!(error, LoadError::Schema { .. }), "{error}");
    }
}

#[tokio::test]
async fn an_inspection_says_everything_that_is_known() {
    let good = runtime().inspect(sleeping_guest()).await;
    assert_eq!(good.problems, Vec::<String>::new());
    assert_eq!(good.world.as_deref(), Some("retake:executor/retry-executor@0.1.0"));
    assert_eq!(good.name.as_deref(), Some("fixture"));
    assert!(good.imports.contains(&"retake:executor/timer@0.1.0".to_owned()), "{:?}", good.imports);
    assert_eq!(good.exports, ["retake:executor/executor@0.1.0"]);
    let core = runtime().inspect(wat::parse_str("(module)").unwrap().into()).await;
    assert_eq!(core.problems, [LoadError::CoreModule.to_string()]);
    let text = serde_json::to_value(&core).unwrap();
    assert_eq!((text["kind"].as_str(), text.get("world")), (Some("core-module"), None));
    let trapping = Guest { describe: "unreachable".into(), ..Guest::default() }.build();
    let trapping = runtime().inspect(trapping).await;
    assert!(trapping.world.is_some() && trapping.name.is_none());
    assert!(trapping.problems[0].contains("failed to describe itself"), "{:?}", trapping.problems);
}

fn sleeping_guest() -> Arc<[u8]> {
    Guest::deciding(format!("(call $sleep (f64.const 1) (i32.const {SCRATCH})) i32.const {RETRY}")).build()
}

/// A guest that prints through WASI, and counts its environment into the printed text.
fn printing_guest() -> Arc<[u8]> {
    let executor = &WIT[WIT.find("/// The plain data").unwrap()..];
    let wit = format!(
        "package test:root;
        world unused {{}}
        package wasi:io@0.2.0 {{
            interface streams {{
                resource output-stream {{ blocking-write-and-flush: func(contents: list<u8>) -> result<_, stream-error>; }}
                variant stream-error {{ last-operation-failed(error), closed }}
                use error.{{error}};
            }}
            interface error {{ resource error; }}
        }}
        package wasi:cli@0.2.0 {{
            interface stderr {{ use wasi:io/streams@0.2.0.{{output-stream}}; get-stderr: func() -> output-stream; }}
            interface environment {{ get-environment: func() -> list<tuple<string, string>>; }}
        }}
        package retake:executor@0.1.0 {{
            {executor}
            world printing {{
                include retry-executor;
                import wasi:cli/stderr@0.2.0;
                import wasi:cli/environment@0.2.0;
            }}
        }}"
    );
    let export = "retake:executor/executor@0.1.0";
    component(
        &wit,
        "retake:executor/printing@0.1.0",
        &format!(
            "(module
            (import \"wasi:cli/stderr@0.2.0\" \"get-stderr\" (func $stderr (result i32)))
            (import \"wasi:cli/environment@0.2.0\" \"get-environment\" (func $environment (param i32)))
            (import \"wasi:io/streams@0.2.0\" \"[method]output-stream.blocking-write-and-flush\"
                (func $print (param i32 i32 i32 i32)))
            (memory (export \"memory\") 2)
            (func (export \"cabi_realloc\") (param i32 i32 i32 i32) (result i32) i32.const 65536)
            (func (export \"{export}#describe\") (result i32) i32.const 16)
            (func (export \"{export}#validate\") (param i32 i32) (result i32) i32.const 96)
            (func (export \"{export}#request-error\") (param i32) (result i32)
                (call $environment (i32.const 200))
                (i32.store8 (i32.const 1028) (i32.add (i32.const 48) (i32.load (i32.const 204))))
                (call $print (call $stderr) (i32.const 1024) (i32.const 10) (i32.const 220))
                unreachable)
            (data (i32.const 16) \"\\00\\04\\00\\00\\03\\00\\00\\00\\00\\04\\00\\00\\03\\00\\00\\00\\00\\04\\00\\00\\03\\00\\00\\00\\0a\\04\\00\\00\\02\\00\\00\\00\")
            (data (i32.const 1024) \"env ?\\nend {{}}\"))"
        ),
    )
}

#[tokio::test]
async fn a_component_with_wasi_finds_it_inert_and_its_prints_in_the_log() {
    let component = runtime().load(printing_guest()).await.unwrap_or_else(|error| panic!("{error}"));
    let executor = component.prepare(EntrySpec::default()).await.unwrap_or_else(|error| panic!("{error}"));
    let call = Arc::new(Recorder::default());
    let fault = ask(&executor, &call).await.unwrap_err();
    assert_eq!(*call.lines.lock(), [(LogLevel::Error, "env 0".to_owned()), (LogLevel::Error, "end".to_owned())]);
    assert_eq!(fault.kind, FaultKind::Trap);
    assert!(fault.message.contains("its last error line: end."), "{fault}");
}
