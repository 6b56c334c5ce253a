//! Arrow IPC files with changed bytes: each is read, or refused with the file's name. None panics, aborts, or has more rows
//! than its bytes can hold.

use crate::format_common::*;
use arrow::array::{ArrayRef, BinaryArray, DictionaryArray, ListArray};
use arrow::datatypes::{Int32Type, Int64Type};
use arrow::record_batch::RecordBatch;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use feedstock_dataset::{BlockId, ErrorKind};
use std::path::Path;
use std::sync::Arc;

const ROWS: u64 = 30;
/// Copies of each file with one to four changed bytes.
const COPIES: usize = 250;

/// Pictures, numbers, texts from a dictionary, and lists.
fn batch() -> RecordBatch {
    let plain = hf_batch(0..ROWS, 60);
    let words: DictionaryArray<Int32Type> =
        (0..ROWS).map(|i| Some(["a", "bb", "ccc"][i as usize % 3])).collect();
    let lists = (0..ROWS).map(|i| Some((0..i as i64 % 4).map(Some).collect::<Vec<_>>()));
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
    let schema = plain.schema();
    let columns = schema.fields().iter().map(|f| f.name().clone()).zip(plain.columns().to_vec());
    let more: [(String, ArrayRef); 2] = [("word".into(), Arc::new(words)), ("list".into(), Arc::new(lists))];
    RecordBatch::try_from_iter(columns.chain(more)).unwrap()
}

fn file(batch: &RecordBatch, compression: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn stream(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn files() -> Vec<(&'static str, Vec<u8>)> {
    let (whole, plain) = (batch(), hf_batch(0..ROWS, 60));
    vec![
        ("plain.arrow", file(&plain, None)),
        ("stream.arrow", stream(&plain)),
        ("whole.arrow", file(&whole, None)),
        ("lz4.arrow", file(&whole, Some(CompressionType::LZ4_FRAME))),
        ("zstd.arrow", file(&whole, Some(CompressionType::ZSTD))),
    ]
}

/// Opens and reads all of it; returns its number of samples.
async fn read(folder: &Path, name: &str, content: &[u8]) -> Result<u64, feedstock_dataset::Error> {
    std::fs::write(folder.join(name), content).unwrap();
    let dataset = open(folder).await?;
    for id in 0..dataset.catalog().blocks() as u32 {
        dataset.block_reader().fetch(BlockId(id), u64::MAX).await?;
    }
    Ok(dataset.len())
}

/// Reads it and checks what comes; true where it was refused.
async fn is_refused(name: &str, content: &[u8], what: &str) -> bool {
    let folder = tempfile::tempdir().unwrap();
    match read(folder.path(), name, content).await {
        Ok(samples) => {
            assert!(samples <= 8 * content.len() as u64, "{name}, {what}: {samples} samples");
            false
        }
        Err(error) => {
            assert!(
                matches!(error.kind(), ErrorKind::BadConfig | ErrorKind::BadSample),
                "{name}, {what}: {:?} {error}",
                error.kind()
            );
            assert!(error.message().contains(path(folder.path())), "{name}, {what}: {error}");
            true
        }
    }
}

#[tokio::test]
async fn whole_files_are_read() {
    for (name, content) in files() {
        assert!(!is_refused(name, &content, "as written").await);
    }
}

#[tokio::test]
async fn changed_bytes_are_refused_or_read() {
    for (name, content) in files() {
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let mut roll = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as usize % below
        };
        let mut refused = 0;
        for copy in 0..COPIES {
            let mut changed = content.clone();
            for _ in 0..=roll(4) {
                changed[roll(content.len())] = roll(256) as u8;
            }
            refused += usize::from(is_refused(name, &changed, &format!("copy {copy}")).await);
        }
        assert!(refused > COPIES / 10, "{name}: {refused} of {COPIES} were refused");
    }
}

/// Every place where a length may stand gets one that no memory holds.
#[tokio::test]
async fn lengths_beyond_memory_are_refused() {
    for (name, content) in files().into_iter().filter(|(name, _)| ["lz4.arrow", "zstd.arrow"].contains(name))
    {
        let mut refused = 0;
        for at in (0..content.len() - 8).step_by(8) {
            for claim in [60_000_000_000, 1 << 46, i64::MAX] {
                let mut changed = content.clone();
                changed[at..at + 8].copy_from_slice(&claim.to_le_bytes());
                refused += usize::from(is_refused(name, &changed, &format!("{claim} at byte {at}")).await);
            }
        }
        assert!(refused > content.len() / 8, "{name}: {refused}");
    }
}

/// A buffer of megabytes may hold a lot when decompressed; what no memory holds is refused all the same.
#[tokio::test]
async fn large_buffers_that_claim_too_much_are_refused() {
    let bytes = picture(1, 4 << 20); // does not compress, so the buffer is 4 MiB
    let value: ArrayRef = Arc::new(BinaryArray::from_iter_values([&bytes[..4 << 20], &bytes[..1000]]));
    let batch = RecordBatch::try_from_iter([("image", value)]).unwrap();
    for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
        let mut content = file(&batch, Some(codec));
        let length = ((4i64 << 20) + 1000).to_le_bytes();
        let stored = (-1i64).to_le_bytes();
        let is_place = |eight: &[u8]| eight == length || eight == stored;
        let places: Vec<usize> =
            (0..content.len() - 8).step_by(8).filter(|&at| is_place(&content[at..at + 8])).collect();
        for claim in [60_000_000_000, 100_000_000_000] {
            for &at in &places {
                content[at..at + 8].copy_from_slice(&i64::to_le_bytes(claim));
            }
            assert!(is_refused("large.arrow", &content, &format!("{claim} bytes")).await);
        }
    }
}

/// The row count of a batch, in its message and in the nodes of its columns.
#[tokio::test]
async fn rows_that_the_bytes_cannot_hold_are_refused() {
    for (name, content) in files() {
        let rows = (ROWS as i64).to_le_bytes();
        let places: Vec<usize> = (0..content.len() - 8).filter(|&at| content[at..at + 8] == rows).collect();
        assert!(places.len() > 3, "{name}: {places:?}");
        let mut changed = content.clone();
        for at in places {
            changed[at..at + 8].copy_from_slice(&(1i64 << 31).to_le_bytes());
        }
        assert!(is_refused(name, &changed, "all row counts").await);
    }
}
