//! `split_by` and the SQL function `feedstock_split`.

use crate::format_common::*;
use arrow::array::{
    ArrayRef, AsArray, BinaryArray, BooleanArray, DictionaryArray, Float64Array, Int8Array, Int16Array,
    Int32Array, Int64Array, LargeStringArray, RecordBatch, StringArray, StringViewArray, UInt8Array,
    UInt64Array,
};
use arrow::datatypes::{Float64Type, Int32Type};
use feedstock_dataset::{Dataset, ErrorKind, Position, SampleId, Shuffle};
use parquet::arrow::ArrowWriter;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Writes a Parquet file of images and other columns.
fn write_columns(folder: &Path, columns: Vec<(&str, ArrayRef)>) {
    let rows = columns[0].1.len() as u64;
    let image: BinaryArray = (0..rows).map(|i| Some(picture(i, 100))).collect();
    let image = arrow::array::StructArray::from(vec![(
        Arc::new(arrow::datatypes::Field::new("bytes", arrow::datatypes::DataType::Binary, true)),
        Arc::new(image) as ArrayRef,
    )]);
    let columns = std::iter::once(("image", Arc::new(image) as ArrayRef)).chain(columns);
    let batch =
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap();
    let file = std::fs::File::create(folder.join("a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

async fn numbers(dataset: &Dataset, expression: &str) -> Vec<f64> {
    let rows =
        dataset.sql(&format!("select {expression} as n from catalog order by sample_id")).await.unwrap();
    rows.iter().flat_map(|batch| batch["n"].as_primitive::<Float64Type>().values().to_vec()).collect()
}

fn kept(dataset: &Dataset) -> BTreeSet<u64> {
    (0..dataset.catalog().samples()).filter(|&i| dataset.selection().unwrap().contains(SampleId(i))).collect()
}

/// The values are those of the reference library: `(xxhash.xxh64_intdigest(key.encode(), seed) >> 11) / 2**53` with
/// python-xxhash 4.1.0. Splits of users depend on them.
#[tokio::test]
async fn the_numbers_are_those_of_the_reference_library() {
    let folder = tempfile::tempdir().unwrap();
    write_columns(folder.path(), vec![("text", Arc::new(StringArray::from(vec!["x"])))]);
    let dataset = open(folder.path()).await.unwrap();
    for (call, number) in [
        ("feedstock_split('', 0)", 0.934_674_931_531_705_9),
        ("feedstock_split('a', 0)", 0.821_514_424_323_639_5),
        ("feedstock_split('speaker-17', 0)", 0.870_392_767_107_959_9),
        ("feedstock_split('speaker-17', 1)", 0.676_159_542_274_625_7),
        ("feedstock_split(42, 0)", 0.429_305_423_159_203_95),
        ("feedstock_split(-7, 3)", 0.785_573_117_203_364_5),
        ("feedstock_split(true, 0)", 0.842_921_821_698_909_1),
        ("feedstock_split('Grüße', 7)", 0.264_362_383_259_238_33),
        ("feedstock_split(18446744073709551615, 0)", 0.551_262_821_432_809_1),
        ("feedstock_split(null, 5)", 0.0),
    ] {
        assert_eq!(numbers(&dataset, call).await, [number], "{call}");
    }
}

#[tokio::test]
async fn a_key_has_one_number_in_whatever_type_it_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let texts = ["17", "-3", "100", "17"];
    let words = ["en", "de", "Grüße", "en"];
    let dictionary: DictionaryArray<Int32Type> = words.into_iter().collect();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("i8", Arc::new(Int8Array::from(vec![17, -3, 100, 17]))),
        ("i16", Arc::new(Int16Array::from(vec![17, -3, 100, 17]))),
        ("i32", Arc::new(Int32Array::from(vec![17, -3, 100, 17]))),
        ("i64", Arc::new(Int64Array::from(vec![17, -3, 100, 17]))),
        ("digits", Arc::new(StringArray::from(texts.to_vec()))),
        ("u8", Arc::new(UInt8Array::from(vec![17, 3, 100, 17]))),
        ("u64", Arc::new(UInt64Array::from(vec![17, 3, 100, 17]))),
        ("utf8", Arc::new(StringArray::from(words.to_vec()))),
        ("large", Arc::new(LargeStringArray::from(words.to_vec()))),
        ("view", Arc::new(StringViewArray::from(words.to_vec()))),
        ("dictionary", Arc::new(dictionary)),
        ("bytes", Arc::new(BinaryArray::from_iter_values(words.map(str::as_bytes)))),
        ("flag", Arc::new(BooleanArray::from(vec![true, false, true, true]))),
    ];
    write_columns(folder.path(), columns);
    let dataset = open(folder.path()).await.unwrap();
    for same in [
        &["i8", "i16", "i32", "i64", "digits", "cast(i8 as varchar)"][..],
        &["u8", "u64", "cast(u8 as int)"],
        &["utf8", "large", "view", "dictionary", "bytes", "concat(utf8, '')"],
        &["flag", "cast(flag as varchar)"],
    ] {
        let first = numbers(&dataset, &format!("feedstock_split({}, 9)", same[0])).await;
        assert!(first[0] == first[3] && first[0] != first[1] && first[1] < 1.0, "{same:?} {first:?}");
        for key in &same[1..] {
            assert_eq!(numbers(&dataset, &format!("feedstock_split({key}, 9)")).await, first, "{key}");
        }
    }
}

#[tokio::test]
async fn parts_are_disjoint_whole_and_keep_keys_together() {
    let folder = tempfile::tempdir().unwrap();
    let speakers: StringArray =
        (0..600).map(|i| (i % 20 != 3).then(|| format!("speaker-{}", i * i % 97))).collect();
    write_columns(folder.path(), vec![("speaker", Arc::new(speakers.clone()))]);
    let dataset = open(folder.path()).await.unwrap();
    let shares = [("train", 0.7), ("val", 0.2), ("test", 0.1)];
    for seed in [0, 1, 12345, i64::MAX as u64] {
        let parts = dataset.split_by("speaker", &shares, seed).await.unwrap();
        assert_eq!(parts.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["train", "val", "test"]);
        let mut part_of: BTreeMap<u64, usize> = BTreeMap::new();
        for (at, (_, part)) in parts.iter().enumerate() {
            for sample in kept(part) {
                assert_eq!(part_of.insert(sample, at), None, "sample {sample} is in two parts");
            }
        }
        assert_eq!(part_of.len(), 600, "every sample is in a part, nulls too");
        let mut by_key: BTreeMap<Option<&str>, BTreeSet<usize>> = BTreeMap::new();
        for (sample, speaker) in speakers.iter().enumerate() {
            by_key.entry(speaker).or_default().insert(part_of[&(sample as u64)]);
        }
        assert!(by_key.values().all(|parts| parts.len() == 1), "{by_key:?}");
        assert_eq!(by_key[&None], BTreeSet::from([0]), "nulls are in the first part");
        // A part of another share with the same start holds the smaller one.
        let other = dataset.split_by("speaker", &[("train", 0.8), ("val", 0.2)], seed).await.unwrap();
        assert!(kept(&other[0].1).is_superset(&kept(&parts[0].1)));
    }
    let of = async |seed| kept(&dataset.split_by("speaker", &shares, seed).await.unwrap()[0].1);
    assert_ne!(of(0).await, of(1).await);
    // Of what earlier steps keep.
    let few = dataset.clone().skip(100).unwrap().split_by("speaker", &shares, 0).await.unwrap();
    assert_eq!(few.iter().map(|(_, part)| part.len()).sum::<u64>(), 500);
    assert!(kept(&few[0].1).is_subset(&of(0).await));
}

#[tokio::test]
async fn shares_are_kept_over_many_keys() {
    let folder = tempfile::tempdir().unwrap();
    let keys: Int64Array = (0..20_000).collect();
    write_columns(folder.path(), vec![("key", Arc::new(keys))]);
    let dataset = open(folder.path()).await.unwrap();
    let parts = dataset.split_by("key", &[("a", 0.85), ("b", 0.1), ("c", 0.05)], 4).await.unwrap();
    for ((name, part), share) in parts.iter().zip([0.85, 0.1, 0.05]) {
        let deviation = (part.len() as f64 - 20_000.0 * share) / (20_000.0 * share * (1.0 - share)).sqrt();
        assert!(
            deviation.abs() < 4.0,
            "{name}: {} samples, {deviation:.1} standard deviations off",
            part.len()
        );
    }
}

/// Files that are added, and another layout of blocks, change no part of the samples that were there.
#[tokio::test]
async fn a_sample_stays_in_its_part_when_files_are_added() {
    let root = tempfile::tempdir().unwrap();
    write_folder(root.path(), 0);
    let train = async || {
        let dataset = open(root.path()).await.unwrap();
        let parts =
            dataset.split_by("split_part(path, '.', 1)", &[("train", 0.5), ("val", 0.5)], 0).await.unwrap();
        let part = &parts[0].1;
        kept(part)
            .into_iter()
            .map(|id| part.catalog().describe_sample(SampleId(id)))
            .collect::<BTreeSet<String>>()
    };
    let before = train().await;
    assert!(before.len() > 25 && before.len() < 65, "{}", before.len());
    for i in 0..40 {
        std::fs::write(root.path().join(format!("a/more-{i}.jpg")), picture(7_000 + i, 2_000)).unwrap();
    }
    let after = train().await;
    let old: BTreeSet<String> = after.iter().filter(|name| !name.contains("more-")).cloned().collect();
    assert_eq!(old, before);
    assert!(after.len() > before.len());
}

#[tokio::test]
async fn a_part_is_its_filter_for_cursors() {
    let root = tempfile::tempdir().unwrap();
    write_folder(root.path(), 0);
    let dataset = open(root.path()).await.unwrap();
    let shares = [("train", 0.75), ("val", 0.25)];
    let parts = dataset.split_by("path", &shares, 1).await.unwrap();
    let shuffle = Shuffle::seeded(2);
    let cursor = parts[1].1.plan(&shuffle).unwrap().cursor(0, Position(3));
    let same = dataset.clone().filter("feedstock_split(path, 1) >= 0.75").await.unwrap();
    same.plan(&shuffle).unwrap().check(&cursor).unwrap();
    for (shares, seed) in [(shares, 2), ([("train", 0.7), ("val", 0.3)], 1)] {
        let other = dataset.split_by("path", &shares, seed).await.unwrap();
        let refused = other[1].1.plan(&shuffle).unwrap().check(&cursor).unwrap_err().to_string();
        assert!(refused.contains("another order: its filter is "), "{refused}");
    }
}

#[tokio::test]
async fn bad_splits_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("speaker", Arc::new(StringArray::from(vec!["a", "b", "a", "b"]))),
        ("score", Arc::new(Float64Array::from(vec![0.5, 1.5, 2.5, 3.5]))),
    ];
    write_columns(folder.path(), columns);
    let dataset = open(folder.path()).await.unwrap();
    let halves: &[(&str, f64)] = &[("train", 0.5), ("val", 0.5)];
    type Case = (&'static str, &'static [(&'static str, f64)], &'static str);
    let cases: &[Case] = &[
        ("speaker", &[], "split_by: there must be at least 1 part; got none"),
        (
            "speaker",
            &[("train", 0.9), ("val", 0.2)],
            "the shares must sum to 1; train 0.9, val 0.2 sum to 1.1",
        ),
        ("speaker", &[("train", 0.3), ("val", 0.3)], "train 0.3, val 0.3 sum to 0.6"),
        ("speaker", &[("train", 1.5), ("val", -0.5)], "the share of val must be a number > 0; got -0.5"),
        ("speaker", &[("train", 1.0), ("val", 0.0)], "the share of val must be a number > 0; got 0"),
        ("speaker", &[("train", f64::NAN), ("val", 0.5)], "the share of train must be a number > 0; got NaN"),
        ("speaker", &[("a", 0.5), ("a", 0.5)], "two parts have the name a"),
        ("speeker", halves, "split_by: the key `speeker` does not fit"),
        ("speeker", halves, "there is no column `speeker`; the columns are: speaker, score, image"),
        ("speaker ||", halves, "it is not an SQL expression"),
        ("speaker) < 0.1 or (true", halves, "the key `speaker) < 0.1 or (true`"),
        ("sample_id", halves, "sample_id cannot be part of a key"),
        ("sample_id % 7", halves, "samples get other ids when files are added"),
        ("random()", halves, "other values at other times"),
        ("score", halves, "takes texts, integers, flags or bytes as key, not Float64"),
        ("speaker as x", halves, "a key has no name; leave out `as`"),
        ("speaker -- comment", halves, "split_by: the key `feedstock_split(speaker -- comment, 0)`"),
        ("'constant'", halves, "keeps none of the 4 samples"),
    ];
    for (key, shares, expected) in cases {
        let error = dataset.split_by(key, shares, 0).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
        assert!(error.to_string().contains(expected), "{key} {shares:?}: {error}\nmust contain: {expected}");
    }
    let whole = dataset.split_by("cast(score as bigint)", &[("all", 1.0)], 0).await.unwrap();
    assert_eq!(whole[0].1.len(), 4);
}
