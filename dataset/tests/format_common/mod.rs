//! Small data sets in a temporary folder, and the oracle that reads them back.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::cast_possible_truncation
)]

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Int64Array, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Fields, Schema};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{BlockId, CatalogOptions, CatalogStore, Dataset, OpenOptions, Result};
use std::path::Path;
use std::sync::Arc;

/// The bytes of picture `i`: no two alike in content, lengths between `bytes` and 1.5 × `bytes`.
pub fn picture(i: u64, bytes: usize) -> Vec<u8> {
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

pub fn image_field() -> Field {
    Field::new("image", DataType::Struct(image_children()), true)
}

fn image_children() -> Fields {
    Fields::from(vec![Field::new("bytes", DataType::Binary, true), Field::new("path", DataType::Utf8, true)])
}

/// Rows `range` of the reference data set: image struct, label = i mod 10, width = i.
pub fn hf_batch(range: std::ops::Range<u64>, bytes: usize) -> RecordBatch {
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

pub fn options(store: CatalogStore) -> OpenOptions {
    OpenOptions {
        catalog: CatalogOptions { store, ..CatalogOptions::default() },
        block_bytes: 64 << 10,
        ..OpenOptions::default()
    }
}

pub fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Opens without keeping a catalog, in blocks of 64 KiB.
pub async fn open(at: &Path) -> Result<Dataset> {
    Dataset::open_with(path(at), options(CatalogStore::Nowhere)).await
}

/// Every block in order; checks that they tile the samples.
pub async fn all_rows(dataset: &Dataset) -> Vec<RecordBatch> {
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

pub fn payloads(rows: &[RecordBatch], column: &str) -> Vec<Option<Vec<u8>>> {
    let all = rows.iter().flat_map(|batch| {
        let array = batch.column_by_name(column).unwrap().as_binary_view().clone();
        (0..array.len()).map(move |i| array.is_valid(i).then(|| array.value(i).to_vec())).collect::<Vec<_>>()
    });
    all.collect()
}

pub fn ints(rows: &[RecordBatch], column: &str) -> Vec<i64> {
    rows.iter()
        .flat_map(|b| {
            let array = b.column_by_name(column).unwrap();
            array.as_primitive::<arrow::datatypes::Int64Type>().values().to_vec()
        })
        .collect()
}

pub fn texts(rows: &[RecordBatch], column: &str) -> Vec<String> {
    rows.iter()
        .flat_map(|b| {
            let array = b.column_by_name(column).unwrap().as_string::<i32>().clone();
            (0..array.len()).map(|i| array.value(i).to_owned()).collect::<Vec<_>>()
        })
        .collect()
}
