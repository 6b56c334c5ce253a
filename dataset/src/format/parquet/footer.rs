//! The footer of a Parquet file and its offset indexes, checked before and after they are parsed.
//!
//! ```text
//! last 64 KiB ─▶ metadata (a second read where it is longer) ─▶ offset indexes, where there are any (one read)
//! ```

use super::{check, thrift_check};
use crate::{Error, ObjectRef, Result, Storage};
use bytes::Bytes;
use parquet::DecodeResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::{
    ColumnChunkMetaData, PageIndexPolicy, ParquetMetaData, ParquetMetaDataPushDecoder, ParquetMetaDataReader,
    RowGroupMetaData,
};
use std::ops::Range;

/// Bytes read from the end of a file: enough for a few hundred row groups in one request.
const TAIL_BYTES: u64 = 64 << 10;
/// `PAR1`, an empty footer, its length and `PAR1` again.
const MIN_FILE_BYTES: u64 = 12;
/// The metadata's length and `PAR1`.
const TRAILER_BYTES: u64 = 8;
const MAGIC: &[u8] = b"PAR1";
/// Limit on the bytes between the first and the last offset index that are not theirs: column indexes and bloom filters.
const MAX_GAP_BYTES: u64 = 64 << 20;

/// Reads the metadata of a file.
pub(super) async fn read(object: &ObjectRef, storage: &Storage) -> Result<ParquetMetaData> {
    if object.size < MIN_FILE_BYTES {
        return Err(Error::damage(format!(
            "{}: {} bytes are not a Parquet file (at least {MIN_FILE_BYTES}); it is empty or was cut off",
            object.uri, object.size
        )));
    }
    let bad = |what: &str| unreadable(object, ParquetError::General(what.to_owned()));
    let start = object.size.saturating_sub(TAIL_BYTES);
    let tail = Tail { start, bytes: storage.read(object, start..object.size).await? };
    let end = object.size - TRAILER_BYTES;
    let trailer = tail.bytes.slice(tail.bytes.len() - usize::try_from(TRAILER_BYTES).unwrap_or(0)..);
    if !trailer.ends_with(MAGIC) {
        return Err(bad("it does not end as one"));
    }
    let length = u64::from(u32::from_le_bytes([trailer[0], trailer[1], trailer[2], trailer[3]]));
    let metadata_start = end.checked_sub(length).ok_or_else(|| bad("its footer is longer than it"))?;
    let bytes = tail.read(metadata_start..end, object, storage).await?;
    thrift_check::footer(&bytes).map_err(|what| bad(&format!("its footer has {what}")))?;
    let metadata = ParquetMetaDataReader::decode_metadata(&bytes).map_err(|e| unreadable(object, e))?;
    check::footer(&metadata, object.size).map_err(|what| bad(&what))?;
    let metadata = with_offset_index(metadata, metadata_start, &tail, object, storage).await?;
    for (group, index) in metadata.row_groups().iter().zip(metadata.offset_index().into_iter().flatten()) {
        check::pages(group, index).map_err(|what| bad(&what))?;
    }
    Ok(metadata)
}

pub(super) fn unreadable(object: &ObjectRef, error: ParquetError) -> Error {
    Error::damage(format!(
        "{}: not a readable Parquet file ({} bytes): {error}; it may be truncated: copy it again",
        object.uri, object.size
    ))
    .with_source(error)
}

/// The end of a file.
struct Tail {
    start: u64,
    bytes: Bytes,
}

impl Tail {
    async fn read(&self, range: Range<u64>, object: &ObjectRef, storage: &Storage) -> Result<Bytes> {
        let at = |byte: u64| usize::try_from(byte.checked_sub(self.start)?).ok();
        match at(range.start).zip(at(range.end)) {
            Some((start, end)) => Ok(self.bytes.slice(start..end)),
            None => storage.read(object, range).await,
        }
    }
}

fn index_range(column: &ColumnChunkMetaData) -> Option<Range<u64>> {
    let start = u64::try_from(column.offset_index_offset()?).ok()?;
    let length = u64::try_from(column.offset_index_length()?).ok().filter(|length| *length > 0)?;
    Some(start..start.checked_add(length)?)
}

/// Adds the offset indexes, if every column has one before byte `end`.
async fn with_offset_index(
    metadata: ParquetMetaData,
    end: u64,
    tail: &Tail,
    object: &ObjectRef,
    storage: &Storage,
) -> Result<ParquetMetaData> {
    let columns = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
    let Some(ranges) = columns.map(index_range).collect::<Option<Vec<_>>>().filter(|all| !all.is_empty())
    else {
        return Ok(metadata);
    };
    let bad = |what: String| unreadable(object, ParquetError::General(what));
    let all = ranges.iter().map(|range| range.start).min().unwrap_or(0)
        ..ranges.iter().map(|range| range.end).max().unwrap_or(0);
    let own = ranges.iter().map(|range| range.end - range.start).fold(0, u64::saturating_add);
    if all.end > end || own > all.end - all.start || all.end - all.start - own > MAX_GAP_BYTES {
        return Err(bad(format!("its offset indexes claim {own} bytes in {all:?}")));
    }
    let bytes = tail.read(all.clone(), object, storage).await?;
    for range in &ranges {
        let at = |byte: u64| usize::try_from(byte - all.start).unwrap_or(usize::MAX);
        let index = bytes.get(at(range.start)..at(range.end)).unwrap_or_default();
        thrift_check::offset_index(index).map_err(|what| bad(format!("an offset index has {what}")))?;
    }
    let unfit = |e| unreadable(object, e);
    let mut decoder = ParquetMetaDataPushDecoder::try_new_with_metadata(object.size, metadata)
        .map_err(unfit)?
        .with_column_index_policy(PageIndexPolicy::Skip)
        .with_offset_index_policy(PageIndexPolicy::Required);
    decoder.push_range(all, bytes).map_err(unfit)?;
    match decoder.try_decode().map_err(unfit)? {
        DecodeResult::Data(metadata) => Ok(metadata),
        DecodeResult::NeedsData(_) | DecodeResult::Finished => {
            Err(bad("its offset indexes are not complete".into()))
        }
    }
}
