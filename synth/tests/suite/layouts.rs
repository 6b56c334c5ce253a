//! The layouts: each is read with the usual reader of its format, and all hold the same samples.

use crate::written::{contents, files_below};
use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::Int64Type;
use arrow::ipc::reader::StreamReader;
use feedstock_synth::{ErrorKind, ImagenetOptions, Layout, Painter, Progress, Summary};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

const SAMPLES: u64 = 53;
const CLASSES: u32 = 7;

/// name → (label, JPEG)
type Samples = BTreeMap<String, (i64, Vec<u8>)>;

fn options(layout: Layout) -> ImagenetOptions {
    ImagenetOptions {
        samples: SAMPLES,
        classes: Some(CLASSES),
        layout,
        width: 96,
        height: 80,
        samples_per_shard: 20,
        rows_per_group: 8,
        threads: 3,
        ..Default::default()
    }
}

fn expected() -> Samples {
    let mut painter = Painter::new(&options(Layout::Folder)).unwrap();
    let samples = (0..SAMPLES).map(|index| painter.sample(index).unwrap());
    samples.map(|sample| (sample.name, (sample.label, sample.jpeg))).collect()
}

fn write(layout: Layout) -> (tempfile::TempDir, Summary) {
    let dir = tempfile::tempdir().unwrap();
    let mut last = None;
    let summary = options(layout).write(dir.path(), &mut |progress| last = Some(progress)).unwrap();
    assert_eq!(last, Some(Progress { done: SAMPLES, total: SAMPLES, bytes: summary.image_bytes }));
    let files = files_below(dir.path());
    let bytes: u64 = files.iter().map(|path| path.metadata().unwrap().len()).sum();
    assert_eq!((summary.files, summary.file_bytes), (files.len() as u64, bytes));
    (dir, summary)
}

fn collect(batches: impl IntoIterator<Item = RecordBatch>, samples: &mut Samples) {
    for batch in batches {
        let image = batch.column_by_name("image").unwrap().as_struct();
        let bytes = image.column_by_name("bytes").unwrap().as_binary::<i32>();
        let paths = image.column_by_name("path").unwrap().as_string::<i32>();
        let labels = batch.column_by_name("label").unwrap().as_primitive::<Int64Type>();
        for row in 0..batch.num_rows() {
            let value = (labels.value(row), bytes.value(row).to_vec());
            assert!(samples.insert(paths.value(row).to_owned(), value).is_none(), "a sample twice");
        }
    }
}

#[test]
fn parquet_is_hugging_faces() {
    let (dir, summary) = write(Layout::Parquet);
    assert_eq!(summary.files, 3);
    let mut samples = Samples::new();
    let mut rows = Vec::new();
    for shard in 0..3 {
        let path = dir.path().join(format!("data/train-{shard:05}-of-00003.parquet"));
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
        let metadata = reader.metadata().file_metadata();
        let pairs = metadata.key_value_metadata().unwrap();
        let features = pairs.iter().find(|pair| pair.key == "huggingface").unwrap().value.clone().unwrap();
        let features: serde_json::Value = serde_json::from_str(&features).unwrap();
        assert_eq!(features["info"]["features"]["image"]["_type"], "Image");
        assert_eq!(features["info"]["features"]["label"]["names"].as_array().unwrap().len(), 7);
        assert!(reader.metadata().row_groups().iter().all(|group| group.num_rows() <= 8));
        assert!(reader.metadata().row_group(0).column(0).offset_index_offset().is_some());
        assert_eq!(
            reader.metadata().row_group(0).column(0).compression(),
            parquet::basic::Compression::SNAPPY
        );
        rows.push(metadata.num_rows());
        collect(reader.build().unwrap().map(Result::unwrap), &mut samples);
    }
    assert_eq!(rows, [18, 18, 17]);
    assert_eq!(samples, expected());
}

#[test]
fn ipc_is_a_saved_datasets_folder() {
    let (dir, _) = write(Layout::Ipc);
    let state = fs::read_to_string(dir.path().join("state.json")).unwrap();
    let state: serde_json::Value = serde_json::from_str(&state).unwrap();
    let mut samples = Samples::new();
    for file in state["_data_files"].as_array().unwrap() {
        let path = dir.path().join(file["filename"].as_str().unwrap());
        let reader = StreamReader::try_new(File::open(path).unwrap(), None).unwrap();
        assert!(reader.schema().metadata().contains_key("huggingface"));
        collect(reader.map(Result::unwrap), &mut samples);
    }
    assert_eq!(samples, expected());
}

#[test]
fn folder_labels_are_the_sorted_class_names() {
    let (dir, summary) = write(Layout::Folder);
    assert_eq!(summary.files, SAMPLES);
    let mut classes: Vec<PathBuf> = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path()).collect();
    classes.sort();
    let mut samples = Samples::new();
    for (label, class) in classes.iter().enumerate() {
        for path in files_below(class) {
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            assert!(name.starts_with(class.file_name().unwrap().to_str().unwrap()));
            samples.insert(name, (label as i64, fs::read(path).unwrap()));
        }
    }
    assert_eq!(samples, expected());
}

#[test]
fn webdataset_members_share_a_key() {
    let (dir, _) = write(Layout::WebDataset);
    let mut samples = Samples::new();
    let mut labels = BTreeMap::new();
    for path in files_below(dir.path()) {
        let mut archive = tar::Archive::new(File::open(path).unwrap());
        let mut keys = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_str().unwrap().to_owned();
            let (key, extension) = name.split_once('.').unwrap();
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            match extension {
                "cls" => drop(labels.insert(key.to_owned(), String::from_utf8(data).unwrap())),
                "jpg" => drop(samples.insert(format!("{key}.JPEG"), (labels[key].parse().unwrap(), data))),
                "json" => {
                    let facts: serde_json::Value = serde_json::from_slice(&data).unwrap();
                    assert_eq!(facts["label"].to_string(), labels[key]);
                }
                other => panic!("{other}"),
            }
            keys.push(key.to_owned());
        }
        keys.dedup();
        assert!((17..=18).contains(&keys.len()), "{} runs of members", keys.len());
    }
    assert_eq!(samples, expected());
}

#[test]
fn ilsvrc_is_a_tar_of_one_tar_per_class() {
    let (dir, summary) = write(Layout::Ilsvrc);
    assert_eq!(summary.files, 1);
    let mut samples = Samples::new();
    let mut outer = tar::Archive::new(File::open(dir.path().join("ILSVRC2012_img_train.tar")).unwrap());
    let mut classes = Vec::new();
    for entry in outer.entries().unwrap() {
        let entry = entry.unwrap();
        let class = entry.path().unwrap().to_str().unwrap().trim_end_matches(".tar").to_owned();
        let mut inner = tar::Archive::new(entry);
        for entry in inner.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_str().unwrap().to_owned();
            assert!(name.starts_with(&class));
            let mut data = Vec::new();
            entry.read_to_end(&mut data).unwrap();
            samples.insert(name, (classes.len() as i64, data));
        }
        classes.push(class);
    }
    assert!(classes.is_sorted());
    assert_eq!(samples, expected());
}

#[test]
fn threads_do_not_show_in_the_bytes() {
    for layout in Layout::ALL {
        let read = |threads| {
            let dir = tempfile::tempdir().unwrap();
            let options = ImagenetOptions { threads, samples: 30, ..options(layout) };
            options.write(dir.path(), &mut |_| ()).unwrap();
            contents(dir.path())
        };
        assert!(read(1) == read(5), "{layout}");
    }
}

#[test]
fn a_folder_with_files_is_refused_and_replaced_only_if_they_are_sample_data() {
    let dir = tempfile::tempdir().unwrap();
    let small = |layout| ImagenetOptions { samples: 8, ..options(layout) };
    small(Layout::Parquet).write(dir.path(), &mut |_| ()).unwrap();
    let error = small(Layout::Folder).write(dir.path(), &mut |_| ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.to_string().contains("not empty"), "{error}");
    for layout in Layout::ALL {
        let options = ImagenetOptions { overwrite: true, ..small(layout) };
        options.write(dir.path(), &mut |_| ()).unwrap();
    }
    assert_eq!(files_below(dir.path()).len(), 1, "only the files of the last layout exist");
    fs::write(dir.path().join("thesis.tex"), "years of work").unwrap();
    let options = ImagenetOptions { overwrite: true, ..small(Layout::Parquet) };
    let error = options.write(dir.path(), &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("thesis.tex"), "{error}");
    assert_eq!(files_below(dir.path()).len(), 2, "nothing was deleted");
}

#[test]
fn options_out_of_range_are_named() {
    let refused = [
        ("samples", ImagenetOptions { samples: 0, ..Default::default() }),
        ("classes", ImagenetOptions { classes: Some(0), ..Default::default() }),
        ("classes", ImagenetOptions { classes: Some(10), samples: 9, ..Default::default() }),
        ("width", ImagenetOptions { width: 63, ..Default::default() }),
        ("height", ImagenetOptions { height: 70_000, ..Default::default() }),
        ("quality", ImagenetOptions { quality: 101, ..Default::default() }),
        ("rows_per_group", ImagenetOptions { rows_per_group: 0, ..Default::default() }),
    ];
    for (name, options) in refused {
        let dir = tempfile::tempdir().unwrap();
        let error = options.write(dir.path(), &mut |_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig);
        assert!(error.to_string().contains(name), "{name}: {error}");
        assert_eq!(files_below(dir.path()).len(), 0);
    }
    assert!("tfrecord".parse::<Layout>().unwrap_err().to_string().contains("webdataset"));
}
