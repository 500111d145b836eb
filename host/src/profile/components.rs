//! The executors that the program carries with it, and the digests of all that a profile names.

use super::composed::ComponentRef;

/// SHA-256 of a component, in hex.
///
/// # Errors
/// Its file cannot be read, or no embedded component has that name.
pub(super) fn component_digest(component: &ComponentRef) -> std::io::Result<String> {
    match component {
        ComponentRef::Builtin(name) => {
            let bytes = builtin_component(name).ok_or(std::io::ErrorKind::NotFound)?;
            Ok(crate::wasm::digest(bytes))
        }
        ComponentRef::File(path) => Ok(crate::wasm::digest(&std::fs::read(path)?)),
    }
}

/// The bytes of an embedded component, by its name without `builtin:`.
pub fn builtin_component(name: &str) -> Option<&'static [u8]> {
    match name {
        "llm-retry" => Some(include_bytes!(concat!(env!("OUT_DIR"), "/llm_retry.wasm"))),
        "retry-strategy" => Some(include_bytes!(concat!(env!("OUT_DIR"), "/retry_strategy.wasm"))),
        _ => None,
    }
}
