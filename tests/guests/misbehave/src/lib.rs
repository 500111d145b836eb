//! A test guest: its configuration, `{"do": "…"}`, says what it does when it is asked about a failed step. Tests of
//! limits, faults and swaps are written with it. [`Deed`] lists what it can do.

mod deed;

pub use deed::Deed;

#[cfg(target_arch = "wasm32")]
mod component;
