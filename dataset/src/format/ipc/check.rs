//! Compares what the message of a record batch claims with the bytes that exist, before arrow-ipc allocates by it.
//!
//! arrow-ipc 59 does not validate row counts, places of buffers and lengths of decompressed buffers. One flipped bit turns
//! 3 KB into 2³¹ rows, and ends in a panic or in an allocation of exabytes, which aborts the process.
//! Format: <https://arrow.apache.org/docs/format/Columnar.html>.

use arrow::datatypes::{DataType, Field, Fields, UnionMode};
use arrow_ipc::{CompressionType, FieldNode, MetadataVersion, RecordBatch};

/// The most bytes that a compressed one can become. LZ4: each byte lengthens a match by 255. Zstandard: a block of 128 KiB
/// of one value takes four bytes.
const LZ4_RATIO: u64 = 255;
const ZSTD_RATIO: u64 = (128 << 10) / 4;

/// Limit on a compressed batch once decompressed: 40 times what `datasets` writes.
const MAX_BATCH_BYTES: u64 = 4 << 30;

/// Limit on the rows of a batch: blocks count samples by `u32`. In addition, rows need an eighth of a byte each. Otherwise
/// a few bytes could claim any number of rows in columns that need none: nulls, empty structs, runs.
const MAX_ROWS: u64 = u32::MAX as u64;

/// Added to the ratio: bytes for the compressor's headers.
const SLACK_BYTES: u64 = 1 << 10;

/// Bytes before a compressed buffer: its length once decompressed, or [`STORED`].
pub(crate) const LENGTH_BYTES: u64 = 8;
const STORED: i64 = -1;

/// Checks the rows and buffers that a batch claims to have in a body of `body_bytes`. arrow validates what the buffers
/// hold.
pub(crate) fn check(
    fields: &Fields,
    batch: &RecordBatch<'_>,
    version: MetadataVersion,
    body_bytes: u64,
) -> Result<(), String> {
    let rows = length(batch.length())?;
    if rows > MAX_ROWS {
        return Err(format!("a batch of {rows} rows, over the limit of {MAX_ROWS}"));
    }
    let compression = batch.compression().map(|compression| compression.codec());
    let buffers = batch.buffers().unwrap_or_default();
    let buffers = buffers.iter().map(|buffer| {
        let (offset, bytes) = (length(buffer.offset())?, length(buffer.length())?);
        match offset.checked_add(bytes).is_some_and(|end| end <= body_bytes) {
            true => Ok((bytes, at_most(compression, bytes))),
            false => Err(format!("a buffer of {bytes} bytes at {offset} in a body of {body_bytes}")),
        }
    });
    let buffers = buffers.collect::<Result<Vec<(u64, u64)>, String>>()?;
    let stored = buffers.iter().map(|(bytes, _)| *bytes).fold(0, u64::saturating_add);
    if stored > body_bytes {
        return Err(format!("buffers of {stored} bytes in a body of {body_bytes}"));
    }
    let mut walk = Walk {
        nodes: batch.nodes().unwrap_or_default().iter(),
        buffers: buffers.into_iter().map(|(_, holds)| holds),
        needed: 0,
        has_union_validity: version < MetadataVersion::V5,
        variadic: batch.variadicBufferCounts().unwrap_or_default().iter().collect::<Vec<i64>>().into_iter(),
    };
    fields.iter().try_for_each(|field| walk.column(field, Some(rows)))?;
    if walk.needed < rows.div_ceil(8) {
        return Err(format!("{rows} rows of columns that need no bytes for them"));
    }
    Ok(())
}

/// Returns the length of a buffer of `bytes` bytes once decompressed, from its first bytes.
pub(crate) fn decompressed(codec: Option<CompressionType>, start: &[u8], bytes: u64) -> Result<u64, String> {
    let claimed = match (codec, start.first_chunk()) {
        (None, _) | (_, None) => bytes,
        (Some(_), Some(claimed)) => match i64::from_le_bytes(*claimed) {
            STORED => bytes - LENGTH_BYTES,
            claimed => length(claimed)?,
        },
    };
    match claimed > at_most(codec, bytes) {
        true => Err(format!("a compressed buffer of {bytes} bytes that claims to hold {claimed}")),
        false => Ok(claimed),
    }
}

/// Rejects a compressed batch of more than [`MAX_BATCH_BYTES`] once decompressed.
pub(crate) fn check_total(bytes: u64) -> Result<(), String> {
    match bytes > MAX_BATCH_BYTES {
        true => {
            Err(format!("a batch of {bytes} bytes when decompressed, over the limit of {MAX_BATCH_BYTES}"))
        }
        false => Ok(()),
    }
}

/// Checks the claimed lengths of compressed buffers in `body`, whose size was passed to [`check`]: each against its bytes
/// and the available memory, and their sum against [`MAX_BATCH_BYTES`]. Returns the sum.
pub(crate) fn check_lengths(batch: &RecordBatch<'_>, body: &[u8]) -> Result<u64, String> {
    let (mut total, mut largest) = (0u64, 0u64);
    let codec = batch.compression().map(|compression| compression.codec());
    for buffer in batch.buffers().unwrap_or_default() {
        let (offset, bytes) = (length(buffer.offset())?, length(buffer.length())?);
        let within = usize::try_from(offset).ok().zip(usize::try_from(offset.saturating_add(bytes)).ok());
        let within =
            within.and_then(|(start, end)| body.get(start..end)).ok_or("a buffer outside its batch")?;
        let claimed = decompressed(codec, within, bytes)?;
        total = total.saturating_add(claimed);
        largest = largest.max(claimed);
    }
    if codec.is_some() {
        check_total(total)?;
    }
    // arrow-ipc allocates it at once, and a failed allocation there aborts the process.
    let reserved = usize::try_from(largest).map(|largest| Vec::<u8>::new().try_reserve_exact(largest));
    match reserved {
        Ok(Ok(())) => Ok(total),
        _ => Err(format!("a buffer of {largest} bytes, more than memory holds")),
    }
}

/// Returns the largest decompressed size of a buffer of `bytes` bytes.
fn at_most(codec: Option<CompressionType>, bytes: u64) -> u64 {
    let ratio = match codec {
        None => return bytes,
        Some(CompressionType::LZ4_FRAME) => LZ4_RATIO,
        Some(_) => ZSTD_RATIO,
    };
    match bytes.checked_sub(LENGTH_BYTES) {
        None => 0,
        Some(bytes) => bytes.saturating_mul(ratio).saturating_add(SLACK_BYTES),
    }
}

pub(crate) fn length(claimed: i64) -> Result<u64, String> {
    u64::try_from(claimed).map_err(|_| format!("a length of {claimed}"))
}

/// The nodes and buffers of a batch, taken in the order in which its columns have them.
struct Walk<N, B, V> {
    nodes: N,
    /// The most bytes that each can hold.
    buffers: B,
    /// Before version 5 of the metadata, unions had a validity buffer.
    has_union_validity: bool,
    variadic: V,
    /// The least bytes that the buffers taken so far need, counting those that grow with the rows.
    needed: u64,
}

impl<'a, N, B, V> Walk<N, B, V>
where
    N: Iterator<Item = &'a FieldNode>,
    B: Iterator<Item = u64>,
    V: Iterator<Item = i64>,
{
    /// Takes the nodes and buffers of a column, which must have `rows` values if that is known.
    fn column(&mut self, field: &Field, rows: Option<u64>) -> Result<(), String> {
        let name = field.name();
        let node = self.nodes.next().ok_or_else(|| format!("no column {name}"))?;
        let (has, nulls) = (length(node.length())?, length(node.null_count())?);
        if rows.is_some_and(|rows| rows != has) || nulls > has {
            let rows = rows.map_or_else(String::new, |rows| format!("; {rows} are expected"));
            return Err(format!("column {name} claims {has} values, {nulls} of them null{rows}"));
        }
        self.values(field, has, nulls).map_err(|what| format!("column {name}: {what}"))
    }

    fn values(&mut self, field: &Field, rows: u64, nulls: u64) -> Result<(), String> {
        let kind = field.data_type();
        if !matches!(kind, DataType::Null | DataType::Union(..) | DataType::RunEndEncoded(..)) {
            self.buffer(if nulls > 0 { rows.div_ceil(8) } else { 0 })?; // validity
        }
        if matches!(kind, DataType::Union(..)) && self.has_union_validity {
            self.buffer(0)?;
        }
        match kind {
            DataType::Null => Ok(()),
            DataType::Boolean => self.buffer(rows.div_ceil(8)),
            DataType::Utf8 | DataType::Binary => self.offsets(rows, 4).and_then(|()| self.buffer(0)),
            DataType::LargeUtf8 | DataType::LargeBinary => {
                self.offsets(rows, 8).and_then(|()| self.buffer(0))
            }
            DataType::Utf8View | DataType::BinaryView => {
                self.buffer(times(rows, 16)?)?;
                let more = self.variadic.next().ok_or("a view without a number of buffers")?;
                (0..more).try_for_each(|_| self.buffer(0))
            }
            DataType::FixedSizeBinary(width) => self.buffer(times(rows, length((*width).into())?)?),
            DataType::List(item) | DataType::Map(item, _) => {
                self.offsets(rows, 4).and_then(|()| self.column(item, None))
            }
            DataType::LargeList(item) => self.offsets(rows, 8).and_then(|()| self.column(item, None)),
            DataType::ListView(item) | DataType::LargeListView(item) => {
                let width = if matches!(kind, DataType::ListView(_)) { 4 } else { 8 };
                self.buffer(times(rows, width)?)?;
                self.buffer(times(rows, width)?)?;
                self.column(item, None)
            }
            DataType::FixedSizeList(item, size) => {
                self.column(item, Some(times(rows, length((*size).into())?)?))
            }
            DataType::Struct(fields) => fields.iter().try_for_each(|field| self.column(field, Some(rows))),
            DataType::Union(fields, mode) => {
                self.buffer(rows)?;
                let sparse = *mode == UnionMode::Sparse;
                if !sparse {
                    self.buffer(times(rows, 4)?)?;
                }
                fields.iter().try_for_each(|(_, field)| self.column(field, sparse.then_some(rows)))
            }
            DataType::RunEndEncoded(ends, values) => {
                let needed = self.needed;
                self.column(ends, None).and_then(|()| self.column(values, None))?;
                self.needed = needed; // the bytes of runs do not bound their rows
                Ok(())
            }
            DataType::Dictionary(key, _) => self.fixed(key, rows),
            fixed => self.fixed(fixed, rows),
        }
    }

    fn fixed(&mut self, kind: &DataType, rows: u64) -> Result<(), String> {
        let width = kind.primitive_width().ok_or_else(|| format!("values of type {kind}"))?;
        self.buffer(times(rows, width as u64)?)
    }

    /// Takes offsets of `width` bytes each; a column of no rows may have none.
    fn offsets(&mut self, rows: u64, width: u64) -> Result<(), String> {
        match rows {
            0 => self.buffer(0),
            rows => self.buffer(times(rows.saturating_add(1), width)?),
        }
    }

    fn buffer(&mut self, needed: u64) -> Result<(), String> {
        match self.buffers.next() {
            None => Err("a buffer is missing".to_owned()),
            Some(holds) if holds < needed => {
                Err(format!("a buffer that holds {holds} bytes at most, where {needed} are needed"))
            }
            Some(_) => {
                self.needed = self.needed.saturating_add(needed);
                Ok(())
            }
        }
    }
}

fn times(rows: u64, width: u64) -> Result<u64, String> {
    rows.checked_mul(width).ok_or_else(|| format!("{rows} rows of {width} bytes"))
}
