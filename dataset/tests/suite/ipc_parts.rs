//! Parts of the blocks of Arrow IPC: the same rows as in the block, few requests, and the order that they allow.

use crate::format_common::*;
use crate::storage_support::with_config;
use arrow::record_batch::RecordBatch;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use feedstock_dataset::{
    Access, BlockId, CatalogStore, Dataset, ErrorKind, Extent, OpenOptions, SampleId, Shuffle, ShuffleKind,
    StorageOptions,
};
use feedstock_testkit::{S3Server, SimulatedObject, SimulatedStore};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

const ROWS: u64 = 400;
/// A batch of 200 rows of 20 to 30 kB has its columns further apart than ranges that storage joins.
const BYTES: usize = 20_000;

pub(crate) fn stream(rows: Range<u64>, batch_rows: usize, bytes: usize) -> Vec<u8> {
    let batch = hf_batch(rows, bytes);
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    for start in (0..batch.num_rows()).step_by(batch_rows) {
        writer.write(&batch.slice(start, batch_rows.min(batch.num_rows() - start))).unwrap();
    }
    writer.into_inner().unwrap()
}

fn file(batch: &RecordBatch, compression: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

pub(crate) async fn opened(store: &SimulatedStore) -> Dataset {
    let storage = StorageOptions { hedge: false, ..crate::storage_support::options() };
    let storage = with_config(storage, S3Server::config_at(&store.endpoint()));
    let open = OpenOptions { storage, block_bytes: 1 << 20, ..options(CatalogStore::Nowhere) };
    Dataset::open_with("s3://bucket/data/", open).await.unwrap()
}

/// Serves one object at once.
pub(crate) fn stored(name: &str, content: Vec<u8>) -> SimulatedStore {
    let object: SimulatedObject = bytes::Bytes::from(content).into();
    SimulatedStore::start(BTreeMap::from([(format!("data/{name}"), object)]), Duration::ZERO).unwrap()
}

/// Returns the pieces of `samples` samples, cut at blocks.
pub(crate) fn extents(dataset: &Dataset, samples: u64) -> Vec<Extent> {
    let catalog = dataset.catalog();
    let mut extents = Vec::new();
    let mut at = 0;
    while at < catalog.samples() {
        let block = catalog.block_of(SampleId(at));
        let end = (at + samples - at % samples).min(catalog.block_samples(block).end);
        extents.push(Extent::new(block, at..end));
        at = end;
    }
    extents
}

#[tokio::test]
async fn parts_are_the_rows_of_their_block() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.arrow"), stream(0..200, 90, 2_000)).unwrap();
    std::fs::write(folder.path().join("b.arrow"), stream(200..230, 10, 2_000)).unwrap(); // batches of one block
    let dataset = open(folder.path()).await.unwrap();
    let (reader, catalog) = (dataset.block_reader(), dataset.catalog());
    let mut blocks = Vec::new();
    for id in 0..catalog.blocks() as u32 {
        blocks.push(reader.fetch(BlockId(id), u64::MAX).await.unwrap());
    }
    for samples in [1, 2, 3, 7, 1000] {
        for extent in extents(&dataset, samples) {
            let part = reader.fetch_extent(extent, u64::MAX).await.unwrap();
            let block = &blocks[extent.block.0 as usize];
            let first = (extent.first.0 - block.first_sample) as usize;
            let rows = block.rows.slice(first, extent.samples as usize);
            for column in ["image", "image_path", "label", "width"] {
                let both = [&part.rows, &rows].map(|rows| {
                    let column = rows.column_by_name(column).unwrap();
                    arrow::util::display::array_value_to_string(column, 0).unwrap()
                });
                assert_eq!(both[0], both[1], "{column} of {extent:?}");
            }
            assert_eq!(payloads(&[part.rows], "image"), payloads(&[rows], "image"), "{extent:?}");
        }
    }
}

/// A request for each part, and a few for each batch.
#[tokio::test]
async fn a_part_takes_one_request() {
    let store = stored("a.arrow", stream(0..ROWS, 200, BYTES));
    let dataset = opened(&store).await.columns(&["image", "label", "image_path"]).unwrap();
    let reader = dataset.block_reader();
    let parts = extents(&dataset, 4);
    let before = dataset.storage().stats();
    for extent in &parts {
        let part = reader.fetch_extent(*extent, u64::MAX).await.unwrap();
        let right: Vec<_> = extent.range().map(|i| Some(picture(i, BYTES))).collect();
        assert_eq!(payloads(std::slice::from_ref(&part.rows), "image"), right);
        assert_eq!(texts(&[part.rows], "image_path")[0], format!("{}.jpg", extent.first));
    }
    let after = dataset.storage().stats();
    let (requests, bytes) = (after.requests - before.requests, after.read_bytes - before.read_bytes);
    let needed = parts.len() as u64;
    let held: u64 = (0..ROWS).map(|i| picture(i, BYTES).len() as u64).sum();
    assert!(requests <= needed + 2 * 3, "{requests} requests for {needed} parts of 2 batches");
    assert!(bytes * 100 <= held * 105, "{bytes} bytes are read");
}

#[tokio::test]
async fn the_default_shuffle_permutes_what_can_be_read_in_parts() {
    let store = stored("a.arrow", stream(0..ROWS, 200, BYTES));
    let remote = opened(&store).await;
    assert_eq!(remote.catalog().access(), Access::Ranges);
    let cursor = |dataset: &Dataset| {
        let plan = dataset.plan(&Shuffle::seeded(1)).unwrap();
        plan.cursor(0, feedstock_dataset::Position(0)).fingerprint
    };
    assert_eq!(cursor(&remote).piece, Some(10)); // 256 KiB of 25 kB each
    let folder = tempfile::tempdir().unwrap();
    for (compression, access, kind) in [
        (None, Access::Samples, ShuffleKind::Full),
        (Some(CompressionType::LZ4_FRAME), Access::Blocks, ShuffleKind::Window),
    ] {
        std::fs::write(folder.path().join("a.arrow"), file(&hf_batch(0..20, 2_000), compression)).unwrap();
        let local = open(folder.path()).await.unwrap();
        assert_eq!((local.catalog().access(), cursor(&local).shuffle), (access, kind));
    }
    // One batch that is read whole makes blocks of all.
    std::fs::write(folder.path().join("b.arrow"), file(&hf_batch(0..20, 2_000), None)).unwrap();
    assert_eq!(open(folder.path()).await.unwrap().catalog().access(), Access::Blocks);
}

#[tokio::test]
async fn the_units_of_a_catalog_that_does_not_state_it_tell() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a.arrow"), stream(0..200, 200, 2_000)).unwrap();
    let open = || Dataset::open_with(path(folder.path()), options(CatalogStore::Beside));
    let built = open().await.unwrap();
    let again = open().await.unwrap();
    assert_eq!(again.catalog().access(), Access::Samples);
    let kept = std::fs::read_dir(folder.path().join("_feedstock")).unwrap().flatten();
    let indexes: Vec<_> =
        kept.map(|entry| entry.path().join("catalog.json")).filter(|at| at.exists()).collect();
    assert_eq!(indexes.len(), 1);
    let mut index: serde_json::Value = serde_json::from_slice(&std::fs::read(&indexes[0]).unwrap()).unwrap();
    assert_eq!(index.as_object_mut().unwrap().remove("has_parts"), Some(true.into()));
    std::fs::write(&indexes[0], index.to_string()).unwrap();
    let older = open().await.unwrap();
    assert_eq!(older.catalog().access(), Access::Samples);
    assert_eq!(older.catalog().hashes(), built.catalog().hashes());
    let index: serde_json::Value = serde_json::from_slice(&std::fs::read(&indexes[0]).unwrap()).unwrap();
    assert_eq!(index["has_parts"], true, "it was stored again");
}

/// Offsets that decrease are found in a part as in its block, and name the file. Rows after them are read.
#[tokio::test]
async fn damage_in_a_part_is_the_error_of_its_block() {
    let folder = tempfile::tempdir().unwrap();
    let mut content = stream(0..20, 20, 2_000); // one block, whose offsets are not read before its rows
    let lengths = [0, 1].map(|i| picture(i, 2_000).len() as i32);
    let offsets = [0, lengths[0], lengths[0] + lengths[1]];
    let offsets: Vec<u8> = offsets.iter().flat_map(|offset| offset.to_le_bytes()).collect();
    let place = content.windows(offsets.len()).position(|bytes| bytes == offsets).unwrap();
    content[place + 4..place + 8].copy_from_slice(&i32::MAX.to_le_bytes());
    std::fs::write(folder.path().join("a.arrow"), &content).unwrap();
    let reader = open(folder.path()).await.unwrap().block_reader();
    let whole = reader.fetch(BlockId(0), 0).await.unwrap_err();
    for samples in [0..2, 1..3] {
        let first = samples.start;
        let part = reader.fetch_extent(Extent::new(BlockId(0), samples), 0).await.unwrap_err();
        assert_eq!((part.kind(), whole.kind()), (ErrorKind::BadConfig, ErrorKind::BadConfig));
        assert!(part.to_string().contains(&format!("a.arrow row {first}")), "{part}");
    }
    let after = reader.fetch_extent(Extent::new(BlockId(0), 3..5), 0).await.unwrap();
    assert_eq!(payloads(&[after.rows], "image")[0], Some(picture(3, 2_000)));
}
