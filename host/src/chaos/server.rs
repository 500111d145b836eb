//! The server: accepts clients, gives each request its step, and records what came.
//!
//! It owns the listener, the place in the script and the record. It never leaves loopback and never retries anything.

use super::{
    connection::{Connection, Unread, WireRequest},
    protocol::Protocol,
    response::{End, Response},
    script::{Play, Position, RawSource, Script, Step},
};
use bytes::Bytes;
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use std::{
    collections::{HashMap, VecDeque},
    io,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};
use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{mpsc, watch},
    time::{self, Instant},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Connections that the kernel may hold for the server while it is busy: thousands of turns may start at once.
const BACKLOG: u32 = 4096;
/// The pause after a failed accept. It fails when the process has no descriptors left, and goes on when some are free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// The usual size of the record: 256 MiB of requests.
const KEEP_BYTES: usize = 256 * 1024 * 1024;
/// What a kept request costs besides its bytes; an estimate.
const KEPT_OVERHEAD: usize = 512;

/// Why a server did not start, or did not take a script.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    #[error(
        "the chaos provider listens on this machine alone, and {addr} can be reached from others: use 127.0.0.1 or [::1]"
    )]
    NotLoopback { addr: SocketAddr },
    #[error("the chaos provider cannot listen on {addr}: {source}; use a free port, or 0 for any")]
    Listen { addr: SocketAddr, source: io::Error },
    #[error("the file `{}` of a raw step cannot be read: {source}", path.display())]
    RawFile { path: PathBuf, source: io::Error },
}

/// Who shares one walk through the script.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScriptScope {
    /// All requests, in the order of their arrival.
    #[default]
    Global,
    /// The requests with one and the same body. As a retry repeats its request byte by byte, each of many concurrent
    /// turns sees the whole script.
    PerBody,
}

/// How a server is run. The default suits a test: any free port, one walk through the script, everything recorded.
#[derive(Clone, Debug)]
pub struct ChaosOptions {
    /// A loopback address; port 0 takes any free port.
    pub listen: SocketAddr,
    pub scope: ScriptScope,
    /// Whether a POST to any path takes a step, in the way of chat completions; else only one whose path ends in that of
    /// a protocol that the server speaks.
    pub any_path: bool,
    /// The most bytes of requests that are kept for [`ChaosServer::requests`]; the oldest go first.
    pub keep_bytes: usize,
    /// Told about every request.
    pub events: Option<mpsc::UnboundedSender<ChaosEvent>>,
}

impl Default for ChaosOptions {
    fn default() -> Self {
        ChaosOptions {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            scope: ScriptScope::Global,
            any_path: false,
            keep_bytes: KEEP_BYTES,
            events: None,
        }
    }
}

/// What happened to a request.
#[derive(Clone, Debug)]
pub enum ChaosEvent {
    /// A request was read, and has its step.
    Arrived(Arc<RecordedRequest>),
    /// Its response is over; `sent` bytes of it were handed to the kernel.
    Answered { number: u64, sent: u64 },
}

/// A request as it came.
#[derive(Clone, Debug)]
pub struct RecordedRequest {
    /// Counts from 1, in the order in which the requests were complete.
    pub number: u64,
    /// When the request was complete.
    pub arrived: Instant,
    /// Empty if the bytes were no request.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// In the order and spelling of the wire.
    pub headers: Vec<(String, String)>,
    /// The bytes up to and including the blank line.
    pub head: Bytes,
    /// The body's bytes, without their transfer coding.
    pub body: Bytes,
    /// The label of the step that it got, or `None` if it was refused (a wrong path, a request that cannot be read).
    pub step: Option<String>,
}

impl RecordedRequest {
    /// The first header of this name, whatever its case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as text; bytes that are not UTF-8 are replaced.
    pub fn body_text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// A running chaos provider. Dropping it closes every connection and the port.
pub struct ChaosServer {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl ChaosServer {
    /// Starts a server on the current tokio runtime.
    ///
    /// # Errors
    /// The address is not loopback or taken, or the file of a raw step cannot be read.
    pub async fn start(script: Script, options: ChaosOptions) -> Result<Self, ChaosError> {
        let addr = options.listen;
        if !addr.ip().is_loopback() {
            return Err(ChaosError::NotLoopback { addr });
        }
        let script = with_files(script).await?;
        let listen = || -> io::Result<(TcpListener, SocketAddr)> {
            let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
            #[cfg(unix)]
            socket.set_reuseaddr(true)?; // elsewhere it would let two servers share a port
            socket.bind(addr)?;
            let listener = socket.listen(BACKLOG)?;
            let bound = listener.local_addr()?;
            Ok((listener, bound))
        };
        let (listener, addr) = listen().map_err(|source| ChaosError::Listen { addr, source })?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                script,
                began: Instant::now(),
                places: HashMap::new(),
                kept: VecDeque::new(),
                kept_bytes: 0,
                count: 0,
            }),
            count: watch::Sender::new(0),
            options,
        });
        let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
        tasks.spawn(accept(listener, shared.clone(), stop.clone(), tasks.clone()));
        Ok(ChaosServer { addr, shared, stop, tasks })
    }

    /// The address that the server listens on.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// `http://127.0.0.1:PORT`, without a path.
    pub fn url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// The base URL of the provider: `http://127.0.0.1:PORT/v1`.
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.url())
    }

    /// The requests that came, oldest first, up to [`ChaosOptions::keep_bytes`].
    pub fn requests(&self) -> Vec<RecordedRequest> {
        self.shared.state.lock().kept.iter().map(|request| RecordedRequest::clone(request)).collect()
    }

    /// How many requests came, refused ones too.
    pub fn count(&self) -> u64 {
        *self.shared.count.borrow()
    }

    /// Completes when at least `count` requests came since the start.
    pub async fn wait_for_requests(&self, count: u64) {
        // An error would mean that the sender is gone, and it lives in `self`.
        let _ = self.shared.count.subscribe().wait_for(|&now| now >= count).await;
    }

    /// Replaces the script and begins it anew, its outages too. Responses that have begun go on.
    ///
    /// # Errors
    /// The file of a raw step cannot be read; the old script stays.
    pub async fn set_script(&self, script: Script) -> Result<(), ChaosError> {
        let script = with_files(script).await?;
        let mut state = self.shared.state.lock();
        state.script = script;
        state.began = Instant::now();
        state.places.clear();
        Ok(())
    }

    /// Closes every connection and the port, and waits until that is done.
    pub async fn shutdown(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Drop for ChaosServer {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Puts the bytes of its files into a script.
async fn with_files(mut script: Script) -> Result<Script, ChaosError> {
    for step in &mut script.steps {
        if let Play::Raw { source: RawSource::File(path), end } = &step.play {
            let bytes =
                tokio::fs::read(path).await.map_err(|source| ChaosError::RawFile { path: path.clone(), source })?;
            let play = Play::Raw { source: RawSource::Bytes(bytes.into()), end: *end };
            *step = Arc::new(Step { play, ..Step::clone(step) });
        }
    }
    Ok(script)
}

/// What all connections share.
struct Shared {
    state: Mutex<State>,
    count: watch::Sender<u64>,
    options: ChaosOptions,
}

struct State {
    script: Script,
    /// When the script began.
    began: Instant,
    /// The place in the script, for each body's digest under [`ScriptScope::PerBody`].
    places: HashMap<Option<[u8; 32]>, Position>,
    kept: VecDeque<Arc<RecordedRequest>>,
    kept_bytes: usize,
    count: u64,
}

impl Shared {
    /// Gives the request its step and writes it down, in one go, so that numbers and steps are in the same order.
    fn take(&self, request: WireRequest) -> (Arc<Step>, Arc<RecordedRequest>) {
        let scope = match self.options.scope {
            ScriptScope::Global => None,
            ScriptScope::PerBody => Some(Sha256::digest(&request.body).into()),
        };
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let place = state.places.entry(scope).or_default();
        let step = state.script.next(place, state.began.elapsed()).unwrap_or_else(|| Arc::new(Step::ok()));
        let request = self.record(state, request, Some(step.label.clone()));
        (step, request)
    }

    /// Writes a request down that gets no step.
    fn take_refused(&self, request: WireRequest) -> Arc<RecordedRequest> {
        self.record(&mut self.state.lock(), request, None)
    }

    fn record(&self, state: &mut State, request: WireRequest, step: Option<String>) -> Arc<RecordedRequest> {
        state.count += 1;
        let request = Arc::new(RecordedRequest {
            number: state.count,
            arrived: Instant::now(),
            method: request.method,
            target: request.target,
            headers: request.headers,
            head: request.head,
            body: request.body,
            step,
        });
        state.kept_bytes += cost(&request);
        state.kept.push_back(request.clone());
        while state.kept_bytes > self.options.keep_bytes {
            let Some(oldest) = state.kept.pop_front() else { break };
            state.kept_bytes -= cost(&oldest);
        }
        self.count.send_replace(state.count);
        self.tell(ChaosEvent::Arrived(request.clone()));
        request
    }

    fn tell(&self, event: ChaosEvent) {
        if let Some(events) = &self.options.events {
            // A listener that is gone needs no news.
            let _ = events.send(event);
        }
    }

    /// Why a request gets no step, as a status and a sentence.
    fn refuse(&self, request: &WireRequest) -> Option<(u16, String)> {
        let WireRequest { method, target, .. } = request;
        let path = target.split('?').next().unwrap_or_default();
        if !self.options.any_path && Protocol::of(path).is_none() {
            let there = "POST to /v1/chat/completions, /v1/messages or /v1/responses";
            return Some((404, format!("there is nothing at {path}: {there}")));
        }
        (method != "POST").then(|| (405, format!("{method} is not answered here: use POST")))
    }
}

fn cost(request: &RecordedRequest) -> usize {
    request.head.len() * 2 + request.body.len() + KEPT_OVERHEAD
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, stop: CancellationToken, tasks: TaskTracker) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                let (shared, stop) = (shared.clone(), stop.clone());
                tasks.spawn(async move {
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = serve(socket, &shared) => {}
                    }
                });
            }
            Err(_) => time::sleep(ACCEPT_PAUSE).await,
        }
    }
}

/// Answers the requests of one client until either side ends the connection.
async fn serve(socket: TcpStream, shared: &Shared) {
    let mut connection = Connection::new(socket);
    // An error is a client that went away: there is nobody to tell.
    while let Ok(true) = exchange(&mut connection, shared).await {}
}

/// One request and its response. True if the connection can take another.
async fn exchange(connection: &mut Connection, shared: &Shared) -> io::Result<bool> {
    let request = match connection.request().await {
        Ok(request) => request,
        Err(Unread::Gone) => return Ok(false),
        Err(Unread::Bad { status, message, head }) => {
            let request = WireRequest { head, ..WireRequest::default() };
            return refuse(connection, shared, request, status, &message).await;
        }
    };
    if let Some((status, message)) = shared.refuse(&request) {
        return refuse(connection, shared, request, status, &message).await;
    }
    let closes = request.closes();
    let (step, request) = shared.take(request);
    let path = request.target.split('?').next().unwrap_or_default();
    let protocol = Protocol::of(path).unwrap_or_default();
    let mut response = Response::render(&step, protocol, &request.body);
    if closes && response.end == End::KeepAlive {
        response.end = End::Close;
    }
    let mut tally = Tally { number: request.number, sent: 0, shared };
    connection.respond(response, &mut tally.sent).await
}

async fn refuse(
    connection: &mut Connection,
    shared: &Shared,
    request: WireRequest,
    status: u16,
    message: &str,
) -> io::Result<bool> {
    let request = shared.take_refused(request);
    let mut tally = Tally { number: request.number, sent: 0, shared };
    connection.respond(Response::refusal(status, message), &mut tally.sent).await?;
    drop(tally);
    connection.linger().await;
    Ok(false)
}

/// Tells the listener when a response is over, however it ended: a shutdown drops the response half-way.
struct Tally<'a> {
    number: u64,
    sent: u64,
    shared: &'a Shared,
}

impl Drop for Tally<'_> {
    fn drop(&mut self) {
        self.shared.tell(ChaosEvent::Answered { number: self.number, sent: self.sent });
    }
}
