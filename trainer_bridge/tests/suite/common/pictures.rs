//! Good and bad images in Parquet files as Hugging Face writes them.

use arrow::array::{ArrayRef, BinaryArray, Int64Array, StringArray, StructArray};
use arrow::datatypes::{DataType, Field, Fields, Schema};
use arrow::record_batch::RecordBatch;
use feedstock_synth::{ImagenetOptions, Layout};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Returns `samples` small JPEGs.
pub(crate) fn jpegs(samples: u64) -> Vec<Vec<u8>> {
    let dir = tempfile::tempdir().unwrap();
    let options = ImagenetOptions {
        samples,
        seed: 9,
        layout: Layout::Folder,
        classes: Some(1),
        width: 96,
        height: 80,
        ..ImagenetOptions::default()
    };
    options.write(dir.path(), &mut |_| {}).unwrap();
    let mut files = files(dir.path());
    files.retain(|file| file.extension().is_some_and(|name| name.eq_ignore_ascii_case("jpeg")));
    assert_eq!(files.len() as u64, samples);
    files.iter().map(|file| std::fs::read(file).unwrap()).collect()
}

/// Returns every file below `folder`, sorted by name.
pub(crate) fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push(path),
        }
    }
    found.sort();
    found
}

/// Writes one file whose row `i` is sample `i`, with label `i`.
pub(crate) fn write_parquet(dir: &Path, pictures: &[Option<Vec<u8>>]) {
    let fields = Fields::from(vec![
        Field::new("bytes", DataType::Binary, true),
        Field::new("path", DataType::Utf8, true),
    ]);
    let bytes = BinaryArray::from_iter(pictures.iter().map(Option::as_deref));
    let paths = StringArray::from_iter_values((0..pictures.len()).map(|i| format!("{i}.jpg")));
    let image = StructArray::new(fields.clone(), vec![Arc::new(bytes), Arc::new(paths)], None);
    let labels = Int64Array::from_iter_values(0..pictures.len() as i64);
    let schema = Arc::new(Schema::new(vec![
        Field::new("image", DataType::Struct(fields), true),
        Field::new("label", DataType::Int64, false),
    ]));
    let columns: Vec<ArrayRef> = vec![Arc::new(image), Arc::new(labels)];
    let batch = RecordBatch::try_new(schema.clone(), columns).unwrap();
    let properties = WriterProperties::builder().set_max_row_group_row_count(Some(8)).build();
    let file = std::fs::File::create(dir.join("train.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, schema, Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// As [`write_parquet`], with good images except those that `bad` replaces.
pub(crate) fn write_with(dir: &Path, good: &[Vec<u8>], bad: &[(usize, Option<Vec<u8>>)]) {
    let mut pictures: Vec<Option<Vec<u8>>> = good.iter().cloned().map(Some).collect();
    for (row, picture) in bad {
        pictures[*row] = picture.clone();
    }
    write_parquet(dir, &pictures);
}

/// Returns `jpeg` with another size in its frame header.
pub(crate) fn claiming(jpeg: &[u8], width: u16, height: u16) -> Vec<u8> {
    let mut bytes = jpeg.to_vec();
    let at = bytes.windows(2).position(|two| two == [0xFF, 0xC0]).expect("a baseline frame header");
    bytes[at + 5..at + 7].copy_from_slice(&height.to_be_bytes());
    bytes[at + 7..at + 9].copy_from_slice(&width.to_be_bytes());
    bytes
}
