//! One client's connection: reads HTTP/1.1 requests and writes responses, well-behaved or not.
//!
//! It owns the socket and its limits and knows nothing of scripts. Called by [`super::server`].

use super::response::{End, Response};
use bytes::{Buf as _, Bytes, BytesMut};
use std::{future, io, time::Duration};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time,
};

/// The longest head of a request, in bytes: far above what any client of a provider sends.
const MAX_HEAD: usize = 64 * 1024;
/// The most headers of a request.
const MAX_HEADERS: usize = 128;
/// The longest body of a request, in bytes: a long conversation fits, a runaway client does not.
pub(super) const MAX_BODY: usize = 16 * 1024 * 1024;
/// How long a refused client may go on sending before the connection is dropped. Closing at once would make the
/// kernel reset the connection, and the client would never see why.
const LINGER: Duration = Duration::from_secs(1);

/// A request as it came over the wire.
#[derive(Debug, Default)]
pub(super) struct WireRequest {
    pub method: String,
    /// Path and query.
    pub target: String,
    pub headers: Vec<(String, String)>,
    /// The bytes up to and including the blank line.
    pub head: Bytes,
    /// The body, without its transfer coding.
    pub body: Bytes,
}

impl WireRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// Whether the client closes the connection after this request.
    pub fn closes(&self) -> bool {
        self.header("connection")
            .is_some_and(|value| value.split(',').any(|part| part.trim().eq_ignore_ascii_case("close")))
    }
}

/// Why there is no request.
#[derive(Debug)]
pub(super) enum Unread {
    /// The client went away.
    Gone,
    /// The bytes are no request that this server takes.
    Bad { status: u16, message: String, head: Bytes },
}

impl From<io::Error> for Unread {
    fn from(_: io::Error) -> Self {
        Unread::Gone
    }
}

pub(super) struct Connection {
    socket: TcpStream,
    /// What was read and not yet used.
    buffer: BytesMut,
}

impl Connection {
    pub fn new(socket: TcpStream) -> Self {
        // Each piece of a response shall travel alone; a socket that refuses this only merges some.
        let _ = socket.set_nodelay(true);
        Connection { socket, buffer: BytesMut::new() }
    }

    /// Reads the next request with its whole body.
    pub async fn request(&mut self) -> Result<WireRequest, Unread> {
        let mut request = loop {
            if let Some(request) = self.parse_head()? {
                break request;
            }
            self.fill().await?;
        };
        if request.header("expect").is_some_and(|value| value.eq_ignore_ascii_case("100-continue")) {
            self.socket.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
        }
        let chunked = request.header("transfer-encoding").map(|coding| coding.eq_ignore_ascii_case("chunked"));
        request.body = match (chunked, request.header("content-length")) {
            (None, None) => Bytes::new(),
            (None, Some(length)) => {
                let Ok(length) = length.trim().parse::<usize>() else {
                    let message = format!("the content-length `{length}` is no number");
                    return Err(Unread::Bad { status: 400, message, head: request.head });
                };
                if length > MAX_BODY {
                    return Err(too_large(request.head));
                }
                while self.buffer.len() < length {
                    self.fill().await?;
                }
                self.buffer.split_to(length).freeze()
            }
            (Some(true), None) => self.chunked_body(&request.head).await?,
            (Some(_), _) => {
                let message = "the transfer-encoding is not chunked alone".to_owned();
                return Err(Unread::Bad { status: 400, message, head: request.head });
            }
        };
        Ok(request)
    }

    /// Takes a whole head from the buffer, if there is one.
    fn parse_head(&mut self) -> Result<Option<WireRequest>, Unread> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut parsed = httparse::Request::new(&mut headers);
        let refuse = |status, message: String, buffer: &[u8]| {
            let head = Bytes::copy_from_slice(&buffer[..buffer.len().min(MAX_HEAD)]);
            Err(Unread::Bad { status, message, head })
        };
        match parsed.parse(&self.buffer) {
            Ok(httparse::Status::Complete(length)) => {
                if parsed.version != Some(1) {
                    return refuse(505, "this server speaks HTTP/1.1 alone".into(), &self.buffer);
                }
                let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
                let request = WireRequest {
                    method: parsed.method.unwrap_or_default().to_owned(),
                    target: parsed.path.unwrap_or_default().to_owned(),
                    headers: parsed.headers.iter().map(|header| (header.name.to_owned(), text(header.value))).collect(),
                    head: Bytes::new(),
                    body: Bytes::new(),
                };
                let head = self.buffer.split_to(length).freeze();
                Ok(Some(WireRequest { head, ..request }))
            }
            Ok(httparse::Status::Partial) if self.buffer.len() < MAX_HEAD => Ok(None),
            Ok(httparse::Status::Partial) => {
                refuse(431, format!("the head of the request is longer than {MAX_HEAD} bytes"), &self.buffer)
            }
            Err(httparse::Error::TooManyHeaders) => {
                refuse(431, format!("the request has more than {MAX_HEADERS} headers"), &self.buffer)
            }
            Err(error) => refuse(400, format!("this is no HTTP request: {error}"), &self.buffer),
        }
    }

    async fn chunked_body(&mut self, head: &Bytes) -> Result<Bytes, Unread> {
        let bad = |message: &str| Unread::Bad { status: 400, message: message.into(), head: head.clone() };
        let mut body = BytesMut::new();
        loop {
            let (line, size) = loop {
                match httparse::parse_chunk_size(&self.buffer) {
                    Ok(httparse::Status::Complete(found)) => break found,
                    Ok(httparse::Status::Partial) if self.buffer.len() < MAX_HEAD => self.fill().await?,
                    _ => return Err(bad("the size of a chunk of the body cannot be read")),
                }
            };
            self.buffer.advance(line);
            if size == 0 {
                return self.trailers(bad).await.map(|()| body.freeze());
            }
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            if size > MAX_BODY - body.len() {
                return Err(too_large(head.clone()));
            }
            while self.buffer.len() < size + 2 {
                self.fill().await?;
            }
            body.extend_from_slice(&self.buffer.split_to(size));
            if !self.buffer.starts_with(b"\r\n") {
                return Err(bad("a chunk of the body does not end where its size says"));
            }
            self.buffer.advance(2);
        }
    }

    /// Skips the lines after the last chunk.
    async fn trailers(&mut self, bad: impl Fn(&str) -> Unread) -> Result<(), Unread> {
        loop {
            match self.buffer.windows(2).position(|pair| pair == b"\r\n") {
                Some(0) => {
                    self.buffer.advance(2);
                    return Ok(());
                }
                Some(length) => self.buffer.advance(length + 2),
                None if self.buffer.len() < MAX_HEAD => self.fill().await?,
                None => return Err(bad("a line after the body has no end")),
            }
        }
    }

    async fn fill(&mut self) -> io::Result<()> {
        match self.socket.read_buf(&mut self.buffer).await? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(()),
        }
    }

    /// Writes a response and does what its end says. `sent` counts the bytes. True if the connection can take another
    /// request.
    ///
    /// # Errors
    /// The client went away.
    pub async fn respond(&mut self, response: Response, sent: &mut u64) -> io::Result<bool> {
        for piece in response.pieces {
            if !piece.pause.is_zero() {
                self.pause(Some(piece.pause)).await?;
            }
            self.write(&piece.bytes, sent).await?;
        }
        match response.end {
            End::KeepAlive => return Ok(true),
            End::Close => {}
            End::Reset => {
                self.socket.set_zero_linger()?;
                return Ok(false);
            }
            End::Silence { limit, ping } => self.silence(limit, ping, sent).await?,
        }
        self.socket.shutdown().await?;
        Ok(false)
    }

    async fn silence(
        &mut self,
        limit: Option<Duration>,
        ping: Option<(Duration, Bytes)>,
        sent: &mut u64,
    ) -> io::Result<()> {
        let Some((interval, comment)) = ping else {
            return self.pause(limit).await;
        };
        let mut left = limit;
        loop {
            match left {
                Some(time) if time <= interval => return self.pause(left).await,
                Some(time) => left = Some(time - interval),
                None => {}
            }
            self.pause(Some(interval)).await?;
            self.write(&comment, sent).await?;
        }
    }

    async fn write(&mut self, bytes: &[u8], sent: &mut u64) -> io::Result<()> {
        self.socket.write_all(bytes).await?;
        *sent += bytes.len() as u64;
        Ok(())
    }

    /// Waits for `how_long`, or for ever. A client that goes away meanwhile (or closes its sending side, which looks
    /// the same) ends the wait with an error, so that no stalled connection outlives its client.
    async fn pause(&mut self, how_long: Option<Duration>) -> io::Result<()> {
        let socket = &mut self.socket;
        let buffer = &mut self.buffer;
        let leaves = async {
            // What a client sends meanwhile is kept for later, up to the size of one request.
            while buffer.len() < MAX_HEAD + MAX_BODY {
                match socket.read_buf(buffer).await {
                    Ok(0) => return io::ErrorKind::UnexpectedEof.into(),
                    Ok(_) => {}
                    Err(error) => return error,
                }
            }
            future::pending::<io::Error>().await
        };
        let passes = async {
            match how_long {
                Some(time) => time::sleep(time).await,
                None => future::pending().await,
            }
        };
        tokio::select! {
            () = passes => Ok(()),
            error = leaves => Err(error),
        }
    }

    /// Reads and forgets what the client still sends, for a moment, so that it can read the refusal.
    pub async fn linger(&mut self) {
        let forget = async {
            loop {
                self.buffer.clear();
                if self.fill().await.is_err() {
                    return;
                }
            }
        };
        // Whether the client closed or the moment passed: the connection ends now.
        let _ = time::timeout(LINGER, forget).await;
    }
}

fn too_large(head: Bytes) -> Unread {
    Unread::Bad { status: 413, message: format!("the body of the request is longer than {MAX_BODY} bytes"), head }
}
