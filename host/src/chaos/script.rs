//! The script: what the server does with each request. Plain data; it owns the order of the steps and nothing of sockets.
//!
//! [`Script::parse`] makes one from text; tests and the profile loader may also build one from [`Step`]s.

use super::parse::{self, ScriptError};
use bytes::Bytes;
use std::{path::PathBuf, str::FromStr, sync::Arc, time::Duration};

/// A list of steps, one for each request, in order. After the last step every request gets [`Step::ok`], unless the
/// script loops.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub(super) steps: Vec<Arc<Step>>,
    pub(super) loops: bool,
}

impl Script {
    /// Parses the script language, which the [module](super) documents. Reads no file: the file of a `raw` step is
    /// read when the script is given to a server.
    ///
    /// # Errors
    /// The first thing that is wrong, with the step, its column and what is allowed.
    pub fn parse(text: &str) -> Result<Self, ScriptError> {
        parse::script(text)
    }

    /// A script that plays `steps` once.
    pub fn of(steps: impl IntoIterator<Item = Step>) -> Self {
        Script { steps: steps.into_iter().map(Arc::new).collect(), loops: false }
    }

    /// The same script, played again for ever.
    #[must_use]
    pub fn looping(self) -> Self {
        Script { loops: true, ..self }
    }

    /// The step that a request at `position` gets when `elapsed` has passed since the script began, or `None` after
    /// the end. Moves `position` on.
    pub(super) fn next(&self, position: &mut Position, elapsed: Duration) -> Option<Arc<Step>> {
        // A looping script of outages that are all over would be walked for ever: one full walk without a step is
        // enough to know that there is none.
        let mut skipped = 0;
        loop {
            if position.step >= self.steps.len() {
                if !self.loops || skipped >= self.steps.len() {
                    return None;
                }
                *position = Position::default();
            }
            let step = self.steps.get(position.step)?;
            if let Play::Down { until, .. } = step.play {
                if elapsed < until {
                    return Some(step.clone());
                }
                *position = Position { step: position.step + 1, played: 0 };
                skipped += 1;
                continue;
            }
            position.played += 1;
            if position.played >= step.times {
                *position = Position { step: position.step + 1, played: 0 };
            }
            return Some(step.clone());
        }
    }
}

impl FromStr for Script {
    type Err = ScriptError;

    fn from_str(text: &str) -> Result<Self, ScriptError> {
        Script::parse(text)
    }
}

/// How far one walk through a script has come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Position {
    step: usize,
    played: u32,
}

/// One step: what is sent, and how often.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The step as it was written, without its repetition; shown with each request that got it.
    pub label: String,
    /// How many requests get this step before the next one is taken; at least 1.
    pub times: u32,
    /// How late the first byte is.
    pub after: Duration,
    /// Headers of the response, laid over the usual ones.
    pub headers: Vec<(String, String)>,
    pub play: Play,
}

impl Step {
    /// A step that is played once, at once.
    pub fn new(label: impl Into<String>, play: Play) -> Self {
        Step { label: label.into(), times: 1, after: Duration::ZERO, headers: Vec::new(), play }
    }

    /// The answer, complete.
    pub fn ok() -> Self {
        Step::new("ok", Play::Stream(Stream::answer()))
    }

    /// `bytes`, unchanged, as the whole response, and then `end`.
    pub fn raw(bytes: impl Into<Bytes>, end: RawEnd) -> Self {
        Step::new("raw", Play::Raw { source: RawSource::Bytes(bytes.into()), end })
    }

    /// The same step for `times` requests (0 counts as 1).
    #[must_use]
    pub fn repeat(self, times: u32) -> Self {
        Step { times: times.max(1), ..self }
    }
}

/// What a step sends.
#[derive(Clone, Debug, PartialEq)]
pub enum Play {
    /// One complete response with a known length.
    Reply { status: u16, body: Body },
    /// A response with `status` until `until` has passed since the script began; uses up no request.
    Down { until: Duration, status: u16, body: Body },
    /// An interim response (100 to 199), then the answer.
    Interim { status: u16 },
    /// A streamed completion.
    Stream(Stream),
    /// Bytes that are sent unchanged.
    Raw { source: RawSource, end: RawEnd },
    /// Nothing, until the client goes away or `limit` has passed; then a close.
    Hang { limit: Option<Duration> },
    /// A TCP reset instead of a head.
    Reset,
}

/// The body of a complete response.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    /// An error object.
    Error(ErrorObject),
    /// This text, as JSON.
    Json(String),
    /// The answer as one `chat.completion` document.
    Completion,
    /// A small page, as a proxy sends it.
    Html,
}

/// The parts of a provider's error object; what is absent gets a usual value for the status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ErrorObject {
    pub message: Option<String>,
    pub kind: Option<String>,
    /// Sent as a number if it is all digits.
    pub code: Option<String>,
    /// A status inside the object, as gateways put it there.
    pub status: Option<u16>,
}

/// A streamed completion: reasoning, then words, then an ending.
#[derive(Clone, Debug, PartialEq)]
pub struct Stream {
    /// How many pieces of reasoning come first.
    pub reasoning: usize,
    pub words: Words,
    pub ending: Ending,
    /// The pause before each event.
    pub delay: Duration,
    /// The largest number of body bytes sent at once; `None` sends event by event.
    pub split: Option<usize>,
}

impl Stream {
    /// The answer to the request, complete.
    pub fn answer() -> Self {
        Stream::new(Words::Answer, Ending::Finish("stop".into()))
    }

    /// `words` and then `ending`, without reasoning or pauses.
    pub fn new(words: Words, ending: Ending) -> Self {
        Stream { reasoning: 0, words, ending, delay: Duration::ZERO, split: None }
    }
}

/// The text of a stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Words {
    /// The answer that is made from the request.
    Answer,
    Text(String),
    /// So many words of filler.
    Count(usize),
    /// So many pieces of text that nobody may keep; see [`super::PARTIAL_MARK`].
    Partial(usize),
}

/// How a stream ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// This finish reason, usage and `[DONE]`.
    Finish(String),
    /// A tool call with its finish reason, usage and `[DONE]`.
    ToolCall { name: String, arguments: String },
    /// A data line that is not JSON, then a normal end.
    Malformed,
    /// An error object as the last event; no `[DONE]`.
    Error(ErrorObject),
    /// A clean end of the body without `[DONE]`.
    Eof,
    /// The connection is closed inside the body.
    Cut,
    /// A TCP reset inside the body.
    Reset,
    /// Silence until the client goes away or `limit` has passed (then a close inside the body), with a comment
    /// line every `ping` if there is one.
    Stall { limit: Option<Duration>, ping: Option<Duration> },
}

/// Where the bytes of a raw response come from.
#[derive(Clone, Debug, PartialEq)]
pub enum RawSource {
    Bytes(Bytes),
    /// Read when the script is given to a server.
    File(PathBuf),
}

/// What happens after the bytes of a raw response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RawEnd {
    Close,
    Reset,
    /// Silence until the client goes away.
    Stall,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(script: &Script, requests: usize, elapsed: Duration) -> Vec<String> {
        let mut position = Position::default();
        (0..requests)
            .map(|_| script.next(&mut position, elapsed).map_or("(end)".into(), |step| step.label.clone()))
            .collect()
    }

    fn script(text: &str) -> Script {
        Script::parse(text).unwrap()
    }

    #[test]
    fn steps_are_taken_in_order_and_end() {
        assert_eq!(
            labels(&script("429, 503*2, cut:3"), 6, Duration::ZERO),
            ["429", "503", "503", "cut:3", "(end)", "(end)"]
        );
    }

    #[test]
    fn a_looping_script_starts_again() {
        for form in ["429, ok, ...", "429, ok, loop"] {
            assert_eq!(labels(&script(form), 5, Duration::ZERO), ["429", "ok", "429", "ok", "429"]);
        }
        assert_eq!(
            labels(&Script::of([Step::ok().repeat(0)]).looping(), 3, Duration::ZERO),
            ["ok", "ok", "ok"],
            "a step is played at least once"
        );
    }

    #[test]
    fn an_outage_uses_up_no_request_and_is_skipped_when_it_is_over() {
        let outage = script("down:ms=100, 429, ok");
        assert_eq!(labels(&outage, 3, Duration::from_millis(99)), ["down:ms=100"; 3]);
        assert_eq!(labels(&outage, 3, Duration::from_millis(100)), ["429", "ok", "(end)"]);
    }

    #[test]
    fn a_loop_of_outages_that_are_over_ends() {
        assert_eq!(labels(&script("down:ms=1, down:ms=2, loop"), 2, Duration::from_secs(1)), ["(end)", "(end)"]);
        assert_eq!(labels(&Script::of([]).looping(), 1, Duration::ZERO), ["(end)"]);
    }
}
