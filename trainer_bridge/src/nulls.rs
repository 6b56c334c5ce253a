//! Missing values in columns of numbers: one form in every batch.
//!
//! ```text
//! Pipeline::nulls ─▶ one rule per column, before anything runs ─▶ each batch: bad rows, then the columns' form
//! ```
//! A column is a tensor if its field in the batch is not nullable, and a list otherwise. Rules are applied when batches are
//! assembled, so rows of workers get the same form.

use crate::{Error, ErrorKind, Result};
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, FixedSizeListArray, Float64Array, Int64Array, Scalar, UInt64Array,
};
use arrow::buffer::BooleanBuffer;
use arrow::compute::kernels::zip::zip;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, Field, Float16Type, Float32Type, Schema};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use feedstock_dataset::Dataset;
use feedstock_device::Element;
use std::collections::BTreeMap;
use std::sync::Arc;

/// How missing values are represented in a column of numbers or flags.
///
/// ```
/// # use feedstock_dataset::Rank;
/// # use feedstock_trainer_bridge::{BatchSize, Dataset, NullValue, Nulls};
/// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
/// # let folder = tempfile::tempdir().unwrap();
/// # for (name, text) in [("1.jpg", "a"), ("2.jpg", "b"), ("list.csv", "path,score\n1.jpg,0.5\n2.jpg,\n")] {
/// #     std::fs::write(folder.path().join(name), text).unwrap();
/// # }
/// # let list = folder.path().join("list.csv");
/// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
/// # let options = OpenOptions { catalog, ..OpenOptions::default() };
/// let dataset = futures::executor::block_on(Dataset::open_with(list.to_str().unwrap(), options))?; // scores 0.5 and null
/// let pipeline = dataset.batch(BatchSize::per_rank(2));
/// let first = |nulls| -> feedstock_trainer_bridge::Result<_> {
///     let pipeline = pipeline.clone().nulls_of("score", nulls);
///     pipeline.rank(Rank::new(0, 1)).start()?.next().unwrap()
/// };
/// let filled = first(Nulls::Value(NullValue::Real(-1.0)))?;
/// assert_eq!(filled.numbers("score").unwrap().bytes(), [0.5f64, -1.0].map(f64::to_ne_bytes).as_flattened());
/// let masked = first(Nulls::Mask)?;
/// assert_eq!(masked.numbers("score_mask").unwrap().bytes()[..], [1, 0]);
/// assert!(first(Nulls::List)?.numbers("score").is_none()); // a list, in every batch
/// # Ok::<(), feedstock_trainer_bridge::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Nulls {
    /// The column is a list with nulls in every batch, not a tensor.
    List,
    /// A tensor in which this value replaces them.
    Value(NullValue),
    /// A tensor in which 0 replaces them, and a second one of flags, `<column>_mask`: true where a value is present.
    Mask,
}

/// A value that replaces missing ones. Flags take flags, and whole numbers take whole numbers in their range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum NullValue {
    /// For flags.
    Flag(bool),
    /// For whole and real numbers.
    Whole(i128),
    /// For real numbers.
    Real(f64),
}

/// A pipeline's settings about nulls.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct NullSettings {
    /// For all columns without a setting.
    pub(crate) all: Option<Nulls>,
    pub(crate) columns: BTreeMap<String, Nulls>,
}

/// The form of one column of numbers.
#[derive(Debug, Clone)]
pub(crate) struct NullRule {
    pub(crate) column: String,
    form: Form,
}

#[derive(Debug, Clone)]
enum Form {
    /// A tensor; a null is a bad sample. One zero of the column's type fills rows that are marked invalid.
    Required(ArrayRef),
    List,
    /// One value of the column's type.
    Filled(ArrayRef),
    /// One zero of the column's type, and the name of the flags.
    Masked(ArrayRef, String),
}

impl NullRule {
    /// Returns the rules for `along`, the unmapped columns. `is_taken` returns whether the batch has another column of that
    /// name. Without a setting, a column is a list if statistics prove nulls.
    ///
    /// # Errors
    /// `BadConfig` for a setting of a column that is unknown or not of numbers, a value that its type cannot represent, and a
    /// mask whose name is taken.
    pub(crate) fn of_columns(
        settings: &NullSettings,
        dataset: &Dataset,
        along: &[&Field],
        is_taken: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<Self>> {
        for name in settings.columns.keys() {
            check_column(name, along)?;
        }
        let mut rules = Vec::new();
        for field in along {
            let Some(leaf) = leaf_of(field.data_type()) else { continue };
            let (column, own) = (field.name(), settings.columns.get(field.name()));
            // Columns that cannot have nulls need no flags, unless their own setting requests them.
            let all = settings.all.filter(|nulls| *nulls != Nulls::Mask || field.is_nullable());
            let zero = || value_of(column, zero_of(leaf), leaf);
            let form = match own.copied().or(all) {
                None if dataset.proves_nulls(column) => Form::List,
                None => Form::Required(zero()?),
                Some(Nulls::List) => Form::List,
                Some(Nulls::Value(value)) => Form::Filled(value_of(column, value, leaf)?),
                Some(Nulls::Mask) => {
                    let mask = mask_column(column);
                    if is_taken(&mask) {
                        return Err(Error::config(format!(
                            "the flags of '{column}' go into the column '{mask}', which already exists; leave that column \
                             out with Dataset::columns, or choose another nulls for '{column}'"
                        )));
                    }
                    Form::Masked(zero()?, mask)
                }
            };
            rules.push(Self { column: column.clone(), form });
        }
        Ok(rules)
    }

    /// Returns the rule of a column without a setting; `None` if it is not of numbers.
    ///
    /// # Errors
    /// `Bug` if its type has no zero.
    pub(crate) fn stated(field: &Field, is_list: bool) -> Result<Option<Self>> {
        let Some(leaf) = leaf_of(field.data_type()) else { return Ok(None) };
        let form = match is_list {
            true => Form::List,
            false => Form::Required(value_of(field.name(), zero_of(leaf), leaf)?),
        };
        Ok(Some(Self { column: field.name().clone(), form }))
    }

    /// Whether another value stands for missing ones.
    pub(crate) fn has_value(&self) -> bool {
        matches!(self.form, Form::Filled(_) | Form::Masked(..))
    }

    /// Whether the column is a list.
    pub(crate) fn is_list(&self) -> bool {
        matches!(self.form, Form::List)
    }

    /// Returns the name of the column of flags, if there is one.
    pub(crate) fn mask(&self) -> Option<&str> {
        match &self.form {
            Form::Masked(_, mask) => Some(mask),
            _ => None,
        }
    }

    /// Returns the rows of a batch that are bad samples because of a null.
    pub(crate) fn bad_rows(&self, columns: &RecordBatch) -> Vec<usize> {
        let Some(array) =
            columns.column_by_name(&self.column).filter(|_| matches!(self.form, Form::Required(_)))
        else {
            return Vec::new();
        };
        let Some(present) = present(array) else { return Vec::new() };
        let per_row = leaf_len(array);
        (0..array.len())
            .filter(|row| present.slice(row * per_row, per_row).count_set_bits() < per_row)
            .collect()
    }

    /// Returns the message about a bad row.
    pub(crate) fn problem(&self) -> String {
        format!(
            "column '{}' is null, and no nulls were expected; set nulls=\"list\" | value | \"mask\" for it, or set \
             on_error=skip",
            self.column
        )
    }
}

/// Returns the batch's columns in the form of their rules.
///
/// # Errors
/// `Bug` if Arrow rejects them.
pub(crate) fn with_rules(columns: RecordBatch, rules: &[NullRule]) -> Result<RecordBatch> {
    let schema = columns.schema();
    let (mut fields, mut arrays, mut masks) = (Vec::new(), Vec::new(), Vec::new());
    for (field, array) in schema.fields().iter().zip(columns.columns()) {
        let Some(rule) = rules.iter().find(|rule| rule.column == *field.name()) else {
            fields.push(field.clone());
            arrays.push(array.clone());
            continue;
        };
        let array = match &rule.form {
            Form::List => array.clone(),
            Form::Required(value) | Form::Filled(value) => filled(array, value)?,
            Form::Masked(zero, mask) => {
                let flags = flags_like(array)?;
                masks.push((Arc::new(Field::new(mask, flags.data_type().clone(), false)), flags));
                filled(array, zero)?
            }
        };
        fields.push(Arc::new(field.as_ref().clone().with_nullable(rule.is_list())));
        arrays.push(array);
    }
    for (field, flags) in masks {
        fields.push(field);
        arrays.push(flags);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(columns.num_rows()));
    RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &options).map_err(bug)
}

/// Returns the name of the column that is true where `column` has values.
fn mask_column(column: &str) -> String {
    format!("{column}_mask")
}

fn bug(error: arrow::error::ArrowError) -> Error {
    Error::new(ErrorKind::Bug, format!("cannot put a column's nulls into their form: {error}"))
}

fn check_column(name: &str, along: &[&Field]) -> Result<()> {
    let numbers = || {
        let names = along.iter().filter(|field| leaf_of(field.data_type()).is_some());
        names.map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
    };
    match along.iter().find(|field| field.name() == name) {
        None => Err(Error::config(format!("nulls: no column '{name}' of numbers; there are: {}", numbers()))),
        Some(field) if leaf_of(field.data_type()).is_none() => Err(Error::config(format!(
            "nulls: column '{name}' is {}, which is a list in every batch; the columns of numbers are: {}",
            field.data_type(),
            numbers()
        ))),
        Some(_) => Ok(()),
    }
}

/// Returns the type of the numbers in a column, or `None` if it is not a tensor.
fn leaf_of(data_type: &DataType) -> Option<&DataType> {
    Element::of_nested(data_type)?;
    match data_type {
        DataType::FixedSizeList(item, _) => leaf_of(item.data_type()),
        leaf => Some(leaf),
    }
}

fn zero_of(leaf: &DataType) -> NullValue {
    if *leaf == DataType::Boolean { NullValue::Flag(false) } else { NullValue::Whole(0) }
}

/// Returns one value of the column's type.
fn value_of(column: &str, value: NullValue, leaf: &DataType) -> Result<ArrayRef> {
    let refused = |wanted: &str, got: &dyn std::fmt::Display| {
        Error::config(format!("nulls: the value for '{column}' ({leaf}) must be {wanted}; got {got}"))
    };
    let range = "a number in its type's range";
    let array: ArrayRef = match value {
        NullValue::Flag(flag) if *leaf == DataType::Boolean => {
            return Ok(Arc::new(BooleanArray::from(vec![flag])));
        }
        NullValue::Flag(flag) => return Err(refused("a number", &flag)),
        NullValue::Whole(number) if *leaf == DataType::Boolean => {
            return Err(refused("true or false", &number));
        }
        NullValue::Real(number) if *leaf == DataType::Boolean => {
            return Err(refused("true or false", &number));
        }
        NullValue::Real(number) if leaf.is_integer() => return Err(refused("an integer", &number)),
        NullValue::Real(number) => Arc::new(Float64Array::from(vec![number])),
        NullValue::Whole(number) => match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => Arc::new(Int64Array::from(vec![number])),
            (_, Ok(number)) => Arc::new(UInt64Array::from(vec![number])),
            _ => return Err(refused(range, &number)),
        },
    };
    let strict = CastOptions { safe: false, ..CastOptions::default() };
    let shown = || match value {
        NullValue::Real(number) => number.to_string(),
        NullValue::Whole(number) => number.to_string(),
        NullValue::Flag(flag) => flag.to_string(),
    };
    let cast = cast_with_options(&array, leaf, &strict).map_err(|_| refused(range, &shown()))?;
    let is_finite = match leaf {
        DataType::Float16 => cast.as_primitive::<Float16Type>().value(0).is_finite(),
        DataType::Float32 => cast.as_primitive::<Float32Type>().value(0).is_finite(),
        _ => true,
    };
    // NaN and infinity may be requested, but a finite number must not become one.
    let may_be = is_finite || matches!(value, NullValue::Real(number) if !number.is_finite());
    if may_be { Ok(cast) } else { Err(refused(range, &shown())) }
}

/// Returns, for each number of a column with all axes flattened, whether it and every list around it is present. `None` if
/// all are.
fn present(array: &ArrayRef) -> Option<BooleanBuffer> {
    let Some(list) = array.as_fixed_size_list_opt() else {
        return array.nulls().filter(|nulls| nulls.null_count() > 0).map(|nulls| nulls.inner().clone());
    };
    let inner = present(list.values());
    let Some(nulls) = list.nulls().filter(|nulls| nulls.null_count() > 0) else { return inner };
    let per_row = leaf_len(array);
    let outer: BooleanBuffer = nulls.iter().flat_map(|valid| std::iter::repeat_n(valid, per_row)).collect();
    Some(inner.map_or_else(|| outer.clone(), |inner| &inner & &outer))
}

/// Returns the number of numbers in each value of a column.
fn leaf_len(array: &ArrayRef) -> usize {
    array
        .as_fixed_size_list_opt()
        .map_or(1, |list| usize::try_from(list.value_length()).unwrap_or(0) * leaf_len(list.values()))
}

/// Returns the column with `value` in place of nulls.
fn filled(array: &ArrayRef, value: &ArrayRef) -> Result<ArrayRef> {
    let Some(present) = present(array) else { return Ok(array.clone()) };
    with_leaf(array, &|leaf| {
        let present = BooleanArray::new(present.clone(), None);
        zip(&present, leaf, &Scalar::new(value.clone())).map_err(bug)
    })
}

/// Returns flags in the shape of the column: true where it has a value.
fn flags_like(array: &ArrayRef) -> Result<ArrayRef> {
    let present = present(array);
    with_leaf(array, &|leaf| {
        let all = || BooleanBuffer::new_set(leaf.len());
        Ok(Arc::new(BooleanArray::new(present.clone().unwrap_or_else(all), None)) as ArrayRef)
    })
}

/// Returns the column with its numbers replaced by the same number of others, and without null lists.
fn with_leaf(array: &ArrayRef, leaf: &dyn Fn(&ArrayRef) -> Result<ArrayRef>) -> Result<ArrayRef> {
    let Some(list) = array.as_fixed_size_list_opt() else { return leaf(array) };
    let values = with_leaf(list.values(), leaf)?;
    let DataType::FixedSizeList(item, length) = list.data_type() else { return Ok(array.clone()) };
    let item = Arc::new(item.as_ref().clone().with_data_type(values.data_type().clone()));
    let made = FixedSizeListArray::try_new_with_length(item, *length, values, None, list.len());
    Ok(Arc::new(made.map_err(bug)?))
}
