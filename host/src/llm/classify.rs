//! From what a failed request showed to its [`FailureCode`]: one ordered table, the first matching row wins.
//!
//! Pure. It reads plain facts and knows neither HTTP clients nor policies; the adapters call it for a failed
//! connection, a status, an error inside a stream, and an odd finish reason alike, so that one fault has one code
//! wherever it shows. The id of the row that matched travels in the failure's evidence.
//!
//! The order of the rows is the precedence: the kind of a transport fault, what the adapter itself saw in the stream,
//! an unusual finish reason, a request beyond its limit, structured codes, statuses that leave no room for doubt,
//! wording, and last the statuses that codes and wording may refine. Codes and wording never refine a 5xx or a 402:
//! gateways put misleading codes beside them. `x-should-retry` is not read here: it says what to do and not what
//! failed, and so travels beside the code (see [`super::Evidence::should_retry`]).
//!
//! A user's own rows ([`OwnRows`]) go before the table. `docs/failures.md` is written from it ([`document`]).

mod describe;
mod own;
mod table;
mod wording;

pub use describe::document;
pub use own::{Condition, Fixture, OwnRow, OwnRowError, OwnRows};

use super::failure::FailureCode::{self, Unknown};
use super::phrase::Words;
use table::TABLE;

/// How a transport failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireFault {
    /// The name could not be resolved.
    Dns,
    /// No connection: refused, unreachable.
    Connect,
    Tls,
    /// The proxy refused or failed.
    Proxy,
    /// The peer cut the connection.
    Reset,
    /// The peer closed before the end of its answer.
    Eof,
    /// The bytes that came are no HTTP, or no event stream.
    Malformed,
    /// One of the host's own limits passed.
    Timeout,
    /// A fault of the connection that has no better name.
    Other,
}

impl WireFault {
    /// The name as it stands in an evidence's causes.
    pub fn as_str(self) -> &'static str {
        match self {
            WireFault::Dns => "dns",
            WireFault::Connect => "connect",
            WireFault::Tls => "tls",
            WireFault::Proxy => "proxy",
            WireFault::Reset => "reset",
            WireFault::Eof => "eof",
            WireFault::Malformed => "malformed",
            WireFault::Timeout => "timeout",
            WireFault::Other => "transport",
        }
    }
}

/// What an adapter itself saw in an answer that is none, although its status was a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFault {
    /// A success without a body.
    NoBody,
    /// A body that is neither an event stream nor a whole answer, and reports no error.
    NotAStream,
    NotUtf8,
    /// A line or an event beyond the bound.
    TooLong,
    /// An event whose data is not JSON.
    NotJson,
    /// An event of a shape that the protocol does not have.
    Shape,
    /// A tool call without a name, or with arguments that are no JSON object.
    ToolCall,
    /// The body ended before the protocol's terminator.
    NoTerminator,
    /// A normal end, with nothing in the answer that could be used.
    Empty,
}

impl StreamFault {
    /// What it is, to complete "the answer …".
    pub fn as_str(self) -> &'static str {
        match self {
            StreamFault::NoBody => "has no body",
            StreamFault::NotAStream => "is neither an event stream nor whole in one piece, and reports no error",
            StreamFault::NotUtf8 => "is not UTF-8",
            StreamFault::TooLong => "has a line or an event of more than 8 MiB",
            StreamFault::NotJson => "has an event that is not JSON",
            StreamFault::Shape => "has an event of a shape that the protocol does not have",
            StreamFault::ToolCall => "has a tool call without a name, or with arguments that are no JSON object",
            StreamFault::NoTerminator => "ended before the protocol's terminator",
            StreamFault::Empty => "ended normally, with nothing in it but reasoning or white space",
        }
    }
}

/// What is known of a failed request. Every part may be absent.
#[derive(Clone, Copy, Debug, Default)]
pub struct Signal<'a> {
    pub transport: Option<WireFault>,
    pub stream: Option<StreamFault>,
    /// The request itself is larger than the limit that the provider names, so that it fails however long one waits.
    pub too_large: bool,
    /// The HTTP status, or the one that stands inside the body of a 200.
    pub status: Option<u16>,
    /// The provider's error code; a number is given as its digits.
    pub code: Option<&'a str>,
    /// The provider's error type.
    pub kind: Option<&'a str>,
    pub message: Option<&'a str>,
    /// Further text, such as a body that has no structure.
    pub text: &'a str,
    /// A finish reason that ends no answer normally.
    pub finish_reason: Option<&'a str>,
    /// The provider reported an error inside a success, whatever it said about it.
    pub reported: bool,
}

/// The code, and the id of the row that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub code: FailureCode,
    pub row: &'static str,
}

/// Names a failure. Total: any input gets a code.
pub fn classify(signal: &Signal<'_>) -> Verdict {
    let facts = Facts {
        signal,
        codes: [signal.code, signal.kind, signal.finish_reason].map(|code| code.map(normalised)),
        words: Words::of([signal.code, signal.kind, signal.message, Some(signal.text)].into_iter().flatten()),
    };
    match TABLE.iter().find(|row| row.matches(&facts)) {
        Some(row) => Verdict { code: row.code, row: row.id },
        None => Verdict { code: Unknown, row: "none" },
    }
}

struct Facts<'a> {
    signal: &'a Signal<'a>,
    /// Code, type and finish reason, in the spelling of [`normalised`].
    codes: [Option<String>; 3],
    words: Words,
}

/// The spelling in which codes are compared: `Rate-Limit Exceeded`, `rateLimitExceeded` and `rate_limit_exceeded` are
/// one code. A name may come with its namespace and an address, `com.amazonaws#ThrottlingException:http://…`.
fn normalised(code: &str) -> String {
    let name = code.split(":http").find(|part| part.contains(char::is_alphanumeric)).unwrap_or(code);
    let name = name.rsplit('#').find(|part| part.contains(char::is_alphanumeric)).unwrap_or(name);
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Whether a name of the table is a code in that spelling. A star at its end stands for any rest.
fn names(name: &str, code: &str) -> bool {
    let (name, open) = name.strip_suffix('*').map_or((name, false), |start| (start, true));
    let name = normalised(name);
    if open { code.starts_with(&name) } else { code == name }
}

/// One row: with a status of `scope`, whatever `on` says means `code`.
struct Row {
    id: &'static str,
    scope: Scope,
    on: On,
    code: FailureCode,
}

/// The statuses that a row is about.
struct Scope {
    /// Whether it is about failures without a status.
    none: bool,
    ranges: &'static [(u16, u16)],
}

enum On {
    /// The status alone decides.
    Status,
    Wire(&'static [WireFault]),
    Stream(&'static [StreamFault]),
    TooLarge,
    /// The code or the type is one of these (see [`names`]).
    Code(&'static [&'static str]),
    Finish(&'static [&'static str]),
    AnyFinish,
    /// The wording is one of these (see `phrase`).
    Text(&'static [&'static str]),
    /// The provider said anything at all.
    Anything,
    Reported,
}

impl Row {
    fn matches(&self, facts: &Facts<'_>) -> bool {
        let signal = facts.signal;
        let in_scope = match signal.status {
            None => self.scope.none,
            Some(status) => self.scope.ranges.iter().any(|(from, to)| (*from..=*to).contains(&status)),
        };
        let [code, kind, finish] = &facts.codes;
        let one_of = |listed: &[&str], found: &Option<String>| {
            found.as_deref().is_some_and(|code| listed.iter().any(|name| names(name, code)))
        };
        in_scope
            && match &self.on {
                On::Status => true,
                On::Wire(kinds) => signal.transport.is_some_and(|kind| kinds.contains(&kind)),
                On::Stream(kinds) => signal.stream.is_some_and(|kind| kinds.contains(&kind)),
                On::TooLarge => signal.too_large,
                On::Reported => signal.reported,
                On::Code(names) => one_of(names, code) || one_of(names, kind),
                On::Finish(names) => one_of(names, finish),
                On::AnyFinish => finish.is_some(),
                On::Text(patterns) => facts.words.contain_any(patterns),
                On::Anything => !facts.words.is_empty(),
            }
    }
}

#[cfg(test)]
mod tests;
