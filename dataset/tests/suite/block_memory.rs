//! Blocks hold the bytes that the catalog counts for them, and files that claim less are rejected.

use crate::format_common::*;
use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, BinaryArray, BooleanArray, Int32Array, Int64Array, ListArray,
    StringArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{Field, Int32Type};
use arrow::record_batch::RecordBatch;
use arrow_ipc::CompressionType;
use arrow_ipc::reader::FileReader;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use feedstock_dataset::{BlockId, CatalogStore, Dataset, Extent, OpenOptions};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::{ParquetMetaDataReader, ParquetMetaDataWriter};
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use proptest::prelude::*;
use std::collections::HashSet;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const MIB: usize = 1 << 20;
/// One offset of up to 8 bytes for each of up to 8 columns.
const OFFSETS_BYTES: u64 = 64;

/// Returns the bytes of all buffers, each counted once.
fn held(rows: &RecordBatch) -> u64 {
    fn add(data: &ArrayData, known: &mut HashSet<usize>) -> u64 {
        let buffers = data.buffers().iter().chain(data.nulls().map(|nulls| nulls.buffer()));
        let own: usize =
            buffers.filter(|b| known.insert(b.as_ptr() as usize)).map(|buffer| buffer.len()).sum();
        own as u64 + data.child_data().iter().map(|child| add(child, known)).sum::<u64>()
    }
    let mut known = HashSet::new();
    rows.columns().iter().map(|column| add(&column.to_data(), &mut known)).sum()
}

fn write(at: &Path, properties: WriterPropertiesBuilder, batches: &[RecordBatch]) {
    let file = File::create(at.join("data.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batches[0].schema(), Some(properties.build())).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.close().unwrap();
}

fn column(name: &str, array: impl Array + 'static) -> RecordBatch {
    RecordBatch::try_from_iter([(name, Arc::new(array) as ArrayRef)]).unwrap()
}

/// Returns every block as held in memory. Each holds at most what the catalog counts, except the first offsets of its columns.
pub(crate) async fn held_within_count(dataset: &Dataset) -> Vec<RecordBatch> {
    let (reader, catalog) = (dataset.block_reader(), dataset.catalog());
    let mut all = Vec::new();
    for id in (0..catalog.blocks() as u32).map(BlockId) {
        let rows = reader.fetch_held(id, u64::MAX).await.unwrap().rows;
        let (held, counted) = (held(&rows), catalog.block(id).memory_bytes);
        assert!(held <= counted + OFFSETS_BYTES, "{id}: {held} bytes held, {counted} counted");
        all.push(rows);
    }
    all
}

#[tokio::test]
async fn a_value_of_a_dictionary_is_held_once() {
    let value = vec![b'x'; MIB];
    let text = std::str::from_utf8(&value).unwrap();
    for batch in [
        column("bytes", BinaryArray::from_vec(vec![&value; 100])),
        column("text", StringArray::from(vec![text; 100])),
        column("texts", {
            let offsets = arrow::buffer::OffsetBuffer::from_lengths([10; 10]);
            let item = Arc::new(arrow::datatypes::Field::new("item", arrow::datatypes::DataType::Utf8, true));
            ListArray::new(item, offsets, Arc::new(StringArray::from(vec![text; 100])), None)
        }),
    ] {
        let dir = tempfile::tempdir().unwrap();
        write(
            dir.path(),
            WriterProperties::builder().set_dictionary_page_size_limit(2 * MIB),
            std::slice::from_ref(&batch),
        );
        let dataset = Dataset::open_with(path(dir.path()), OpenOptions::default()).await.unwrap();
        let memory = dataset.catalog().block(BlockId(0)).memory_bytes;
        assert!((MIB as u64..2 * MIB as u64).contains(&memory), "{memory}");
        held_within_count(&dataset).await;
        let rows = all_rows(&dataset).await;
        assert_eq!(rows[0].column(0).len(), batch.num_rows());
        if batch.schema().field(0).name() != "bytes" {
            assert_eq!(rows[0].column(0), batch.column(0), "the declared type, and every value");
        }
    }
}

/// One placeholder image in many lists: as bytes, and as Hugging Face's structs.
#[tokio::test]
async fn an_image_of_many_lists_is_held_once() {
    const LISTS: usize = 500;
    let (placeholder, other) = (picture(1, 500_000), picture(2, 3000));
    let images: Vec<&[u8]> =
        (0..4 * LISTS).map(|i| if i % 7 == 3 { &*other } else { &*placeholder }).collect();
    let bytes: ArrayRef = Arc::new(BinaryArray::from_vec(images.clone()));
    let paths: ArrayRef = Arc::new(StringArray::from_iter_values((0..4 * LISTS).map(|i| format!("{i}.jpg"))));
    let structs =
        arrow::array::StructArray::try_from(vec![("bytes", bytes.clone()), ("path", paths)]).unwrap();
    for items in [bytes, Arc::new(structs) as ArrayRef] {
        let item = Arc::new(Field::new("item", items.data_type().clone(), true));
        let lists = ListArray::new(item, OffsetBuffer::from_lengths([4; LISTS]), items, None);
        let batch = column("images", lists);
        let dir = tempfile::tempdir().unwrap();
        let properties = WriterProperties::builder()
            .set_dictionary_page_size_limit(2 * MIB)
            .set_data_page_row_count_limit(60)
            .set_write_batch_size(60);
        write(dir.path(), properties, std::slice::from_ref(&batch));
        let dataset = Dataset::open_with(path(dir.path()), OpenOptions::default()).await.unwrap();
        let memory = dataset.catalog().block(BlockId(0)).memory_bytes;
        assert!((500_000..2 * MIB as u64).contains(&memory), "{memory}");
        let blocks = held_within_count(&dataset).await;
        for row in [0, 1, 250, LISTS - 1] {
            let list = blocks[0].column(0).as_list::<i32>().value(row);
            let found =
                list.as_struct_opt().map_or(&list, |structs| structs.column(0)).as_binary_view().clone();
            let found: Vec<&[u8]> = found.iter().map(Option::unwrap).collect();
            assert!(found == images[4 * row..4 * row + 4], "row {row}");
        }
        // A part of a block holds its images, and not the pages that they are in.
        let part =
            dataset.block_reader().fetch_extent(Extent::new(BlockId(0), 3..4), u64::MAX).await.unwrap();
        assert!(held(&part.rows) < 520_000, "{}", held(&part.rows));
        let rows = dataset.rows(3..5).await.unwrap();
        assert_eq!(rows.column_by_name("images").unwrap(), &batch.column(0).slice(3, 2), "the declared type");
    }
}

/// Readers may give null rows the views of their neighbours.
#[tokio::test]
async fn nulls_hold_no_bytes() {
    for bytes in [3000, 100_000] {
        let values = (0..40).map(|row| (row % 4 < 2).then(|| picture(row, bytes)));
        let values: Vec<Option<Vec<u8>>> = values.collect();
        let batch = column("bytes", values.iter().map(Option::as_deref).collect::<BinaryArray>());
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), WriterProperties::builder().set_dictionary_enabled(false), &[batch]);
        let rows = held_within_count(&open(dir.path()).await.unwrap()).await;
        let (held, values): (u64, usize) =
            (rows.iter().map(held).sum(), values.iter().flatten().map(Vec::len).sum());
        assert!(held < values as u64 + 1000, "{held} bytes held for {values}");
    }
}

#[tokio::test]
async fn compressed_record_batches_count_their_decompressed_buffers() {
    for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
        let dir = tempfile::tempdir().unwrap();
        let batch = column("mask", BinaryArray::from_vec(vec![&vec![0; MIB]; 8]));
        write_ipc(dir.path(), Some(codec), &[batch.clone(), batch]);
        let dataset = open(dir.path()).await.unwrap();
        for id in [BlockId(0), BlockId(1)] {
            let block = dataset.catalog().block(id);
            assert!(block.bytes < 100_000, "{block:?}: the order depends on encoded bytes");
            let plain = 8 * MIB as u64;
            assert!((plain..plain + 1000).contains(&block.memory_bytes), "{block:?}");
        }
        held_within_count(&dataset).await;
    }
}

fn write_ipc(at: &Path, codec: Option<CompressionType>, batches: &[RecordBatch]) {
    let options = IpcWriteOptions::default().try_with_compression(codec).unwrap();
    let file = File::create(at.join("data.arrow")).unwrap();
    let mut writer = FileWriter::try_new_with_options(file, &batches[0].schema(), options).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.finish().unwrap();
}

/// Pages of zeros and pages of noise in one column chunk: the mean fits neither.
#[tokio::test]
async fn pages_that_compress_unevenly_count_what_each_becomes() {
    let zeros = |row: u64| if row < 20 { picture(row, 200_000) } else { vec![0; 200_000] };
    let values: Vec<Vec<u8>> = (0..100).map(zeros).collect();
    for with_index in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(Default::default()))
            .set_dictionary_enabled(false)
            .set_data_page_row_count_limit(1)
            .set_write_batch_size(1)
            .set_offset_index_disabled(!with_index);
        write(dir.path(), properties, &[column("bytes", BinaryArray::from_iter_values(&values))]);
        let dataset = Dataset::open_with(
            path(dir.path()),
            OpenOptions { block_bytes: 2 << 20, ..options(CatalogStore::Nowhere) },
        );
        let dataset = dataset.await.unwrap();
        assert!(dataset.catalog().blocks() > 2);
        held_within_count(&dataset).await;
        let counted: u64 = (0..dataset.catalog().blocks() as u32)
            .map(|id| dataset.catalog().block(BlockId(id)).memory_bytes)
            .sum();
        let plain: usize = values.iter().map(Vec::len).sum();
        assert!(counted < plain as u64 * 2, "{counted} counted for {plain}, an offset index: {with_index}");
    }
}

/// A footer that states fewer bytes than its pages decompress to is rejected before anything is decompressed.
#[tokio::test]
async fn a_footer_that_states_less_than_its_pages_claim_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let properties = WriterProperties::builder()
        .set_compression(Compression::ZSTD(Default::default()))
        .set_dictionary_enabled(false)
        .set_offset_index_disabled(true);
    write(dir.path(), properties, &[column("bytes", BinaryArray::from_vec(vec![&vec![0; MIB]; 30]))]);
    let at = dir.path().join("data.parquet");
    let bytes = bytes::Bytes::from(std::fs::read(&at).unwrap());
    let mut metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes).unwrap().into_builder();
    let groups = metadata.take_row_groups().into_iter().map(|group| {
        let column =
            group.column(0).clone().into_builder().set_total_uncompressed_size(5000).build().unwrap();
        group.into_builder().set_column_metadata(vec![column]).build().unwrap()
    });
    let groups = groups.collect();
    let metadata = metadata.set_row_groups(groups).build();
    let length = u32::from_le_bytes(bytes[bytes.len() - 8..bytes.len() - 4].try_into().unwrap()) as usize;
    let mut lying = bytes[..bytes.len() - 8 - length].to_vec();
    let mut footer = Vec::new();
    ParquetMetaDataWriter::new(&mut footer, &metadata).finish().unwrap();
    lying.extend(footer);
    std::fs::write(&at, lying).unwrap();
    let dataset = open(dir.path()).await.unwrap();
    let error = dataset.block_reader().fetch_held(BlockId(0), u64::MAX).await.unwrap_err().to_string();
    for part in ["data.parquet", "rows 0..30", "column \"bytes\"", "once decoded", "damaged"] {
        assert!(error.contains(part), "{error}");
    }
}

/// A catalog stored without the blocks' memory is made again if the bytes do not determine it, otherwise completed.
#[tokio::test]
async fn a_catalog_stored_without_memory_is_completed_or_made_anew() {
    for codec in [None, Some(CompressionType::LZ4_FRAME)] {
        let (data, cached) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_ipc(data.path(), codec, &[column("mask", BinaryArray::from_vec(vec![&vec![0; MIB]; 4]))]);
        let store = || options(CatalogStore::Cache(cached.path().into()));
        let first = Dataset::open_with(path(data.path()), store()).await.unwrap();
        forget_memory(cached.path());
        let read = Arc::new(AtomicBool::new(false));
        let (mut again, reads) = (store(), read.clone());
        again.catalog.progress = Some(Arc::new(move |now| {
            reads.fetch_or(now.stage.starts_with("reading"), Ordering::Relaxed);
        }));
        let second = Dataset::open_with(path(data.path()), again).await.unwrap();
        assert_eq!(read.load(Ordering::Relaxed), codec.is_some());
        assert_eq!(second.catalog().hashes(), first.catalog().hashes());
        let memory = |dataset: &Dataset| dataset.catalog().block(BlockId(0)).memory_bytes;
        let rows = second.catalog().block_samples(BlockId(0));
        assert!(memory(&second) >= (rows.end - rows.start) * MIB as u64, "{} for {rows:?}", memory(&second));
        held_within_count(&second).await;
    }
}

/// Removes the column from the table of blocks, as in the first catalogs of version 4.
fn forget_memory(cached: &Path) {
    let folder = std::fs::read_dir(cached).unwrap().next().unwrap().unwrap().path();
    let at = folder.join("catalog.json");
    let mut index: serde_json::Value = serde_json::from_slice(&std::fs::read(&at).unwrap()).unwrap();
    let table = &mut index["tables"]["blocks"];
    let file = folder.join(table["file"].as_str().unwrap());
    let batch = FileReader::try_new(File::open(&file).unwrap(), None).unwrap().next().unwrap().unwrap();
    let columns: Vec<usize> =
        (0..batch.num_columns()).filter(|&c| batch.schema().field(c).name() != "memory_bytes").collect();
    assert_eq!(columns.len() + 1, batch.num_columns());
    let batch = batch.project(&columns).unwrap();
    let mut bytes = Vec::new();
    let mut writer = FileWriter::try_new(&mut bytes, &batch.schema()).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    drop(writer);
    table["bytes"] = bytes.len().into();
    table["crc32"] = crc32fast::hash(&bytes).into();
    std::fs::write(file, bytes).unwrap();
    std::fs::write(at, index.to_string()).unwrap();
}

fn any_batch() -> impl Strategy<Value = RecordBatch> {
    let text = prop::option::of("[a-z]{0,40}");
    let row = (
        any::<Option<i64>>(),
        text.clone(),
        prop::option::of(prop::collection::vec(any::<u8>(), 0..3000)),
        prop::option::of(prop::collection::vec(any::<Option<i32>>(), 0..20)),
        any::<bool>(),
        prop::collection::vec(text, 0..5),
    );
    (prop::collection::vec(row, 1..20), 1..40usize).prop_map(|(rows, times)| {
        let rows: Vec<_> = std::iter::repeat_n(rows, times).flatten().collect(); // dictionaries and runs
        let mut texts = arrow::array::ListBuilder::new(arrow::array::StringBuilder::new());
        let mut images = arrow::array::ListBuilder::new(arrow::array::BinaryBuilder::new());
        rows.iter().for_each(|row| texts.append_value(row.5.clone()));
        rows.iter().for_each(|row| {
            images.append_value(row.5.iter().map(|text| text.as_ref().map(String::as_bytes)))
        });
        RecordBatch::try_from_iter([
            ("number", Arc::new(rows.iter().map(|row| row.0).collect::<Int64Array>()) as ArrayRef),
            ("text", Arc::new(rows.iter().map(|row| row.1.as_deref()).collect::<StringArray>())),
            ("bytes", Arc::new(rows.iter().map(|row| row.2.as_deref()).collect::<BinaryArray>())),
            (
                "list",
                Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(
                    rows.iter().map(|row| row.3.clone()),
                )),
            ),
            ("flag", Arc::new(rows.iter().map(|row| Some(row.4)).collect::<BooleanArray>())),
            ("narrow", Arc::new(rows.iter().map(|row| Some(i32::from(row.4))).collect::<Int32Array>())),
            ("texts", Arc::new(texts.finish())),
            ("images", Arc::new(images.finish())),
        ])
        .unwrap()
    })
}

static RUNTIME: Mutex<Option<tokio::runtime::Runtime>> = Mutex::new(None);

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = RUNTIME.lock().unwrap();
    runtime.get_or_insert_with(|| tokio::runtime::Runtime::new().unwrap()).block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn blocks_of_any_file_hold_no_more_than_counted(
        batch in any_batch(),
        codec in prop_oneof![
            Just(Compression::UNCOMPRESSED), Just(Compression::SNAPPY), Just(Compression::LZ4_RAW),
            Just(Compression::ZSTD(Default::default())), Just(Compression::GZIP(Default::default())),
        ],
        ipc in prop_oneof![Just(None), Just(Some(CompressionType::LZ4_FRAME)), Just(Some(CompressionType::ZSTD))],
        dictionary in any::<bool>(), prefixes in any::<bool>(), index in any::<bool>(),
        page_rows in 1..50usize, block_bytes in 4096..20_000u64, is_ipc in any::<bool>(),
    ) {
        let dir = tempfile::tempdir().unwrap();
        if is_ipc {
            write_ipc(dir.path(), ipc, &[batch.clone(), batch.slice(0, batch.num_rows().div_ceil(2))]);
        } else {
            let mut properties = WriterProperties::builder()
                .set_compression(codec)
                .set_dictionary_enabled(dictionary)
                .set_data_page_row_count_limit(page_rows)
                .set_write_batch_size(page_rows)
                .set_offset_index_disabled(!index);
            if prefixes {
                properties = properties.set_column_encoding("text".into(), Encoding::DELTA_BYTE_ARRAY);
            }
            write(dir.path(), properties, std::slice::from_ref(&batch));
        }
        block_on(async {
            let open = OpenOptions { block_bytes, ..options(CatalogStore::Nowhere) };
            let dataset = Dataset::open_with(path(dir.path()), open).await.unwrap();
            held_within_count(&dataset).await;
            let rows = all_rows(&dataset).await;
            let all = arrow::compute::concat_batches(&rows[0].schema(), &rows).unwrap();
            for name in ["number", "text", "list", "flag", "texts", "images"] {
                let column = all.column_by_name(name).unwrap().slice(0, batch.num_rows());
                assert_eq!(&column, batch.column_by_name(name).unwrap(), "{name}");
            }
        });
    }
}
