//! What adapters over HTTP share: the client, its limits, and the naming of what went wrong on the wire.

use crate::llm::{Evidence, classify::WireFault};
use hyper_util::client::proxy::matcher::Matcher;
use reqwest::{Client, Url, redirect, retry};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use std::{error::Error as StdError, io, net::IpAddr, sync::Arc, time::Duration};

/// How long the parts of one call may take. A limit that passes ends the call with `TIMEOUT` and names itself.
///
/// | limit | default | why |
/// |---|---|---|
/// | `connect` | 10 s | name, connection and TLS; a reachable host needs far less |
/// | `first_byte` | 120 s | from the start of the call to the response's head; a queue may stand before the model |
/// | `first_content` | 600 s | from the head to the first content; a long prompt is read before the first word |
/// | `content` | 900 s | between two pieces of content, reasoning included; some models fall silent for many minutes |
/// | `idle` | 300 s | between two reads of the body; any byte counts, also a comment or a ping that keeps the connection alive |
/// | `total` | none | the whole call; a stream that flows is healthy however long it is |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub connect: Duration,
    pub first_byte: Duration,
    pub first_content: Duration,
    pub content: Duration,
    pub idle: Duration,
    pub total: Option<Duration>,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(120),
            first_content: Duration::from_secs(600),
            content: Duration::from_secs(900),
            idle: Duration::from_secs(300),
            total: None,
        }
    }
}

impl Limits {
    /// Every limit that is set, by its name.
    pub(super) fn named(&self) -> impl Iterator<Item = (&'static str, Duration)> {
        let total = self.total.map(|total| ("total", total));
        [
            ("connect", self.connect),
            ("first-byte", self.first_byte),
            ("first-content", self.first_content),
            ("content", self.content),
            ("idle", self.idle),
        ]
        .into_iter()
        .chain(total)
    }
}

/// Whether the host of a URL is this machine, so that no proxy and no certificate can be involved.
pub(super) fn is_loopback(url: &Url) -> bool {
    let Some(host) = url.host_str() else { return false };
    match host.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>() {
        Ok(address) => address.is_loopback(),
        Err(_) => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// Builds the client for one provider.
///
/// One call is one request on one fresh connection over HTTP/1.1: nothing is retried, no redirect is followed, and no
/// idle connection is kept, so that a failure is always about the call that shows it.
///
/// Certificates are verified by the platform's verifier with the roots that the operating system trusts, with the
/// `ring` provider. Reading those roots costs some milliseconds, which is why a client is built on first use, and why
/// one for plain HTTP to this machine has none: it never speaks TLS. Proxies come from the environment (and from the
/// system's settings where it has some), except for this machine.
///
/// # Errors
/// The TLS backend cannot be set up, for instance because the system has no root certificates.
pub(super) fn client(url: &Url, limits: &Limits) -> Result<Client, reqwest::Error> {
    let mut builder = Client::builder()
        .user_agent(concat!("retake/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .referer(false)
        .http1_only()
        .pool_max_idle_per_host(0)
        .tcp_nodelay(true)
        .connect_timeout(limits.connect);
    let loopback = is_loopback(url);
    if loopback {
        builder = builder.no_proxy();
    }
    if loopback && url.scheme() == "http" {
        builder = builder.tls_backend_preconfigured(without_roots());
    } else {
        // The first one wins; when another part of the process has installed a provider, that is as good.
        let _ = ring::default_provider().install_default();
    }
    builder.build()
}

/// The proxy that the environment puts before a URL, without its credential. As in [`client`], there is none before this
/// machine.
pub(super) fn proxy_of(url: &Url) -> Option<String> {
    if is_loopback(url) {
        return None;
    }
    let proxy = Matcher::from_system().intercept(&url.as_str().parse::<http::Uri>().ok()?)?;
    let uri = proxy.uri();
    Some(format!("{}://{}:{}", uri.scheme_str().unwrap_or("http"), uri.host()?, uri.port_u16().unwrap_or(80)))
}

/// A TLS configuration that trusts nobody.
fn without_roots() -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        // The provider is the one that rustls itself ships for these versions.
        .expect("ring supports the default TLS versions")
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth()
}

/// A failure below HTTP, taken apart.
#[derive(Debug)]
pub(super) struct WireError {
    pub(super) fault: WireFault,
    /// The kinds found along the chain of causes, outermost first.
    pub(super) causes: Vec<String>,
    /// The operating system's error number.
    pub(super) os_error: Option<i32>,
    /// The innermost cause, in words.
    pub(super) text: String,
}

impl WireError {
    /// Walks the whole chain of causes: the outer texts say little, and the kind is somewhere inside.
    pub(super) fn of(error: &reqwest::Error) -> Self {
        let mut walk = Walk { kinds: Vec::new(), os_error: None, text: String::new() };
        if error.is_dns() {
            walk.add(WireFault::Dns);
        }
        walk.source(error.source());
        if walk.kinds.is_empty() {
            walk.add(match () {
                () if error.is_timeout() => WireFault::Timeout,
                () if error.is_connect() => WireFault::Connect,
                () if error.is_decode() => WireFault::Malformed,
                () => WireFault::Other,
            });
        }
        let text = if walk.text.is_empty() { "the request could not be sent".to_owned() } else { walk.text };
        // The innermost kind is the nearest to what happened, but a resolver fails for reasons of its own, and so does a proxy.
        let strongest = [WireFault::Timeout, WireFault::Proxy, WireFault::Dns, WireFault::Tls];
        let fault = strongest.into_iter().find(|kind| walk.kinds.contains(kind)).or(walk.kinds.last().copied());
        WireError {
            fault: fault.unwrap_or(WireFault::Other),
            causes: walk.kinds.iter().map(|kind| kind.as_str().to_owned()).collect(),
            os_error: walk.os_error,
            text,
        }
    }

    /// The same, of a connection that was to go through a proxy: whatever failed, failed there.
    pub(super) fn through_proxy(mut self) -> Self {
        if matches!(self.fault, WireFault::Connect | WireFault::Dns | WireFault::Other) {
            self.fault = WireFault::Proxy;
        }
        if !self.causes.iter().any(|cause| cause == WireFault::Proxy.as_str()) {
            self.causes.push(WireFault::Proxy.as_str().to_owned());
        }
        self
    }

    /// The evidence of a fault in the given phase.
    pub(super) fn evidence(self, phase: &str) -> Evidence {
        Evidence { phase: Some(phase.to_owned()), causes: self.causes, os_error: self.os_error, ..Evidence::default() }
    }
}

struct Walk {
    kinds: Vec<WireFault>,
    os_error: Option<i32>,
    text: String,
}

impl Walk {
    fn add(&mut self, kind: WireFault) {
        if !self.kinds.contains(&kind) {
            self.kinds.push(kind);
        }
    }

    fn source(&mut self, mut source: Option<&(dyn StdError + 'static)>) {
        while let Some(error) = source {
            self.text = error.to_string();
            if error.is::<rustls::Error>() {
                self.add(WireFault::Tls);
            } else if let Some(error) = error.downcast_ref::<io::Error>() {
                self.io(error);
                // An `io::Error` that wraps another error skips it in its own chain.
                if let Some(inner) = error.get_ref() {
                    self.source(Some(inner));
                    return;
                }
            } else {
                self.named(&error.to_string());
            }
            source = error.source();
        }
    }

    fn io(&mut self, error: &io::Error) {
        use io::ErrorKind::*;
        self.os_error = self.os_error.or(error.raw_os_error());
        match error.kind() {
            ConnectionRefused | HostUnreachable | NetworkUnreachable | NetworkDown | AddrNotAvailable => {
                self.add(WireFault::Connect);
            }
            ConnectionReset | ConnectionAborted | BrokenPipe => self.add(WireFault::Reset),
            UnexpectedEof => self.add(WireFault::Eof),
            TimedOut => self.add(WireFault::Timeout),
            _ => {}
        }
    }

    /// Errors of private types, which only their text tells apart. The texts are those of hyper and hyper-util; the
    /// tests over real sockets notice when one changes.
    fn named(&mut self, text: &str) {
        let text = text.to_ascii_lowercase();
        let starts = |starts: &[&str]| starts.iter().any(|start| text.starts_with(start));
        if starts(&["dns error", "failed to lookup"]) {
            self.add(WireFault::Dns);
        } else if text.contains("tunnel") || text.contains("proxy") {
            self.add(WireFault::Proxy);
        } else if starts(&[
            "connection closed before",
            "end of file before",
            "unexpected eof",
            "unexpected end of file",
        ]) {
            self.add(WireFault::Eof);
        } else if starts(&["operation timed out", "deadline has elapsed"]) {
            self.add(WireFault::Timeout);
        } else if starts(&[
            "invalid http",
            "invalid content-length",
            "invalid transfer-encoding",
            "message head is too large",
        ]) || text.contains("parsed")
            || text.contains("chunk size")
            || text.contains("gzip")
        {
            self.add(WireFault::Malformed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn this_machine_is_known_by_all_its_names() {
        for text in
            ["http://127.0.0.1:1/v1", "http://127.9.9.9", "http://[::1]:80", "http://localhost", "https://a.localhost"]
        {
            assert!(is_loopback(&url(text)), "{text}");
        }
        for text in ["http://10.0.0.1", "http://localhost.example.com", "https://example.com", "http://[2001:db8::1]"] {
            assert!(!is_loopback(&url(text)), "{text}");
        }
    }

    #[test]
    fn a_kind_is_found_below_texts_that_hide_it() {
        let tls = io::Error::other(rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac));
        let reset = io::Error::other(io::Error::from(io::ErrorKind::ConnectionReset));
        for (error, kind) in [(tls, WireFault::Tls), (reset, WireFault::Reset)] {
            let outer = io::Error::other(error);
            let mut walk = Walk { kinds: Vec::new(), os_error: None, text: String::new() };
            walk.source(Some(&outer));
            assert_eq!(walk.kinds, [kind]);
        }
    }
}
