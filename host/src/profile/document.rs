//! Reads a `profile.yml`: the model, the providers, the bundles and a few settings. Strict, and pure.
//!
//! The keys of a provider are read here for patches too, so that both obey the same rules.

use super::{
    builtin,
    composed::{AdapterKind, Endpoint, JournalKind, Model, ModelSettings, ProviderLimits},
    error::{Place, ProfileError, nearest},
    fields::{Fields, Reader, describe},
    home::absolute,
    own_rows::own_rows,
    source::join,
};
use crate::llm::classify::OwnRows;
use serde_json::{Map, Value};
use std::{collections::BTreeMap, num::NonZeroU32, path::PathBuf};

/// The longest timeout, in milliseconds: the longest timer that every platform can hold.
const MAX_MS: u64 = crate::llm::policy::MAX_TIMER_MS as u64;

/// The most tokens that an answer may be bounded to: servers read the number into 32 bits with a sign.
const MAX_TOKENS: u64 = i32::MAX as u64;

/// What a `profile.yml` says. A part that was wrong is absent, and stands in the reader's errors.
pub struct Document<'s> {
    pub model: Option<Model>,
    pub providers: Vec<NewProvider<'s>>,
    pub bundles: Vec<BundleRef>,
    pub journal: Option<JournalKind>,
    pub drain_timeout_ms: Option<u64>,
    /// Which of the settings the file has.
    pub keys: Vec<&'static str>,
}

pub struct NewProvider<'s> {
    pub name: String,
    /// The path of the item.
    pub path: String,
    pub keys: ProviderKeys<'s>,
}

/// The keys of a provider that a layer sets.
pub struct ProviderKeys<'s> {
    pub adapter: Option<AdapterKind>,
    pub endpoint: Option<Endpoint>,
    pub api_key_env: Option<String>,
    pub limits: Option<ProviderLimits>,
    pub max_tokens: Option<NonZeroU32>,
    /// Laid over lower layers model by model, and within a model key by key.
    pub models: BTreeMap<String, ModelSettings>,
    pub text_hints: Option<bool>,
    pub classify: Option<OwnRows>,
    /// Raw: it is laid over lower layers before it is checked.
    pub retry_policy: Option<&'s Map<String, Value>>,
}

/// A bundle that the profile names.
pub struct BundleRef {
    /// As written.
    pub name: String,
    pub path: String,
    pub kind: BundleKind,
}

pub enum BundleKind {
    Builtin(&'static builtin::Bundle),
    /// The directory.
    Dir(PathBuf),
}

const PROFILE_KEYS: [&str; 5] = ["model", "providers", "bundles", "journal", "drainTimeoutMs"];
const MODEL_KEYS: [&str; 3] = ["provider", "model", "system"];
pub const PROVIDER_KEYS: [&str; 11] = [
    "provider",
    "adapter",
    "baseUrl",
    "apiKeyEnv",
    "chaos",
    "retryPolicy",
    "limits",
    "maxTokens",
    "models",
    "textHints",
    "classify",
];
const MODEL_SETTINGS_KEYS: [&str; 2] = ["maxTokens", "limits"];
const LIMIT_KEYS: [&str; 6] = ["connectMs", "firstByteMs", "firstContentMs", "contentMs", "idleMs", "totalMs"];

/// Reads the whole file; what is wrong goes into `reader.errors`.
pub fn read<'s>(reader: &mut Reader<'s>) -> Document<'s> {
    let mut document = Document {
        model: None,
        providers: Vec::new(),
        bundles: Vec::new(),
        journal: None,
        drain_timeout_ms: None,
        keys: Vec::new(),
    };
    let source = reader.source;
    let Some(fields) = reader.mapping(&source.value, "", "a mapping with the keys of a profile", &PROFILE_KEYS) else {
        return document;
    };
    document.keys = PROFILE_KEYS.into_iter().filter(|key| fields.has(key)).collect();
    let model = fields.required("model", "the provider and the model to ask", reader);
    document.providers = providers(&fields, reader);
    document.model = model.and_then(|value| self::model(value, &document.providers, reader));
    document.bundles = bundles(&fields, reader);
    document.journal = fields.choice("journal", &JournalKind::ALL, "the kind of store for sessions", reader);
    document.drain_timeout_ms = fields.whole_ms("drainTimeoutMs", 0, MAX_MS, reader);
    document
}

fn model<'s>(value: &'s Value, providers: &[NewProvider<'_>], reader: &mut Reader<'s>) -> Option<Model> {
    let fields = reader.mapping(value, "model", "a mapping with the keys provider and model", &MODEL_KEYS)?;
    let provider = fields.required_word("provider", "the name of one of the providers", reader);
    let model = fields.required_word("model", "the name by which the provider knows the model", reader);
    let system = fields.text("system", "a text, the system prompt", reader);
    let provider = provider?;
    // Where the providers themselves could not be read, a missing name would only repeat that.
    if !providers.is_empty() && !providers.iter().any(|known| known.name == provider) {
        reader.errors.push(ProfileError::NoSuchProvider {
            place: reader.place("model.provider"),
            path: "model.provider".to_owned(),
            name: provider.to_owned(),
            nearest: nearest(provider, providers.iter().map(|known| known.name.as_str())),
            existing: providers.iter().map(|known| known.name.clone()).collect(),
        });
    }
    Some(Model { provider: provider.to_owned(), model: model?.to_owned(), system: system.map(str::to_owned) })
}

fn providers<'s>(fields: &Fields<'s>, reader: &mut Reader<'s>) -> Vec<NewProvider<'s>> {
    const EXPECTED: &str = "a list with at least one provider";
    let items = match fields.required("providers", EXPECTED, reader) {
        Some(Value::Array(items)) => items,
        Some(other) => {
            reader.wrong_type("providers", other, EXPECTED);
            return Vec::new();
        }
        None => return Vec::new(),
    };
    if items.is_empty() {
        reader.bad_value("providers", "an empty list", format!("it is {EXPECTED}"));
    }
    let mut providers: Vec<NewProvider<'s>> = Vec::new();
    let mut places: Vec<Place> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("providers[{index}]");
        let Some(fields) = reader.mapping(item, &path, "a mapping with the keys of a provider", &PROVIDER_KEYS) else {
            continue;
        };
        let name = fields.required_word("provider", "the name of this provider", reader);
        fields.required("adapter", "the protocol that the provider speaks", reader);
        let keys = provider_keys(&fields, reader);
        if !fields.has("baseUrl") && !fields.has("chaos") {
            reader.rule(
                &path,
                "the provider has neither baseUrl nor chaos; give the URL of a server, or the script of a scripted one",
            );
        }
        let Some(name) = name else { continue };
        let path_of_name = fields.at("provider");
        let place = reader.place(&path_of_name);
        if let Some(first) = providers.iter().position(|known| known.name == name) {
            let (name, first) = (name.to_owned(), places[first].clone());
            reader.errors.push(ProfileError::DuplicateProvider { place, path: path_of_name, name, first });
            continue;
        }
        providers.push(NewProvider { name: name.to_owned(), path, keys });
        places.push(place);
    }
    providers
}

/// Reads every key of a provider but its name; that some must be there is for the caller to say.
pub fn provider_keys<'s>(fields: &Fields<'s>, reader: &mut Reader<'s>) -> ProviderKeys<'s> {
    let adapter = fields.choice("adapter", &AdapterKind::ALL, "the protocol that the provider speaks", reader);
    let base_url = fields
        .word("baseUrl", "an http or https URL", reader)
        .and_then(|text| base_url(text, &fields.at("baseUrl"), reader));
    let chaos = fields.word("chaos", "a script of faults, such as \"503*2, ok\"", reader);
    if fields.has("baseUrl") && fields.has("chaos") {
        let message = "baseUrl and chaos exclude each other; keep the one where requests shall go";
        reader.rule(&fields.at("chaos"), message);
    }
    let endpoint = base_url.map(Endpoint::BaseUrl).or_else(|| chaos.map(|script| Endpoint::Chaos(script.to_owned())));
    let retry_policy = match fields.get("retryPolicy") {
        None => None,
        Some(Value::Object(policy)) => Some(policy),
        Some(other) => {
            let expected = "a mapping with the keys mode, maxRetries, retryableCodes, backoff";
            reader.wrong_type(&fields.at("retryPolicy"), other, expected);
            None
        }
    };
    ProviderKeys {
        adapter,
        endpoint,
        api_key_env: api_key_env(fields, reader),
        limits: limits(fields, reader),
        max_tokens: max_tokens(fields, reader),
        models: models(fields, reader),
        text_hints: fields.flag("textHints", reader),
        classify: own_rows(fields, reader),
        retry_policy,
    }
}

fn base_url(text: &str, path: &str, reader: &mut Reader<'_>) -> Option<String> {
    let problem = match reqwest::Url::parse(text) {
        Err(error) => format!("{text:?} is no URL ({error})"),
        Ok(url) if !url.username().is_empty() || url.password().is_some() => {
            // The text holds a secret, so it is not repeated.
            "a URL with credentials in it is shown in many places".to_owned()
        }
        Ok(url) if !matches!(url.scheme(), "http" | "https") => format!("the scheme {:?}", url.scheme()),
        Ok(url) if url.query().is_some() || url.fragment().is_some() => {
            format!("{text:?} has a query or a fragment")
        }
        Ok(_) => return Some(text.to_owned()),
    };
    let allowed =
        "it is an http or https URL without credentials, query or fragment, such as https://api.example.com/v1";
    reader.bad_value(path, problem, allowed);
    None
}

fn api_key_env(fields: &Fields<'_>, reader: &mut Reader<'_>) -> Option<String> {
    let name = fields.word("apiKeyEnv", "the name of an environment variable", reader)?;
    let is_name =
        !name.starts_with(|c: char| c.is_ascii_digit()) && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_name {
        // People put the key itself here; then it must not be printed.
        let allowed = "it is the name of the environment variable that holds the key (letters, digits and `_`), never the key itself";
        reader.bad_value(&fields.at("apiKeyEnv"), "this text (not repeated here, for it may be a key)", allowed);
        return None;
    }
    Some(name.to_owned())
}

fn limits<'s>(fields: &Fields<'s>, reader: &mut Reader<'s>) -> Option<ProviderLimits> {
    let path = fields.at("limits");
    let fields = reader.mapping(fields.get("limits")?, &path, "a mapping of time limits", &LIMIT_KEYS)?;
    Some(ProviderLimits {
        connect_ms: fields.whole_ms("connectMs", 1, MAX_MS, reader),
        first_byte_ms: fields.whole_ms("firstByteMs", 1, MAX_MS, reader),
        first_content_ms: fields.whole_ms("firstContentMs", 1, MAX_MS, reader),
        content_ms: fields.whole_ms("contentMs", 1, MAX_MS, reader),
        idle_ms: fields.whole_ms("idleMs", 1, MAX_MS, reader),
        total_ms: fields.whole_ms("totalMs", 0, MAX_MS, reader),
    })
}

fn max_tokens(fields: &Fields<'_>, reader: &mut Reader<'_>) -> Option<NonZeroU32> {
    let tokens = fields.whole("maxTokens", "tokens", 1, MAX_TOKENS, reader)?;
    u32::try_from(tokens).ok().and_then(NonZeroU32::new)
}

fn models<'s>(fields: &Fields<'s>, reader: &mut Reader<'s>) -> BTreeMap<String, ModelSettings> {
    let path = fields.at("models");
    let named = match fields.get("models") {
        None => return BTreeMap::new(),
        Some(Value::Object(named)) => named,
        Some(other) => {
            reader.wrong_type(&path, other, "a mapping of models, by the name by which the provider knows each");
            return BTreeMap::new();
        }
    };
    let mut models = BTreeMap::new();
    for (name, value) in named {
        let path = join(&path, name);
        if name.trim().is_empty() {
            reader.bad_value(&path, "an empty name", "it is the name by which the provider knows the model");
        }
        let what = "a mapping with the keys maxTokens and limits";
        if let Some(fields) = reader.mapping(value, &path, what, &MODEL_SETTINGS_KEYS) {
            let settings = ModelSettings { max_tokens: max_tokens(&fields, reader), limits: limits(&fields, reader) };
            models.insert(name.clone(), settings);
        }
    }
    models
}

fn bundles(fields: &Fields<'_>, reader: &mut Reader<'_>) -> Vec<BundleRef> {
    const EXPECTED: &str = "a list of bundles";
    let base = Value::from(vec!["base"]);
    let items = match fields.get("bundles") {
        // A profile that says nothing has the official executor; one that says `[]` has none.
        None => base.as_array(),
        Some(Value::Array(items)) => Some(items),
        Some(other) => {
            reader.wrong_type("bundles", other, EXPECTED);
            None
        }
    };
    let mut bundles: Vec<BundleRef> = Vec::new();
    for (index, item) in items.into_iter().flatten().enumerate() {
        let path = format!("bundles[{index}]");
        let Value::String(name) = item else {
            reader.wrong_type(&path, item, "the name of a built-in bundle or the path of a directory");
            continue;
        };
        let Some(kind) = bundle(name, &path, reader) else { continue };
        let same = |known: &BundleRef| match (&known.kind, &kind) {
            (BundleKind::Builtin(a), BundleKind::Builtin(b)) => a.name == b.name,
            (BundleKind::Dir(a), BundleKind::Dir(b)) => a == b,
            _ => false,
        };
        if let Some(first) = bundles.iter().find(|known| same(known)) {
            let message = format!("the bundle {name:?} is already listed as {}; remove one of the two", first.path);
            reader.rule(&path, message);
            continue;
        }
        bundles.push(BundleRef { name: name.clone(), path, kind });
    }
    bundles
}

fn bundle(name: &str, path: &str, reader: &mut Reader<'_>) -> Option<BundleKind> {
    if let Some(bundle) = builtin::BUNDLES.iter().find(|bundle| bundle.name == name) {
        return Some(BundleKind::Builtin(bundle));
    }
    let is_path = matches!(name, "." | "..")
        || ["./", "../"].iter().any(|start| name.starts_with(start))
        || std::path::Path::new(name).is_absolute();
    if !is_path {
        let known = builtin::BUNDLES.iter().map(|bundle| bundle.name);
        reader.errors.push(ProfileError::UnknownBundle {
            place: reader.place(path),
            path: path.to_owned(),
            name: name.to_owned(),
            nearest: nearest(name, known.clone()),
            allowed: known.map(str::to_owned).collect(),
        });
        return None;
    }
    match reader.source.dir() {
        Some(dir) => Some(BundleKind::Dir(absolute(&dir.join(name)))),
        None => {
            reader.bad_value(path, describe(&Value::from(name)), "a built-in profile has no directory to start from");
            None
        }
    }
}
