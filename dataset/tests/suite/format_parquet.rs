//! Parquet files: cut along pages, read without copying, without reading a footer twice.

use crate::format_common::*;
use arrow::array::AsArray;
use feedstock_dataset::{BlockId, Layout, SampleId};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use std::ops::Range;
use std::path::Path;

const BYTES: usize = 2_000;

/// Writes rows with pages of about eight images; `index` adds an offset index.
fn write(at: &Path, rows: Range<u64>, group_rows: usize, compression: Compression, index: bool) {
    let features = r#"{"info":{"features":{"label":{"names":["a","b"],"_type":"ClassLabel"}}}}"#;
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_max_row_group_row_count(Some(group_rows))
        .set_data_page_size_limit(16 << 10)
        .set_write_batch_size(4)
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(!index)
        .set_key_value_metadata(Some(vec![KeyValue::new("huggingface".into(), features.to_owned())]))
        .build();
    let batch = hf_batch(rows, BYTES);
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(at).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

async fn reads_back(compression: Compression, index: bool) {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("train-00000-of-00002.parquet"), 0..300, 200, compression, index);
    write(&folder.path().join("train-00001-of-00002.parquet"), 300..450, 10, compression, index);
    let dataset = open(folder.path()).await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (Layout::HfParquet, 450));
    assert_eq!(catalog.payload_columns(), ["image"]);
    assert_eq!(catalog.class_names("label").unwrap(), ["a", "b"]);
    // Row groups of 200 × 2.5 KB are cut near 64 KiB; those of 10 rows are whole.
    let large = (0..catalog.blocks() as u32).map(BlockId).filter(|&b| catalog.block_samples(b).end <= 300);
    for id in large {
        let block = catalog.block(id);
        assert!(block.samples <= 40 && block.bytes <= 2 * (64 << 10), "{block:?}");
    }
    assert_eq!(catalog.block(BlockId(catalog.blocks() as u32 - 1)).samples, 10);

    let rows = all_rows(&dataset).await;
    let expected: Vec<_> = (0..450).map(|i| Some(picture(i, BYTES))).collect();
    assert_eq!(payloads(&rows, "image"), expected);
    assert_eq!(ints(&rows, "width"), (0..450).collect::<Vec<_>>());
    assert_eq!(texts(&rows, "image_path")[449], "449.jpg");
    assert_eq!(catalog.describe_sample(SampleId(317)), "train-00001-of-00002.parquet row 17");
}

#[tokio::test]
async fn plain_pages_with_an_offset_index() {
    reads_back(Compression::UNCOMPRESSED, true).await;
}

#[tokio::test]
async fn pages_are_found_without_an_offset_index() {
    reads_back(Compression::UNCOMPRESSED, false).await;
}

#[tokio::test]
async fn compressed_pages_without_an_offset_index() {
    reads_back(Compression::SNAPPY, false).await;
}

#[tokio::test]
async fn a_block_reads_its_own_pages_and_nothing_more() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("x.parquet"), 0..4_000, 4_000, Compression::UNCOMPRESSED, false);
    let dataset = open(folder.path()).await.unwrap();
    let middle = BlockId(dataset.catalog().blocks() as u32 / 2);
    let before = dataset.storage().stats();
    let block = dataset.block_reader().fetch(middle, 0).await.unwrap();
    let after = dataset.storage().stats();
    let image = block.rows.column_by_name("image").unwrap().as_binary_view();
    let held: usize = image.data_buffers().iter().map(|b| b.len()).sum();
    assert!(held < 2 * (64 << 10), "{held} bytes are held for one block");
    let requests = after.requests - before.requests;
    assert!((1..=3).contains(&requests), "{requests} requests for the pages of three columns");
}

#[tokio::test]
async fn only_chosen_columns_are_read() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("x.parquet"), 0..100, 50, Compression::UNCOMPRESSED, true);
    let dataset = open(folder.path()).await.unwrap().columns(&["width", "image_path"]).unwrap();
    let rows = all_rows(&dataset).await;
    assert_eq!(rows[0].num_columns(), 2);
    assert_eq!(ints(&rows, "width"), (0..100).collect::<Vec<_>>());
    let error = dataset.columns(&["wdith"]).unwrap_err();
    assert!(error.message().contains("wdith") && error.message().contains("width, "), "{error}");
}

#[tokio::test]
async fn partitions_in_the_names_of_folders_are_named() {
    let root = tempfile::tempdir().unwrap();
    write_parquet(root.path());
    for (name, folder) in [("a.parquet", "year=2024/label=1"), ("b.parquet", "year=2025/label=2")] {
        std::fs::create_dir_all(root.path().join(folder)).unwrap();
        std::fs::rename(root.path().join(name), root.path().join(folder).join(name)).unwrap();
    }
    let dataset = open(root.path()).await.unwrap();
    let notes = dataset.catalog().notes();
    assert!(
        notes[0].contains("the values of label, year in the names of folders (label=…/) are not columns"),
        "{notes:?}"
    );
}
