//! What one call of an executor may use: one table, and the reader of an entry's `limits:`.
//!
//! Owns the names, defaults and bounds. It enforces nothing: `call` counts, `fault` names what was passed.

use serde_json::Value;
use std::time::Duration;

/// The limits of one entry. Every one can be set in the entry's `limits:` under its key in [`TABLE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Guest time between two host calls that wait or record, in milliseconds.
    pub cpu_budget_ms: u32,
    /// Linear memories together, in MiB.
    pub memory_mb: u32,
    /// Records a call.
    pub appends: u32,
    /// The texts of one record, in bytes.
    pub append_bytes: u32,
    /// Log lines a call, in bytes.
    pub log_bytes: u32,
    /// Executors of one recovery that may wait in `next` at once.
    pub nested_depth: u32,
}

/// One limit: its key in an entry, what it is when the entry does not say, what it may be, and why.
pub struct Row {
    pub key: &'static str,
    pub default: u32,
    pub min: u32,
    pub max: u32,
    pub why: &'static str,
    field: fn(&mut Limits) -> &mut u32,
}

/// Every limit, in the order in which documents list them.
pub const TABLE: [Row; 6] = [
    Row {
        key: "cpuBudgetMs",
        default: 100,
        min: 1,
        max: 60_000,
        why: "A decision takes microseconds; 100 ms leaves room for an interpreter and still ends a loop at once.",
        field: |limits| &mut limits.cpu_budget_ms,
    },
    Row {
        key: "memoryMb",
        default: 64,
        min: 1,
        max: 4096,
        why: "A Rust executor needs 2 MiB and an interpreter 40; up to 64 a call fits a pooled slot.",
        field: |limits| &mut limits.memory_mb,
    },
    Row {
        key: "appends",
        default: 64,
        min: 0,
        max: 10_000,
        why: "A retry is two records; 64 leaves room for notes and still ends a loop of appends.",
        field: |limits| &mut limits.appends,
    },
    Row {
        key: "appendBytes",
        default: 16_384,
        min: 256,
        max: 1 << 20,
        why: "A record is a fact, not a document.",
        field: |limits| &mut limits.append_bytes,
    },
    Row {
        key: "logBytes",
        default: 65_536,
        min: 0,
        max: 16 << 20,
        why: "Enough for a traceback, too little to drown a log.",
        field: |limits| &mut limits.log_bytes,
    },
    Row {
        key: "nestedDepth",
        default: 32,
        min: 1,
        max: 256,
        why: "A waiting executor holds a stack and a memory; chains are a few executors long.",
        field: |limits| &mut limits.nested_depth,
    },
];

/// What `describe` and `validate` may use before a component is published.
pub mod canary {
    use std::time::Duration;

    /// Guest time of one call. An interpreter may set itself up here, so it is longer than that of a decision.
    pub const CPU_BUDGET_MS: u32 = 2_000;
    /// Log lines of one call, in bytes.
    pub const LOG_BYTES: u32 = 16_384;
    /// The time of one call by the clock on the wall: a component that waits through WASI uses no CPU.
    pub const WALL: Duration = Duration::from_secs(10);
    /// The longest JSON Schema that is read, in bytes.
    pub const SCHEMA_BYTES: usize = 256 * 1024;
    /// The longest name, version or summary that is kept, in bytes.
    pub const LABEL_BYTES: usize = 1024;
    /// Problems of one answer of `validate` that are reported.
    pub const PROBLEMS: usize = 100;
}

/// How often the epoch moves: how late a spinning guest is noticed, and how precise its CPU budget is.
pub const TICK: Duration = Duration::from_millis(5);

/// Elements of one table. Function tables of interpreters have some thousands; each takes a pointer.
pub const TABLE_ELEMENTS: usize = 20_000;

/// The memory limit up to which calls use pooled slots, in MiB. It is also the size of a slot.
pub const SLOT_MB: u32 = 64;

impl Default for Limits {
    fn default() -> Self {
        let mut limits =
            Limits { cpu_budget_ms: 0, memory_mb: 0, appends: 0, append_bytes: 0, log_bytes: 0, nested_depth: 0 };
        for row in &TABLE {
            *(row.field)(&mut limits) = row.default;
        }
        limits
    }
}

impl Limits {
    /// Reads an entry's `limits`; `null` means none. Reports every problem at once.
    pub fn parse(value: &Value) -> Result<Limits, Vec<LimitError>> {
        let mut limits = Limits::default();
        let map = match value {
            Value::Null => return Ok(limits),
            Value::Object(map) => map,
            other => return Err(vec![LimitError::NotAMap { found: other.to_string() }]),
        };
        let mut problems = Vec::new();
        for (key, value) in map {
            let Some(row) = TABLE.iter().find(|row| row.key == key) else {
                problems.push(LimitError::UnknownKey { key: key.clone() });
                continue;
            };
            match value.as_u64().and_then(|n| u32::try_from(n).ok()).filter(|n| (row.min..=row.max).contains(n)) {
                Some(n) => *(row.field)(&mut limits) = n,
                None => problems.push(LimitError::OutOfRange {
                    key: row.key,
                    found: value.to_string(),
                    min: row.min,
                    max: row.max,
                    default: row.default,
                }),
            }
        }
        if problems.is_empty() { Ok(limits) } else { Err(problems) }
    }

    /// The memory limit in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        u64::from(self.memory_mb) << 20
    }

    /// The CPU budget in ticks, rounded up, and one more: the first tick may come right after the start, and a budget
    /// must never end early.
    pub(super) fn cpu_ticks(&self) -> u32 {
        self.cpu_budget_ms.div_ceil(TICK.as_millis() as u32) + 1
    }

    /// The limits of a canary call of an entry with these limits: no records, little log, the same memory.
    pub(super) fn for_canary(&self) -> Limits {
        Limits {
            cpu_budget_ms: self.cpu_budget_ms.max(canary::CPU_BUDGET_MS),
            appends: 0,
            log_bytes: canary::LOG_BYTES,
            ..*self
        }
    }
}

/// Why an entry's `limits` cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    #[error("`limits` must be a map of names and whole numbers, but it is {found}.")]
    NotAMap { found: String },
    #[error("`limits.{key}` is no limit; the limits are {}.", known())]
    UnknownKey { key: String },
    #[error("`limits.{key}` must be a whole number from {min} to {max} (default {default}), but it is {found}.")]
    OutOfRange { key: &'static str, found: String, min: u32, max: u32, default: u32 },
}

fn known() -> String {
    TABLE.map(|row| format!("`{}`", row.key)).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn absent_limits_are_the_defaults_of_the_table() {
        let limits = Limits::parse(&Value::Null).unwrap();
        assert_eq!(limits, Limits::parse(&json!({})).unwrap());
        assert_eq!((limits.cpu_budget_ms, limits.memory_mb, limits.appends), (100, 64, 64));
        assert_eq!((limits.append_bytes, limits.log_bytes, limits.nested_depth), (16_384, 65_536, 32));
    }

    #[test]
    fn every_default_lies_within_its_own_bounds() {
        for row in &TABLE {
            assert!((row.min..=row.max).contains(&row.default), "{}", row.key);
        }
    }

    #[test]
    fn each_key_sets_its_own_limit_and_no_other() {
        for row in &TABLE {
            let mut set = Limits::parse(&json!({ row.key: row.max })).unwrap();
            assert_eq!(*(row.field)(&mut set), row.max);
            *(row.field)(&mut set) = row.default;
            assert_eq!(set, Limits::default());
        }
    }

    #[test]
    fn all_problems_are_named_with_key_and_range() {
        let problems = Limits::parse(&json!({"memoryMb": 0, "appends": 1.5, "memoryMB": 4})).unwrap_err();
        let text: Vec<_> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "`limits.memoryMb` must be a whole number from 1 to 4096 (default 64), but it is 0.",
                "`limits.appends` must be a whole number from 0 to 10000 (default 64), but it is 1.5.",
                "`limits.memoryMB` is no limit; the limits are `cpuBudgetMs`, `memoryMb`, `appends`, `appendBytes`, \
                 `logBytes`, `nestedDepth`.",
            ]
        );
    }

    #[test]
    fn limits_that_are_no_map_are_refused() {
        let problems = Limits::parse(&json!([1])).unwrap_err();
        assert_eq!(problems, [LimitError::NotAMap { found: "[1]".into() }]);
    }

    #[test]
    fn a_budget_is_never_shorter_than_it_says() {
        let limits = Limits { cpu_budget_ms: 11, ..Limits::default() };
        assert!((limits.cpu_ticks() - 1) * TICK.as_millis() as u32 >= 11);
    }
}
