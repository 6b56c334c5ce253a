//! Entries of a cache: their keys, where they are, their format, and the check that one is whole.

use crate::ObjectRef;
use bytes::Bytes;
use std::hash::Hasher;
use std::ops::Range;
use twox_hash::XxHash64;

/// 128 bits of (object, version, range).
pub(super) type Key = u128;

/// The unit of space: file systems allocate and free whole blocks.
pub(super) const DISK_BLOCK_BYTES: u64 = 4096;

/// 16,384 blocks, so that a block's number has 16 bits. 1 TB of cache is 15,000 files; deleting one takes milliseconds.
pub(super) const SLAB_BYTES: u64 = 64 << 20;
pub(super) const SLAB_BLOCKS: u16 = 16_384;
const _: () = assert!(SLAB_BLOCKS as u64 * DISK_BLOCK_BYTES == SLAB_BYTES);

/// Larger entries are files: they would fit in few holes of a [slab](super::slab). A file costs about 50 µs, which is less
/// than a tenth of the time to write 1 MiB to a disk of 2 GB/s.
pub(super) const MAX_IN_SLAB_BYTES: u64 = 1 << 20;

/// Name and format version. The header: these 8 bytes · CRC-32 of the bytes (4) · key (16) · length (8), little-endian.
const MAGIC: [u8; 8] = *b"fscache1";
const HEADER_BYTES: usize = 36;

/// Where an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// In a separate file, named by its key.
    File,
    Slab(Extent),
}

/// The blocks of a slab that an entry has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Extent {
    pub(super) slab: u32,
    pub(super) block: u16,
    pub(super) blocks: u16,
}

impl Extent {
    pub(super) fn end(self) -> u32 {
        u32::from(self.block) + u32::from(self.blocks)
    }

    pub(super) fn bytes(self) -> u64 {
        u64::from(self.blocks) * DISK_BLOCK_BYTES
    }

    pub(super) fn byte_range(self) -> Range<u64> {
        u64::from(self.block) * DISK_BLOCK_BYTES..u64::from(self.end()) * DISK_BLOCK_BYTES
    }
}

/// Returns two 64-bit hashes with different seeds over (URI, ETag, size, range): at 10⁹ entries the chance that any two
/// agree is 10⁻²¹. URIs are not stored in the files, because they may be signed.
pub(super) fn key(object: &ObjectRef, range: &Range<u64>) -> Option<Key> {
    let etag = object.etag.as_deref()?;
    let half = |seed| {
        let mut hasher = XxHash64::with_seed(seed);
        for text in [object.uri.as_str(), etag] {
            hasher.write(&(text.len() as u64).to_le_bytes());
            hasher.write(text.as_bytes());
        }
        for number in [object.size, range.start, range.end] {
            hasher.write(&number.to_le_bytes());
        }
        u128::from(hasher.finish())
    };
    Some((half(1) << 64) | half(2))
}

/// Returns the bytes of an entry with its header.
pub(super) fn stored_bytes(range: &Range<u64>) -> u64 {
    range.end - range.start + HEADER_BYTES as u64
}

pub(super) fn size_on_disk(range: &Range<u64>) -> u64 {
    stored_bytes(range).next_multiple_of(DISK_BLOCK_BYTES)
}

pub(super) fn header(key: Key, bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&crc32fast::hash(bytes).to_le_bytes());
    out[12..28].copy_from_slice(&key.to_le_bytes());
    out[28..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    out
}

/// Returns the bytes of what was read of an entry, if header, length and checksum agree.
pub(super) fn check(read: Vec<u8>, key: Key, range: &Range<u64>) -> Option<Bytes> {
    let bytes = read.get(HEADER_BYTES..)?;
    let whole = bytes.len() as u64 == range.end - range.start && read[..HEADER_BYTES] == header(key, bytes);
    whole.then(|| Bytes::from(read).slice(HEADER_BYTES..))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn object(n: u64) -> ObjectRef {
        ObjectRef { uri: format!("s3://b/{n}"), size: 1 << 20, etag: Some(format!("\"{n}\"")) }
    }

    #[test]
    fn the_key_tells_objects_versions_and_ranges_apart() {
        let base = object(1);
        let mut keys = HashSet::from([key(&base, &(0..10)).unwrap()]);
        assert!(keys.insert(key(&base, &(0..11)).unwrap()));
        assert!(keys.insert(key(&base, &(1..10)).unwrap()));
        assert!(keys.insert(key(&object(2), &(0..10)).unwrap()));
        assert!(keys.insert(key(&ObjectRef { etag: Some("x".into()), ..base.clone() }, &(0..10)).unwrap()));
        assert_eq!(key(&ObjectRef { etag: None, ..base }, &(0..10)), None);
    }
}
