//! Parts of the blocks of Parquet: pages of a few samples, few requests, and the order that they allow.

use crate::format_common::*;
use crate::ipc_parts::{extents, opened, stored};
use feedstock_dataset::{
    Access, BlockId, CatalogStore, Dataset, Extent, OpenOptions, Position, SampleId, Shuffle, ShuffleKind,
};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder};
use parquet::schema::types::ColumnPath;
use std::collections::BTreeSet;
use std::ops::Range;

/// Row groups of 200 rows of 20 to 30 kB have their columns further apart than ranges that storage joins.
const BYTES: usize = 20_000;
const GROUP: usize = 200;

/// Ends the pages of all columns after `samples` rows.
pub(crate) fn pages_of(samples: usize) -> WriterPropertiesBuilder {
    WriterProperties::builder()
        .set_data_page_row_count_limit(samples)
        .set_write_batch_size(samples)
        .set_data_page_size_limit(1 << 30)
        .set_max_row_group_row_count(Some(GROUP))
        .set_column_dictionary_enabled(bytes_column(), false)
}

fn bytes_column() -> ColumnPath {
    ColumnPath::new(vec!["image".to_owned(), "bytes".to_owned()])
}

pub(crate) fn file(rows: Range<u64>, bytes: usize, properties: WriterPropertiesBuilder) -> Vec<u8> {
    let batch = hf_batch(rows, bytes);
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

/// Writes pages of 3 rows, but for the first, which has 4.
fn uneven(rows: Range<u64>) -> Vec<u8> {
    let batch = hf_batch(rows, 2_000);
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(pages_of(3).build())).unwrap();
    writer.write(&batch.slice(0, 1)).unwrap();
    writer.write(&batch.slice(1, batch.num_rows() - 1)).unwrap();
    writer.into_inner().unwrap()
}

#[tokio::test]
async fn parts_are_the_rows_of_their_block() {
    for (page, codec) in [(1, Compression::UNCOMPRESSED), (3, Compression::SNAPPY)] {
        let folder = tempfile::tempdir().unwrap();
        let compressed = || pages_of(page).set_compression(codec);
        std::fs::write(folder.path().join("a.parquet"), file(0..402, 2_000, compressed())).unwrap();
        let groups_of_9 = compressed().set_max_row_group_row_count(Some(9));
        std::fs::write(folder.path().join("b.parquet"), file(402..440, 2_000, groups_of_9)).unwrap();
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
}

/// Fetches the extents of one epoch in the order of the plan, each once while its neighbours are needed. Returns requests and
/// bytes.
async fn read_epoch(dataset: &Dataset, shuffle: &Shuffle) -> (BTreeSet<Extent>, u64, u64) {
    let plan = dataset.plan(shuffle).unwrap();
    let (mut order, reader) = (plan.epoch(0), dataset.block_reader());
    let (mut fetched, mut samples) = (BTreeSet::new(), BTreeSet::new());
    let before = dataset.storage().stats();
    for position in 0..plan.len() {
        let planned = order.sample_at(Position(position));
        assert!(samples.insert(planned.sample), "{planned:?} comes twice");
        let extent = plan.extent_of(planned.block, planned.sample);
        assert!(extent.row_of(planned.sample).is_some());
        if fetched.insert(extent) {
            let part = reader.fetch_extent(extent, u64::MAX).await.unwrap();
            let right: Vec<_> = extent.range().map(|i| Some(picture(i, BYTES))).collect();
            assert_eq!(payloads(std::slice::from_ref(&part.rows), "image"), right);
            let paths = part.rows.column_by_name("image_path").unwrap();
            let path = arrow::util::display::array_value_to_string(paths, 0).unwrap();
            assert_eq!(path, format!("{}.jpg", extent.first));
        }
    }
    assert_eq!(samples.len() as u64, dataset.catalog().samples());
    let after = dataset.storage().stats();
    (fetched, after.requests - before.requests, after.read_bytes - before.read_bytes)
}

/// A request for each piece, one for the labels and names of each row group, and no page twice.
#[tokio::test]
async fn an_epoch_reads_every_page_once() {
    const ROWS: u64 = 500;
    for (page, piece, group) in [(1, 10, GROUP), (3, 9, 198), (4, 8, 200)] {
        let properties = pages_of(page).set_max_row_group_row_count(Some(group));
        let store = stored("a.parquet", file(0..ROWS, BYTES, properties));
        let dataset = opened(&store).await.columns(&["image", "label", "image_path"]).unwrap();
        let shuffle = Shuffle::seeded(1);
        let fingerprint = dataset.plan(&shuffle).unwrap().fingerprint().clone();
        assert_eq!((fingerprint.version, fingerprint.piece), (2, Some(piece)), "pages of {page}");
        let (extents, requests, bytes) = read_epoch(&dataset, &shuffle).await;
        let groups = ROWS.div_ceil(group as u64);
        let needed = extents.len() as u64 + groups;
        assert!(requests <= needed, "{requests} requests for {needed} pieces and row groups");
        assert!(needed <= ROWS.div_ceil(piece) + dataset.catalog().blocks() as u64 + groups);
        let held: u64 = (0..ROWS).map(|i| picture(i, BYTES).len() as u64).sum();
        assert!(bytes * 100 <= held * 105, "{bytes} bytes are read of {held}");
        let forecasts = extents.iter().map(|extent| dataset.extent_reads(*extent));
        let forecast =
            forecasts.fold((0, 0), |(requests, bytes), of| (requests + of.requests, bytes + of.bytes));
        assert_eq!(u64::from(forecast.0), extents.len() as u64);
        let difference = bytes as f64 / forecast.1 as f64 - 1.0;
        assert!((-0.05..0.01).contains(&difference), "{bytes} bytes are read, {forecast:?} is forecast");
    }
}

fn shuffle_of(dataset: &Dataset) -> (ShuffleKind, Option<u64>) {
    let plan = dataset.plan(&Shuffle::seeded(1)).unwrap();
    (plan.fingerprint().shuffle, plan.fingerprint().piece)
}

#[tokio::test]
async fn the_default_shuffle_permutes_pages() {
    let in_blocks = (Access::Blocks, (ShuffleKind::Window, None));
    let whole = || pages_of(1 << 20);
    let local = |samples| Access::Pages { samples, is_local: true };
    for (what, files, expected) in [
        (
            "a page for each sample",
            vec![file(0..100, 2_000, pages_of(1))],
            (Access::Samples, (ShuffleKind::Full, None)),
        ),
        ("pages of 3", vec![file(0..99, 2_000, pages_of(3))], (local(3), (ShuffleKind::Window, Some(3)))),
        (
            "a short last page of the data set",
            vec![
                file(0..99, 2_000, pages_of(3)),
                file(99..150, 2_000, pages_of(3)),
                file(150..250, 2_000, pages_of(3)),
            ],
            (local(3), (ShuffleKind::Window, Some(3))),
        ),
        (
            "a short last page of a file",
            vec![file(0..100, 2_000, pages_of(3)), file(100..200, 2_000, pages_of(3))],
            in_blocks,
        ),
        ("one page a row group", vec![file(0..100, 2_000, whole())], in_blocks),
        ("different pages in a row group", vec![uneven(0..100)], in_blocks),
        ("large pages", vec![file(0..12, 300_000, pages_of(3))], in_blocks),
        (
            "different pages",
            vec![file(0..99, 2_000, pages_of(3)), file(99..199, 2_000, pages_of(1))],
            in_blocks,
        ),
        ("no offset index", vec![file(0..99, 2_000, pages_of(3).set_offset_index_disabled(true))], in_blocks),
        (
            "payloads in a dictionary",
            vec![file(0..99, 2_000, pages_of(3).set_column_dictionary_enabled(bytes_column(), true))],
            in_blocks,
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        for (i, content) in files.into_iter().enumerate() {
            std::fs::write(folder.path().join(format!("{i}.parquet")), content).unwrap();
        }
        let dataset = open(folder.path()).await.unwrap();
        assert_eq!((dataset.catalog().access(), shuffle_of(&dataset)), expected, "{what}");
    }
}

/// What a filter leaves begins within pages, so that pieces would read most pages twice.
#[tokio::test]
async fn filtered_pages_of_several_samples_are_shuffled_in_blocks() {
    for (page, expected) in [(1, Some(10)), (2, None)] {
        let store = stored("a.parquet", file(0..400, BYTES, pages_of(page)));
        let dataset = opened(&store).await.filter("label < 5").await.unwrap();
        assert_eq!(shuffle_of(&dataset), (ShuffleKind::Window, expected), "pages of {page}");
    }
}

#[tokio::test]
async fn a_catalog_that_does_not_state_them_is_rebuilt_and_takes_its_cursors() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(
        folder.path().join("a.parquet"),
        file(0..399, 2_000, pages_of(3).set_max_row_group_row_count(Some(198))),
    )
    .unwrap();
    let open = || async {
        let open = OpenOptions { block_bytes: 16 << 10, ..options(CatalogStore::Beside) };
        Dataset::open_with(path(folder.path()), open).await.unwrap()
    };
    let built = open().await;
    let again = open().await;
    assert_eq!(again.catalog().access(), Access::Pages { samples: 3, is_local: true });
    let kept = std::fs::read_dir(folder.path().join("_feedstock")).unwrap().flatten();
    let indexes: Vec<_> =
        kept.map(|entry| entry.path().join("catalog.json")).filter(|at| at.exists()).collect();
    assert_eq!(indexes.len(), 1);
    let mut index: serde_json::Value = serde_json::from_slice(&std::fs::read(&indexes[0]).unwrap()).unwrap();
    assert_eq!(index.as_object_mut().unwrap().remove("page_samples"), Some(3.into()));
    std::fs::write(&indexes[0], index.to_string()).unwrap();
    let older = open().await;
    assert_eq!(older.catalog().access(), Access::Blocks);
    assert_eq!(older.catalog().hashes(), built.catalog().hashes());
    index["columns_version"] = 3.into();
    std::fs::write(&indexes[0], index.to_string()).unwrap();
    let rebuilt = open().await;
    assert_eq!(rebuilt.catalog().access(), Access::Pages { samples: 3, is_local: true });

    // A cursor of the older order is continued with the new catalog, sample for sample.
    let shuffle = Shuffle::seeded(7);
    let before = older.plan(&shuffle).unwrap();
    let saved = before.cursor(0, Position(100));
    assert!(built.plan(&shuffle).unwrap().check(&saved).is_err());
    let after = rebuilt.plan(&shuffle.as_saved(&saved.fingerprint)).unwrap();
    after.check(&saved).unwrap();
    let samples = |plan: &feedstock_dataset::Plan| -> Vec<SampleId> {
        let mut order = plan.epoch(0);
        (0..plan.len()).map(|position| order.sample_at(Position(position)).sample).collect()
    };
    assert_eq!(samples(&after), samples(&before));
}
