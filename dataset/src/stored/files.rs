//! A catalog's tables as Arrow IPC files. Those on a local disk are mapped, so that a machine's processes share their pages.
//!
//! ```text
//! local file ─▶ mapping ─▶ CRC-32, texts checked ─▶ pages released ─▶ arrays that are views of it
//! other store ─▶ one read ─▶ the same, in the process's memory
//! ```
//! 10⁷ files make tables of 1.4 GB. Mapped, a machine has them in memory once, and only as long as it has no better use for
//! the pages. The page tables of a process hold what it has read since it checked the file. Files are replaced by renaming,
//! never written in place, so a mapping never changes.

use crate::storage::is_on_a_local_disk;
use crate::{Error, ErrorKind, ObjectRef, Result, Storage};
use arrow::buffer::Buffer;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use arrow_ipc::convert::fb_to_schema;
use arrow_ipc::reader::{FileDecoder, read_footer_length};
use arrow_ipc::writer::FileWriter;
use arrow_ipc::{Block, root_as_footer, root_as_message};
use bytes::Bytes;
use memmap2::{Mmap, UncheckedAdvice};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Footer length and magic at a file's end.
const TRAILER_BYTES: usize = 10;
/// A mark and a length before a message.
const MESSAGE_PREFIX_BYTES: usize = 8;

/// Encodes a table as a file's bytes.
pub(crate) fn encode(schema: &SchemaRef, batches: &[RecordBatch]) -> Result<Bytes> {
    let write = || {
        let mut writer = FileWriter::try_new(Vec::new(), schema)?;
        for batch in batches {
            writer.write(batch)?;
        }
        writer.into_inner()
    };
    let bytes = write()
        .map_err(|e| Error::new(ErrorKind::Bug, "a catalog table cannot be written").with_source(e))?;
    Ok(Bytes::from(bytes))
}

/// A file's bytes.
pub(crate) struct Stored {
    pub(crate) bytes: Bytes,
    mapping: Option<Arc<Mmap>>,
}

impl Stored {
    /// Takes the pages of a mapped file out of the process: those that are used again are read from the file.
    pub(crate) fn release(&self) {
        if let Some(mapping) = &self.mapping {
            // SAFETY: The mapping is shared, read-only and of a file that does not change, so a page that is dropped comes
            // back with the same bytes: views of it see no change.
            let released = unsafe { mapping.unchecked_advise(UncheckedAdvice::DontNeed) };
            if let Err(error) = released {
                tracing::debug!(%error, "the pages of a catalog's table stay in the process");
            }
        }
    }
}

/// A mapping as the owner of its bytes.
struct Owner(Arc<Mmap>);

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Reads a file that should have `size` bytes.
pub(crate) async fn read(uri: &str, size: u64, storage: &Storage) -> Result<Stored, String> {
    // On a network file system a file may vanish under its mapping, which would end the process.
    if let Some(path) = storage.local_path(uri).filter(|path| is_on_a_local_disk(path)) {
        return map(&path, size).map_err(|e| format!("{uri}: {e}"));
    }
    let object = ObjectRef { uri: uri.to_owned(), size, etag: None };
    let bytes = storage.read(&object, 0..size).await.map_err(|e| e.to_string())?;
    Ok(Stored { bytes, mapping: None })
}

fn map(path: &Path, size: u64) -> std::io::Result<Stored> {
    let file = File::open(path)?;
    if file.metadata()?.len() != size {
        return Err(std::io::Error::other(format!("it should have {size} bytes")));
    }
    if size == 0 {
        return Ok(Stored { bytes: Bytes::new(), mapping: None });
    }
    // SAFETY: The file is one that feedstock wrote whole and renamed into place. It is replaced by renaming and removed by
    // unlinking, neither of which changes a mapped file.
    let mapping = Arc::new(unsafe { Mmap::map(&file)? });
    Ok(Stored { bytes: Bytes::from_owner(Owner(Arc::clone(&mapping))), mapping: Some(mapping) })
}

/// Refuses a compressed message. No catalog has one, and arrow would allocate the lengths that it states.
fn check_message(bytes: &[u8]) -> Result<(), String> {
    let metadata = bytes.get(MESSAGE_PREFIX_BYTES..).ok_or("a message is cut off")?;
    let message = root_as_message(metadata).map_err(|e| e.to_string())?;
    let dictionary = || message.header_as_dictionary_batch()?.data();
    match message.header_as_record_batch().or_else(dictionary).and_then(|batch| batch.compression()) {
        Some(_) => Err("a message is compressed".into()),
        None => Ok(()),
    }
}

/// Returns the table in a file's bytes: its arrays are views of them.
pub(crate) fn decode(bytes: Bytes) -> Result<(SchemaRef, Vec<RecordBatch>), String> {
    let told = |e: arrow::error::ArrowError| e.to_string();
    let cut = || "it is cut off".to_owned();
    let body = bytes.len().checked_sub(TRAILER_BYTES).ok_or_else(cut)?;
    let trailer = bytes[body..].try_into().map_err(|_| cut())?;
    let start = body.checked_sub(read_footer_length(trailer).map_err(told)?).ok_or_else(cut)?;
    let footer = root_as_footer(&bytes[start..body]).map_err(|e| e.to_string())?;
    let schema = Arc::new(fb_to_schema(footer.schema().ok_or("it has no schema")?));
    let mut decoder = FileDecoder::new(schema.clone(), footer.version());
    let buffer = Buffer::from(bytes.clone());
    let message = |block: &Block| {
        let (offset, head) = (usize::try_from(block.offset()), usize::try_from(block.metaDataLength()));
        let (Ok(offset), Ok(head), Ok(body)) = (offset, head, usize::try_from(block.bodyLength())) else {
            return Err("a message has a negative place".to_owned());
        };
        let end = offset.checked_add(head).and_then(|end| end.checked_add(body));
        if end.is_none_or(|end| end > buffer.len()) {
            return Err(cut());
        }
        Ok(buffer.slice_with_length(offset, head + body))
    };
    let messages = footer.dictionaries().into_iter().chain(footer.recordBatches());
    for block in messages.flatten() {
        check_message(&message(block)?)?;
    }
    for block in footer.dictionaries().into_iter().flatten() {
        decoder.read_dictionary(block, &message(block)?).map_err(told)?;
    }
    let mut batches = Vec::new();
    for block in footer.recordBatches().into_iter().flatten() {
        batches.extend(decoder.read_record_batch(block, &message(block)?).map_err(told)?);
    }
    Ok((schema, batches))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::UInt64Array;
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::IpcWriteOptions;

    #[test]
    fn a_compressed_table_is_not_read() {
        let numbers = Arc::new(UInt64Array::from_iter_values(0..1_000)) as _;
        let batch = RecordBatch::try_from_iter([("number", numbers)]).unwrap();
        assert!(decode(encode(&batch.schema(), std::slice::from_ref(&batch)).unwrap()).is_ok());
        let options =
            IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME)).unwrap();
        let mut writer = FileWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        let compressed = decode(writer.into_inner().unwrap().into());
        assert_eq!(compressed.unwrap_err(), "a message is compressed");
    }
}
