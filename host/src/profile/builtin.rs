//! What comes with the program: one profile, two bundles, and the names of the embedded components.
//!
//! Only names and texts stand here; the components' bytes are the concern of whoever loads them.

/// The name of the built-in profile.
pub const DEMO: &str = "demo";

/// A provider that fails on a script, so that the host shows what it does without a key or a network.
pub const DEMO_PROFILE: &str = "\
# The built-in profile: a scripted provider on loopback, started with the host.
model: { provider: demo, model: demo }
providers:
  - provider: demo
    adapter: openai-chat
    chaos: \"429:retry-after=1, 503*2, cut:3, ok\"
    # Short waits, so that the demo is quick; the longest still has room for the provider's own hint of a second.
    retryPolicy:
      mode: normal
      maxRetries: 5
      backoff: { initialDelayMs: 200, maxDelayMs: 2000, jitterRatio: 0.1 }
bundles: [base]
";

/// A bundle that is part of the program.
pub struct Bundle {
    pub name: &'static str,
    /// The text of its patch.
    pub patch: &'static str,
}

pub const BUNDLES: [Bundle; 2] = [
    Bundle {
        name: "base",
        patch: "\
- insert:
    - id: llm-retry
      component: builtin:llm-retry
",
    },
    Bundle {
        name: "retry-strategy",
        patch: "\
- id: llm-retry
  disabled: true
- insert:
    - id: retry-strategy
      component: builtin:retry-strategy
",
    },
];

/// The components that `builtin:NAME` can name.
pub const COMPONENTS: [&str; 2] = ["llm-retry", "retry-strategy"];

/// How a built-in text is called where a file's path would stand.
pub fn file(name: &str) -> std::path::PathBuf {
    format!("builtin:{name}").into()
}
