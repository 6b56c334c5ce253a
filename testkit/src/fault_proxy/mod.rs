//! A proxy that injects faults into HTTP by rules.
//!
//! The first rule that matches a request and is still due determines the answer; other requests are forwarded. The
//! proxy reads whole requests and opens a connection upstream for each. It owns the client's socket, so it can reset
//! it, close it early or fall silent at any byte.

mod rule;

pub use rule::{Fault, Rule};

use crate::background::Background;
use crate::wire::{Head, read_body, read_head};
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request that reached the proxy.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// GET, HEAD, PUT …
    pub method: String,
    /// Path and query, as sent.
    pub path: String,
    /// The `Range` header.
    pub range: Option<String>,
    /// The `If-Match` header.
    pub if_match: Option<String>,
    /// All headers, in the order in which they were sent.
    pub headers: Vec<(String, String)>,
    /// The status sent to the client; `None` if the connection broke first.
    pub status: Option<u16>,
    /// Whether a rule applied.
    pub faulty: bool,
}

impl Exchange {
    /// Returns the value of the first header with this name, ignoring case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

#[derive(Default)]
struct State {
    rules: Vec<Rule>,
    log: Vec<Exchange>,
    in_flight: usize,
    peak: usize,
    /// Requests wait until this number of them is in the proxy, but not beyond this time.
    gathering: Option<(usize, Instant)>,
}

struct Shared {
    upstream: SocketAddr,
    state: Mutex<State>,
    /// The turn to send on the shared line; waiting answers are served in order.
    line: tokio::sync::Mutex<()>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether requests still wait for others.
    fn gathers(&self) -> bool {
        let mut state = self.lock();
        let in_flight = state.in_flight;
        state.gathering = state.gathering.filter(|(n, until)| in_flight < *n && Instant::now() < *until);
        state.gathering.is_some()
    }
}

/// A running proxy.
pub struct FaultProxy {
    background: Background,
    shared: Arc<Shared>,
}

impl FaultProxy {
    /// Starts a proxy in front of `endpoint` (`http://127.0.0.1:port`).
    ///
    /// # Errors
    /// If the endpoint has no address or no port is free.
    pub fn start(endpoint: &str) -> io::Result<Self> {
        let address = endpoint.trim_start_matches("http://").trim_end_matches('/');
        let upstream = address.parse().map_err(io::Error::other)?;
        let shared = Arc::new(Shared { upstream, state: Mutex::default(), line: Default::default() });
        let for_connections = Arc::clone(&shared);
        let background = Background::serve("test-proxy", move |socket| {
            let shared = Arc::clone(&for_connections);
            async move {
                let _ = serve(socket, &shared).await; // broken connections are intended
            }
        })?;
        Ok(Self { background, shared })
    }

    /// Returns `http://127.0.0.1:port`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.background.address())
    }

    /// Adds a rule. Earlier rules have precedence.
    pub fn inject(&self, rule: Rule) {
        self.shared.lock().rules.push(rule);
    }

    /// Removes all rules.
    pub fn heal(&self) {
        self.shared.lock().rules.clear();
    }

    /// Returns all requests since the start or the last [`forget`](Self::forget).
    pub fn log(&self) -> Vec<Exchange> {
        self.shared.lock().log.clone()
    }

    /// Returns the maximum number of simultaneous requests since then.
    pub fn concurrency_peak(&self) -> usize {
        self.shared.lock().peak
    }

    /// Holds requests back until `n` of them are in the proxy at once, but at most for the time `at_most` from now.
    /// The peak then shows the client's own limit, even if the client is slow.
    pub fn gather(&self, n: usize, at_most: Duration) {
        self.shared.lock().gathering = Some((n, Instant::now() + at_most));
    }

    /// Clears the log and the peak.
    pub fn forget(&self) {
        let mut state = self.shared.lock();
        state.log.clear();
        state.peak = state.in_flight;
    }
}

/// Counts one request as in the proxy until it is dropped.
struct InFlight<'a>(&'a Shared);

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.lock().in_flight -= 1;
    }
}

/// Answers the requests of one connection until either side closes it.
async fn serve(mut client: TcpStream, shared: &Shared) -> io::Result<()> {
    let mut buffer = Vec::new();
    while let Some(head) = read_head(&mut client, &mut buffer).await? {
        let length = head.length().unwrap_or(0);
        let body =
            read_body(&mut client, &mut buffer, usize::try_from(length).map_err(io::Error::other)?).await?;
        let mut parts = head.first_line.split(' ');
        let method = parts.next().unwrap_or_default().to_owned();
        let path = parts.next().unwrap_or_default().to_owned();
        let (fault, _in_flight, slot) = {
            let mut state = shared.lock();
            state.in_flight += 1;
            state.peak = state.peak.max(state.in_flight);
            let in_flight = state.in_flight;
            let fault = state.rules.iter_mut().find_map(|rule| rule.take(&method, &path, in_flight));
            let slot = state.log.len();
            state.log.push(Exchange {
                range: head.get("range").map(str::to_owned),
                if_match: head.get("if-match").map(str::to_owned),
                headers: head.headers.clone(),
                method,
                path,
                status: None,
                faulty: fault.is_some(),
            });
            (fault, InFlight(shared), slot)
        };
        while shared.gathers() {
            tokio::time::sleep(GATHERED_EVERY).await;
        }
        let note = |status| {
            if let Some(exchange) = shared.lock().log.get_mut(slot) {
                exchange.status = status;
            }
        };
        let last = head.get("connection").is_some_and(|c| c.eq_ignore_ascii_case("close"));
        if !answer(&mut client, shared, head, body, fault, note).await? || last {
            return Ok(());
        }
    }
    Ok(())
}

/// Answers one request. Returns `false` if the connection must be closed.
async fn answer(
    client: &mut TcpStream,
    shared: &Shared,
    head: Head,
    body: Vec<u8>,
    fault: Option<Fault>,
    note: impl Fn(Option<u16>),
) -> io::Result<bool> {
    let bodiless = head.first_line.starts_with("HEAD ");
    match fault {
        Some(Fault::Status(code)) => return refuse(client, (code, None), bodiless, note).await,
        Some(Fault::StatusAfter(code, time)) => {
            tokio::time::sleep(time).await;
            return refuse(client, (code, None), bodiless, note).await;
        }
        Some(Fault::StatusRetryAfter(code, seconds)) => {
            return refuse(client, (code, Some(seconds)), bodiless, note).await;
        }
        Some(Fault::Redirect(code, location)) => {
            let mut head = Head { first_line: format!("HTTP/1.1 {code} Injected"), headers: Vec::new() };
            head.set("location", location);
            head.set("content-length", "0");
            note(Some(code));
            client.write_all(&head.to_bytes()).await?;
            return Ok(true);
        }
        Some(Fault::ResetBeforeHead) => {
            client.set_zero_linger()?;
            return Ok(false);
        }
        Some(Fault::StallBeforeHead(time) | Fault::Latency(time)) => tokio::time::sleep(time).await,
        _ => {}
    }
    let (mut answer, body) = ask(shared.upstream, head, &body, bodiless).await?;
    answer.remove("connection");
    if let Some(Fault::OtherEtag(etag)) = &fault {
        answer.set("etag", format!("\"{etag}\""));
    }
    if let Some(Fault::WithoutHeader(name)) = &fault {
        answer.remove(name);
    }
    if !bodiless {
        answer.remove("transfer-encoding"); // the body is complete by now
        answer.set("content-length", body.len().to_string());
    }
    note(answer.status());
    let cut = |n: usize| n.min(body.len());
    match fault {
        Some(Fault::ResetMidBody(n)) => {
            client.write_all(&answer.to_bytes()).await?;
            client.write_all(&body[..cut(n)]).await?;
            client.flush().await?;
            tokio::time::sleep(RESET_DELAY).await;
            client.set_zero_linger()?;
            return Ok(false);
        }
        Some(Fault::ShortBody(n)) => {
            client.write_all(&answer.to_bytes()).await?;
            client.write_all(&body[..cut(n)]).await?;
            client.shutdown().await?;
            return Ok(false);
        }
        Some(Fault::ShortLength(n)) => {
            answer.set("content-length", cut(n).to_string());
            client.write_all(&answer.to_bytes()).await?;
            client.write_all(&body[..cut(n)]).await?;
        }
        Some(Fault::StallMidBody(n, time)) => {
            client.write_all(&answer.to_bytes()).await?;
            client.write_all(&body[..cut(n)]).await?;
            client.flush().await?;
            tokio::time::sleep(time).await;
            client.write_all(&body[cut(n)..]).await?;
        }
        Some(Fault::TrickleMidBody(n, bytes_per_s)) => {
            client.write_all(&answer.to_bytes()).await?;
            client.write_all(&body[..cut(n)]).await?;
            trickle(client, &body[cut(n)..], bytes_per_s.max(1)).await?;
        }
        Some(Fault::SharedLine(bytes_per_s)) => {
            client.write_all(&answer.to_bytes()).await?;
            for part in body.chunks(LINE_STEP_BYTES) {
                let _turn = shared.line.lock().await;
                tokio::time::sleep(Duration::from_secs(part.len() as u64).div_f64(bytes_per_s.max(1) as f64))
                    .await;
                client.write_all(part).await?;
                client.flush().await?;
            }
        }
        _ => {
            client.write_all(&answer.to_bytes()).await?;
            client.write_all(&body).await?;
        }
    }
    client.flush().await?;
    Ok(true)
}

/// Bytes that one answer sends per turn on a shared line.
const LINE_STEP_BYTES: usize = 2 << 10;

/// Sends `body` at about `bytes_per_s`.
async fn trickle(client: &mut TcpStream, body: &[u8], bytes_per_s: u64) -> io::Result<()> {
    let step = usize::try_from(bytes_per_s / 20).map_err(io::Error::other)?.max(1);
    let pause = Duration::from_secs(step as u64).div_f64(bytes_per_s as f64);
    for part in body.chunks(step) {
        tokio::time::sleep(pause).await;
        client.write_all(part).await?;
        client.flush().await?;
    }
    Ok(())
}

/// Interval at which the proxy checks whether all requests that it waits for have come.
const GATHERED_EVERY: Duration = Duration::from_millis(1);

/// A reset immediately after the bytes would make the kernel drop them unread.
const RESET_DELAY: Duration = Duration::from_millis(20);

/// Answers with a status, and in how many seconds to ask again. An answer to HEAD has no body: the client would take it for the next
/// answer.
async fn refuse(
    client: &mut TcpStream,
    (code, retry_after): (u16, Option<u64>),
    bodiless: bool,
    note: impl Fn(Option<u16>),
) -> io::Result<bool> {
    let s3_code = match code {
        503 => "SlowDown",
        429 => "TooManyRequests",
        412 => "PreconditionFailed",
        401 | 403 => "AccessDenied",
        500.. => "InternalError",
        _ => "InvalidRequest",
    };
    let body = format!("<Error><Code>{s3_code}</Code><Message>injected</Message></Error>");
    let mut head = Head { first_line: format!("HTTP/1.1 {code} Injected"), headers: Vec::new() };
    head.set("content-type", "application/xml");
    head.set("content-length", body.len().to_string());
    if let Some(seconds) = retry_after {
        head.set("retry-after", seconds.to_string());
    }
    note(Some(code));
    client.write_all(&head.to_bytes()).await?;
    if !bodiless {
        client.write_all(body.as_bytes()).await?;
    }
    client.flush().await?;
    Ok(true)
}

/// Forwards the request and reads the whole answer.
async fn ask(
    upstream: SocketAddr,
    mut head: Head,
    body: &[u8],
    bodiless: bool,
) -> io::Result<(Head, Vec<u8>)> {
    let mut server = TcpStream::connect(upstream).await?;
    server.set_nodelay(true)?;
    head.set("connection", "close");
    server.write_all(&head.to_bytes()).await?;
    server.write_all(body).await?;
    let mut buffer = Vec::new();
    let answer = read_head(&mut server, &mut buffer).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
    if bodiless {
        return Ok((answer, Vec::new()));
    }
    server.read_to_end(&mut buffer).await?;
    let chunked = answer.get("transfer-encoding").is_some_and(|e| e.eq_ignore_ascii_case("chunked"));
    let body = if chunked { dechunk(&buffer)? } else { buffer };
    Ok((answer, body))
}

fn dechunk(mut bytes: &[u8]) -> io::Result<Vec<u8>> {
    let broken = || io::Error::from(io::ErrorKind::InvalidData);
    let mut out = Vec::with_capacity(bytes.len());
    loop {
        let end = bytes.windows(2).position(|w| w == b"\r\n").ok_or_else(broken)?;
        let size = std::str::from_utf8(&bytes[..end]).map_err(|_| broken())?;
        let size =
            usize::from_str_radix(size.split(';').next().unwrap_or("").trim(), 16).map_err(|_| broken())?;
        if size == 0 {
            return Ok(out);
        }
        let start = end + 2;
        out.extend_from_slice(bytes.get(start..start + size).ok_or_else(broken)?);
        bytes = bytes.get(start + size + 2..).ok_or_else(broken)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_joined() {
        assert_eq!(dechunk(b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n").unwrap(), b"abcde");
        assert!(dechunk(b"5\r\nab").is_err());
    }
}
