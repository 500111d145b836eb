//! Which route an attempt goes to.

use crate::llm::Failure;

/// A route and a model on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub provider: String,
    pub model: String,
}

/// The attempt that a router is asked about.
pub struct Attempt<'a> {
    pub turn: u64,
    /// From 1 for the first request of a prompt, counting its retries.
    pub number: u64,
    /// The session's own model.
    pub session_target: &'a Target,
    /// Why the attempt before this one failed.
    pub last_failure: Option<&'a Failure>,
}

/// Chooses the route of each attempt, anew for every one, so that a retry may go elsewhere. The policy that decides
/// about a failure is that of the route which served it.
pub trait Router: Send + Sync + 'static {
    fn route(&self, attempt: &Attempt<'_>) -> Target;
}

/// Always the session's own model.
pub struct SessionModel;

impl Router for SessionModel {
    fn route(&self, attempt: &Attempt<'_>) -> Target {
        attempt.session_target.clone()
    }
}
