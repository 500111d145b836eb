//! The event types of the same-step dialect, which that system refuses a whole session over when it does not know one,
//! and which types are messages.
//!
//! Its first line (format version 0) and its newer ones know different types; a session is good when some line of it
//! would read the session, so the list holds the types of all of them.

use crate::journal::invariants::Violation;

/// By name. Packed lines are no events of their own.
const KNOWN: [&str; 62] = [
    "agent-preset/selected",
    "agent/inbox/spliced",
    "approval/asked",
    "approval/decided",
    "approval/policy",
    "assistant/attempt",
    "assistant/chunk",
    "assistant/message",
    "command/done",
    "command/run",
    "compaction/end",
    "compaction/prune",
    "compaction/start",
    "compaction/summary",
    "deliverables/presented",
    "developer/message",
    "feedback/message-delete",
    "feedback/message-put",
    "feedback/record",
    "goal/change",
    "hook/invoked",
    "hook/result",
    "image/offload",
    "llm/retry",
    "llm/retry-started",
    "model/selection",
    "permission/preset",
    "plan/mode",
    "request/context",
    "request/header",
    "sandbox/mode",
    "schedule/change",
    "session-log-deepseek/delivery-accepted",
    "session/end-seed",
    "session/title",
    "session/title-llm-request",
    "step/end",
    "step/start",
    "subagent/catalog",
    "subagent/descriptor",
    "subagent/model-selection-policy",
    "system/message",
    "team/member",
    "team/message/delivered",
    "team/message/queued",
    "team/task",
    "todo/write",
    "tool-workflow/agent-end",
    "tool-workflow/agent-start",
    "tool-workflow/run-end",
    "tool-workflow/run-start",
    "tool/call",
    "tool/code-dispatch",
    "tool/code-dispatch-start",
    "tool/ptc-dispatch",
    "tool/ptc-dispatch-start",
    "tool/result",
    "turn/end",
    "turn/start",
    "user/message",
    "web/deepseek-search-llm-request",
    "workspace/changes",
];

pub(super) fn is_known(kind: &str) -> bool {
    KNOWN.binary_search(&kind).is_ok()
}

/// Whether events of the type are messages: they say what they do to the surface, and others never do.
pub(super) fn is_surface(kind: &str) -> bool {
    matches!(kind, "user/message" | "assistant/message" | "tool/result" | "system/message" | "developer/message")
}

/// Whether an event of type `kind` has a surfaceOp if, and only if, it is a message.
pub(super) fn check_surface_op(kind: &str, surface: bool, has_one: bool) -> Option<Violation> {
    let message = match (surface, has_one) {
        (true, false) => format!("{kind} adds to the surface, so that its surfaceOp must be \"append\"."),
        (false, true) => format!("{kind} has a surfaceOp, but only messages reach a request."),
        _ => return None,
    };
    Some(Violation { rule: "surface-op", message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_type_is_found() {
        assert!(KNOWN.is_sorted());
        for kind in KNOWN {
            assert!(is_known(kind), "{kind}");
        }
        assert!(!is_known("session"));
    }
}
