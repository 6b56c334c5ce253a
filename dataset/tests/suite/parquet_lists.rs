//! Parquet files with lists and without an offset index (see `real_tools/make_lists.py`): pages begin within rows.

use crate::block_memory::held_within_count;
use crate::damaged_files::changed;
use crate::format_common::*;
use arrow::record_batch::RecordBatch;
use arrow::util::display::array_value_to_string;
use feedstock_dataset::{BlockId, CatalogStore, Dataset, Error, ErrorKind, OpenOptions};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::path::{Path, PathBuf};

const BLOCK_BYTES: u64 = 4096;
const COLUMNS: [&str; 6] = ["row", "words", "blobs", "nested", "boxes", "image"];

/// The samples, or the files of the folder that `FEEDSTOCK_TEST_LISTS` names.
fn files() -> Vec<PathBuf> {
    let folder = std::env::var("FEEDSTOCK_TEST_LISTS");
    let folder = folder.unwrap_or_else(|_| "tests/real_tools/samples/lists".to_owned());
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path().canonicalize().unwrap());
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    assert!(files.len() >= 6, "{files:?}");
    files
}

async fn open_in_blocks(at: &Path, store: CatalogStore) -> Result<Dataset, Error> {
    Dataset::open_with(path(at), OpenOptions { block_bytes: BLOCK_BYTES, ..options(store) }).await
}

/// Returns the rows of a column as text.
fn shown(rows: &[RecordBatch], column: &str) -> Vec<String> {
    let rows = rows.iter().flat_map(|batch| {
        let array = batch.column_by_name(column).unwrap().clone();
        (0..array.len()).map(move |row| array_value_to_string(&array, row).unwrap())
    });
    rows.collect()
}

/// Returns the rows as parquet's reader of whole row groups returns them.
fn by_parquet(file: &Path) -> Vec<RecordBatch> {
    let file = std::fs::File::open(file).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().with_batch_size(1 << 20).build();
    reader.unwrap().map(Result::unwrap).collect()
}

#[tokio::test]
async fn blocks_hold_exactly_their_rows() {
    let cache = tempfile::tempdir().unwrap();
    for file in files() {
        let expected = by_parquet(&file);
        let bytes = std::fs::metadata(&file).unwrap().len();
        for _stored in [false, true] {
            let store = CatalogStore::Cache(cache.path().into());
            let dataset = open_in_blocks(&file, store).await.unwrap();
            let blocks = dataset.catalog().blocks() as u64;
            assert!(
                blocks >= bytes / BLOCK_BYTES / 2,
                "{}: {blocks} blocks of {bytes} bytes",
                file.display()
            );
            let rows = held_within_count(&dataset).await;
            for column in COLUMNS {
                assert_eq!(shown(&rows, column), shown(&expected, column), "{}: {column}", file.display());
            }
            for column in COLUMNS {
                let alone = all_rows(&dataset.clone().columns(&[column]).unwrap()).await;
                assert_eq!(shown(&alone, column), shown(&expected, column), "{}: {column}", file.display());
            }
        }
    }
}

async fn read(file: &Path) -> Result<u64, Error> {
    let dataset = open_in_blocks(file, CatalogStore::Nowhere).await?;
    for id in 0..dataset.catalog().blocks() as u32 {
        dataset.block_reader().fetch(BlockId(id), u64::MAX).await?;
    }
    Ok(dataset.len())
}

#[tokio::test]
async fn changed_pages_are_refused_or_read() {
    let folder = tempfile::tempdir().unwrap();
    for file in files() {
        let content = std::fs::read(&file).unwrap();
        let samples = read(&file).await.unwrap();
        let at = folder.path().join(file.file_name().unwrap());
        let mut refused = 0;
        for (i, copy) in changed(&content, 4..content.len() / 2).iter().enumerate() {
            std::fs::write(&at, copy).unwrap();
            match read(&at).await {
                Ok(read) => assert_eq!(read, samples, "{}, copy {i}", at.display()),
                Err(error) => {
                    let kind = error.kind();
                    assert!(
                        matches!(kind, ErrorKind::BadConfig | ErrorKind::BadSample),
                        "{i}: {kind:?} {error}"
                    );
                    assert!(error.message().contains(path(&at)), "copy {i}: {error}");
                    refused += 1;
                }
            }
        }
        assert!(refused > 10, "{}: {refused} copies were rejected", at.display());
    }
}
