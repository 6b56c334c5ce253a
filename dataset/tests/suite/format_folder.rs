//! Folders of images.

use crate::format_common::*;
use feedstock_dataset::{BlockId, CatalogStore, Dataset, ErrorKind, Layout, OpenOptions, SampleId};
use std::path::Path;

fn put(root: &Path, name: &str, bytes: &[u8]) {
    let at = root.join(name);
    std::fs::create_dir_all(at.parent().unwrap()).unwrap();
    std::fs::write(at, bytes).unwrap();
}

#[tokio::test]
async fn classes_are_numbered_in_order_of_their_names() {
    let root = tempfile::tempdir().unwrap();
    for i in 0..200u64 {
        let class = ["zebra", "ant eater", "n02"][i as usize % 3];
        let extension = ["JPEG", "jpg", "png", "WebP"][i as usize % 4];
        put(root.path(), &format!("{class}/{i:04}.{extension}"), &picture(i, 3_000));
    }
    put(root.path(), "zebra/readme.txt", b"not an image");
    put(root.path(), "zebra/x.bmp", b"not read");
    put(root.path(), "stray.jpg", b"in no class folder");
    put(root.path(), ".hidden/x.jpg", b"hidden");
    let dataset = open(root.path()).await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (Layout::Folder, 200));
    assert_eq!(catalog.class_names("label").unwrap(), ["ant eater", "n02", "zebra"]);
    assert_eq!(catalog.notes().len(), 2, "{:?}", catalog.notes());
    assert!(catalog.notes()[0].contains("1 .bmp, 1 .txt"), "{:?}", catalog.notes());
    assert!(catalog.blocks() > 5);
    let rows = all_rows(&dataset).await;
    let (paths, classes, labels) = (texts(&rows, "path"), texts(&rows, "class"), ints(&rows, "label"));
    let images = payloads(&rows, "image");
    assert!(paths.is_sorted());
    for i in 0..200 {
        assert_eq!(paths[i].split('/').next().unwrap(), classes[i]);
        assert_eq!(["ant eater", "n02", "zebra"][labels[i] as usize], classes[i]);
        assert_eq!(images[i].as_deref().unwrap(), std::fs::read(root.path().join(&paths[i])).unwrap());
    }
    assert!(catalog.describe_sample(SampleId(3)).starts_with("ant eater/"));
}

#[tokio::test]
async fn splits_are_never_mixed() {
    let root = tempfile::tempdir().unwrap();
    for split in ["train", "val"] {
        for class in ["a", "b"] {
            put(root.path(), &format!("{split}/{class}/1.jpg"), b"x");
        }
    }
    let error = open(root.path()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(error.message().contains("train (2 files), val (2 files)"), "{error}");
    let train = open(&root.path().join("train")).await.unwrap();
    assert_eq!(train.catalog().class_names("label").unwrap(), ["a", "b"]);
    std::fs::remove_dir_all(root.path().join("val")).unwrap();
    let only = open(root.path()).await.unwrap();
    assert_eq!(only.catalog().class_names("label").unwrap(), ["a", "b"]);
}

#[tokio::test]
async fn pictures_without_classes_have_no_label() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "2.jpg", b"");
    put(root.path(), "1.jpg", b"one");
    let dataset = open(root.path()).await.unwrap();
    assert!(dataset.catalog().schema().index_of("label").is_err());
    let rows = all_rows(&dataset).await;
    assert_eq!(texts(&rows, "path"), ["1.jpg", "2.jpg"]);
    // An empty image passes through: the decoder applies the policy.
    assert_eq!(payloads(&rows, "image"), [Some(b"one".to_vec()), Some(Vec::new())]);
}

#[tokio::test]
async fn a_manifest_names_files_and_carries_columns() {
    let root = tempfile::tempdir().unwrap();
    let mut csv = String::from("file_name,label,score\n");
    for i in 0..40u64 {
        put(root.path(), &format!("pictures/{i} a.jpg"), &picture(i, 3_000));
        csv += &format!("pictures/{i} a.jpg,{},{}\n", i % 4, i as f64 / 2.0);
    }
    csv += "pictures/3 a.jpg,9,99\n"; // a file may be in several rows
    put(root.path(), "list.csv", csv.as_bytes());
    put(root.path(), "list.tsv", csv.replace(',', "\t").as_bytes());
    for list in ["list.csv", "list.tsv"] {
        let dataset = open(&root.path().join(list)).await.unwrap();
        let catalog = dataset.catalog();
        assert_eq!(
            (catalog.layout(), catalog.samples(), catalog.objects().len()),
            (Layout::Manifest, 41, 41)
        );
        let rows = all_rows(&dataset).await;
        let order = (0..40).chain([3]);
        assert_eq!(payloads(&rows, "image"), order.map(|i| Some(picture(i, 3_000))).collect::<Vec<_>>());
        assert_eq!(ints(&rows, "label")[40], 9);
        assert_eq!(dataset.filter("score > 19").await.unwrap().len(), 2);
    }
    put(root.path(), "list.csv", b"file_name,label\npictures/none.jpg,1\n");
    let error = open(&root.path().join("list.csv")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(error.message().contains("row 1") && error.message().contains("none.jpg"), "{error}");
}

/// Each file costs a request: a block of many tiny files would cost thousands.
#[tokio::test]
async fn tiny_files_do_not_make_blocks_of_thousands_of_files() {
    let folder = tempfile::tempdir().unwrap();
    for i in 0..1_000 {
        std::fs::write(folder.path().join(format!("{i:04}.jpg")), b"x").unwrap();
    }
    let dataset = open(folder.path()).await.unwrap();
    let blocks =
        (0..dataset.catalog().blocks() as u32).map(|id| dataset.catalog().block(BlockId(id)).samples);
    assert_eq!(blocks.collect::<Vec<_>>(), [256, 256, 256, 232]);
}

/// As `datasets` reads an ImageFolder with its metadata table.
#[tokio::test]
async fn the_columns_of_metadata_csv_are_those_of_the_folder() {
    let root = tempfile::tempdir().unwrap();
    for i in 0..20u64 {
        put(root.path(), &format!("{}/{i}.jpg", i % 2), &picture(i, 500));
    }
    let lines: Vec<String> =
        (0..18).rev().map(|i| format!("{}/{i}.jpg,\"text {i}\",{}\n", i % 2, i * 10)).collect();
    put(root.path(), "metadata.csv", format!("file_name,text,score\n{}", lines.concat()).as_bytes());
    let dataset = open(root.path()).await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (Layout::Manifest, 18));
    assert!(catalog.notes()[0].contains("read by metadata.csv: "), "{:?}", catalog.notes());
    assert!(catalog.notes()[0].contains("20 files in the folder"), "{:?}", catalog.notes());
    let rows = all_rows(&dataset).await;
    let images = payloads(&rows, "image");
    for (row, i) in (0..18).rev().enumerate() {
        assert_eq!(texts(&rows, "file_name")[row], format!("{}/{i}.jpg", i % 2));
        assert_eq!(
            (texts(&rows, "text")[row].as_str(), ints(&rows, "score")[row]),
            (&*format!("text {i}"), i * 10)
        );
        assert_eq!(images[row].as_deref().unwrap(), picture(i as u64, 500));
    }
    // With a named layout, the table is not read.
    let options = OpenOptions { layout: Some(Layout::Folder), ..options(CatalogStore::Nowhere) };
    let folder = Dataset::open_with(root.path().to_str().unwrap(), options).await.unwrap();
    assert_eq!((folder.catalog().samples(), folder.catalog().class_names("label").unwrap().len()), (20, 2));
}

/// A manifest's `url` comes before its `file_name`; in a metadata table it is a column like any other.
#[tokio::test]
async fn metadata_csv_names_its_files_in_file_name() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "1.jpg", &picture(1, 500));
    put(root.path(), "metadata.csv", b"url,file_name\nhttps://example.org/elsewhere.jpg,1.jpg\n");
    let dataset = open(root.path()).await.unwrap();
    let rows = all_rows(&dataset).await;
    assert_eq!(texts(&rows, "url"), ["https://example.org/elsewhere.jpg"]);
    assert_eq!(payloads(&rows, "image")[0].as_deref().unwrap(), picture(1, 500));
}

#[tokio::test]
async fn files_of_a_manifest_are_relative_to_its_folder() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "lists/pictures/1.bin", &picture(1, 500));
    put(root.path(), "lists/train.csv", b"path,score\npictures/1.bin,3\n");
    for uri in [root.path().join("lists/train.csv"), root.path().to_owned()] {
        let rows = all_rows(&open(&uri).await.unwrap()).await;
        assert_eq!(payloads(&rows, "data")[0].as_deref().unwrap(), picture(1, 500), "{}", uri.display());
    }
    put(root.path(), "lists/train.csv", b"path,score\npictures/1.bin,3\n2.bin,4\n");
    let error = open(root.path()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    let expected = "train.csv row 2 names `2.bin`, a path relative to the manifest's folder: ";
    assert!(error.message().contains(expected) && error.message().contains("/lists/2.bin"), "{error}");
}

#[tokio::test]
async fn tables_of_metadata_that_are_not_read_are_named() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "a/1.jpg", &picture(1, 500));
    put(root.path(), "metadata.csv", b"image_id,text\n1,one\n"); // names no files
    put(root.path(), "a/metadata.csv", b"file_name,text\n1.jpg,one\n");
    put(root.path(), "metadata.jsonl", b"{\"file_name\": \"a/1.jpg\"}\n");
    let dataset = open(root.path()).await.unwrap();
    assert_eq!(dataset.catalog().layout(), Layout::Folder);
    let notes = dataset.catalog().notes().join("; ");
    for table in ["metadata.csv", "a/metadata.csv", "metadata.jsonl"] {
        assert!(notes.contains(&format!("the columns of {table} are not read")), "{notes}");
    }
    // As the note advises; names are relative to the table.
    let below = open(&root.path().join("a/metadata.csv")).await.unwrap();
    assert_eq!(texts(&all_rows(&below).await, "text"), ["one"]);
}
