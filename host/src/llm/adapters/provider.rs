//! One provider over HTTP: its address, its credential, its bounds for each model, in one of the protocols.
//!
//! Owns the configuration and what can be prepared before a call. A call itself is in `call`.

use super::{
    call::Call,
    dialect::Dialect,
    http::Limits,
    secret::{Redactor, Secret},
};
use crate::{
    env::Clock,
    llm::{Adapter, Chunk, Request, classify::OwnRows},
};
use futures_util::stream::BoxStream;
use reqwest::{
    Client, Url,
    header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    sync::{Arc, OnceLock},
};
use tokio_util::sync::CancellationToken;

/// Headers that the protocols themselves set.
const RESERVED_HEADERS: [&str; 6] =
    ["host", "content-type", "content-length", "transfer-encoding", "connection", "accept"];

/// How to reach one provider.
#[derive(Clone, Debug, Default)]
pub struct ProviderConfig {
    pub dialect: Dialect,
    /// For instance `https://api.deepseek.com/v1`; the protocol's own path is added to its path.
    pub base_url: String,
    pub api_key: Option<Secret>,
    /// Further headers, in the order in which they are sent. Their values are kept out of failures like the key.
    pub headers: Vec<(String, Secret)>,
    /// What holds for every model that `models` does not name.
    pub bounds: Bounds,
    /// Models with bounds of their own, by the name that a request asks for.
    pub models: BTreeMap<String, Bounds>,
    /// The user's own rows of classification; they go before the table.
    pub own_rows: OwnRows,
    /// Whether a wait is also read from the prose of an error's message, where nothing structured gives one.
    pub text_hints: bool,
}

/// How long a request may take, and how long its answer may be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounds {
    pub limits: Limits,
    /// The most tokens of an answer; without it, a request leaves that to the provider, or has the protocol's default.
    pub max_tokens: Option<NonZeroU32>,
}

/// Why a provider's configuration cannot work. No variant shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("the base URL {url:?} is not one ({reason}); it must read like https://host/v1")]
    BadUrl { url: String, reason: String },
    #[error("the base URL of host {host:?} contains a user name or password; give the credential as the API key")]
    CredentialInUrl { host: String },
    #[error(
        "the API key contains characters that no HTTP header may hold; it must be printable ASCII, without line ends"
    )]
    BadKey,
    #[error(
        "{name:?} cannot be the name of an extra header; it must be an HTTP token that the adapter does not set itself"
    )]
    BadHeaderName { name: String },
    #[error("the value of the extra header {name:?} contains characters that no HTTP header may hold")]
    BadHeaderValue { name: String },
    #[error("the {name} limit is 0; it must be longer, or every call fails")]
    ZeroLimit { name: &'static str },
}

/// The adapter of one provider. Cheap to make: the HTTP client is built by the first call.
pub struct HttpProvider(Arc<Prepared>);

/// What all calls of one provider share.
pub(super) struct Prepared {
    pub(super) dialect: Dialect,
    pub(super) url: Url,
    /// Scheme, host and path, for messages.
    pub(super) endpoint: String,
    pub(super) headers: HeaderMap,
    served: Served,
    models: BTreeMap<String, Served>,
    pub(super) own_rows: OwnRows,
    pub(super) text_hints: bool,
    pub(super) redactor: Redactor,
    pub(super) clock: Arc<dyn Clock>,
}

impl Prepared {
    /// What the requests of a model are made with.
    pub(super) fn served(&self, model: &str) -> &Served {
        self.models.get(model).unwrap_or(&self.served)
    }
}

/// What the requests of a model are made with.
#[derive(Clone, Default)]
pub(super) struct Served {
    pub(super) bounds: Bounds,
    /// Built by the first call. A client has its own limit for connecting, so that models share it where they share
    /// that limit.
    pub(super) client: Arc<OnceLock<Result<Client, String>>>,
}

impl HttpProvider {
    /// Checks the configuration and makes the adapter. `clock` measures hints that name a point in time.
    ///
    /// # Errors
    /// A URL, key, header or limit that cannot work.
    pub fn new(config: ProviderConfig, clock: Arc<dyn Clock>) -> Result<Self, ConfigError> {
        let url = endpoint_url(&config.base_url, config.dialect.path())?;
        for bounds in config.models.values().chain([&config.bounds]) {
            if let Some((name, _)) = bounds.limits.named().find(|(_, limit)| limit.is_zero()) {
                return Err(ConfigError::ZeroLimit { name });
            }
        }
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream"));
        for (name, value) in config.dialect.fixed_headers() {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        if let Some(key) = &config.api_key {
            let (name, value) = config.dialect.key_header(key.expose()).map_err(|_| ConfigError::BadKey)?;
            headers.insert(name, sensitive(value));
        }
        for (name, value) in &config.headers {
            let header =
                HeaderName::from_bytes(name.as_bytes()).ok().filter(|n| !RESERVED_HEADERS.contains(&n.as_str()));
            let header = header.ok_or_else(|| ConfigError::BadHeaderName { name: name.clone() })?;
            let value = HeaderValue::from_str(value.expose());
            let value = value.map_err(|_| ConfigError::BadHeaderValue { name: name.clone() })?;
            headers.insert(header, sensitive(value));
        }
        let secrets = config.api_key.iter().chain(config.headers.iter().map(|(_, value)| value)).map(Secret::expose);
        let served = Served { bounds: config.bounds, ..Served::default() };
        let of_model = |(name, bounds): (String, Bounds)| {
            let client = match bounds.limits.connect == served.bounds.limits.connect {
                true => served.client.clone(),
                false => Arc::default(),
            };
            (name, Served { bounds, client })
        };
        Ok(HttpProvider(Arc::new(Prepared {
            models: config.models.into_iter().map(of_model).collect(),
            served,
            dialect: config.dialect,
            endpoint: format!("{}://{}{}", url.scheme(), authority(&url), url.path()),
            redactor: Redactor::new(secrets),
            url,
            headers,
            own_rows: config.own_rows,
            text_hints: config.text_hints,
            clock,
        })))
    }
}

impl Adapter for HttpProvider {
    fn stream(&self, request: Arc<Request>, cancel: CancellationToken) -> BoxStream<'static, Chunk> {
        Call::stream(self.0.clone(), request, cancel)
    }
}

fn sensitive(mut value: HeaderValue) -> HeaderValue {
    value.set_sensitive(true);
    value
}

fn authority(url: &Url) -> String {
    let host = url.host_str().unwrap_or("");
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

fn endpoint_url(base: &str, path: &str) -> Result<Url, ConfigError> {
    // The text of a URL that holds a password must not be shown, even if the rest of it is wrong.
    let shown = if base.contains('@') { "[hidden]" } else { base };
    let bad = |reason: String| ConfigError::BadUrl { url: shown.to_owned(), reason };
    let mut url = Url::parse(base.trim()).map_err(|error| bad(error.to_string()))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(bad(format!("its scheme is {}", url.scheme())));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(ConfigError::CredentialInUrl { host: authority(&url) });
    }
    let path = format!("{}{path}", url.path().trim_end_matches('/'));
    url.set_path(&path);
    url.set_fragment(None);
    Ok(url)
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod wild;
