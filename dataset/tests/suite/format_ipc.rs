//! Arrow IPC files and streams.

use crate::format_common::*;
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, DictionaryArray, Int64Array, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Int32Type, Schema};
use arrow::record_batch::RecordBatch;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use feedstock_dataset::{BlockId, Layout, SampleId};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

const BYTES: usize = 2_000;

fn write_stream(at: &Path, rows: std::ops::Range<u64>, batch_rows: usize) {
    let batch = hf_batch(rows, BYTES);
    let mut writer = StreamWriter::try_new(File::create(at).unwrap(), &batch.schema()).unwrap();
    for start in (0..batch.num_rows()).step_by(batch_rows) {
        writer.write(&batch.slice(start, batch_rows.min(batch.num_rows() - start))).unwrap();
    }
    writer.finish().unwrap();
}

fn write_file(at: &Path, batch: &RecordBatch, compression: Option<CompressionType>) {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut writer =
        FileWriter::try_new_with_options(File::create(at).unwrap(), &batch.schema(), options).unwrap();
    writer.write(batch).unwrap();
    writer.finish().unwrap();
}

#[tokio::test]
async fn streams_are_cut_by_rows_and_read_by_range() {
    let folder = tempfile::tempdir().unwrap();
    write_stream(&folder.path().join("data-00000-of-00002.arrow"), 0..300, 200);
    write_stream(&folder.path().join("data-00001-of-00002.arrow"), 300..350, 10);
    std::fs::write(folder.path().join("state.json"), "{}").unwrap();
    let info = r#"{"features":{"label":{"names":["a","b"],"_type":"ClassLabel"}}}"#;
    std::fs::write(folder.path().join("dataset_info.json"), info).unwrap();
    let dataset = open(folder.path()).await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (Layout::ArrowIpc, 350));
    assert_eq!(catalog.class_names("label").unwrap(), ["a", "b"]);
    let rows = all_rows(&dataset).await;
    assert_eq!(payloads(&rows, "image"), (0..350).map(|i| Some(picture(i, BYTES))).collect::<Vec<_>>());
    assert_eq!(ints(&rows, "width"), (0..350).collect::<Vec<_>>());
    assert_eq!(texts(&rows, "image_path")[333], "333.jpg");
    for id in (0..catalog.blocks() as u32).map(BlockId) {
        assert!(catalog.block(id).bytes <= 2 * (64 << 10), "{:?}", catalog.block(id));
    }
    let image = rows[1].column_by_name("image").unwrap().as_binary_view();
    let held: usize = image.data_buffers().iter().map(|b| b.len()).sum();
    assert!(held < 2 * (64 << 10), "{held} bytes are held for one block");
    let some = dataset.filter("width >= 290 and width < 310").await.unwrap();
    assert_eq!(some.len(), 20);
}

/// A full shuffle fetches samples one by one: each must cost only its own bytes, wherever its batch was cut.
#[tokio::test]
async fn single_samples_are_read_by_their_own_ranges() {
    let folder = tempfile::tempdir().unwrap();
    write_stream(&folder.path().join("a.arrow"), 0..200, 200);
    write_stream(&folder.path().join("b.arrow"), 200..230, 10); // batches of one block
    let dataset = open(folder.path()).await.unwrap().columns(&["image", "width", "image_path"]).unwrap();
    let reader = dataset.block_reader();
    for i in (0..230).step_by(7).chain([199, 200, 229]) {
        let before = dataset.storage().stats().read_bytes;
        let one = reader.fetch_sample(SampleId(i), 0).await.unwrap();
        assert_eq!(payloads(std::slice::from_ref(&one.rows), "image"), [Some(picture(i, BYTES))]);
        assert_eq!(ints(std::slice::from_ref(&one.rows), "width"), [i as i64]);
        assert_eq!(texts(&[one.rows], "image_path"), [format!("{i}.jpg")]);
        let read = dataset.storage().stats().read_bytes - before;
        let most = if i < 200 { 128 << 10 } else { 64 << 10 }; // near ranges of a file are joined
        assert!(read < most, "sample {i}: {read} bytes");
    }
}

#[tokio::test]
async fn files_compressed_or_not_hold_the_same_rows() {
    for compression in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
        let folder = tempfile::tempdir().unwrap();
        write_file(&folder.path().join("x.arrow"), &hf_batch(0..200, BYTES), compression);
        let dataset = open(folder.path()).await.unwrap();
        let blocks = dataset.catalog().blocks();
        assert_eq!(blocks > 1, compression.is_none(), "{blocks} blocks with {compression:?}");
        let rows = all_rows(&dataset).await;
        assert_eq!(payloads(&rows, "image"), (0..200).map(|i| Some(picture(i, BYTES))).collect::<Vec<_>>());
        assert_eq!(ints(&rows, "label"), (0..200).map(|i| i % 10).collect::<Vec<_>>());
    }
}

/// Nulls, booleans and slices: everything that is cut with bit arithmetic.
#[tokio::test]
async fn nulls_and_bits_are_cut_at_any_row() {
    let whole = hf_batch(0..303, BYTES);
    let image = whole.column(0).as_struct();
    let nulls: NullBuffer = (0..303).map(|i| i % 11 != 0).collect::<Vec<bool>>().into();
    let image = StructArray::new(image.fields().clone(), image.columns().to_vec(), Some(nulls));
    let flag: BooleanArray = (0..303).map(|i| (i % 5 != 0).then_some(i % 3 == 0)).collect();
    let number: Int64Array = (0..303).map(|i| (i % 7 != 0).then_some(i)).collect();
    let schema = Schema::new(vec![
        Field::new("image", image.data_type().clone(), true),
        Field::new("flag", DataType::Boolean, true),
        Field::new("number", DataType::Int64, true),
    ]);
    let columns: Vec<ArrayRef> = vec![Arc::new(image), Arc::new(flag.clone()), Arc::new(number.clone())];
    let batch = RecordBatch::try_new(Arc::new(schema), columns).unwrap().slice(3, 300);
    let folder = tempfile::tempdir().unwrap();
    write_file(&folder.path().join("x.arrow"), &batch, None);
    let dataset = open(folder.path()).await.unwrap();
    assert!(dataset.catalog().blocks() > 3);
    let rows = all_rows(&dataset).await;
    let expected: Vec<_> = (3..303).map(|i| (i % 11 != 0).then(|| picture(i, BYTES))).collect();
    assert_eq!(payloads(&rows, "image"), expected);
    let flags: Vec<Option<bool>> = rows
        .iter()
        .flat_map(|b| b.column_by_name("flag").unwrap().as_boolean().iter().collect::<Vec<_>>())
        .collect();
    assert_eq!(flags, flag.iter().skip(3).collect::<Vec<_>>());
    let numbers = dataset.clone().filter("number is null").await.unwrap();
    assert_eq!(numbers.len(), number.slice(3, 300).null_count() as u64);
}

#[tokio::test]
async fn dictionaries_are_read_with_their_batch() {
    let words: DictionaryArray<Int32Type> = (0..40).map(|i| Some(["red", "green"][i % 2])).collect();
    let plain = hf_batch(0..40, 100);
    let schema = Schema::new(vec![image_field(), Field::new("colour", words.data_type().clone(), true)]);
    let batch =
        RecordBatch::try_new(Arc::new(schema), vec![plain.column(0).clone(), Arc::new(words)]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    write_file(&folder.path().join("x.arrow"), &batch, None);
    let dataset = open(folder.path()).await.unwrap();
    all_rows(&dataset).await;
    let red = dataset.filter("colour = 'red'").await.unwrap();
    assert_eq!(red.len(), 20);
}
