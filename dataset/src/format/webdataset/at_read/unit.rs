//! What the catalog keeps of up to 4,096 samples of a tar.
//!
//! ```text
//! first offset, u64 │ digest of the tar's first header, u64 │ whether the tar ends after them, u8 │ records of each sample, u32 …
//! ```
//! All numbers are little-endian.

use crate::format::tars::RECORD_BYTES;
use crate::{Error, ErrorKind, Result};
use bytes::Bytes;
use std::hash::Hasher;
use std::ops::Range;

const HEAD_BYTES: usize = 17;

/// The samples of a unit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unit {
    /// Where samples begin, and where the last one ends.
    offsets: Vec<u64>,
    is_last: bool,
}

/// Describes the samples that begin at all offsets but the last.
pub(super) fn pack(offsets: &[u64], is_last: bool, first_header: u64) -> Result<Vec<u8>> {
    let first = offsets.first().copied().unwrap_or_default();
    let mut packed = Vec::with_capacity(HEAD_BYTES + 4 * offsets.len());
    packed.extend(first.to_le_bytes());
    packed.extend(first_header.to_le_bytes());
    packed.push(u8::from(is_last));
    for sample in offsets.windows(2) {
        let records = u32::try_from((sample[1] - sample[0]) / RECORD_BYTES);
        let records = records
            .map_err(|_| Error::config("a sample of over 2 TiB in a tar; the limit is 2^32 records"))?;
        packed.extend(records.to_le_bytes());
    }
    Ok(packed)
}

/// Hashes the places of a unit's samples and the tar's first header.
pub(in crate::format::webdataset) fn digest(unit: &Bytes) -> Result<u64> {
    Unit::parse(unit)?; // rejects a damaged one
    let mut hash = twox_hash::XxHash64::default();
    hash.write(unit);
    Ok(hash.finish())
}

impl Unit {
    pub(super) fn parse(packed: &[u8]) -> Result<Self> {
        let broken =
            || Error::new(ErrorKind::Bug, "a description of samples in the catalog cannot be parsed");
        let (head, rest) = packed.split_first_chunk::<HEAD_BYTES>().ok_or_else(broken)?;
        let (first, [.., is_last]) = head.split_first_chunk::<8>().ok_or_else(broken)? else {
            return Err(broken());
        };
        let mut at = u64::from_le_bytes(*first);
        let (records, []) = rest.as_chunks::<4>() else { return Err(broken()) };
        let mut offsets = Vec::with_capacity(1 + records.len());
        offsets.push(at);
        for records in records {
            let bytes = u64::from(u32::from_le_bytes(*records)) * RECORD_BYTES;
            at = at.checked_add(bytes).filter(|_| bytes > 0).ok_or_else(broken)?;
            offsets.push(at);
        }
        Ok(Self { offsets, is_last: *is_last == 1 })
    }

    /// Returns the bytes of samples of the unit.
    pub(super) fn samples(&self, rows: &Range<u64>) -> Result<Vec<Range<u64>>> {
        let index = |row: u64| usize::try_from(row).ok();
        let offsets = index(rows.start).zip(index(rows.end)).and_then(|(a, b)| self.offsets.get(a..=b));
        let offsets = offsets.ok_or_else(|| Error::new(ErrorKind::Bug, "a sample is outside of its unit"))?;
        Ok(offsets.windows(2).map(|sample| sample[0]..sample[1]).collect())
    }

    /// Returns the bytes of the end marker that a tar of `size` bytes has at this offset; 0 where a sample follows.
    pub(super) fn end_marker(&self, offset: u64, size: u64) -> u64 {
        match self.is_last && self.offsets.last() == Some(&offset) {
            true => size.saturating_sub(offset).min(RECORD_BYTES),
            false => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_states_where_its_samples_are() {
        let packed = pack(&[512, 2048, 1 << 40], true, 7).unwrap();
        assert_eq!(packed.len(), HEAD_BYTES + 8);
        let unit = Unit::parse(&packed).unwrap();
        assert_eq!(unit.samples(&(0..2)).unwrap(), [512..2048, 2048..1 << 40]);
        assert_eq!(unit.samples(&(1..2)).unwrap(), std::slice::from_ref(&(2048..1 << 40)));
        assert_eq!((unit.end_marker(2048, u64::MAX), unit.end_marker(1 << 40, u64::MAX)), (0, RECORD_BYTES));
        assert_eq!(unit.end_marker(1 << 40, 1 << 40), 0, "a tar without an end marker");
        assert!(unit.samples(&(1..3)).is_err());
        assert!(!Unit::parse(&pack(&[0, 512], false, 7).unwrap()).unwrap().end_marker(512, 1024) > 0);
        assert!(pack(&[0, 512 << 32], false, 7).is_err());
    }

    /// Catalogs come from other machines, too.
    #[test]
    fn damaged_descriptions_are_refused() {
        let packed = pack(&[512, 2048, 4096], true, 7).unwrap();
        for end in (0..packed.len()).filter(|end| (end % 4) != 1 || *end < HEAD_BYTES) {
            assert!(Unit::parse(&packed[..end]).is_err(), "{end}");
        }
        let mut empty = packed.clone();
        empty[HEAD_BYTES..HEAD_BYTES + 4].fill(0);
        assert!(Unit::parse(&empty).is_err(), "a sample without records");
        let mut far = packed;
        far[..8].fill(0xff);
        assert!(Unit::parse(&far).is_err());
    }
}
