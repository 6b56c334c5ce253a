//! Files over plain HTTP/1.1, as from a web server without WebDAV.

use crate::background::Background;
use crate::profiled::{self, ProfileCounts, Profiled};
use bytes::Bytes;
use feedstock_base::StoreProfile as Profile;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_RANGES, AUTHORIZATION, CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, IF_MATCH,
    IF_NONE_MATCH, LAST_MODIFIED, RANGE,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::fs::{self, File, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// Serves the files below a folder: GET and HEAD, one range per request, strong ETags, `If-Match` (412) and
/// `If-None-Match` (304). Folders return 404; PROPFIND and all other methods return 405.
///
/// ```
/// use feedstock_testkit::StaticServer;
///
/// # use std::io::{Read, Write};
/// # fn get(endpoint: &str, path: &str, headers: &str) -> String {
/// #     let mut socket = std::net::TcpStream::connect(endpoint.trim_start_matches("http://")).unwrap();
/// #     write!(socket, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n").unwrap();
/// #     let mut answer = Vec::new();
/// #     socket.read_to_end(&mut answer).unwrap();
/// #     String::from_utf8_lossy(&answer).into_owned()
/// # }
/// # let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join("a.txt"), "0123456789")?;
/// let server = StaticServer::start(folder.path())?;
/// let part = get(&server.endpoint(), "/a.txt", "Range: bytes=2-4\r\n");
/// assert!(part.starts_with("HTTP/1.1 206") && part.ends_with("\r\n\r\n234"));
/// assert!(get(&server.endpoint(), "/b.txt", "").starts_with("HTTP/1.1 404"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct StaticServer {
    background: Background,
    profiled: Option<Arc<Profiled>>,
}

/// The features of the server.
#[derive(Debug, Clone)]
struct Abilities {
    ranges: bool,
    etags: bool,
    times: bool,
    guard: Guard,
    profiled: Option<Arc<Profiled>>,
}

impl Default for Abilities {
    fn default() -> Self {
        Self { ranges: true, etags: true, times: false, guard: Guard::Open, profiled: None }
    }
}

/// The requests that the server accepts.
#[derive(Debug, Clone)]
enum Guard {
    Open,
    /// Requests with this `Authorization`; others return 401.
    Authorized(Arc<str>),
    /// Requests whose query has the signature of their method and path; others return 403, as in S3.
    Presigned,
}

impl StaticServer {
    /// Serves `root`.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start(root: impl Into<PathBuf>) -> io::Result<Self> {
        Self::with(root.into(), Abilities::default())
    }

    /// Serves `root`, and answers range requests with the whole file, as simple servers do.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start_without_ranges(root: impl Into<PathBuf>) -> io::Result<Self> {
        Self::with(root.into(), Abilities { ranges: false, ..Abilities::default() })
    }

    /// Serves `root` without ETags and ignores conditions on them, so that clients see names and sizes only.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start_without_etags(root: impl Into<PathBuf>) -> io::Result<Self> {
        Self::with(root.into(), Abilities { etags: false, ..Abilities::default() })
    }

    /// Serves `root` without ETags, but with `Last-Modified`, as Python's `http.server` does. Conditions are ignored.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start_with_times(root: impl Into<PathBuf>) -> io::Result<Self> {
        Self::with(root.into(), Abilities { etags: false, times: true, ..Abilities::default() })
    }

    /// Serves `root` to requests with this `Authorization`, such as `Basic dXNlcjpwYXNz`; others return 401.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start_authorized(root: impl Into<PathBuf>, authorization: &str) -> io::Result<Self> {
        let guard = Guard::Authorized(authorization.into());
        Self::with(root.into(), Abilities { guard, ..Abilities::default() })
    }

    /// Serves `root` to requests whose URL was [presigned](Self::presigned) for their method; others return 403, as
    /// in S3.
    ///
    /// # Errors
    /// If no port is free.
    pub fn start_presigned(root: impl Into<PathBuf>) -> io::Result<Self> {
        Self::with(root.into(), Abilities { guard: Guard::Presigned, ..Abilities::default() })
    }

    /// Returns the path, such as `/x`, with the query that presigns requests of this method.
    ///
    /// ```
    /// use feedstock_testkit::StaticServer;
    ///
    /// # use std::io::{Read, Write};
    /// # fn get(endpoint: &str, path: &str, headers: &str) -> String {
    /// #     let mut socket = std::net::TcpStream::connect(endpoint.trim_start_matches("http://")).unwrap();
    /// #     write!(socket, "GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}\r\n").unwrap();
    /// #     let mut answer = Vec::new();
    /// #     socket.read_to_end(&mut answer).unwrap();
    /// #     String::from_utf8_lossy(&answer).into_owned()
    /// # }
    /// # let folder = tempfile::tempdir()?;
    /// std::fs::write(folder.path().join("a.txt"), "hello")?;
    /// let server = StaticServer::start_presigned(folder.path())?;
    /// assert!(get(&server.endpoint(), &StaticServer::presigned("GET", "/a.txt"), "").ends_with("hello"));
    /// assert!(get(&server.endpoint(), &StaticServer::presigned("HEAD", "/a.txt"), "").starts_with("HTTP/1.1 403"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn presigned(method: &str, path: &str) -> String {
        format!("{path}?X-Amz-Signature={:016x}", signature(method, path))
    }

    /// As [`start`](Self::start); requests meet the fates that `profile` draws from `seed`.
    pub fn start_profiled(root: impl Into<PathBuf>, profile: Profile, seed: u64) -> io::Result<Self> {
        let profiled = Some(Arc::new(Profiled::new(profile, seed)));
        Self::with(root.into(), Abilities { profiled, ..Abilities::default() })
    }

    fn with(root: PathBuf, abilities: Abilities) -> io::Result<Self> {
        let root: Arc<Path> = root.into();
        let profiled = abilities.profiled.clone();
        let background = Background::serve("test-static", move |socket| {
            let (root, abilities) = (Arc::clone(&root), abilities.clone());
            async move {
                let service = service_fn(move |request| {
                    let (root, abilities) = (Arc::clone(&root), abilities.clone());
                    async move {
                        let profiled = abilities.profiled.clone();
                        profiled::answer(profiled.as_deref(), answer(root, abilities, request)).await
                    }
                });
                // A client that closes its connection is not an error.
                let _ = http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
            }
        })?;
        Ok(Self { background, profiled })
    }

    /// Returns what a server with a profile has done; zeros for one without.
    pub fn profile_counts(&self) -> ProfileCounts {
        self.profiled.as_ref().map(|profiled| profiled.counts()).unwrap_or_default()
    }

    /// Returns `http://127.0.0.1:port`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.background.address())
    }
}

type Answer = Response<Full<Bytes>>;

async fn answer(
    root: Arc<Path>,
    abilities: Abilities,
    request: Request<Incoming>,
) -> Result<Answer, Infallible> {
    let done = tokio::task::spawn_blocking(move || respond(&root, &abilities, &request)).await;
    Ok(match done {
        Ok(Ok(answer)) => answer,
        Ok(Err(e)) if e.kind() == io::ErrorKind::NotFound => status(StatusCode::NOT_FOUND),
        _ => status(StatusCode::INTERNAL_SERVER_ERROR),
    })
}

fn status(code: StatusCode) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(format!("{code}\n"))));
    *answer.status_mut() = code;
    answer
}

fn respond<B>(root: &Path, abilities: &Abilities, request: &Request<B>) -> io::Result<Answer> {
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(status(StatusCode::METHOD_NOT_ALLOWED));
    }
    if let Some(refusal) = abilities.guard.refusal(request) {
        return Ok(status(refusal));
    }
    let mut file = File::open(resolve(root, request.uri().path())?)?;
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(status(StatusCode::NOT_FOUND));
    }
    let etag = abilities.etags.then(|| etag(&meta));
    let headers = request.headers();
    let named = |name: &HeaderName| {
        let (tags, etag) = (text(headers, name)?, etag.as_ref()?);
        Some(tags == "*" || tags.contains(etag))
    };
    if named(&IF_MATCH) == Some(false) {
        return Ok(status(StatusCode::PRECONDITION_FAILED));
    }
    if named(&IF_NONE_MATCH) == Some(true) {
        return Ok(status(StatusCode::NOT_MODIFIED));
    }
    let size = meta.len();
    let ranged = text(headers, &RANGE).filter(|_| abilities.ranges);
    let range = match ranged.map(|text| parse_range(text, size)) {
        None => 0..size,
        Some(Some(range)) => range,
        Some(None) => return Ok(status(StatusCode::RANGE_NOT_SATISFIABLE)),
    };
    let length = range.end - range.start;
    let head_only = request.method() == Method::HEAD;
    let body = if head_only { Bytes::new() } else { read(&mut file, &range)? };
    let mut builder = Response::builder().header(CONTENT_LENGTH, length);
    if let Some(etag) = &etag {
        builder = builder.header(ETAG, etag);
    }
    if abilities.times {
        builder = builder.header(LAST_MODIFIED, httpdate::fmt_http_date(meta.modified()?));
    }
    if abilities.ranges {
        builder = builder.header(ACCEPT_RANGES, "bytes");
    }
    if ranged.is_some() {
        let shown = format!("bytes {}-{}/{size}", range.start, range.end - 1);
        builder = builder.status(StatusCode::PARTIAL_CONTENT).header(CONTENT_RANGE, shown);
    }
    builder.body(Full::new(body)).map_err(io::Error::other)
}

impl Guard {
    fn refusal<B>(&self, request: &Request<B>) -> Option<StatusCode> {
        match self {
            Self::Open => None,
            Self::Authorized(expected) => (text(request.headers(), &AUTHORIZATION) != Some(expected))
                .then_some(StatusCode::UNAUTHORIZED),
            Self::Presigned => {
                let signed = StaticServer::presigned(request.method().as_str(), request.uri().path());
                let asked = request.uri().path_and_query().map(|asked| asked.as_str());
                (asked != Some(signed.as_str())).then_some(StatusCode::FORBIDDEN)
            }
        }
    }
}

/// Returns a signature that depends on method and path only; it contains no secret.
fn signature(method: &str, path: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    (method, path).hash(&mut hasher);
    hasher.finish()
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

fn etag(meta: &Metadata) -> String {
    format!("\"{:x}-{:x}.{:x}-{:x}\"", meta.ino(), meta.mtime(), meta.mtime_nsec(), meta.len())
}

fn read(file: &mut File, range: &Range<u64>) -> io::Result<Bytes> {
    let length = range.end - range.start;
    let mut bytes = Vec::with_capacity(usize::try_from(length).map_err(io::Error::other)?);
    file.seek(SeekFrom::Start(range.start))?;
    file.take(length).read_to_end(&mut bytes)?;
    Ok(bytes.into())
}

/// Parses `bytes=a-b`, `bytes=a-` or `bytes=-n`; returns `None` if the range cannot be satisfied.
fn parse_range(text: &str, size: u64) -> Option<Range<u64>> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let range = match (first, last) {
        ("", suffix) => size.saturating_sub(suffix.parse().ok()?)..size,
        (first, "") => first.parse().ok()?..size,
        (first, last) => first.parse().ok()?..last.parse::<u64>().ok()?.checked_add(1)?.min(size),
    };
    (range.start < range.end).then_some(range)
}

/// Returns the file that a URL path names, never outside `root`.
pub(crate) fn resolve(root: &Path, path: &str) -> io::Result<PathBuf> {
    let missing = || io::Error::from(io::ErrorKind::NotFound);
    let mut decoded = Vec::new();
    let mut bytes = path.trim_start_matches('/').bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let hex = [bytes.next().ok_or_else(missing)?, bytes.next().ok_or_else(missing)?];
            let hex = std::str::from_utf8(&hex).map_err(|_| missing())?;
            decoded.push(u8::from_str_radix(hex, 16).map_err(|_| missing())?);
        } else {
            decoded.push(byte);
        }
    }
    let relative = PathBuf::from(String::from_utf8(decoded).map_err(|_| missing())?);
    if !relative.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(missing());
    }
    fs::canonicalize(root.join(relative))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_as_in_rfc_9110() {
        assert_eq!(parse_range("bytes=0-3", 10), Some(0..4));
        assert_eq!(parse_range("bytes=4-", 10), Some(4..10));
        assert_eq!(parse_range("bytes=-3", 10), Some(7..10));
        assert_eq!(parse_range("bytes=4-99", 10), Some(4..10));
        assert_eq!(parse_range("bytes=10-12", 10), None);
        assert_eq!(parse_range("lines=1-2", 10), None);
    }

    #[test]
    fn no_path_leaves_the_root() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a b"), b"x").unwrap();
        assert!(resolve(dir.path(), "/a%20b").is_ok());
        for path in ["/../etc/passwd", "/%2e%2e/x", "//etc/passwd/../..", "/a%2"] {
            assert!(resolve(dir.path(), path).is_err(), "{path}");
        }
    }
}
