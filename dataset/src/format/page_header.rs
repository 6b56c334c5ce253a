//! The header of a Parquet page: its sizes and its number of values.
//!
//! parquet's page reader parses headers but does not hand out their sizes, and it allocates by them. This parser reads the few
//! fields that memory depends on and skips the rest. Format: Thrift's compact protocol,
//! <https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift>, `PageHeader`.

/// Structs within structs; a header has three levels.
const MAX_DEPTH: u8 = 8;

const DICTIONARY_PAGE: u64 = 2;
/// Each value repeats a prefix of the one before, so that values take more memory than their page.
const DELTA_BYTE_ARRAY: u64 = 7;

/// What the header of one page states.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PageHeader {
    /// Bytes of the header itself.
    pub(super) bytes: usize,
    /// Bytes of the page that follow it.
    pub(super) stored: u64,
    /// Bytes of the page once decompressed.
    pub(super) plain: u64,
    /// Bytes of the page's levels, which version 2 of the page stores uncompressed in front of its values.
    pub(super) levels: u64,
    /// Values or, in nested columns, levels.
    pub(super) values: u64,
    pub(super) is_dictionary: bool,
    /// Its values repeat prefixes of each other.
    pub(super) has_prefixes: bool,
}

/// The header at the beginning of `bytes`; `None` where it is damaged or longer than `bytes`.
pub(super) fn parse(bytes: &[u8]) -> Option<PageHeader> {
    let mut thrift = Thrift { bytes, at: 0 };
    let mut header = PageHeader::default();
    let (mut has_plain, mut has_stored) = (false, false);
    let mut field = 0;
    while let Some((id, kind)) = thrift.field(field)? {
        field = id;
        match (id, kind) {
            (1, Kind::Int) => header.is_dictionary = thrift.size()? == DICTIONARY_PAGE,
            (2, Kind::Int) => (header.plain, has_plain) = (thrift.size()?, true),
            (3, Kind::Int) => (header.stored, has_stored) = (thrift.size()?, true),
            (5 | 7, Kind::Struct) => thrift.values(&mut header, Version::One)?,
            (8, Kind::Struct) => thrift.values(&mut header, Version::Two)?,
            (_, kind) => thrift.skip(kind, 0)?,
        }
    }
    header.bytes = thrift.at;
    (has_plain && has_stored).then_some(header)
}

/// Which of the headers of data pages.
#[derive(Debug, Clone, Copy)]
enum Version {
    One,
    Two,
}

/// A type of the compact protocol.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Bool,
    Byte,
    Int,
    Double,
    Binary,
    List,
    Map,
    Struct,
}

struct Thrift<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Thrift<'_> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// An integer that is not negative.
    fn size(&mut self) -> Option<u64> {
        let zigzag = self.varint()?;
        (zigzag & 1 == 0).then_some(zigzag >> 1)
    }

    /// The id and the type of a struct's next field after field `last`; the inner `None` at its end.
    fn field(&mut self, last: u64) -> Option<Option<(u64, Kind)>> {
        let byte = self.byte()?;
        if byte == 0 {
            return Some(None);
        }
        let id = match byte >> 4 {
            0 => self.size()?,
            delta => last.checked_add(delta.into())?,
        };
        Some(Some((id, kind(byte & 0xf)?)))
    }

    /// Reads what a header states about its values.
    fn values(&mut self, header: &mut PageHeader, version: Version) -> Option<()> {
        let encoding = if matches!(version, Version::One) { 2 } else { 4 };
        let mut field = 0;
        while let Some((id, kind)) = self.field(field)? {
            field = id;
            match kind {
                Kind::Int if id == 1 => header.values = self.size()?,
                Kind::Int if id == encoding => header.has_prefixes = self.size()? == DELTA_BYTE_ARRAY,
                Kind::Int if (id == 5 || id == 6) && matches!(version, Version::Two) => {
                    header.levels = header.levels.checked_add(self.size()?)?;
                }
                kind => self.skip(kind, 1)?,
            }
        }
        Some(())
    }

    fn skip(&mut self, kind_of: Kind, depth: u8) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        match kind_of {
            Kind::Bool => Some(()), // its value is its type
            Kind::Byte => self.byte().map(|_| ()),
            Kind::Int => self.varint().map(|_| ()),
            Kind::Double => self.jump(8),
            Kind::Binary => {
                let bytes = self.varint()?;
                self.jump(bytes)
            }
            Kind::List => {
                let head = self.byte()?;
                let items = match head >> 4 {
                    15 => self.varint()?,
                    few => few.into(),
                };
                let item = element(head & 0xf)?;
                (0..items).try_for_each(|_| self.skip(item, depth + 1))
            }
            Kind::Map => {
                let pairs = self.varint()?;
                let head = if pairs > 0 { self.byte()? } else { return Some(()) };
                let (key, value) = (element(head >> 4)?, element(head & 0xf)?);
                (0..pairs).try_for_each(|_| {
                    self.skip(key, depth + 1)?;
                    self.skip(value, depth + 1)
                })
            }
            Kind::Struct => {
                let mut field = 0;
                while let Some((id, kind)) = self.field(field)? {
                    field = id;
                    self.skip(kind, depth + 1)?;
                }
                Some(())
            }
        }
    }

    fn jump(&mut self, bytes: u64) -> Option<()> {
        let to = self.at.checked_add(usize::try_from(bytes).ok()?)?;
        (to <= self.bytes.len()).then(|| self.at = to)
    }
}

fn kind(code: u8) -> Option<Kind> {
    Some(match code {
        1 | 2 => Kind::Bool,
        3 => Kind::Byte,
        4..=6 => Kind::Int,
        7 => Kind::Double,
        8 => Kind::Binary,
        9 | 10 => Kind::List,
        11 => Kind::Map,
        12 => Kind::Struct,
        _ => return None,
    })
}

/// The type of an element: a bool there is a byte of its own.
fn element(code: u8) -> Option<Kind> {
    match kind(code)? {
        Kind::Bool => Some(Kind::Byte),
        other => Some(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, BinaryArray, Int64Array};
    use arrow::record_batch::RecordBatch;
    use parquet::arrow::ArrowWriter;
    use parquet::basic::{Compression, Encoding};
    use parquet::file::metadata::ParquetMetaDataReader;
    use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
    use proptest::prelude::*;
    use std::sync::Arc;

    /// The headers of each column of a file of 1,000 rows, with the column's sizes in the footer.
    fn headers(properties: WriterProperties) -> Vec<(Vec<PageHeader>, i64, i64)> {
        let values: Vec<Vec<u8>> =
            (0..1000u32).map(|i| format!("a prefix that repeats {i:05}").into_bytes()).collect();
        let columns: [(&str, ArrayRef); 2] = [
            ("bytes", Arc::new(BinaryArray::from_iter_values(&values))),
            ("number", Arc::new(Int64Array::from_iter_values(0..1000))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let mut file = Vec::new();
        let mut writer = ArrowWriter::try_new(&mut file, batch.schema(), Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let bytes = bytes::Bytes::from(file);
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&bytes).unwrap();
        let of_column = |column: &parquet::file::metadata::ColumnChunkMetaData| {
            let (start, length) = column.byte_range();
            let mut rest = &bytes[start as usize..(start + length) as usize];
            let mut headers = Vec::new();
            while !rest.is_empty() {
                let header = parse(rest).unwrap();
                rest = &rest[header.bytes + header.stored as usize..];
                headers.push(header);
            }
            (headers, column.uncompressed_size(), column.num_values())
        };
        metadata.row_group(0).columns().iter().map(of_column).collect()
    }

    #[test]
    fn headers_of_every_kind_of_page_add_up_to_the_footer() {
        let mut most = 0;
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for dictionary in [true, false] {
                let properties = WriterProperties::builder()
                    .set_writer_version(version)
                    .set_dictionary_enabled(dictionary)
                    .set_data_page_size_limit(4096)
                    .set_write_batch_size(64)
                    .set_statistics_enabled(EnabledStatistics::Page)
                    .set_write_page_header_statistics(true)
                    .set_compression(Compression::ZSTD(Default::default()));
                for (headers, plain, values) in headers(properties.build()) {
                    let pages: Vec<&PageHeader> = headers.iter().filter(|h| !h.is_dictionary).collect();
                    most = most.max(pages.len()); // some encodings put all values into one
                    assert_eq!(headers.len() - pages.len(), usize::from(dictionary));
                    assert_eq!(pages.iter().map(|h| h.values).sum::<u64>(), values as u64);
                    let all: u64 = headers.iter().map(|h| h.plain + h.bytes as u64).sum();
                    assert_eq!(all, plain as u64);
                }
            }
        }
        assert!(most > 1, "no column has several pages");
    }

    #[test]
    fn values_that_repeat_prefixes_are_known_by_their_page() {
        let of = |encoding| {
            let properties = WriterProperties::builder().set_dictionary_enabled(false);
            headers(properties.set_column_encoding("bytes".into(), encoding).build()).remove(0).0
        };
        assert!(of(Encoding::DELTA_BYTE_ARRAY).iter().all(|header| header.has_prefixes));
        assert!(of(Encoding::PLAIN).iter().all(|header| !header.has_prefixes));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_refused_or_parsed_within_themselves(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(header) = parse(&bytes) {
                prop_assert!(header.bytes <= bytes.len());
            }
        }
    }
}
