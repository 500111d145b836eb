//! Reads one patch file into a list of edits. What an edit does to the rows is the composition's concern.
//!
//! A file is a list. An item with `insert` adds rows; one with `id` addresses a row and replaces keys as wholes; one
//! with `provider` addresses a provider and replaces its keys as wholes too, except for two: `retryPolicy` is laid over
//! what is there key by key (see `policy`), and `models` model by model and, within a model, key by key.
//!
//! A file is strict about its own shape (unknown keys, types: errors) and lenient about what it refers to (an id that a
//! lower layer no longer has: a warning), since layers change independently.

use super::{
    builtin,
    composed::ComponentRef,
    document::{PROVIDER_KEYS, ProviderKeys, provider_keys},
    error::{ProfileError, Warning, nearest},
    fields::{Fields, Reader, describe},
    home::absolute,
};
use serde_json::Value;

/// One edit, with the path of its item in the file.
pub struct Patch<'s> {
    pub path: String,
    pub edit: Edit<'s>,
}

pub enum Edit<'s> {
    Insert(Vec<NewRow>),
    /// `name` is an assertion: the edit is skipped where the row has another one.
    Row {
        id: &'s str,
        name: Option<&'s str>,
        keys: RowKeys,
    },
    Provider {
        name: &'s str,
        keys: ProviderKeys<'s>,
    },
}

/// An inserted row.
pub struct NewRow {
    pub path: String,
    pub id: String,
    pub name: Option<String>,
    pub component: ComponentRef,
    pub keys: RowKeys,
}

/// The keys that a layer sets on a row; an inner None sets the key back to its default.
#[derive(Default)]
pub struct RowKeys {
    pub component: Option<ComponentRef>,
    pub config: Option<Option<Value>>,
    pub limits: Option<Option<Value>>,
    pub disabled: Option<bool>,
}

const ROW_KEYS: [&str; 6] = ["id", "name", "component", "config", "limits", "disabled"];
/// All keys that an item of a patch file may have; which of them go together depends on what it addresses.
const ITEM_KEYS: [&str; 8] = ["id", "name", "component", "config", "limits", "disabled", "insert", "provider"];

/// Reads the whole file; errors go into `reader.errors`, what was skipped into `warnings`.
pub fn read<'s>(reader: &mut Reader<'s>, warnings: &mut Vec<Warning>) -> Vec<Patch<'s>> {
    let source = reader.source;
    let Value::Array(items) = &source.value else {
        let found = match &source.value {
            Value::Null => "empty".to_owned(),
            other => describe(other),
        };
        reader.errors.push(ProfileError::NotAList { place: reader.place(""), found });
        return Vec::new();
    };
    let mut patches = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let path = format!("[{index}]");
        if let Some(edit) = edit(item, &path, reader, warnings) {
            patches.push(Patch { path, edit });
        }
    }
    patches
}

fn edit<'s>(item: &'s Value, path: &str, reader: &mut Reader<'s>, warnings: &mut Vec<Warning>) -> Option<Edit<'s>> {
    let has = |key: &str| item.get(key).is_some();
    let mut skip = |reader: &Reader<'_>, message: String| {
        warnings.push(Warning { place: reader.place(path), message });
    };
    if has("provider") {
        let fields = reader.mapping(item, path, "a patch", &PROVIDER_KEYS)?;
        let name = fields.word("provider", "the name of a provider", reader);
        let keys = provider_keys(&fields, reader);
        return Some(Edit::Provider { name: name?, keys });
    }
    let fields = reader.mapping(item, path, "a patch, a mapping with id, provider or insert", &ITEM_KEYS)?;
    if has("insert") {
        let rows = rows(&fields, reader);
        if let Some(id) = fields.get("id") {
            let id = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
            let message = format!(
                "skipped: an insert with the id {id:?} would insert into a group, and there are no groups here; remove the id to append to the chain"
            );
            skip(reader, message);
            return None;
        }
        let ignored: Vec<&str> = ROW_KEYS.into_iter().filter(|key| fields.has(key)).collect();
        if !ignored.is_empty() {
            let message = format!(
                "ignored beside insert: {}; such keys belong into the inserted rows, or into an item of their own with an id",
                ignored.join(", ")
            );
            skip(reader, message);
        }
        return rows.map(Edit::Insert);
    }
    if !has("id") {
        let message = "skipped: the item has no id, no provider and no insert, so it addresses nothing";
        skip(reader, message.to_owned());
        return None;
    }
    let id = fields.word("id", "the id of a row", reader);
    let name = fields.word("name", "the name that the row must have", reader);
    let keys = row_keys(&fields, reader);
    Some(Edit::Row { id: id?, name, keys })
}

fn rows<'s>(fields: &Fields<'s>, reader: &mut Reader<'s>) -> Option<Vec<NewRow>> {
    let path = fields.at("insert");
    let value = fields.get("insert")?;
    let Value::Array(items) = value else {
        reader.wrong_type(&path, value, "a list of rows");
        return None;
    };
    let row = |(index, item): (usize, &'s Value)| row(item, format!("{path}[{index}]"), reader);
    Some(items.iter().enumerate().filter_map(row).collect())
}

fn row<'s>(item: &'s Value, path: String, reader: &mut Reader<'s>) -> Option<NewRow> {
    let fields = reader.mapping(item, &path, "a row, a mapping with id and component", &ROW_KEYS)?;
    let id = fields.required_word("id", "the name by which patches address the row", reader);
    let id = id.filter(|id| {
        let is_id = id.chars().count() <= 128 && !id.chars().any(|c| c.is_whitespace() || c.is_control());
        if !is_id {
            let allowed = "an id has at most 128 characters and no white space";
            reader.bad_value(&fields.at("id"), describe(&Value::from(*id)), allowed);
        }
        is_id
    });
    fields.required("component", "the path of a component, or `builtin:NAME`", reader);
    let name = fields.word("name", "a name that patches can assert", reader).map(str::to_owned);
    let mut keys = row_keys(&fields, reader);
    let component = keys.component.take();
    Some(NewRow { id: id?.to_owned(), name, component: component?, keys, path })
}

fn row_keys<'s>(fields: &Fields<'s>, reader: &mut Reader<'s>) -> RowKeys {
    let component = fields
        .word("component", "the path of a component, or `builtin:NAME`", reader)
        .and_then(|text| component(text, &fields.at("component"), reader));
    RowKeys {
        component,
        config: object("config", fields, reader),
        limits: object("limits", fields, reader),
        disabled: fields.flag("disabled", reader),
    }
}

/// A mapping, or null for the default.
fn object(key: &str, fields: &Fields<'_>, reader: &mut Reader<'_>) -> Option<Option<Value>> {
    match fields.get(key)? {
        Value::Null => Some(None),
        value @ Value::Object(_) => Some(Some(value.clone())),
        other => {
            reader.wrong_type(&fields.at(key), other, "a mapping");
            None
        }
    }
}

fn component(text: &str, path: &str, reader: &mut Reader<'_>) -> Option<ComponentRef> {
    if let Some(name) = text.strip_prefix("builtin:") {
        if builtin::COMPONENTS.contains(&name) {
            return Some(ComponentRef::Builtin(name.to_owned()));
        }
        let all = builtin::COMPONENTS.map(|name| format!("builtin:{name}"));
        let mut allowed = format!("the built-in components are {}", all.join(", "));
        if let Some(nearest) = nearest(name, builtin::COMPONENTS) {
            allowed.push_str(&format!(" (did you mean \"builtin:{nearest}\"?)"));
        }
        reader.bad_value(path, describe(&Value::from(text)), allowed);
        return None;
    }
    if text.contains("://") || text.contains('\0') {
        let allowed = "a component is a file or `builtin:NAME`; fetch it first and give the path of the file";
        reader.bad_value(path, describe(&Value::from(text)), allowed);
        return None;
    }
    match reader.source.dir() {
        Some(dir) => Some(ComponentRef::File(absolute(&dir.join(text)))),
        None => {
            reader.bad_value(path, describe(&Value::from(text)), "a built-in patch has no directory to start from");
            None
        }
    }
}
