//! A provider's retry policy out of several layers: keys are laid over each other, then resolved as one policy.
//!
//! The keys of `retryPolicy` are laid over those of lower layers one by one (`mode`, `maxRetries`, `retryableCodes`: each
//! replaced as a whole), and the keys of `backoff` one by one too (`initialDelayMs`, `maxDelayMs`, `jitterRatio`). A key
//! that is set to null has its default again.

use super::{
    composed::{Layer, Origin},
    source::{Source, join},
};
use crate::llm::{FailureCode, RetryPolicy};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Where an effective key of a policy was set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyOrigin {
    /// `mode`, `maxRetries`, `retryableCodes`, `backoff.initialDelayMs`, `backoff.maxDelayMs` or `backoff.jitterRatio`.
    pub key: &'static str,
    /// None for a default.
    pub origin: Option<Origin>,
}

/// The raw policy, as far as the layers have set it.
#[derive(Clone, Debug, Default)]
pub(super) struct LayeredPolicy {
    keys: Map<String, Value>,
    /// By the path below `retryPolicy`; the empty path is the newest `retryPolicy` itself.
    origins: BTreeMap<String, Origin>,
}

impl LayeredPolicy {
    /// Lays the `retryPolicy` that stands at `path` of `source` over what is there.
    pub fn lay(&mut self, policy: &Map<String, Value>, layer: &Layer, source: &Source, path: &str) {
        self.origins.insert(String::new(), Origin::new(layer, source, path.to_owned()));
        for (key, value) in policy {
            let origin = Origin::new(layer, source, join(path, key));
            if let (true, Value::Object(new)) = (key == "backoff", value) {
                if !matches!(self.keys.get(key), Some(Value::Object(_))) {
                    self.keys.insert(key.clone(), Value::Object(Map::new()));
                }
                if let Some(Value::Object(old)) = self.keys.get_mut(key) {
                    for (key, value) in new {
                        let path = join(&origin.path, key);
                        old.insert(key.clone(), value.clone());
                        self.origins.insert(join("backoff", key), Origin::new(layer, source, path));
                    }
                }
            } else {
                self.origins.retain(|set, _| !set.strip_prefix(key.as_str()).is_some_and(|rest| rest.starts_with('.')));
                self.keys.insert(key.clone(), value.clone());
            }
            self.origins.insert(key.clone(), origin);
        }
    }

    /// The policy as configured; None when no layer says anything.
    pub fn value(&self) -> Option<Value> {
        (!self.origins.is_empty()).then(|| Value::Object(self.keys.clone()))
    }

    /// The origin of a path below `retryPolicy`, or of the nearest path above it that some layer set.
    /// With the path that the origin is for.
    pub fn origin<'p>(&self, below: &'p str) -> Option<(&'p str, &Origin)> {
        let mut path = below;
        loop {
            if let Some(origin) = self.origins.get(path) {
                return Some((path, origin));
            }
            path = match path.rfind(['.', '[']) {
                Some(end) => &path[..end],
                None if path.is_empty() => return None,
                None => "",
            };
        }
    }

    /// Where each effective key of the resolved policy came from, in the order in which documents list them.
    pub fn key_origins(&self, policy: &RetryPolicy) -> Vec<KeyOrigin> {
        let own: &[&'static str] = match policy {
            RetryPolicy::Normal { .. } => &["mode", "maxRetries", "retryableCodes"],
            RetryPolicy::Always { .. } => &["mode"],
        };
        let backoff = ["backoff.initialDelayMs", "backoff.maxDelayMs", "backoff.jitterRatio"];
        own.iter()
            .copied()
            .chain(backoff)
            .map(|key| {
                let pointer = format!("/{}", key.replace('.', "/"));
                let is_set = Value::Object(self.keys.clone()).pointer(&pointer).is_some_and(|value| !value.is_null());
                KeyOrigin { key, origin: is_set.then(|| self.origins.get(key).cloned()).flatten() }
            })
            .collect()
    }

    /// The codes of a normal policy that no adapter emits, each with its index: they are legal, and never match.
    pub fn unknown_codes(policy: &RetryPolicy) -> Vec<(usize, String)> {
        let RetryPolicy::Normal { retryable_codes, .. } = policy else { return Vec::new() };
        let is_known = |code: &str| FailureCode::SELECTABLE.iter().any(|known| known.as_str() == code);
        retryable_codes
            .iter()
            .enumerate()
            .filter(|(_, code)| !is_known(code))
            .map(|(i, code)| (i, code.clone()))
            .collect()
    }
}
