//! wasm.
