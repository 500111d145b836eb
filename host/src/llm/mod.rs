//! Model calls: routes and their retry policies, failures and their names, and the adapters that speak to providers.
//!
//! One call of an adapter is one wire request; nothing here retries. Called by the agent loop.

pub mod adapters;
pub mod classify;
pub mod failure;
pub mod message;
mod oversize;
mod phrase;
pub mod policy;
pub mod retry_after;
pub mod route;

pub use failure::{Evidence, Failure, FailureCode, Hint, HintUse, ShouldRetryUse};
pub use message::{Block, BlockType, Chunk, FinishReason, Message, Request, Role, Usage};
pub use policy::{Backoff, PolicyError, RetryPolicy};
pub use route::{PreparedCall, Registry, RouteError};

use futures_util::stream::BoxStream;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

/// Speaks one provider's protocol.
pub trait Adapter: Send + Sync + 'static {
    /// Makes exactly one wire request and streams its answer. The stream never fails: it ends with one
    /// [`Chunk::Finish`], which carries the failure if there was one. When `cancel` fires, it ends promptly with
    /// [`FinishReason::Aborted`]. Dropping the stream closes the connection.
    fn stream(&self, request: Arc<Request>, cancel: CancellationToken) -> BoxStream<'static, Chunk>;
}
