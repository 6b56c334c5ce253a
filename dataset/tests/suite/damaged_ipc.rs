//! Arrow IPC files with changed bytes: each is read, or rejected with the file's name. None panics, aborts, or has more rows
//! than its bytes can hold.

use crate::damaged_files::{all_are_whole_or_refused, samples_of};
use crate::format_common::*;
use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BooleanArray, DictionaryArray, FixedSizeBinaryArray, Int32Array,
    Int64Array, ListArray, NullArray, RunArray, StructArray,
};
use arrow::buffer::Buffer;
use arrow::datatypes::{Int32Type, Int64Type};
use arrow::record_batch::RecordBatch;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions, StreamWriter};
use feedstock_dataset::BlockId;
use std::sync::Arc;

const ROWS: u64 = 30;

/// Images, numbers, texts from a dictionary, and lists.
fn batch() -> RecordBatch {
    let plain = hf_batch(0..ROWS, 60);
    let words: DictionaryArray<Int32Type> =
        (0..ROWS).map(|i| Some(["a", "bb", "ccc"][i as usize % 3])).collect();
    let lists = (0..ROWS).map(|i| Some((0..i as i64 % 4).map(Some).collect::<Vec<_>>()));
    let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
    let schema = plain.schema();
    let columns = schema.fields().iter().map(|f| f.name().clone()).zip(plain.columns().to_vec());
    let more: [(String, ArrayRef); 2] = [("word".into(), Arc::new(words)), ("list".into(), Arc::new(lists))];
    RecordBatch::try_from_iter(columns.chain(more)).unwrap()
}

fn file(batch: &RecordBatch, compression: Option<CompressionType>) -> Vec<u8> {
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn stream(batch: &RecordBatch) -> Vec<u8> {
    let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
    writer.write(batch).unwrap();
    writer.into_inner().unwrap()
}

fn files() -> Vec<(&'static str, Vec<u8>)> {
    let (whole, plain) = (batch(), hf_batch(0..ROWS, 60));
    vec![
        ("plain.arrow", file(&plain, None)),
        ("stream.arrow", stream(&plain)),
        ("whole.arrow", file(&whole, None)),
        ("lz4.arrow", file(&whole, Some(CompressionType::LZ4_FRAME))),
        ("zstd.arrow", file(&whole, Some(CompressionType::ZSTD))),
    ]
}

/// Reads it and checks the result; returns true if the file was rejected.
async fn is_refused(name: &str, content: &[u8], what: &str) -> bool {
    let samples = samples_of(name, content, what).await;
    assert!(samples.is_none_or(|samples| samples <= 8 * content.len() as u64), "{name}, {what}: {samples:?}");
    samples.is_none()
}

#[tokio::test]
async fn whole_files_are_read() {
    for (name, content) in files() {
        assert!(!is_refused(name, &content, "as written").await);
    }
}

#[tokio::test]
async fn changed_bytes_are_refused_or_read() {
    for (name, content) in files() {
        all_are_whole_or_refused(name, &content, 0..content.len()).await;
    }
}

/// Replaces the bytes at every place where a length may be by one that no memory holds.
#[tokio::test]
async fn lengths_beyond_memory_are_refused() {
    for (name, content) in files().into_iter().filter(|(name, _)| ["lz4.arrow", "zstd.arrow"].contains(name))
    {
        let mut refused = 0;
        for at in (0..content.len() - 8).step_by(8) {
            for claim in [60_000_000_000, 1 << 46, i64::MAX] {
                let mut changed = content.clone();
                changed[at..at + 8].copy_from_slice(&claim.to_le_bytes());
                refused += usize::from(is_refused(name, &changed, &format!("{claim} at byte {at}")).await);
            }
        }
        assert!(refused > content.len() / 8, "{name}: {refused}");
    }
}

/// A buffer of megabytes may hold a lot when decompressed; what no memory holds is rejected all the same.
#[tokio::test]
async fn large_buffers_that_claim_too_much_are_refused() {
    let bytes = picture(1, 4 << 20); // does not compress, so the buffer is 4 MiB
    let value: ArrayRef = Arc::new(BinaryArray::from_iter_values([&bytes[..4 << 20], &bytes[..1000]]));
    let batch = RecordBatch::try_from_iter([("image", value)]).unwrap();
    for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
        let mut content = file(&batch, Some(codec));
        let length = ((4i64 << 20) + 1000).to_le_bytes();
        let stored = (-1i64).to_le_bytes();
        let is_place = |eight: &[u8]| eight == length || eight == stored;
        let places: Vec<usize> =
            (0..content.len() - 8).step_by(8).filter(|&at| is_place(&content[at..at + 8])).collect();
        for claim in [60_000_000_000, 100_000_000_000] {
            for &at in &places {
                content[at..at + 8].copy_from_slice(&i64::to_le_bytes(claim));
            }
            assert!(is_refused("large.arrow", &content, &format!("{claim} bytes")).await);
        }
    }
}

/// The row count of a batch, in its message and in the nodes of its columns.
#[tokio::test]
async fn rows_that_the_bytes_cannot_hold_are_refused() {
    for (name, content) in files() {
        let rows = (ROWS as i64).to_le_bytes();
        let places: Vec<usize> = (0..content.len() - 8).filter(|&at| content[at..at + 8] == rows).collect();
        assert!(places.len() > 3, "{name}: {places:?}");
        let mut changed = content.clone();
        for at in places {
            changed[at..at + 8].copy_from_slice(&(1i64 << 31).to_le_bytes());
        }
        assert!(is_refused(name, &changed, "all row counts").await);
    }
}

/// Makes a file of one record batch for each of `batches`.
fn file_of(batches: &[RecordBatch]) -> Vec<u8> {
    let mut writer = FileWriter::try_new(Vec::new(), &batches[0].schema()).unwrap();
    batches.iter().for_each(|batch| writer.write(batch).unwrap());
    writer.into_inner().unwrap()
}

/// Returns where the footer names each record batch: its offset, its message's bytes, four bytes of padding, its body's bytes.
fn footer_blocks(file: &[u8], batches: usize) -> Vec<usize> {
    let length = u32::from_le_bytes(file[file.len() - 10..file.len() - 6].try_into().unwrap()) as usize;
    let start = file.len() - 10 - length;
    let word = |at: usize| i64::from_le_bytes(file[at..at + 8].try_into().unwrap());
    let is_message = |at: usize| {
        let offset = usize::try_from(word(at)).unwrap_or(usize::MAX);
        let message = file.get(offset..).and_then(|rest| rest.get(..4));
        offset > 0 && message == Some(&[0xff; 4]) && word(at + 8) > 8 && word(at + 16) > 0
    };
    let blocks = |at: usize| (0..batches).map(move |i| at + 24 * i);
    let is_list = |at: &usize| {
        let count = u32::from_le_bytes(file[at - 4..*at].try_into().unwrap());
        count as usize == batches && blocks(*at).all(is_message)
    };
    let found: Vec<usize> = (start + 4..file.len() - 34).filter(is_list).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    blocks(found[0]).collect()
}

#[tokio::test]
async fn a_footer_that_names_bytes_twice_is_refused() {
    let rows = hf_batch(0..ROWS, 60);
    let mut file = file_of(&[rows.slice(0, 10), rows.slice(10, 10), rows.slice(20, 10)]);
    assert_eq!(samples_of("x.arrow", &file, "as written").await, Some(ROWS));
    let blocks = footer_blocks(&file, 3);
    file.copy_within(blocks[1]..blocks[1] + 24, blocks[2]);
    assert_eq!(samples_of("x.arrow", &file, "a batch twice").await, None);
}

#[tokio::test]
async fn a_footer_that_gives_a_message_another_length_is_refused() {
    let rows = hf_batch(0..ROWS, 60);
    let file = file_of(&[rows.slice(0, 10), rows.slice(10, 20)]);
    for by in [-8i32, 8] {
        let mut changed = file.clone();
        let at = footer_blocks(&file, 2)[0];
        let (meta, body) = (at + 8, at + 16);
        let add = |bytes: &mut [u8], by: i32| {
            let word = i32::from_le_bytes((&*bytes).try_into().unwrap());
            bytes.copy_from_slice(&(word + by).to_le_bytes());
        };
        add(&mut changed[meta..meta + 4], by);
        add(&mut changed[body..body + 4], -by); // the batch ends where it did
        assert_eq!(samples_of("x.arrow", &changed, "another length").await, None, "{by}");
    }
}

#[tokio::test]
async fn small_messages_of_a_stream_are_read_together() {
    const BATCHES: i64 = 3_000;
    let one = |i: i64| {
        let column: ArrayRef = Arc::new(Int64Array::from(vec![i]));
        RecordBatch::try_from_iter([("number", column)]).unwrap()
    };
    let mut writer = StreamWriter::try_new(Vec::new(), &one(0).schema()).unwrap();
    (0..BATCHES).for_each(|i| writer.write(&one(i)).unwrap());
    let stream = writer.into_inner().unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.arrow"), &stream).unwrap();
    let dataset = open(folder.path()).await.unwrap();
    let stats = dataset.storage().stats();
    assert!(stats.requests < 40, "{} requests", stats.requests);
    assert!(stats.read_bytes < 3 * stream.len() as u64, "{} bytes of {}", stats.read_bytes, stream.len());
    assert_eq!(ints(&all_rows(&dataset).await, "number"), (0..BATCHES).collect::<Vec<_>>());
}

/// A block reads its batch's dictionary, not those before it.
#[tokio::test]
async fn a_batch_reads_its_own_dictionary() {
    const BATCHES: usize = 50;
    let word = |i: usize| format!("{i:0>1000}");
    let one = |i: usize| {
        let words: DictionaryArray<Int32Type> = [word(i).as_str(), word(i).as_str()].into_iter().collect();
        RecordBatch::try_from_iter([("word", Arc::new(words) as ArrayRef)]).unwrap()
    };
    let mut writer = StreamWriter::try_new(Vec::new(), &one(0).schema()).unwrap();
    (0..BATCHES).for_each(|i| writer.write(&one(i)).unwrap());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("x.arrow"), writer.into_inner().unwrap()).unwrap();
    let dataset = open(folder.path()).await.unwrap();
    let before = dataset.storage().stats().read_bytes;
    let block = dataset.block_reader().fetch(BlockId(BATCHES as u32 - 1), u64::MAX).await.unwrap();
    let read = dataset.storage().stats().read_bytes - before;
    assert!(read < 4_000, "{read} bytes for one dictionary of 1,000");
    let words = block
        .rows
        .column(0)
        .as_dictionary::<Int32Type>()
        .downcast_dict::<arrow::array::StringArray>()
        .unwrap();
    assert!(words.into_iter().all(|found| found == Some(word(BATCHES - 1).as_str())));
    for (i, rows) in all_rows(&dataset).await.iter().enumerate() {
        let words = rows.column(0).as_dictionary::<Int32Type>();
        assert_eq!(words.values().as_string::<i32>().value(0), word(i));
    }
}

/// A batch of columns without bytes may state any number of rows.
#[tokio::test]
async fn rows_that_need_no_bytes_are_refused() {
    for rows in [1 << 31, u32::MAX as usize, 1 << 62] {
        let nulls: ArrayRef = Arc::new(NullArray::new(rows));
        let nothing: ArrayRef = Arc::new(StructArray::new_empty_fields(rows, None));
        let empty: ArrayRef = Arc::new(
            FixedSizeBinaryArray::try_new_with_len(0, Buffer::from_vec(Vec::<u8>::new()), None, rows)
                .unwrap(),
        );
        for column in [nulls, nothing, empty] {
            let what = format!("{rows} of {}", column.data_type());
            let file = file_of(&[RecordBatch::try_from_iter([("nothing", column)]).unwrap()]);
            assert_eq!(samples_of("x.arrow", &file, &what).await, None, "{what}");
        }
    }
    let nulls: ArrayRef = Arc::new(NullArray::new(90));
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true; 90]));
    let file = file_of(&[RecordBatch::try_from_iter([("nulls", nulls), ("flag", flags)]).unwrap()]);
    assert_eq!(samples_of("x.arrow", &file, "nulls next to bits").await, Some(90));
}

/// The bytes of runs do not bound their rows; those of other columns do.
#[tokio::test]
async fn runs_have_the_rows_of_other_columns() {
    let runs = |rows| {
        let runs = RunArray::<Int32Type>::try_new(&Int32Array::from(vec![rows]), &Int64Array::from(vec![7]));
        Arc::new(runs.unwrap()) as ArrayRef
    };
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true; 90]));
    let file = file_of(&[RecordBatch::try_from_iter([("runs", runs(90)), ("flag", flags)]).unwrap()]);
    assert_eq!(samples_of("x.arrow", &file, "next to bits").await, Some(90));
    let file = file_of(&[RecordBatch::try_from_iter([("runs", runs(i32::MAX))]).unwrap()]);
    assert_eq!(samples_of("x.arrow", &file, "alone").await, None);
}
