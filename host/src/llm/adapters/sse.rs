//! Server-sent events: bytes in, events out.
//!
//! Follows the HTML standard where streams of models do: all three line ends, a byte order mark, `data:` with and
//! without its space, comments, data over several lines. It is strict about size and UTF-8, and never panics. Called by
//! the adapters' shared call.

/// The longest line, and the longest data of one event, in bytes.
pub const MAX_LINE: usize = 8 * 1024 * 1024;

/// The fields of an event stream. A comment has an empty one.
const SSE_FIELDS: [&[u8]; 5] = [b"", b"data", b"event", b"id", b"retry"];

/// Text beside the events is kept up to this length, in bytes.
const MAX_STRAY: usize = 16 * 1024;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Event {
    /// The event's type; empty when the server gave none.
    pub name: String,
    /// The lines of its data, joined by line feeds.
    pub data: String,
}

/// Why bytes are no event stream.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SseError {
    #[error("a line of the event stream is longer than {MAX_LINE} bytes")]
    TooLong,
    #[error("the event stream is not valid UTF-8")]
    NotUtf8,
}

/// Reads a stream piece by piece; the pieces may be cut anywhere.
#[derive(Default)]
pub struct Decoder {
    /// Bytes of a line that has not ended.
    line: Vec<u8>,
    name: String,
    data: Option<String>,
    /// Lines that are none of the format: what something on the way put between the events.
    stray: String,
    started: bool,
    /// The last byte was a CR; an LF that follows belongs to it.
    after_cr: bool,
}

impl Decoder {
    /// Takes the next bytes and returns the events that they complete. Errors: the stream is none of this format.
    pub fn push(&mut self, mut bytes: &[u8]) -> Result<Vec<Event>, SseError> {
        let mut events = Vec::new();
        if self.after_cr && !bytes.is_empty() {
            self.after_cr = false;
            bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
        }
        while let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            self.extend(&bytes[..end])?;
            let cr = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            if cr {
                self.after_cr = bytes.is_empty();
                bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            }
            events.extend(self.end_line()?);
        }
        self.extend(bytes)?;
        Ok(events)
    }

    /// What stands unfinished when the stream ends. The standard drops it; a caller may still look whether it is
    /// whole, since some servers leave out the last blank line.
    pub fn finish(&mut self) -> Option<Event> {
        match self.end_line() {
            Ok(Some(event)) => Some(event),
            Ok(None) => self.dispatch(),
            Err(_) => None,
        }
    }

    /// The lines so far that are none of the format.
    pub fn stray(&self) -> &str {
        &self.stray
    }

    fn extend(&mut self, bytes: &[u8]) -> Result<(), SseError> {
        if self.line.len() + bytes.len() > MAX_LINE {
            return Err(SseError::TooLong);
        }
        self.line.extend_from_slice(bytes);
        Ok(())
    }

    fn end_line(&mut self) -> Result<Option<Event>, SseError> {
        let bytes = std::mem::take(&mut self.line);
        let line = std::str::from_utf8(&bytes).map_err(|_| SseError::NotUtf8)?;
        let line = if self.started { line } else { line.strip_prefix('\u{feff}').unwrap_or(line) };
        self.started = true;
        if line.is_empty() {
            return Ok(self.dispatch());
        }
        // An object in a line of its own is data that lacks its field.
        if self.data.is_none() && line.starts_with('{') && line.trim_end().ends_with('}') {
            let name = std::mem::take(&mut self.name);
            return Ok(Some(Event { name, data: line.to_owned() }));
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => match &mut self.data {
                None => self.data = Some(value.to_owned()),
                Some(data) if data.len() + value.len() >= MAX_LINE => return Err(SseError::TooLong),
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
            },
            "event" => self.name = value.to_owned(),
            // A comment has an empty field name. `id` and `retry` are for browsers that reconnect.
            "" | "id" | "retry" => {}
            _ if self.stray.len() + line.len() < MAX_STRAY => {
                self.stray.push_str(line);
                self.stray.push('\n');
            }
            _ => {}
        }
        // The buffer of a long line is not kept for the short ones that follow.
        if bytes.capacity() <= 64 * 1024 {
            self.line = bytes;
            self.line.clear();
        }
        Ok(None)
    }

    fn dispatch(&mut self) -> Option<Event> {
        let name = std::mem::take(&mut self.name);
        // The standard drops an event without data. An error is one all the same.
        let data = self.data.take().or_else(|| (name == "error").then(String::new));
        data.map(|data| Event { name, data })
    }
}

/// Whether a body that begins like this is an event stream; `None` when more is needed to tell. The content type is
/// not asked: it is wrong too often in both directions.
pub(super) fn is_event_stream(head: &[u8]) -> Option<bool> {
    let blank = |byte: &u8| byte.is_ascii_whitespace() || "\u{feff}".as_bytes().contains(byte);
    let line = &head[head.iter().position(|byte| !blank(byte)).unwrap_or(head.len())..];
    match line.iter().position(|byte| matches!(byte, b':' | b'\r' | b'\n')) {
        Some(end) => Some(SSE_FIELDS.contains(&&line[..end])),
        None if SSE_FIELDS.iter().any(|field| field.starts_with(line)) => None,
        None => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn event(name: &str, data: &str) -> Event {
        Event { name: name.to_owned(), data: data.to_owned() }
    }

    fn decode(pieces: &[&[u8]]) -> Result<(Vec<Event>, Option<Event>), SseError> {
        let mut decoder = Decoder::default();
        let mut events = Vec::new();
        for piece in pieces {
            events.extend(decoder.push(piece)?);
        }
        Ok((events, decoder.finish()))
    }

    const STREAM: &str = "\u{feff}: hi\n\ndata:{\"a\":1}\r\n\r\nevent: error\rdata: x\rdata:  你\r\rid: 7\nretry: 5\nodd\ndata\n\ndata: [DONE]";

    fn expected() -> (Vec<Event>, Option<Event>) {
        (vec![event("", "{\"a\":1}"), event("error", "x\n 你"), event("", "")], Some(event("", "[DONE]")))
    }

    #[test]
    fn an_event_stream_is_known_by_its_first_field() {
        for head in
            ["data: x", "data:{", ": ping\n", "event:x", "\r\n\r\nid: 1", "\u{feff}data: ", "retry: 5", "data\n"]
        {
            assert_eq!(is_event_stream(head.as_bytes()), Some(true), "{head:?}");
        }
        for head in ["{\"a\":1}", "<html>", "upstream connect error", "Error: no", "dada:", "\n[1]", "data center: x"] {
            assert_eq!(is_event_stream(head.as_bytes()), Some(false), "{head:?}");
        }
        for head in ["", "\n\n", "da", "data", "\u{feff}", "ev"] {
            assert_eq!(is_event_stream(head.as_bytes()), None, "{head:?}");
        }
    }

    #[test]
    fn what_stands_between_the_events_is_not_lost() {
        let mut decoder = Decoder::default();
        let events = decoder.push(b"data: a\n\n{\"error\":{}}\ndata: b\n{\"c\":1}\n\n<html>\n<h1>502</h1>\n").unwrap();
        assert_eq!(events, [event("", "a"), event("", "{\"error\":{}}"), event("", "b")]);
        assert_eq!(decoder.stray(), "{\"c\":1}\n<html>\n<h1>502</h1>\n");
        let line = "x".repeat(1000) + "\n";
        decoder.push(line.repeat(100).as_bytes()).unwrap();
        assert!(decoder.stray().len() < MAX_STRAY);
    }

    #[test]
    fn an_error_without_data_is_an_event() {
        assert_eq!(decode(&[b"event: ping\n\nevent: error\n\n"]), Ok((vec![event("error", "")], None)));
    }

    #[test]
    fn a_stream_may_be_cut_at_every_byte() {
        let bytes = STREAM.as_bytes();
        for cut in 0..=bytes.len() {
            assert_eq!(decode(&[&bytes[..cut], &bytes[cut..]]), Ok(expected()), "cut at {cut}");
        }
        let single: Vec<&[u8]> = bytes.chunks(1).collect();
        assert_eq!(decode(&single), Ok(expected()));
    }

    #[test]
    fn comments_and_blank_lines_are_no_events() {
        assert_eq!(decode(&[b": keep-alive\n\n\n\n: keep-alive\n\n"]), Ok((vec![], None)));
    }

    #[test]
    fn bytes_that_are_not_utf8_are_refused() {
        assert_eq!(decode(&[b"data: \xff\n\n"]), Err(SseError::NotUtf8));
    }

    #[test]
    fn a_line_that_does_not_end_is_refused_before_it_fills_the_memory() {
        let piece = vec![b'x'; MAX_LINE / 4];
        let mut decoder = Decoder::default();
        for _ in 0..4 {
            assert_eq!(decoder.push(&piece), Ok(vec![]));
        }
        assert_eq!(decoder.push(b"x"), Err(SseError::TooLong));
        // The same bound holds for data that is spread over many lines.
        let mut line = b"data: ".to_vec();
        line.extend_from_slice(&piece);
        line.push(b'\n');
        let mut decoder = Decoder::default();
        let outcome = (0..5).map(|_| decoder.push(&line)).find_map(Result::err);
        assert_eq!(outcome, Some(SseError::TooLong));
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_cuts_do_not_matter(bytes: Vec<u8>, cut: prop::sample::Index) {
            let cut = cut.index(bytes.len() + 1);
            prop_assert_eq!(decode(&[&bytes]), decode(&[&bytes[..cut], &bytes[cut..]]));
        }
    }
}
