//! Columns whose type is learnt from their values: JSON members of tars.
//!
//! Each tar makes its own typed column. The data set's type is the one that holds all of them:
//!
//! | values | type |
//! |---|---|
//! | whole numbers and fractions | float64 |
//! | lists | a list of the type that holds all items |
//! | objects | a struct of all keys, sorted by name; null where an object lacks one |
//! | any other mixture | text; lists and objects are JSON in it |
//!
//! Invariant: a type has at most [`MAX_DEPTH`] levels and [`MAX_FIELDS`] fields. What exceeds them is kept as JSON text.

use super::columns::bug;
use crate::Result;
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, ListArray, NullArray, StringArray,
    StructArray, new_null_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields, Float64Type, Int64Type};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Levels of lists and objects in a column: COCO's segmentations have four.
const MAX_DEPTH: usize = 16;
/// Fields of the structs of one column, all levels together: objects whose keys are ids would make one each.
const MAX_FIELDS: usize = 256;

const MIXED: &str = "some of its lists or objects are next to values of another kind";
const DEEP: &str = "its lists and objects are nested more than 16 levels deep";
const WIDE: &str = "its objects have more than 256 different keys";

/// Why lists or objects of a column are kept as text; the first reason found.
pub(super) type Flattened = Option<&'static str>;

/// The type that holds both.
pub(super) fn unify(a: &DataType, b: &DataType) -> DataType {
    merge(a, b, &mut None)
}

/// The type that holds both; `why` is set where lists or objects become text.
pub(super) fn merge(a: &DataType, b: &DataType, why: &mut Flattened) -> DataType {
    match (a, b) {
        (a, b) if a == b => a.clone(),
        (DataType::Null, other) | (other, DataType::Null) => other.clone(),
        (DataType::Int64, DataType::Float64) | (DataType::Float64, DataType::Int64) => DataType::Float64,
        (DataType::List(a), DataType::List(b)) => list_of(merge(a.data_type(), b.data_type(), why)),
        (DataType::Struct(a), DataType::Struct(b)) => {
            let kinds = |fields: &Fields| {
                let kind = |f: &Arc<Field>| (f.name().clone(), f.data_type().clone());
                fields.iter().map(kind).collect::<BTreeMap<_, _>>()
            };
            let mut all = kinds(a);
            for (name, kind) in kinds(b) {
                let known = all.entry(name).or_insert(DataType::Null);
                *known = merge(known, &kind, why);
            }
            struct_of(all, why)
        }
        (a, b) => {
            if a.is_nested() || b.is_nested() {
                why.get_or_insert(MIXED);
            }
            DataType::Utf8
        }
    }
}

fn list_of(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, true)))
}

/// Text where the fields are too many.
fn struct_of(kinds: BTreeMap<String, DataType>, why: &mut Flattened) -> DataType {
    if kinds.values().map(|kind| 1 + fields_of(kind)).sum::<usize>() > MAX_FIELDS {
        why.get_or_insert(WIDE);
        return DataType::Utf8;
    }
    DataType::Struct(kinds.into_iter().map(|(name, kind)| Field::new(name, kind, true)).collect())
}

/// The fields of a type's structs, all levels together.
pub(super) fn fields_of(kind: &DataType) -> usize {
    match kind {
        DataType::List(item) => fields_of(item.data_type()),
        DataType::Struct(fields) => fields.iter().map(|field| 1 + fields_of(field.data_type())).sum(),
        _ => 0,
    }
}

fn kind_of(value: &Value, depth: usize, why: &mut Flattened) -> DataType {
    match value {
        Value::Null => DataType::Null,
        Value::Bool(_) => DataType::Boolean,
        Value::Number(number) if number.as_i64().is_some() => DataType::Int64,
        Value::Number(_) => DataType::Float64,
        Value::String(_) => DataType::Utf8,
        Value::Array(_) | Value::Object(_) if depth == MAX_DEPTH => {
            why.get_or_insert(DEEP);
            DataType::Utf8
        }
        Value::Array(items) => list_of(items.iter().fold(DataType::Null, |kind, item| {
            let item = kind_of(item, depth + 1, why);
            merge(&kind, &item, why)
        })),
        Value::Object(object) => {
            let kinds = object.iter().map(|(key, value)| (key.clone(), kind_of(value, depth + 1, why)));
            let kinds = kinds.collect();
            struct_of(kinds, why)
        }
    }
}

/// The type as a catalog has it: what is null everywhere, or an object without keys, is text, so that a filter may still
/// name it.
pub(super) fn settled(kind: DataType) -> DataType {
    match kind {
        DataType::Null => DataType::Utf8,
        DataType::List(item) => list_of(settled(item.data_type().clone())),
        DataType::Struct(fields) if fields.is_empty() => DataType::Utf8,
        DataType::Struct(fields) => {
            let settle = |f: &Arc<Field>| f.as_ref().clone().with_data_type(settled(f.data_type().clone()));
            DataType::Struct(fields.iter().map(settle).collect())
        }
        other => other,
    }
}

/// One tar's values as an array of the least type that holds them, and why it is text although it has lists or objects.
pub(super) fn array_of(values: &[Value]) -> Result<(ArrayRef, Flattened)> {
    let mut why = None;
    let kind = values.iter().fold(DataType::Null, |kind, value| {
        let value = kind_of(value, 0, &mut why);
        merge(&kind, &value, &mut why)
    });
    let values: Vec<Option<&Value>> = values.iter().map(Some).collect();
    Ok((build(&kind, &values)?, why))
}

/// The values as an array of `kind`; null where one is missing or null.
fn build(kind: &DataType, values: &[Option<&Value>]) -> Result<ArrayRef> {
    Ok(match kind {
        DataType::Null => Arc::new(NullArray::new(values.len())),
        DataType::Boolean => {
            Arc::new(values.iter().map(|v| v.and_then(Value::as_bool)).collect::<BooleanArray>())
        }
        DataType::Int64 => Arc::new(values.iter().map(|v| v.and_then(Value::as_i64)).collect::<Int64Array>()),
        DataType::Float64 => {
            Arc::new(values.iter().map(|v| v.and_then(Value::as_f64)).collect::<Float64Array>())
        }
        DataType::List(item) => {
            let lists: Vec<Option<&Vec<Value>>> =
                values.iter().map(|v| v.and_then(Value::as_array)).collect();
            let items: Vec<Option<&Value>> = lists.iter().flatten().copied().flatten().map(Some).collect();
            let lengths = OffsetBuffer::from_lengths(lists.iter().map(|list| list.map_or(0, Vec::len)));
            let nulls = lists.iter().map(Option::is_some).collect::<NullBuffer>();
            let items = build(item.data_type(), &items)?;
            Arc::new(ListArray::try_new(item.clone(), lengths, items, Some(nulls)).map_err(bug)?)
        }
        DataType::Struct(fields) => {
            let objects: Vec<Option<&Map<String, Value>>> =
                values.iter().map(|v| v.and_then(Value::as_object)).collect();
            let column = |field: &Arc<Field>| {
                let values = objects.iter().map(|object| object.and_then(|o| o.get(field.name())));
                build(field.data_type(), &values.collect::<Vec<_>>())
            };
            let columns = fields.iter().map(column).collect::<Result<Vec<_>>>()?;
            let nulls = objects.iter().map(Option::is_some).collect::<NullBuffer>();
            structs(fields, columns, Some(nulls), values.len())?
        }
        _ => Arc::new(values.iter().map(|v| v.and_then(text)).collect::<StringArray>()),
    })
}

fn structs(
    fields: &Fields,
    columns: Vec<ArrayRef>,
    nulls: Option<NullBuffer>,
    rows: usize,
) -> Result<ArrayRef> {
    Ok(Arc::new(StructArray::try_new_with_length(fields.clone(), columns, nulls, rows).map_err(bug)?))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

/// Does it hold numbers alone, be it as text?
pub(super) fn is_numbers(array: &ArrayRef) -> bool {
    match array.data_type() {
        DataType::Utf8 => {
            let mut texts = array.as_string::<i32>().iter().flatten();
            texts.all(|t| t.trim().parse::<f64>().is_ok_and(f64::is_finite))
        }
        kind => matches!(kind, DataType::Null | DataType::Int64 | DataType::Float64),
    }
}

/// A tar's column as the data set's type, or a part's as that of its mix; `None` if the column does not exist.
pub(crate) fn widen(array: Option<&ArrayRef>, kind: &DataType, rows: usize) -> Result<ArrayRef> {
    let Some(array) = array else { return Ok(new_null_array(kind, rows)) };
    Ok(match (array.data_type(), kind) {
        (own, kind) if own == kind => array.clone(),
        (DataType::Null, kind) => new_null_array(kind, rows),
        (DataType::List(_), DataType::List(item)) => {
            let lists = array.as_list::<i32>();
            let items = widen(Some(lists.values()), item.data_type(), lists.values().len())?;
            let (offsets, nulls) = (lists.offsets().clone(), lists.nulls().cloned());
            Arc::new(ListArray::try_new(item.clone(), offsets, items, nulls).map_err(bug)?)
        }
        (DataType::Struct(_), DataType::Struct(fields)) => {
            let own = array.as_struct();
            let column = |f: &Arc<Field>| widen(own.column_by_name(f.name()), f.data_type(), array.len());
            let columns = fields.iter().map(column).collect::<Result<Vec<_>>>()?;
            structs(fields, columns, own.nulls().cloned(), array.len())?
        }
        (own, DataType::Utf8) if own.is_nested() => {
            Arc::new((0..array.len()).map(|row| text(&value_at(array, row))).collect::<StringArray>())
        }
        _ => cast(array, kind).map_err(bug)?,
    })
}

/// The JSON value in a row of an array that [`build`] made; keys whose value is null are left out.
fn value_at(array: &ArrayRef, row: usize) -> Value {
    if array.is_null(row) {
        return Value::Null;
    }
    match array.data_type() {
        DataType::Boolean => array.as_boolean().value(row).into(),
        DataType::Int64 => array.as_primitive::<Int64Type>().value(row).into(),
        DataType::Float64 => array.as_primitive::<Float64Type>().value(row).into(),
        DataType::Utf8 => array.as_string::<i32>().value(row).into(),
        DataType::List(_) => {
            let items = array.as_list::<i32>().value(row);
            (0..items.len()).map(|item| value_at(&items, item)).collect()
        }
        DataType::Struct(fields) => {
            let columns = fields.iter().zip(array.as_struct().columns());
            let values = columns.map(|(field, column)| (field.name().clone(), value_at(column, row)));
            Value::Object(values.filter(|(_, value)| !value.is_null()).collect())
        }
        _ => Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn learnt(values: &[Value]) -> (String, Flattened) {
        let (array, why) = array_of(values).unwrap();
        assert_eq!(array.len(), values.len());
        (array.data_type().to_string(), why)
    }

    #[test]
    fn mixtures_become_the_least_type_that_holds_them() {
        let array = |v: &[Value]| array_of(v).unwrap().0.data_type().clone();
        assert_eq!(array(&[json!(1), json!(null)]), DataType::Int64);
        assert_eq!(array(&[json!(1), json!(0.5)]), DataType::Float64);
        assert_eq!(array(&[json!(true), json!(1)]), DataType::Utf8);
        assert_eq!(array(&[json!(null)]), DataType::Null);
        let widened = widen(Some(&array_of(&[json!(7)]).unwrap().0), &DataType::Utf8, 1).unwrap();
        assert_eq!(widened.as_string::<i32>().value(0), "7");
    }

    #[test]
    fn lists_and_objects_keep_their_values() {
        let values = [
            json!([{"box": [1, 2.5], "label": "cat"}, {"label": "dog", "crowd": true}]),
            json!(null),
            json!([]),
            json!([null, {"box": []}]),
        ];
        let (array, why) = array_of(&values).unwrap();
        assert_eq!(why, None);
        assert!(array.is_null(1) && array.is_valid(2));
        assert_eq!(
            value_at(&array, 0),
            json!([{"box": [1.0, 2.5], "label": "cat"}, {"label": "dog", "crowd": true}])
        );
        assert_eq!(value_at(&array, 2), json!([]));
        assert_eq!(value_at(&array, 3), json!([null, {"box": []}]));
    }

    #[test]
    fn tars_of_other_types_are_widened() {
        let (one, _) = array_of(&[json!({"a": [1], "b": {"x": true}})]).unwrap();
        let (two, _) = array_of(&[json!({"a": [0.5], "c": null, "b": 7, "d": {}})]).unwrap();
        let mut why = None;
        let kind = settled(merge(one.data_type(), two.data_type(), &mut why));
        assert_eq!(why, Some(MIXED), "an object and a number in b");
        let [one, two] = [&one, &two].map(|array| widen(Some(array), &kind, 1).unwrap());
        assert_eq!((one.data_type(), two.data_type()), (&kind, &kind));
        assert_eq!(value_at(&one, 0), json!({"a": [1.0], "b": "{\"x\":true}"}));
        assert_eq!(value_at(&two, 0), json!({"a": [0.5], "b": "7", "d": "{}"}));
    }

    #[test]
    fn what_exceeds_the_bounds_is_text() {
        let mut deep = json!(1);
        (0..=MAX_DEPTH).for_each(|_| deep = json!([deep]));
        assert_eq!(learnt(&[deep]).1, Some(DEEP));
        let wide =
            |from: usize| Value::Object((from..from + 200).map(|i| (i.to_string(), json!(i))).collect());
        assert_eq!(learnt(&[wide(0)]).1, None);
        assert_eq!(learnt(&[wide(0), wide(100)]), ("Utf8".to_owned(), Some(WIDE)));
        assert_eq!(learnt(&[json!({"ids": wide(0)}), json!({"ids": wide(100)})]).1, Some(WIDE));
        let (text, _) = array_of(&[json!({"a": 1}), json!([1])]).unwrap();
        assert_eq!(text.as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["{\"a\":1}", "[1]"]);
    }
}
