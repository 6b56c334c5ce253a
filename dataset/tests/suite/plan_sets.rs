//! Lengths and mixes of real data sets: columns, ids, filters and bytes of the parts stay correct.

use crate::format_common::*;
use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float32Type, Int64Type, UInt64Type};
use arrow::util::display::array_value_to_string;
use feedstock_dataset::{
    Block, BlockId, CatalogStore, Dataset, DiskCacheOptions, Layout, Position, SampleId, Shuffle, Stop,
};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

pub(crate) const TABLE: u64 = 450;
pub(crate) const FILES: u64 = 90;

pub(crate) struct Sets {
    table: tempfile::TempDir,
    pub(crate) files: tempfile::TempDir,
}

impl Sets {
    pub(crate) fn new() -> Self {
        let (table, files) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write_parquet(table.path());
        write_folder(files.path(), 1000);
        Self { table, files }
    }

    pub(crate) async fn table(&self) -> Dataset {
        open(self.table.path()).await.unwrap().named("table")
    }

    pub(crate) async fn files(&self) -> Dataset {
        open(self.files.path()).await.unwrap().columns(&["path", "image"]).unwrap().named("files")
    }
}

/// Returns the part, and the identity of the sample in it: the width in the table, the path of a file.
pub(crate) fn identity(block: &Block, row: usize) -> (String, String) {
    let text = |name: &str| block.rows.column_by_name(name).unwrap().as_string::<i32>().value(row).to_owned();
    let width = block.rows.column_by_name("width").unwrap().as_primitive::<Int64Type>();
    match text("dataset").as_str() {
        "table" => ("table".into(), width.value(row).to_string()),
        _ => {
            assert!(width.is_null(row), "the files have no width");
            ("files".into(), text("path"))
        }
    }
}

#[tokio::test]
async fn a_mix_reads_as_its_parts() {
    let sets = Sets::new();
    let (table, files) = (sets.table().await, sets.files().await);
    let mixed = Dataset::mix(vec![(table.clone(), 0.75), (files.clone(), 0.25)], Stop::AllExhausted).unwrap();
    let catalog = mixed.catalog();
    assert_eq!(catalog.samples(), TABLE + FILES);
    assert_eq!(catalog.layout(), Layout::HfParquet, "that of the first part");
    let columns: Vec<&str> = catalog.schema().fields().iter().map(|f| f.name().as_str()).collect();
    assert_eq!(columns, ["image_path", "label", "width", "path", "dataset", "image"]);
    assert_eq!(catalog.payload_columns(), ["image"]);
    assert!(catalog.describe_sample(SampleId(17)).starts_with("table: a.parquet row 17"));
    assert!(catalog.describe_sample(SampleId(TABLE)).starts_with("files: a/000.jpg"));
    assert!(catalog.describe_block(BlockId(catalog.blocks() as u32 - 1)).starts_with("files: block"));

    let reader = mixed.block_reader();
    let own = [all_rows(&table).await, all_rows(&files).await];
    let pictures = [payloads(&own[0], "image"), payloads(&own[1], "image")].concat();
    for id in 0..catalog.blocks() as u32 {
        let block = reader.fetch(BlockId(id), 0).await.unwrap();
        for row in 0..block.rows.num_rows() {
            let bytes = block.rows.column_by_name("image").unwrap().as_binary_view().value(row);
            assert_eq!(Some(bytes), pictures[block.sample(row).0 as usize].as_deref());
        }
    }
    for sample in [0, 299, TABLE - 1, TABLE, TABLE + FILES - 1] {
        let block = reader.fetch_sample(SampleId(sample), 0).await.unwrap();
        let bytes = block.rows.column_by_name("image").unwrap().as_binary_view().value(0);
        assert_eq!(Some(bytes), pictures[sample as usize].as_deref());
    }
    let only = mixed.clone().columns(&["dataset"]).unwrap().block_reader();
    let block = only.fetch(BlockId(0), 0).await.unwrap();
    assert_eq!(
        block.rows.column(0).as_string::<i32>().value(0),
        "table",
        "its name is known without a read of the part"
    );
}

#[tokio::test]
async fn a_mixed_epoch_draws_every_sample_of_every_part() {
    let sets = Sets::new();
    let table = sets.table().await.filter("width >= 50").await.unwrap();
    let mixed = Dataset::mix(vec![(table, 0.75), (sets.files().await, 0.25)], Stop::AllExhausted).unwrap();
    assert_eq!(mixed.len(), 400 + FILES);
    let plan = mixed.plan(&Shuffle::seeded(5)).unwrap();
    let reader = mixed.block_reader();
    let mut blocks: BTreeMap<BlockId, Block> = BTreeMap::new();
    let mut order = plan.epoch(1);
    let mut drawn: BTreeMap<(String, String), u64> = BTreeMap::new();
    for p in 0..plan.len() {
        let at = order.sample_at(Position(p));
        if let Entry::Vacant(place) = blocks.entry(at.block) {
            place.insert(reader.fetch(at.block, 0).await.unwrap());
        }
        let block = &blocks[&at.block];
        assert_eq!(block.sample(at.row as usize), at.sample);
        *drawn.entry(identity(block, at.row as usize)).or_default() += 1;
    }
    let count = |part: &str| drawn.keys().filter(|(of, _)| of == part).count() as u64;
    assert_eq!((count("table"), count("files")), (400, FILES), "every kept sample, and no other");
    assert!(drawn.keys().all(|(part, key)| part == "files" || key.parse::<u64>().unwrap() >= 50));
    let (least, most) = (drawn.values().min().unwrap(), drawn.values().max().unwrap());
    assert_eq!(
        (*least, *most),
        (1, 2),
        "400 draws are three quarters of 533: the files are drawn one and a half times"
    );
}

#[tokio::test]
async fn a_mix_is_filtered_and_queried_as_one() {
    let sets = Sets::new();
    let parts =
        vec![(sets.table().await, 1.0), (sets.files().await.filter("path like 'a/%'").await.unwrap(), 1.0)];
    let mixed = Dataset::mix(parts, Stop::FirstExhausted).unwrap();
    assert_eq!(mixed.len(), TABLE + 30);
    let counts = mixed
        .sql("select dataset, count(*) as n, min(sample_id) as first from catalog group by 1 order by 1");
    let counts = counts.await.unwrap();
    let column = |at: usize| counts[0].column(at).clone();
    assert_eq!(column(0).as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["files", "table"]);
    assert_eq!(column(1).as_primitive::<Int64Type>().values().to_vec(), [FILES as i64, TABLE as i64]);
    assert_eq!(column(2).as_primitive::<UInt64Type>().values().to_vec(), [TABLE, 0]);
    let filtered = mixed.clone().filter("width < 20 or dataset = 'files'").await.unwrap();
    assert_eq!(filtered.len(), 20 + 30, "filters of the parts stay in effect");
    let (before, after) =
        (mixed.plan(&Shuffle::seeded(1)).unwrap(), filtered.plan(&Shuffle::seeded(1)).unwrap());
    let refused = after.check(&before.cursor(0, Position(0))).unwrap_err().to_string();
    assert!(refused.contains("its filter is"), "{refused}");
    let mut order = after.epoch(0);
    for p in 0..after.len() {
        let sample = order.sample_at(Position(p)).sample;
        assert!(filtered.selection().unwrap().contains(sample), "{sample}");
    }
    let nothing = mixed.filter("dataset = 'table'").await.unwrap().plan(&Shuffle::seeded(1)).unwrap_err();
    assert!(nothing.to_string().contains("files in the mix"), "{nothing}");
}

#[tokio::test]
async fn parts_are_read_through_their_own_caches() {
    let sets = Sets::new();
    let folder = tempfile::tempdir().unwrap();
    let mut cached = options(CatalogStore::Nowhere);
    cached.disk_cache = Some(DiskCacheOptions::new(folder.path().to_path_buf(), 1 << 30));
    let table = Dataset::open_with(path(sets.table.path()), cached).await.unwrap().named("table");
    let mixed = Dataset::mix(vec![(sets.files().await, 1.0), (table, 1.0)], Stop::FirstExhausted).unwrap();
    for _ in 0..2 {
        for block in 0..mixed.catalog().blocks() as u32 {
            mixed.block_reader().fetch(BlockId(block), 1).await.unwrap();
        }
    }
    let stats = mixed.disk_cache().unwrap().stats();
    assert!(stats.hits > 0, "{stats:?}");
}

#[tokio::test]
async fn parts_that_do_not_go_together_are_named() {
    let sets = Sets::new();
    let table = sets.table().await;
    let refused = |parts: Vec<(Dataset, f64)>| Dataset::mix(parts, Stop::Never).unwrap_err().to_string();
    let labelled = open(sets.files.path()).await.unwrap().named("files");
    let message = refused(vec![(table.clone(), 1.0), (labelled.clone(), 1.0)]);
    assert!(
        message.contains("column label") && message.contains("table") && message.contains("files"),
        "{message}"
    );
    assert!(refused(vec![(table.clone(), 1.0), (table.clone(), 1.0)]).contains("Dataset::named"));
    assert!(refused(vec![(table.clone(), 0.0)]).contains("weight of table"));
    assert!(refused(vec![(table.clone(), 1.0), (sets.files().await, 1e-9)]).contains("weight of files"));
    assert!(refused(Vec::new()).contains("at least 1 data set"));
    let mixed = Dataset::mix(vec![(table.clone(), 1.0)], Stop::Never).unwrap();
    assert!(refused(vec![(table, 1.0), (mixed, 1.0)]).contains("in one call"));
}

#[tokio::test]
async fn a_share_that_is_rounded_is_told() {
    let sets = Sets::new();
    let mixed = async |weight| {
        let parts = vec![(sets.table().await, 1.0), (sets.files().await, weight)];
        Dataset::mix(parts, Stop::Never).unwrap().catalog().notes().to_vec()
    };
    let rounded = |notes: &[String]| notes.iter().filter(|note| note.contains("rounded")).count();
    let notes = mixed(2.5e-5).await; // 1.6 of 65,536 samples
    assert!(notes.iter().any(|note| note.starts_with("files: ") && note.contains("3.05e-5")), "{notes:?}");
    assert_eq!((rounded(&notes), rounded(&mixed(0.25).await)), (1, 0));
}

#[tokio::test]
async fn lengths_are_a_numeric_column_by_sample() {
    let sets = Sets::new();
    let table = sets.table().await;
    let lengths = table.lengths("width").await.unwrap();
    assert_eq!(lengths.column(), "width");
    assert_eq!(lengths.values().to_vec(), (0..TABLE).map(|i| i as f32).collect::<Vec<_>>());
    let files = sets.files().await;
    let refused = files.lengths("path").await.unwrap_err().to_string();
    assert!(refused.contains("path") && refused.contains("Utf8"), "{refused}");
    assert!(files.lengths("width").await.unwrap_err().to_string().contains("no column named width"));

    // The files have no width: in a mix it is null for them, so they must be filtered out.
    let mixed = Dataset::mix(vec![(table, 1.0), (files, 1.0)], Stop::FirstExhausted).unwrap();
    let refused = mixed.lengths("width").await.unwrap_err().to_string();
    assert!(refused.contains("files: a/000.jpg") && refused.contains("width is not null"), "{refused}");
    let batches =
        mixed.sql("select arrow_cast(width, 'Float32') from catalog where width is not null").await.unwrap();
    let rows: usize = batches.iter().map(|batch| batch.column(0).as_primitive::<Float32Type>().len()).sum();
    assert_eq!((rows, batches[0].schema().field(0).data_type()), (TABLE as usize, &DataType::Float32));
}

/// Parts whose boxes differ in fields and types of numbers are mixed into one column.
#[tokio::test]
async fn nested_columns_of_a_mix_hold_those_of_all_parts() {
    let folder = tempfile::tempdir().unwrap();
    let mut parts = Vec::new();
    for (name, about) in [
        ("a", r#"{"boxes": [{"xywh": [1, 2], "label": "cat"}]}"#),
        ("b", r#"{"boxes": [{"xywh": [0.5], "score": 1}]}"#),
    ] {
        let members = [("0.jpg".to_owned(), picture(0, 100)), ("0.json".to_owned(), about.into())];
        let at = folder.path().join(format!("{name}.tar"));
        std::fs::write(&at, tar_of(&members)).unwrap();
        parts.push((open(&at).await.unwrap(), 1.0));
    }
    let mixed = Dataset::mix(parts, Stop::AllExhausted).unwrap();
    let rows = all_rows(&mixed).await;
    let boxes: Vec<String> = rows
        .iter()
        .map(|batch| array_value_to_string(batch.column_by_name("boxes").unwrap(), 0).unwrap())
        .collect();
    assert_eq!(boxes, ["[{label: cat, xywh: [1.0, 2.0], score: }]", "[{label: , xywh: [0.5], score: 1}]"]);
}
