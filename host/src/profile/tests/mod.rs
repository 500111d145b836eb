//! Composition as a whole, from files on disk: layers and patches, the texts of errors, what is shown.

mod classify;
mod errors;
mod layers;
mod robustness;
mod showing;

use super::*;
use std::{fs, path::PathBuf};

/// A home with one profile, `work`, in a temporary directory.
struct World {
    dir: tempfile::TempDir,
}

/// A provider and a model; the rest of a profile comes behind it.
const PROVIDER: &str = "\
model: { provider: acme, model: m1 }
providers:
  - provider: acme
    adapter: openai-chat
    baseUrl: https://acme.example/v1
";

impl World {
    fn new(profile: &str) -> Self {
        let world = World { dir: tempfile::tempdir().unwrap() };
        world.write("profile.yml", profile);
        world
    }

    /// Where a file of the profile stands.
    fn path(&self, file: &str) -> PathBuf {
        self.home().profile_dir("work").join(file)
    }

    fn write(&self, file: &str, text: &str) -> PathBuf {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    fn home(&self) -> Home {
        Home::new(self.dir.path())
    }

    fn compose(&self, overlays: &[PathBuf]) -> Result<ComposedProfile, ProfileErrors> {
        compose(&self.home(), &ProfileRef::Named("work".into()), overlays)
    }

    #[track_caller]
    fn composed(&self) -> ComposedProfile {
        self.compose(&[]).unwrap()
    }

    /// The text of all errors, with paths that begin at the profile's directory.
    #[track_caller]
    fn errors(&self) -> String {
        self.short(&self.compose(&[]).unwrap_err().to_string())
    }

    fn short(&self, text: &str) -> String {
        let text = text.replace(&format!("{}/", self.path("").display().to_string().trim_end_matches('/')), "");
        // A digest changes with every build of a component.
        let is_digest = |word: &str| word.len() == 64 && word.bytes().all(|byte| byte.is_ascii_hexdigit());
        text.split(' ')
            .map(
                |word| {
                    if is_digest(word.trim_end()) { word.replace(word.trim_end(), "(sha256)") } else { word.to_owned() }
                },
            )
            .collect::<Vec<_>>()
            .join(" ")
    }

    /// The texts of all warnings of a profile that composes.
    #[track_caller]
    fn warnings(&self) -> Vec<String> {
        self.composed().warnings.iter().map(|warning| self.short(&warning.to_string())).collect()
    }
}

fn ids(profile: &ComposedProfile) -> Vec<&str> {
    profile.entries.iter().map(|entry| entry.id.as_str()).collect()
}

/// The origin of a key of an entry, as `layer file:line`.
fn origin(world: &World, origin: Option<&Origin>) -> String {
    origin.map_or_else(|| "default".to_owned(), |origin| world.short(&origin.to_string()))
}
