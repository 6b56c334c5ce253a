//! Reading ranges of objects through the disk cache.

use super::DiskCache;
use crate::{Error, ErrorKind, ObjectRef, Result, Storage};
use bytes::Bytes;
use std::ops::Range;

/// Reads ranges of objects for one block, through the disk cache if there is one.
#[derive(Clone)]
pub(crate) struct RangeReader {
    pub(crate) storage: Storage,
    pub(crate) cache: Option<DiskCache>,
    pub(crate) next_use: u64,
}

/// Gaps up to this size are cached, too, so that a block is not cut into several entries: tar headers, the page headers of
/// columns not chosen.
const CACHE_GAP_BYTES: u64 = 64 << 10;

impl RangeReader {
    pub(crate) async fn read_ranges(&self, object: &ObjectRef, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let Some(cache) = &self.cache else { return self.storage.read_ranges(object, ranges).await };
        let joined = join_ranges(ranges, CACHE_GAP_BYTES);
        let mut held = Vec::with_capacity(joined.len());
        for range in &joined {
            held.push(cache.read_through(&self.storage, object, range.clone(), self.next_use).await?);
        }
        let cut = |range: &Range<u64>| {
            let at = joined.partition_point(|j| j.start <= range.start).checked_sub(1)?;
            let offset = |byte: u64| usize::try_from(byte - joined[at].start).ok();
            Some(held[at].slice(offset(range.start)?..offset(range.end)?))
        };
        let pieces: Option<Vec<Bytes>> = ranges.iter().map(cut).collect();
        pieces.ok_or_else(|| Error::new(ErrorKind::Bug, "a range is outside the joined ranges"))
    }
}

/// Returns sorted, disjoint ranges that cover all of `ranges`, with gaps up to `gap` closed.
fn join_ranges(ranges: &[Range<u64>], gap: u64) -> Vec<Range<u64>> {
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|r| (r.start, r.end));
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in sorted {
        match joined.last_mut() {
            Some(last) if range.start <= last.end.saturating_add(gap) => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_ranges_are_joined_and_far_ones_are_not() {
        let joined = join_ranges(&[100..110, 0..10, 12..20, 15..18, 200..200], 5);
        assert_eq!(joined, [0..20, 100..110, 200..200]);
    }
}
