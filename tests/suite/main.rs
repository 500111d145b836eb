//! Tests that cross modules, in one binary, so that wasmtime is linked once.

mod cases;
mod command;
mod crash;
mod dispatch;
mod guests;
mod official;
mod protocols;
mod swap;
mod wire;
