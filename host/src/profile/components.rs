//! The executors that the program carries with it.

/// The bytes of an embedded component, by its name without `builtin:`.
pub fn builtin_component(name: &str) -> Option<&'static [u8]> {
    match name {
        "llm-retry" => Some(include_bytes!(concat!(env!("OUT_DIR"), "/llm_retry.wasm"))),
        "retry-strategy" => Some(include_bytes!(concat!(env!("OUT_DIR"), "/retry_strategy.wasm"))),
        _ => None,
    }
}
