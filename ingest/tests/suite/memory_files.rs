//! Synthetic files of every format. Some take a thousand times their bytes in memory.

use arrow::array::{ArrayRef, BinaryArray, FixedSizeListArray, Float32Array, Int64Array, StringArray};
use arrow::datatypes::{DataType, Field};
use arrow::record_batch::RecordBatch;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use feedstock_testkit::tar_member;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use proptest::prelude::*;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

const MIB: usize = 1 << 20;

type Write = fn(&Path);

/// The description of each data set, the function that writes it, and its number of rows.
pub(crate) const HOSTILE: &[(&str, Write, u64)] = &[
    ("masks of zeros in LZ4", |at| ipc(at, CompressionType::LZ4_FRAME, 32, 16, 0), 512),
    ("masks of zeros in Zstandard", |at| ipc(at, CompressionType::ZSTD, 32, 16, 0), 512),
    (
        "a dictionary of one value",
        |at| repeated(at, 3500, |value| Arc::new(BinaryArray::from_vec(value))),
        3500,
    ),
    ("a dictionary of one text", |at| repeated(at, 1000, |value| Arc::new(texts(value))), 1000),
    ("runs of one number", runs, 512),
    ("pages of zeros after pages of noise", |at| uneven_pages(at, 30_000), 576),
    ("values that repeat prefixes", |at| prefixes(at, 16), 512),
];

/// Single blocks that exceed the budget of 64 MiB.
pub(crate) const TOO_LARGE: &[(&str, Write)] = &[
    ("one batch of zeros", |at| ipc(at, CompressionType::LZ4_FRAME, 1, 100, 0)),
    ("one row group of prefixes", |at| prefixes(at, 512)),
    ("one block of pages of zeros", |at| uneven_pages(at, 0)),
];

/// A file of equal rows.
#[derive(Debug, Clone)]
pub(crate) struct MadeUp {
    kind: Kind,
    /// The number of row groups or batches, and the rows of each.
    groups: usize,
    rows: usize,
    value_bytes: usize,
    /// The random bytes of each value. The rest is zeros.
    noise_bytes: usize,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Ipc(Option<CompressionType>),
    Parquet { codec: Compression, dictionary: bool, text: bool },
    Folder,
    Tar,
}

impl MadeUp {
    pub(crate) fn rows(&self) -> u64 {
        (self.groups * self.rows) as u64
    }

    fn value(&self, row: usize) -> Vec<u8> {
        let mut value = vec![0; self.value_bytes];
        noise(row as u64, &mut value[..self.noise_bytes.min(self.value_bytes)]);
        value
    }
}

pub(crate) fn any_file() -> impl Strategy<Value = MadeUp> {
    let codec = prop_oneof![
        Just(Compression::UNCOMPRESSED),
        Just(Compression::SNAPPY),
        Just(Compression::ZSTD(Default::default())),
        Just(Compression::GZIP(Default::default())),
    ];
    let ipc =
        prop_oneof![Just(None), Just(Some(CompressionType::LZ4_FRAME)), Just(Some(CompressionType::ZSTD))];
    let kind = prop_oneof![
        2 => ipc.prop_map(Kind::Ipc),
        4 => (codec, any::<bool>(), any::<bool>())
            .prop_map(|(codec, dictionary, text)| Kind::Parquet { codec, dictionary, text }),
        1 => Just(Kind::Folder),
        1 => Just(Kind::Tar),
    ];
    // At most 300 MB, in groups of up to 40 MB.
    (kind, 1..20usize, 1..40usize, 1_000..1_000_000usize, 0..1000usize)
        .prop_filter("too much", |(_, groups, rows, bytes, _)| groups * rows * bytes < 300_000_000)
        .prop_map(|(kind, groups, rows, value_bytes, noise_bytes)| {
            let noise_bytes = if noise_bytes % 2 == 0 { noise_bytes } else { value_bytes };
            MadeUp { kind, groups, rows, value_bytes, noise_bytes }
        })
}

pub(crate) fn write(file: &MadeUp, folder: &Path) {
    let groups = (0..file.groups)
        .map(|group| (0..file.rows).map(|row| file.value(group * file.rows + row)).collect::<Vec<Vec<u8>>>());
    match file.kind {
        Kind::Ipc(codec) => {
            let batches = groups.map(|values| columns(binary(&values))).collect::<Vec<_>>();
            write_ipc(folder, codec, &batches);
        }
        Kind::Parquet { codec, dictionary, text } => {
            let properties =
                WriterProperties::builder().set_compression(codec).set_dictionary_enabled(dictionary);
            let batches = groups.map(|values| {
                let readable =
                    |value: &Vec<u8>| value.iter().map(|byte| char::from(byte % 128)).collect::<String>();
                match text {
                    true => columns(Arc::new(StringArray::from_iter_values(values.iter().map(readable)))),
                    false => columns(binary(&values)),
                }
            });
            write_parquet(folder, properties, false, batches);
        }
        Kind::Folder => groups.flatten().enumerate().for_each(|(row, value)| {
            std::fs::write(folder.join(format!("{row:05}.jpg")), value).unwrap();
        }),
        Kind::Tar => {
            let members = groups.flatten().enumerate();
            let mut tar: Vec<u8> =
                members.flat_map(|(row, value)| tar_member(&format!("{row:05}.jpg"), &value)).collect();
            tar.extend([0; 1024]);
            std::fs::write(folder.join("shard-00000.tar"), tar).unwrap();
        }
    }
}

fn noise(seed: u64, bytes: &mut [u8]) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

fn binary(values: &[Vec<u8>]) -> ArrayRef {
    Arc::new(BinaryArray::from_iter_values(values))
}

/// Returns a batch of the values and a label.
fn columns(values: ArrayRef) -> RecordBatch {
    let labels = Int64Array::from_iter_values(0..values.len() as i64);
    RecordBatch::try_from_iter([("value", values), ("label", Arc::new(labels) as ArrayRef)]).unwrap()
}

fn texts(values: Vec<&[u8]>) -> StringArray {
    StringArray::from_iter_values(values.iter().map(|value| std::str::from_utf8(value).unwrap()))
}

fn ipc(folder: &Path, codec: CompressionType, batches: usize, rows: usize, noise_bytes: usize) {
    let mut value = vec![0; MIB];
    noise(1, &mut value[..noise_bytes]);
    let batch = columns(binary(&vec![value; rows]));
    write_ipc(folder, Some(codec), &vec![batch; batches]);
}

fn write_ipc(folder: &Path, codec: Option<CompressionType>, batches: &[RecordBatch]) {
    let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let file = File::create(folder.join("data.arrow")).unwrap();
    let mut writer = FileWriter::try_new_with_options(file, &batches[0].schema(), options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
}

/// Writes each batch as one row group, or all of them as one.
fn write_parquet(
    folder: &Path,
    properties: WriterPropertiesBuilder,
    one_group: bool,
    batches: impl IntoIterator<Item = RecordBatch>,
) {
    let mut batches = batches.into_iter().peekable();
    let schema = batches.peek().unwrap().schema();
    let file = File::create(folder.join("data.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, schema, Some(properties.build())).unwrap();
    for batch in batches {
        writer.write(&batch).unwrap();
        if !one_group {
            writer.flush().unwrap();
        }
    }
    writer.close().unwrap();
}

/// Writes one value of 1 MiB in `rows` rows of one row group.
fn repeated(folder: &Path, rows: usize, array: fn(Vec<&[u8]>) -> ArrayRef) {
    let value = vec![b'x'; MIB];
    let properties = WriterProperties::builder().set_dictionary_page_size_limit(4 * MIB);
    write_parquet(folder, properties, true, (0..rows / 100).map(|_| columns(array(vec![&value; 100]))));
}

/// Writes lists of 262,144 zeros: 1 MiB per row, a few bytes in the file.
fn runs(folder: &Path) {
    let zeros = Float32Array::from(vec![0.0; 4 * MIB / 4]);
    let item = Arc::new(Field::new("item", DataType::Float32, false));
    let list = FixedSizeListArray::new(item, i32::try_from(MIB / 4).unwrap(), Arc::new(zeros), None);
    write_parquet(folder, WriterProperties::builder(), false, vec![columns(Arc::new(list)); 128]);
}

/// Writes one row group of 64 MiB that does not compress and 512 MiB that do, in pages of one value. By the mean of both, a
/// page of the latter (`noise_bytes`, the rest zeros) seems to have 7 times its stored bytes.
fn uneven_pages(folder: &Path, noise_bytes: usize) {
    let value = |row: usize| {
        let mut value = vec![0; MIB];
        noise(row as u64, &mut value[..if row < 64 { MIB } else { noise_bytes }]);
        value
    };
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(Default::default()))
        .set_dictionary_enabled(false)
        .set_data_page_row_count_limit(1)
        .set_write_batch_size(1);
    let batch = |at: usize| columns(binary(&(8 * at..8 * at + 8).map(value).collect::<Vec<_>>()));
    write_parquet(folder, properties, true, (0..72).map(batch));
}

/// Writes 512 equal values in row groups of `rows` rows. The file states each value as a prefix of the previous one.
fn prefixes(folder: &Path, rows: usize) {
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_column_encoding("value".into(), Encoding::DELTA_BYTE_ARRAY);
    let batch = columns(binary(&vec![vec![b'x'; MIB]; rows]));
    write_parquet(folder, properties, false, vec![batch; 512 / rows]);
}
