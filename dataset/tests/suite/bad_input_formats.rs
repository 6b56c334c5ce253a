//! Wrong inputs: each gives a clear error, or follows the stated policy.

use crate::format_common::*;
use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Int32Array, Int64Array, StringArray, StructArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use arrow_ipc::writer::StreamWriter;
use feedstock_dataset::{BadShards, BlockId, CatalogStore, Dataset, ErrorKind, Layout, OpenOptions};
use parquet::arrow::ArrowWriter;
use std::path::Path;
use std::sync::Arc;

fn parquet_of(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn tar_of(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in members {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        builder.append_data(&mut header, name, *bytes).unwrap();
    }
    builder.into_inner().unwrap()
}

fn stream_of(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

/// Returns the error of opening one file with this content; it must name the file.
async fn refused(name: &str, content: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join(name), content).unwrap();
    let error = open(folder.path()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
    assert!(error.message().contains(path(folder.path())), "the message names no file: {error}");
    error.to_string()
}

#[tokio::test]
async fn missing_path() {
    let folder = tempfile::tempdir().unwrap();
    let error = open(&folder.path().join("nothing/here")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.message().contains("nothing/here"), "{error}");
}

#[tokio::test]
async fn empty_data_set() {
    let folder = tempfile::tempdir().unwrap();
    assert!(open(folder.path()).await.is_err());
    std::fs::write(folder.path().join("readme.txt"), "hello").unwrap();
    let error = open(folder.path()).await.unwrap_err();
    assert!(error.message().contains("empty") && error.message().contains("parquet, tar"), "{error}");
    let none = parquet_of(&hf_batch(0..1, 10).slice(0, 0));
    assert!(refused("x.parquet", &none).await.contains("hold no rows"));
    assert!(refused("x.arrow", &stream_of(&hf_batch(0..1, 10).slice(0, 0))).await.contains("hold no rows"));
    assert!(refused("x.csv", b"path,label\n").await.contains("no rows"));
}

#[tokio::test]
async fn empty_and_truncated_parquet() {
    let whole = parquet_of(&hf_batch(0..50, 500));
    assert!(refused("x.parquet", b"").await.contains("0 bytes"));
    for keep in [3, 20, whole.len() / 2, whole.len() - 1] {
        let message = refused("x.parquet", &whole[..keep]).await;
        assert!(message.contains("truncated") || message.contains("cut off"), "{keep}: {message}");
    }
    // The middle is lost but the footer is whole: this is found before any training starts.
    let mut middle = whole.clone();
    middle.drain(100..10_000);
    assert!(refused("x.parquet", &middle).await.contains("x.parquet"));
}

#[tokio::test]
async fn empty_and_truncated_tar() {
    let picture = picture(1, 5_000);
    let whole = tar_of(&[("1.jpg", &picture), ("1.cls", b"3"), ("2.jpg", &picture), ("2.cls", b"4")]);
    assert!(refused("x.tar", b"").await.contains("empty"));
    for keep in [100, 700, 3_000, 8_000] {
        let message = refused("x.tar", &whole[..keep]).await;
        assert!(message.contains("truncated"), "{keep}: {message}");
    }
    let message = refused("x.tar", &tar_of(&[("1.jpg", b"a"), ("1.cls", b"three")])).await;
    assert!(message.contains("1.cls") && message.contains("'three'"), "{message}");
    let message = refused("x.tar", &tar_of(&[("1.jpg", b"a"), ("1.jpg", b"b")])).await;
    assert!(message.contains("duplicate member 1.jpg"), "{message}");
    assert!(refused("x.tar", &vec![b'x'; 2_000]).await.contains("not a readable tar"));
}

/// Each key would be a column with a value for every sample.
#[tokio::test]
async fn a_tar_with_keys_of_samples() {
    let json = |i: u32| (format!("{i:04}.json"), format!("{{\"k{i}\": 1}}").into_bytes());
    let members: Vec<_> = (0..1_002).map(json).collect();
    let message = refused("x.tar", &crate::format_common::tar_of(&members)).await;
    assert!(message.contains("x.tar member 1000.json: with it there are more than 1000"), "{message}");
    let members: Vec<_> = (0..1_002).map(|i| (format!("{i:04}.e{i}"), vec![0])).collect();
    let message = refused("x.tar", &crate::format_common::tar_of(&members)).await;
    assert!(message.contains("member 1000.e1000: with it") && message.contains("extensions"), "{message}");
    let message = refused("x.tar", &tar_of(&[("1.txt", b"a"), ("1.text", b"b")])).await;
    assert!(message.contains("1.text: another member of the sample makes the same column"), "{message}");
    // Within the limit in each tar, but not in all.
    let folder = tempfile::tempdir().unwrap();
    for tar in 0..3 {
        let members: Vec<_> = (tar * 400..tar * 400 + 400).map(json).collect();
        let tar = folder.path().join(format!("{tar}.tar"));
        std::fs::write(tar, crate::format_common::tar_of(&members)).unwrap();
    }
    let message = open(folder.path()).await.unwrap_err().to_string();
    assert!(message.contains("2.tar: with it there are more than 1000 different keys"), "{message}");
}

/// A column for each key of the first object would have a value for each of the empty ones.
#[tokio::test]
async fn a_tar_with_objects_that_lack_most_keys() {
    let keys: Vec<String> = (0..255).map(|key| format!("\"k{key}\":{key}")).collect();
    let (full, empty) = (format!("{{{}}}", keys.join(",")), vec!["{}"; 100_000].join(","));
    let one = format!("{{\"x\":[{full},{empty}],\"y\":[1]}}");
    let members = |json: &str| [("0.json".to_owned(), json.as_bytes().to_vec())];
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("0.tar"), crate::format_common::tar_of(&members(&one))).unwrap();
    let dataset = open(folder.path()).await.unwrap();
    let kind = |dataset: &Dataset, column: &str| {
        dataset.catalog().schema().field_with_name(column).unwrap().data_type().clone()
    };
    assert_eq!(kind(&dataset, "x"), DataType::Utf8);
    assert!(kind(&dataset, "y").is_nested());
    let notes = dataset.catalog().notes().join("\n");
    assert!(
        notes.contains("column x: lists or objects in it are kept as JSON text, because they would take"),
        "{notes}"
    );
    // The keys are in one tar and the objects without them in another.
    let folder = tempfile::tempdir().unwrap();
    for (tar, json) in [("0.tar", format!("{{\"x\":[{full}]}}")), ("1.tar", format!("{{\"x\":[{empty}]}}"))] {
        std::fs::write(folder.path().join(tar), crate::format_common::tar_of(&members(&json))).unwrap();
    }
    let dataset = open(folder.path()).await.unwrap();
    assert_eq!(kind(&dataset, "x"), DataType::Utf8);
    assert!(dataset.catalog().notes().join("\n").contains("most of them null"));
}

#[tokio::test]
async fn empty_and_truncated_ipc() {
    let whole = stream_of(&hf_batch(0..50, 500));
    assert!(refused("x.arrow", b"").await.contains("empty"));
    for keep in [6, 50, 300, whole.len() / 2, whole.len() - 100] {
        let message = refused("x.arrow", &whole[..keep]).await;
        assert!(message.contains("truncated"), "{keep}: {message}");
    }
    assert!(refused("x.arrow", b"ARROW1\0\0 and then nothing of use at all").await.contains("no footer"));
    assert!(refused("x.arrow", &vec![7; 5_000]).await.contains("not a readable"));
}

#[tokio::test]
async fn schema_that_differs_between_files() {
    let one = hf_batch(0..10, 50);
    let labels = Int32Array::from_iter_values(0..10);
    let narrow = Schema::new(vec![
        image_field(),
        Field::new("label", DataType::Int32, true),
        one.schema().field(2).clone(),
    ]);
    let columns = vec![one.column(0).clone(), Arc::new(labels) as ArrayRef, one.column(2).clone()];
    let other = RecordBatch::try_new(Arc::new(narrow), columns).unwrap();
    for (extension, write) in [("parquet", parquet_of as fn(&RecordBatch) -> Vec<u8>), ("arrow", stream_of)] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(format!("a.{extension}")), write(&one)).unwrap();
        std::fs::write(folder.path().join(format!("b.{extension}")), write(&other)).unwrap();
        let error = open(folder.path()).await.unwrap_err();
        for part in ["a.", "b.", "label", "Int32", "Int64"] {
            assert!(error.message().contains(part), "{part} is missing in: {error}");
        }
        std::fs::write(folder.path().join(format!("b.{extension}")), write(&one.project(&[0, 1]).unwrap()))
            .unwrap();
        let error = open(folder.path()).await.unwrap_err();
        assert!(error.message().contains("width is missing"), "{error}");
    }
}

#[tokio::test]
async fn null_and_empty_pictures_pass_through() {
    let bytes = BinaryArray::from_opt_vec(vec![Some(b"an image"), Some(b""), None, Some(b"hidden")]);
    let paths = StringArray::from(vec!["a.jpg", "b.jpg", "c.jpg", "d.jpg"]);
    let DataType::Struct(children) = image_field().data_type().clone() else { unreachable!() };
    let nulls = NullBuffer::from(vec![true, true, true, false]);
    let image = StructArray::new(children, vec![Arc::new(bytes), Arc::new(paths)], Some(nulls));
    let schema = Schema::new(vec![image_field(), Field::new("label", DataType::Int64, true)]);
    let labels: ArrayRef = Arc::new(Int64Array::from_iter_values(0..4));
    let batch = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(image), labels]).unwrap();
    for (name, content) in [("x.parquet", parquet_of(&batch)), ("x.arrow", stream_of(&batch))] {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(name), content).unwrap();
        let rows = all_rows(&open(folder.path()).await.unwrap()).await;
        let image = rows[0].column_by_name("image").unwrap().as_binary_view();
        assert_eq!(
            (image.is_null(0), image.is_null(1), image.is_null(2), image.is_null(3)),
            (false, false, true, true)
        );
        assert_eq!((image.value(0), image.value(1)), (b"an image".as_slice(), b"".as_slice()));
    }
}

/// After cataloguing, every fetch of a replaced object is an error, whatever the layout.
#[tokio::test]
async fn object_replaced_after_cataloguing() {
    let batch = hf_batch(0..20, 500);
    let jpeg = picture(1, 500);
    let tar = tar_of(&[("1.jpg", &jpeg), ("1.cls", b"3")]);
    for (name, content) in [
        ("x.parquet", parquet_of(&batch)),
        ("x.arrow", stream_of(&batch)),
        ("x.tar", tar),
        ("x.jpg", jpeg.clone()),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join(name);
        std::fs::write(&at, &content).unwrap();
        let dataset = open(folder.path()).await.unwrap();
        dataset.block_reader().fetch(BlockId(0), 0).await.unwrap();
        replace(&at, &content);
        let error = dataset.block_reader().fetch(BlockId(0), 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{name}: {error}");
        assert!(error.message().contains(name) && error.message().contains("block 0"), "{error}");
        std::fs::remove_file(&at).unwrap();
        let error = dataset.block_reader().fetch(BlockId(0), 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone, "{name}: {error}");
    }
}

/// Writes the same number of other bytes under the same name.
fn replace(at: &Path, content: &[u8]) {
    let other: Vec<u8> = content.iter().map(|b| b ^ 1).collect();
    let beside = at.with_extension("new");
    std::fs::write(&beside, other).unwrap();
    std::fs::rename(beside, at).unwrap();
}

#[tokio::test]
async fn several_layouts_in_one_place_ask_for_a_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.parquet"), parquet_of(&hf_batch(0..10, 50))).unwrap();
    std::fs::write(folder.path().join("x.tar"), tar_of(&[("1.jpg", b"a"), ("1.cls", b"3")])).unwrap();
    let error = open(folder.path()).await.unwrap_err();
    assert!(error.message().contains("name the layout"), "{error}");
    let mut named = options(feedstock_dataset::CatalogStore::Nowhere);
    named.layout = Some("webdataset".parse().unwrap());
    let dataset = Dataset::open_with(path(folder.path()), named).await.unwrap();
    assert_eq!((dataset.catalog().layout(), dataset.len()), (Layout::WebDataset, 1));
    assert!("web".parse::<Layout>().unwrap_err().message().contains("webdataset, ilsvrc"));
    let tiny = OpenOptions { block_bytes: 1, ..OpenOptions::default() };
    assert!(
        Dataset::open_with(path(folder.path()), tiny).await.unwrap_err().message().contains("block_bytes")
    );
}

/// A damaged shard is an error, or is left out: then the data set is another one, reported, and the same each time.
#[tokio::test]
async fn damaged_shards_are_left_out_where_asked() {
    let (tars, columnar) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_parquet(columnar.path());
    for (name, samples) in [("a", 4), ("b", 3)] {
        let mut tar =
            tar::Builder::new(std::fs::File::create(tars.path().join(format!("{name}.tar"))).unwrap());
        for i in 0..samples {
            let mut header = tar::Header::new_gnu();
            header.set_size(700);
            tar.append_data(&mut header, format!("{i}.jpg"), vec![1; 700].as_slice()).unwrap();
        }
        tar.finish().unwrap();
    }
    for (folder, whole, left, damaged) in
        [(columnar.path(), 450, 150, "a.parquet"), (tars.path(), 7, 3, "a.tar")]
    {
        let cache = tempfile::tempdir().unwrap();
        let open = |bad_shards| {
            let options = OpenOptions { bad_shards, ..options(CatalogStore::Cache(cache.path().to_owned())) };
            Dataset::open_with(path(folder), options)
        };
        let before = open(BadShards::Skip).await.unwrap();
        assert_eq!((before.len(), before.catalog().notes().len()), (whole, 0));
        let at = folder.join(damaged);
        let bytes = std::fs::read(&at).unwrap();
        std::fs::write(&at, &bytes[..bytes.len() / 2 - 100]).unwrap();
        let error = open(BadShards::Raise).await.unwrap_err();
        assert!(error.to_string().contains(damaged), "{error}");
        let opened = [open(BadShards::Skip).await.unwrap(), open(BadShards::Skip).await.unwrap()];
        for dataset in &opened {
            assert_eq!((dataset.len(), dataset.catalog().objects().len()), (left, 1), "{damaged}");
            let notes = dataset.catalog().notes();
            assert!(notes.iter().any(|note| note.contains(damaged)), "{notes:?}");
        }
        assert_eq!(opened[0].catalog().content_hash(), opened[1].catalog().content_hash());
        assert_ne!(opened[0].catalog().content_hash(), before.catalog().content_hash());
        assert_eq!(all_rows(&opened[1]).await.iter().map(|rows| rows.num_rows()).sum::<usize>() as u64, left);
    }
}
