//! Files with changed bytes: each is read with all of its samples, or rejected with the file's name.

use crate::format_common::*;
use feedstock_dataset::{BlockId, ErrorKind};
use std::ops::Range;
use std::path::Path;

/// Copies of a file with one to four changed bytes.
const COPIES: usize = 250;

/// Opens and reads all of it; returns its number of samples.
pub(crate) async fn read(folder: &Path, name: &str, content: &[u8]) -> Result<u64, feedstock_dataset::Error> {
    std::fs::write(folder.join(name), content).unwrap();
    let dataset = open(folder).await?;
    for id in 0..dataset.catalog().blocks() as u32 {
        dataset.block_reader().fetch(BlockId(id), u64::MAX).await?;
    }
    Ok(dataset.len())
}

/// Reads it and checks the result. Returns the number of samples, or `None` if the file was rejected.
pub(crate) async fn samples_of(name: &str, content: &[u8], what: &str) -> Option<u64> {
    let folder = tempfile::tempdir().unwrap();
    match read(folder.path(), name, content).await {
        Ok(samples) => Some(samples),
        Err(error) => {
            assert!(
                matches!(error.kind(), ErrorKind::BadConfig | ErrorKind::BadSample),
                "{name}, {what}: {:?} {error}",
                error.kind()
            );
            assert!(error.message().contains(path(folder.path())), "{name}, {what}: {error}");
            None
        }
    }
}

/// Copies of `content`, every other one changed within `part`.
pub(crate) fn changed(content: &[u8], part: Range<usize>) -> Vec<Vec<u8>> {
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut roll = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize % below
    };
    let copy = |i| {
        let mut copy = content.to_vec();
        let within = if i % 2 == 0 { part.clone() } else { 0..content.len() };
        for _ in 0..=roll(4) {
            copy[within.start + roll(within.len())] = roll(256) as u8;
        }
        copy
    };
    (0..COPIES).map(copy).collect()
}

/// Reads all copies: none may have another number of samples, and some must be rejected.
pub(crate) async fn all_are_whole_or_refused(name: &str, content: &[u8], part: Range<usize>) {
    let whole = samples_of(name, content, "as written").await;
    assert!(whole.is_some(), "{name}");
    let mut refused = 0;
    for (i, copy) in changed(content, part).iter().enumerate() {
        let samples = samples_of(name, copy, &format!("copy {i}")).await;
        assert!(samples.is_none() || samples == whole, "{name}, copy {i}: {samples:?} samples");
        refused += usize::from(samples.is_none());
    }
    assert!(refused > COPIES / 10, "{name}: {refused} of {COPIES} were rejected");
}

#[tokio::test]
async fn tars() {
    let members = (0..12u64).flat_map(|i| {
        let json = format!(r#"{{"width": {i}}}"#).into_bytes();
        [
            (format!("{i}.jpg"), picture(i, 60)),
            (format!("{i}.cls"), b"3".to_vec()),
            (format!("{i}.json"), json),
        ]
    });
    let tar = tar_of(&members.collect::<Vec<_>>());
    all_are_whole_or_refused("x.tar", &tar, 0..tar.len()).await;
}
