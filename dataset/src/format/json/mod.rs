//! Columns whose type is inferred from their values: JSON members of tars.
//!
//! Each tar makes a typed column. The data set's type is the one that holds all of them:
//!
//! | values | type |
//! |---|---|
//! | whole numbers and fractions | float64 |
//! | lists | a list of the type that holds all items |
//! | objects | a struct of all keys, sorted by name; null where an object lacks one |
//! | any other mixture | text; lists and objects are JSON in it |
//!
//! Invariant: a column of lists or objects takes at most [`CELLS_PER_BYTE`] values per byte that was read for it. Above
//! that it is kept as JSON text, like what has too many levels or fields (`shape.rs`, `kind.rs`).

pub(super) mod kind;
mod shape;

use crate::Result;
use crate::catalog::columns::bug;
use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, ListArray, NullArray, StringArray,
    StructArray, new_null_array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields, Float64Type, Int64Type};
use kind::Flattened;
use serde_json::{Map, Value};
use shape::Shape;
use std::sync::Arc;

/// Values, nulls included, that columns of lists and objects may take per byte that cataloguing reads. Annotations take
/// about one value for 5 bytes; objects that each lack most keys take one for each key of all. At 8 bytes and 30 ns a
/// value, a MiB of JSON takes at most 64 MiB and 0.25 s.
const CELLS_PER_BYTE: u64 = 8;

const SPARSE: &str = "they would take over 8 values per byte read, most of them null";

/// The values that columns of lists and objects may still take.
pub(super) struct Cells {
    left: u64,
}

impl Cells {
    /// Returns the limit after reading `bytes`.
    pub(super) fn of(bytes: u64) -> Self {
        Self { left: bytes.saturating_mul(CELLS_PER_BYTE) }
    }

    /// Takes `cells` for a column of type `kind`; it becomes text if too few are left.
    pub(super) fn take(&mut self, kind: DataType, cells: u64, why: &mut Flattened) -> DataType {
        match self.left.checked_sub(cells) {
            _ if !kind.is_nested() => kind,
            Some(left) => {
                self.left = left;
                kind
            }
            None => {
                why.get_or_insert(SPARSE);
                DataType::Utf8
            }
        }
    }
}

/// Makes an array of one tar's values, each with its row, of the least type that holds them. Also returns why it is text
/// although it has lists or objects.
pub(super) fn array_of(
    rows: usize,
    values: &[(usize, Value)],
    cells: &mut Cells,
) -> Result<(ArrayRef, Flattened)> {
    let (mut shape, mut why) = (Shape::default(), None);
    values.iter().for_each(|(_, value)| shape.add(value, &mut why));
    let kind = cells.take(shape.kind(), shape.cells(rows as u64), &mut why);
    let mut dense = vec![None; rows];
    values.iter().for_each(|(row, value)| dense[*row] = Some(value));
    Ok((build(&kind, &dense)?, why))
}

/// Makes an array of `kind` from the values; null where one is missing or null.
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

/// Whether it holds only numbers, possibly as text.
pub(super) fn is_numbers(array: &ArrayRef) -> bool {
    match array.data_type() {
        DataType::Utf8 => {
            let mut texts = array.as_string::<i32>().iter().flatten();
            texts.all(|t| t.trim().parse::<f64>().is_ok_and(f64::is_finite))
        }
        kind => matches!(kind, DataType::Null | DataType::Int64 | DataType::Float64),
    }
}

/// Converts a tar's column to the data set's type, or a part's to that of its mix. `array` is `None` if the column does not
/// exist.
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

/// Returns the number of values, nulls included, of a column that [`widen`] makes, of all its levels and fields.
pub(super) fn cells_of(array: Option<&ArrayRef>, kind: &DataType, rows: usize) -> u64 {
    let below = match kind {
        DataType::List(item) => {
            let items = array.and_then(|array| array.as_list_opt::<i32>()).map(|list| list.values());
            cells_of(items, item.data_type(), items.map_or(0, |items| items.len()))
        }
        DataType::Struct(fields) => {
            let own = array.and_then(|array| array.as_struct_opt());
            let field = |f: &Arc<Field>| {
                cells_of(own.and_then(|own| own.column_by_name(f.name())), f.data_type(), rows)
            };
            fields.iter().map(field).fold(0, u64::saturating_add)
        }
        _ => 0,
    };
    below.saturating_add(rows as u64)
}

/// Returns the JSON value in a row of an array that [`build`] made; keys whose value is null are left out.
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
    use super::kind::{MIXED, WIDE, merge, settled};
    use super::shape::{DEEP, MAX_DEPTH};
    use super::*;
    use serde_json::json;

    fn array_of(values: &[Value]) -> Result<(ArrayRef, Flattened)> {
        let values: Vec<(usize, Value)> = values.iter().cloned().enumerate().collect();
        super::array_of(values.len(), &values, &mut Cells::of(1 << 20))
    }

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
    #[test]
    fn rows_without_a_value_are_null() {
        let values = [(1, json!("a")), (3, json!(null))];
        let (array, _) = super::array_of(5, &values, &mut Cells::of(0)).unwrap();
        assert_eq!(array.as_string::<i32>().iter().collect::<Vec<_>>(), [None, Some("a"), None, None, None]);
    }

    /// One object with many keys and many without any: a column for each key would be nulls.
    #[test]
    fn columns_of_nulls_are_text() {
        let keys = |n: u32| Value::Object((0..n).map(|key| (format!("k{key}"), json!(key))).collect());
        let sparse = |empty: usize| {
            let mut items = vec![keys(200)];
            items.resize(empty + 1, json!({}));
            [(0, Value::Array(items))]
        };
        let learnt = |values: &[(usize, Value)]| {
            let bytes = values.iter().map(|(_, value)| value.to_string().len() as u64).sum();
            let (array, why) = super::array_of(1, values, &mut Cells::of(bytes)).unwrap();
            let same = value_at(&array, 0);
            let is_kept = same == values[0].1 || text(&values[0].1).map(Value::from) == Some(same);
            (array.data_type().is_nested(), is_kept, why)
        };
        assert_eq!(learnt(&sparse(60)), (true, true, None), "12,262 values in 2,163 bytes");
        assert_eq!(learnt(&sparse(5_000)), (false, true, Some(SPARSE)));
        // The columns of a tar share what it may take.
        let (values, mut cells) = (sparse(60), Cells::of(2_163));
        let mut kinds = (0..2).map(|_| super::array_of(1, &values, &mut cells).unwrap().1);
        assert_eq!((kinds.next(), kinds.next()), (Some(None), Some(Some(SPARSE))));
    }

    #[test]
    fn a_widened_column_is_counted_as_it_is_made() {
        let (array, _) = array_of(&[json!([{"a": 1}, {"a": 2}]), json!([{}])]).unwrap();
        let (wide, _) = array_of(&[json!([{"a": 0.5, "b": [[1]], "c": {"d": true}}])]).unwrap();
        let kind = merge(array.data_type(), wide.data_type(), &mut None);
        // Rows, items; of each item a, b and none in it, c, d.
        assert_eq!(cells_of(Some(&array), &kind, 2), 2 + 3 + 3 * 4);
        assert_eq!(cells_of(None, &kind, 7), 7);
        assert_eq!(cells_of(Some(&widen(Some(&array), &kind, 2).unwrap()), &kind, 2), 2 + 3 + 3 * 4);
        let text = DataType::Utf8;
        assert_eq!(cells_of(Some(&array), &text, 2), 2);
    }
}
