//! A composed profile: what the rest of the host is built from, with the origin of every value.

use super::{
    error::{Place, Warning},
    policy::KeyOrigin,
    source::{Source, join},
};
use crate::llm::{RetryPolicy, adapters::Dialect, classify::OwnRows};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fmt,
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::Arc,
};

/// How long an activation may take to drain when the profile does not say, in milliseconds.
pub const DEFAULT_DRAIN_TIMEOUT_MS: u64 = 5_000;

/// Providers, executor entries and settings, all layers applied and all rules checked.
#[derive(Clone, Debug)]
pub struct ComposedProfile {
    pub name: String,
    /// The `profile.yml`, or `builtin:demo`.
    pub file: PathBuf,
    pub model: Model,
    /// In the order of the profile; never empty, no name twice.
    pub providers: Vec<Provider>,
    /// In the order of the chain, disabled entries included; no id twice.
    pub entries: Vec<Entry>,
    pub journal: JournalKind,
    /// 0 to 2,147,483,647.
    pub drain_timeout_ms: u64,
    /// The bundles as the profile names them.
    pub bundles: Vec<String>,
    /// Where `model`, `journal`, `drainTimeoutMs` and `bundles` were set; a key that is absent has its default.
    pub settings: BTreeMap<&'static str, Origin>,
    pub warnings: Vec<Warning>,
    /// Every file whose change may change this profile, in the order in which they were looked for: those that were
    /// read, the optional ones that do not exist, and the component files. Absolute paths, none twice.
    pub inputs: Vec<PathBuf>,
    pub(super) sources: BTreeMap<PathBuf, Arc<Source>>,
}

impl ComposedProfile {
    /// The provider that `model.provider` names. Composition proved that it exists, but the fields are public.
    pub fn model_provider(&self) -> Option<&Provider> {
        self.provider(&self.model.provider)
    }

    pub fn provider(&self, name: &str) -> Option<&Provider> {
        self.providers.iter().find(|provider| provider.name == name)
    }

    /// The entries that take part in the chain, in its order.
    pub fn enabled(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| !entry.disabled)
    }

    /// The place of a path below a value, for a problem that only a component can see: with the origin of an entry's
    /// `config`, the path `retryableCodes[2]` gives the line of that code.
    pub fn place(&self, origin: &Origin, below: &str) -> Place {
        let path = if below.starts_with('[') { format!("{}{below}", origin.path) } else { join(&origin.path, below) };
        let path = path.trim_end_matches('.');
        match self.sources.get(&origin.file) {
            Some(source) => source.place(path),
            None => origin.place(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Model {
    /// The name of one of the profile's providers.
    pub provider: String,
    pub model: String,
    /// The system prompt.
    pub system: Option<String>,
}

/// How a session's record is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum JournalKind {
    #[default]
    Jsonl,
    Sqlite,
}

impl JournalKind {
    pub const ALL: [(&'static str, JournalKind); 2] = [("jsonl", JournalKind::Jsonl), ("sqlite", JournalKind::Sqlite)];

    pub fn as_str(self) -> &'static str {
        match self {
            JournalKind::Jsonl => "jsonl",
            JournalKind::Sqlite => "sqlite",
        }
    }
}

/// The protocols that a provider can speak. The one list of them: a new adapter gets a variant and a row in `ALL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdapterKind {
    OpenAiChat,
    AnthropicMessages,
    OpenAiResponses,
}

impl AdapterKind {
    pub const ALL: [(&'static str, AdapterKind); 3] = [
        ("openai-chat", AdapterKind::OpenAiChat),
        ("anthropic-messages", AdapterKind::AnthropicMessages),
        ("openai-responses", AdapterKind::OpenAiResponses),
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            AdapterKind::OpenAiChat => "openai-chat",
            AdapterKind::AnthropicMessages => "anthropic-messages",
            AdapterKind::OpenAiResponses => "openai-responses",
        }
    }

    /// The protocol that the adapter speaks.
    pub fn dialect(self) -> Dialect {
        match self {
            AdapterKind::OpenAiChat => Dialect::OpenAiChat,
            AdapterKind::AnthropicMessages => Dialect::AnthropicMessages,
            AdapterKind::OpenAiResponses => Dialect::OpenAiResponses,
        }
    }
}

/// Where a provider's requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// An `http` or `https` URL without credentials, query or fragment.
    BaseUrl(String),
    /// The script of a chaos provider, started with the host on loopback.
    Chaos(String),
}

/// Limits of one request, in milliseconds, 1 to 2,147,483,647; what is absent has the adapter's default. A total of 0 is
/// none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProviderLimits {
    pub connect_ms: Option<u64>,
    pub first_byte_ms: Option<u64>,
    pub first_content_ms: Option<u64>,
    pub content_ms: Option<u64>,
    pub idle_ms: Option<u64>,
    pub total_ms: Option<u64>,
}

impl ProviderLimits {
    /// These, and those of `base` where these say nothing.
    pub fn over(self, base: ProviderLimits) -> ProviderLimits {
        ProviderLimits {
            connect_ms: self.connect_ms.or(base.connect_ms),
            first_byte_ms: self.first_byte_ms.or(base.first_byte_ms),
            first_content_ms: self.first_content_ms.or(base.first_content_ms),
            content_ms: self.content_ms.or(base.content_ms),
            idle_ms: self.idle_ms.or(base.idle_ms),
            total_ms: self.total_ms.or(base.total_ms),
        }
    }
}

/// What one model of a provider has of its own; what is absent is the provider's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelSettings {
    /// The most tokens of an answer, at most 2,147,483,647.
    pub max_tokens: Option<NonZeroU32>,
    /// Laid key by key over the provider's.
    pub limits: Option<ProviderLimits>,
}

/// A route to a provider.
#[derive(Clone, Debug)]
pub struct Provider {
    pub name: String,
    pub adapter: AdapterKind,
    pub endpoint: Endpoint,
    /// The name of the environment variable that holds the key.
    pub api_key_env: Option<String>,
    pub limits: ProviderLimits,
    /// The most tokens of an answer, at most 2,147,483,647; what is absent has the adapter's default.
    pub max_tokens: Option<NonZeroU32>,
    /// What single models have of their own, by the name that a request asks for.
    pub models: BTreeMap<String, ModelSettings>,
    /// Where `maxTokens` and `limits` of each of `models` were set.
    pub model_provenance: BTreeMap<String, BTreeMap<&'static str, Origin>>,
    /// Whether a wait may be read from the prose of an error.
    pub text_hints: bool,
    /// The provider's own rows of classification.
    pub classify: OwnRows,
    /// Resolved from all layers.
    pub policy: RetryPolicy,
    /// The policy as configured, layers laid over each other, before defaults.
    pub policy_config: Option<Value>,
    /// Where each effective key of the policy was set.
    pub policy_origins: Vec<KeyOrigin>,
    /// Where `provider`, `adapter`, `baseUrl`, `chaos`, `apiKeyEnv`, `limits`, `maxTokens`, `textHints` and `classify`
    /// were set.
    pub provenance: BTreeMap<&'static str, Origin>,
}

impl Provider {
    /// The key of this provider, if it needs one, read through `environment`. White space around it is dropped: a
    /// newline at the end of a key that was read from a file is no part of it.
    ///
    /// # Errors
    /// The variable is unset or blank.
    pub fn api_key(&self, environment: impl Fn(&str) -> Option<String>) -> Result<Option<ApiKey>, MissingApiKey> {
        let Some(variable) = &self.api_key_env else { return Ok(None) };
        let missing = |state| MissingApiKey { provider: self.name.clone(), variable: variable.clone(), state };
        let key = environment(variable).ok_or_else(|| missing("not set"))?;
        match key.trim() {
            "" => Err(missing("empty")),
            key => Ok(Some(ApiKey(key.to_owned()))),
        }
    }
}

/// A provider's secret. It is shown nowhere but through [`ApiKey::expose`].
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

/// A provider's key is not in the environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "The provider {provider:?} needs the environment variable {variable}, which is {state}; set it to the provider's API key."
)]
pub struct MissingApiKey {
    pub provider: String,
    pub variable: String,
    state: &'static str,
}

/// One executor of the chain, as configured.
#[derive(Clone, Debug)]
pub struct Entry {
    pub id: String,
    /// What a patch may assert; it is never changed by one.
    pub name: Option<String>,
    pub component: ComponentRef,
    /// Always an object; `{}` when there is none.
    pub config: Value,
    /// An object, unchecked: its keys are those of whoever runs the component.
    pub limits: Option<Value>,
    pub disabled: bool,
    /// Where `id`, `name`, `component`, `config`, `limits` and `disabled` were set; a key that is absent has its default.
    pub provenance: BTreeMap<&'static str, Origin>,
}

/// Where a component's bytes come from. That the file exists is not checked here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComponentRef {
    /// Embedded in the program, by name.
    Builtin(String),
    /// An absolute path.
    File(PathBuf),
}

impl ComponentRef {
    pub fn path(&self) -> Option<&Path> {
        match self {
            ComponentRef::Builtin(_) => None,
            ComponentRef::File(path) => Some(path),
        }
    }
}

impl fmt::Display for ComponentRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ComponentRef::Builtin(name) => write!(f, "builtin:{name}"),
            ComponentRef::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Which layer set a value, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    pub layer: Layer,
    pub file: PathBuf,
    /// From 1.
    pub line: u32,
    /// In characters, from 1.
    pub column: u32,
    /// The dotted path of the key in that file.
    pub path: String,
}

impl Origin {
    pub(super) fn new(layer: &Layer, source: &Source, path: String) -> Self {
        let Place { file, line, column } = source.place(&path);
        Origin { layer: layer.clone(), file, line, column, path }
    }

    pub fn place(&self) -> Place {
        Place { file: self.file.clone(), line: self.line, column: self.column }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}:{}", self.layer, self.file.display(), self.line)
    }
}

/// A layer of a profile; the variants stand in their order, lowest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Layer {
    /// `profile.yml` itself.
    Profile,
    /// A bundle, as the profile names it.
    Bundle(String),
    /// The patch beside the profile.
    ProfilePatch,
    /// A file given with `--patch`.
    Overlay,
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layer::Profile => f.write_str("profile"),
            Layer::Bundle(name) => write!(f, "bundle {name}"),
            Layer::ProfilePatch => f.write_str("profile patch"),
            Layer::Overlay => f.write_str("--patch"),
        }
    }
}
