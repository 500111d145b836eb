//! A test guest that imports WASI 0.2: it writes a line to stdout, and returns an error that names whatever of files,
//! environment or arguments it was given. A host that keeps WASI inert gives it nothing, and it returns what `next`
//! says.

#[cfg(target_arch = "wasm32")]
mod component;
