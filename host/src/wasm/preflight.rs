//! The look at a component before it is compiled: is it one, and does it fit this host?
//!
//! wasmtime names only the first import that it cannot satisfy, and only after it compiled everything. Here the whole
//! world of the component is compared with this host's, and every difference is reported with what the component needs,
//! what this host offers, and what to do. Pure functions over bytes. Called by `compile` and `inspect`.

use super::{error::LoadError, shape::Shape};
use std::{fmt, sync::OnceLock};
use wit_parser::{
    Function, InterfaceId, PackageName, Resolve, WorldId, WorldItem, WorldKey,
    decoding::{DecodedWasm, decode},
};

/// The interface package that this host carries.
const WIT: &str = include_str!("../../../wit/executor.wit");

/// The packages of WASI 0.2 that have an inert implementation. Sockets are among them, since language runtimes import
/// them whether they are used or not: every use is refused. `wasi:http` is not.
const INERT_WASI: [&str; 6] = ["cli", "clocks", "filesystem", "io", "random", "sockets"];

/// One difference between a component's world and this host's.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Mismatch {
    /// The interface or function, for instance `import retake:executor/timer@0.1.0, function sleep`.
    pub item: String,
    pub needs: String,
    pub offers: String,
    /// What the component's author can do.
    pub advice: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mismatch { item, needs, offers, advice } = self;
        write!(f, "{item}: the component needs {needs}; this host offers {offers}. {advice}")
    }
}

/// What a component imports and exports, and whether that fits.
pub(super) struct World {
    pub imports: Vec<String>,
    pub exports: Vec<String>,
    pub mismatches: Vec<Mismatch>,
}

/// What kind of file this is, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileKind {
    Component,
    CoreModule,
    Text,
    Empty,
    Unknown,
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileKind::Component => "component",
            FileKind::CoreModule => "core module",
            FileKind::Text => "text",
            FileKind::Empty => "empty file",
            FileKind::Unknown => "unknown",
        })
    }
}

impl FileKind {
    pub fn of(bytes: &[u8]) -> FileKind {
        if bytes.is_empty() {
            FileKind::Empty
        } else if wasmparser::Parser::is_component(bytes) {
            FileKind::Component
        } else if wasmparser::Parser::is_core_wasm(bytes) {
            FileKind::CoreModule
        } else if beginning(bytes).is_some() {
            FileKind::Text
        } else {
            FileKind::Unknown
        }
    }
}

/// Checks that `bytes` are a component whose world fits this host.
pub(super) fn check(bytes: &[u8]) -> Result<World, LoadError> {
    let world = world(bytes)?;
    if world.mismatches.is_empty() { Ok(world) } else { Err(LoadError::Unfit(world.mismatches)) }
}

/// Reads the world of a component, whether it fits or not.
pub(super) fn world(bytes: &[u8]) -> Result<World, LoadError> {
    match FileKind::of(bytes) {
        FileKind::Component => {}
        FileKind::CoreModule => return Err(LoadError::CoreModule),
        FileKind::Empty => return Err(LoadError::Empty),
        FileKind::Text => return Err(LoadError::Text { beginning: beginning(bytes).unwrap_or_default() }),
        FileKind::Unknown if bytes.len() < 8 && bytes.starts_with(b"\0asm") => {
            return Err(LoadError::Truncated { bytes: bytes.len(), detail: "the header has 8 bytes".into() });
        }
        FileKind::Unknown => {
            let beginning: Vec<_> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            return Err(LoadError::NotWasm { beginning: beginning.join(" ") });
        }
    }
    validate(bytes)?;
    match decode(bytes) {
        Ok(DecodedWasm::Component(resolve, world)) => Ok(compare(&resolve, world)),
        Ok(DecodedWasm::WitPackage(..)) => Err(LoadError::WitPackage),
        Err(error) => Err(LoadError::Malformed { detail: chain(&error) }),
    }
}

/// The whole file is read once by the validator, whose errors know an offset and whether bytes are missing.
fn validate(bytes: &[u8]) -> Result<(), LoadError> {
    let error = match wasmparser::Validator::new_with_features(wasmparser::WasmFeatures::all()).validate_all(bytes) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    let detail = format!("{} at byte {}", error.message().trim_end_matches('.'), error.offset());
    let cut_off = error.message().contains("unexpected end") || error.message().contains("out of bounds section");
    Err(if cut_off { LoadError::Truncated { bytes: bytes.len(), detail } } else { LoadError::Malformed { detail } })
}

fn compare(resolve: &Resolve, world: WorldId) -> World {
    let (host, host_world) = host();
    let theirs = &resolve.worlds[world];
    let ours = &host.worlds[*host_world];
    let offered = interfaces(host, ours.imports.values());
    let mut mismatches = Vec::new();

    for (key, item) in &theirs.imports {
        match item {
            WorldItem::Interface { id, .. } => {
                let Some(name) = Name::of(resolve, *id) else {
                    mismatches.push(foreign(format!("import {}", label(resolve, key)), "an interface of its own"));
                    continue;
                };
                if name.package.namespace == "wasi" {
                    mismatches.extend(wasi(&name));
                } else {
                    mismatches.extend(import_mismatches(resolve, *id, &name, &offered));
                }
            }
            WorldItem::Function(function) => {
                let needs = Shape::of_function(resolve, function).short();
                mismatches.push(foreign(format!("import function {}", function.name), &needs));
            }
            WorldItem::Type { .. } => {}
        }
    }

    // The direction of an export: this host needs it and the component offers it.
    let exported = interfaces(resolve, theirs.exports.values());
    for (id, name) in interfaces(host, ours.exports.values()) {
        match exported.iter().find(|(_, theirs)| theirs.fits(&name)) {
            Some((theirs, _)) => {
                for (wanted, function) in &host.interfaces[id].functions {
                    let got = resolve.interfaces[*theirs].functions.get(wanted);
                    mismatches.extend(function_mismatch("export", &name, wanted, (resolve, got), (host, function)));
                }
            }
            None => mismatches.push(Mismatch {
                item: format!("export {name}"),
                needs: match exported.iter().map(|(_, name)| format!("`{name}`")).collect::<Vec<_>>() {
                    none if none.is_empty() => "nothing of the kind: it exports no interface".into(),
                    names => format!("another world: it exports {}", names.join(", ")),
                },
                offers: format!("a place for `{name}`"),
                advice: "Export this interface: it is what the host calls.".into(),
            }),
        }
    }

    World {
        imports: theirs.imports.keys().map(|key| label(resolve, key)).collect(),
        exports: theirs.exports.keys().map(|key| label(resolve, key)).collect(),
        mismatches,
    }
}

/// Compares an imported interface with the one that this host offers under its name.
fn import_mismatches(
    resolve: &Resolve,
    id: InterfaceId,
    name: &Name,
    offered: &[(InterfaceId, Name)],
) -> Vec<Mismatch> {
    let (host, _) = host();
    let item = format!("import {name}");
    if let Some((ours, _)) = offered.iter().find(|(_, ours)| ours.fits(name)) {
        let functions = resolve.interfaces[id].functions.iter();
        return functions
            .filter_map(|(wanted, function)| match host.interfaces[*ours].functions.get(wanted) {
                Some(got) => function_mismatch("import", name, wanted, (resolve, Some(function)), (host, got)),
                None => Some(Mismatch {
                    item: format!("{item}, function {wanted}"),
                    needs: Shape::of_function(resolve, function).short(),
                    offers: "no such function".into(),
                    advice: "The component may be newer than this host: use a newer host, or do without it.".into(),
                }),
            })
            .collect();
    }
    match offered.iter().find(|(_, ours)| ours.same_but_version(name)) {
        Some((_, ours)) => vec![Mismatch {
            item,
            needs: format!("version {}", name.version()),
            offers: format!("version {}", ours.version()),
            advice: format!("Build the component against `retake:executor@{}`.", ours.version()),
        }],
        None => vec![foreign(item, "it")],
    }
}

/// Compares one function; `component` may lack it.
fn function_mismatch(
    word: &str,
    interface: &Name,
    name: &str,
    component: (&Resolve, Option<&Function>),
    host: (&Resolve, &Function),
) -> Option<Mismatch> {
    let item = format!("{word} {interface}, function {name}");
    let ours = Shape::of_function(host.0, host.1);
    let Some(function) = component.1 else {
        return Some(Mismatch {
            item,
            needs: "nothing: it lacks the function".into(),
            offers: ours.short(),
            advice: "Export this function: the host calls it.".into(),
        });
    };
    let theirs = Shape::of_function(component.0, function);
    let difference = theirs.difference(&ours)?;
    let advice = if difference.path.is_empty() {
        "Build the component against the package that this host carries.".to_owned()
    } else {
        format!(
            "They differ at `{}`: {} against {}. Build the component against the package that this host carries.",
            difference.path, difference.left, difference.right
        )
    };
    Some(Mismatch { item, needs: theirs.short(), offers: ours.short(), advice })
}

/// An import that this host knows nothing of.
fn foreign(item: String, needs: &str) -> Mismatch {
    let (host, world) = host();
    let offered = interfaces(host, host.worlds[*world].imports.values());
    let names: Vec<_> = offered.iter().map(|(_, name)| format!("`{name}`")).collect();
    Mismatch {
        item,
        needs: needs.to_owned(),
        offers: format!("{} and an inert WASI 0.2", names.join(", ")),
        advice: "Remove the import, or build against world `retry-executor`.".into(),
    }
}

fn wasi(name: &Name) -> Option<Mismatch> {
    let package = name.package.name.as_str();
    let is_02 = name.package.version.as_ref().is_some_and(|version| version.major == 0 && version.minor == 2);
    let known = INERT_WASI.contains(&package);
    if known && is_02 {
        return None;
    }
    let advice = match package {
        "http" => "Executors have no network: remove the HTTP client, or the library that brings it.",
        _ if known => "Build the component for WASI 0.2, or without WASI.",
        _ => "Remove the library that brings this import; an executor needs no WASI.",
    };
    Some(Mismatch {
        item: format!("import {name}"),
        needs: "it".into(),
        offers: format!("of WASI only version 0.2 of {}, inert", INERT_WASI.map(|p| format!("`wasi:{p}`")).join(", ")),
        advice: advice.into(),
    })
}

/// The name of an interface, with its package.
#[derive(Clone)]
struct Name {
    package: PackageName,
    interface: String,
}

impl Name {
    fn of(resolve: &Resolve, id: InterfaceId) -> Option<Name> {
        let interface = &resolve.interfaces[id];
        let package = resolve.packages[interface.package?].name.clone();
        Some(Name { package, interface: interface.name.clone()? })
    }

    fn same_but_version(&self, other: &Name) -> bool {
        (&self.package.namespace, &self.package.name, &self.interface)
            == (&other.package.namespace, &other.package.name, &other.interface)
    }

    /// Whether the two may be linked: the same name, and versions that semver calls compatible.
    fn fits(&self, other: &Name) -> bool {
        let track = |name: &Name| {
            name.package.version.as_ref().map(|version| match (version.major, version.minor) {
                (0, 0) => (0, 0, version.patch),
                (0, minor) => (0, minor, 0),
                (major, _) => (major, 0, 0),
            })
        };
        self.same_but_version(other) && track(self) == track(other)
    }

    fn version(&self) -> String {
        self.package.version.as_ref().map_or("none".into(), ToString::to_string)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.package.interface_id(&self.interface))
    }
}

fn interfaces<'a>(resolve: &Resolve, items: impl Iterator<Item = &'a WorldItem>) -> Vec<(InterfaceId, Name)> {
    items
        .filter_map(|item| match item {
            WorldItem::Interface { id, .. } => Some((*id, Name::of(resolve, *id)?)),
            _ => None,
        })
        .collect()
}

fn label(resolve: &Resolve, key: &WorldKey) -> String {
    match key {
        WorldKey::Name(name) => name.clone(),
        WorldKey::Interface(id) => Name::of(resolve, *id).map_or("unnamed".into(), |name| name.to_string()),
    }
}

/// The world that this host offers. The text is part of the program, and the bindings were generated from it, so it
/// parses; a test holds that the interfaces are found.
fn host() -> &'static (Resolve, WorldId) {
    static HOST: OnceLock<(Resolve, WorldId)> = OnceLock::new();
    HOST.get_or_init(|| {
        let mut resolve = Resolve::default();
        let package = resolve.push_source("executor.wit", WIT).expect("the package was parsed at build time");
        let world = resolve.packages[package].worlds["retry-executor"];
        (resolve, world)
    })
}

/// The name of the world that this host runs.
pub(super) fn world_name() -> String {
    let (host, world) = host();
    let world = &host.worlds[*world];
    world.package.map_or_else(|| world.name.clone(), |package| host.packages[package].name.interface_id(&world.name))
}

/// The first characters of a file, if they are text.
fn beginning(bytes: &[u8]) -> Option<String> {
    let head = &bytes[..bytes.len().min(64)];
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        // A character that the cut went through is no fault of the text.
        Err(error) if error.error_len().is_none() => std::str::from_utf8(&head[..error.valid_up_to()]).ok()?,
        Err(_) => return None,
    };
    let is_text = text.chars().all(|c| !c.is_control() || c.is_whitespace());
    is_text.then(|| text.chars().take(24).collect())
}

fn chain(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    text.split_whitespace().collect::<Vec<_>>().join(" ").trim_end_matches('.').to_owned()
}
