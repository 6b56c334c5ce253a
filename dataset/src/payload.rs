//! Payload columns in memory of their own: what a block holds is what a budget counts, but for an eighth at most.
//!
//! As fetched, views point into whole pages or whole HTTP answers, so one row could hold megabytes. Blocks live long
//! and are large, and a general allocator keeps their holes: over ten epochs, resident memory peaked 230–270 MiB over
//! budget and slots with blocks in its arenas, and 140 to 160 MiB with each in a mapping of its own
//! (`cargo bench --profile dev --bench memory`). The copy costs about 10 µs for a picture of 110 KB.

use crate::recycled::{LEAST_BYTES, Recycled};
use crate::{Error, ErrorKind, Result};
use arrow::array::{Array, ArrayRef, AsArray, BinaryViewArray, make_view};
use arrow::buffer::Buffer;
use arrow::datatypes::DataType;
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use std::ptr::NonNull;
use std::sync::Arc;

/// `rows` with every payload column copied into one buffer of its own.
pub(crate) fn own_payload(rows: &RecordBatch) -> Result<RecordBatch> {
    let own = |array: &ArrayRef| match array.data_type() {
        DataType::BinaryView => own_column(array.as_binary_view()),
        _ => Ok(array.clone()),
    };
    let columns = rows.columns().iter().map(own).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    RecordBatch::try_new_with_options(rows.schema(), columns, &options).map_err(bug)
}

fn own_column(array: &BinaryViewArray) -> Result<ArrayRef> {
    let bytes: usize = array.iter().flatten().map(<[u8]>::len).sum();
    if bytes < LEAST_BYTES || u32::try_from(bytes).is_err() {
        return Ok(Arc::new(array.gc()));
    }
    let mut memory = Recycled::new(bytes).map_err(|e| {
        let message = format!("no memory for {bytes} bytes of a block; lower budget_bytes or block_bytes");
        Error::new(ErrorKind::Retryable, message).with_source(e)
    })?;
    let (mut views, mut at) = (Vec::with_capacity(array.len()), 0);
    for value in array.iter().map(Option::unwrap_or_default) {
        memory[at..at + value.len()].copy_from_slice(value);
        #[expect(clippy::cast_possible_truncation, reason = "the sum of all lengths fits u32")]
        views.push(make_view(value, 0, at as u32));
        at += value.len();
    }
    let memory = Arc::new(memory); // read only from here on
    #[expect(clippy::expect_used, reason = "a mapping of at least LEAST_BYTES has an address")]
    let start = NonNull::new(memory.as_ptr().cast_mut()).expect("a mapping has an address");
    // SAFETY: `bytes` initialised bytes at `start`, which nobody writes any more and which live while Arrow owns the
    // mapping.
    let buffer = unsafe { Buffer::from_custom_allocation(start, bytes, memory) };
    let owned = BinaryViewArray::try_new(views.into(), vec![buffer], array.nulls().cloned()).map_err(bug)?;
    Ok(Arc::new(owned))
}

fn bug(e: ArrowError) -> Error {
    Error::new(ErrorKind::Bug, format!("cannot copy a block's payload: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::{Field, Schema};

    #[test]
    fn values_nulls_and_empties_survive_in_one_buffer() {
        let large = vec![7u8; LEAST_BYTES];
        for values in [
            vec![Some(&large[..]), None, Some(b""), Some(b"short"), Some(b"longer than a view holds")],
            vec![Some(b"small".as_slice()), None, Some(b""), Some(b"longer than a view holds")],
            vec![],
        ] {
            let array = BinaryViewArray::from_iter(values.clone());
            let schema = Arc::new(Schema::new(vec![Field::new("image", DataType::BinaryView, true)]));
            let owned = own_payload(&RecordBatch::try_new(schema, vec![Arc::new(array)]).unwrap()).unwrap();
            let owned = owned.column(0).as_binary_view();
            assert_eq!(owned.iter().collect::<Vec<_>>(), values);
            assert!(owned.data_buffers().len() <= 1);
        }
    }

    #[test]
    fn a_slice_lets_go_of_the_rest() {
        let array = BinaryViewArray::from_iter_values((0..100u8).map(|i| vec![i; 50_000]));
        let schema = Arc::new(Schema::new(vec![Field::new("image", DataType::BinaryView, true)]));
        let rows = RecordBatch::try_new(schema, vec![Arc::new(array)]).unwrap().slice(10, 30);
        let owned = own_payload(&rows).unwrap();
        assert_eq!(owned.column(0).as_binary_view().value(0), vec![10u8; 50_000]);
        assert_eq!(owned.column(0).as_binary_view().data_buffers()[0].len(), 30 * 50_000);
    }
}
