//! The small buffers of units of which parts are read: offsets, bits, numbers, short texts.
//!
//! ```text
//! unit ─▶ its small buffers, read once ─▶ place of a part's payloads ─▶ one request for each part
//! ```
//! Without them, a part would take a request for its offsets, one for its payloads and one for its other columns. A reader
//! holds those of the units that it read first, up to [`HELD_BYTES`]; the units that were read longest ago are dropped. A
//! sample has 4 to 100 bytes of them: 10⁶ samples of images with labels take about 12 MB.

use crate::cache::RangeReader;
use crate::catalog::Recent;
use crate::{ObjectRef, Result};
use bytes::Bytes;
use std::ops::Range;

/// Limit on what one reader holds.
pub(super) const HELD_BYTES: u64 = 32 << 20;

/// Limit on the small buffers of one unit. Larger ones are read in part, each time.
pub(super) const UNIT_BYTES: u64 = 2 << 20;

/// The small buffers of one unit: where each is in its object, in this order, and its bytes.
#[derive(Debug, Clone, Default)]
pub(crate) struct Side(Vec<(u64, Bytes)>);

/// The small buffers that one reader holds, by unit. Clones share them.
#[derive(Clone)]
pub(crate) struct Sides(Recent<Side>);

impl Default for Sides {
    fn default() -> Self {
        Self(Recent::new(HELD_BYTES))
    }
}

impl Sides {
    /// Returns the small buffers of `unit`, which are at `ranges`. They are read once, however many parts need them at a time;
    /// none if they are larger than 2 MiB.
    pub(crate) async fn of_unit(
        &self,
        unit: u32,
        object: &ObjectRef,
        ranges: &[Range<u64>],
        reader: &RangeReader,
    ) -> Result<Side> {
        let bytes = ranges.iter().map(|range| range.end.saturating_sub(range.start)).sum::<u64>();
        if bytes > UNIT_BYTES {
            return Ok(Side::default());
        }
        let read = async {
            let read = reader.read_ranges(object, ranges).await?;
            // Copied: ranges that are read together share memory with the bytes between them.
            let copied = read.iter().map(|bytes| Bytes::copy_from_slice(bytes));
            let mut side: Vec<(u64, Bytes)> = ranges.iter().map(|range| range.start).zip(copied).collect();
            side.sort_unstable_by_key(|(start, bytes)| (*start, bytes.len()));
            Ok(Side(side))
        };
        self.0.get(unit, read, |_| bytes).await
    }
}

impl Side {
    /// Returns the bytes of `range`, if they are in one of the buffers.
    fn get(&self, range: &Range<u64>) -> Option<Bytes> {
        if range.is_empty() {
            return Some(Bytes::new());
        }
        let at = self.0.partition_point(|(start, _)| *start <= range.start).checked_sub(1)?;
        let (start, bytes) = &self.0[at];
        let from = usize::try_from(range.start - start).ok()?;
        let to = usize::try_from(range.end - start).ok()?;
        (to <= bytes.len()).then(|| bytes.slice(from..to))
    }

    /// Reads `ranges`: those in the small buffers from memory, the others together.
    pub(crate) async fn read_ranges(
        &self,
        object: &ObjectRef,
        ranges: &[Range<u64>],
        reader: &RangeReader,
    ) -> Result<Vec<Bytes>> {
        let mut found: Vec<Option<Bytes>> = ranges.iter().map(|range| self.get(range)).collect();
        let missing: Vec<usize> = (0..ranges.len()).filter(|&i| found[i].is_none()).collect();
        if !missing.is_empty() {
            let wanted: Vec<Range<u64>> = missing.iter().map(|&i| ranges[i].clone()).collect();
            for (i, bytes) in missing.into_iter().zip(reader.read_ranges(object, &wanted).await?) {
                found[i] = Some(bytes);
            }
        }
        Ok(found.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_found_within_one_buffer() {
        let side = Side(vec![(10, Bytes::from_static(b"abcd")), (14, Bytes::from_static(b"ef"))]);
        assert_eq!(side.get(&(11..13)).as_deref(), Some(b"bc".as_slice()));
        assert_eq!(side.get(&(14..16)).as_deref(), Some(b"ef".as_slice()));
        assert_eq!(side.get(&(13..15)), None);
        assert_eq!(side.get(&(9..11)), None);
        assert_eq!(side.get(&(15..17)), None);
        assert_eq!(side.get(&(99..99)).as_deref(), Some(b"".as_slice()));
    }
}
