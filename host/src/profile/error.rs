//! What can be wrong with a profile, and where: places, errors, warnings.
//!
//! Every sentence begins with its place, so that a terminal or an editor can jump there, then names the key, the value
//! that was wrong, and what would be right. A value that may be a secret is never repeated.

use std::{
    fmt,
    path::{Path, PathBuf},
};

/// A position in a source file. Lines and columns count from 1; line 0 means the file as a whole.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// An absolute path, or `builtin:…` for a text that is part of the program.
    pub file: PathBuf,
    pub line: u32,
    /// In characters.
    pub column: u32,
}

impl Place {
    /// The file as a whole.
    pub fn file(file: &Path) -> Self {
        Place { file: file.to_path_buf(), line: 0, column: 0 }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}", self.file.display()),
            line => write!(f, "{}:{}:{}", self.file.display(), line, self.column),
        }
    }
}

/// One reason why a profile could not be composed. `path` is the dotted path of a key in the file of `place`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProfileError {
    #[error(
        "The platform has no configuration directory for this user; set RETAKE_HOME or pass --home with the directory to use."
    )]
    NoHome,
    #[error(
        "{name:?} cannot be the name of a profile: a name is 1 to 64 letters, digits, `-`, `_` and `.`, and begins with a letter or digit. To use a file, give its path, such as ./{FILE}.", FILE = super::home::PROFILE_FILE
    )]
    BadName { name: String },
    #[error("There is no profile {name:?} in {}; {}", dir.display(), known(existing, "the profiles that exist are"))]
    UnknownProfile { name: String, dir: PathBuf, existing: Vec<String> },
    #[error("{}: the profile does not exist; give the path of a profile.yml or of a directory that holds one.", file.display())]
    NoSuchFile { file: PathBuf },
    #[error("{place}: the file cannot be read: {cause}.")]
    Unreadable { place: Place, cause: String },
    #[error("{place}: the file has {bytes} bytes; a profile or patch has at most {limit}.")]
    TooLarge { place: Place, bytes: u64, limit: u64 },
    #[error("{place}: this is not valid YAML: {cause}.")]
    Syntax { place: Place, cause: String },
    #[error("{place}: a patch file is a list of patches, but this is {found}; write `[]` for no changes.")]
    NotAList { place: Place, found: String },
    #[error("{place}: {path}: unknown key {key:?}{}; allowed here: {}.", did_you_mean(nearest), allowed.join(", "))]
    UnknownKey { place: Place, path: String, key: String, nearest: Option<Box<str>>, allowed: Vec<String> },
    #[error("{place}: {path}: expected {expected}, but found {found}.")]
    WrongType { place: Place, path: String, found: String, expected: String },
    #[error("{place}: {path}: {value} is not allowed here; {allowed}.")]
    BadValue { place: Place, path: String, value: String, allowed: String },
    #[error("{place}: {path}: the key {key:?} is missing; it is {expected}.")]
    MissingKey { place: Place, path: String, key: String, expected: String },
    #[error("{place}: {path}: {message}.")]
    Rule { place: Place, path: String, message: String },
    #[error("{place}: {path}: the provider {name:?} is already defined at {first}; give one of the two another name.")]
    DuplicateProvider { place: Place, path: String, name: String, first: Place },
    #[error(
        "{place}: {path}: there is no provider {name:?}{}; {}",
        did_you_mean(nearest),
        known(existing, "the providers of this profile are")
    )]
    NoSuchProvider { place: Place, path: String, name: String, nearest: Option<Box<str>>, existing: Vec<String> },
    #[error(
        "{place}: {path}: {name:?} is not a bundle{}; a bundle is one of {}, or the path of a directory that begins with `./`, `../` or `/`.",
        did_you_mean(nearest), allowed.join(", ")
    )]
    UnknownBundle { place: Place, path: String, name: String, nearest: Option<Box<str>>, allowed: Vec<String> },
    #[error("{place}: {path}: the bundle {name:?} has no patch file: {} does not exist.", wanted.display())]
    MissingBundle { place: Place, path: String, name: String, wanted: PathBuf },
    #[error("{}: the patch file given with --patch does not exist.", file.display())]
    MissingOverlay { file: PathBuf },
    #[error(
        "{place}: {path}: the id {id:?} is already taken by the entry inserted at {first}; give one of the two another id, or patch the first instead of inserting a second."
    )]
    DuplicateId { place: Place, path: String, id: String, first: Place },
    #[error("{place}: {path} {message} (in the retry policy of provider {provider:?}, as composed from all layers).")]
    Policy { place: Place, path: String, provider: String, message: String },
}

/// Everything that was wrong in one attempt to compose a profile, in the order in which it was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", lines(errors))]
pub struct ProfileErrors {
    /// Never empty.
    pub errors: Vec<ProfileError>,
    /// The files that were read or looked for up to then: a change of any of them is worth another attempt.
    pub inputs: Vec<PathBuf>,
}

impl From<ProfileError> for ProfileErrors {
    fn from(error: ProfileError) -> Self {
        ProfileErrors { errors: vec![error], inputs: Vec::new() }
    }
}

/// Something that is legal and yet most likely a mistake. What it concerns was skipped, or is used as it stands; the
/// message says which.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    pub place: Place,
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.message)
    }
}

fn lines(errors: &[ProfileError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

pub(super) fn did_you_mean(nearest: &Option<Box<str>>) -> String {
    nearest.as_ref().map_or_else(String::new, |name| format!(" (did you mean {name:?}?)"))
}

pub(super) fn known(names: &[String], introduction: &str) -> String {
    if names.is_empty() { "there are none yet.".to_owned() } else { format!("{introduction} {}.", names.join(", ")) }
}

/// The known word that a mistyped one most likely stands for, if any is near enough.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<Box<str>> {
    let folded: String = fold(word);
    // A third of the letters may be wrong: more than that is another word.
    let tolerance = (folded.chars().count() / 3).clamp(1, 4);
    known
        .into_iter()
        .map(|candidate| (distance(&folded, &fold(candidate)), candidate))
        .filter(|(distance, _)| *distance <= tolerance)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate.into())
}

/// Case, hyphens and underscores are what people mistype most, so they count for nothing.
fn fold(word: &str) -> String {
    // A word of more than 64 letters is no typo of a key.
    word.chars().take(64).filter(|c| !matches!(c, '-' | '_')).flat_map(char::to_lowercase).collect()
}

/// How many letters must be put in, taken out or replaced to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_key_finds_its_nearest_known_key() {
        let known = ["provider", "adapter", "baseUrl", "apiKeyEnv", "retryPolicy"];
        assert_eq!(nearest("base_url", known).as_deref(), Some("baseUrl"));
        assert_eq!(nearest("retryPolcy", known).as_deref(), Some("retryPolicy"));
        assert_eq!(nearest("apiKey", known), None);
        assert_eq!(nearest("colour", known), None);
    }

    #[test]
    fn a_place_without_a_line_is_the_file_alone() {
        assert_eq!(Place::file(Path::new("/p/profile.yml")).to_string(), "/p/profile.yml");
        assert_eq!(Place { file: "/p/profile.yml".into(), line: 3, column: 7 }.to_string(), "/p/profile.yml:3:7");
    }
}
