//! Files of a cache: their names, their format, and the check that one is whole.

use super::folder::DISK_BLOCK_BYTES;
use super::index::Key;
use crate::ObjectRef;
use bytes::Bytes;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use twox_hash::XxHash64;

/// Name and format version. The header: these 8 bytes · CRC-32 of the bytes (4) · key (16) · length (8), little-endian.
const MAGIC: [u8; 8] = *b"fscache1";
const HEADER_BYTES: usize = 36;

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

pub(super) fn size_on_disk(bytes: u64) -> u64 {
    (bytes + HEADER_BYTES as u64).next_multiple_of(DISK_BLOCK_BYTES)
}

pub(super) fn header(key: Key, bytes: &[u8]) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[..8].copy_from_slice(&MAGIC);
    out[8..12].copy_from_slice(&crc32fast::hash(bytes).to_le_bytes());
    out[12..28].copy_from_slice(&key.to_le_bytes());
    out[28..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
    out
}

/// Returns the bytes in a file, if header, length and checksum agree.
pub(super) fn check(file: Vec<u8>, key: Key, range: &Range<u64>) -> Option<Bytes> {
    let bytes = file.get(HEADER_BYTES..)?;
    let whole = bytes.len() as u64 == range.end - range.start && file[..HEADER_BYTES] == header(key, bytes);
    whole.then(|| Bytes::from(file).slice(HEADER_BYTES..))
}

/// No `fsync`: after a power cut the checksum detects broken entries, and all can be fetched again.
pub(super) fn write_file(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))
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
