//! Where things live on disk: `$RETAKE_HOME`, and how a profile is named.

use super::{builtin, error::ProfileError};
use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

/// The file that makes a directory a profile.
pub const PROFILE_FILE: &str = "profile.yml";
/// The user's patch beside a profile, and the patch that makes a directory a bundle.
pub const PATCH_FILE: &str = "retake.patch.yml";
/// The environment variable that names the home directory.
pub const HOME_VARIABLE: &str = "RETAKE_HOME";

/// The directory that holds profiles, sessions and the cache. Nothing is created here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Home {
    /// An absolute path.
    pub root: PathBuf,
}

impl Home {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Home { root: absolute(&root.into()) }
    }

    /// `--home` if it was given, then `$RETAKE_HOME` (an empty one counts as unset), then `retake` in the platform's
    /// configuration directory.
    ///
    /// # Errors
    /// [`ProfileError::NoHome`] when none of the three exists.
    pub fn find(option: Option<&Path>, environment: impl Fn(&str) -> Option<OsString>) -> Result<Self, ProfileError> {
        if let Some(root) = option {
            return Ok(Home::new(root));
        }
        if let Some(root) = environment(HOME_VARIABLE).filter(|root| !root.is_empty()) {
            return Ok(Home::new(root));
        }
        let platform = directories::BaseDirs::new().ok_or(ProfileError::NoHome)?;
        Ok(Home::new(platform.config_dir().join("retake")))
    }

    pub fn profiles_dir(&self) -> PathBuf {
        self.root.join("profiles")
    }

    /// `name` must have passed [`ProfileRef::parse`], which lets no path through.
    pub fn profile_dir(&self, name: &str) -> PathBuf {
        self.profiles_dir().join(name)
    }

    pub fn sessions_dir(&self) -> PathBuf {
        self.root.join("sessions")
    }

    pub fn cache_dir(&self) -> PathBuf {
        self.root.join("cache")
    }

    /// The names of the profiles that can be used, sorted; the built-in one is always among them.
    pub fn profile_names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.profiles_dir()).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter(|entry| entry.path().join(PROFILE_FILE).is_file())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| is_name(name))
            .chain([builtin::DEMO.to_owned()])
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

/// Which profile is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProfileRef {
    /// `profiles/<name>/profile.yml` in the home. `demo` falls back to the built-in profile.
    Named(String),
    /// A `profile.yml`, or a directory that holds one.
    Path(PathBuf),
    /// The built-in profile, whatever the home holds.
    Demo,
}

impl ProfileRef {
    /// Reads the argument of `--profile`: what contains a path separator, is `.` or `..`, or ends in `.yml` or `.yaml`
    /// is a path, everything else a name.
    ///
    /// # Errors
    /// [`ProfileError::BadName`] for a name that no profile can have.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let is_path = text.contains(std::path::is_separator)
            || matches!(text, "." | "..")
            || [".yml", ".yaml"].iter().any(|end| text.ends_with(end));
        match text {
            _ if is_path => Ok(ProfileRef::Path(PathBuf::from(text))),
            name if is_name(name) => Ok(ProfileRef::Named(name.to_owned())),
            name => Err(ProfileError::BadName { name: name.to_owned() }),
        }
    }
}

/// A profile that was found: its name, and where its files are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Located {
    pub name: String,
    /// None for the built-in text.
    pub file: Option<PathBuf>,
    /// Where the user's own patch may stand.
    pub patch: PathBuf,
    /// Every file that was looked for, found or not.
    pub inputs: Vec<PathBuf>,
}

impl ProfileRef {
    pub(super) fn locate(&self, home: &Home) -> Result<Located, ProfileError> {
        match self {
            ProfileRef::Demo => {
                let patch = home.profile_dir(builtin::DEMO).join(PATCH_FILE);
                Ok(Located { name: builtin::DEMO.to_owned(), file: None, patch, inputs: Vec::new() })
            }
            ProfileRef::Named(name) if !is_name(name) => Err(ProfileError::BadName { name: name.clone() }),
            ProfileRef::Named(name) => {
                let file = home.profile_dir(name).join(PROFILE_FILE);
                if file.exists() {
                    return Ok(Located::of_file(name.clone(), file));
                }
                if name == builtin::DEMO {
                    return Ok(Located { inputs: vec![file], ..ProfileRef::Demo.locate(home)? });
                }
                let existing = home.profile_names();
                Err(ProfileError::UnknownProfile { name: name.clone(), dir: home.profiles_dir(), existing })
            }
            ProfileRef::Path(path) => {
                let path = absolute(path);
                let file = if path.is_dir() { path.join(PROFILE_FILE) } else { path };
                if !file.exists() {
                    return Err(ProfileError::NoSuchFile { file });
                }
                let is_default = file.file_name().is_some_and(|name| name == PROFILE_FILE);
                let named_by = if is_default { file.parent().and_then(Path::file_name) } else { file.file_stem() };
                let name = named_by.map_or_else(|| "profile".to_owned(), |name| name.to_string_lossy().into_owned());
                Ok(Located::of_file(name, file))
            }
        }
    }
}

impl Located {
    fn of_file(name: String, file: PathBuf) -> Self {
        let patch = file.with_file_name(PATCH_FILE);
        Located { name, inputs: vec![file.clone()], file: Some(file), patch }
    }
}

fn is_name(name: &str) -> bool {
    name.len() <= 64
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

/// An absolute form without `.` parts; links are not followed, since a watcher watches the name that the user wrote.
pub(super) fn absolute(path: &Path) -> PathBuf {
    // It fails only for an empty path and where there is no current directory; the path as written is then the best
    // that an error message can show.
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_option_beats_the_variable_and_an_empty_variable_is_unset() {
        let variable = |value: &'static str| move |name: &str| (name == HOME_VARIABLE).then(|| OsString::from(value));
        let root = |home: Result<Home, ProfileError>| home.unwrap().root;
        assert_eq!(root(Home::find(Some(Path::new("/a")), variable("/b"))), Path::new("/a"));
        assert_eq!(root(Home::find(None, variable("/b"))), Path::new("/b"));
        assert!(root(Home::find(None, variable(""))).ends_with("retake"));
    }

    #[test]
    fn the_directories_stand_under_the_home() {
        let home = Home::new("/h");
        assert_eq!(home.profile_dir("work"), Path::new("/h/profiles/work"));
        assert_eq!(home.sessions_dir(), Path::new("/h/sessions"));
        assert_eq!(home.cache_dir(), Path::new("/h/cache"));
    }

    #[test]
    fn a_name_is_told_from_a_path() {
        assert_eq!(ProfileRef::parse("work").unwrap(), ProfileRef::Named("work".into()));
        for path in ["./work", "../x", "/etc/p", "profile.yml", ".", "..", "a/b"] {
            assert_eq!(ProfileRef::parse(path).unwrap(), ProfileRef::Path(path.into()), "{path}");
        }
    }

    #[test]
    fn a_name_cannot_leave_the_profiles_directory() {
        for name in ["", "...", "-x", ".hidden", "a b", "a\0b", &"x".repeat(65)] {
            assert_eq!(ProfileRef::parse(name), Err(ProfileError::BadName { name: name.into() }));
            assert!(ProfileRef::Named(name.into()).locate(&Home::new("/h")).is_err());
        }
        assert!(ProfileRef::Named("../../etc".into()).locate(&Home::new("/h")).is_err());
    }

    #[test]
    fn an_unknown_profile_is_answered_with_those_that_exist() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path());
        for name in ["work", "play"] {
            fs::create_dir_all(home.profile_dir(name)).unwrap();
            fs::write(home.profile_dir(name).join(PROFILE_FILE), "").unwrap();
        }
        fs::create_dir_all(home.profile_dir("empty")).unwrap();
        let error = ProfileRef::Named("wrok".into()).locate(&home).unwrap_err().to_string();
        assert_eq!(
            error,
            format!(
                "There is no profile \"wrok\" in {}; the profiles that exist are demo, play, work.",
                home.profiles_dir().display()
            )
        );
    }

    #[test]
    fn a_path_may_name_the_file_or_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new("/nowhere");
        let file = dir.path().join("work").join(PROFILE_FILE);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        for path in [file.clone(), dir.path().join("work")] {
            let located = ProfileRef::Path(path).locate(&home).unwrap();
            assert_eq!((located.name.as_str(), located.file.as_ref()), ("work", Some(&file)));
            assert_eq!(located.patch, dir.path().join("work").join(PATCH_FILE));
        }
        assert_eq!(
            ProfileRef::Path("/nowhere/x.yml".into()).locate(&home),
            Err(ProfileError::NoSuchFile { file: "/nowhere/x.yml".into() })
        );
    }

    #[test]
    fn the_built_in_demo_gives_way_to_a_profile_of_that_name() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::new(dir.path());
        let file = home.profile_dir("demo").join(PROFILE_FILE);
        let located = ProfileRef::Named("demo".into()).locate(&home).unwrap();
        assert_eq!((located.file, located.inputs), (None, vec![file.clone()]));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "").unwrap();
        assert_eq!(ProfileRef::Named("demo".into()).locate(&home).unwrap().file, Some(file));
        assert_eq!(ProfileRef::Demo.locate(&home).unwrap().file, None);
    }
}
