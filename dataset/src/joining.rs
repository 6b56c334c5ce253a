//! Columns of another data set, found by keys.
//!
//! ```text
//! other: selected rows ─▶ key → row (unique) ─┐
//! this:  key of each sample ──────────────────┴▶ row of each sample, or null ─▶ columns that are looked up
//! ```

use crate::catalog::{ColumnValues, index, project};
use crate::sql::values;
use crate::steps::SelectionStep;
use crate::{Dataset, Error, ErrorKind, Result, SampleId, Selection};
use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, UInt64Array};
use arrow::buffer::NullBuffer;
use arrow::compute::{cast, filter};
use arrow::datatypes::{ArrowNativeType, DataType, FieldRef};
use arrow::error::ArrowError;
use arrow::row::{Row, RowConverter, Rows, SortField};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hasher;
use std::ops::Range;
use std::sync::Arc;
use twox_hash::XxHash64;

impl Dataset {
    /// Adds the metadata columns of another data set, where its keys are equal to keys of this one (a left join).
    ///
    /// `on` are pairs of columns: one here, one in `other`. They are texts, integers or flags. Each key must be unique among the selected
    /// samples of `other`. A sample whose key is not there, or is null, has nulls. Added are the chosen columns of `other` except
    /// its keys and encoded samples; no sample of this data set is left out or repeated.
    ///
    /// Keys and columns of `other` are read when this is called, and again in each process that opens the data set. Memory holds its
    /// columns once, and 8 bytes for each sample of this catalog. A hash of its keys and values is part of the fingerprint and of the
    /// description, so a worker for which `other` has changed is refused.
    ///
    /// ```
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let images = Dataset::open_with(uri, options).await?; // cat/1.jpg, cat/2.jpg, dog/3.jpg
    /// let rated = images.clone().skip(1)?.with_column("stars", "sample_id + 3").await?; // 4 and 5
    /// let ratings = rated.columns(&["path", "stars"])?;
    ///
    /// let joined = images.clone().join(&ratings, &[("path", "path")]).await?;
    /// assert_eq!(joined.len(), 3);
    /// assert_eq!(joined.clone().filter("stars = 5").await?.len(), 1);
    /// assert_eq!(joined.filter("stars is null").await?.len(), 1);
    ///
    /// let error = images.clone().join(&images, &[("path", "path")]).await.unwrap_err();
    /// assert!(error.message().starts_with("join: both data sets have columns named "));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for no keys, a column that is unknown or holds encoded samples, keys of types that do not fit each other, a key that
    /// occurs twice in `other` (the message names it and two samples), a column that both data sets have, and an `other` without columns
    /// besides its keys, or with weights; storage's errors.
    pub async fn join(self, other: &Self, on: &[(&str, &str)]) -> Result<Self> {
        self.joined_with(other, on, None).await
    }

    /// As [`join`](Self::join); `described` is the digest that the other data set must have.
    pub(crate) async fn joined_with(
        self,
        other: &Self,
        on: &[(&str, &str)],
        described: Option<&str>,
    ) -> Result<Self> {
        let plan = JoinPlan::new(&self, other, on).map_err(|e| e.context("join"))?;
        let left = values::of_columns(&self.opened, plan.left.clone()).await?;
        let right = [plan.right.clone(), plan.added.clone()].concat();
        let all = values::of_columns(&other.opened, right.clone()).await?;
        let selected = other.selection().map(|kept| BooleanArray::new(kept.bits().clone(), None));
        let kept = |column: ArrayRef| match &selected {
            Some(selected) => filter(&column, selected).map_err(bug),
            None => Ok(column),
        };
        let mut columns = all.into_iter().map(kept).collect::<Result<Vec<ArrayRef>>>()?;
        let lookup = plan.rows(&left, &columns[..plan.right.len()], other).map_err(|e| e.context("join"))?;
        let digest = digest_of(&right, &columns, &lookup.has_key)?;
        if let Some(expected) = described.filter(|expected| *expected != digest) {
            return Err(Error::config(format!(
                "join: {} has other keys or values than where this data set was described (hash {digest}, expected \
                 {expected}); give all processes the same data",
                other.uri()
            )));
        }
        if lookup.rows.null_count() == lookup.rows.len() {
            tracing::warn!(other = other.uri(), "join: no sample has a key of the other data set");
        }
        let added = plan.added.iter().zip(columns.drain(plan.right.len()..));
        let added = added.map(|(field, values)| {
            let field = Arc::new(field.as_ref().clone().with_nullable(true));
            (field, ColumnValues::looked_up(values, lookup.rows.clone()))
        });
        let on = on.iter().map(|(left, right)| ((*left).to_owned(), (*right).to_owned())).collect();
        let mut joined = self.with_columns(added.collect(), SelectionStep::Join { on, digest })?;
        joined.others = joined.others.iter().chain([other]).cloned().collect();
        Ok(joined)
    }
}

/// The columns of a join.
struct JoinPlan {
    left: Vec<FieldRef>,
    right: Vec<FieldRef>,
    /// The types in which keys are compared.
    kinds: Vec<DataType>,
    /// The columns of the other data set that are added.
    added: Vec<FieldRef>,
}

/// The rows of the other data set.
struct Lookup {
    /// The row of each sample; null if it has none.
    rows: UInt64Array,
    /// Which rows of the other data set have a key.
    has_key: Vec<bool>,
}

impl JoinPlan {
    fn new(this: &Dataset, other: &Dataset, on: &[(&str, &str)]) -> Result<Self> {
        if on.is_empty() {
            return Err(Error::config("there must be at least 1 column of keys; got none"));
        }
        if other.selection().is_some_and(Selection::is_repeated) {
            return Err(Error::config(format!(
                "{}: a data set with weights cannot be joined; join before weights",
                other.uri()
            )));
        }
        let (mut left, mut right, mut kinds) = (Vec::new(), Vec::new(), Vec::new());
        for (here, there) in on {
            let (mine, its) = (metadata_field(this, here)?, metadata_field(other, there)?);
            let Some(kind) = key_type(mine.data_type(), its.data_type()) else {
                return Err(Error::config(format!(
                    "the key {here} is {} and {there} is {}; keys are both texts, both integers, or both flags: cast one with \
                     with_column",
                    mine.data_type(),
                    its.data_type()
                )));
            };
            left.push(mine);
            right.push(its);
            kinds.push(kind);
        }
        let fields = other.catalog().schema().fields();
        let is_added = |field: &&FieldRef| {
            !other.catalog().is_payload(field.name()) && right.iter().all(|key| key.name() != field.name())
        };
        let added = other.columns.iter().map(|&column| &fields[column]).filter(is_added);
        let added: Vec<FieldRef> = added.cloned().collect();
        if added.is_empty() {
            return Err(Error::config(format!("{} has no columns to add besides its keys", other.uri())));
        }
        let is_taken = |field: &&FieldRef| this.catalog().schema().index_of(field.name()).is_ok();
        let taken: Vec<&str> = added.iter().filter(is_taken).map(|field| field.name().as_str()).collect();
        if !taken.is_empty() {
            return Err(Error::config(format!(
                "both data sets have columns named {}; rename them in one of the data sets, or leave them out of the other with \
                 Dataset::columns",
                taken.join(", ")
            )));
        }
        Ok(Self { left, right, kinds, added })
    }

    /// Finds the row of the other data set for each sample of this one.
    fn rows(&self, left: &[ArrayRef], right: &[ArrayRef], other: &Dataset) -> Result<Lookup> {
        let fields = self.kinds.iter().cloned().map(SortField::new).collect();
        let converter = RowConverter::new(fields).map_err(bug)?;
        let (its, has_key) = self.keys(right, &converter)?;
        let mut known: HashMap<Row<'_>, u64> = HashMap::with_capacity(its.num_rows());
        for (row, key) in (0usize..).zip(&its).filter(|(row, _)| has_key[*row]) {
            match known.entry(key) {
                Entry::Vacant(free) => _ = free.insert(row as u64),
                Entry::Occupied(first) => {
                    return Err(self.repeated(right, index(*first.get()), row, other));
                }
            }
        }
        let (mine, is_valid) = self.keys(left, &converter)?;
        let rows = mine.iter().zip(is_valid);
        let rows = rows.map(|(key, is_valid)| known.get(&key).copied().filter(|_| is_valid)).collect();
        Ok(Lookup { rows, has_key })
    }

    /// Returns the keys of all rows, and whether each has all of its values.
    fn keys(&self, columns: &[ArrayRef], converter: &RowConverter) -> Result<(Rows, Vec<bool>)> {
        let cast_to = |(column, kind): (&ArrayRef, &DataType)| cast(column, kind).map_err(bug);
        let columns = columns.iter().zip(&self.kinds).map(cast_to).collect::<Result<Vec<ArrayRef>>>()?;
        let nulls = columns.iter().fold(None, |nulls: Option<NullBuffer>, column| {
            NullBuffer::union(nulls.as_ref(), column.logical_nulls().as_ref())
        });
        let rows = converter.convert_columns(&columns).map_err(bug)?;
        let is_valid = (0..rows.num_rows()).map(|row| nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)));
        let is_valid = is_valid.collect();
        Ok((rows, is_valid))
    }

    /// Returns the error about a key of two rows.
    fn repeated(&self, keys: &[ArrayRef], first: usize, second: usize, other: &Dataset) -> Error {
        let ids = |row: usize| match other.selection() {
            Some(kept) => kept.bits().set_indices().nth(row).unwrap_or(row),
            None => row,
        };
        let name = |row: usize| other.catalog().describe_sample(SampleId(ids(row) as u64));
        let options = FormatOptions::new();
        let values = self.right.iter().zip(keys).map(|(field, column)| {
            let value = ArrayFormatter::try_new(column, &options).map(|all| all.value(second).to_string());
            format!("{} = {}", field.name(), value.unwrap_or_default())
        });
        Error::config(format!(
            "the key {} occurs twice in {}: in {} and in {}; keys of the other data set must be unique, so filter it first",
            values.collect::<Vec<_>>().join(", "),
            other.uri(),
            name(first),
            name(second)
        ))
    }
}

/// Returns a column of a data set that is not encoded samples.
fn metadata_field(dataset: &Dataset, name: &str) -> Result<FieldRef> {
    let schema = dataset.catalog().schema();
    let at = project(schema, &[name]).map_err(|e| e.context(dataset.uri()))?[0];
    match dataset.catalog().is_payload(name) {
        true => Err(Error::config(format!(
            "{}: the column {name} holds encoded samples, which cannot be keys",
            dataset.uri()
        ))),
        false => Ok(schema.fields()[at].clone()),
    }
}

/// Returns the type in which keys of two types are compared; `None` if they are never equal, or no keys.
fn key_type(left: &DataType, right: &DataType) -> Option<DataType> {
    let plain = |kind: &DataType| match kind {
        DataType::Dictionary(_, values) => values.as_ref().clone(),
        other => other.clone(),
    };
    let is_text = |kind: &DataType| matches!(kind, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    match (plain(left), plain(right)) {
        (left, right) if is_text(&left) && is_text(&right) => Some(DataType::Utf8View),
        (DataType::Boolean, DataType::Boolean) => Some(DataType::Boolean),
        (left, right) if left.is_unsigned_integer() && right.is_unsigned_integer() => Some(DataType::UInt64),
        // A u64 that i64 cannot hold becomes null: it is equal to no key of a signed type.
        (left, right) if left.is_integer() && right.is_integer() => Some(DataType::Int64),
        _ => None,
    }
}

/// Returns a hash of the rows that have a key: names, types and values, whatever the sequence of rows and the files are.
fn digest_of(fields: &[FieldRef], columns: &[ArrayRef], has_key: &[bool]) -> Result<String> {
    let columns = columns.iter().map(Values::of).collect::<Result<Vec<_>>>()?;
    let (mut rows, mut sums, mut text, mut values) = (0u64, [0u64; 2], String::new(), Vec::new());
    for row in (0..has_key.len()).filter(|row| has_key[*row]) {
        values.clear();
        columns.iter().try_for_each(|column| column.write(row, &mut text, &mut values))?;
        for (seed, sum) in (0..).zip(&mut sums) {
            *sum = sum.wrapping_add(XxHash64::oneshot(seed, &values));
        }
        rows += 1;
    }
    let named = fields.iter().map(|field| format!("{:?} {}", field.name(), field.data_type()));
    let named = named.collect::<Vec<_>>().join("\n");
    let digest = |seed: u64| {
        let mut hash = XxHash64::with_seed(seed);
        hash.write(named.as_bytes());
        [rows, sums[0], sums[1]].iter().for_each(|part| hash.write_u64(*part));
        hash.finish()
    };
    Ok(format!("{:016x}{:016x}", digest(2), digest(3)))
}

/// The values of a column, as bytes: different values have different ones.
enum Values<'a> {
    Texts(&'a dyn Array, ArrayFormatter<'a>),
    Lists(&'a dyn Array, Box<dyn Fn(usize) -> Range<usize> + 'a>, Box<Values<'a>>),
}

impl<'a> Values<'a> {
    fn of(column: &'a ArrayRef) -> Result<Self> {
        let lists = |ranges, items| Ok(Self::Lists(column, ranges, Box::new(Self::of(items)?)));
        match column.data_type() {
            DataType::List(_) => {
                let list = column.as_list::<i32>();
                let end = |row: usize| list.value_offsets()[row].as_usize();
                lists(Box::new(move |row| end(row)..end(row + 1)), list.values())
            }
            DataType::LargeList(_) => {
                let list = column.as_list::<i64>();
                let end = |row: usize| list.value_offsets()[row].as_usize();
                lists(Box::new(move |row| end(row)..end(row + 1)), list.values())
            }
            DataType::FixedSizeList(_, _) => {
                let list = column.as_fixed_size_list();
                let end = |row: usize| list.value_offset(row).as_usize();
                lists(Box::new(move |row| end(row)..end(row + 1)), list.values())
            }
            _ => {
                let texts = ArrayFormatter::try_new(column, &FormatOptions::new()).map_err(bug)?;
                Ok(Self::Texts(column, texts))
            }
        }
    }

    /// Adds the value of a row to `bytes`; `text` is used in between.
    fn write(&self, row: usize, text: &mut String, bytes: &mut Vec<u8>) -> Result<()> {
        match self {
            Self::Texts(column, texts) => {
                text.clear();
                texts.value(row).write(text).map_err(bug)?;
                write_head(bytes, column.is_null(row), text.len());
                bytes.extend_from_slice(text.as_bytes());
                Ok(())
            }
            Self::Lists(column, ranges, items) => {
                let mut range = ranges(row);
                write_head(bytes, column.is_null(row), range.len());
                range.try_for_each(|item| items.write(item, text, bytes))
            }
        }
    }
}

fn write_head(bytes: &mut Vec<u8>, is_null: bool, len: usize) {
    bytes.push(u8::from(is_null));
    bytes.extend_from_slice(&(len as u64).to_le_bytes());
}

fn bug(error: ArrowError) -> Error {
    Error::new(ErrorKind::Bug, "the columns of a join do not fit").with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{FixedSizeListArray, Int64Array, LargeListArray, ListArray, StringArray};
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::Field;

    fn digest(names: [&str; 2], ids: &[Option<i64>], texts: &[&str]) -> String {
        let fields =
            [Field::new(names[0], DataType::Int64, true), Field::new(names[1], DataType::Utf8, true)]
                .map(Arc::new);
        let has_key: Vec<bool> = ids.iter().map(Option::is_some).collect();
        let columns: [ArrayRef; 2] =
            [Arc::new(Int64Array::from(ids.to_vec())), Arc::new(StringArray::from(texts.to_vec()))];
        digest_of(&fields, &columns, &has_key).unwrap()
    }

    #[test]
    fn digests_are_of_values_in_any_sequence() {
        let names = ["id", "text"];
        let digest_of = |ids: &[Option<i64>], texts: &[&str]| digest(names, ids, texts);
        let one = digest_of(&[Some(1), Some(2)], &["a", "b"]);
        assert_eq!(one.len(), 32);
        assert_eq!(digest_of(&[Some(2), Some(1)], &["b", "a"]), one);
        assert_eq!(digest_of(&[Some(2), None, Some(1)], &["b", "c", "a"]), one, "no sample finds a null key");
        for other in [
            digest_of(&[Some(1), Some(2)], &["b", "a"]),
            digest_of(&[Some(1), Some(2)], &["a", "b "]),
            digest_of(&[Some(1)], &["a"]),
            digest(["id", "texts"], &[Some(1), Some(2)], &["a", "b"]),
        ] {
            assert_ne!(other, one);
        }
    }

    #[test]
    fn lists_with_other_items_have_other_digests() {
        let item = || Arc::new(Field::new("item", DataType::Utf8, true));
        let digest = |list: ArrayRef| {
            let field = Arc::new(Field::new("list", list.data_type().clone(), true));
            digest_of(&[field], &[list], &[true]).unwrap()
        };
        let lists = |texts: &[Option<&str>]| -> [ArrayRef; 3] {
            let (values, len) = (StringArray::from(texts.to_vec()), texts.len());
            [
                Arc::new(ListArray::new(
                    item(),
                    OffsetBuffer::from_lengths([len]),
                    Arc::new(values.clone()),
                    None,
                )),
                Arc::new(LargeListArray::new(
                    item(),
                    OffsetBuffer::from_lengths([len]),
                    Arc::new(values.clone()),
                    None,
                )),
                Arc::new(FixedSizeListArray::new(item(), len.try_into().unwrap(), Arc::new(values), None)),
            ]
        };
        let one = lists(&[Some("a, b")]).map(digest);
        assert_eq!(one, lists(&[Some("a, b")]).map(digest));
        for other in [&[Some("a"), Some("b")][..], &[None], &[Some("")], &[]] {
            assert!(lists(other).map(digest).iter().all(|other| !one.contains(other)), "{other:?}");
        }
        assert_ne!(lists(&[Some("")]).map(digest), lists(&[None]).map(digest));
    }

    #[test]
    fn keys_of_one_kind_are_compared() {
        let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
        for (left, right, expected) in [
            (DataType::Utf8, dictionary, Some(DataType::Utf8View)),
            (DataType::UInt8, DataType::UInt64, Some(DataType::UInt64)),
            (DataType::UInt64, DataType::Int32, Some(DataType::Int64)),
            (DataType::Boolean, DataType::Boolean, Some(DataType::Boolean)),
            (DataType::Utf8, DataType::Int64, None),
            (DataType::Float64, DataType::Float64, None),
            (DataType::Boolean, DataType::Int8, None),
        ] {
            assert_eq!((key_type(&left, &right), key_type(&right, &left)), (expected.clone(), expected));
        }
    }
}
