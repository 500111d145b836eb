//! Shows a composed profile: every value with the layer that set it. As text for people, as JSON for programs.

use super::{
    components::component_digest,
    composed::{ComposedProfile, Endpoint, Entry, ModelSettings, Origin, Provider, ProviderLimits},
    policy::KeyOrigin,
};
use crate::llm::RetryPolicy;
use serde_json::{Map, Value, json};
use std::{collections::BTreeMap, fmt::Write as _};

/// What stands in place of an origin for a value that no layer set.
const DEFAULT: &str = "default";

/// The row of a component's SHA-256.
const DIGEST: &str = "digest";

/// The profile as text, one value a line with its origin, ending in a newline. Warnings are not part of it: they are for
/// standard error, also when nothing is shown.
pub fn to_text(profile: &ComposedProfile) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write(profile, &mut text);
    text
}

fn write(profile: &ComposedProfile, out: &mut String) -> std::fmt::Result {
    writeln!(out, "profile {} ({})", profile.name, profile.file.display())?;
    let settings = [
        ("model", format!("{} of {}", profile.model.model, profile.model.provider)),
        ("bundles", list(&profile.bundles)),
        ("journal", profile.journal.as_str().to_owned()),
        ("drainTimeoutMs", profile.drain_timeout_ms.to_string()),
    ];
    table(out, settings.map(|(key, value)| (key, value, profile.settings.get(key))))?;

    writeln!(out, "\nexecutors, the first is asked first")?;
    if profile.entries.is_empty() {
        writeln!(out, "  (none: a failed request ends its turn)")?;
    }
    for entry in &profile.entries {
        let state = if entry.disabled { " (disabled)" } else { "" };
        writeln!(out, "  {}{state}", entry.id)?;
        let rows = entry_values(entry);
        table(out, rows.into_iter().map(|(key, value)| (key, value_text(&value), entry.provenance.get(key))))?;
    }

    writeln!(out, "\nproviders")?;
    for provider in &profile.providers {
        let used = if provider.name == profile.model.provider { " (serves the model)" } else { "" };
        writeln!(out, "  {}{used}", provider.name)?;
        let rows = provider_values(provider);
        table(out, rows.into_iter().map(|(key, value)| (key, value_text(&value), provider.provenance.get(key))))?;
        for (name, settings) in &provider.models {
            writeln!(out, "    model {name}")?;
            let origin = |key| provider.model_provenance.get(name)?.get(key);
            let rows = model_values(settings).into_iter();
            table(out, rows.map(|(key, value)| (key, value_text(&value), origin(key))))?;
        }
        writeln!(out, "    retry policy")?;
        let policy = policy_json(&provider.policy);
        let rows = provider.policy_origins.iter().map(|KeyOrigin { key, origin }| {
            let pointer = format!("/{}", key.replace('.', "/"));
            (*key, policy.pointer(&pointer).map_or_else(String::new, value_text), origin.as_ref())
        });
        table(out, rows)?;
    }
    Ok(())
}

/// Rows of key, value and origin, in columns.
fn table<'a>(
    out: &mut String,
    rows: impl IntoIterator<Item = (&'a str, String, Option<&'a Origin>)>,
) -> std::fmt::Result {
    let rows: Vec<_> = rows.into_iter().collect();
    let width = |of: fn(&(&str, String, Option<&Origin>)) -> usize, most: usize| {
        rows.iter().map(of).filter(|width| *width <= most).max().unwrap_or(0)
    };
    let keys = width(|(key, _, _)| key.len(), 40);
    // A long value pushes its own origin aside, not those of all others.
    let values = width(|(_, value, _)| value.chars().count(), 48);
    for (key, value, origin) in rows {
        let origin = match origin {
            Some(origin) => origin.to_string(),
            // Computed, not set.
            None if key == DIGEST => String::new(),
            None => DEFAULT.to_owned(),
        };
        writeln!(out, "      {key:keys$}  {value:values$}  {origin}")?;
    }
    Ok(())
}

fn entry_values(entry: &Entry) -> Vec<(&'static str, Value)> {
    let digest = component_digest(&entry.component).unwrap_or_else(|error| format!("none: {error}"));
    let mut rows = vec![("component", json!(entry.component.to_string())), (DIGEST, json!(digest))];
    rows.extend(entry.name.as_ref().map(|name| ("name", json!(name))));
    rows.push(("config", entry.config.clone()));
    rows.extend(entry.limits.as_ref().map(|limits| ("limits", limits.clone())));
    rows.push(("disabled", json!(entry.disabled)));
    rows
}

fn provider_values(provider: &Provider) -> Vec<(&'static str, Value)> {
    let mut rows = vec![("adapter", json!(provider.adapter.as_str()))];
    rows.push(match &provider.endpoint {
        Endpoint::BaseUrl(url) => ("baseUrl", json!(url)),
        Endpoint::Chaos(script) => ("chaos", json!(script)),
    });
    rows.extend(provider.api_key_env.as_ref().map(|variable| ("apiKeyEnv", json!(variable))));
    rows.extend(limits_value(&provider.limits).map(|limits| ("limits", limits)));
    rows.extend(provider.max_tokens.map(|tokens| ("maxTokens", json!(tokens))));
    if provider.text_hints {
        rows.push(("textHints", json!(true)));
    }
    let own = provider.classify.rows();
    if !own.is_empty() {
        rows.push(("classify", own.iter().map(|row| json!(format!("{} → {}", row.id, row.code))).collect()));
    }
    rows
}

fn model_values(settings: &ModelSettings) -> Vec<(&'static str, Value)> {
    let limits = settings.limits.as_ref().and_then(limits_value).map(|limits| ("limits", limits));
    let max_tokens = settings.max_tokens.map(|tokens| ("maxTokens", json!(tokens)));
    limits.into_iter().chain(max_tokens).collect()
}

/// The limits that are set, if any is.
fn limits_value(limits: &ProviderLimits) -> Option<Value> {
    let limits = [
        ("connectMs", limits.connect_ms),
        ("firstByteMs", limits.first_byte_ms),
        ("firstContentMs", limits.first_content_ms),
        ("contentMs", limits.content_ms),
        ("idleMs", limits.idle_ms),
        ("totalMs", limits.total_ms),
    ];
    let set: Map<String, Value> =
        limits.into_iter().filter_map(|(key, ms)| Some((key.to_owned(), json!(ms?)))).collect();
    (!set.is_empty()).then_some(Value::Object(set))
}

/// A text as it is, anything else as JSON.
fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if items.iter().all(Value::is_string) => {
            list(&items.iter().filter_map(|item| item.as_str().map(str::to_owned)).collect::<Vec<_>>())
        }
        other => other.to_string(),
    }
}

fn list(items: &[String]) -> String {
    if items.is_empty() { "(none)".to_owned() } else { items.join(", ") }
}

/// An effective policy in the shape of a `retryPolicy`.
fn policy_json(policy: &RetryPolicy) -> Value {
    let backoff = policy.backoff();
    let backoff = json!({
        "initialDelayMs": number(backoff.initial_delay_ms),
        "maxDelayMs": number(backoff.max_delay_ms),
        "jitterRatio": number(backoff.jitter_ratio),
    });
    match policy {
        RetryPolicy::Normal { max_retries, retryable_codes, .. } => json!({
            "mode": "normal", "maxRetries": max_retries, "retryableCodes": &**retryable_codes, "backoff": backoff,
        }),
        RetryPolicy::Always { .. } => json!({ "mode": "always", "backoff": backoff }),
    }
}

/// A number as ECMAScript writes it.
fn number(value: f64) -> Value {
    // A finite number, as every number of a policy is, always has a JSON form.
    crate::journal::number::serialize(&value, serde_json::value::Serializer).unwrap_or(Value::Null)
}

/// The profile as one JSON object. In every `origins`, a key that is absent has its default.
pub fn to_json(profile: &ComposedProfile) -> Value {
    json!({
        "profile": profile.name,
        "file": profile.file.to_string_lossy(),
        "model": {
            "provider": profile.model.provider,
            "model": profile.model.model,
            "system": profile.model.system,
        },
        "bundles": profile.bundles,
        "journal": profile.journal.as_str(),
        "drainTimeoutMs": profile.drain_timeout_ms,
        "origins": origins(&profile.settings),
        "entries": profile.entries.iter().map(|entry| {
            let mut object = Map::from_iter([("id".to_owned(), json!(entry.id))]);
            object.extend(entry_values(entry).into_iter().map(|(key, value)| (key.to_owned(), value)));
            object.insert("origins".to_owned(), origins(&entry.provenance));
            object
        }).collect::<Vec<_>>(),
        "providers": profile.providers.iter().map(|provider| {
            let mut object = Map::from_iter([("provider".to_owned(), json!(provider.name))]);
            object.extend(provider_values(provider).into_iter().map(|(key, value)| (key.to_owned(), value)));
            if !provider.models.is_empty() {
                object.insert("models".to_owned(), models_json(provider));
            }
            object.insert("retryPolicy".to_owned(), policy_json(&provider.policy));
            object.insert("origins".to_owned(), origins(&provider.provenance));
            let set = provider.policy_origins.iter().filter_map(|set| Some((set.key.to_owned(), origin(set.origin.as_ref()?))));
            object.insert("retryPolicyOrigins".to_owned(), Value::Object(set.collect()));
            object
        }).collect::<Vec<_>>(),
        "warnings": profile.warnings.iter().map(|warning| json!({
            "file": warning.place.file.to_string_lossy(), "line": warning.place.line, "message": warning.message,
        })).collect::<Vec<_>>(),
        "inputs": profile.inputs.iter().map(|input| input.to_string_lossy()).collect::<Vec<_>>(),
    })
}

/// What single models have of their own, in the shape of `models`, each with its origins.
fn models_json(provider: &Provider) -> Value {
    let of_model = |(name, settings): (&String, &ModelSettings)| {
        let mut object: Map<String, Value> =
            model_values(settings).into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let set = provider.model_provenance.get(name).map_or_else(|| json!({}), origins);
        object.insert("origins".to_owned(), set);
        (name.clone(), Value::Object(object))
    };
    Value::Object(provider.models.iter().map(of_model).collect())
}

fn origins(provenance: &BTreeMap<&'static str, Origin>) -> Value {
    Value::Object(provenance.iter().map(|(key, set)| ((*key).to_owned(), origin(set))).collect())
}

fn origin(origin: &Origin) -> Value {
    json!({ "layer": origin.layer.to_string(), "file": origin.file.to_string_lossy(), "line": origin.line, "path": origin.path })
}
