//! Parquet files whose footers are false: rejected with the file's name, without a panic, an abort or a long wait.

use crate::damaged_files::{all_are_whole_or_refused, samples_of};
use crate::format_common::*;
use arrow::array::{ArrayRef, Int64Array, ListArray};
use arrow::datatypes::Int64Type;
use arrow::record_batch::RecordBatch;
use bytes::Bytes;
use feedstock_dataset::{BadShards, BlockId, CatalogStore, Dataset, ErrorKind, OpenOptions};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::metadata::{
    ColumnChunkMetaDataBuilder, FileMetaData, OffsetIndexBuilder, PageIndexPolicy, ParquetMetaData,
    ParquetMetaDataBuilder, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData,
};
use parquet::file::page_index::offset_index::OffsetIndexMetaData;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::TrackedWrite;
use parquet::schema::types::ColumnPath;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROWS: u64 = 40;

fn parquet(batch: &RecordBatch, compression: Compression, index: bool) -> Vec<u8> {
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_max_row_group_row_count(Some(20))
        .set_data_page_size_limit(1 << 10)
        .set_write_batch_size(4)
        .set_column_dictionary_enabled(ColumnPath::new(vec!["image".into(), "bytes".into()]), false)
        .set_offset_index_disabled(!index)
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

/// Images, numbers and lists.
fn with_lists() -> RecordBatch {
    let plain = hf_batch(0..ROWS, 60);
    let lists = (0..ROWS).map(|i| Some((0..i as i64 % 4).map(Some).collect::<Vec<_>>()));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int64Type, _, _>(lists));
    let schema = plain.schema();
    let columns = schema.fields().iter().map(|f| f.name().clone()).zip(plain.columns().to_vec());
    RecordBatch::try_from_iter(columns.chain([("list".to_owned(), lists)])).unwrap()
}

/// Returns where the footer begins, with the offset indexes in front of it.
fn footer_start(file: &[u8]) -> usize {
    let metadata = parse(file);
    let columns = || metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
    let pages = columns().map(|column| {
        let (start, length) = column.byte_range();
        (start + length) as usize
    });
    pages.max().unwrap()
}

fn parse(file: &[u8]) -> ParquetMetaData {
    let reader = ParquetMetaDataReader::new().with_offset_index_policy(PageIndexPolicy::Optional);
    reader.parse_and_finish(&Bytes::copy_from_slice(file)).unwrap()
}

#[tokio::test]
async fn changed_bytes_are_refused_or_read() {
    let zstd = Compression::ZSTD(ZstdLevel::default());
    for (name, content) in [
        ("plain.parquet", parquet(&hf_batch(0..ROWS, 60), Compression::UNCOMPRESSED, true)),
        ("walked.parquet", parquet(&hf_batch(0..ROWS, 9_000), Compression::UNCOMPRESSED, false)),
        ("cut.parquet", parquet(&hf_batch(0..ROWS, 9_000), Compression::SNAPPY, true)),
        ("lists.parquet", parquet(&with_lists(), zstd, true)),
    ] {
        all_are_whole_or_refused(name, &content, footer_start(&content)..content.len()).await;
    }
}

/// How a footer is changed.
#[derive(Default)]
struct Claims {
    /// For the last row group; the file's row count follows from it.
    group_rows: Option<i64>,
    values: Option<i64>,
    index: Option<Vec<OffsetIndexMetaData>>,
    column: Option<ColumnChange>,
}

type ColumnChange = fn(ColumnChunkMetaDataBuilder) -> ColumnChunkMetaDataBuilder;

/// Returns the file with another footer.
fn claiming(file: &[u8], claims: Claims) -> Vec<u8> {
    let metadata = parse(file);
    let old = metadata.file_metadata();
    let mut groups = metadata.row_groups().to_vec();
    let mut indexes = metadata.offset_index().cloned();
    let group = groups.pop().unwrap();
    let rows = claims.group_rows.unwrap_or(group.num_rows());
    let columns = group.columns().iter().map(|column| {
        let values = claims.values.unwrap_or(column.num_values());
        let builder = column.clone().into_builder().set_num_values(values);
        claims.column.unwrap_or(|same| same)(builder).build().unwrap()
    });
    let columns = columns.collect();
    groups
        .push(group.clone().into_builder().set_num_rows(rows).set_column_metadata(columns).build().unwrap());
    if let Some(index) = claims.index {
        *indexes.as_mut().unwrap().last_mut().unwrap() = index;
    }
    let new = FileMetaData::new(
        old.version(),
        old.num_rows(), // the writer states the sum of its row groups
        None,
        old.key_value_metadata().cloned(),
        old.schema_descr_ptr(),
        old.column_orders().cloned(),
    );
    let new = ParquetMetaDataBuilder::new(new).set_row_groups(groups).set_offset_index(indexes).build();
    let mut bytes = Vec::new();
    let mut written = TrackedWrite::new(&mut bytes);
    written.write_all(file).unwrap();
    ParquetMetaDataWriter::new_with_tracked(written, &new).finish().unwrap();
    bytes
}

/// Returns the file with a footer that states another number of rows than its row groups have.
fn with_sum(file: &[u8], rows: u8) -> Vec<u8> {
    // field 3, an i64 of ROWS in zigzag, then field 4, a list of two structs
    let before = [0x16, 2 * ROWS as u8, 0x19, 0x2c];
    let start = footer_start(file);
    let found: Vec<usize> = (start..file.len() - 4).filter(|&at| file[at..at + 4] == before).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    let mut changed = file.to_vec();
    changed[found[0] + 1] = 2 * rows;
    changed
}

#[tokio::test]
async fn row_counts_that_disagree_are_refused() {
    for bytes in [60, 9_000] {
        for index in [true, false] {
            let file = parquet(&hf_batch(0..ROWS, bytes), Compression::UNCOMPRESSED, index);
            let of = |group_rows, values| claiming(&file, Claims { group_rows, values, ..Claims::default() });
            let whole = samples_of("x.parquet", &of(None, None), "as written").await;
            assert_eq!(whole, Some(ROWS));
            for (claims, what) in [
                (of(Some(-451), None), "negative"),
                (of(Some(-451), Some(-451)), "negative values, too"),
                (of(Some(12), None), "fewer rows than values"),
                (of(Some(1 << 40), Some(1 << 40)), "2^40"),
                (with_sum(&file, ROWS as u8 - 1), "another sum"),
            ] {
                let samples = samples_of("x.parquet", &claims, what).await;
                assert_eq!(samples, None, "{what}, images of {bytes} bytes, index: {index}");
            }
        }
    }
}

/// Only the pages contradict this count: memory is not reserved by it.
#[tokio::test]
async fn rows_that_the_pages_do_not_have_take_no_memory() {
    let file = parquet(&hf_batch(0..20, 60), Compression::UNCOMPRESSED, false);
    let rows = Some((1i64 << 32) - 1);
    let file = claiming(&file, Claims { group_rows: rows, values: rows, ..Claims::default() });
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.parquet"), file).unwrap();
    let dataset = open(folder.path()).await.unwrap();
    let blocks = dataset.catalog().blocks() as u32;
    assert!((0..blocks).all(|id| dataset.catalog().block(BlockId(id)).samples <= 1 << 24));
    for id in [0, blocks / 2, blocks - 1] {
        let error = dataset.block_reader().fetch(BlockId(id), u64::MAX).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
        assert!(error.message().contains("x.parquet"), "{error}");
    }
}

/// parquet asserts that these are not negative.
#[tokio::test]
async fn places_that_are_no_places_are_refused() {
    let file = parquet(&hf_batch(0..ROWS, 60), Compression::UNCOMPRESSED, false);
    let changes: [ColumnChange; 4] = [
        |column| column.set_dictionary_page_offset(Some(-4)),
        |column| column.set_dictionary_page_offset(None).set_data_page_offset(-4),
        |column| column.set_total_compressed_size(-1),
        |column| column.set_total_compressed_size(1 << 40),
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let file = claiming(&file, Claims { column: Some(change), ..Claims::default() });
        assert_eq!(samples_of("x.parquet", &file, &format!("change {i}")).await, None, "change {i}");
    }
}

/// The start of the page, its bytes, and the number of its rows.
type Page = (i64, i32, i64);
type PagesChange = fn(&mut Vec<Page>);

fn index_of(pages: &[Page]) -> OffsetIndexMetaData {
    let mut index = OffsetIndexBuilder::new();
    for &(offset, bytes, rows) in pages {
        index.append_offset_and_size(offset, bytes);
        index.append_row_count(rows);
    }
    index.build()
}

fn pages_of(index: &OffsetIndexMetaData, rows: i64) -> Vec<Page> {
    let pages = index.page_locations();
    let next = pages.iter().skip(1).map(|page| page.first_row_index).chain([rows]);
    let rows = pages.iter().zip(next).map(|(page, next)| next - page.first_row_index);
    pages.iter().zip(rows).map(|(page, rows)| (page.offset, page.compressed_page_size, rows)).collect()
}

#[tokio::test]
async fn pages_that_do_not_follow_one_another_are_refused() {
    let file = parquet(&hf_batch(0..ROWS, 9_000), Compression::UNCOMPRESSED, true);
    let whole = parse(&file).offset_index().unwrap().last().unwrap().clone();
    let changes: [(&str, PagesChange); 7] = [
        ("twice the same", |pages| pages[2] = pages[1]),
        ("out of order", |pages| pages.swap(1, 2)),
        ("past the chunk", |pages| pages[2].1 = 1 << 30),
        ("negative offset", |pages| pages[0].0 = -4),
        ("negative size", |pages| pages[2].1 = -4),
        ("rows that fall", |pages| pages[1].2 = -3),
        ("more rows than the group", |pages| pages[0].2 = 1000),
    ];
    for (what, change) in changes {
        let mut index = whole.clone();
        let image = index.iter().position(|column| column.page_locations().len() > 2).unwrap();
        let mut pages = pages_of(&index[image], 20);
        change(&mut pages);
        index[image] = index_of(&pages);
        let file = claiming(&file, Claims { index: Some(index), ..Claims::default() });
        assert_eq!(samples_of("x.parquet", &file, what).await, None, "{what}");
    }
}

/// 100,000 blocks of one page each: quadratic work would take minutes.
#[tokio::test]
async fn many_pages_are_cut_in_linear_time() {
    const PAGES: i64 = 100_000;
    let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..PAGES));
    let batch = RecordBatch::try_from_iter([("number", numbers)]).unwrap();
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(PAGES as usize))
        .build();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    let file = writer.into_inner().unwrap();
    let (start, _) = parse(&file).row_group(0).column(0).byte_range();
    let pages: Vec<Page> = (0..PAGES).map(|i| (start as i64 + 8 * i, 8, 1)).collect();
    let claims = Claims {
        index: Some(vec![index_of(&pages)]),
        column: Some(|column| column.set_total_uncompressed_size(1 << 50)),
        ..Claims::default()
    };
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.parquet"), claiming(&file, claims)).unwrap();
    let began = Instant::now();
    // A reader of the page headers finds no page.
    match open(folder.path()).await {
        Ok(dataset) => assert_eq!(dataset.catalog().blocks() as i64, PAGES),
        Err(error) => assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}"),
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// One damaged schema must not make all other shards look damaged.
#[tokio::test]
async fn shards_of_another_schema_are_left_out_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    let (plain, lists) = (hf_batch(0..ROWS, 60), with_lists());
    for (name, batch) in [("a", &lists), ("b", &plain), ("c", &plain), ("d", &lists), ("e", &plain)] {
        let file = parquet(batch, Compression::UNCOMPRESSED, true);
        std::fs::write(folder.path().join(format!("{name}.parquet")), file).unwrap();
    }
    let open = |bad_shards| {
        let options = OpenOptions { bad_shards, ..options(CatalogStore::Nowhere) };
        Dataset::open_with(path(folder.path()), options)
    };
    let error = open(BadShards::Raise).await.unwrap_err();
    assert!(error.message().contains("schemas differ") && error.message().contains("b.parquet"), "{error}");
    let dataset = open(BadShards::Skip).await.unwrap();
    assert_eq!((dataset.len(), dataset.catalog().objects().len()), (3 * ROWS, 3));
    let notes = dataset.catalog().notes();
    assert!(notes.iter().filter(|note| note.contains("is left out")).count() == 2, "{notes:?}");
    assert!(notes.iter().any(|note| note.contains("d.parquet")), "{notes:?}");
    assert_eq!(ints(&all_rows(&dataset).await, "width").len() as u64, 3 * ROWS);
}

fn varint(mut n: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while n > 0x7f {
        bytes.push(n as u8 | 0x80);
        n >>= 7;
    }
    bytes.push(n as u8);
    bytes
}

/// Makes a file of this metadata and nothing else.
fn of_metadata(metadata: &[u8]) -> Vec<u8> {
    let length = (metadata.len() as u32).to_le_bytes();
    [b"PAR1", metadata, &length, b"PAR1"].concat()
}

/// parquet would reserve 200 GiB, which ends the process.
#[tokio::test]
async fn a_footer_of_too_many_row_groups_is_refused() {
    // version 1, a schema without columns, no rows, and 2³¹ - 1 row groups
    let element = [0x48, 1, b'x', 0x15, 0, 0];
    let groups = [&[0x19, 0xfc][..], &varint((1 << 31) - 1), &[0]].concat();
    let metadata = [&[0x15, 2, 0x19, 0x1c][..], &element, &[0x16, 0], &groups].concat();
    assert_eq!(samples_of("x.parquet", &of_metadata(&metadata), "row groups").await, None);
}

/// parquet would recurse once for each level, beyond the end of the stack.
#[tokio::test]
async fn a_schema_of_too_many_levels_is_refused() {
    const LEVELS: usize = 100_000;
    let group = [0x35, 2, 0x18, 1, b'x', 0x15, 2, 0]; // optional, of one child
    let leaf = [0x15, 2, 0x25, 2, 0x18, 1, b'x', 0];
    let schema = [group.repeat(LEVELS), leaf.to_vec()].concat();
    let metadata =
        [&[0x15, 2, 0x19, 0xfc][..], &varint(LEVELS + 1), &schema, &[0x16, 0, 0x19, 0x0c, 0]].concat();
    assert_eq!(samples_of("x.parquet", &of_metadata(&metadata), "levels").await, None);
}
