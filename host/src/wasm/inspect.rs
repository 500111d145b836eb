//! Everything that can be said about a file that may be a component, for people who build one.
//!
//! Looks without running first, and asks the component who it is only when it fits this host. Called by the command.

use super::{Runtime, error::LoadError, limits::Limits, preflight};
use serde_json::Value;
use std::sync::Arc;

pub use preflight::FileKind;

/// What a file is, what it needs, and what is wrong with it.
#[derive(Clone, Debug, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Inspection {
    pub kind: FileKind,
    /// SHA-256, in hex.
    pub digest: String,
    /// In bytes.
    pub size: usize,
    /// The world that the component fits; absent when it fits none of this host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub world: Option<String>,
    pub imports: Vec<String>,
    pub exports: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_schema: Option<Value>,
    /// Each a whole text; empty when the component can be used.
    pub problems: Vec<String>,
    /// What the component's author can do about the problems.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
}

impl Inspection {
    fn refuse(&mut self, error: &LoadError) {
        match error {
            LoadError::Unfit(mismatches) => self.problems.extend(mismatches.iter().map(ToString::to_string)),
            other => self.problems.push(other.to_string()),
        }
        self.advice = error.advice().map(str::to_owned);
    }
}

impl Runtime {
    /// Looks at a file. It never fails: what is wrong stands in [`Inspection::problems`].
    pub async fn inspect(self: &Arc<Self>, bytes: Arc<[u8]>) -> Inspection {
        let mut inspection = Inspection {
            kind: FileKind::of(&bytes),
            digest: super::digest(&bytes),
            size: bytes.len(),
            world: None,
            imports: Vec::new(),
            exports: Vec::new(),
            name: None,
            version: None,
            summary: None,
            config_schema: None,
            problems: Vec::new(),
            advice: None,
        };
        let looked = bytes.clone();
        let world = tokio::task::spawn_blocking(move || preflight::world(&looked)).await;
        let world = world.unwrap_or_else(|error| Err(LoadError::Internal { detail: error.to_string() }));
        let fits = match world {
            Ok(world) => {
                inspection.imports = world.imports;
                inspection.exports = world.exports;
                if world.mismatches.is_empty() {
                    inspection.world = Some(preflight::world_name());
                    true
                } else {
                    inspection.refuse(&LoadError::Unfit(world.mismatches));
                    false
                }
            }
            Err(error) => {
                inspection.refuse(&error);
                false
            }
        };
        if fits && let Err(error) = self.describe_into(&mut inspection, bytes).await {
            inspection.refuse(&error);
        }
        inspection
    }

    async fn describe_into(self: &Arc<Self>, inspection: &mut Inspection, bytes: Arc<[u8]>) -> Result<(), LoadError> {
        let component = self.load(bytes).await?;
        let manifest = component.describe(&Limits::default()).await?.clone();
        inspection.name = Some(manifest.name);
        inspection.version = Some(manifest.version);
        inspection.summary = Some(manifest.summary);
        inspection.config_schema = Some(manifest.config_schema);
        Ok(())
    }
}
