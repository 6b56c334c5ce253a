//! Small sample data, and its rows as bytes.

use arrow::array::{ArrayRef, AsArray, BinaryArray, Int64Array};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use arrow::util::display::array_value_to_string;
use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions};
use feedstock_ingest::{RawBatches, RawOptions, RewriteOptions};
use feedstock_synth::{ImagenetOptions, Layout};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub(crate) const SAMPLES: u64 = 61;

pub(crate) fn synth(dir: &Path, layout: Layout) {
    let options = ImagenetOptions {
        samples: SAMPLES,
        seed: 5,
        layout,
        classes: Some(5),
        width: 96,
        height: 80,
        samples_per_shard: 25,
        rows_per_group: 10,
        ..ImagenetOptions::default()
    };
    options.write(dir, &mut |_| {}).unwrap();
}

/// Opens a data set without the user's cache folder.
pub(crate) fn open(dir: &Path) -> Dataset {
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let options = OpenOptions { catalog, block_bytes: 32 << 10, ..OpenOptions::default() };
    futures::executor::block_on(Dataset::open_with(text(dir), options)).unwrap()
}

/// Returns options for shards of a dozen images, in groups of four.
pub(crate) fn small() -> RewriteOptions {
    RewriteOptions { shard_bytes: 96 << 10, group_bytes: 32 << 10, threads: 2, ..RewriteOptions::default() }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Returns all columns of the data set.
pub(crate) fn columns_of(dataset: &Dataset) -> Vec<String> {
    dataset.catalog().schema().fields().iter().map(|field| field.name().clone()).collect()
}

/// Returns every row in catalog order, its `columns` as bytes.
pub(crate) fn rows(dataset: &Dataset, columns: &[String]) -> Vec<Vec<Vec<u8>>> {
    let mut rows = Vec::new();
    for batch in RawBatches::start(dataset, &RawOptions { batch_rows: 17, ..RawOptions::default() }).unwrap()
    {
        let batch = batch.unwrap();
        for row in 0..batch.num_rows() {
            let value = |name: &String| {
                let array = batch.column_by_name(name).unwrap_or_else(|| panic!("no column {name}"));
                match array.as_binary_view_opt() {
                    Some(views) => views.value(row).to_vec(),
                    None => array_value_to_string(array, row).unwrap().into_bytes(),
                }
            };
            rows.push(columns.iter().map(value).collect());
        }
    }
    rows
}

/// Returns the shards in `dir` and their bytes.
pub(crate) fn shard_files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let Ok(entries) = std::fs::read_dir(dir) else { return BTreeMap::new() };
    entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file() && !path.to_str().unwrap().contains(".feedstock-tmp-"))
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_owned();
            Some((name, std::fs::read(path).ok()?))
        })
        .collect()
}

/// Returns the file of this name below `dir`.
pub(crate) fn find(dir: &Path, name: &str) -> PathBuf {
    let found = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).find_map(|path| {
        let file = path.join(name);
        file.is_file().then_some(file)
    });
    found.unwrap_or_else(|| panic!("no {name} below {}", dir.display()))
}

/// Writes three images: null, empty, broken.
pub(crate) fn parquet_with_nulls(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
    let schema = Arc::new(Schema::new(vec![
        Field::new("image", DataType::Binary, true),
        Field::new("label", DataType::Int64, true),
    ]));
    let image = BinaryArray::from_opt_vec(vec![None, Some(b""), Some(b"\xff\xd8\xffbroken")]);
    let columns: Vec<ArrayRef> = vec![Arc::new(image), Arc::new(Int64Array::from(vec![1, 2, 3]))];
    let batch = RecordBatch::try_new(schema.clone(), columns).unwrap();
    let file = std::fs::File::create(dir.join("train.parquet")).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(file, schema, None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}
