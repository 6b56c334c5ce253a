//! Object bodies for the S3 server, in large chunks.

use crate::static_server::resolve;
use bytes::Bytes;
use futures::stream::{Stream, try_unfold};
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, ETAG, HeaderMap};
use hyper::{Method, Request, Response};
use s3s::Body;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tokio::task::spawn_blocking;

const PIECE_BYTES: u64 = 256 << 10;

/// Opens the object that a request may name. The caller must hold the lock under which s3s-fs answers, so that bytes
/// and ETag are of the same object.
pub(crate) fn open<B>(root: &Path, request: &Request<B>) -> Option<File> {
    let path = (request.method() == Method::GET).then(|| resolve(root, request.uri().path()).ok())??;
    path.is_file().then(|| File::open(path).ok())?
}

/// Returns s3s-fs's answer with the object's bytes read here, in chunks of 256 KiB. s3s-fs itself reads chunks of
/// 4 KiB, each through another thread. That takes a core for 120 MB/s, which measurements on the same machine would
/// lack.
pub(crate) fn in_large_pieces(object: Option<File>, answer: Response<Body>) -> Response<Body> {
    match (object, promised(&answer)) {
        (Some(file), Some(range)) => {
            answer.map(|_| Body::http_body_unsync(StreamBody::new(pieces(file, range))))
        }
        _ => answer,
    }
}

/// Returns the part of the object that an answer promises; `None` if the answer has no object's bytes.
fn promised(answer: &Response<Body>) -> Option<Range<u64>> {
    let headers = answer.headers();
    if !answer.status().is_success() || !headers.contains_key(ETAG) {
        return None;
    }
    let length: u64 = text(headers, CONTENT_LENGTH)?.parse().ok()?;
    let start = match text(headers, CONTENT_RANGE) {
        Some(range) => range.strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()?,
        None => 0,
    };
    Some(start..start + length)
}

fn text(headers: &HeaderMap, name: hyper::header::HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

fn pieces(file: File, range: Range<u64>) -> impl Stream<Item = io::Result<Frame<Bytes>>> {
    let file = Arc::new(file);
    try_unfold(range, move |left| {
        let file = Arc::clone(&file);
        async move {
            let length = PIECE_BYTES.min(left.end - left.start);
            if length == 0 {
                return Ok(None);
            }
            let read = move || {
                let mut piece = vec![0; usize::try_from(length).map_err(io::Error::other)?];
                file.read_exact_at(&mut piece, left.start).map(|()| piece)
            };
            let piece = spawn_blocking(read).await.map_err(io::Error::other)??;
            Ok(Some((Frame::data(piece.into()), left.start + length..left.end)))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    fn bytes() -> Vec<u8> {
        (0..=250).cycle().take(600_000).collect()
    }

    async fn served(headers: &[(&str, &str)]) -> Bytes {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join("an object"), bytes()).unwrap();
        let answer =
            headers.iter().fold(Response::builder(), |answer, &(name, value)| answer.header(name, value));
        let answer = answer.body(Body::from("unchanged".to_owned())).unwrap();
        let request = Request::builder().uri("/an%20object").body(()).unwrap();
        let answer = in_large_pieces(open(root.path(), &request), answer);
        answer.into_body().collect().await.unwrap().to_bytes()
    }

    #[tokio::test]
    async fn objects_come_from_their_files_and_all_else_as_it_is() {
        let whole = served(&[("etag", "\"x\""), ("content-length", "600000")]).await;
        assert_eq!(whole, bytes());
        let range = ("content-range", "bytes 1000-599998/600000");
        let part = served(&[("etag", "\"x\""), ("content-length", "598999"), range]).await;
        assert_eq!(part, bytes()[1000..599_999]);
        let listing = served(&[("content-length", "9")]).await;
        assert_eq!(listing, "unchanged");
    }
}
