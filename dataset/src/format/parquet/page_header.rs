//! The header of a Parquet page: its sizes and its number of values.
//!
//! parquet's page reader parses headers but does not hand out their sizes, and it allocates by them. This parser reads the few
//! fields that memory depends on and skips the rest. Format: Thrift's compact protocol,
//! <https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift>, `PageHeader`.

use super::thrift::{Compact, code};

/// Limit on structs within structs; a header has three levels.
const MAX_DEPTH: u8 = 8;

const DATA_PAGE: u64 = 0;
const DICTIONARY_PAGE: u64 = 2;
const DATA_PAGE_V2: u64 = 3;
/// The encoding of levels: runs and packed bits.
const RLE: u64 = 3;
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
    /// Rows of a data page; only version 2 states them.
    pub(super) rows: Option<u64>,
    /// Whether the repetition levels of a data page of version 1 are encoded as runs, as all writers do.
    pub(super) has_level_runs: bool,
    pub(super) is_data: bool,
    pub(super) is_dictionary: bool,
    /// Whether its values repeat prefixes of each other.
    pub(super) has_prefixes: bool,
}

/// Parses the header at the beginning of `bytes`; `None` if it is damaged or longer than `bytes`.
pub(super) fn parse(bytes: &[u8]) -> Option<PageHeader> {
    let mut thrift = Compact { rest: bytes };
    let mut header = PageHeader::default();
    let (mut has_plain, mut has_stored) = (false, false);
    let mut last = 0;
    while let Some((id, code)) = thrift.field(last).ok()? {
        last = id;
        match (id, code) {
            (1, code::I16..=code::I64) => {
                let kind = size(&mut thrift)?;
                header.is_dictionary = kind == DICTIONARY_PAGE;
                header.is_data = matches!(kind, DATA_PAGE | DATA_PAGE_V2);
            }
            (2, code::I16..=code::I64) => (header.plain, has_plain) = (size(&mut thrift)?, true),
            (3, code::I16..=code::I64) => (header.stored, has_stored) = (size(&mut thrift)?, true),
            (5 | 7, code::STRUCT) => values(&mut thrift, &mut header, Version::One)?,
            (8, code::STRUCT) => values(&mut thrift, &mut header, Version::Two)?,
            (_, code) => thrift.skip_field(code, 0, MAX_DEPTH).ok()?,
        }
    }
    header.bytes = bytes.len() - thrift.rest.len();
    (has_plain && has_stored).then_some(header)
}

/// The version of a data page's header.
#[derive(Debug, Clone, Copy)]
enum Version {
    One,
    Two,
}

/// Reads an integer that must not be negative.
fn size(thrift: &mut Compact<'_>) -> Option<u64> {
    u64::try_from(thrift.int().ok()?).ok()
}

/// Reads what a header states about its values.
fn values(thrift: &mut Compact<'_>, header: &mut PageHeader, version: Version) -> Option<()> {
    let encoding = if matches!(version, Version::One) { 2 } else { 4 };
    let mut last = 0;
    while let Some((id, code)) = thrift.field(last).ok()? {
        last = id;
        match code {
            code::I16..=code::I64 if id == 1 => header.values = size(thrift)?,
            code::I16..=code::I64 if id == encoding => {
                header.has_prefixes = size(thrift)? == DELTA_BYTE_ARRAY
            }
            code::I16..=code::I64 if id == 3 && matches!(version, Version::Two) => {
                header.rows = Some(size(thrift)?);
            }
            code::I16..=code::I64 if id == 4 => header.has_level_runs = size(thrift)? == RLE,
            code::I16..=code::I64 if (id == 5 || id == 6) && matches!(version, Version::Two) => {
                header.levels = header.levels.checked_add(size(thrift)?)?;
            }
            code => thrift.skip_field(code, 1, MAX_DEPTH).ok()?,
        }
    }
    Some(())
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
