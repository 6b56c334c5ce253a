//! An S3 store whose objects are computed when they are read, with a latency or a profile that takes no CPU time.

use crate::background::Background;
use crate::profiled::{self, ProfileCounts, Profiled};
use bytes::Bytes;
use feedstock_base::StoreProfile as Profile;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, LAST_MODIFIED, RANGE};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fmt::Write;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// Keys per page of a listing, as in S3.
const PAGE_KEYS: usize = 1_000;

type ReadFn = dyn Fn(Range<u64>) -> Bytes + Send + Sync;

/// An object of a [`SimulatedStore`].
#[derive(Clone)]
pub struct SimulatedObject {
    size: u64,
    read: Arc<ReadFn>,
}

impl SimulatedObject {
    /// Creates an object of `size` bytes, which `read` computes.
    pub fn new(size: u64, read: impl Fn(Range<u64>) -> Bytes + Send + Sync + 'static) -> Self {
        Self { size, read: Arc::new(read) }
    }
}

impl From<Bytes> for SimulatedObject {
    fn from(bytes: Bytes) -> Self {
        let at = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        Self::new(bytes.len() as u64, move |range| bytes.slice(at(range.start)..at(range.end)))
    }
}

/// Serves the bucket `bucket`: GET with one range, HEAD, and ListObjectsV2. Signatures are not checked, and nothing
/// can be written. Every answer is delayed by the latency; any number of requests may wait at once.
///
/// ```
/// use std::collections::BTreeMap;
/// use std::time::Duration;
/// use bytes::Bytes;
/// use feedstock_testkit::{SimulatedObject, SimulatedStore};
///
/// # use std::io::{Read, Write};
/// # fn get(endpoint: &str, path: &str, headers: &str) -> String {
/// #     let mut socket = std::net::TcpStream::connect(endpoint.trim_start_matches("http://")).unwrap();
/// #     write!(socket, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n").unwrap();
/// #     let mut answer = Vec::new();
/// #     socket.read_to_end(&mut answer).unwrap();
/// #     String::from_utf8_lossy(&answer).into_owned()
/// # }
/// let zeros = SimulatedObject::new(1 << 40, |range| Bytes::from(vec![b'0'; (range.end - range.start) as usize])); // 1 TiB
/// let store = SimulatedStore::start(BTreeMap::from([("a.bin".to_owned(), zeros)]), Duration::from_millis(5))?;
/// let part = get(&store.endpoint(), "/bucket/a.bin", "Range: bytes=1000000000-1000000003\r\n");
/// assert!(part.starts_with("HTTP/1.1 206") && part.ends_with("\r\n\r\n0000"));
/// assert_eq!(store.requests(), 1);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct SimulatedStore {
    background: Background,
    shared: Arc<Shared>,
}

struct Shared {
    objects: RwLock<BTreeMap<String, SimulatedObject>>,
    latency: Duration,
    profiled: Option<Profiled>,
    waiting: AtomicUsize,
    peak: AtomicUsize,
    requests: AtomicUsize,
}

impl Shared {
    fn objects(&self) -> RwLockReadGuard<'_, BTreeMap<String, SimulatedObject>> {
        self.objects.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimulatedStore {
    /// Serves `objects` under their keys.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(objects: BTreeMap<String, SimulatedObject>, latency: Duration) -> io::Result<Self> {
        Self::with(objects, latency, None)
    }

    /// As [`start`](Self::start); requests meet the fates that `profile` draws from `seed`.
    pub fn start_profiled(
        objects: BTreeMap<String, SimulatedObject>,
        profile: Profile,
        seed: u64,
    ) -> io::Result<Self> {
        Self::with(objects, Duration::ZERO, Some(Profiled::new(profile, seed)))
    }

    fn with(
        objects: BTreeMap<String, SimulatedObject>,
        latency: Duration,
        profiled: Option<Profiled>,
    ) -> io::Result<Self> {
        let (waiting, peak, requests) = Default::default();
        let objects = RwLock::new(objects);
        let shared = Arc::new(Shared { objects, latency, profiled, waiting, peak, requests });
        let of_server = Arc::clone(&shared);
        let background = Background::serve("test-simulated", move |socket| {
            let shared = Arc::clone(&of_server);
            async move {
                let service = service_fn(move |request| {
                    let shared = Arc::clone(&shared);
                    async move { profiled::answer(shared.profiled.as_ref(), answer(&shared, request)).await }
                });
                // A client that closes its connection is not an error.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
            }
        })?;
        Ok(Self { background, shared })
    }

    /// Returns `http://127.0.0.1:port`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.background.address())
    }

    /// Returns the maximum number of requests that waited at once.
    pub fn peak(&self) -> usize {
        self.shared.peak.load(Ordering::Relaxed)
    }

    /// Returns the number of requests since the start.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::Relaxed)
    }

    /// Returns what a store with a profile has done; zeros for one without.
    pub fn profile_counts(&self) -> ProfileCounts {
        self.shared.profiled.as_ref().map(Profiled::counts).unwrap_or_default()
    }

    /// Returns the total bytes of all objects.
    pub fn total_bytes(&self) -> u64 {
        self.shared.objects().values().map(|object| object.size).sum()
    }

    /// Adds an object, or replaces one. The ETag of an object follows from its size.
    pub fn put(&self, key: String, object: SimulatedObject) {
        self.shared.objects.write().unwrap_or_else(PoisonError::into_inner).insert(key, object);
    }
}

type Answer = Response<Full<Bytes>>;

async fn answer(shared: &Shared, request: Request<Incoming>) -> Result<Answer, Infallible> {
    shared.requests.fetch_add(1, Ordering::Relaxed);
    let waiting = shared.waiting.fetch_add(1, Ordering::Relaxed) + 1;
    shared.peak.fetch_max(waiting, Ordering::Relaxed);
    tokio::time::sleep(shared.latency).await;
    shared.waiting.fetch_sub(1, Ordering::Relaxed);
    Ok(respond(&shared.objects(), &request).unwrap_or_else(|| status(StatusCode::BAD_REQUEST)))
}

fn status(code: StatusCode) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::new()));
    *answer.status_mut() = code;
    answer
}

fn respond(objects: &BTreeMap<String, SimulatedObject>, request: &Request<Incoming>) -> Option<Answer> {
    let path = decoded(request.uri().path());
    let key = path.strip_prefix("/bucket")?.trim_start_matches('/');
    if key.is_empty() {
        let asked: HashMap<String, String> = request.uri().query()?.split('&').filter_map(pair).collect();
        return list(objects, &asked);
    }
    let Some(object) = objects.get(key) else { return Some(status(StatusCode::NOT_FOUND)) };
    let mut answer = Response::builder()
        .header(ETAG, format!("\"{:x}\"", object.size))
        .header(LAST_MODIFIED, "Thu, 01 Jan 2026 00:00:00 GMT");
    if request.method() == Method::HEAD {
        return answer.header(CONTENT_LENGTH, object.size).body(Full::default()).ok();
    }
    let asked = request.headers().get(RANGE).and_then(|range| range.to_str().ok());
    let range = match asked {
        None => 0..object.size,
        Some(text) => {
            let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
            let range = first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?.min(object.size);
            if range.start >= range.end {
                return Some(status(StatusCode::RANGE_NOT_SATISFIABLE));
            }
            let shown = format!("bytes {}-{}/{}", range.start, range.end - 1, object.size);
            answer = answer.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, shown);
            range
        }
    };
    answer.body(Full::new((object.read)(range))).ok()
}

/// Returns a page of a listing, with folders if the request has a delimiter.
fn list(objects: &BTreeMap<String, SimulatedObject>, asked: &HashMap<String, String>) -> Option<Answer> {
    let of = |name: &str| asked.get(name).map_or("", String::as_str);
    let (prefix, delimiter, after) = (of("prefix"), of("delimiter"), of("continuation-token"));
    let mut page = String::from("<?xml version=\"1.0\"?><ListBucketResult>");
    let (mut keys, mut folder, mut last) = (0, String::new(), None);
    for (key, object) in objects.range(after.to_owned()..).filter(|(key, _)| key.starts_with(prefix)) {
        if key == after {
            continue;
        }
        if keys == PAGE_KEYS {
            let token: &str = last.unwrap_or_default();
            write!(page, "<NextContinuationToken>{token}</NextContinuationToken>").ok()?;
            break;
        }
        last = Some(key.as_str());
        let end = Some(delimiter).filter(|d| !d.is_empty()).and_then(|d| key[prefix.len()..].find(d));
        if let Some(end) = end {
            let this = &key[..prefix.len() + end + 1];
            if this != folder {
                this.clone_into(&mut folder);
                write!(page, "<CommonPrefixes><Prefix>{this}</Prefix></CommonPrefixes>").ok()?;
                keys += 1;
            }
            continue;
        }
        keys += 1;
        write!(
            page,
            "<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>\
             <ETag>&quot;{:x}&quot;</ETag><Size>{}</Size></Contents>",
            object.size, object.size
        )
        .ok()?;
    }
    page.push_str("</ListBucketResult>");
    Response::builder().header(CONTENT_TYPE, "application/xml").body(Full::new(page.into())).ok()
}

fn pair(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    Some((name.to_owned(), decoded(value)))
}

/// Percent-decodes a text; keys of these stores are ASCII.
fn decoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let byte = rest.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        out.push(byte.map_or('%', char::from));
        rest = rest.get(at + if byte.is_some() { 3 } else { 1 }..).unwrap_or_default();
    }
    out + rest
}
