//! Files written by `datasets`, `webdataset`, `pyarrow` and `scipy` (see `real_tools/make_samples.py`).

use crate::format_common::*;
use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float64Type};
use arrow::record_batch::RecordBatch;
use arrow::util::display::array_value_to_string;
use feedstock_dataset::{Access, AudioProbe, CatalogStore, Dataset, Layout, OpenOptions, SampleId};
use std::path::Path;

fn samples(name: &str) -> std::path::PathBuf {
    Path::new("tests/real_tools/samples").canonicalize().unwrap().join(name)
}

/// Checks twelve JPEGs with labels i mod 3, in this order.
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

/// Checks twelve FLACs of 0.05 × (i + 1) s with their sentences and votes.
async fn holds_the_twelve_clips(name: &str, layout: Layout) -> Vec<RecordBatch> {
    let dataset = open(&samples(name)).await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (layout, 12), "{name}");
    assert_eq!(
        (catalog.payload_columns(), catalog.audio_columns()),
        (&["audio".into()][..], &["audio".into()][..])
    );
    let rows = all_rows(&dataset).await;
    let clips = payloads(&rows, "audio");
    assert!(clips.iter().flatten().all(|c| c.starts_with(b"fLaC")), "{name}");
    assert_eq!(clips.iter().collect::<std::collections::HashSet<_>>().len(), 12, "{name}");
    assert_eq!(ints(&rows, "up_votes"), (0..12).collect::<Vec<_>>(), "{name}");
    let sentence = if layout == Layout::WebDataset { "text" } else { "sentence" };
    assert_eq!(
        texts(&rows, sentence),
        (0..12).map(|i| format!("tone \"{i}\"")).collect::<Vec<_>>(),
        "{name}"
    );
    assert_eq!(dataset.filter("up_votes >= 2 and up_votes < 5").await.unwrap().len(), 3, "{name}");
    rows
}

#[tokio::test]
async fn audio_by_datasets() {
    for (name, layout) in [("audio_parquet", Layout::HfParquet), ("audio_save_to_disk", Layout::ArrowIpc)] {
        let rows = holds_the_twelve_clips(name, layout).await;
        assert_eq!(texts(&rows, "audio_path")[11], "11.flac", "{name}");
    }
}

#[tokio::test]
async fn audio_by_webdataset() {
    let rows = holds_the_twelve_clips("audio_webdataset", Layout::WebDataset).await;
    let seconds = rows[0].column_by_name("duration").unwrap().as_primitive::<Float64Type>();
    assert!((seconds.value(3) - 0.2).abs() < 1e-9);
}

/// The header states what `soundfile` wrote: STREAMINFO's sample rate (20 bits) and number of samples (36 bits).
#[tokio::test]
async fn durations_of_real_clips_come_from_their_headers() {
    let probe = AudioProbe::new(1, |head: &[u8], _| {
        let info = head.strip_prefix(b"fLaC")?.get(14..22)?;
        let bits = u64::from_be_bytes(info.try_into().ok()?);
        Some((bits & 0xf_ffff_ffff) as f64 / (bits >> 44) as f64)
    });
    for name in ["audio_parquet", "audio_save_to_disk"] {
        let options = OpenOptions { audio_probe: Some(probe.clone()), ..options(CatalogStore::Nowhere) };
        let dataset = Dataset::open_with(path(&samples(name)), options).await.unwrap();
        let rows = all_rows(&dataset).await;
        let seconds = rows.iter().flat_map(|b| {
            b.column_by_name("duration").unwrap().as_primitive::<Float64Type>().values().to_vec()
        });
        for (i, seconds) in seconds.enumerate() {
            assert!((seconds - 0.05 * (i + 1) as f64).abs() < 1e-9, "{name}, audio clip {i}: {seconds} s");
        }
        assert_eq!(dataset.filter("duration < 0.22").await.unwrap().len(), 4, "{name}");
    }
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

/// Returns the rows of a column as text; null is empty.
fn shown(rows: &[RecordBatch], column: &str) -> Vec<String> {
    let rows = rows.iter().flat_map(|batch| {
        let array = batch.column_by_name(column).unwrap().clone();
        (0..array.len()).map(move |row| array_value_to_string(&array, row).unwrap())
    });
    rows.collect()
}

/// Image i has i % 3 boxes; the types of the two tars differ.
#[tokio::test]
async fn boxes_by_webdataset() {
    let cache = tempfile::tempdir().unwrap();
    for _stored in [false, true] {
        let store = CatalogStore::Cache(cache.path().into());
        let dataset = Dataset::open_with(path(&samples("boxes")), options(store)).await.unwrap();
        let catalog = dataset.catalog();
        let kind = |name: &str| catalog.schema().field_with_name(name).unwrap().data_type().clone();
        let DataType::List(boxes) = kind("boxes") else { panic!("{}", kind("boxes")) };
        let DataType::Struct(fields) = boxes.data_type() else { panic!("{boxes}") };
        let names: Vec<&str> = fields.iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["label", "score", "xywh"]);
        assert_eq!(kind("either"), DataType::Utf8);
        let notes: Vec<_> = catalog.notes().iter().filter(|note| note.contains("column ")).collect();
        assert!(matches!(notes[..], [note] if note.starts_with("column either: ")), "{notes:?}");
        let rows = all_rows(&dataset).await;
        let boxes = shown(&rows, "boxes");
        assert_eq!(boxes[3], "[]");
        assert_eq!(boxes[1], "[{label: cat, score: , xywh: [1.0, 1.0, 2.0, 3.0]}]");
        let second = |label: &str| format!("{{label: {label}, score: 0.25, xywh: [8.5, 1.0, 2.0, 3.0]}}");
        assert_eq!(boxes[8], format!("[{}, {}]", second("cat"), second("dog")));
        assert_eq!(shown(&rows, "camera")[7], "{id: 7, tags: [day]}");
        assert_eq!(shown(&rows, "either")[..2], ["[0]", "1"]);
        let chosen = dataset.columns(&["boxes"]).unwrap();
        assert_eq!(shown(&all_rows(&chosen).await, "boxes"), boxes);
        assert_eq!(chosen.filter("camera['id'] > 9").await.unwrap().len(), 2);
    }
}

/// Each sample is alone in a page, or with two others.
#[tokio::test]
async fn pages_by_pyarrow() {
    let three = Access::Pages { samples: 3, is_local: true };
    for (name, access) in [("parquet_pages_1", Access::Samples), ("parquet_pages_3", three)] {
        holds_the_twelve(name, Layout::HfParquet, true).await;
        let dataset = open(&samples(name)).await.unwrap();
        assert_eq!(dataset.catalog().access(), access, "{name}");
        let images = payloads(&all_rows(&dataset).await, "image");
        let reader = dataset.block_reader();
        for sample in [7, 0, 11, 6, 5] {
            let row = reader.fetch_sample(SampleId(sample), u64::MAX).await.unwrap().rows;
            assert_eq!(payloads(std::slice::from_ref(&row), "image")[0], images[sample as usize]);
            assert_eq!(ints(std::slice::from_ref(&row), "label"), [sample as i64 % 3]);
            assert_eq!(shown(&[row], "image_path"), [format!("{sample}.jpg")]);
        }
    }
}

#[tokio::test]
async fn ipc_files_by_pyarrow() {
    holds_the_twelve("ipc", Layout::ArrowIpc, true).await;
    holds_the_twelve("ipc_lz4", Layout::ArrowIpc, true).await;
}
