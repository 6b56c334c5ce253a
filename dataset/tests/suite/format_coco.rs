//! Images with COCO's file of annotations.

use crate::format_common::*;
use crate::storage_support::{S3, with_config};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{DataType, Float32Type, Int64Type};
use bytes::Bytes;
use feedstock_dataset::{
    BadShards, CatalogStore, Dataset, DatasetSpec, ErrorKind, Layout, OpenOptions, SampleId,
};
use feedstock_testkit::S3Server;
use serde_json::{Value, json};
use std::path::Path;

/// Images in the sequence of the file, each with the categories of its annotations.
const IMAGES: [(i64, &str, &[i64]); 4] =
    [(9, "c.jpg", &[3, 1]), (4, "a.jpg", &[]), (7, "sub/d.jpg", &[3]), (5, "b.jpg", &[1, 1, 3])];

fn put(root: &Path, name: &str, bytes: &[u8]) {
    let at = root.join(name);
    std::fs::create_dir_all(at.parent().unwrap()).unwrap();
    std::fs::write(at, bytes).unwrap();
}

fn instances() -> Value {
    let images: Vec<Value> = IMAGES
        .iter()
        .map(
            |(id, name, _)| json!({"id": id, "file_name": name, "width": id * 10, "height": 8, "license": 3}),
        )
        .collect();
    let mut annotations = Vec::new();
    // In turn, so that those of an image are not next to one another.
    for turn in 0..3 {
        for (image, _, categories) in IMAGES {
            let Some(category) = categories.get(turn) else { continue };
            let id = 100 * image + turn as i64;
            annotations.push(json!({
                "id": id, "image_id": image, "category_id": category, "bbox": [turn, 1.5, image, 4],
                "area": 6.25, "iscrowd": turn % 2,
                "segmentation": [[[1, 2, [3]], {"counts": "x", "size": [1, 2]}]],
            }));
        }
    }
    let categories = json!([{"id": 3, "name": "cat", "supercategory": "animal"}, {"id": 1, "name": "dog"}]);
    json!({"info": {"year": 2017}, "images": images, "annotations": annotations, "categories": categories})
}

fn write(root: &Path, file: &Value) {
    for (id, name, _) in IMAGES {
        put(root, &format!("train/{name}"), &picture(id as u64, 900));
    }
    put(root, "annotations/instances.json", file.to_string().as_bytes());
}

fn coco(annotations: &str) -> OpenOptions {
    OpenOptions { annotations: Some(annotations.into()), ..options(CatalogStore::Nowhere) }
}

async fn open_coco(root: &Path, file: &Value) -> feedstock_dataset::Result<Dataset> {
    write(root, file);
    Dataset::open_with(path(&root.join("train")), coco("../annotations/instances.json")).await
}

async fn rows_of(dataset: &Dataset) -> RecordBatch {
    let rows = all_rows(dataset).await;
    concat_batches(&rows[0].schema(), &rows).unwrap()
}

fn ints_of(rows: &RecordBatch, column: &str) -> Vec<Vec<i64>> {
    let lists = rows[column].as_list::<i32>();
    lists.iter().map(|list| list.unwrap().as_primitive::<Int64Type>().values().to_vec()).collect()
}

fn floats_of(rows: &RecordBatch, column: &str) -> Vec<Vec<f32>> {
    let lists = rows[column].as_list::<i32>();
    lists.iter().map(|list| list.unwrap().as_primitive::<Float32Type>().values().to_vec()).collect()
}

#[tokio::test]
async fn each_image_has_its_annotations() {
    let root = tempfile::tempdir().unwrap();
    put(root.path(), "train/unlisted.jpg", b"not in the file");
    put(root.path(), "train/readme.txt", b"text");
    let dataset = open_coco(root.path(), &instances()).await.unwrap();
    let catalog = dataset.catalog();
    assert_eq!((catalog.layout(), catalog.samples()), (Layout::Coco, 4));
    assert_eq!(catalog.notes(), ["1 image ignored: not in the file of annotations"]);
    assert_eq!(catalog.class_names("category_id").unwrap(), ["", "dog", "", "cat"]);
    assert_eq!(catalog.describe_sample(SampleId(0)), "train/a.jpg");
    let rows = rows_of(&dataset).await;
    let names: Vec<String> = rows.schema().fields().iter().map(|field| field.name().clone()).collect();
    let expected = "image_id file_name width height boxes category_id area iscrowd image";
    assert_eq!(names.join(" "), expected);
    let batches = std::slice::from_ref(&rows);
    assert_eq!(texts(batches, "file_name"), ["a.jpg", "b.jpg", "c.jpg", "sub/d.jpg"]);
    assert_eq!(ints(batches, "image_id"), [4, 5, 9, 7]);
    assert_eq!(ints(batches, "width"), [40, 50, 90, 70]);
    let images = payloads(batches, "image");
    for (row, id) in [4, 5, 9, 7].into_iter().enumerate() {
        assert_eq!(images[row].as_deref().unwrap(), picture(id, 900));
    }
    assert_eq!(ints_of(&rows, "category_id"), [vec![], vec![1, 1, 3], vec![3, 1], vec![3]]);
    assert_eq!(ints_of(&rows, "iscrowd"), [vec![], vec![0, 1, 0], vec![0, 1], vec![0]]);
    assert_eq!(floats_of(&rows, "area"), [vec![], vec![6.25; 3], vec![6.25; 2], vec![6.25]]);
    let boxes = rows["boxes"].as_list::<i32>().value(1);
    let boxes = boxes.as_fixed_size_list();
    assert_eq!((boxes.len(), boxes.value_length()), (3, 4));
    let numbers = boxes.values().as_primitive::<Float32Type>().values().to_vec();
    assert_eq!(numbers, [0., 1.5, 5., 4., 1., 1.5, 5., 4., 2., 1.5, 5., 4.]);
    assert_eq!(rows_of(&reopened(&dataset).await).await, rows);
    let many = dataset.filter("array_length(category_id) >= 2").await.unwrap();
    assert_eq!(many.len(), 2);
}

#[tokio::test]
async fn captions_and_keypoints_are_lists() {
    let root = tempfile::tempdir().unwrap();
    let images = json!([{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}]);
    let captions = json!([
        {"id": 1, "image_id": 2, "caption": "two"}, {"id": 2, "image_id": 1, "caption": "one"},
        {"id": 3, "image_id": 2, "caption": "zwei"}
    ]);
    let dataset = open_coco(root.path(), &json!({"images": images, "annotations": captions})).await.unwrap();
    let rows = rows_of(&dataset).await;
    assert!(rows.column_by_name("boxes").is_none() && rows.column_by_name("category_id").is_none());
    assert!(rows["width"].is_null(0));
    let all = rows["captions"].as_list::<i32>();
    let of =
        |row| all.value(row).as_string::<i32>().iter().map(|c| c.unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!((of(0), of(1)), (vec!["one".to_owned()], vec!["two".to_owned(), "zwei".to_owned()]));

    let person = |id, keypoints: Value| json!({"id": id, "image_id": 2, "bbox": [0, 0, 1, 1], "category_id": 1, "keypoints": keypoints});
    let persons = json!([person(1, json!([1, 2, 2, 0, 0, 0])), person(2, json!([5.5, 6, 1, 7, 8, 2]))]);
    let dataset = open_coco(root.path(), &json!({"images": images, "annotations": persons})).await.unwrap();
    let rows = rows_of(&dataset).await;
    assert!(rows.column_by_name("area").is_none() && rows.column_by_name("iscrowd").is_none(), "not stated");
    let points = rows["keypoints"].as_list::<i32>();
    assert_eq!(points.value(0).len(), 0);
    let second = points.value(1).as_list::<i32>().value(1);
    assert_eq!(second.as_primitive::<Float32Type>().values()[..], [5.5, 6., 1., 7., 8., 2.]);

    // As of the images of a test set.
    let dataset = open_coco(root.path(), &json!({"images": images})).await.unwrap();
    let rows = rows_of(&dataset).await;
    assert!(floats_of(&rows, "area").iter().all(Vec::is_empty));
    assert!(ints_of(&rows, "category_id").iter().all(Vec::is_empty));
    assert!(matches!(rows["boxes"].data_type(), DataType::List(_)));
    assert!(dataset.catalog().class_names("category_id").is_none());
}

#[tokio::test]
async fn the_sequence_of_the_file_does_not_change_the_order() {
    let root = tempfile::tempdir().unwrap();
    let mut file = instances();
    let first = rows_of(&open_coco(root.path(), &file).await.unwrap()).await;
    file["images"].as_array_mut().unwrap().reverse();
    let second = rows_of(&open_coco(root.path(), &file).await.unwrap()).await;
    assert_eq!(first, second);
}

#[tokio::test]
async fn a_stored_catalog_is_of_its_annotations() {
    let (root, copy, store) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let open = |at: &Path| {
        let options = OpenOptions {
            annotations: Some("../annotations/instances.json".into()),
            ..options(CatalogStore::Cache(store.path().into()))
        };
        let at = path(&at.join("train")).to_owned();
        async move { Dataset::open_with(&at, options).await.unwrap() }
    };
    write(root.path(), &instances());
    let built = open(root.path()).await;
    let stored = open(root.path()).await;
    assert_eq!(stored.catalog().hashes(), built.catalog().hashes());
    assert_eq!(rows_of(&stored).await, rows_of(&built).await);
    assert_eq!(stored.catalog().class_names("category_id"), built.catalog().class_names("category_id"));
    assert_eq!(std::fs::read_dir(store.path()).unwrap().count(), 1);
    write(copy.path(), &instances());
    assert_eq!(open(copy.path()).await.catalog().content_hash(), built.catalog().content_hash());

    let mut file = instances();
    file["annotations"][0]["category_id"] = json!(1);
    write(root.path(), &file);
    let changed = open(root.path()).await;
    assert_ne!(changed.catalog().content_hash(), built.catalog().content_hash());
    assert_eq!(ints_of(&rows_of(&changed).await, "category_id")[2], [1, 1]);
    let map = changed.samples_of(&built).await.unwrap();
    assert_eq!(map.newer(SampleId(2)), Some(SampleId(2)), "the image is the same");
}

#[tokio::test]
async fn an_image_without_its_file_is_named() {
    let root = tempfile::tempdir().unwrap();
    write(root.path(), &instances());
    std::fs::remove_file(root.path().join("train/b.jpg")).unwrap();
    let uri = root.path().join("train");
    let error = message(Dataset::open_with(path(&uri), coco("../annotations/instances.json")).await);
    let expected = format!(
        "{}/annotations/instances.json: 1 of 4 images have no file: `b.jpg` of the image 5; names are relative to {}/; ",
        path(root.path()),
        path(&uri)
    );
    assert!(error.contains(&expected) && error.contains("bad_shards=\"skip\""), "{error}");
    let skipping = OpenOptions { bad_shards: BadShards::Skip, ..coco("../annotations/instances.json") };
    let dataset = Dataset::open_with(path(&uri), skipping).await.unwrap();
    let rows = rows_of(&dataset).await;
    assert_eq!(ints(std::slice::from_ref(&rows), "image_id"), [4, 9, 7]);
    assert_eq!(ints_of(&rows, "category_id"), [vec![], vec![3, 1], vec![3]]);

    let error = message(Dataset::open_with(path(root.path()), coco("annotations/instances.json")).await);
    assert!(
        error.contains("4 of 4 images have no file: `a.jpg` of the image 4, "),
        "another folder: {error}"
    );
    let error = Dataset::open_with(path(&uri), coco("instances.json")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Gone);
    assert!(
        error.message().contains("relative to the data set's folder")
            && error.message().contains("train/instances.json"),
        "{error}"
    );
}

/// Changes the file, and returns the message with which it is refused.
async fn refusal(change: impl FnOnce(&mut Value)) -> String {
    let root = tempfile::tempdir().unwrap();
    let mut file = instances();
    change(&mut file);
    let error = message(open_coco(root.path(), &file).await);
    assert!(error.contains("/annotations/instances.json: "), "{error}");
    error
}

#[tokio::test]
async fn files_that_are_not_cocos_are_refused_with_the_id() {
    let mut found: Vec<(String, &str)> = Vec::new();
    let mut add = |error: String, expected| found.push((error, expected));
    add(
        refusal(|f| f["images"][1]["id"] = json!(9)).await,
        "the image id 9 is there twice: `a.jpg` and `c.jpg`",
    );
    add(
        refusal(|f| f["images"][1]["file_name"] = json!("c.jpg")).await,
        "the images 4 and 9 have the same file_name `c.jpg`",
    );
    add(refusal(|f| f["annotations"][1]["id"] = json!(900)).await, "the annotation id 900 is there twice");
    add(
        refusal(|f| f["annotations"][0]["image_id"] = json!(77)).await,
        "the annotation 900 is of the image 77, which is not in its images",
    );
    add(
        refusal(|f| f["annotations"][0]["category_id"] = json!(2)).await,
        "the annotation 900 of the image 9 has the category 2, which is not in its categories",
    );
    add(refusal(|f| f["categories"][0]["id"] = json!(1)).await, "the category id 1 is there twice");
    add(
        refusal(|f| f["annotations"][0]["bbox"] = json!([1, 2, -3, 4])).await,
        "the annotation 900 of the image 9: its bbox has a negative width or height: -3 × 4",
    );
    add(
        refusal(|f| f["annotations"][0]["bbox"] = json!([1, 2, 3])).await,
        "the annotation 900 of the image 9: its bbox has 3 numbers; 4 are needed",
    );
    add(
        refusal(|f| f["annotations"][0]["bbox"] = json!([1, 2, 3, 1e300])).await,
        "the annotation 900 of the image 9: its bbox has a number beyond the greatest float32",
    );
    add(refusal(|f| f["annotations"][0]["bbox"] = json!(null)).await, "of the image 9: it has no bbox");
    add(refusal(|f| f["annotations"][0]["area"] = json!(-1)).await, "its area must be a number ≥ 0; got -1");
    add(
        refusal(|f| f["annotations"][0]["keypoints"] = json!([1, 2])).await,
        "its keypoints are 2 numbers, not 3 a point",
    );
    add(refusal(|f| f["annotations"][0]["iscrowd"] = json!(2)).await, "expected 0, 1, true or false");
    add(
        refusal(|f| drop(f["annotations"][0].as_object_mut().unwrap().remove("area"))).await,
        "the annotation 900 of the image 9: it has no area",
    );
    add(
        refusal(|f| f["annotations"] = json!([{"image_id": 9, "segments_info": []}])).await,
        "panoptic segmentations, which are not read",
    );
    add(
        refusal(|f| drop(f["annotations"][0].as_object_mut().unwrap().remove("id"))).await,
        "the annotation at index 0, of the image 9, has no id",
    );
    add(refusal(|f| f["images"] = json!([])).await, "it has no images: the data set is empty");
    add(
        refusal(|f| drop(f["images"][0].as_object_mut().unwrap().remove("file_name"))).await,
        "missing field `file_name`",
    );
    add(refusal(|f| *f = json!([1])).await, "not a COCO annotations file: ");
    for (error, expected) in found {
        assert!(error.contains(expected), "{error}");
    }
    // Not JSON: a NaN as Python writes it, and a file that was cut off.
    for (from, to) in [("1.5", "NaN"), ("\"categories\"", "")] {
        let root = tempfile::tempdir().unwrap();
        write(root.path(), &instances());
        let text = instances().to_string();
        let broken =
            if to.is_empty() { text.split(from).next().unwrap().to_owned() } else { text.replace(from, to) };
        put(root.path(), "annotations/instances.json", broken.as_bytes());
        let uri = root.path().join("train");
        let error = message(Dataset::open_with(path(&uri), coco("../annotations/instances.json")).await);
        assert!(
            error.contains("not a COCO annotations file: ") && error.contains(" line 1 column "),
            "{error}"
        );
    }
}

#[tokio::test]
async fn the_description_has_the_absolute_uri_of_the_annotations() {
    let root = tempfile::tempdir().unwrap();
    let dataset = open_coco(root.path(), &instances()).await.unwrap();
    let spec: DatasetSpec = dataset.spec();
    let (images, file) = (root.path().join("train"), root.path().join("annotations/instances.json"));
    assert_eq!(spec.uris(), [path(&images), path(&file)], "a worker must allow both");
    let options = OpenOptions { split: Some("train".into()), ..coco(path(&file)) };
    let error = message(Dataset::open_with(path(&images), options).await);
    assert!(error.contains("the layout coco has no splits"), "{error}");
    let error = message(Dataset::open_with("s3://bucket/train", coco("../../x.json")).await);
    assert!(error.contains("there are not that many folders above s3://bucket/train/"), "{error}");
}

#[tokio::test]
async fn images_and_annotations_are_read_from_a_bucket() {
    let s3 = S3::start();
    for (id, name, _) in IMAGES {
        s3.put(&format!("coco/train/{name}"), &Bytes::from(picture(id as u64, 900)));
    }
    s3.put("coco/annotations/instances.json", &Bytes::from(instances().to_string()));
    let storage = with_config(crate::storage_support::options(), S3Server::config_at(&s3.proxy.endpoint()));
    let local = tempfile::tempdir().unwrap();
    let expected = open_coco(local.path(), &instances()).await.unwrap();
    for annotations in ["../annotations/instances.json", "s3://bucket/coco/annotations/instances.json"] {
        let options = OpenOptions { storage: storage.clone(), ..coco(annotations) };
        let dataset = Dataset::open_with("s3://bucket/coco/train", options).await.unwrap();
        assert_eq!(rows_of(&dataset).await, rows_of(&expected).await);
        assert_eq!(dataset.catalog().content_hash(), expected.catalog().content_hash());
    }
}
