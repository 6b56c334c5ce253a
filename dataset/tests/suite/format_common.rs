//! Small data sets in a temporary folder, and functions that read them back.

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Int64Array, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Fields, Schema};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{
    BlockId, CatalogOptions, CatalogStore, Dataset, DatasetSpec, ErrorKind, OpenOptions, Result,
};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use std::path::Path;
use std::sync::Arc;

/// Returns the bytes of image `i`: all differ in content, and lengths are between `bytes` and 1.5 × `bytes`.
pub(crate) fn picture(i: u64, bytes: usize) -> Vec<u8> {
    let len = bytes + (i as usize * 7919) % (bytes / 2 + 1);
    let mut state = i.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

pub(crate) fn image_field() -> Field {
    Field::new("image", DataType::Struct(image_children()), true)
}

fn image_children() -> Fields {
    Fields::from(vec![Field::new("bytes", DataType::Binary, true), Field::new("path", DataType::Utf8, true)])
}

/// Returns rows `range` of the reference data set: image struct, label = i mod 10, width = i.
pub(crate) fn hf_batch(range: std::ops::Range<u64>, bytes: usize) -> RecordBatch {
    let pictures: Vec<Vec<u8>> = range.clone().map(|i| picture(i, bytes)).collect();
    let image = StructArray::new(
        image_children(),
        vec![
            Arc::new(BinaryArray::from_iter_values(&pictures)),
            Arc::new(StringArray::from_iter_values(range.clone().map(|i| format!("{i}.jpg")))),
        ],
        None,
    );
    let label = Int64Array::from_iter_values(range.clone().map(|i| i as i64 % 10));
    let width = Int64Array::from_iter_values(range.map(|i| i as i64));
    let schema = Schema::new(vec![
        image_field(),
        Field::new("label", DataType::Int64, true),
        Field::new("width", DataType::Int64, true),
    ]);
    let columns: Vec<ArrayRef> = vec![Arc::new(image), Arc::new(label), Arc::new(width)];
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

/// Writes rows 0 to 449 of the reference data set as `a.parquet` and `b.parquet`, in row groups of 50.
pub(crate) fn write_parquet(folder: &Path) {
    for (name, rows) in [("a.parquet", 0..300), ("b.parquet", 300..450)] {
        let properties =
            WriterProperties::builder().set_max_row_group_row_count(Some(50)).set_write_batch_size(8).build();
        let batch = hf_batch(rows, 3_000);
        let file = std::fs::File::create(folder.join(name)).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
}

/// Writes 90 images from number `first` on, in turn to the class folders `a`, `b` and `c`.
pub(crate) fn write_folder(root: &Path, first: u64) {
    for i in 0..90 {
        let class = root.join(["a", "b", "c"][i as usize % 3]);
        std::fs::create_dir_all(&class).unwrap();
        std::fs::write(class.join(format!("{i:03}.jpg")), picture(first + i, 2_000)).unwrap();
    }
}

pub(crate) fn options(store: CatalogStore) -> OpenOptions {
    OpenOptions {
        catalog: CatalogOptions { store, ..CatalogOptions::default() },
        block_bytes: 64 << 10,
        ..OpenOptions::default()
    }
}

pub(crate) fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Opens without storing a catalog, in blocks of 64 KiB.
pub(crate) async fn open(at: &Path) -> Result<Dataset> {
    Dataset::open_with(path(at), options(CatalogStore::Nowhere)).await
}

/// Returns every block in order; checks that they tile the samples.
pub(crate) async fn all_rows(dataset: &Dataset) -> Vec<RecordBatch> {
    let reader = dataset.block_reader();
    let mut next = 0;
    let mut rows = Vec::new();
    for id in 0..dataset.catalog().blocks() as u32 {
        let block = reader.fetch(BlockId(id), u64::MAX).await.unwrap();
        assert_eq!(block.first_sample, next);
        assert_eq!(&block.rows.schema(), reader.schema());
        next += block.rows.num_rows() as u64;
        rows.push(block.rows);
    }
    assert_eq!(next, dataset.catalog().samples());
    rows
}

pub(crate) fn payloads(rows: &[RecordBatch], column: &str) -> Vec<Option<Vec<u8>>> {
    let all = rows.iter().flat_map(|batch| {
        let array = batch.column_by_name(column).unwrap().as_binary_view().clone();
        (0..array.len()).map(move |i| array.is_valid(i).then(|| array.value(i).to_vec())).collect::<Vec<_>>()
    });
    all.collect()
}

pub(crate) fn ints(rows: &[RecordBatch], column: &str) -> Vec<i64> {
    rows.iter()
        .flat_map(|b| {
            let array = b.column_by_name(column).unwrap();
            array.as_primitive::<arrow::datatypes::Int64Type>().values().to_vec()
        })
        .collect()
}

pub(crate) fn texts(rows: &[RecordBatch], column: &str) -> Vec<String> {
    rows.iter()
        .flat_map(|b| {
            let array = b.column_by_name(column).unwrap().as_string::<i32>().clone();
            (0..array.len()).map(|i| array.value(i).to_owned()).collect::<Vec<_>>()
        })
        .collect()
}

/// Makes a tar of files with these names.
pub(crate) fn tar_of(members: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, bytes.as_slice()).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Returns the message of an error of kind `BadConfig`.
pub(crate) fn message(result: Result<Dataset>) -> String {
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
    error.to_string()
}

/// Opens what a data set describes to another process.
pub(crate) async fn reopened(dataset: &Dataset) -> Dataset {
    let text = serde_json::to_string(&dataset.spec()).unwrap();
    let spec: DatasetSpec = serde_json::from_str(&text).unwrap();
    spec.open(&|| options(CatalogStore::Nowhere)).await.unwrap()
}
