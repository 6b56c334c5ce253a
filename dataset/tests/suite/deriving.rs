//! `with_column` and `rename`: values, names, what they leave unchanged, what other processes compute, what is refused.

use crate::format_common::*;
use crate::plan_sets::{FILES, Sets, TABLE};
use crate::selecting::steps;
use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float64Type, Int64Type};
use arrow::util::display::array_value_to_string;
use feedstock_dataset::{BlockId, CatalogStore, Dataset, Extent, Position, SampleId, Shuffle, Stop};
use std::collections::BTreeMap;

fn shuffle() -> Shuffle {
    Shuffle::seeded(7).window(100).lanes(4)
}

/// Returns the values of a column, as text, by sample: as blocks have them.
async fn values(dataset: &Dataset, column: &str) -> Vec<String> {
    let rows = all_rows(&dataset.clone().columns(&[column]).unwrap()).await;
    let of = |batch: &arrow::record_batch::RecordBatch| -> Vec<String> {
        let array = batch.column(0).clone();
        (0..array.len()).map(|row| array_value_to_string(&array, row).unwrap()).collect()
    };
    rows.iter().flat_map(of).collect()
}

/// Returns the same values from a query.
async fn queried(dataset: &Dataset, sql: &str) -> Vec<String> {
    let batches = dataset.sql(&format!("select {sql} as v from catalog order by sample_id")).await.unwrap();
    let rows = batches.iter().flat_map(|batch| {
        let array = batch.column(0).clone();
        (0..array.len()).map(move |row| array_value_to_string(&array, row).unwrap()).collect::<Vec<_>>()
    });
    rows.collect()
}

fn kept(dataset: &Dataset) -> Vec<u64> {
    let all = (0..dataset.catalog().samples()).map(SampleId);
    all.filter(|id| dataset.selection().is_none_or(|kept| kept.contains(*id))).map(|id| id.0).collect()
}

#[tokio::test]
async fn a_column_has_the_values_of_its_expression_in_every_layout() {
    let sets = Sets::new();
    let (table, files) = (sets.table().await, sets.files().await);
    let both = Dataset::concat(vec![table.clone(), files.clone()]).unwrap();
    for (dataset, text) in [(table, "image_path"), (files, "path"), (both, "coalesce(path, image_path)")] {
        for expression in [
            format!("length({text})"),
            format!("upper(substr({text}, 1, 2))"),
            "cast(sample_id as double) / 3".into(),
            "case when sample_id % 3 = 1 then sample_id end".into(),
            "make_array(sample_id, 2 * sample_id)".into(),
            "sample_id % 2 = 0".into(),
        ] {
            let with = dataset.clone().with_column("made", &expression).await.unwrap();
            let expected = queried(&dataset, &expression).await;
            assert_eq!(values(&with, "made").await, expected, "{expression}");
            assert_eq!(queried(&with, "made").await, expected);
            assert_eq!(values(&reopened(&with).await, "made").await, expected);
            let nulls = expected.iter().any(String::is_empty);
            assert_eq!(with.proves_nulls("made"), nulls, "{expression}");
            // Parts of blocks, the rest of the columns, and samples by number.
            let middle = with.catalog().block_samples(BlockId(1));
            let part = Extent::new(BlockId(1), middle.start + 1..middle.end.min(middle.start + 3));
            let block = with.block_reader().fetch_extent(part, 0).await.unwrap();
            let made = block.rows.column_by_name("made").unwrap();
            assert_eq!(array_value_to_string(made, 0).unwrap(), expected[middle.start as usize + 1]);
            let rows = with.rows(3..4).await.unwrap();
            assert_eq!(array_value_to_string(&rows["made"], 0).unwrap(), expected[3]);
            assert_eq!(
                payloads(&all_rows(&with).await, "image"),
                payloads(&all_rows(&dataset).await, "image")
            );
        }
    }
}

#[tokio::test]
async fn later_steps_use_columns_and_earlier_steps_stay() {
    let sets = Sets::new();
    let table = sets.table().await;
    let some = table.clone().filter("width >= 10").await.unwrap().take(100).unwrap();
    let with =
        some.with_column("third", "width / 3").await.unwrap().with_column("next", "third + 1").await.unwrap();
    assert_eq!(with.len(), 100);
    let ten = with.clone().filter("next = 11").await.unwrap();
    assert_eq!(kept(&ten), [30, 31, 32]);
    assert_eq!(kept(&reopened(&ten).await), [30, 31, 32]);
    let parts = with.split_by("third", &[("a", 0.5), ("b", 0.5)], 3).await.unwrap();
    for (_, part) in &parts {
        let kept = kept(part);
        for id in 12..108 {
            assert_eq!(kept.contains(&id), kept.contains(&(id / 3 * 3)), "one key, one part");
        }
    }
    assert_eq!(with.lengths("next").await.unwrap().values()[30], 11.0);
    let weighted = with.clone().weights("third % 2", None).await.unwrap();
    assert_eq!(kept(&weighted).len(), 100 - (10..110).filter(|id| id / 3 % 2 == 0).count());
    let late = table.balanced("label").await.unwrap().with_column("n", "label + 1").await.unwrap();
    assert_eq!(ints(&all_rows(&late).await, "n")[..12], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2]);
}

#[tokio::test]
async fn columns_come_after_the_metadata_or_after_the_chosen_ones() {
    let sets = Sets::new();
    let table = sets.table().await;
    let names = |dataset: &Dataset| -> Vec<String> {
        dataset.block_reader().schema().fields().iter().map(|field| field.name().clone()).collect()
    };
    let with = table.clone().with_column("n", "label + 1").await.unwrap();
    assert_eq!(names(&with), ["image_path", "label", "width", "n", "image"]);
    let few = table.columns(&["image", "label"]).unwrap().with_column("n", "width + 1").await.unwrap();
    assert_eq!(names(&few), ["image", "label", "n"]);
    let few = few.rename(&[("image", "photo")]).unwrap().with_column("m", "n * 2").await.unwrap();
    assert_eq!(names(&few), ["photo", "label", "n", "m"]);
    assert_eq!(names(&reopened(&few).await), names(&few));
    assert_eq!(few.catalog().payload_columns(), ["photo"]);
    let only = few.columns(&["m"]).unwrap();
    assert_eq!(ints(&all_rows(&only).await, "m")[..3], [2, 4, 6]);
    let field = with.catalog().schema().field_with_name("n").unwrap().clone();
    assert_eq!((field.data_type(), field.is_nullable()), (&DataType::Int64, true));
}

#[tokio::test]
async fn swapped_names_keep_their_values_statistics_and_filters() {
    let sets = Sets::new();
    let table = sets.table().await;
    let before = table.clone().filter("label < 5 and \"width\" >= 200").await.unwrap();
    let swapped = before.rename(&[("label", "width"), ("width", "label"), ("image", "photo")]).unwrap();
    assert_eq!(swapped.filter_sql().unwrap(), "\"width\" < 5 AND \"label\" >= 200");
    assert_eq!(kept(&swapped), (200..450).filter(|id| id % 10 < 5).collect::<Vec<_>>());
    let count = format!("select count(*) from catalog where {}", swapped.filter_sql().unwrap());
    assert_eq!(swapped.sql(&count).await.unwrap()[0].column(0).as_primitive::<Int64Type>().value(0), 125);
    // Statistics of row groups belong to columns of the files, not to names.
    assert_eq!(kept(&swapped.clone().filter("label = 443").await.unwrap()), [443]);
    assert_eq!(
        kept(&reopened(&swapped.clone().filter("width = 4 and label < 210").await.unwrap()).await),
        [204]
    );
    let rows = all_rows(&swapped).await;
    assert_eq!(ints(&rows, "label"), (0..450).collect::<Vec<i64>>());
    assert_eq!(payloads(&rows, "photo"), payloads(&all_rows(&table).await, "image"));
    let hidden =
        table.clone().rename(&[("width", "w")]).unwrap().with_column("width", "label").await.unwrap();
    assert_eq!(hidden.clone().filter("width = 3").await.unwrap().len(), 45);
    assert_eq!(kept(&hidden.filter("w = 303 and width = 3").await.unwrap()), [303]);
    // Steps before and after a change of names.
    let again = swapped.rename(&[("width", "class"), ("label", "width")]).unwrap();
    let again = again.filter("class > 2").await.unwrap();
    assert_eq!(again.filter_sql().unwrap(), "(\"class\" < 5 AND \"width\" >= 200) AND (class > 2)");
    assert_eq!(
        kept(&reopened(&again).await),
        (200..450).filter(|id| [3, 4].contains(&(id % 10))).collect::<Vec<_>>()
    );
}

#[tokio::test]
async fn class_names_and_names_of_samples_stay_after_a_rename() {
    let root = tempfile::tempdir().unwrap();
    write_folder(root.path(), 0);
    let files = open(root.path()).await.unwrap();
    let renamed = files.clone().rename(&[("label", "target"), ("path", "file")]).unwrap();
    assert_eq!(renamed.catalog().class_names("target").unwrap(), ["a", "b", "c"]);
    assert_eq!(renamed.catalog().class_names("label"), None);
    assert_eq!(
        renamed.catalog().describe_sample(SampleId(31)),
        files.catalog().describe_sample(SampleId(31))
    );
    assert_eq!(renamed.catalog().sample_uri(SampleId(31)), files.catalog().sample_uri(SampleId(31)));
    assert_eq!(texts(&all_rows(&renamed).await, "file"), texts(&all_rows(&files).await, "path"));
    assert_eq!(renamed.catalog().hashes(), files.catalog().hashes());
}

#[tokio::test]
async fn an_epoch_has_each_sample_once_on_any_number_of_ranks() {
    let sets = Sets::new();
    let with = sets.table().await.with_column("third", "width / 3").await.unwrap();
    let some = with.filter("third % 2 = 0").await.unwrap().rename(&[("third", "t")]).unwrap();
    let expected: Vec<u64> = (0..450).filter(|id| id / 3 % 2 == 0).collect();
    let plan = some.plan(&shuffle()).unwrap();
    let global = steps(&plan, 1, 0);
    let mut all: Vec<u64> = global.iter().flatten().copied().collect();
    all.sort_unstable();
    assert_eq!(all, expected);
    for world_size in [2, 3, 5] {
        assert_eq!(steps(&plan, world_size, 0), global, "{world_size} ranks");
    }
    let again = reopened(&some).await.plan(&shuffle()).unwrap();
    assert_eq!(steps(&again, 3, 24), global[1..], "resumed in another process");
    let cursor = plan.cursor(0, Position(64));
    again.check(&cursor).unwrap();
}

#[tokio::test]
async fn steps_belong_to_the_fingerprint_and_to_what_processes_share() {
    let sets = Sets::new();
    let table = sets.table().await;
    let described = serde_json::to_string(&table.spec()).unwrap();
    assert!(!described.contains("joined") && !described.contains("steps"), "{described}");
    let with = table.clone().with_column("n", "width % 7").await.unwrap();
    let cursor = with.clone().filter("n = 3").await.unwrap().plan(&shuffle()).unwrap().cursor(0, Position(5));
    let other = table.clone().with_column("n", "(width + 0) % 7").await.unwrap();
    let refused =
        other.clone().filter("n = 3").await.unwrap().plan(&shuffle()).unwrap().check(&cursor).unwrap_err();
    let expected = "its selection is with_column(n, width % 7).filter, this pipeline's is with_column(n, (width + 0) % 7).filter";
    assert!(refused.to_string().contains(expected), "{refused}");
    let again = reopened(&with).await;
    let renamed = |from: &Dataset, name: &str| from.clone().rename(&[("label", name)]).unwrap();
    let hashes = [
        table.place_hash(),
        with.place_hash(),
        other.place_hash(),
        renamed(&table, "class").place_hash(),
        renamed(&table, "klass").place_hash(),
        renamed(&with, "class").place_hash(),
    ];
    let different: std::collections::BTreeSet<u64> = hashes.into_iter().collect();
    assert_eq!(different.len(), hashes.len());
    assert_eq!(again.place_hash(), with.place_hash());
}

#[tokio::test]
async fn parts_and_wholes_of_mixes_and_concatenations_have_columns() {
    let sets = Sets::new();
    let table = sets.table().await.with_column("kind", "label % 2").await.unwrap();
    let table = table.rename(&[("image_path", "path")]).unwrap().columns(&["path", "kind", "image"]).unwrap();
    let files = sets.files().await.with_column("kind", "length(path)").await.unwrap();
    let both = Dataset::concat(vec![table.clone(), files.clone()]).unwrap();
    let expected = [values(&table, "kind").await, values(&files, "kind").await].concat();
    assert_eq!(values(&both, "kind").await, expected);
    assert_eq!(
        values(&both, "path").await,
        [values(&table, "path").await, values(&files, "path").await].concat()
    );
    assert_eq!(payloads(&all_rows(&both).await, "image").len() as u64, TABLE + FILES);
    let whole =
        both.clone().with_column("twice", "2 * kind").await.unwrap().rename(&[("dataset", "part")]).unwrap();
    let few = whole.filter("twice = 2 or part = 'files'").await.unwrap();
    assert_eq!(few.len(), 225 + FILES);
    let again = reopened(&few).await;
    assert_eq!(values(&again, "twice").await, values(&few, "twice").await);
    assert_eq!(values(&again, "part").await, values(&both, "dataset").await);
    let cursor = few.plan(&shuffle()).unwrap().cursor(0, Position(9));
    again.plan(&shuffle()).unwrap().check(&cursor).unwrap();
    let error = message(Dataset::concat(vec![few.clone().named("few"), sets.table().await]));
    assert!(
        error.contains(
            "few: a concatenation with with_column, rename or join cannot be part of a concatenation"
        ),
        "{error}"
    );

    let mix = Dataset::mix(vec![(table, 1.0), (files, 1.0)], Stop::AllExhausted).unwrap();
    let mix = mix.with_column("twice", "2 * kind").await.unwrap();
    let drawn = |dataset: &Dataset| -> BTreeMap<u64, u64> {
        let plan = dataset.plan(&shuffle()).unwrap();
        let mut order = plan.epoch(0);
        let mut drawn = BTreeMap::new();
        (0..plan.len()).for_each(|p| *drawn.entry(order.sample_at(Position(p)).sample.0).or_default() += 1);
        drawn
    };
    assert_eq!(drawn(&reopened(&mix).await), drawn(&mix));
    assert_eq!(drawn(&mix).len() as u64, TABLE + FILES);
}

#[tokio::test]
async fn a_state_of_replaced_files_selects_by_the_columns_of_that_time() {
    let (root, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write_folder(root.path(), 0);
    let open = async || {
        let options = options(CatalogStore::Cache(cache.path().into()));
        let files = Dataset::open_with(path(root.path()), options).await.unwrap();
        let files = files.columns(&["path", "image"]).unwrap().rename(&[("path", "file")]).unwrap();
        files.with_column("n", "length(file) + sample_id % 3").await.unwrap().filter("n > 9").await.unwrap()
    };
    let older = open().await;
    let saved = older.plan(&shuffle()).unwrap().fingerprint().clone();
    std::fs::write(root.path().join("a/newer.jpg"), b"new").unwrap();
    let newer = open().await;
    assert_ne!(kept(&newer), kept(&older));
    let then = newer.as_of(&saved).await.unwrap();
    assert_eq!(kept(&then), kept(&older));
    then.plan(&shuffle()).unwrap().check(&older.plan(&shuffle()).unwrap().cursor(0, Position(2))).unwrap();
    assert_eq!(then.block_reader().schema(), older.block_reader().schema());
    let map = newer.samples_of(&then).await.unwrap();
    assert_eq!(map.newer(SampleId(0)), Some(SampleId(0)));
    let last = kept(&older).last().copied().unwrap();
    assert_eq!(map.newer(SampleId(last)), Some(SampleId(last + 1)));
}

#[tokio::test]
async fn bad_columns_are_refused() {
    let root = tempfile::tempdir().unwrap();
    write_folder(root.path(), 0);
    let files = open(root.path()).await.unwrap(); // path, class, label, image
    for (name, sql, expected) in [
        (
            "n",
            "count(path)",
            "with_column n: the expression `count(path)`: count() is computed from many samples",
        ),
        ("n", "sum(label) + 1", "sum() is computed from many samples"),
        ("n", "row_number() over (order by path)", "row_number() is computed from many samples"),
        ("n", "random()", "random() returns other values at other times"),
        ("n", "now()", "now() returns other values at other times"),
        ("n", "(select max(label) from catalog)", "it has a query; a column has one value for each sample"),
        ("n", "label in (select 1)", "it has a query"),
        ("n", "labl + 1", "there is no column `labl`; the columns are: "),
        ("n", "label +", "it is not an SQL expression"),
        ("n", "label as m", "leave out `as`"),
        ("n", "image", "it is BinaryView; columns are numbers, flags, texts"),
        ("n", "null", "it is Null; columns are numbers"),
        ("n", "1 / (label - label)", "ivide by zero"),
        ("label", "1", "with_column: there is a column named label already"),
        ("image", "1", "with_column: there is a column named image already"),
        ("", "1", "with_column: the name of a column must not be empty"),
        ("sample_id", "1", "with_column: sample_id is the catalog's; choose another name"),
    ] {
        let error = message(files.clone().with_column(name, sql).await);
        assert!(error.contains(expected), "{error}\nmust contain: {expected}");
    }
    for (names, expected) in [
        (&[("labl", "x")][..], "rename: no column named labl; the columns are: "),
        (&[][..], "rename: there must be at least 1 column"),
        (&[("label", "path")][..], "rename: two columns would be named path"),
        (&[("label", "x"), ("path", "x")][..], "rename: two columns would be named x"),
        (&[("label", "x"), ("label", "y")][..], "rename: the column label is renamed twice"),
        (&[("label", "")][..], "rename: the name of a column must not be empty"),
        (&[("label", "sample_id")][..], "rename: sample_id is the catalog's"),
    ] {
        let error = message(files.clone().rename(names));
        assert!(error.contains(expected), "{error}\nmust contain: {expected}");
    }
    // The old name is gone, and free.
    let renamed = files.rename(&[("label", "target")]).unwrap();
    let error = message(renamed.clone().filter("label = 1").await);
    assert!(error.contains("there is no column `label`"), "{error}");
    let again = renamed.with_column("label", "cast(target as double)").await.unwrap();
    let rows = all_rows(&again).await;
    assert_eq!(rows[0]["label"].as_primitive::<Float64Type>().value(0), 0.0);
}
