//! Copies columns into separate memory, so that a block holds what the budget counts, within an eighth.
//!
//! As fetched, views point into whole pages or whole HTTP responses, so one row could hold megabytes. Blocks are large and
//! live long, and a general allocator keeps the holes that they leave. Over ten epochs, resident memory peaked 230–270 MiB
//! above budget and slots with blocks in its arenas, and 140–160 MiB with a separate mapping for each
//! (`cargo bench --profile dev --bench memory`). The copy costs about 10 µs for an image of 110 KB.
//!
//! Values that share bytes, such as those of a dictionary, keep sharing them: if the shared buffers are smaller than the
//! values, the buffers are copied.

use crate::recycled::{LEAST_BYTES, Recycled};
use crate::{Error, ErrorKind, Result};
use arrow::array::types::ByteViewType;
use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, ByteView, GenericByteViewArray, MutableArrayData, make_array,
    make_view,
};
use arrow::buffer::{Buffer, NullBuffer};
use arrow::datatypes::{BinaryViewType, DataType, StringViewType};
use arrow::error::ArrowError;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::Arc;

/// A view holds values of up to this length itself.
const INLINE_BYTES: usize = 12;

/// Copies every column of views into separate memory.
pub(crate) fn own_views(rows: &RecordBatch) -> Result<RecordBatch> {
    own(rows, |array| Ok(array.clone()))
}

/// Copies every column into separate memory: for columns that are slices of what was read.
pub(crate) fn own_all(rows: &RecordBatch) -> Result<RecordBatch> {
    own(rows, |array| {
        let data = array.to_data();
        let mut copy = MutableArrayData::new(vec![&data], false, data.len());
        copy.try_extend(0, 0, data.len()).map_err(bug)?;
        Ok(make_array(copy.freeze()))
    })
}

fn own(rows: &RecordBatch, plain: impl Fn(&ArrayRef) -> Result<ArrayRef>) -> Result<RecordBatch> {
    let own = |array: &ArrayRef| match array.data_type() {
        DataType::BinaryView => own_column::<BinaryViewType>(array.as_binary_view()),
        DataType::Utf8View => own_column::<StringViewType>(array.as_string_view()),
        kind if shares(kind) => own_nested(&plain(array)?),
        _ => plain(array),
    };
    let columns = rows.columns().iter().map(own).collect::<Result<Vec<_>>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    RecordBatch::try_new_with_options(rows.schema(), columns, &options).map_err(bug)
}

/// Whether arrays of this type hold views or dictionaries, whose bytes a copy of the array would share.
fn shares(kind: &DataType) -> bool {
    match kind {
        DataType::BinaryView | DataType::Utf8View | DataType::Dictionary(..) => true,
        DataType::List(item)
        | DataType::LargeList(item)
        | DataType::FixedSizeList(item, _)
        | DataType::Map(item, _) => shares(item.data_type()),
        DataType::Struct(fields) => fields.iter().any(|field| shares(field.data_type())),
        _ => false,
    }
}

/// Copies all buffers; a buffer that is used several times is copied once. Of views, only the bytes in use are copied: the
/// buffers of a part of a block are whole pages.
fn own_nested(array: &ArrayRef) -> Result<ArrayRef> {
    fn copy(data: &ArrayData, copies: &mut HashMap<(usize, usize), Buffer>) -> Result<ArrayData> {
        match data.data_type() {
            DataType::BinaryView => {
                let views = make_array(data.clone());
                return Ok(own_column::<BinaryViewType>(views.as_binary_view())?.to_data());
            }
            DataType::Utf8View => {
                let views = make_array(data.clone());
                return Ok(own_column::<StringViewType>(views.as_string_view())?.to_data());
            }
            _ => (),
        }
        let mut of = |buffer: &Buffer| {
            let key = (buffer.as_ptr() as usize, buffer.len());
            copies.entry(key).or_insert_with(|| Buffer::from_slice_ref(buffer.as_slice())).clone()
        };
        let buffers: Vec<Buffer> = data.buffers().iter().map(&mut of).collect();
        let nulls = data.nulls().map(|nulls| NullBuffer::from_iter(nulls.iter()));
        let children = data.child_data().iter().map(|child| copy(child, copies)).collect::<Result<_>>()?;
        let builder = data.clone().into_builder().buffers(buffers).child_data(children).nulls(nulls);
        builder.align_buffers(true).build().map_err(bug)
    }
    Ok(make_array(copy(&array.to_data(), &mut HashMap::new())?))
}

fn own_column<T: ByteViewType>(array: &GenericByteViewArray<T>) -> Result<ArrayRef> {
    let values = || array.iter().map(|value| value.map(AsRef::<[u8]>::as_ref).unwrap_or_default());
    let bytes: usize = values().map(<[u8]>::len).filter(|length| *length > INLINE_BYTES).sum();
    let buffers = Distinct::of(array.data_buffers());
    if bytes > buffers.bytes() {
        return own_shared(array, &buffers);
    }
    if u32::try_from(bytes).is_err() {
        return Ok(Arc::new(array.gc())); // into several buffers
    }
    // Not `gc`: the views of null rows may equal those of other rows, whose bytes it would copy once more.
    let (views, buffer) = if bytes < LEAST_BYTES {
        let mut memory = Vec::with_capacity(bytes);
        (views_of(values(), |_, value| memory.extend_from_slice(value)), Buffer::from_vec(memory))
    } else {
        let mut memory = recycled(bytes)?;
        let views = views_of(values(), |at, value| memory[at..at + value.len()].copy_from_slice(value));
        (views, buffer_of(memory))
    };
    let nulls = array.nulls().cloned();
    // SAFETY: each view has the bytes of a value of `array`, at the place in the buffer that they were copied to.
    let owned = unsafe { GenericByteViewArray::<T>::new_unchecked(views.into(), vec![buffer], nulls) };
    Ok(Arc::new(owned))
}

/// Returns the views of `values` in one buffer. Passes each value that its view does not hold to `copy`, with its offset
/// there.
fn views_of<'a>(values: impl Iterator<Item = &'a [u8]>, mut copy: impl FnMut(usize, &[u8])) -> Vec<u128> {
    let mut at = 0;
    let view = |value: &[u8]| {
        #[expect(clippy::cast_possible_truncation, reason = "the sum of all lengths fits u32")]
        let view = make_view(value, 0, at as u32);
        if value.len() > INLINE_BYTES {
            copy(at, value);
            at += value.len();
        }
        view
    };
    values.map(view).collect()
}

/// Copies an array; the values of the copy share bytes as those of `array` do.
fn own_shared<T: ByteViewType>(array: &GenericByteViewArray<T>, buffers: &Distinct<'_>) -> Result<ArrayRef> {
    let copies = buffers.buffers.iter().map(|buffer| match buffer.len() {
        0..LEAST_BYTES => Ok(Buffer::from_slice_ref(buffer.as_slice())),
        bytes => {
            let mut memory = recycled(bytes)?;
            memory.copy_from_slice(buffer.as_slice());
            Ok(buffer_of(memory))
        }
    });
    let copies = copies.collect::<Result<Vec<Buffer>>>()?;
    let views = array.views().iter().enumerate().map(|(row, &view)| match ByteView::from(view) {
        _ if array.is_null(row) => 0, // length 0
        view if view.length as usize <= INLINE_BYTES => view.as_u128(),
        view => {
            let buffer_index = buffers.index[view.buffer_index as usize];
            ByteView { buffer_index, ..view }.as_u128()
        }
    });
    let (views, nulls): (Vec<u128>, _) = (views.collect(), array.nulls().cloned());
    // SAFETY: each view is that of `array`, except for the number of its buffer, whose copy has the same bytes.
    let owned = unsafe { GenericByteViewArray::<T>::new_unchecked(views.into(), copies, nulls) };
    Ok(Arc::new(owned))
}

/// The buffers of an array of views, each once: a dictionary is listed again for every page that uses it.
struct Distinct<'a> {
    buffers: Vec<&'a Buffer>,
    /// For each of the array's buffers, its index in `buffers`.
    index: Vec<u32>,
}

impl<'a> Distinct<'a> {
    fn of(all: &'a [Buffer]) -> Self {
        let mut known: HashMap<(usize, usize), u32> = HashMap::new();
        let mut distinct = Self { buffers: Vec::new(), index: Vec::with_capacity(all.len()) };
        for buffer in all {
            let next = u32::try_from(known.len()).unwrap_or(u32::MAX); // views number buffers by u32
            let number = *known.entry((buffer.as_ptr() as usize, buffer.len())).or_insert(next);
            if number == next {
                distinct.buffers.push(buffer);
            }
            distinct.index.push(number);
        }
        distinct
    }

    fn bytes(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.len()).sum()
    }
}

fn recycled(bytes: usize) -> Result<Recycled> {
    Recycled::new(bytes).map_err(|e| {
        let message = format!("no memory for {bytes} bytes of a block; lower budget_bytes or block_bytes");
        Error::new(ErrorKind::Retryable, message).with_source(e)
    })
}

/// Returns a buffer that owns `memory`, which is not written any more.
fn buffer_of(memory: Recycled) -> Buffer {
    let bytes = memory.len();
    let memory = Arc::new(memory);
    #[expect(clippy::expect_used, reason = "a mapping of at least LEAST_BYTES has an address")]
    let start = NonNull::new(memory.as_ptr().cast_mut()).expect("a mapping has an address");
    // SAFETY: `bytes` initialised bytes at `start`, which no code writes any more and which live while Arrow owns the
    // mapping.
    unsafe { Buffer::from_custom_allocation(start, bytes, memory) }
}

fn bug(e: ArrowError) -> Error {
    Error::new(ErrorKind::Bug, format!("cannot copy a block's payload: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{BinaryViewArray, DictionaryArray, ListArray, StringArray, StringViewArray};
    use arrow::datatypes::{Field, Int32Type, Schema};

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
            let owned = own_views(&RecordBatch::try_new(schema, vec![Arc::new(array)]).unwrap()).unwrap();
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
        let owned = own_views(&rows).unwrap();
        assert_eq!(owned.column(0).as_binary_view().value(0), vec![10u8; 50_000]);
        assert_eq!(owned.column(0).as_binary_view().data_buffers()[0].len(), 30 * 50_000);
    }

    fn owned_of(array: impl Array + 'static, all: bool) -> ArrayRef {
        let schema = Arc::new(Schema::new(vec![Field::new("c", array.data_type().clone(), true)]));
        let rows = RecordBatch::try_new(schema, vec![Arc::new(array)]).unwrap();
        let owned = if all { own_all(&rows) } else { own_views(&rows) };
        owned.unwrap().column(0).clone()
    }

    /// A dictionary that holds a value once, as parquet returns it: its buffer is listed for each page.
    #[test]
    fn values_that_share_bytes_go_on_sharing_them() {
        for bytes in [100_000, LEAST_BYTES + 1] {
            let dictionary = Buffer::from(vec![b'x'; bytes]);
            let pages = vec![Buffer::from(b"a value not shared".to_vec()), dictionary.clone(), dictionary];
            let of = |value: &[u8], buffer| make_view(value, buffer, 0);
            let long = vec![b'x'; bytes];
            let mut views = vec![of(b"a value not shared", 0), of(b"short", 0)];
            views.extend((0..3500).map(|row| of(&long, 1 + row % 2)));
            let nulls = NullBuffer::from_iter((0..views.len()).map(|row| row != 5));
            let array = StringViewArray::try_new(views.into(), pages, Some(nulls)).unwrap();
            let owned = owned_of(array.clone(), false);
            let owned = owned.as_string_view();
            assert_eq!(owned, &array);
            let held: usize = owned.data_buffers().iter().map(Buffer::len).sum();
            assert_eq!(held, bytes + 18);
            assert!(owned.data_buffers().iter().all(|b| array.data_buffers().iter().all(|a| !a.ptr_eq(b))));
        }
    }

    #[test]
    fn a_slice_of_any_type_lets_go_of_what_it_was_cut_from() {
        let numbers = arrow::array::Int64Array::from_iter_values(0..100_000).slice(10, 3);
        let owned = owned_of(numbers.clone(), true);
        assert_eq!(owned.as_ref(), &numbers as &dyn Array);
        assert!(owned.get_buffer_memory_size() < 1000, "{}", owned.get_buffer_memory_size());
        let texts = StringArray::from_iter_values((0..10_000).map(|i| format!("text {i}"))).slice(10, 3);
        let owned = owned_of(texts.clone(), true);
        assert_eq!(owned.as_ref(), &texts as &dyn Array);
        assert!(owned.get_buffer_memory_size() < 1000, "{}", owned.get_buffer_memory_size());
    }

    #[test]
    fn dictionaries_and_nested_views_have_copies_of_their_bytes() {
        let names: DictionaryArray<Int32Type> = ["cat", "dog", "cat"].into_iter().collect();
        let long = "a text of more than twelve bytes";
        let texts = StringViewArray::from_iter_values([long, "b", long]);
        let item = Arc::new(Field::new("item", DataType::Utf8View, true));
        let offsets = arrow::buffer::OffsetBuffer::from_lengths([2, 0, 1]);
        let lists = ListArray::new(item, offsets, Arc::new(texts), None);
        let buffers = |array: &ArrayRef| {
            let data = array.to_data();
            let child = data.child_data()[0].clone();
            data.buffers().iter().chain(child.buffers()).cloned().collect::<Vec<Buffer>>()
        };
        for array in [Arc::new(names) as ArrayRef, Arc::new(lists)] {
            for all in [false, true] {
                let owned = owned_of(array.clone(), all);
                assert_eq!(&owned, &array);
                let (before, after) = (buffers(&array), buffers(&owned));
                assert!(
                    after.iter().all(|b| b.is_empty() || before.iter().all(|a| a.as_ptr() != b.as_ptr()))
                );
            }
        }
    }
}
