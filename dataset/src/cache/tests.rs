//! A disk that is full.

use super::*;
use std::fs::File;
use std::io::Write;

fn object(n: u64) -> ObjectRef {
    ObjectRef { uri: format!("s3://b/{n}"), size: 1 << 20, etag: Some(format!("\"{n}\"")) }
}

fn full_disk(path: &Path, parts: &[&[u8]]) -> io::Result<()> {
    File::create_new(path)?.write_all(&parts[0][..7])?; // some bytes were written
    Err(io::Error::from(io::ErrorKind::StorageFull))
}

#[test]
fn a_full_disk_turns_caching_off_and_leaves_no_half_file() {
    let dir = tempfile::tempdir().unwrap();
    let cache = DiskCache::open_with(DiskCacheOptions::new(dir.path(), 1 << 20), full_disk).unwrap();
    let bytes = Bytes::from(vec![7; 1000]);
    assert!(!cache.put(&object(1), &(0..1000), &bytes, 5));
    assert!(cache.stats().off);
    assert_eq!(cache.stats().used_bytes, 0);
    assert!(!cache.put(&object(2), &(0..1000), &bytes, 5));
    assert_eq!(cache.get(&object(1), &(0..1000)), None);
    assert!(our_files(&dir.path().join("part-0")).unwrap().is_empty());
}
