//! Toolchain.
