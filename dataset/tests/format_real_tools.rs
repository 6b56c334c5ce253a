//! Files written by `datasets`, `webdataset`, `pyarrow` and `scipy` (see `real_tools/make_samples.py`).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::cast_possible_truncation)]

mod format_common;

use feedstock_dataset::Layout;
use format_common::*;
use std::path::Path;

fn samples(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/real_tools/samples").join(name)
}

/// Twelve JPEGs with labels i mod 3, in this order.
async fn holds_the_twelve(name: &str, layout: Layout, names: bool) {
    let dataset = open(&samples(name)).await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (layout, 12), "{name}");
    let rows = all_rows(&dataset).await;
    assert_eq!(ints(&rows, "label"), (0..12).map(|i| i % 3).collect::<Vec<_>>(), "{name}");
    let images = payloads(&rows, "image");
    assert!(
        images.iter().flatten().all(|i| i.starts_with(b"\xff\xd8\xff") && i.ends_with(b"\xff\xd9")),
        "{name}"
    );
    let distinct: std::collections::HashSet<_> = images.iter().collect();
    assert_eq!(distinct.len(), 12, "{name}");
    if names {
        assert_eq!(catalog.class_names("label").unwrap(), ["cat", "dog", "eel"], "{name}");
        assert_eq!(texts(&rows, "image_path")[11], "11.jpg", "{name}");
    }
    let some = dataset.filter("label = 2 and width = 24").await.unwrap();
    assert_eq!(some.len(), 4, "{name}");
}

#[tokio::test]
async fn parquet_by_datasets() {
    holds_the_twelve("parquet", Layout::HfParquet, true).await;
}

#[tokio::test]
async fn saved_to_disk_by_datasets() {
    holds_the_twelve("save_to_disk", Layout::ArrowIpc, true).await;
}

#[tokio::test]
async fn tars_by_webdataset() {
    holds_the_twelve("webdataset", Layout::WebDataset, false).await;
}

#[tokio::test]
async fn ipc_files_by_pyarrow() {
    holds_the_twelve("ipc", Layout::ArrowIpc, true).await;
    holds_the_twelve("ipc_lz4", Layout::ArrowIpc, true).await;
}
