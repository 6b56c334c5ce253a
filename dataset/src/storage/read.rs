//! Ranged reads: exactly these bytes of exactly this version of the object.

use super::fetch::{Asked, Partial, blocking, path};
use super::local;
use super::object::ObjectRef;
use super::progress::Progress;
use super::retry::Ended;
use super::store::{Backend, Store};
use super::uri::Scheme;
use crate::{Error, ErrorKind, Result};
use bytes::{Bytes, BytesMut};
use feedstock_base::shown;
use futures::{StreamExt, TryStreamExt};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Maximum bytes of one request, except for a whole object over HTTP, which servers without ranges can send too. Larger ranges
/// are read with several requests at once, into one buffer.
const REQUEST_MAX_BYTES: u64 = 32 << 20;
/// Requests of one large range under way at once: 4 × 60 MB/s fill most of a 2.5 Gbit/s line.
const REQUESTS_AT_ONCE: usize = 4;

impl Store {
    pub(super) async fn read(&self, key: &str, object: &ObjectRef, range: Range<u64>) -> Result<Bytes> {
        let what = || format!("{} bytes {}..{}", shown(&object.uri), range.start, range.end);
        if range.start > range.end || range.end > object.size {
            let size = object.size;
            return Err(Error::new(
                ErrorKind::Bug,
                format!("{}: the range ends beyond the object's {size} bytes", what()),
            ));
        }
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let result = match &self.backend {
            Backend::Local => self.read_file(key, object, &range).await,
            Backend::Remote(remote) => {
                let path = path(key).map_err(|e| e.context(what()))?;
                let len = usize::try_from(range.end - range.start)
                    .map_err(|_| Error::config(format!("{}: the range does not fit in memory", what())))?;
                // servers without ranges can still send a whole object
                let is_whole = self.scheme == Scheme::Http && range == (0..object.size);
                let asked = Asked { remote, path: &path, object };
                if is_whole || range.end - range.start <= REQUEST_MAX_BYTES {
                    self.fetch_small(asked, &range, is_whole).await
                } else {
                    self.fetch_large(asked, &range, len).await
                }
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

    async fn read_file(&self, key: &str, object: &ObjectRef, range: &Range<u64>) -> Result<Bytes, Ended> {
        let progress = Arc::new(Progress::bytes(range.end - range.start));
        self.until_done_with(&progress, |_| {
            let (key, object, range) = (key.to_owned(), object.clone(), range.clone());
            let progress = Arc::clone(&progress);
            blocking(move || local::read(&key, &range, object.etag.as_deref(), object.size, &progress))
        })
        .await
    }

    /// Reads with one request, as a rule.
    async fn fetch_small(
        &self,
        asked: Asked<'_>,
        range: &Range<u64>,
        is_whole: bool,
    ) -> Result<Bytes, Ended> {
        let partial = Partial::new(range.clone(), is_whole);
        let body = self.fetch(asked, &partial).await?;
        Ok(body.unwrap_or_else(|| partial.take().freeze()))
    }

    /// Reads with several requests into one buffer: each is resumed and retried separately.
    async fn fetch_large(&self, asked: Asked<'_>, range: &Range<u64>, len: usize) -> Result<Bytes, Ended> {
        let mut rest = BytesMut::with_capacity(len);
        let mut pieces = Vec::new();
        let mut start = range.start;
        while start < range.end {
            let end = range.end.min(start + REQUEST_MAX_BYTES);
            let piece_bytes = usize::try_from(end - start).unwrap_or(len).min(rest.capacity());
            let after = rest.split_off(piece_bytes);
            pieces.push(Partial::in_place(start..end, std::mem::replace(&mut rest, after)));
            start = end;
        }
        futures::stream::iter(pieces)
            .map(|partial| async move {
                self.fetch(asked, &partial).await?;
                Ok(partial.take())
            })
            .buffered(REQUESTS_AT_ONCE)
            .try_fold(BytesMut::new(), |mut whole, piece| async move {
                whole.unsplit(piece); // neighbours in memory: nothing is copied
                Ok(whole)
            })
            .await
            .map(BytesMut::freeze)
    }
}

/// A request that is larger by this much costs less than a second request: one round trip of 15 ms at 60 MB/s a connection is
/// 900 KB.
const JOIN_GAP_BYTES: u64 = 1 << 20;
/// Files have no round trip; the kernel reads this much ahead anyway.
const JOIN_GAP_LOCAL_BYTES: u64 = 128 << 10;
/// Ranges are not joined beyond this, so that results arrive in parallel and none keeps much memory alive.
const JOINED_MAX_BYTES: u64 = REQUEST_MAX_BYTES;

/// Returns ranges to fetch, and for each requested range the index of the fetched one that holds it.
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

/// Returns the requests that read these ranges of one object, and their bytes, without retries and hedges.
pub(crate) fn count_reads(wanted: &[Range<u64>], local: bool) -> (u64, u64) {
    let lengths = join_ranges(wanted, local).0.into_iter().map(|range| range.end - range.start);
    let largest = if local { u64::MAX } else { REQUEST_MAX_BYTES };
    lengths.fold((0, 0), |(requests, bytes), length| (requests + length.div_ceil(largest), bytes + length))
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
}
