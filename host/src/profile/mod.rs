//! Profiles, bundles and patches: files in, one composed profile out.
//!
//! Owns the formats of `profile.yml` and `retake.patch.yml`, the layers and their rules, and the account of where each
//! value came from. Never runs a component, speaks to a provider, writes a file or reads the environment. Called by the
//! command (to start, to check, to show) and by whatever watches the files ([`ComposedProfile::inputs`]).
//!
//! The layers, lowest first: `profile.yml`; its bundles in their order (`base` when it names none); the
//! `retake.patch.yml` beside it; the `--patch` files. A patch file is a list of items:
//!
//! - `insert: [rows]` appends rows at the end of the chain;
//! - `id: ID` addresses a row, and every other key replaces the row's key as a whole (null: back to the default);
//!   `name` is an assertion, not a change;
//! - `provider: NAME` addresses a provider: `retryPolicy` is laid over lower layers key by key, `backoff` in it likewise;
//!   every other key is replaced as a whole, and `chaos` and `baseUrl` take each other's place.
//!
//! What does not fit a file's format is an error; an item that addresses nothing is skipped with a warning.

mod builtin;
mod components;
mod compose;
mod composed;
mod document;
mod error;
mod fields;
mod home;
mod host;
mod own_rows;
mod patch;
mod policy;
mod show;
mod source;
#[cfg(test)]
mod tests;
mod watch;

pub use builtin::COMPONENTS as BUILTIN_COMPONENTS;
pub use components::builtin_component;
pub use compose::compose;
pub use composed::{
    AdapterKind, ApiKey, ComponentRef, ComposedProfile, DEFAULT_DRAIN_TIMEOUT_MS, Endpoint, Entry, JournalKind, Layer,
    MissingApiKey, Model, Origin, Provider, ProviderLimits,
};
pub use error::{Place, ProfileError, ProfileErrors, Warning};
pub use home::{HOME_VARIABLE, Home, PATCH_FILE, PROFILE_FILE, ProfileRef};
pub use host::{Change, Environment, Host, HostError, activate, check};
pub use policy::KeyOrigin;
pub use show::{to_json, to_text};
pub use source::{MAX_FILE, Source};
pub use watch::{ProfileSource, Reload, Watch, watch};
