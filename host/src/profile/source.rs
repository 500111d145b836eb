//! One YAML file: its value as JSON, and the line and column of every key in it.
//!
//! Two readers look at a text. `serde_yaml` gives the value: it bounds nesting, and the budget here bounds what aliases
//! may unfold to, so that no text can hold the program up. Only a text that passed is shown to `saphyr`, which knows
//! where things stand. Called by the readers of profiles and patches; knows nothing of either.

use super::error::{Place, ProfileError};
use saphyr::{LoadableYamlNode as _, MarkedYamlOwned, ScalarOwned, YamlDataOwned};
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::{
    cell::Cell,
    fmt, fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    sync::Arc,
};

/// The largest profile or patch file, in bytes. A real one has a few hundred.
pub const MAX_FILE: u64 = 1024 * 1024;

/// The most values that one file may unfold to, aliases included.
const MAX_VALUES: usize = 100_000;

/// The most that a file's bytes may be, times the number of its `[` and `{`, wherever they stand: about a thousand
/// brackets in the largest file, and no limit for one of 32 KiB.
const MAX_BRACKET_BYTES: u64 = 1 << 30;

/// The most levels of lists or mappings that one line may open, as `- - -` does.
const MAX_LEVELS: usize = 128;

/// A parsed file.
pub struct Source {
    /// An absolute path, or `builtin:…`.
    pub file: PathBuf,
    pub text: Arc<str>,
    /// The whole document; merge keys (`<<`) are resolved. An empty file is `Null`.
    pub value: Value,
    tree: Option<MarkedYamlOwned>,
}

impl Source {
    /// Reads and parses a file. `Ok(None)` when it does not exist.
    ///
    /// # Errors
    /// The file cannot be read, is larger than [`MAX_FILE`], is not UTF-8, or is not valid YAML.
    pub fn read(file: &Path) -> Result<Option<Source>, ProfileError> {
        let unreadable =
            |cause: &dyn fmt::Display| ProfileError::Unreadable { place: Place::file(file), cause: cause.to_string() };
        let opened = match fs::File::open(file) {
            Ok(opened) => opened,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(unreadable(&error)),
        };
        let metadata = opened.metadata().map_err(|error| unreadable(&error))?;
        if metadata.is_dir() {
            return Err(unreadable(&"it is a directory, not a file"));
        }
        let mut bytes = Vec::new();
        // One byte more than allowed is read, so that a file that grows while it is read is noticed too.
        opened.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
        if bytes.len() as u64 > MAX_FILE {
            let bytes = metadata.len().max(bytes.len() as u64);
            return Err(ProfileError::TooLarge { place: Place::file(file), bytes, limit: MAX_FILE });
        }
        let text = String::from_utf8(bytes).map_err(|_| unreadable(&"its text is not UTF-8"))?;
        Source::parse(file, text).map(Some)
    }

    /// Parses a text that stands in `file`.
    ///
    /// # Errors
    /// The text is larger than [`MAX_FILE`], or not valid YAML: bad syntax, more than one document, duplicate keys, a
    /// key that is no text, a tag, a number that JSON cannot hold, nesting beyond 128 levels, far more brackets than a
    /// profile could need, or more than 100,000 values, what aliases unfold to included.
    pub fn parse(file: &Path, text: impl Into<String>) -> Result<Source, ProfileError> {
        let mut text = text.into();
        if text.len() as u64 > MAX_FILE {
            let bytes = text.len() as u64;
            return Err(ProfileError::TooLarge { place: Place::file(file), bytes, limit: MAX_FILE });
        }
        if text.starts_with('\u{feff}') {
            text.remove(0);
        }
        refuse_nesting(&text).map_err(|cause| ProfileError::Syntax { place: Place::file(file), cause })?;
        let budget = Cell::new(MAX_VALUES);
        let value = Node { budget: &budget }
            .deserialize(serde_yaml::Deserializer::from_str(&text))
            .and_then(|value| merged(value).map_err(de::Error::custom))
            .map_err(|error| syntax(file, &error))?;
        let tree = MarkedYamlOwned::load_from_str(&text).ok().and_then(|documents| documents.into_iter().next());
        Ok(Source { file: file.to_path_buf(), text: text.into(), value, tree })
    }

    /// The directory that relative paths in this file start from; none for a built-in text.
    pub fn dir(&self) -> Option<&Path> {
        if self.file.is_absolute() { self.file.parent() } else { None }
    }

    /// The line and column (from 1) of a dotted path such as `providers[0].retryPolicy`: those of the key, or of the
    /// item in a list. None when the file has no such path.
    pub fn locate(&self, path: &str) -> Option<(u32, u32)> {
        let (place, rest) = self.walk(path)?;
        rest.is_empty().then_some(place)
    }

    /// The place of a path, or of the nearest path above it that the file does have.
    pub fn place(&self, path: &str) -> Place {
        match self.walk(path) {
            Some(((line, column), _)) => Place { file: self.file.clone(), line, column },
            None => Place::file(&self.file),
        }
    }

    /// Follows `path` as far as it goes: the place that was reached, and what is left of the path.
    fn walk<'p>(&self, path: &'p str) -> Option<((u32, u32), &'p str)> {
        let mut node = self.tree.as_ref()?;
        let mut place = position(node);
        let mut rest = path;
        while !rest.is_empty() {
            let Some((found, next, remaining)) = step(node, rest) else { break };
            (place, node, rest) = (found, next, remaining);
        }
        Some((place, rest))
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("file", &self.file).finish_non_exhaustive()
    }
}

/// `parent.key`, `parent[3]`, or the key alone at the top.
pub fn join(parent: &str, key: &str) -> String {
    if parent.is_empty() { key.to_owned() } else { format!("{parent}.{key}") }
}

fn position(node: &MarkedYamlOwned) -> (u32, u32) {
    let start = node.span.start;
    (narrow(start.line()).max(1), narrow(start.col()).saturating_add(1))
}

/// A position in a file of at most [`MAX_FILE`] bytes always fits.
fn narrow(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// The child that `path` begins with: its place, the child, and the rest of the path.
fn step<'t, 'p>(node: &'t MarkedYamlOwned, path: &'p str) -> Option<((u32, u32), &'t MarkedYamlOwned, &'p str)> {
    match &node.data {
        YamlDataOwned::Sequence(items) => {
            let (index, rest) = path.strip_prefix('[')?.split_once(']')?;
            let item = items.get(index.parse::<usize>().ok()?)?;
            Some((position(item), item, rest.strip_prefix('.').unwrap_or(rest)))
        }
        YamlDataOwned::Mapping(entries) => {
            let mut best: Option<(usize, _)> = None;
            let mut merges = Vec::new();
            for (key, value) in entries {
                let YamlDataOwned::Value(ScalarOwned::String(name)) = &key.data else { continue };
                if name == "<<" {
                    merges.push(value);
                }
                // A key may contain dots, so the longest key that fits is the one that is meant.
                let Some(rest) = path.strip_prefix(name.as_str()) else { continue };
                let rest = match rest.strip_prefix('.') {
                    Some(rest) => rest,
                    None if rest.is_empty() || rest.starts_with('[') => rest,
                    None => continue,
                };
                if best.as_ref().is_none_or(|(length, _)| *length < name.len()) {
                    best = Some((name.len(), (position(key), value, rest)));
                }
            }
            best.map(|(_, found)| found).or_else(|| merges.into_iter().find_map(|merge| step_merge(merge, path)))
        }
        _ => None,
    }
}

/// A key that came in through `<<` stands where its anchor stands.
fn step_merge<'t, 'p>(merge: &'t MarkedYamlOwned, path: &'p str) -> Option<((u32, u32), &'t MarkedYamlOwned, &'p str)> {
    match &merge.data {
        YamlDataOwned::Sequence(items) => items.iter().find_map(|item| step(item, path)),
        _ => step(merge, path),
    }
}

/// Refuses texts whose nesting the YAML reader would take minutes for: it bounds depth only after it has read the whole
/// text, and its time grows with its length times the levels that are open. Levels cost brackets, or indicators at the
/// start of a line, or indentation; the size of a file bounds the last, and counting bounds the others.
fn refuse_nesting(text: &str) -> Result<(), String> {
    let brackets = text.bytes().filter(|byte| matches!(byte, b'[' | b'{')).count() as u64;
    let length = text.len() as u64;
    if brackets * length > MAX_BRACKET_BYTES {
        let most = MAX_BRACKET_BYTES / length;
        return Err(format!("it has {brackets} opening brackets, and a file of its size may have {most}"));
    }
    let levels = |line: &str| line.split_ascii_whitespace().take_while(|word| matches!(*word, "-" | "?" | ":")).count();
    if text.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).any(|line| levels(line) > MAX_LEVELS) {
        return Err(format!("a line opens more than {MAX_LEVELS} levels"));
    }
    Ok(())
}

fn syntax(file: &Path, error: &serde_yaml::Error) -> ProfileError {
    let place = error.location().map_or_else(
        || Place::file(file),
        |at| Place { file: file.to_path_buf(), line: narrow(at.line()).max(1), column: narrow(at.column()).max(1) },
    );
    let text = error.to_string();
    // The place is printed in front, so the position at the end of the parser's own text would say it twice.
    let cause = text.split_once(" at line ").map_or(text.as_str(), |(cause, _)| cause);
    ProfileError::Syntax { place, cause: cause.trim_end_matches('.').to_owned() }
}

/// Resolves merge keys, innermost first. A key of the mapping itself wins, then the earlier of several merged ones.
fn merged(value: Value) -> Result<Value, &'static str> {
    const SHAPE: &str = "the value of `<<` must be a mapping or a list of mappings";
    Ok(match value {
        Value::Array(items) => Value::Array(items.into_iter().map(merged).collect::<Result<_, _>>()?),
        Value::Object(entries) => {
            let mut own = Map::new();
            let mut merges = Vec::new();
            for (key, value) in entries {
                let value = merged(value)?;
                match (key.as_str(), value) {
                    ("<<", Value::Array(items)) => merges.extend(items),
                    ("<<", value) => merges.push(value),
                    (_, value) => drop(own.insert(key, value)),
                }
            }
            for merge in merges {
                let Value::Object(merge) = merge else { return Err(SHAPE) };
                for (key, value) in merge {
                    own.entry(key).or_insert(value);
                }
            }
            Value::Object(own)
        }
        other => other,
    })
}

/// Builds a JSON value, counting every node: what aliases unfold to is only known while it is built.
#[derive(Clone, Copy)]
struct Node<'a> {
    budget: &'a Cell<usize>,
}

impl Node<'_> {
    fn spend<E: de::Error>(self) -> Result<(), E> {
        match self.budget.get().checked_sub(1) {
            Some(left) => {
                self.budget.set(left);
                Ok(())
            }
            None => Err(E::custom(format_args!("it unfolds to more than {MAX_VALUES} values"))),
        }
    }

    fn scalar<E: de::Error>(self, value: impl Into<Value>) -> Result<Value, E> {
        self.spend()?;
        Ok(value.into())
    }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("plain data")
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Value, E> {
        self.visit_f64(value as f64)
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Value, E> {
        self.visit_f64(value as f64)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Value, E> {
        match serde_json::Number::from_f64(value) {
            Some(number) => self.scalar(Value::Number(number)),
            None => Err(E::custom("infinity and not-a-number are no values here; write a finite number")),
        }
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value, E> {
        self.scalar(value)
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value, E> {
        self.scalar(Value::Null)
    }

    fn visit_none<E: de::Error>(self) -> Result<Value, E> {
        self.visit_unit()
    }

    fn visit_some<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        self.spend()?;
        let mut list = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            list.push(item);
        }
        Ok(Value::Array(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        self.spend()?;
        let mut map = Map::new();
        while let Some(key) = entries.next_key_seed(self)? {
            let key = match key {
                Value::String(key) => key,
                Value::Array(_) | Value::Object(_) => {
                    return Err(de::Error::custom("a list or a mapping cannot be a key; a key is a text"));
                }
                other => {
                    return Err(de::Error::custom(format_args!(
                        "the key {other} is not a text; put it in quotes if it is meant as one"
                    )));
                }
            };
            if map.contains_key(&key) {
                return Err(de::Error::custom(format_args!("the key {key:?} stands twice in the same mapping")));
            }
            let value = entries.next_value_seed(self)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }

    fn visit_enum<A: de::EnumAccess<'de>>(self, _: A) -> Result<Value, A::Error> {
        Err(de::Error::custom("tags (`!name`) have no meaning here; write the plain value"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::{Duration, Instant};

    fn parse(text: &str) -> Source {
        Source::parse(Path::new("/p.yml"), text).unwrap()
    }

    #[track_caller]
    fn refused(text: &str) -> String {
        Source::parse(Path::new("/p.yml"), text).unwrap_err().to_string()
    }

    #[test]
    fn every_key_and_item_is_found_by_its_path() {
        let source = parse("a: 1\nlist:\n  - x: 1\n    y: { z: [10, 11] }\n  - two\n");
        assert_eq!(source.locate("a"), Some((1, 1)));
        assert_eq!(source.locate("list"), Some((2, 1)));
        assert_eq!(source.locate("list[0]"), Some((3, 5)));
        assert_eq!(source.locate("list[0].y"), Some((4, 5)));
        assert_eq!(source.locate("list[0].y.z[1]"), Some((4, 18)));
        assert_eq!(source.locate("list[1]"), Some((5, 5)));
        assert_eq!(source.locate("list[2]"), None);
        assert_eq!(source.locate("list[0].nothing"), None);
        assert_eq!(source.place("list[0].nothing").to_string(), "/p.yml:3:5");
    }

    #[test]
    fn a_list_at_the_top_is_addressed_by_index() {
        let source = parse("- id: a\n- insert:\n    - id: b\n");
        assert_eq!(source.locate("[1].insert[0].id"), Some((3, 7)));
    }

    #[test]
    fn a_key_with_dots_is_found_as_the_longest_that_fits() {
        let source = parse("a:\n  b: 1\na.b:\n  c: 1\n");
        assert_eq!(source.locate("a.b.c"), Some((4, 3)));
        assert_eq!(source.locate("a.b"), Some((3, 1)));
    }

    #[test]
    fn merge_keys_are_resolved_and_point_at_their_anchor() {
        let source =
            parse("base: &base\n  x: 1\n  y: 2\nuse:\n  <<: *base\n  y: 3\nboth: { <<: [*base, { z: 4, x: 9 }] }\n");
        assert_eq!(source.value["use"], json!({"y": 3, "x": 1}));
        assert_eq!(source.value["both"], json!({"x": 1, "y": 2, "z": 4}));
        assert_eq!(source.locate("use.x"), Some((2, 3)));
        assert_eq!(source.locate("use.y"), Some((6, 3)));
        assert!(refused("a: { <<: 3 }").contains("must be a mapping"), "{}", refused("a: { <<: 3 }"));
    }

    #[test]
    fn an_empty_file_is_null_and_a_byte_order_mark_is_nothing() {
        assert_eq!(parse("").value, Value::Null);
        assert_eq!(parse("# only a comment\n").value, Value::Null);
        let source = parse("\u{feff}a: 1\r\nb: 2\r\n");
        assert_eq!((source.value.clone(), source.locate("b")), (json!({"a": 1, "b": 2}), Some((2, 1))));
    }

    #[test]
    fn bad_syntax_is_reported_at_its_line_and_column() {
        assert_eq!(
            refused("a: 1\nb: [1, 2\nc: 3\n"),
            "/p.yml:3:2: this is not valid YAML: did not find expected ',' or ']'."
        );
        assert!(refused("a: 1\n\tb: 2\n").starts_with("/p.yml:2:1: this is not valid YAML: "));
    }

    #[test]
    fn what_is_yaml_but_no_plain_data_is_refused() {
        for (text, part) in [
            ("a: 1\na: 2\n", "the key \"a\" stands twice"),
            ("a: 1\n---\nb: 2\n", "more than one document"),
            ("5: x\n", "the key 5 is not a text"),
            ("[a]: x\n", "a list or a mapping cannot be a key"),
            ("a: .inf\n", "not-a-number"),
            ("a: !secret x\n", "tags"),
            ("a: *nowhere\n", "unknown anchor"),
        ] {
            let error = refused(text);
            assert!(error.starts_with("/p.yml") && error.contains(part), "{text:?}: {error}");
        }
    }

    /// Runs a parse that must be refused, and soon.
    #[track_caller]
    fn refused_soon(text: &str, part: &str) {
        let start = Instant::now();
        let error = refused(text);
        assert!(error.contains(part), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    }

    #[test]
    fn an_alias_bomb_is_refused_before_it_unfolds() {
        let mut bomb = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x]\n");
        for level in 1..30 {
            let below = vec![format!("*a{}", level - 1); 9].join(", ");
            bomb.push_str(&format!("a{level}: &a{level} [{below}]\n"));
        }
        refused_soon(&bomb, "unfolds to more than 100000 values");
    }

    #[test]
    fn deep_nesting_is_refused_at_any_size() {
        let size = MAX_FILE as usize;
        let rest = "b, ".repeat(size / 4);
        refused_soon(&"[".repeat(size), "opening brackets");
        refused_soon(&"{a: ".repeat(size / 4), "opening brackets");
        refused_soon(&("[".repeat(1_000) + &rest), "recursion limit exceeded");
        refused_soon(&("{a: ".repeat(1_000) + &rest), "recursion limit exceeded");
        refused_soon(&"- ".repeat(size / 2), "a line opens more than 128 levels");
        refused_soon(&"? ".repeat(size / 2), "a line opens more than 128 levels");
        let stairs: String = (0..1400).map(|depth| " ".repeat(depth) + "-\n").collect();
        refused_soon(&stairs, "recursion limit exceeded");
    }

    #[test]
    fn a_long_list_is_refused_before_it_fills_the_memory() {
        refused_soon(&"- a\n".repeat(MAX_FILE as usize / 4), "unfolds to more than 100000 values");
    }

    #[test]
    fn a_file_that_is_too_large_is_not_parsed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.yml");
        fs::write(&file, "#".repeat(MAX_FILE as usize + 1)).unwrap();
        assert_eq!(
            Source::read(&file).unwrap_err().to_string(),
            format!("{}: the file has 1048577 bytes; a profile or patch has at most 1048576.", file.display())
        );
        fs::write(&file, "#".repeat(MAX_FILE as usize)).unwrap();
        assert_eq!(Source::read(&file).unwrap().unwrap().value, Value::Null);
    }

    #[test]
    fn an_absent_file_is_none_and_an_unreadable_one_an_error() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Source::read(&dir.path().join("absent.yml")).unwrap().is_none());
        let error = Source::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("it is a directory, not a file"), "{error}");
        let file = dir.path().join("latin1.yml");
        fs::write(&file, b"a: \xe9\n").unwrap();
        let error = Source::read(&file).unwrap_err().to_string();
        assert!(error.contains("its text is not UTF-8"), "{error}");
    }
}
