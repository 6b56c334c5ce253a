//! A bucket of S3 that has keys but no bytes: it answers listings and HEAD, and computes its keys on demand.
//!
//! Ten million keys take no memory, so listings and catalogs of that size can be tested and measured.

use crate::background::Background;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, ETAG, LAST_MODIFIED};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Write;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The keys of a bucket, in bytewise order and without duplicates.
pub trait Keys: Send + Sync + 'static {
    /// Returns the number of keys.
    fn len(&self) -> u64;

    /// Returns the key at `index`, which is less than [`len`](Self::len).
    fn key(&self, index: u64) -> String;

    /// Returns the size of its object in bytes, by default 1,000 to 1,999. It is 0 if the key ends with `/`, which
    /// marks a folder.
    fn size(&self, index: u64) -> u64 {
        if self.key(index).ends_with('/') { 0 } else { 1_000 + index % 1_000 }
    }

    /// Returns whether there are no keys.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Keys for Vec<String> {
    fn len(&self) -> u64 {
        self.len() as u64
    }

    fn key(&self, index: u64) -> String {
        #[expect(clippy::cast_possible_truncation, reason = "an index of this vector")]
        self[index as usize].clone()
    }
}

/// How a [`KeyServer`] answers.
#[derive(Debug, Clone)]
pub struct KeyServerOptions {
    /// The latency of every answer; default zero.
    pub latency: Duration,
    /// Whether `start-after` is honoured; default true. Some stores ignore it.
    pub obeys_start_after: bool,
    /// Whether pages are in bytewise order; default true. If not, each page is reversed.
    pub is_sorted: bool,
}

impl Default for KeyServerOptions {
    fn default() -> Self {
        Self { latency: Duration::ZERO, obeys_start_after: true, is_sorted: true }
    }
}

/// Counters of listings and requests.
#[derive(Default)]
struct Counts {
    listings: AtomicU64,
    at_once: AtomicU64,
    most_at_once: AtomicU64,
}

/// A server on which every bucket has the same keys. Signatures are not checked.
///
/// ```
/// use feedstock_testkit::{KeyServer, KeyServerOptions};
///
/// # use std::io::{Read, Write};
/// # fn get(endpoint: &str, path: &str, headers: &str) -> String {
/// #     let mut socket = std::net::TcpStream::connect(endpoint.trim_start_matches("http://")).unwrap();
/// #     write!(socket, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n").unwrap();
/// #     let mut answer = Vec::new();
/// #     socket.read_to_end(&mut answer).unwrap();
/// #     String::from_utf8_lossy(&answer).into_owned()
/// # }
/// let keys = vec!["a/1.jpg".to_owned(), "b/2.jpg".to_owned()];
/// let server = KeyServer::start(keys, KeyServerOptions::default())?;
/// let page = get(&server.endpoint(), "/bucket?list-type=2&prefix=b/", "");
/// assert!(page.contains("<Key>b/2.jpg</Key>") && !page.contains("a/1.jpg"));
/// assert_eq!(server.listings(), 1);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct KeyServer {
    background: Background,
    counts: Arc<Counts>,
}

impl KeyServer {
    /// Serves `keys`.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(keys: impl Keys, options: KeyServerOptions) -> io::Result<Self> {
        let counts = Arc::new(Counts::default());
        let bucket = Arc::new(Bucket { keys: Box::new(keys), options, counts: Arc::clone(&counts) });
        let background = Background::serve("test-keys", move |socket| {
            let bucket = Arc::clone(&bucket);
            async move {
                let service = service_fn(move |request| answer(Arc::clone(&bucket), request));
                // A client that closes its connection is not an error.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
            }
        })?;
        Ok(Self { background, counts })
    }

    /// Returns `http://127.0.0.1:port`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.background.address())
    }

    /// Returns the number of pages listed so far.
    pub fn listings(&self) -> u64 {
        self.counts.listings.load(Ordering::Relaxed)
    }

    /// Returns the maximum number of simultaneous requests.
    pub fn most_at_once(&self) -> u64 {
        self.counts.most_at_once.load(Ordering::Relaxed)
    }
}

struct Bucket {
    keys: Box<dyn Keys>,
    options: KeyServerOptions,
    counts: Arc<Counts>,
}

/// The parameters of a listing.
struct Listing {
    prefix: String,
    delimiter: String,
    /// The last key or common prefix that has been listed.
    after: String,
    max_keys: usize,
}

async fn answer(
    bucket: Arc<Bucket>,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let counts = Arc::clone(&bucket.counts);
    let at_once = counts.at_once.fetch_add(1, Ordering::Relaxed) + 1;
    counts.most_at_once.fetch_max(at_once, Ordering::Relaxed);
    if !bucket.options.latency.is_zero() {
        tokio::time::sleep(bucket.options.latency).await;
    }
    let answer = bucket.answer(&request);
    counts.at_once.fetch_sub(1, Ordering::Relaxed);
    Ok(answer)
}

impl Bucket {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = decode(request.uri().path(), false);
        let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
        let query: HashMap<String, String> =
            request.uri().query().unwrap_or_default().split('&').filter_map(pair).collect();
        match *request.method() {
            Method::HEAD if !key.is_empty() => self.head(key),
            Method::GET if query.contains_key("list-type") => self.list(&query),
            _ => status(StatusCode::METHOD_NOT_ALLOWED),
        }
    }

    fn head(&self, key: &str) -> Response<Full<Bytes>> {
        let index = self.first(|at| at >= key);
        if index == self.keys.len() || self.keys.key(index) != key {
            return status(StatusCode::NOT_FOUND);
        }
        let mut found = status(StatusCode::OK);
        let headers = found.headers_mut();
        headers.insert(CONTENT_LENGTH, self.keys.size(index).into());
        let texts = [(ETAG, etag(index)), (LAST_MODIFIED, "Sat, 01 Nov 2025 00:00:00 GMT".into())];
        for (name, text) in texts {
            if let Ok(value) = text.parse() {
                headers.insert(name, value);
            }
        }
        found
    }

    fn list(&self, query: &HashMap<String, String>) -> Response<Full<Bytes>> {
        self.counts.listings.fetch_add(1, Ordering::Relaxed);
        let text = |name: &str| query.get(name).cloned().unwrap_or_default();
        let after = match query.get("continuation-token") {
            Some(token) => token.clone(),
            None if self.options.obeys_start_after => text("start-after"),
            None => String::new(),
        };
        let listing = Listing {
            prefix: text("prefix"),
            delimiter: text("delimiter"),
            after,
            max_keys: text("max-keys").parse().map_or(1_000, |most: usize| most.min(1_000)),
        };
        let xml = self.page(&listing);
        let mut found = Response::new(Full::new(Bytes::from(xml)));
        found
            .headers_mut()
            .insert("content-type", hyper::header::HeaderValue::from_static("application/xml"));
        found
    }

    fn page(&self, asked: &Listing) -> String {
        let (mut entries, mut token, mut count) = (Vec::new(), None, 0);
        let mut last = asked.after.clone();
        // Keys below a common prefix that was listed are skipped with it.
        let is_folder = !asked.delimiter.is_empty()
            && last.ends_with(&asked.delimiter)
            && last.len() > asked.prefix.len();
        let mut index = match is_folder {
            true => self.first(|key| key > last.as_str() && !key.starts_with(&last)),
            false => self.first(|key| key > last.as_str()),
        };
        index = index.max(self.first(|key| key >= asked.prefix.as_str()));
        while index < self.keys.len() {
            let key = self.keys.key(index);
            let Some(rest) = key.strip_prefix(&asked.prefix) else { break };
            if count == asked.max_keys {
                token = Some(last);
                break;
            }
            count += 1;
            let folder = Some(&asked.delimiter).filter(|d| !d.is_empty());
            match folder.and_then(|delimiter| rest.find(delimiter.as_str()).map(|at| at + delimiter.len())) {
                Some(end) => {
                    let folder = &key[..asked.prefix.len() + end];
                    entries.push(format!(
                        "<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>",
                        escaped(folder)
                    ));
                    index = self.first(|key| key > folder && !key.starts_with(folder));
                    last = folder.to_owned();
                }
                None => {
                    entries.push(format!(
                        "<Contents><Key>{}</Key><LastModified>2025-11-01T00:00:00.000Z</LastModified><ETag>{}</ETag>\
                         <Size>{}</Size><StorageClass>STANDARD</StorageClass></Contents>",
                        escaped(&key),
                        escaped(&etag(index)),
                        self.keys.size(index)
                    ));
                    index += 1;
                    last = key;
                }
            }
        }
        if !self.options.is_sorted {
            entries.reverse();
        }
        let mut xml =
            String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?><ListBucketResult><Name>b</Name>");
        let _ = write!(xml, "<KeyCount>{count}</KeyCount><IsTruncated>{}</IsTruncated>", token.is_some());
        if let Some(token) = token {
            let _ = write!(xml, "<NextContinuationToken>{}</NextContinuationToken>", escaped(&token));
        }
        xml.extend(entries);
        xml.push_str("</ListBucketResult>");
        xml
    }

    /// Returns the index of the first key for which `is` holds; it must hold for all that follow.
    fn first(&self, is: impl Fn(&str) -> bool) -> u64 {
        let (mut low, mut high) = (0, self.keys.len());
        while low < high {
            let middle = low + (high - low) / 2;
            if is(&self.keys.key(middle)) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        low
    }
}

/// Returns an ETag in the form that S3 makes of the MD5 of an object's bytes.
fn etag(index: u64) -> String {
    let mixed = (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    format!("\"{mixed:016x}{:016x}\"", mixed.rotate_left(29) ^ index)
}

fn status(code: StatusCode) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::new(Bytes::new()));
    *answer.status_mut() = code;
    answer
}

fn escaped(text: &str) -> String {
    if !text.contains(['&', '<', '>', '"']) {
        return text.to_owned();
    }
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn pair(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    Some((decode(name, true), decode(value, true)))
}

/// Percent-decodes; in a query, `+` is a space.
fn decode(text: &str, is_query: bool) -> String {
    let (bytes, mut decoded, mut at) = (text.as_bytes(), Vec::new(), 0);
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match (bytes[at], hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                decoded.push(byte);
                at += 2;
            }
            (b'+', _) if is_query => decoded.push(b' '),
            (byte, _) => decoded.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
