//! `join`: columns of another data set by key, compared with a lookup by hand; what is refused; what workers check.

use crate::format_common::*;
use crate::plan_sets::{Sets, TABLE};
use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int32Array, StringArray};
use arrow::datatypes::{DataType, Field, Float64Type, Schema};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{Dataset, ErrorKind, Position, SampleId, Shuffle};
use parquet::arrow::ArrowWriter;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

fn shuffle() -> Shuffle {
    Shuffle::seeded(7).window(100).lanes(4)
}

/// Writes a table of facts about widths: key, name, score. Keys may be null.
fn write_facts(folder: &Path, keys: &[Option<i32>], factor: f64) {
    std::fs::create_dir_all(folder).unwrap();
    let schema = Schema::new(vec![
        Field::new("key", DataType::Int32, true),
        Field::new("name", DataType::Utf8, true),
        Field::new("score", DataType::Float64, true),
    ]);
    let text =
        |key: &Option<i32>| key.filter(|key| key % 5 != 0).map(|key| format!("the name of the number {key}"));
    let names: StringArray = keys.iter().map(text).collect();
    let scores: Float64Array = keys.iter().map(|key| key.map(|key| f64::from(key) * factor)).collect();
    let columns: Vec<ArrayRef> =
        vec![Arc::new(Int32Array::from(keys.to_vec())), Arc::new(names), Arc::new(scores)];
    let batch = RecordBatch::try_new(Arc::new(schema), columns).unwrap();
    let file = std::fs::File::create(folder.join("facts.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// Returns names and scores by sample, as blocks have them.
async fn joined_values(dataset: &Dataset) -> Vec<(Option<String>, Option<f64>)> {
    let rows = all_rows(dataset).await;
    let of = |batch: &RecordBatch| -> Vec<(Option<String>, Option<f64>)> {
        let (names, scores) = (batch["name"].clone(), batch["score"].clone());
        let (names, scores) = (names.as_string::<i32>(), scores.as_primitive::<Float64Type>());
        let name = |row: usize| names.is_valid(row).then(|| names.value(row).to_owned());
        (0..batch.num_rows())
            .map(|row| (name(row), scores.is_valid(row).then(|| scores.value(row))))
            .collect()
    };
    rows.iter().flat_map(of).collect()
}

#[tokio::test]
async fn each_sample_has_the_values_of_its_key() {
    let sets = Sets::new();
    let folder = tempfile::tempdir().unwrap();
    let keys: Vec<Option<i32>> = (0..300).map(|i| (i % 7 != 3).then_some(i * 11 % 601)).collect();
    write_facts(folder.path(), &keys, 0.5);
    let facts = open(folder.path()).await.unwrap();
    let table = sets.table().await;
    let by_key: HashMap<i32, f64> = keys.iter().flatten().map(|key| (*key, f64::from(*key) * 0.5)).collect();
    let expected: Vec<(Option<String>, Option<f64>)> = (0..TABLE as i32)
        .map(|width| match by_key.get(&width) {
            Some(score) => {
                ((width % 5 != 0).then(|| format!("the name of the number {width}")), Some(*score))
            }
            None => (None, None),
        })
        .collect();
    assert!(expected.iter().filter(|(_, score)| score.is_none()).count() > 100);

    let joined = table.clone().join(&facts, &[("width", "key")]).await.unwrap();
    assert_eq!(joined_values(&joined).await, expected);
    assert_eq!(joined.len(), TABLE);
    let names: Vec<&str> = joined.catalog().schema().fields().iter().map(|f| f.name().as_str()).collect();
    assert_eq!(names, ["image_path", "label", "width", "name", "score", "image"]);
    assert_eq!(payloads(&all_rows(&joined).await, "image"), payloads(&all_rows(&table).await, "image"));
    assert!(joined.proves_nulls("score"));
    let again = reopened(&joined).await;
    assert_eq!(joined_values(&again).await, expected);
    assert_eq!(again.place_hash(), joined.place_hash());

    let high = joined.clone().filter("score > 100").await.unwrap();
    let wide: Vec<u64> =
        (0..TABLE).filter(|id| expected[*id as usize].1.is_some_and(|score| score > 100.0)).collect();
    let selection = high.selection().unwrap().clone();
    assert_eq!((0..TABLE).filter(|id| selection.contains(SampleId(*id))).collect::<Vec<_>>(), wide);
    assert!(!high.proves_nulls("score") && high.proves_nulls("name"));
    let cursor = high.plan(&shuffle()).unwrap().cursor(0, Position(3));
    reopened(&high).await.plan(&shuffle()).unwrap().check(&cursor).unwrap();

    // The other data set may be filtered, and may have computed columns.
    let few = facts.filter("key < 50").await.unwrap().with_column("twice", "score * 2").await.unwrap();
    let few = few.rename(&[("key", "width")]).unwrap().columns(&["width", "twice"]).unwrap();
    let small = table.join(&few, &[("width", "width")]).await.unwrap();
    let found = all_rows(&reopened(&small).await).await;
    let twice: Vec<Option<f64>> = found
        .iter()
        .flat_map(|batch| batch["twice"].as_primitive::<Float64Type>().iter().collect::<Vec<_>>())
        .collect();
    for (width, value) in (0..).zip(twice) {
        assert_eq!(value, by_key.get(&width).filter(|_| width < 50).map(|score| score * 2.0), "{width}");
    }
}

#[tokio::test]
async fn keys_of_several_columns_and_of_texts() {
    let root = tempfile::tempdir().unwrap();
    write_folder(root.path(), 0);
    let files = open(root.path()).await.unwrap(); // path, class, label, image
    let other = files.clone().filter("sample_id % 4 = 0").await.unwrap();
    let other = other.with_column("code", "class || '-' || cast(sample_id as varchar)").await.unwrap();
    let other = other
        .rename(&[("class", "kind"), ("path", "file")])
        .unwrap()
        .columns(&["file", "kind", "code"])
        .unwrap();
    let joined = files.clone().join(&other, &[("path", "file"), ("class", "kind")]).await.unwrap();
    let codes: Vec<Option<String>> = all_rows(&joined)
        .await
        .iter()
        .flat_map(|batch| {
            let codes = batch["code"].as_string::<i32>().clone();
            (0..codes.len())
                .map(move |row| codes.is_valid(row).then(|| codes.value(row).to_owned()))
                .collect::<Vec<_>>()
        })
        .collect();
    let classes = texts(&all_rows(&files).await, "class");
    for (id, code) in codes.iter().enumerate() {
        let expected = (id % 4 == 0).then(|| format!("{}-{id}", classes[id]));
        assert_eq!(*code, expected);
    }
    // Over all parts of a concatenation, and in one.
    let parts = vec![files.clone().named("a"), files.clone().take(9).unwrap().named("b")];
    let both =
        Dataset::concat(parts).unwrap().join(&other, &[("path", "file"), ("class", "kind")]).await.unwrap();
    assert_eq!(both.clone().filter("code is not null").await.unwrap().len(), 23 + 3);
    assert_eq!(reopened(&both).await.filter("code = 'a-8'").await.unwrap().len(), 2);
    let part = joined.named("a");
    let whole = Dataset::concat(vec![part, files.named("b")]).unwrap();
    let again = reopened(&whole).await;
    assert_eq!(
        again.clone().filter("code like 'a-%'").await.unwrap().len(),
        codes.iter().flatten().filter(|code| code.starts_with("a-")).count() as u64
    );
    let spec = whole.spec();
    assert_eq!(spec.uris().len(), 3, "workers check every URI");
    assert_eq!(whole.stored_catalogs().len(), 3);
}

#[tokio::test]
async fn another_version_of_the_other_data_set_is_refused() {
    let sets = Sets::new();
    let folder = tempfile::tempdir().unwrap();
    let keys: Vec<Option<i32>> = (0..100).map(Some).collect();
    write_facts(folder.path(), &keys, 0.5);
    let join = async || {
        let facts = open(folder.path()).await.unwrap();
        sets.table().await.join(&facts, &[("width", "key")]).await.unwrap()
    };
    let first = join().await;
    let described = serde_json::to_string(&first.spec()).unwrap();
    // The same values in another sequence are the same.
    let turned: Vec<Option<i32>> = (0..100).rev().map(Some).collect();
    write_facts(folder.path(), &turned, 0.5);
    assert_eq!(joined_values(&reopened(&first).await).await, joined_values(&first).await);
    assert_eq!(serde_json::to_string(&join().await.spec()).unwrap(), described);

    write_facts(folder.path(), &keys, 0.25);
    let spec: feedstock_dataset::DatasetSpec = serde_json::from_str(&described).unwrap();
    let error = spec.open(&|| options(feedstock_dataset::CatalogStore::Nowhere)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    assert!(
        error.to_string().contains("has other keys or values than where this data set was described"),
        "{error}"
    );
    let second = join().await;
    assert_ne!(second.place_hash(), first.place_hash(), "workers do not share blocks of both");
    let cursor = first.plan(&shuffle()).unwrap().cursor(0, Position(5));
    let refused = second.plan(&shuffle()).unwrap().check(&cursor).unwrap_err().to_string();
    assert!(refused.contains("its selection is join(width, "), "{refused}");

    let mut without = spec.clone();
    without.joined.clear();
    let error = without.open(&|| options(feedstock_dataset::CatalogStore::Nowhere)).await.unwrap_err();
    assert!(error.to_string().contains("the description lacks the other data set"), "{error}");
    let mut more = second.spec();
    more.joined.push(more.joined[0].clone());
    let error = more.open(&|| options(feedstock_dataset::CatalogStore::Nowhere)).await.unwrap_err();
    assert!(error.to_string().contains("has more data sets to join than joins"), "{error}");
}

#[tokio::test]
async fn bad_joins_are_refused() {
    let sets = Sets::new();
    let folder = tempfile::tempdir().unwrap();
    write_facts(folder.path(), &[Some(4), None, Some(17), None, Some(17)], 1.0);
    let facts = open(folder.path()).await.unwrap();
    let table = sets.table().await; // image_path, label, width, image
    let error = message(table.clone().join(&facts, &[("width", "key")]).await);
    assert!(
        error.starts_with("join: the key key = 17 occurs twice in ")
            && error.contains(
                "in facts.parquet row 2 and in facts.parquet row 4; keys of the other data set must be unique"
            ),
        "{error}"
    );
    let last = facts.clone().skip(2).unwrap();
    let error = message(table.clone().join(&last, &[("width", "key")]).await);
    assert!(error.contains("in facts.parquet row 2 and in facts.parquet row 4"), "ids, not numbers: {error}");
    let facts = facts.take(4).unwrap(); // null keys match nothing and may repeat
    let joined = table.clone().join(&facts, &[("width", "key")]).await.unwrap();
    let found = joined_values(&joined).await;
    assert_eq!(found.iter().filter(|(_, score)| score.is_some()).count(), 2);

    let weighted = facts.clone().filter("score > 0").await.unwrap().weights("score", None).await.unwrap();
    let renamed = facts.clone().rename(&[("name", "label"), ("score", "image")]).unwrap();
    for (other, on, expected) in [
        (&facts, &[][..], "join: there must be at least 1 column of keys"),
        (
            &facts,
            &[("widht", "key")][..],
            "no column named widht; the columns are: image_path, label, width, image",
        ),
        (&facts, &[("width", "kee")][..], "no column named kee; the columns are: key, name, score"),
        (&facts, &[("image", "key")][..], "the column image holds encoded samples, which cannot be keys"),
        (&facts, &[("image_path", "key")][..], "the key image_path is Utf8 and key is Int32"),
        (&facts, &[("width", "score")][..], "the key width is Int64 and score is Float64"),
        (
            &renamed,
            &[("width", "key")][..],
            "join: both data sets have columns named label, image; rename them",
        ),
        (&weighted, &[("width", "key")][..], "a data set with weights cannot be joined"),
        (
            &facts.clone().columns(&["key"]).unwrap(),
            &[("width", "key")][..],
            "has no columns to add besides its keys",
        ),
    ] {
        let error = message(table.clone().join(other, on).await);
        assert!(error.contains(expected), "{error}\nmust contain: {expected}");
    }
}
