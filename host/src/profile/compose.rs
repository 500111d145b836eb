//! Files in, one composed profile out.
//!
//! The layers, lowest first: `profile.yml`, the bundles in their order, the patch beside the profile, the `--patch`
//! files in their order. All files are read and checked before the first edit is applied, so that one attempt reports
//! the mistakes of all of them. Nothing is run, watched or written.

use super::{
    builtin,
    composed::{
        AdapterKind, ComposedProfile, DEFAULT_DRAIN_TIMEOUT_MS, Endpoint, Entry, Layer, Model, ModelSettings, Origin,
        Provider, ProviderLimits,
    },
    document::{self, BundleKind, BundleRef, Document, NewProvider, ProviderKeys},
    error::{Place, ProfileError, ProfileErrors, Warning, did_you_mean, nearest},
    fields::Reader,
    home::{Home, Located, PATCH_FILE, ProfileRef, absolute},
    patch::{self, Edit, NewRow, Patch, RowKeys},
    policy::LayeredPolicy,
    source::{Source, join},
};
use crate::llm::{FailureCode, RetryPolicy, classify::OwnRows, policy::PolicyError};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Composes a profile. `overlays` are the `--patch` files in the order of the command line.
///
/// # Errors
/// Everything that is wrong with the files, as far as it can be found in one attempt, with the files that were looked
/// for until then. Warnings are kept for a composition that succeeds.
pub fn compose(home: &Home, profile: &ProfileRef, overlays: &[PathBuf]) -> Result<ComposedProfile, ProfileErrors> {
    let located = profile.locate(home).map_err(|error| match &error {
        ProfileError::UnknownProfile { name, .. } => {
            let inputs = vec![home.profile_dir(name).join(super::home::PROFILE_FILE)];
            ProfileErrors { inputs, errors: vec![error] }
        }
        ProfileError::NoSuchFile { file } => ProfileErrors { inputs: vec![file.clone()], errors: vec![error] },
        _ => error.into(),
    })?;
    let mut files = Files { inputs: located.inputs.clone(), errors: Vec::new() };
    let Some(source) = files.profile(&located) else { return Err(files.failed()) };
    let mut reader = Reader::new(&source);
    let document = document::read(&mut reader);
    files.errors.append(&mut reader.errors);

    let sources = files.layers(&source, &document.bundles, &located, overlays);
    let mut warnings = Vec::new();
    let mut layers = Vec::new();
    for (layer, source) in &sources {
        let mut reader = Reader::new(source);
        let patches = patch::read(&mut reader, &mut warnings);
        files.errors.append(&mut reader.errors);
        layers.push((layer, source, patches));
    }
    if !files.errors.is_empty() {
        return Err(files.failed());
    }

    let mut composition = Composition { warnings, ..Composition::default() };
    composition.settings(&document, &source);
    for provider in document.providers {
        composition.add_provider(provider, &source);
    }
    for (layer, source, patches) in layers {
        for patch in patches {
            composition.apply(patch, layer, source);
        }
    }
    let Some(model) = document.model else { return Err(files.failed()) };
    let sources: BTreeMap<PathBuf, Arc<Source>> = sources
        .iter()
        .map(|(_, source)| source)
        .chain([&source])
        .map(|source| (source.file.clone(), source.clone()))
        .collect();
    let rest = Rest {
        name: located.name,
        file: source.file.clone(),
        model,
        journal: document.journal.unwrap_or_default(),
        drain_timeout_ms: document.drain_timeout_ms.unwrap_or(DEFAULT_DRAIN_TIMEOUT_MS),
        bundles: document.bundles.into_iter().map(|bundle| bundle.name).collect(),
        sources,
    };
    composition.finish(rest, files)
}

/// Reads files, and remembers which.
struct Files {
    inputs: Vec<PathBuf>,
    errors: Vec<ProfileError>,
}

impl Files {
    fn looked_for(&mut self, file: &Path) {
        if !self.inputs.iter().any(|known| known == file) {
            self.inputs.push(file.to_path_buf());
        }
    }

    fn failed(self) -> ProfileErrors {
        ProfileErrors { errors: self.errors, inputs: self.inputs }
    }

    /// Reads a file; `absent` is the error when it does not exist, if it must.
    fn read(&mut self, file: &Path, absent: Option<ProfileError>) -> Option<Arc<Source>> {
        self.looked_for(file);
        match Source::read(file) {
            Ok(Some(source)) => Some(Arc::new(source)),
            Ok(None) => {
                self.errors.extend(absent);
                None
            }
            Err(error) => {
                self.errors.push(error);
                None
            }
        }
    }

    fn builtin(&mut self, name: &str, text: &str) -> Option<Arc<Source>> {
        match Source::parse(&builtin::file(name), text) {
            Ok(source) => Some(Arc::new(source)),
            Err(error) => {
                self.errors.push(error);
                None
            }
        }
    }

    fn profile(&mut self, located: &Located) -> Option<Arc<Source>> {
        match &located.file {
            Some(file) => self.read(file, Some(ProfileError::NoSuchFile { file: file.clone() })),
            None => self.builtin(builtin::DEMO, builtin::DEMO_PROFILE),
        }
    }

    /// The patch files of every layer above the profile itself, lowest first.
    fn layers(
        &mut self,
        profile: &Source,
        bundles: &[BundleRef],
        located: &Located,
        overlays: &[PathBuf],
    ) -> Vec<(Layer, Arc<Source>)> {
        let mut layers = Vec::new();
        for bundle in bundles {
            let source = match &bundle.kind {
                BundleKind::Builtin(builtin) => self.builtin(builtin.name, builtin.patch),
                BundleKind::Dir(dir) => {
                    let wanted = dir.join(PATCH_FILE);
                    let place = profile.place(&bundle.path);
                    let (path, name) = (bundle.path.clone(), bundle.name.clone());
                    let absent = ProfileError::MissingBundle { place, path, name, wanted: wanted.clone() };
                    self.read(&wanted, Some(absent))
                }
            };
            layers.extend(source.map(|source| (Layer::Bundle(bundle.name.clone()), source)));
        }
        layers.extend(self.read(&located.patch, None).map(|source| (Layer::ProfilePatch, source)));
        for overlay in overlays {
            let file = absolute(overlay);
            let absent = ProfileError::MissingOverlay { file: file.clone() };
            layers.extend(self.read(&file, Some(absent)).map(|source| (Layer::Overlay, source)));
        }
        layers
    }
}

/// A provider while layers are laid over it.
struct DraftProvider {
    name: String,
    adapter: Option<AdapterKind>,
    endpoint: Option<Endpoint>,
    api_key_env: Option<String>,
    limits: ProviderLimits,
    max_tokens: Option<NonZeroU32>,
    models: BTreeMap<String, ModelSettings>,
    model_provenance: BTreeMap<String, BTreeMap<&'static str, Origin>>,
    text_hints: bool,
    classify: OwnRows,
    policy: LayeredPolicy,
    provenance: BTreeMap<&'static str, Origin>,
}

/// What composition takes over from the profile unchanged.
struct Rest {
    name: String,
    file: PathBuf,
    model: Model,
    journal: super::composed::JournalKind,
    drain_timeout_ms: u64,
    bundles: Vec<String>,
    sources: BTreeMap<PathBuf, Arc<Source>>,
}

#[derive(Default)]
struct Composition {
    providers: Vec<DraftProvider>,
    entries: Vec<Entry>,
    settings: BTreeMap<&'static str, Origin>,
    warnings: Vec<Warning>,
    errors: Vec<ProfileError>,
}

impl Composition {
    fn settings(&mut self, document: &Document<'_>, source: &Source) {
        let keys = document.keys.iter().filter(|key| **key != "providers");
        self.settings.extend(keys.map(|&key| (key, Origin::new(&Layer::Profile, source, key.to_owned()))));
    }

    fn add_provider(&mut self, provider: NewProvider<'_>, source: &Source) {
        let origin = Origin::new(&Layer::Profile, source, join(&provider.path, "provider"));
        let mut draft = DraftProvider {
            name: provider.name,
            adapter: None,
            endpoint: None,
            api_key_env: None,
            limits: ProviderLimits::default(),
            max_tokens: None,
            models: BTreeMap::new(),
            model_provenance: BTreeMap::new(),
            text_hints: false,
            classify: OwnRows::default(),
            policy: LayeredPolicy::default(),
            provenance: BTreeMap::from([("provider", origin)]),
        };
        draft.lay(provider.keys, &Layer::Profile, source, &provider.path);
        self.providers.push(draft);
    }

    fn apply(&mut self, patch: Patch<'_>, layer: &Layer, source: &Source) {
        let skip = |message: String| Warning { place: source.place(&patch.path), message };
        match patch.edit {
            Edit::Insert(rows) => {
                for row in rows {
                    self.insert(row, layer, source);
                }
            }
            Edit::Row { id, name, keys } => match self.entries.iter_mut().find(|entry| entry.id == id) {
                None => {
                    let nearest = nearest(id, self.entries.iter().map(|entry| entry.id.as_str()));
                    let message =
                        format!("skipped: no lower layer has a row with the id {id:?}{}", did_you_mean(&nearest));
                    self.warnings.push(skip(message));
                }
                Some(entry) if name.is_some() && entry.name.as_deref() != name => {
                    let has = match &entry.name {
                        Some(name) => format!("is named {name:?}"),
                        None => "has no name".to_owned(),
                    };
                    let message = format!(
                        "skipped: the patch is for a row named {:?}, but the row {id:?} {has}",
                        name.unwrap_or_default()
                    );
                    self.warnings.push(skip(message));
                }
                Some(entry) => lay_row(entry, keys, layer, source, &patch.path),
            },
            Edit::Provider { name, keys } => match self.providers.iter_mut().find(|known| known.name == name) {
                Some(provider) => provider.lay(keys, layer, source, &patch.path),
                None => {
                    let nearest = nearest(name, self.providers.iter().map(|known| known.name.as_str()));
                    let message = format!("skipped: the profile has no provider {name:?}{}", did_you_mean(&nearest));
                    self.warnings.push(skip(message));
                }
            },
        }
    }

    fn insert(&mut self, row: NewRow, layer: &Layer, source: &Source) {
        let path = join(&row.path, "id");
        if let Some(first) = self.entries.iter().find(|entry| entry.id == row.id) {
            let place = source.place(&path);
            let first = first.provenance.get("id").map_or_else(|| Place::file(&source.file), Origin::place);
            self.errors.push(ProfileError::DuplicateId { place, path, id: row.id, first });
            return;
        }
        let origin = |key: &str| Origin::new(layer, source, join(&row.path, key));
        let mut provenance = BTreeMap::from([("id", origin("id")), ("component", origin("component"))]);
        if row.name.is_some() {
            provenance.insert("name", origin("name"));
        }
        let mut entry = Entry {
            id: row.id,
            name: row.name,
            component: row.component,
            config: json!({}),
            limits: None,
            disabled: false,
            provenance,
        };
        lay_row(&mut entry, row.keys, layer, source, &row.path);
        self.entries.push(entry);
    }

    fn finish(mut self, rest: Rest, mut files: Files) -> Result<ComposedProfile, ProfileErrors> {
        let drafts = std::mem::take(&mut self.providers);
        let providers: Vec<Provider> =
            drafts.into_iter().filter_map(|draft| self.provider(draft, &rest.sources)).collect();
        for entry in &self.entries {
            if let Some(path) = entry.component.path() {
                files.looked_for(path);
            }
        }
        if !self.errors.is_empty() {
            return Err(ProfileErrors { errors: self.errors, inputs: files.inputs });
        }
        Ok(ComposedProfile {
            name: rest.name,
            file: rest.file,
            model: rest.model,
            providers,
            entries: self.entries,
            journal: rest.journal,
            drain_timeout_ms: rest.drain_timeout_ms,
            bundles: rest.bundles,
            settings: self.settings,
            warnings: self.warnings,
            inputs: files.inputs,
            sources: rest.sources,
        })
    }

    fn provider(&mut self, draft: DraftProvider, sources: &BTreeMap<PathBuf, Arc<Source>>) -> Option<Provider> {
        let config = draft.policy.value();
        let policy = match resolve_policy(config.as_ref(), &draft, sources) {
            Ok(policy) => policy,
            Err(error) => {
                self.errors.push(error);
                return None;
            }
        };
        for (index, code) in LayeredPolicy::unknown_codes(&policy) {
            let below = format!("retryableCodes[{index}]");
            let (place, path) = draft.policy_place(&below, sources);
            let known = FailureCode::SELECTABLE.map(FailureCode::as_str);
            let message = format!(
                "{path}: no adapter emits the code {code:?}, so it never matches{}; the codes are {}",
                did_you_mean(&nearest(&code, known)),
                known.join(", ")
            );
            self.warnings.push(Warning { place, message });
        }
        if let (Some(Endpoint::Chaos(_)), Some(variable)) = (&draft.endpoint, draft.provenance.get("apiKeyEnv")) {
            let message = "apiKeyEnv is unused: a chaos provider needs no key".to_owned();
            self.warnings.push(Warning { place: variable.place(), message });
        }
        Some(Provider {
            policy_origins: draft.policy.key_origins(&policy),
            policy,
            policy_config: config,
            name: draft.name,
            // Both are there: a provider without them was an error when its file was read, and a patch removes neither.
            adapter: draft.adapter?,
            endpoint: draft.endpoint?,
            api_key_env: draft.api_key_env,
            limits: draft.limits,
            max_tokens: draft.max_tokens,
            models: draft.models,
            model_provenance: draft.model_provenance,
            text_hints: draft.text_hints,
            classify: draft.classify,
            provenance: draft.provenance,
        })
    }
}

impl DraftProvider {
    fn lay(&mut self, keys: ProviderKeys<'_>, layer: &Layer, source: &Source, path: &str) {
        let origin = |key: &str| Origin::new(layer, source, join(path, key));
        if let Some(adapter) = keys.adapter {
            self.provenance.insert("adapter", origin("adapter"));
            self.adapter = Some(adapter);
        }
        if let Some(endpoint) = keys.endpoint {
            // The two are one value with two spellings, so a higher layer's `chaos` takes the place of a `baseUrl`.
            let (key, other) = match endpoint {
                Endpoint::BaseUrl(_) => ("baseUrl", "chaos"),
                Endpoint::Chaos(_) => ("chaos", "baseUrl"),
            };
            self.provenance.insert(key, origin(key));
            self.provenance.remove(other);
            self.endpoint = Some(endpoint);
        }
        if let Some(variable) = keys.api_key_env {
            self.provenance.insert("apiKeyEnv", origin("apiKeyEnv"));
            self.api_key_env = Some(variable);
        }
        if let Some(limits) = keys.limits {
            self.provenance.insert("limits", origin("limits"));
            self.limits = limits;
        }
        if keys.max_tokens.is_some() {
            self.provenance.insert("maxTokens", origin("maxTokens"));
            self.max_tokens = keys.max_tokens;
        }
        for (name, settings) in keys.models {
            let path = join(&join(path, "models"), &name);
            let origin = |key: &str| Origin::new(layer, source, join(&path, key));
            let provenance = self.model_provenance.entry(name.clone()).or_default();
            let model = self.models.entry(name).or_default();
            if settings.max_tokens.is_some() {
                provenance.insert("maxTokens", origin("maxTokens"));
                model.max_tokens = settings.max_tokens;
            }
            if settings.limits.is_some() {
                provenance.insert("limits", origin("limits"));
                model.limits = settings.limits;
            }
        }
        if let Some(text_hints) = keys.text_hints {
            self.provenance.insert("textHints", origin("textHints"));
            self.text_hints = text_hints;
        }
        if let Some(rows) = keys.classify {
            self.provenance.insert("classify", origin("classify"));
            self.classify = rows;
        }
        if let Some(policy) = keys.retry_policy {
            self.policy.lay(policy, layer, source, &join(path, "retryPolicy"));
        }
    }

    /// Where a path below `retryPolicy` stands: its place, and its full path in that file.
    fn policy_place(&self, below: &str, sources: &BTreeMap<PathBuf, Arc<Source>>) -> (Place, String) {
        let Some((set, origin)) = self.policy.origin(below) else {
            // A policy that no layer set is the default, which breaks no rule.
            return (Place { file: PathBuf::new(), line: 0, column: 0 }, join("retryPolicy", below));
        };
        let rest = below[set.len()..].trim_start_matches('.');
        let path = if rest.starts_with('[') { format!("{}{rest}", origin.path) } else { join(&origin.path, rest) };
        let path = path.trim_end_matches('.').to_owned();
        let place = match sources.get(&origin.file) {
            Some(source) => source.place(&path),
            None => origin.place(),
        };
        (place, path)
    }
}

/// The one place where a policy is resolved; its error is moved to the file and key that set the offending value.
fn resolve_policy(
    config: Option<&Value>,
    draft: &DraftProvider,
    sources: &BTreeMap<PathBuf, Arc<Source>>,
) -> Result<RetryPolicy, ProfileError> {
    const LABEL: &str = "retryPolicy";
    RetryPolicy::resolve(config, LABEL).map_err(|error| {
        let sentence = error.to_string();
        let below = error.path().strip_prefix(LABEL).unwrap_or_default().trim_start_matches('.');
        let (place, path) = draft.policy_place(below, sources);
        let mut message = sentence.strip_prefix(error.path()).unwrap_or(&sentence).trim_start().to_owned();
        if let PolicyError::UnknownKey { path, allowed, .. } = &error {
            let key = path.rsplit('.').next().unwrap_or_default();
            message.push_str(&did_you_mean(&nearest(key, allowed.split(", "))));
        }
        ProfileError::Policy { place, path, provider: draft.name.clone(), message }
    })
}

/// Lays a layer's keys over a row: each replaces what was there as a whole.
fn lay_row(entry: &mut Entry, keys: RowKeys, layer: &Layer, source: &Source, path: &str) {
    let mut set = |key: &'static str| {
        entry.provenance.insert(key, Origin::new(layer, source, join(path, key)));
    };
    if let Some(component) = keys.component {
        set("component");
        entry.component = component;
    }
    if let Some(config) = keys.config {
        set("config");
        entry.config = config.unwrap_or_else(|| json!({}));
    }
    if let Some(limits) = keys.limits {
        set("limits");
        entry.limits = limits;
    }
    if let Some(disabled) = keys.disabled {
        set("disabled");
        entry.disabled = disabled;
    }
}
