//! Missing values in columns of numbers: one form in every batch, here and from workers.

use crate::common::open;
use crate::fleet::{Whole, at, batches, worker};
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, Float32Array, Int64Array, StringArray,
};
use arrow::datatypes::{DataType, Field, Float32Type, Int64Type, Schema};
use arrow::record_batch::RecordBatch;
use feedstock_dataset::{Rank, Shuffle, Tail};
use feedstock_trainer_bridge::{BatchSize, Dataset, ErrorKind, NullValue, Nulls, OnError, Pipeline};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use std::path::Path;
use std::sync::Arc;

const ROWS: usize = 120;
/// Rows without a label.
const WITHOUT: [usize; 2] = [50, 91];
/// A row without a pair, and one with half of one.
const HALVES: [usize; 2] = [7, 70];

/// 120 rows in groups of 40: `label` and `pair` have nulls, `count` could have some, `id` could not.
fn write(folder: &Path, statistics: EnabledStatistics) {
    let number = |i: usize| i64::try_from(i).unwrap();
    let label: Int64Array = (0..ROWS).map(|i| (!WITHOUT.contains(&i)).then(|| number(i))).collect();
    let halves: Float32Array = (0..2 * ROWS).map(|i| (i != 2 * HALVES[1]).then_some(i as f32)).collect();
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let there = (0..ROWS).map(|i| i != HALVES[0]).collect::<Vec<bool>>();
    let pair = FixedSizeListArray::try_new(item, 2, Arc::new(halves), Some(there.into())).unwrap();
    let columns: Vec<(&str, ArrayRef, bool)> = vec![
        ("id", Arc::new(Int64Array::from_iter_values((0..ROWS).map(number))), false),
        ("label", Arc::new(label), true),
        ("count", Arc::new(Int64Array::from_iter_values((0..ROWS).map(number))), true),
        (
            "flag",
            Arc::new(BooleanArray::from((0..ROWS).map(|i| (i > 5).then_some(true)).collect::<Vec<_>>())),
            true,
        ),
        ("pair", Arc::new(pair), true),
        ("text", Arc::new(StringArray::from_iter((0..ROWS).map(|i| (i != 3).then(|| i.to_string())))), true),
    ];
    let fields =
        columns.iter().map(|(name, array, null)| Field::new(*name, array.data_type().clone(), *null));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let arrays = columns.iter().map(|(_, array, _)| array.clone()).collect();
    let properties =
        WriterProperties::builder().set_max_row_group_row_count(Some(40)).set_statistics_enabled(statistics);
    let file = std::fs::File::create(folder.join("a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, schema.clone(), Some(properties.build())).unwrap();
    writer.write(&RecordBatch::try_new(schema, arrays).unwrap()).unwrap();
    writer.close().unwrap();
}

fn data(statistics: EnabledStatistics) -> (tempfile::TempDir, Dataset) {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), statistics);
    let data = open(folder.path());
    (folder, data)
}

fn pipeline(data: &Dataset, columns: &[&str]) -> Pipeline {
    let data = data.clone().columns(columns).unwrap();
    let pipeline = data.shuffle(Shuffle::seeded(3)).batch(BatchSize::global(16)).tail(Tail::Pad).epochs(1);
    pipeline.slots(20) // tests keep all batches
}

/// Returns, for each column, the number of batches in which it is a tensor.
fn tensors(pipeline: &Pipeline) -> Vec<(String, usize)> {
    let batches: Vec<_> = pipeline.rank(Rank::new(0, 1)).start().unwrap().map(|b| b.unwrap()).collect();
    assert_eq!(batches.len(), ROWS.div_ceil(16));
    let schema = batches[0].columns().schema();
    let names = schema.fields().iter().map(|field| field.name().clone());
    names
        .map(|name| {
            let times = batches.iter().filter(|batch| batch.numbers(&name).is_some()).count();
            (name, times)
        })
        .collect()
}

fn refused(pipeline: &Pipeline) -> String {
    let error = pipeline.rank(Rank::new(0, 1)).start().err().unwrap();
    assert_eq!(error.kind(), ErrorKind::BadConfig);
    error.to_string()
}

#[test]
fn a_column_has_one_form_in_every_batch() {
    let all = ROWS.div_ceil(16);
    let (_folder, counted) = data(EnabledStatistics::Chunk);
    let columns = ["id", "label", "count", "flag", "pair", "text"];
    for column in columns {
        assert_eq!(counted.as_ref().proves_nulls(column), !["id", "count"].contains(&column), "{column}");
    }
    let forms = tensors(&pipeline(&counted, &columns));
    let expected = [("id", all), ("label", 0), ("count", all), ("flag", 0), ("pair", 0), ("text", 0)];
    assert_eq!(forms, expected.map(|(name, times)| (name.to_owned(), times)));

    // A column is a tensor without statistics, and also if a filter may have left out the nulls.
    let (_folder, silent) = data(EnabledStatistics::None);
    let columns = ["id", "label", "count"];
    let filter = "label is not null";
    for data in [silent.clone().filter(filter).unwrap(), counted.clone().filter(filter).unwrap()] {
        assert!(!data.as_ref().proves_nulls("label"));
        let forms = tensors(&pipeline(&data, &columns));
        assert_eq!(forms, columns.map(|name| (name.to_owned(), all)));
    }
    let forms = tensors(&pipeline(&silent, &columns).nulls(Nulls::List));
    assert_eq!(forms, columns.map(|name| (name.to_owned(), 0)));
}

#[test]
fn an_unforeseen_null_is_a_bad_sample() {
    let (folder, silent) = data(EnabledStatistics::None);
    let strict = pipeline(&silent, &["id", "label", "pair"]).nulls_of("pair", Nulls::Mask);
    let error = strict.rank(Rank::new(0, 1)).start().unwrap().find_map(Result::err).unwrap();
    assert_eq!(error.kind(), ErrorKind::BadSample);
    let message = error.to_string();
    for part in ["a.parquet row", "column 'label' is null", r#"nulls="list" | value | "mask""#] {
        assert!(message.contains(part), "{message}");
    }
    let about = error.sample_context().unwrap();
    assert!(WITHOUT.contains(&(about.sample.0 as usize)) && about.column.as_deref() == Some("label"));

    let skipping = pipeline(&silent, &["id", "label", "pair"]).on_error(OnError::Skip { max_fraction: 0.1 });
    let mut rank = skipping.rank(Rank::new(0, 1)).start().unwrap();
    let alone: Vec<_> = rank.by_ref().map(|batch| batch.unwrap()).collect();
    for batch in &alone {
        assert!(batch.numbers("label").is_some() && batch.numbers("pair").is_some());
        let labels = batch.column("label").unwrap().as_primitive::<Int64Type>();
        for (row, sample) in batch.sample_ids().iter().enumerate() {
            let own = labels.value(row) == i64::try_from(sample.0).unwrap();
            assert!(own || !batch.valid()[row], "only marked rows take another row's content");
        }
    }
    let mut listed: Vec<u64> = rank.skip_report().samples.iter().map(|skipped| skipped.sample.0).collect();
    listed.sort_unstable();
    assert_eq!(listed, [7, 50, 70, 91]);

    // Rows of workers are the same, under both policies.
    let fleet = [worker(folder.path())];
    let remote = skipping.clone().workers(at(&fleet));
    assert_eq!(batches(&remote, 2), batches(&skipping, 2));
    let error = strict.workers(at(&fleet)).rank(Rank::new(0, 1)).start().unwrap().find_map(Result::err);
    assert_eq!(error.unwrap().to_string(), message);
}

#[test]
fn values_and_masks_stand_for_nulls() {
    let (folder, counted) = data(EnabledStatistics::Chunk);
    let columns = ["id", "label", "count", "flag", "pair"];
    let chosen = pipeline(&counted, &columns)
        .nulls(Nulls::Mask)
        .nulls_of("label", Nulls::Value(NullValue::Whole(-1)))
        .nulls_of("flag", Nulls::Value(NullValue::Flag(false)));
    let alone = batches(&chosen, 2);
    let fleet = [worker(folder.path())];
    assert_eq!(batches(&chosen.clone().workers(at(&fleet)), 2), alone);
    let schema = alone[0][0].columns.schema();
    let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
    assert_eq!(names, ["id", "label", "count", "flag", "pair", "count_mask", "pair_mask"]);
    assert!(schema.fields().iter().all(|field| !field.is_nullable()), "{schema}");
    for batch in alone.iter().flatten() {
        check_values(batch);
    }
    let forms = tensors(&chosen);
    assert!(forms.iter().all(|(_, times)| *times == ROWS.div_ceil(16)), "{forms:?}");
}

/// Compares each row with what was written for its sample.
fn check_values(batch: &Whole) {
    let column = |name: &str| batch.columns.column_by_name(name).unwrap().clone();
    let (label, flag, count) = (column("label"), column("flag"), column("count_mask"));
    let (pair, mask) = (column("pair"), column("pair_mask"));
    for (row, sample) in batch.samples.iter().map(|sample| *sample as usize).enumerate() {
        let expected = if WITHOUT.contains(&sample) { -1 } else { sample as i64 };
        assert_eq!(label.as_primitive::<Int64Type>().value(row), expected);
        assert_eq!(flag.as_boolean().value(row), sample > 5);
        assert!(count.as_boolean().value(row));
        let pair = pair.as_fixed_size_list().value(row);
        let mask = mask.as_fixed_size_list().value(row);
        let values = pair.as_primitive::<Float32Type>().values().to_vec();
        let flags: Vec<bool> = mask.as_boolean().values().iter().collect();
        let all = [2.0 * sample as f32, 2.0 * sample as f32 + 1.0];
        let (values_then, flags_then) = match sample {
            7 => ([0.0, 0.0], [false, false]),
            70 => ([0.0, all[1]], [false, true]),
            _ => (all, [true, true]),
        };
        assert_eq!((values, flags), (values_then.to_vec(), flags_then.to_vec()), "sample {sample}");
    }
}

#[test]
fn settings_are_checked_before_anything_runs() {
    let (_folder, silent) = data(EnabledStatistics::None);
    let columns = ["id", "label", "flag", "pair", "text"];
    let of =
        |column: &str, value| refused(&pipeline(&silent, &columns).nulls_of(column, Nulls::Value(value)));
    let (whole, real) = (NullValue::Whole, NullValue::Real);
    assert!(of("label", real(1.5)).contains("'label' (Int64) must be an integer; got 1.5"));
    assert!(of("label", NullValue::Flag(true)).contains("must be a number; got true"));
    assert!(of("label", whole(1 << 63)).contains("in its type's range"));
    assert!(of("pair", real(1e300)).contains("'pair' (Float32) must be a number in its type's range"));
    assert!(of("flag", whole(1)).contains("must be true or false; got 1"));
    assert!(
        of("text", whole(1)).contains("column 'text' is Utf8") && of("none", whole(1)).contains("'none'")
    );
    let message = refused(&pipeline(&silent, &columns).nulls(Nulls::Value(whole(-1))));
    assert!(message.contains("'flag' (Boolean)"), "one value for all must fit all: {message}");
    let both = Dataset::concat(vec![silent.clone().named("a"), silent.named("b")]).unwrap();
    let fits = pipeline(&both, &["label", "pair"]).nulls(Nulls::Value(real(f64::NAN)));
    assert!(refused(&fits).contains("'label'"));
    pipeline(&both, &["pair"]).nulls(Nulls::Value(real(f64::NAN))).rank(Rank::new(0, 1)).start().unwrap();
}

#[test]
fn a_mask_needs_a_free_name() {
    let folder = tempfile::tempdir().unwrap();
    let columns: [(&str, ArrayRef); 2] = [
        ("label", Arc::new(Int64Array::from(vec![Some(1), None]))),
        ("label_mask", Arc::new(Int64Array::from(vec![1, 2]))),
    ];
    let rows =
        RecordBatch::try_from_iter_with_nullable(columns.map(|(name, array)| (name, array, true))).unwrap();
    let file = std::fs::File::create(folder.path().join("a.parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, rows.schema(), None).unwrap();
    writer.write(&rows).unwrap();
    writer.close().unwrap();
    let data = open(folder.path()).batch(BatchSize::global(2)).epochs(1);
    let message = refused(&data.clone().nulls_of("label", Nulls::Mask));
    assert!(message.contains("'label_mask', which already exists"), "{message}");
}

#[test]
fn a_part_without_the_column_proves_nulls() {
    let (_folder, silent) = data(EnabledStatistics::None);
    let parts = vec![
        silent.clone().columns(&["id", "count"]).unwrap().named("a"),
        silent.columns(&["id"]).unwrap().named("b"),
    ];
    let both = Dataset::concat(parts).unwrap();
    assert!(both.as_ref().proves_nulls("count") && !both.as_ref().proves_nulls("id"));
    let first = both.filter("dataset = 'a'").unwrap();
    assert!(!first.as_ref().proves_nulls("count"), "the part that lacks it has no selected sample");
}
