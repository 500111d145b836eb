//! Tests that cross modules, in one binary, so that wasmtime is linked once.

mod dispatch;
mod official;
mod swap;
