//! Megatron Energon's `x.tar.idx`: only offsets.
//!
//! Unsigned 64-bit numbers, little-endian: where the first header of each sample begins, and where the last sample ends. The
//! index has neither names nor sizes. With `TarHeaders::Read`, headers are read with the samples (`webdataset/at_read`).
//! Otherwise all headers are read, but several parts of one tar at a time:
//!
//! ```text
//! samples   │a│ b │c│  d  │e│f│ end     each part ends where a sample begins, and the last at the end of the tar;
//! parts     └─────┘ └─────┘ └───────    a walk that does not end exactly there proves the index wrong
//! ```

use super::header;
use super::index_read::{Problem, read, read_required, unfit};
use crate::format::tars::{self, Member, RECORD_BYTES};
use crate::{ObjectRef, Result, Storage};
use futures::{StreamExt, TryStreamExt, stream};
use std::ops::Range;

const OFFSET_BYTES: usize = 8;
/// A smaller part is not worth a request.
const PART_MIN_BYTES: u64 = 4 << 20;

/// Returns the members of a tar, from walks through at most `at_once` parts of it.
pub(super) async fn members(
    tar: &ObjectRef,
    index: &ObjectRef,
    keep: fn(&str) -> bool,
    at_once: usize,
    storage: &Storage,
) -> Result<Vec<Member>, Problem> {
    let parts = parts(&read(index, tar.size, storage).await?, tar.size, at_once).map_err(Problem::Unfit)?;
    let last = parts.len() - 1;
    let mut walks = stream::iter(parts.into_iter().enumerate())
        .map(|(i, part)| async move {
            let walked = match tars::walk_range(tar, part.clone(), keep, storage).await {
                Ok(walked) => walked,
                Err(error) if error.is_damage() => {
                    return unfit(format!("the headers from {} on do not follow it: {error}", part.start));
                }
                Err(error) => return Err(Problem::Failed(error)),
            };
            // The last part has the end marker. A tar without one is walked again as a whole, which logs a warning.
            match walked.to_end == (i < last) {
                true => Ok(walked.members),
                false => unfit(format!("no sample ends at {}", part.end)),
            }
        })
        .buffered(at_once);
    let mut members = Vec::new();
    while let Some(found) = walks.try_next().await? {
        members.extend(found);
    }
    Ok(members)
}

/// What an index of offsets states of a tar.
pub(in crate::format) struct Indexed {
    /// Where samples begin, and where the last one ends.
    pub(in crate::format) offsets: Vec<u64>,
    /// Digest of the first sample's first header: its name and size, not its time and owner, which copies change.
    pub(in crate::format) first_header: u64,
}

/// Returns where the samples of a tar begin, and where the last one ends. Reads the index and the tar's first header, and
/// compares the index with the tar's size.
pub(in crate::format) async fn samples(
    tar: &ObjectRef,
    index: &ObjectRef,
    storage: &Storage,
) -> Result<Indexed, Problem> {
    let index = read_required(index, tar.size, storage).await?;
    let offsets = offsets(&index, tar.size).map_err(Problem::Unfit)?;
    let [first, .., _] = offsets[..] else { return unfit("it has no sample") };
    let header = storage.read(tar, first..tar.size.min(first + RECORD_BYTES)).await?;
    if !header::is_intact(&header) {
        return unfit(format!("no member begins at {first}, where it states the first sample"));
    }
    if first > 0 {
        // Folders and global headers may come first. Files would be samples that it lacks.
        match tars::walk_range(tar, 0..first, |_| true, storage).await {
            Ok(walked) if walked.members.is_empty() && walked.to_end => {}
            Ok(_) => {
                return unfit(format!("its first sample begins at {first}, and there are files before it"));
            }
            Err(error) if error.is_damage() => {
                return unfit(format!("the headers before {first} do not fit: {error}"));
            }
            Err(error) => return Err(Problem::Failed(error)),
        }
    }
    Ok(Indexed { offsets, first_header: header::digest(&header) })
}

/// Parses the index of a tar of `size` bytes.
fn offsets(index: &[u8], size: u64) -> Result<Vec<u64>, String> {
    let (offsets, rest) = index.as_chunks::<OFFSET_BYTES>();
    if !rest.is_empty() || offsets.is_empty() {
        return Err(format!("it has {} bytes, not a number of 64-bit offsets", index.len()));
    }
    let mut before = None::<u64>;
    let checked = |bytes: &[u8; OFFSET_BYTES]| {
        let offset = u64::from_le_bytes(*bytes);
        if offset > size || !offset.is_multiple_of(RECORD_BYTES) || before.is_some_and(|b| b >= offset) {
            return Err(format!(
                "its offset {offset} is not after {}, not a multiple of {RECORD_BYTES}, or beyond the tar's {size} bytes",
                before.map_or("0".to_owned(), |b| b.to_string())
            ));
        }
        before = Some(offset);
        Ok(offset)
    };
    offsets.iter().map(checked).collect()
}

/// Cuts a tar of `size` bytes where samples begin, into at most `most` parts of similar sizes.
fn parts(index: &[u8], size: u64, most: usize) -> Result<Vec<Range<u64>>, String> {
    let part_bytes = size.div_ceil(most.max(1) as u64).max(PART_MIN_BYTES);
    let (mut parts, mut start) = (Vec::new(), 0);
    for offset in offsets(index, size)? {
        if offset - start >= part_bytes && size - offset >= PART_MIN_BYTES {
            parts.push(start..offset);
            start = offset;
        }
    }
    parts.push(start..size);
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn index(offsets: &[u64]) -> Vec<u8> {
        offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect()
    }

    #[test]
    fn tars_are_cut_where_samples_begin() {
        let even: Vec<u64> = (0..=10).map(|i| i * 10 * MIB).collect();
        assert_eq!(parts(&index(&even), 101 * MIB, 1).unwrap(), std::slice::from_ref(&(0..101 * MIB)));
        let cut = parts(&index(&even), 101 * MIB, 4).unwrap();
        assert_eq!(cut, [0..30 * MIB, 30 * MIB..60 * MIB, 60 * MIB..90 * MIB, 90 * MIB..101 * MIB]);
        assert_eq!(
            parts(&index(&[0, MIB, 2 * MIB]), 2 * MIB, 64).unwrap(),
            std::slice::from_ref(&(0..2 * MIB)),
            "a small tar is one part"
        );
    }

    #[test]
    fn offsets_that_no_tar_has_are_refused() {
        for offsets in [&[0_u64, 512, 512][..], &[0, 100], &[1 << 63], &[0, 1024, 512], &[u64::MAX]] {
            assert!(parts(&index(offsets), 1 << 20, 4).is_err(), "{offsets:?}");
        }
        assert!(parts(b"", 1 << 20, 4).is_err() && parts(b"v1.2 3\njpg", 1 << 20, 4).is_err());
    }

    proptest! {
        #[test]
        fn parts_tile_the_tar(
            records in proptest::collection::vec(1_u64..60_000, 1..60), tail in 0_u64..4, most in 0_usize..40,
        ) {
            let mut at = 0;
            let offsets: Vec<u64> = records.iter().map(|n| { let here = at; at += n * 512; here }).collect();
            let size = at + tail * 512;
            let cut = parts(&index(&offsets), size, most).unwrap();
            prop_assert!(cut.len() <= most.max(1));
            prop_assert_eq!((cut[0].start, cut[cut.len() - 1].end), (0, size));
            prop_assert!(cut.windows(2).all(|pair| pair[0].end == pair[1].start && offsets.contains(&pair[1].start)));
        }
    }
}
