//! The quality of a shuffle over real files: which labels are read, and what the figures are.

use crate::format_common::*;
use crate::plan_sets::Sets;
use arrow::array::{Int64Array, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{
    BlockId, Dataset, Error, ErrorKind, QualityOptions, Rank, Result, Shuffle, ShuffleQuality, StepShape,
    StepSize, Stop, Tail,
};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use std::path::Path;
use std::sync::Arc;

fn shape(global_batch: u64, world_size: u32) -> StepShape {
    StepShape { size: StepSize::Rows(global_batch), rank: Rank::new(0, world_size), tail: Tail::Drop }
}

async fn quality(
    dataset: &Dataset,
    shuffle: &Shuffle,
    shape: StepShape,
    labels: Option<&str>,
) -> Result<ShuffleQuality> {
    let options = QualityOptions { shape, epoch: 0, labels };
    dataset.shuffle_quality::<Error>(shuffle, &options, |shuffle| dataset.plan(shuffle)).await
}

fn about(found: f64, expected: f64, tolerance: f64) {
    assert!((found / expected - 1.0).abs() < tolerance, "{found} is not about {expected}");
}

/// Writes 2,000 rows with sorted labels: 20 groups of 100, as integers and as texts, in row groups of 50; `noise` is not sorted.
fn write_sorted(folder: &Path) {
    let ids = 0..2_000i64;
    let bytes = |i: i64| picture(i as u64, 1_000);
    let schema = Arc::new(Schema::new(vec![
        Field::new("image", DataType::Binary, false),
        Field::new("label", DataType::Int64, true),
        Field::new("speaker", DataType::Utf8, false),
        Field::new("score", DataType::Float64, false),
    ]));
    let columns: Vec<arrow::array::ArrayRef> = vec![
        Arc::new(ids.clone().map(|i| Some(bytes(i))).collect::<arrow::array::BinaryArray>()),
        Arc::new(Int64Array::from_iter(ids.clone().map(|i| (i >= 100).then_some(i / 100)))), // the first group is null
        Arc::new(StringArray::from_iter_values(ids.clone().map(|i| format!("speaker-{}", i / 100)))),
        Arc::new(arrow::array::Float64Array::from_iter_values(ids.map(|i| i as f64))),
    ];
    let batch = RecordBatch::try_new(schema, columns).unwrap();
    for (name, from) in [("a.parquet", 0), ("b.parquet", 1_000)] {
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(50)).build();
        let file = std::fs::File::create(folder.join(name)).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch.slice(from, 1_000)).unwrap();
        writer.close().unwrap();
    }
}

#[tokio::test]
async fn sorted_labels_are_mixed_as_far_as_the_window_reaches() {
    let folder = tempfile::tempdir().unwrap();
    write_sorted(folder.path());
    let dataset = open(folder.path()).await.unwrap();
    let shape = shape(40, 2);
    let found = quality(&dataset, &Shuffle::seeded(7).window(200), shape, None).await.unwrap();
    assert_eq!(
        (found.label_column.as_deref(), found.sampled_steps, found.labelled_steps),
        (Some("label"), 50, 50)
    );
    let full = found.full_shuffle.global_batch.unwrap();
    // 20 labels, 40 rows: 20 × (1 − 0.95⁴⁰) different ones.
    about(full.labels, 17.4, 0.03);
    assert_eq!(full.entropy_ratio, Some(1.0));
    let ratio = |order: &feedstock_dataset::OrderQuality| order.global_batch.unwrap().entropy_ratio.unwrap();
    let (half, twice) = (found.half_window.as_ref().unwrap(), found.twice_window.as_ref().unwrap());
    assert_eq!((half.window, found.order.window, twice.window), (Some(100), Some(200), Some(400)));
    assert!(ratio(half) < ratio(&found.order) && ratio(&found.order) < ratio(twice) && ratio(twice) < 1.0);
    about(found.full_shuffle.same_shard_pairs.unwrap(), 0.5, 0.05); // two files
    about(found.full_shuffle.displacement.unwrap(), 1.0 / 3.0, 0.03);

    let unshuffled = quality(&dataset, &Shuffle::none(), shape, None).await.unwrap().order;
    assert_eq!((unshuffled.same_shard_pairs, unshuffled.displacement), (Some(1.0), Some(0.0)));

    // Texts that name the same groups give the same figures; a missing label is a label.
    let texts = quality(&dataset, &Shuffle::seeded(7).window(200), shape, Some("speaker")).await.unwrap();
    assert_eq!(ShuffleQuality { label_column: found.label_column.clone(), ..texts }, found);
}

#[tokio::test]
async fn without_labels_there_are_the_other_figures() {
    let folder = tempfile::tempdir().unwrap();
    write_sorted(folder.path());
    let dataset = open(folder.path()).await.unwrap();
    for (column, reason) in [
        ("image", "column image is BinaryView; labels must be a column of texts or integers"),
        ("score", "column score is Float64; labels must be a column of texts or integers"),
        ("nothing", "no column named nothing"),
    ] {
        let error = quality(&dataset, &Shuffle::seeded(7), shape(40, 2), Some(column)).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        assert!(error.message().contains(reason), "{error}");
    }
    let texts = folder.path().join("texts");
    std::fs::create_dir(&texts).unwrap();
    let rows = Arc::new(StringArray::from_iter_values((0..100).map(|i| format!("line {i}"))));
    let schema = Arc::new(Schema::new(vec![Field::new("text", DataType::Utf8, false)]));
    let batch = RecordBatch::try_new(schema, vec![rows]).unwrap();
    let mut writer =
        ArrowWriter::try_new(std::fs::File::create(texts.join("t.parquet")).unwrap(), batch.schema(), None)
            .unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let dataset = open(&texts).await.unwrap();
    let found = quality(&dataset, &Shuffle::full(7), shape(10, 1), None).await.unwrap();
    assert_eq!((found.label_column, found.labelled_steps), (None, 0));
    assert_eq!((found.order.global_batch, found.order.window, found.half_window), (None, None, None));
    assert_eq!(found.order.reads.unwrap().requests, 100, "a full shuffle reads each sample alone");
}

#[tokio::test]
async fn files_of_a_folder_take_a_request_each_and_a_filter_leaves_samples_out() {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), 0); // 90 files in three classes
    let dataset = open(folder.path()).await.unwrap();
    let found = quality(&dataset, &Shuffle::seeded(7), shape(10, 1), Some("class")).await.unwrap();
    let reads = found.order.reads.unwrap();
    assert_eq!((reads.requests, reads.rank_requests, reads.readers), (90, 90, 1.0));
    let catalog = dataset.catalog();
    let blocks = 0..u32::try_from(catalog.blocks()).unwrap();
    let bytes: u64 = blocks.map(|id| catalog.block(BlockId(id)).bytes).sum();
    assert_eq!(reads.bytes, bytes, "each block once");
    assert_eq!(found.twice_window, None, "the window has all samples");
    about(found.full_shuffle.global_batch.unwrap().labels, 3.0, 0.05);

    let cats = dataset.filter("class = 'a'").await.unwrap();
    let found = quality(&cats, &Shuffle::seeded(7), shape(10, 2), None).await.unwrap();
    let labels = found.order.global_batch.unwrap();
    assert_eq!((labels.labels, labels.entropy_bits, labels.entropy_ratio), (1.0, 0.0, None));
}

#[tokio::test]
async fn a_mix_is_measured_with_the_labels_of_its_parts() {
    let sets = Sets::new();
    let parts = vec![(sets.table().await, 0.75), (sets.files().await, 0.25)];
    let mixed = Dataset::mix(parts, Stop::AllExhausted).unwrap();
    let found = quality(&mixed, &Shuffle::seeded(5), shape(20, 2), Some("dataset")).await.unwrap();
    about(found.order.global_batch.unwrap().labels, 2.0, 0.05);
    about(found.order.global_batch.unwrap().entropy_ratio.unwrap(), 1.0, 0.05);
    assert_eq!(found.order.displacement, None);
    assert!(found.order.reads.unwrap().requests > 0);
}
