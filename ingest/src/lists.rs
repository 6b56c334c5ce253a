//! Lists of numbers in blocks: boxes, keypoints, and the values along boxes.

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Float32Type, Float64Type, Int64Type};
use arrow::record_batch::RecordBatch;
use feedstock_ops::{DType, NumberList, RaggedRow};

/// The numbers of one row's list.
#[derive(Debug, PartialEq)]
pub(crate) struct Numbers {
    values: Vec<f64>,
    each: Option<usize>,
}

impl Numbers {
    pub(crate) fn list(&self) -> NumberList<'_> {
        NumberList { values: &self.values, each: self.each }
    }
}

/// Returns the type of a list's items.
pub(crate) fn item(data_type: &DataType) -> Option<&DataType> {
    match data_type {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            Some(item.data_type())
        }
        _ => None,
    }
}

/// Returns whether values of this type are lists of numbers, or lists of such lists.
pub(crate) fn is_list_of_numbers(data_type: &DataType) -> bool {
    let Some(item_type) = item(data_type) else { return false };
    item_type.is_numeric() || item(item_type).is_some_and(DataType::is_numeric)
}

/// Returns the tensor type of the items of a flat list: int64 of whole numbers, float32 of others, uint8 of flags.
pub(crate) fn item_dtype(data_type: &DataType) -> Option<DType> {
    match item(data_type)? {
        DataType::Boolean => Some(DType::U8),
        item if item.is_integer() => Some(DType::I64),
        item if item.is_floating() => Some(DType::F32),
        _ => None,
    }
}

/// Returns the list in one row of a column.
///
/// # Errors
/// What is wrong with it: it is null.
pub(crate) fn list_of(array: &ArrayRef, row: usize) -> Result<ArrayRef, String> {
    if array.is_null(row) {
        return Err("the list is null".to_owned());
    }
    match array.data_type() {
        DataType::List(_) => Ok(array.as_list::<i32>().value(row)),
        DataType::LargeList(_) => Ok(array.as_list::<i64>().value(row)),
        DataType::FixedSizeList(..) => Ok(array.as_fixed_size_list().value(row)),
        other => Err(format!("the block holds {other}, and not lists")),
    }
}

fn column<'a>(rows: &'a RecordBatch, name: &str) -> Result<&'a ArrayRef, String> {
    rows.column_by_name(name).ok_or_else(|| "the block lacks the column".to_owned())
}

/// Returns `items` as `to`, none of which may be null.
fn whole(items: &ArrayRef, to: &DataType) -> Result<ArrayRef, String> {
    let values = cast(items, to).map_err(|error| format!("the list cannot be read: {error}"))?;
    match (0..values.len()).find(|index| values.is_null(*index)) {
        None => Ok(values),
        Some(index) if items.is_null(index) => Err(format!("item {index} of the list is null")),
        Some(index) => Err(format!("item {index} of the list does not fit {to}")),
    }
}

/// Returns the numbers in one row of a column of lists.
///
/// # Errors
/// What is wrong with the list: it is null, has nulls, or lists of different lengths.
pub(crate) fn numbers(rows: &RecordBatch, name: &str, row: usize) -> Result<Numbers, String> {
    let items = list_of(column(rows, name)?, row)?;
    if item(items.data_type()).is_none() {
        let values = whole(&items, &DataType::Float64)?;
        return Ok(Numbers { values: values.as_primitive::<Float64Type>().values().to_vec(), each: None });
    }
    let (mut values, mut each) = (Vec::new(), None);
    for index in 0..items.len() {
        let about = |problem| format!("item {index}: {problem}");
        let inner = whole(&list_of(&items, index).map_err(about)?, &DataType::Float64).map_err(about)?;
        let length = *each.get_or_insert(inner.len());
        if inner.len() != length {
            let found = inner.len();
            let numbers = if found == 1 { "number" } else { "numbers" };
            return Err(format!("item {index} has {found} {numbers}, and item 0 has {length}"));
        }
        values.extend_from_slice(inner.as_primitive::<Float64Type>().values());
    }
    Ok(Numbers { values, each })
}

/// Writes the items at `kept` of the list in one row, whose type becomes `dtype`.
///
/// # Errors
/// What is wrong with the list: it is null, has nulls, or another number of items than there are `boxes`.
pub(crate) fn write_kept(
    (rows, name, row): (&RecordBatch, &str, usize),
    dtype: DType,
    (kept, boxes): (&[usize], usize),
    out: &mut RaggedRow,
) -> Result<(), String> {
    let items = list_of(column(rows, name)?, row)?;
    if items.len() != boxes {
        let items = if items.len() == 1 { "1 item".to_owned() } else { format!("{} items", items.len()) };
        let boxes = if boxes == 1 { "is 1 box".to_owned() } else { format!("are {boxes} boxes") };
        return Err(format!("the list has {items}, and there {boxes}"));
    }
    let indices = kept.iter().map(|index| *index as u64).collect::<arrow::array::UInt64Array>();
    let take = |to: &DataType| {
        let values = whole(&items, to)?;
        take(&values, &indices, None).map_err(|error| format!("the list cannot be read: {error}"))
    };
    match dtype {
        DType::I64 => {
            let values = take(&DataType::Int64)?;
            out.i64s(kept.len(), kept.len()).copy_from_slice(values.as_primitive::<Int64Type>().values());
        }
        DType::F32 => {
            let values = take(&DataType::Float32)?;
            out.f32s(kept.len(), kept.len()).copy_from_slice(values.as_primitive::<Float32Type>().values());
        }
        _ => {
            let values = take(&DataType::Boolean)?;
            let flags = out.raw(kept.len(), kept.len()).iter_mut().zip(values.as_boolean().values());
            flags.for_each(|(out, flag)| *out = u8::from(flag));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{
        BooleanArray, FixedSizeListArray, Float32Array, Float64Array, Int32Array, LargeListArray, ListArray,
    };
    use arrow::buffer::{NullBuffer, OffsetBuffer};
    use arrow::datatypes::Field;
    use std::sync::Arc;

    fn lists(lengths: &[usize], items: ArrayRef) -> ListArray {
        let field = Arc::new(Field::new("item", items.data_type().clone(), true));
        ListArray::new(field, OffsetBuffer::from_lengths(lengths.iter().copied()), items, None)
    }

    fn rows(column: ArrayRef) -> RecordBatch {
        RecordBatch::try_from_iter([("x", column)]).unwrap()
    }

    fn floats(count: u8) -> ArrayRef {
        Arc::new(Float32Array::from_iter_values((0..count).map(f32::from)))
    }

    #[test]
    fn lists_are_read_flat_and_nested() {
        let flat = rows(Arc::new(lists(&[4, 0, 8], floats(12))));
        let read = |rows: &RecordBatch, row| numbers(rows, "x", row).unwrap();
        assert_eq!(read(&flat, 0), Numbers { values: vec![0.0, 1.0, 2.0, 3.0], each: None });
        assert_eq!(read(&flat, 1), Numbers { values: vec![], each: None });

        let nested = rows(Arc::new(lists(&[1, 0, 2], Arc::new(lists(&[2, 2, 2], floats(6))))));
        assert_eq!(read(&nested, 0), Numbers { values: vec![0.0, 1.0], each: Some(2) });
        assert_eq!(read(&nested, 1), Numbers { values: vec![], each: None });
        assert_eq!(read(&nested, 2), Numbers { values: vec![2.0, 3.0, 4.0, 5.0], each: Some(2) });

        let whole = Arc::new(Int32Array::from_iter_values(0..8));
        let field = Arc::new(Field::new("item", DataType::Int32, true));
        let fixed = Arc::new(FixedSizeListArray::new(field, 4, whole, None));
        let field = Arc::new(Field::new("item", fixed.data_type().clone(), true));
        let large = LargeListArray::new(field, OffsetBuffer::from_lengths([0, 2]), fixed, None);
        assert!(is_list_of_numbers(large.data_type()));
        let large = read(&rows(Arc::new(large)), 1);
        assert_eq!((large.each, large.values.len(), large.values[7]), (Some(4), 8, 7.0));
    }

    #[test]
    fn what_is_wrong_with_a_list_is_named() {
        let refuse = |column: ArrayRef, row| numbers(&rows(column), "x", row).unwrap_err();
        let uneven = lists(&[2], Arc::new(lists(&[4, 3], floats(7))));
        assert_eq!(refuse(Arc::new(uneven), 0), "item 1 has 3 numbers, and item 0 has 4");
        let uneven = lists(&[2], Arc::new(lists(&[4, 1], floats(5))));
        assert_eq!(refuse(Arc::new(uneven), 0), "item 1 has 1 number, and item 0 has 4");
        let field = Arc::new(Field::new("item", DataType::Float32, true));
        let nulls = Some(NullBuffer::from(vec![true, false]));
        let null = ListArray::new(field, OffsetBuffer::from_lengths([1, 1]), floats(2), nulls);
        assert_eq!(refuse(Arc::new(null), 1), "the list is null");
        let holes = Arc::new(Float64Array::from(vec![Some(1.0), None]));
        assert_eq!(refuse(Arc::new(lists(&[2], holes.clone())), 0), "item 1 of the list is null");
        let nested = lists(&[1], Arc::new(lists(&[2], holes)));
        assert_eq!(refuse(Arc::new(nested), 0), "item 0: item 1 of the list is null");
    }

    #[test]
    fn kept_items_are_written_in_their_type() {
        let mut out = RaggedRow::new();
        let mut kept = |items: ArrayRef, dtype, boxes| {
            let length = items.len();
            let rows = rows(Arc::new(lists(&[length], items)));
            let written = write_kept((&rows, "x", 0), dtype, (&[0, 2], boxes), &mut out);
            written.map(|()| out.bytes().to_vec())
        };
        let whole = || -> ArrayRef { Arc::new(Int32Array::from(vec![5, 6, -7])) };
        let expected: Vec<u8> = [5_i64, -7].into_iter().flat_map(i64::to_ne_bytes).collect();
        assert_eq!(kept(whole(), DType::I64, 3).unwrap(), expected);
        let expected: Vec<u8> = [0_f32, 2.0].into_iter().flat_map(f32::to_ne_bytes).collect();
        assert_eq!(kept(floats(3), DType::F32, 3).unwrap(), expected);
        let flags = Arc::new(BooleanArray::from(vec![true, true, false]));
        assert_eq!(kept(flags, DType::U8, 3).unwrap(), [1, 0]);
        assert_eq!(kept(whole(), DType::I64, 4).unwrap_err(), "the list has 3 items, and there are 4 boxes");
        let one = Arc::new(Int32Array::from(vec![5]));
        assert_eq!(kept(one, DType::I64, 3).unwrap_err(), "the list has 1 item, and there are 3 boxes");
        assert_eq!(kept(whole(), DType::I64, 1).unwrap_err(), "the list has 3 items, and there is 1 box");
    }
}
