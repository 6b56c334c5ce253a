//! Counts the rows that begin in a data page of version 1, from its first bytes.
//!
//! The header of such a page states its values, and not its rows. Rows begin where the repetition level is 0. The levels are
//! the page's first values, compressed together with the rest of the page, so the page's first bytes are decompressed as far
//! as the levels reach: by 1 bit a value in one level of lists, and less where lists are longer than 8.
//!
//! Snappy and LZ4 pages are one block, of which their libraries decompress all or nothing, so both are decoded here. Formats:
//! <https://github.com/google/snappy/blob/main/format_description.txt>,
//! <https://github.com/lz4/lz4/blob/dev/doc/lz4_Block_format.md>,
//! <https://parquet.apache.org/docs/file-format/data-pages/encodings/#RLE>.

use super::thrift::Compact;
use flate2::read::MultiGzDecoder;
use parquet::basic::Compression;
use std::io::Read;

/// The length of the levels, as a page of version 1 states it in front of them.
const LENGTH_BYTES: usize = 4;
/// Limit on the bytes of a page's levels: 2²⁵ values of one level of lists. Pages that claim more are not decompressed.
const MAX_LEVEL_BYTES: usize = 4 << 20;

/// The most bytes of levels for a value: a run of one value, its length and a level of 16 bits.
const RUN_BYTES: u64 = 3;

/// The rows of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageRows {
    /// Rows that begin in the page.
    pub(super) begun: u64,
    /// Whether it begins within a row.
    pub(super) continues: bool,
}

/// What some of a page's first bytes show.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Counted {
    Rows(PageRows),
    /// More of the page's bytes are needed.
    Short,
    /// The levels cannot be decoded.
    Unknown,
}

/// Whether pages of this compression can be decompressed in part.
pub(super) fn is_known(codec: Compression) -> bool {
    use Compression::{GZIP, LZ4_RAW, SNAPPY, UNCOMPRESSED, ZSTD};
    matches!(codec, UNCOMPRESSED | SNAPPY | GZIP(_) | ZSTD(_) | LZ4_RAW)
}

/// Counts the rows of a page of `values` levels, up to `max_level`, from its first bytes as they are stored.
pub(super) fn count(codec: Compression, stored: &[u8], values: u64, max_level: i16) -> Counted {
    let Some(start) = prefix(codec, stored, LENGTH_BYTES) else { return Counted::Unknown };
    let Ok(length) = <[u8; LENGTH_BYTES]>::try_from(start.as_slice()) else { return Counted::Short };
    let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
    let longest = values.saturating_mul(RUN_BYTES).saturating_add(RUN_BYTES);
    if length > MAX_LEVEL_BYTES || length as u64 > longest {
        return Counted::Unknown;
    }
    let most = LENGTH_BYTES + length;
    match prefix(codec, stored, most) {
        None => Counted::Unknown,
        Some(plain) if plain.len() < most => Counted::Short,
        Some(plain) => {
            rows(&plain[LENGTH_BYTES..], values, max_level).map_or(Counted::Unknown, Counted::Rows)
        }
    }
}

/// Counts the zeros among `values` levels in runs and packed bits.
fn rows(levels: &[u8], values: u64, max_level: i16) -> Option<PageRows> {
    let width = u16::BITS - max_level.unsigned_abs().leading_zeros();
    let mut rest = Compact { rest: levels };
    let (mut seen, mut begun, mut first) = (0u64, 0u64, None);
    while seen < values {
        let head = rest.varint().ok()?;
        let mut add = |level: u64, count: u64| {
            let count = count.min(values - seen);
            if count > 0 {
                first = first.or(Some(level));
                begun += if level == 0 { count } else { 0 };
                seen += count;
            }
        };
        if head & 1 == 0 {
            let mut level = 0;
            for byte in 0..width.div_ceil(8) {
                level |= u64::from(rest.byte().ok()?) << (8 * byte);
            }
            add(level, head >> 1);
            continue;
        }
        for _ in 0..head >> 1 {
            let mut bits = 0u128; // 8 levels of up to 16 bits
            for byte in 0..width {
                bits |= u128::from(rest.byte().ok()?) << (8 * byte);
            }
            let mask = (1u128 << width) - 1;
            (0..8).for_each(|i| add(u64::from(bits >> (i * width) & mask != 0), 1));
        }
    }
    Some(PageRows { begun, continues: first.is_some_and(|level| level != 0) })
}

/// Returns the first `most` bytes of a page, or fewer if `stored`, its first bytes, hold fewer; `None` if they are damaged.
fn prefix(codec: Compression, stored: &[u8], most: usize) -> Option<Vec<u8>> {
    let limit = u64::try_from(most).unwrap_or(u64::MAX);
    let read = |source: &mut dyn Read| {
        let mut plain = Vec::new();
        // An error at the end of `stored` leaves what was decompressed before it.
        let _cut_off = source.take(limit).read_to_end(&mut plain);
        plain
    };
    match codec {
        Compression::UNCOMPRESSED => Some(stored[..most.min(stored.len())].to_vec()),
        Compression::GZIP(_) => Some(read(&mut MultiGzDecoder::new(stored))),
        Compression::ZSTD(_) => Some(read(&mut zstd::stream::read::Decoder::with_buffer(stored).ok()?)),
        Compression::SNAPPY => Block { rest: stored, plain: Vec::new(), most }.snappy(),
        Compression::LZ4_RAW => Block { rest: stored, plain: Vec::new(), most }.lz4(),
        _ => None,
    }
}

/// The decompression of a block that may be cut off.
struct Block<'a> {
    rest: &'a [u8],
    plain: Vec<u8>,
    most: usize,
}

impl Block<'_> {
    fn snappy(mut self) -> Option<Vec<u8>> {
        while self.little_endian(1).is_some_and(|byte| byte & 0x80 != 0) {} // the length of the whole
        while self.plain.len() < self.most {
            let Some(tag) = self.little_endian(1) else { break };
            let long = tag >> 2;
            let step = match tag & 3 {
                0 if long < 60 => self.literal(Some(long + 1)),
                0 => {
                    let length = self.little_endian(long - 59).map(|length| length + 1);
                    self.literal(length)
                }
                1 => {
                    let offset = self.little_endian(1).map(|low| (tag >> 5) << 8 | low);
                    self.copy(offset, Some((long & 7) + 4))
                }
                kind => {
                    let offset = self.little_endian(if kind == 2 { 2 } else { 4 });
                    self.copy(offset, Some(long + 1))
                }
            };
            if !step? {
                break;
            }
        }
        self.plain.truncate(self.most);
        Some(self.plain)
    }

    fn lz4(mut self) -> Option<Vec<u8>> {
        while self.plain.len() < self.most {
            let Some(token) = self.little_endian(1) else { break };
            let literal = self.lz4_length(token >> 4);
            if !self.literal(literal)? || self.plain.len() >= self.most {
                break;
            }
            let offset = self.little_endian(2);
            let length = self.lz4_length(token & 15).map(|length| length + 4);
            if !self.copy(offset, length)? {
                break;
            }
        }
        self.plain.truncate(self.most);
        Some(self.plain)
    }

    /// Returns the length that 4 bits begin; `None` where the block was cut off.
    fn lz4_length(&mut self, bits: usize) -> Option<usize> {
        let mut length = bits;
        let mut goes_on = bits == 15;
        while goes_on {
            let more = self.little_endian(1)?;
            length = length.checked_add(more)?;
            goes_on = more == 255;
        }
        Some(length)
    }

    /// Takes an integer of up to 4 bytes; `None` where the block was cut off.
    fn little_endian(&mut self, bytes: usize) -> Option<usize> {
        let (taken, rest) = self.rest.split_at_checked(bytes)?;
        self.rest = rest;
        Some(taken.iter().rev().fold(0, |value, byte| value << 8 | usize::from(*byte)))
    }

    /// Appends stored bytes. Returns whether the block goes on; `None` if it is damaged.
    fn literal(&mut self, length: Option<usize>) -> Option<bool> {
        let Some(length) = length else { return Some(false) };
        let held = length.min(self.rest.len());
        self.plain.extend_from_slice(&self.rest[..held.min(self.most)]);
        self.rest = &self.rest[held..];
        Some(held == length)
    }

    /// Appends bytes from `offset` before the end. Returns whether the block goes on; `None` if it is damaged.
    fn copy(&mut self, offset: Option<usize>, length: Option<usize>) -> Option<bool> {
        let (Some(offset), Some(length)) = (offset, length) else { return Some(false) };
        let start = self.plain.len().checked_sub(offset).filter(|_| offset > 0)?;
        for at in start..start + length.min(self.most.saturating_sub(self.plain.len())) {
            self.plain.push(self.plain[at]);
        }
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::parquet::page_header;
    use arrow::array::{ArrayRef, Int32Array, ListArray};
    use arrow::buffer::OffsetBuffer;
    use arrow::datatypes::{DataType, Field};
    use arrow::record_batch::RecordBatch;
    use parquet::arrow::ArrowWriter;
    use parquet::file::metadata::ParquetMetaDataReader;
    use parquet::file::properties::WriterProperties;
    use proptest::prelude::*;
    use std::sync::Arc;

    fn codecs() -> [Compression; 5] {
        let (gzip, zstd) = (Compression::GZIP(Default::default()), Compression::ZSTD(Default::default()));
        [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::LZ4_RAW, gzip, zstd]
    }

    const fn page(begun: u64, continues: bool) -> Option<PageRows> {
        Some(PageRows { begun, continues })
    }

    #[test]
    fn rows_begin_where_the_level_is_0() {
        // a run of 3 zeros, a run of 4 ones, 8 packed levels
        let levels = [3 << 1, 0, 4 << 1, 1, 1 << 1 | 1, 0b1110_1110];
        assert_eq!(rows(&levels, 15, 1), page(5, false));
        assert_eq!(rows(&levels, 12, 1), page(5, false), "the last levels are padding");
        assert_eq!(rows(&levels[2..], 12, 1), page(2, true));
        assert_eq!(rows(&levels, 16, 1), None, "too few levels");
        // 2 bits a level: 0, 2, 1, 0, 2, 2, 1, 0
        assert_eq!(rows(&[3, 0b0001_1000, 0b0001_1010], 8, 2), page(3, false));
        assert_eq!(rows(&[5 << 1, 2], 5, 3), page(0, true));
        assert_eq!(rows(&[0xff; 9], 8, 1), None, "more groups than bytes");
    }

    /// A page of lists of up to 5 values, of which the first may compress, as each codec stores it.
    fn stored(codec: Compression, dictionary: bool) -> (Vec<u8>, u64) {
        let lengths = (0..3000usize).map(|i| i.wrapping_mul(i) % 6);
        let values = Int32Array::from_iter_values((0..7500).map(|i| if i < 5000 { i % 9 } else { i * i }));
        let offsets = OffsetBuffer::<i32>::from_lengths(lengths);
        let values = values.slice(0, offsets.last().map_or(0, |last| *last as usize));
        let item = Arc::new(Field::new_list_field(DataType::Int32, true));
        let lists: ArrayRef = Arc::new(ListArray::new(item, offsets, Arc::new(values), None));
        let batch = RecordBatch::try_from_iter([("list", lists)]).unwrap();
        let properties =
            WriterProperties::builder().set_compression(codec).set_dictionary_enabled(dictionary);
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties.build())).unwrap();
        writer.write(&batch).unwrap();
        let file = bytes::Bytes::from(writer.into_inner().unwrap());
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).unwrap();
        let start = metadata.row_group(0).column(0).data_page_offset() as usize;
        let header = page_header::parse(&file[start..]).unwrap();
        let body = start + header.bytes;
        (file[body..body + header.stored as usize].to_vec(), header.values)
    }

    #[test]
    fn the_first_bytes_of_a_page_are_enough() {
        for codec in codecs() {
            for dictionary in [false, true] {
                let (page, values) = stored(codec, dictionary);
                let whole = Counted::Rows(PageRows { begun: 3000, continues: false });
                let mut least = None;
                for held in 0..page.len() {
                    match count(codec, &page[..held], values, 1) {
                        Counted::Short => assert_eq!(least, None, "{codec}: {held} bytes"),
                        counted => {
                            assert_eq!(counted, whole, "{codec}: {held} bytes");
                            least = least.or(Some(held));
                        }
                    }
                }
                let least = least.unwrap_or(page.len());
                // Pages up to 128 KiB are one block of zstd. Pages with a dictionary are hardly more than levels.
                let is_long = !dictionary && !matches!(codec, Compression::ZSTD(_));
                assert!(!is_long || least < page.len() / 2, "{codec}: {least} of {} bytes", page.len());
            }
        }
    }

    #[test]
    fn levels_that_claim_too_much_are_not_decompressed() {
        let page = (MAX_LEVEL_BYTES as u32 + 1).to_le_bytes();
        assert_eq!(count(Compression::UNCOMPRESSED, &page, 1, 1), Counted::Unknown);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_counted(
            bytes in prop::collection::vec(any::<u8>(), 0..300), values in any::<u64>(), max_level in 1..i16::MAX,
        ) {
            for codec in codecs() {
                if let Counted::Rows(rows) = count(codec, &bytes, values, max_level) {
                    prop_assert!(rows.begun <= values);
                }
                prop_assert!(prefix(codec, &bytes, 1000).is_none_or(|plain| plain.len() <= 1000));
            }
        }

        #[test]
        fn changed_pages_are_refused_or_counted(
            at in 0..1000usize, byte in any::<u8>(), codec in prop::sample::select(codecs().to_vec()),
        ) {
            let (mut page, values) = stored(codec, false);
            page[at] = byte;
            if let Counted::Rows(rows) = count(codec, &page, values, 1) {
                prop_assert!(rows.begun <= values);
            }
        }
    }
}
