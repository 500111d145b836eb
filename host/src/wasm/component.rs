//! A loaded component, and the canary that an entry must pass before it is published.
//!
//! The canary runs `describe` and `validate` in throwaway stores with small limits, and checks the entry's config
//! against the component's own JSON Schema in between. Called by whoever composes a chain.

use super::{
    Runtime,
    bindings::WitManifest,
    call::{Scope, Setup, StartError, Started, contained},
    compile::{Linked, Origin},
    engine::Allocation,
    error::{ConfigProblem, LoadError},
    executor::WasmExecutor,
    fault,
    limits::{Limits, SLOT_MB, canary},
};
use crate::{
    env::{Entropy as _, SeededEntropy},
    waterfall::executor::{
        AppendError, Call, Decision, Fault, FaultKind, Interruption, LogLevel, Record, StartedRetry,
    },
};
use futures_util::future::BoxFuture;
use serde_json::Value;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// What a component says about itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest {
    pub name: String,
    pub version: String,
    /// One sentence.
    pub summary: String,
    /// The JSON Schema of an entry's config.
    pub config_schema: Value,
}

/// One entry that is to use a component.
#[derive(Clone, Debug, Default)]
pub struct EntrySpec {
    /// The entry's id, for log lines.
    pub id: String,
    /// The entry's `config`; `null` is the same as an empty map.
    pub config: Value,
    /// The entry's `limits`; `null` when it has none.
    pub limits: Value,
}

/// A component that is compiled and linked. Entries that use the same bytes share it.
pub struct LoadedComponent {
    runtime: Arc<Runtime>,
    digest: String,
    size: usize,
    origin: Origin,
    linked: Linked,
    described: tokio::sync::OnceCell<Manifest>,
}

impl LoadedComponent {
    pub(super) fn new(runtime: Arc<Runtime>, digest: String, size: usize, origin: Origin, linked: Linked) -> Self {
        LoadedComponent { runtime, digest, size, origin, linked, described: tokio::sync::OnceCell::new() }
    }

    /// SHA-256 of the component, in hex.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The component's size, in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether it was compiled for this load.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// What the component said about itself, once it has been asked.
    pub fn manifest(&self) -> Option<&Manifest> {
        self.described.get()
    }

    pub(super) fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Passes the component and the entry's config through the canary.
    ///
    /// # Errors
    /// Everything that is wrong with the limits, the manifest, the schema or the config; all problems of one kind are
    /// reported at once.
    pub async fn prepare(self: &Arc<Self>, entry: EntrySpec) -> Result<WasmExecutor, LoadError> {
        let limits = Limits::parse(&entry.limits).map_err(LoadError::Limits)?;
        let manifest = self.describe(&limits).await?.clone();
        let config = if entry.config.is_null() { Value::Object(Default::default()) } else { entry.config };
        check_schema(&manifest.config_schema, &config)?;
        let config: Arc<str> = config.to_string().into();
        self.validate(&limits, &config).await?;
        Ok(WasmExecutor::new(self.clone(), entry.id, config, limits, manifest))
    }

    /// Asks the component who it is, the first time; later answers are the same, since the code is.
    pub(super) async fn describe(&self, limits: &Limits) -> Result<&Manifest, LoadError> {
        self.described
            .get_or_try_init(|| async {
                let answer = self.canary("describe", limits, Started::describe).await.map_err(LoadError::Describe)?;
                manifest(answer)
            })
            .await
    }

    async fn validate(&self, limits: &Limits, config: &str) -> Result<(), LoadError> {
        let answer = self.canary("validate", limits, |started| started.validate(config)).await;
        let Err(problems) = answer.map_err(LoadError::Validate)? else { return Ok(()) };
        if problems.is_empty() {
            let fault = fault::malformed("an `err` without a problem from `validate`");
            return Err(LoadError::Validate(fault));
        }
        let problems = problems.into_iter().take(canary::PROBLEMS);
        Err(LoadError::Config(
            problems.map(|problem| ConfigProblem { path: problem.path, message: problem.message }).collect(),
        ))
    }

    async fn canary<T, F: Future<Output = Result<T, Fault>>>(
        &self,
        export: &'static str,
        limits: &Limits,
        call: impl FnOnce(Started) -> F,
    ) -> Result<T, Fault> {
        let kill = CancellationToken::new();
        let setup = Setup {
            call: Arc::new(NoTurn { digest: self.digest.clone(), entropy: SeededEntropy::new(0) }),
            kill: kill.clone(),
            config: "{}".into(),
            limits: limits.for_canary(),
            scope: Scope::Canary(export),
        };
        let run = async { call(self.start(setup).await?).await };
        match tokio::time::timeout(canary::WALL, contained(self.linked.engines(), &kill, run)).await {
            Ok(result) => result,
            Err(_) => Err(Fault {
                kind: FaultKind::Killed,
                message: format!("`{export}` did not end within {} s.", canary::WALL.as_secs()),
            }),
        }
    }

    /// Starts a call in a pooled slot if its memory limit fits one and one is free, and on demand otherwise.
    pub(super) async fn start(&self, setup: Setup) -> Result<Started, Fault> {
        let wish = if setup.limits.memory_mb <= SLOT_MB { Allocation::Pooled } else { Allocation::OnDemand };
        match Started::new(self.pre(wish)?, setup).await {
            Ok(started) => Ok(started),
            Err(StartError::Fault(fault)) => Err(fault),
            // Nested calls do not count against the cap of parked calls, so the pool may be full.
            Err(StartError::PoolFull(setup)) => match Started::new(self.pre(Allocation::OnDemand)?, setup).await {
                Ok(started) => Ok(started),
                Err(StartError::Fault(fault)) => Err(fault),
                Err(StartError::PoolFull(_)) => Err(fault::host("no place for the call is left")),
            },
        }
    }

    fn pre(&self, wish: Allocation) -> Result<&super::bindings::RetryExecutorPre<super::call::CallState>, Fault> {
        self.linked.pre(wish).map_err(|error| fault::host(&error.to_string()))
    }
}

fn manifest(answer: WitManifest) -> Result<Manifest, LoadError> {
    let refused = |field, problem: &str| Err(LoadError::Manifest { field, problem: problem.to_owned() });
    for (field, text) in [("name", &answer.name), ("version", &answer.version), ("summary", &answer.summary)] {
        if text.trim().is_empty() {
            return refused(field, "is empty");
        }
        if text.len() > canary::LABEL_BYTES {
            return refused(field, &format!("has {} bytes, and may have {}", text.len(), canary::LABEL_BYTES));
        }
        if text.contains(char::is_control) {
            return refused(field, "contains control characters; it is shown on one line");
        }
    }
    if answer.config_schema.len() > canary::SCHEMA_BYTES {
        let problem = format!("has {} bytes, and may have {}", answer.config_schema.len(), canary::SCHEMA_BYTES);
        return refused("config-schema", &problem);
    }
    let config_schema = serde_json::from_str(&answer.config_schema)
        .map_err(|error| LoadError::Schema { detail: format!("it is no JSON: {error}") })?;
    Ok(Manifest { name: answer.name, version: answer.version, summary: answer.summary, config_schema })
}

/// Checks a config against the component's schema; every problem has its path.
fn check_schema(schema: &Value, config: &Value) -> Result<(), LoadError> {
    let validator = jsonschema::options()
        // The schema comes from the component: its patterns must not be able to take exponential time.
        .with_pattern_options(jsonschema::PatternOptions::regex())
        .build(schema)
        .map_err(|error| LoadError::Schema { detail: error.to_string().trim_end_matches('.').to_owned() })?;
    let problems: Vec<_> = validator
        .iter_errors(config)
        .take(canary::PROBLEMS)
        .map(|error| ConfigProblem { path: dotted(&error.instance_path().to_string()), message: format!("{error}.") })
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(LoadError::Config(problems)) }
}

/// `/retryableCodes/2/name` as `retryableCodes[2].name`.
fn dotted(pointer: &str) -> String {
    let mut path = String::new();
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        if part.bytes().all(|byte| byte.is_ascii_digit()) && !part.is_empty() {
            path.push_str(&format!("[{part}]"));
        } else {
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&part);
        }
    }
    path
}

/// The host's side of a canary call. `call` lets only the log and the samples through; the rest is never reached.
struct NoTurn {
    digest: String,
    entropy: SeededEntropy,
}

impl Call for NoTurn {
    fn next(&self) -> BoxFuture<'_, Result<Decision, String>> {
        Box::pin(async { Ok(Decision::Unhandled) })
    }

    fn append(&self, _: Record) -> BoxFuture<'_, Result<u64, AppendError>> {
        Box::pin(async { Err(AppendError::Invalid("there is no turn".into())) })
    }

    fn last_retry(&self, _: &str, _: &str) -> Option<StartedRetry> {
        None
    }

    fn sleep(&self, _: f64) -> BoxFuture<'_, Result<(), Interruption>> {
        Box::pin(async { Err(Interruption::Retired) })
    }

    fn interrupted(&self) -> Option<Interruption> {
        None
    }

    fn unit(&self) -> f64 {
        self.entropy.unit()
    }

    fn retry_id(&self) -> String {
        self.entropy.uuid()
    }

    fn log(&self, level: LogLevel, message: &str) {
        let digest = &self.digest;
        match level {
            LogLevel::Debug => tracing::debug!(digest, "{message}"),
            LogLevel::Info => tracing::info!(digest, "{message}"),
            LogLevel::Warn => tracing::warn!(digest, "{message}"),
            LogLevel::Error => tracing::error!(digest, "{message}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_problem_of_a_config_is_named_with_its_path() {
        let schema = json!({
            "type": "object",
            "properties": {
                "codes": {"type": "array", "items": {"type": "string"}},
                "backoff": {"type": "object", "properties": {"ms": {"type": "number", "minimum": 1}}},
            },
        });
        let error = check_schema(&schema, &json!({"codes": ["a", 1], "backoff": {"ms": 0}})).unwrap_err();
        let LoadError::Config(mut problems) = error else { panic!("{error}") };
        problems.sort_by(|a, b| a.path.cmp(&b.path));
        let paths: Vec<_> = problems.iter().map(|problem| problem.path.as_str()).collect();
        assert_eq!(paths, ["backoff.ms", "codes[1]"]);
        assert_eq!(problems[1].message, "1 is not of type \"string\".");
    }

    #[test]
    fn a_schema_that_is_none_is_the_components_fault() {
        let error = check_schema(&json!({"type": "nonsense"}), &json!({})).unwrap_err();
        assert!(matches!(error, LoadError::Schema { .. }), "{error}");
    }

    #[test]
    fn a_schema_cannot_fetch_another() {
        let error = check_schema(&json!({"$ref": "http://127.0.0.1:9/schema.json"}), &json!({})).unwrap_err();
        assert!(matches!(error, LoadError::Schema { .. }), "{error}");
    }

    #[test]
    fn pointers_become_dotted_paths() {
        assert_eq!(dotted(""), "");
        assert_eq!(dotted("/a~1b/0/c"), "a/b[0].c");
    }
}
