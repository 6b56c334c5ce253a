//! Ranged reads: exactly these bytes of exactly this version of the object.

use super::retry::within;
use super::secret::shown;
use super::store::{Backend, Remote, Store};
use super::uri::Scheme;
use super::{Fault, ObjectRef, local};
use crate::{Error, ErrorKind, Result};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl Store {
    pub(super) async fn read(&self, key: &str, object: &ObjectRef, range: Range<u64>) -> Result<Bytes> {
        let what = || format!("{} bytes {}..{}", shown(&object.uri), range.start, range.end);
        if range.start > range.end || range.end > object.size {
            let size = object.size;
            return Err(Error::new(
                ErrorKind::Bug,
                format!("{}: asked beyond the object's {size} bytes", what()),
            ));
        }
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let result = match &self.backend {
            Backend::Local => {
                self.until_done(|_| {
                    let (key, object, range) = (key.to_owned(), object.clone(), range.clone());
                    blocking(move || local::read(&key, &range, object.etag.as_deref(), object.size))
                })
                .await
            }
            Backend::Remote(remote) => {
                let path = path(key).map_err(|e| e.context(what()))?;
                // servers without ranges can still send a whole object
                let whole = self.scheme == Scheme::Http && range == (0..object.size);
                let if_match = object.etag.as_deref().and_then(|etag| if_match(etag, self.scheme));
                let options = GetOptions {
                    range: (!whole).then(|| GetRange::Bounded(range.clone())),
                    if_match,
                    ..GetOptions::default()
                };
                self.until_done(|_| {
                    fetch(remote, &path, options.clone(), object, range.clone(), self.stall())
                })
                .await
            }
        };
        match result {
            Ok(bytes) => {
                self.shared.counters.read_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                Ok(bytes)
            }
            Err(ended) => Err(self.explain(ended, &what()).await),
        }
    }
}

/// One attempt. The length is checked against the range, size and ETag against the catalog's.
async fn fetch(
    remote: &Remote,
    path: &Path,
    options: GetOptions,
    object: &ObjectRef,
    range: Range<u64>,
    stall: Duration,
) -> Result<Bytes, Fault> {
    let answer = within(stall, remote.objects.get_opts(path, options)).await?;
    check_version(&answer.meta, object)?;
    let expected = range.end - range.start;
    if answer.range != range {
        let got = answer.range.end.saturating_sub(answer.range.start);
        return Err(Fault::Length { expected, got });
    }
    let capacity = usize::try_from(expected)
        .map_err(|_| Fault::Refused(format!("{expected} bytes do not fit memory")))?;
    let mut body = answer.into_stream();
    let mut first = None;
    let mut rest = BytesMut::new();
    let mut got = 0_u64;
    loop {
        let Some(part) = within(stall, async { Ok::<_, Fault>(body.next().await) }).await? else { break };
        let part = part?;
        got += part.len() as u64;
        if got > expected {
            return Err(Fault::Length { expected, got });
        }
        if first.is_none() && got == expected {
            first = Some(part); // the whole body in one piece: nothing to copy
            continue;
        }
        if rest.capacity() == 0 {
            rest.reserve(capacity);
        }
        rest.extend_from_slice(&part);
        first.get_or_insert_default();
    }
    if got != expected {
        return Err(Fault::Length { expected, got });
    }
    Ok(if rest.is_empty() { first.unwrap_or_default() } else { rest.freeze() })
}

/// Some stores ignore `If-Match`, so the answer's own ETag and size are compared too.
fn check_version(now: &ObjectMeta, then: &ObjectRef) -> Result<(), Fault> {
    if now.size != then.size {
        return Err(Fault::Changed(format!("{} bytes then, {} now", then.size, now.size)));
    }
    match (then.etag.as_deref(), now.e_tag.as_deref()) {
        (Some(a), Some(b)) if bare(a) != bare(b) => Err(Fault::Changed(format!("ETag {a} then, {b} now"))),
        _ => Ok(()),
    }
}

/// An ETag without quotes and weakness: listings and headers of one store differ in them.
fn bare(etag: &str) -> &str {
    etag.trim().trim_start_matches("W/").trim_matches('"')
}

/// The header's value; weak tags never match by RFC 9110 §13.1.1, so they are not sent.
fn if_match(etag: &str, scheme: Scheme) -> Option<String> {
    match scheme {
        _ if etag.starts_with("W/") => None,
        Scheme::Memory => Some(etag.to_owned()),
        _ => Some(format!("\"{}\"", bare(etag))),
    }
}

/// The key as object_store's type; keys that it cannot hold are refused by name.
pub(super) fn path(key: &str) -> Result<Path> {
    Path::parse(key).map_err(|e| Error::config(format!("the key '{key}' cannot be addressed: {e}")))
}

/// File I/O off the async threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) => Err(Fault::Refused(format!("a file operation ended without a result: {e}"))),
    }
}

/// A request this much larger than needed costs less than a second request: one round trip of 15 ms at
/// 60 MB/s a connection is 900 KB.
const JOIN_GAP_BYTES: u64 = 1 << 20;
/// Files have no round trip; a read ahead of this much is what the kernel does anyway.
const JOIN_GAP_LOCAL_BYTES: u64 = 128 << 10;
/// Ranges are not joined beyond this, so that pieces arrive in parallel and no piece keeps much memory alive.
const JOINED_MAX_BYTES: u64 = 32 << 20;

/// Ranges to fetch, and for each wanted range the fetched one that holds it.
pub(super) fn join_ranges(wanted: &[Range<u64>], local: bool) -> (Vec<Range<u64>>, Vec<usize>) {
    let gap = if local { JOIN_GAP_LOCAL_BYTES } else { JOIN_GAP_BYTES };
    let mut by_start: Vec<usize> = (0..wanted.len()).collect();
    by_start.sort_by_key(|&i| (wanted[i].start, wanted[i].end));
    let mut joined: Vec<Range<u64>> = Vec::new();
    let mut holder = vec![0; wanted.len()];
    for i in by_start {
        let range = &wanted[i];
        match joined.last_mut() {
            Some(last)
                if range.end <= last.end
                    || (range.start <= last.end.saturating_add(gap)
                        && range.end - last.start <= JOINED_MAX_BYTES) =>
            {
                last.end = last.end.max(range.end);
            }
            _ => joined.push(range.clone()),
        }
        holder[i] = joined.len() - 1;
    }
    (joined, holder)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn joined_ranges_hold_what_was_wanted_and_little_else(
            raw in proptest::collection::vec((0_u64..200 << 20, 0_u64..8 << 20), 0..60),
            local in any::<bool>(),
        ) {
            let wanted: Vec<_> = raw.iter().map(|&(start, len)| start..start + len).collect();
            let (joined, holder) = join_ranges(&wanted, local);
            for (range, &h) in wanted.iter().zip(&holder) {
                prop_assert!(joined[h].start <= range.start && range.end <= joined[h].end);
            }
            for pair in joined.windows(2) {
                prop_assert!(pair[0].start <= pair[1].start);
            }
            for range in &joined {
                prop_assert!(range.end - range.start <= JOINED_MAX_BYTES);
            }
            let fetched: u64 = joined.iter().map(|r| r.end - r.start).sum();
            let asked: u64 = wanted.iter().map(|r| r.end - r.start).sum();
            prop_assert!(fetched <= asked + wanted.len() as u64 * JOIN_GAP_BYTES);
        }
    }

    #[test]
    fn weak_etags_are_compared_but_not_sent() {
        assert_eq!(if_match("W/\"a\"", Scheme::Http), None);
        assert_eq!(if_match("0x8D", Scheme::Azure).as_deref(), Some("\"0x8D\""));
        assert_eq!(if_match("\"a\"", Scheme::S3).as_deref(), Some("\"a\""));
        assert_eq!(bare("W/\"a\""), bare("\"a\""));
    }
}
