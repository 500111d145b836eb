//! Why a component cannot be used: one sentence for the user of it, one for its author.

use super::{engine::RuntimeError, limits::LimitError, preflight::Mismatch};
use crate::waterfall::executor::Fault;
use std::fmt;

/// Why a component was not loaded or an entry not prepared. The text is for the user; [`LoadError::advice`] is for the
/// author of the component.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    #[error("The file is empty, but a WebAssembly component was expected.")]
    Empty,
    #[error("The file is text (it begins with {beginning:?}), but a WebAssembly component was expected.")]
    Text { beginning: String },
    #[error(
        "The file is no WebAssembly: it begins with the bytes {beginning}, and a component with 00 61 73 6d 0d 00 01 00."
    )]
    NotWasm { beginning: String },
    #[error("The file is a core WebAssembly module, but a component was expected.")]
    CoreModule,
    #[error("The file is a WIT package, an interface without code, but a component was expected.")]
    WitPackage,
    #[error("The component is cut off: after {bytes} bytes more were expected ({detail}).")]
    Truncated { bytes: usize, detail: String },
    #[error("The component is malformed: {detail}.")]
    Malformed { detail: String },
    #[error("The component does not fit this host:{}", list(.0))]
    Unfit(Vec<Mismatch>),
    #[error("The component could not be compiled: {detail}.")]
    Compile { detail: String },
    #[error("The component could not be linked: {detail}.")]
    Link { detail: String },
    #[error("The entry's limits cannot be used:{}", list(.0))]
    Limits(Vec<LimitError>),
    #[error("The component failed to describe itself. {0}")]
    Describe(Fault),
    #[error("The component's manifest cannot be used: `{field}` {problem}.")]
    Manifest { field: &'static str, problem: String },
    #[error("The component's config schema cannot be used: {detail}.")]
    Schema { detail: String },
    #[error("The entry's config does not fit the component:{}", list(.0))]
    Config(Vec<ConfigProblem>),
    #[error("The component failed to check its config. {0}")]
    Validate(Fault),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error("The host failed while it read the component: {detail}.")]
    Internal { detail: String },
}

impl LoadError {
    /// What the component's author can do about it, if it is for the author to do something.
    pub fn advice(&self) -> Option<&'static str> {
        Some(match self {
            LoadError::Empty | LoadError::Text { .. } | LoadError::NotWasm { .. } => {
                "Name the built `.wasm` file of the component, not its source or its text form."
            }
            LoadError::CoreModule => {
                "A build for `wasm32-unknown-unknown` gives a core module. Turn it into a component: \
                 `retake plugin build`, or `wasm-tools component new module.wasm -o component.wasm`."
            }
            LoadError::WitPackage => "Name the component that implements the package.",
            LoadError::Truncated { .. } => "Copy or build the file again; the copy may have been interrupted.",
            LoadError::Malformed { .. } | LoadError::Compile { .. } => {
                "Build the component again with current tools; it may use a proposal that this host does not run."
            }
            LoadError::Unfit(_) | LoadError::Link { .. } => {
                "Build against world `retry-executor` of the package `retake:executor` that this host carries."
            }
            LoadError::Describe(_) | LoadError::Validate(_) => {
                "`describe` and `validate` run with no turn: only `log` and `random` answer, and the limits are small."
            }
            LoadError::Manifest { .. } | LoadError::Schema { .. } => {
                "`describe` must return a short name, a version, a summary, and a JSON Schema as JSON text."
            }
            LoadError::Limits(_) | LoadError::Config(_) | LoadError::Runtime(_) | LoadError::Internal { .. } => {
                return None;
            }
        })
    }
}

/// One thing that is wrong with an entry's config.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ConfigProblem {
    /// A dotted path such as `retryableCodes[2]`; empty for the whole.
    pub path: String,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            write!(f, "{}", self.message)
        } else {
            write!(f, "`{}`: {}", self.path, self.message)
        }
    }
}

/// One problem stands in the sentence, several stand below it.
fn list<T: fmt::Display>(items: &[T]) -> String {
    match items {
        [one] => format!(" {one}"),
        many => many.iter().map(|item| format!("\n- {item}")).collect(),
    }
}
