//! Adapters: one file a protocol.
