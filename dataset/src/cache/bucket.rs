//! A bucket of the [table](super::table): its slots, each with the place of an entry.
//!
//! ```text
//! slot · slot · … · slot      113 of 36 bytes: key (16) · slab (4) · first block (2) · blocks (2) · CRC-32 (4) · use (8)
//! ```
//! A slot is free if its checksum is wrong or its key belongs to another bucket. `use` is written by other processes: the
//! place in the order, plus one, where they need the entry next.

use super::entry::{Extent, Key, SLAB_BLOCKS};

pub(super) const BUCKET_BYTES: usize = 4096;
pub(super) const SLOT_BYTES: usize = 36;
/// What the checksum covers is before it, the use after it.
const CRC_AT: usize = 24;
pub(super) const USE_AT: usize = 28;
pub(super) const SLOTS: usize = BUCKET_BYTES / SLOT_BYTES;
/// The checksum also covers name and format version.
const MAGIC: &[u8; 8] = b"fstable1";

pub(super) type Bucket = [u8; BUCKET_BYTES];

pub(super) const EMPTY: [u8; SLOT_BYTES] = [0; SLOT_BYTES];

pub(super) fn bucket_of(key: Key, buckets: u64) -> u64 {
    let masked = key & u128::from(buckets.saturating_sub(1)); // a power of two
    u64::try_from(masked).unwrap_or(0)
}

pub(super) fn slots(bucket: &Bucket) -> impl Iterator<Item = (Key, Extent)> {
    bucket.chunks_exact(SLOT_BYTES).filter_map(decode)
}

pub(super) fn free_slot(read: &Bucket, bucket: u64, buckets: u64) -> Option<usize> {
    let empty = read.chunks_exact(SLOT_BYTES).position(|slot| slot == EMPTY); // without checksums
    empty.or_else(|| read.chunks_exact(SLOT_BYTES).position(|slot| is_free(slot, bucket, buckets)))
}

pub(super) fn is_free(slot: &[u8], bucket: u64, buckets: u64) -> bool {
    decode(slot).is_none_or(|(key, _)| bucket_of(key, buckets) != bucket)
}

/// Returns the slots of a bucket whose keys belong to the bucket `of` among `buckets`. They keep their positions.
pub(super) fn only_of(read: &Bucket, of: u64, buckets: u64) -> Bucket {
    let mut only = [0; BUCKET_BYTES];
    for (to, from) in only.chunks_exact_mut(SLOT_BYTES).zip(read.chunks_exact(SLOT_BYTES)) {
        if !is_free(from, of, buckets) {
            to.copy_from_slice(from);
        }
    }
    only
}

/// Returns a bucket with the slots of another one in its free slots, if it has enough. The other slots stay where they are.
pub(super) fn with(read: &Bucket, bucket: u64, buckets: u64, added: &Bucket) -> Option<Bucket> {
    let mut merged = *read;
    let mut added = added.chunks_exact(SLOT_BYTES).filter(|slot| **slot != EMPTY);
    for slot in merged.chunks_exact_mut(SLOT_BYTES).filter(|slot| is_free(slot, bucket, buckets)) {
        slot.copy_from_slice(added.next().unwrap_or(&EMPTY));
    }
    added.next().is_none().then_some(merged)
}

pub(super) fn encode(key: Key, extent: Extent) -> [u8; SLOT_BYTES] {
    let mut slot = [0; SLOT_BYTES];
    slot[..16].copy_from_slice(&key.to_le_bytes());
    slot[16..20].copy_from_slice(&extent.slab.to_le_bytes());
    slot[20..22].copy_from_slice(&extent.block.to_le_bytes());
    slot[22..CRC_AT].copy_from_slice(&extent.blocks.to_le_bytes());
    let crc = checksum(&slot[..CRC_AT]);
    slot[CRC_AT..USE_AT].copy_from_slice(&crc);
    slot
}

pub(super) fn decode(slot: &[u8]) -> Option<(Key, Extent)> {
    if slot == EMPTY || slot[CRC_AT..USE_AT] != checksum(&slot[..CRC_AT]) {
        return None;
    }
    let extent = Extent {
        slab: u32::from_le_bytes(slot[16..20].try_into().ok()?),
        block: u16::from_le_bytes(slot[20..22].try_into().ok()?),
        blocks: u16::from_le_bytes(slot[22..CRC_AT].try_into().ok()?),
    };
    let fits = extent.blocks > 0 && extent.end() <= u32::from(SLAB_BLOCKS);
    fits.then_some((Key::from_le_bytes(slot[..16].try_into().ok()?), extent))
}

fn checksum(covered: &[u8]) -> [u8; 4] {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(MAGIC);
    hasher.update(covered);
    hasher.finalize().to_le_bytes()
}
