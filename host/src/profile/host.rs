//! A running host: a composed profile turned into routes, chaos providers and a chain of activations, and the
//! application of a changed profile as one swap.
//!
//! Everything is prepared before anything is published: a profile that fails at any stage changes nothing. It never
//! reads a profile's files itself, except for the components that the profile names.

use super::{
    components,
    composed::{
        ComponentRef, ComposedProfile, Endpoint, Entry, MissingApiKey, ModelSettings, Provider, ProviderLimits,
    },
    error::Place,
};
use crate::{
    agent::Agent,
    chaos::{ChaosError, ChaosOptions, ChaosServer, Script, ScriptError, ScriptScope},
    env::Env,
    llm::{
        Adapter,
        adapters::{Bounds, ConfigError, HttpProvider, Limits, ProviderConfig, Secret},
        route::Registry,
    },
    wasm::{EntrySpec, LoadError, Runtime},
    waterfall::{Activation, Identity, Retirement, Waterfall},
};
use serde_json::Value;
use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

/// Why a profile could not be put into service.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    #[error(transparent)]
    MissingApiKey(#[from] MissingApiKey),
    #[error("{place}: the chaos script of the provider \"{provider}\" cannot be played: {source}.")]
    Script { place: String, provider: String, source: Box<ScriptError> },
    #[error("The chaos provider \"{provider}\" could not be started: {source}.")]
    Chaos { provider: String, source: ChaosError },
    #[error("The provider \"{provider}\" cannot be used: {source}.")]
    Provider { provider: String, source: ConfigError },
    #[error("{place}: the entry \"{id}\" names the built-in component \"{name}\", which does not exist; built in are {}.", known.join(", "))]
    UnknownBuiltin { place: String, id: String, name: String, known: Vec<&'static str> },
    #[error("{place}: the component of the entry \"{id}\" could not be read from {}: {source}. Build it, or correct the path.", path.display())]
    ComponentFile { place: String, id: String, path: PathBuf, source: std::io::Error },
    #[error("{place}: the entry \"{id}\" cannot run {component}. {source}{}", advice(source))]
    Component { place: String, id: String, component: String, source: LoadError },
}

fn advice(error: &LoadError) -> String {
    error.advice().map_or_else(String::new, |advice| format!("\n  For its author: {advice}"))
}

/// Reads a variable of the environment.
pub type Environment = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// One profile in service.
pub struct Host {
    pub agent: Agent,
    runtime: Arc<Runtime>,
    environment: Environment,
    applied: tokio::sync::Mutex<Applied>,
}

/// What is in service now.
struct Applied {
    profile: Arc<ComposedProfile>,
    providers: BTreeMap<String, InService>,
}

/// A provider in service, with what it was made from.
#[derive(Clone)]
struct InService {
    provider: Provider,
    key: Option<Secret>,
    adapter: Arc<dyn Adapter>,
    chaos: Option<Arc<ChaosServer>>,
}

/// What an application of a profile did.
#[derive(Debug)]
pub struct Change {
    /// The generation in service now.
    pub generation: u64,
    /// A new chain was published.
    pub swapped: bool,
    /// Some route changed.
    pub routes_changed: bool,
    /// How the retired activations ended; runs on by itself when it is not awaited.
    pub drained: Option<tokio::task::JoinHandle<crate::waterfall::DrainReport>>,
}

impl Host {
    /// Puts a profile into service: generation 1.
    ///
    /// # Errors
    /// The first thing that cannot be used, with its place in the profile.
    pub async fn start(
        profile: ComposedProfile,
        runtime: Arc<Runtime>,
        environment: Environment,
        env: Env,
    ) -> Result<Host, HostError> {
        let providers = prepare_providers(&profile, &BTreeMap::new(), &environment, &env).await?;
        let chain = prepare_chain(&profile, &[], &runtime).await?;
        let routes = Arc::new(Registry::new());
        publish_routes(&routes, &providers);
        let drain_timeout = Duration::from_millis(profile.drain_timeout_ms);
        let waterfall = Arc::new(Waterfall::new(chain));
        waterfall.set_drain_timeout(drain_timeout);
        Ok(Host {
            agent: Agent::new(routes, waterfall, env),
            runtime,
            environment,
            applied: tokio::sync::Mutex::new(Applied { profile: Arc::new(profile), providers }),
        })
    }

    /// Replaces the profile in service, as one swap. Unchanged entries keep their activation, and unchanged providers
    /// their connections; when nothing changed, nothing happens.
    ///
    /// # Errors
    /// As [`Host::start`]; what was in service goes on.
    pub async fn apply(&self, profile: ComposedProfile) -> Result<Change, HostError> {
        let mut applied = self.applied.lock().await;
        let providers = prepare_providers(&profile, &applied.providers, &self.environment, &self.agent.env).await?;
        let current = self.agent.waterfall.current();
        let chain = prepare_chain(&profile, &current.activations, &self.runtime).await?;
        let routes_changed = !serve_alike(&providers, &applied.providers);
        if routes_changed {
            publish_routes(&self.agent.routes, &providers);
        }
        let swapped = chain.len() != current.activations.len()
            || chain.iter().zip(&current.activations).any(|(new, old)| !Arc::ptr_eq(new, old));
        self.agent.waterfall.set_drain_timeout(Duration::from_millis(profile.drain_timeout_ms));
        let mut change = Change { generation: current.generation, swapped, routes_changed, drained: None };
        if swapped {
            let retirement: Retirement = self.agent.waterfall.publish(chain);
            change.generation = retirement.generation;
            change.drained = Some(tokio::spawn(retirement.drain()));
        }
        *applied = Applied { profile: Arc::new(profile), providers };
        Ok(change)
    }

    /// The profile in service.
    pub async fn profile(&self) -> Arc<ComposedProfile> {
        self.applied.lock().await.profile.clone()
    }

    /// The chaos provider behind a route, if it is one.
    pub async fn chaos(&self, provider: &str) -> Option<Arc<ChaosServer>> {
        self.applied.lock().await.providers.get(provider)?.chaos.clone()
    }

    /// Ends every executor: waits in flight are ended, what does not end is ended by force.
    pub async fn close(&self) {
        self.agent.waterfall.close().drain().await;
    }
}

/// Whether both sets serve the same way, whatever was written to configure them.
fn serve_alike(one: &BTreeMap<String, InService>, other: &BTreeMap<String, InService>) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).all(|((name, one), (other_name, other))| {
            name == other_name
                && one.provider.policy == other.provider.policy
                && Arc::ptr_eq(&one.adapter, &other.adapter)
        })
}

fn publish_routes(routes: &Registry, providers: &BTreeMap<String, InService>) {
    routes.replace_all(
        providers
            .iter()
            .map(|(name, service)| (name.clone(), service.adapter.clone(), service.provider.policy.clone())),
    );
}

async fn prepare_providers(
    profile: &ComposedProfile,
    in_service: &BTreeMap<String, InService>,
    environment: &Environment,
    env: &Env,
) -> Result<BTreeMap<String, InService>, HostError> {
    let mut providers = BTreeMap::new();
    for provider in &profile.providers {
        let key = provider.api_key(|name| environment(name))?.map(|key| Secret::new(key.expose()));
        let kept = in_service.get(&provider.name).filter(|old| {
            old.provider.endpoint == provider.endpoint
                && old.provider.limits == provider.limits
                && old.provider.max_tokens == provider.max_tokens
                && old.provider.models == provider.models
                && old.provider.text_hints == provider.text_hints
                && old.provider.classify == provider.classify
                && old.provider.adapter == provider.adapter
                && old.key.as_ref().map(Secret::expose) == key.as_ref().map(Secret::expose)
        });
        let service = match kept {
            Some(old) => InService { provider: provider.clone(), ..old.clone() },
            None => start_provider(provider, key, env).await?,
        };
        providers.insert(provider.name.clone(), service);
    }
    Ok(providers)
}

fn parse_script(provider: &Provider, script: &str) -> Result<Script, HostError> {
    Script::parse(script).map_err(|source| {
        let place = provider.provenance.get("chaos").map_or_else(String::new, |origin| origin.place().to_string());
        HostError::Script { place, provider: provider.name.clone(), source: Box::new(source) }
    })
}

async fn start_provider(provider: &Provider, key: Option<Secret>, env: &Env) -> Result<InService, HostError> {
    let name = || provider.name.clone();
    let (base_url, chaos) = match &provider.endpoint {
        Endpoint::BaseUrl(url) => (url.clone(), None),
        Endpoint::Chaos(script) => {
            let script = parse_script(provider, script)?;
            // Each prompt meets the whole script, however many sessions run.
            let options = ChaosOptions { scope: ScriptScope::PerBody, ..ChaosOptions::default() };
            let server = ChaosServer::start(script, options)
                .await
                .map_err(|source| HostError::Chaos { provider: name(), source })?;
            (server.base_url(), Some(Arc::new(server)))
        }
    };
    let config = ProviderConfig {
        dialect: provider.adapter.dialect(),
        base_url,
        api_key: key.clone(),
        headers: Vec::new(),
        bounds: bounds(provider, &ModelSettings::default()),
        models: provider.models.iter().map(|(name, own)| (name.clone(), bounds(provider, own))).collect(),
        own_rows: provider.classify.clone(),
        text_hints: provider.text_hints,
    };
    let adapter = HttpProvider::new(config, env.clock.clone())
        .map_err(|source| HostError::Provider { provider: name(), source })?;
    Ok(InService { provider: provider.clone(), key, adapter: Arc::new(adapter), chaos })
}

/// What holds for a model with these settings of its own.
fn bounds(provider: &Provider, own: &ModelSettings) -> Bounds {
    Bounds {
        limits: limits(own.limits.unwrap_or_default().over(provider.limits)),
        max_tokens: own.max_tokens.or(provider.max_tokens),
    }
}

/// What is configured, and the defaults for the rest.
fn limits(configured: ProviderLimits) -> Limits {
    let defaults = Limits::default();
    let millis = |configured: Option<u64>, default| configured.map_or(default, Duration::from_millis);
    Limits {
        connect: millis(configured.connect_ms, defaults.connect),
        first_byte: millis(configured.first_byte_ms, defaults.first_byte),
        first_content: millis(configured.first_content_ms, defaults.first_content),
        content: millis(configured.content_ms, defaults.content),
        idle: millis(configured.idle_ms, defaults.idle),
        total: configured.total_ms.map(Duration::from_millis).filter(|total| !total.is_zero()).or(defaults.total),
    }
}

/// Prepares everything that a profile names without putting it into service: chaos scripts are read, components are
/// loaded and pass their canary. API keys are not asked for.
///
/// # Errors
/// The first thing that cannot be used, with its place in the profile.
pub async fn check(profile: &ComposedProfile, runtime: &Arc<Runtime>) -> Result<(), HostError> {
    for provider in &profile.providers {
        if let Endpoint::Chaos(script) = &provider.endpoint {
            parse_script(provider, script)?;
        }
    }
    prepare_chain(profile, &[], runtime).await.map(|_| ())
}

/// The activations of a profile's enabled entries, in their order. Those that are in service already, with the same
/// bytes, config and limits, are kept.
async fn prepare_chain(
    profile: &ComposedProfile,
    current: &[Arc<Activation>],
    runtime: &Arc<Runtime>,
) -> Result<Vec<Arc<Activation>>, HostError> {
    let prepared = profile.enabled().map(|entry| prepare_entry(profile, entry, current, runtime));
    futures_util::future::try_join_all(prepared).await
}

async fn prepare_entry(
    profile: &ComposedProfile,
    entry: &Entry,
    current: &[Arc<Activation>],
    runtime: &Arc<Runtime>,
) -> Result<Arc<Activation>, HostError> {
    let place = |key: &str| {
        entry
            .provenance
            .get(key)
            .map_or_else(|| profile.file.display().to_string(), |origin| origin.place().to_string())
    };
    let bytes = component_bytes(entry, &place).await?;
    let digest = crate::wasm::digest(&bytes);
    let behaviour = behaviour(&entry.config, entry.limits.as_ref().unwrap_or(&Value::Null));
    let kept = current.iter().find(|activation| {
        let identity = &activation.identity;
        identity.id == entry.id && identity.digest == digest && identity.config == behaviour
    });
    if let Some(kept) = kept {
        return Ok(kept.clone());
    }
    let failed = |source: LoadError| {
        let at = match &source {
            LoadError::Config(problems) => {
                config_place(profile, entry, problems.first().map_or("", |p| p.path.as_str()))
            }
            _ => None,
        };
        let at = at.map_or_else(|| place("component"), |at: Place| at.to_string());
        HostError::Component { place: at, id: entry.id.clone(), component: entry.component.to_string(), source }
    };
    let limits = entry.limits.clone().unwrap_or(Value::Null);
    activate(runtime, &entry.id, bytes, entry.config.clone(), limits).await.map_err(failed)
}

/// Loads a component and prepares it for one entry: compile or cache, preflight, canary.
///
/// # Errors
/// Why these bytes cannot be used with this config and these limits.
pub async fn activate(
    runtime: &Arc<Runtime>,
    id: &str,
    bytes: Arc<[u8]>,
    config: Value,
    limits: Value,
) -> Result<Arc<Activation>, LoadError> {
    let behaviour = behaviour(&config, &limits);
    let component = runtime.load(bytes).await?;
    let executor = component.prepare(EntrySpec { id: id.to_owned(), config, limits }).await?;
    let manifest = executor.manifest();
    let identity = Identity {
        id: id.to_owned(),
        name: manifest.name.clone(),
        version: manifest.version.clone(),
        digest: component.digest().to_owned(),
        config: behaviour,
    };
    Ok(Activation::new(identity, Arc::new(executor)))
}

async fn component_bytes(entry: &Entry, place: &impl Fn(&str) -> String) -> Result<Arc<[u8]>, HostError> {
    match &entry.component {
        ComponentRef::Builtin(name) => {
            components::builtin_component(name).map(Arc::from).ok_or_else(|| HostError::UnknownBuiltin {
                place: place("component"),
                id: entry.id.clone(),
                name: name.clone(),
                known: super::BUILTIN_COMPONENTS.to_vec(),
            })
        }
        ComponentRef::File(path) => tokio::fs::read(path).await.map(Arc::from).map_err(|source| {
            HostError::ComponentFile { place: place("component"), id: entry.id.clone(), path: path.clone(), source }
        }),
    }
}

/// Where in the profile's files a path of an entry's config stands.
fn config_place(profile: &ComposedProfile, entry: &Entry, path: &str) -> Option<Place> {
    entry.provenance.get("config").map(|origin| profile.place(origin, path))
}

/// Everything besides the bytes that an executor's behaviour depends on, as JSON text that is equal for equal values,
/// whatever the order of their keys.
fn behaviour(config: &Value, limits: &Value) -> String {
    let mut value = serde_json::json!({ "config": config, "limits": limits });
    value.sort_all_objects();
    value.to_string()
}
