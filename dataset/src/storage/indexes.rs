//! Files of indexes that no machine stores: `indexes://N/NAME.arrow` is an Arrow IPC file whose column `index` counts from 0 to N - 1.
//!
//! ```text
//! magic, schema │ message, 65,536 indexes │ … │ message, the rest │ end mark │ footer with the places of all batches
//! ```
//! Its bytes are those that pyarrow wrote for data sets of indexes (`fs.from_torch`) when they were files, so identities and
//! cursors stay the same. Every read computes them: any process can open such a data set, and it has no data to protect.
//!
//! Cost: no request and no memory but that of a read. The footer has 24 bytes for each 65,536 indexes.

use super::uri::Location;
use async_trait::async_trait;
use bytes::Bytes;
use feedstock_base::shown;
use futures::stream::{BoxStream, StreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error as StoreError, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use std::fmt;
use std::ops::Range;
use std::time::UNIX_EPOCH;

/// Most indexes of a file: its footer has 24 MiB then, and its catalog a million blocks.
const MAX_INDEXES: u64 = 1 << 36;
/// Indexes of a record batch: 256 KiB of 32 bits.
const BATCH_ROWS: u64 = 65_536;
/// From here on, indexes have 64 bits.
const WIDE_FROM: u64 = 1 << 31;
const END: [u8; 8] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
const MAGIC: &[u8] = b"ARROW1";

/// The magic and the message of a schema with the column `index`, not nullable.
const HEAD: [u8; 144] = [
    0x41, 0x52, 0x52, 0x4f, 0x57, 0x31, 0x00, 0x00, 0xff, 0xff, 0xff, 0xff, 0x80, 0x00, 0x00, 0x00, //
    0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x0a, 0x00, 0x0c, 0x00, 0x06, 0x00, 0x05, 0x00, 0x08, 0x00, //
    0x0a, 0x00, 0x00, 0x00, 0x00, 0x01, 0x04, 0x00, 0x0c, 0x00, 0x00, 0x00, 0x08, 0x00, 0x08, 0x00, //
    0x00, 0x00, 0x04, 0x00, 0x08, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, //
    0x14, 0x00, 0x00, 0x00, 0x10, 0x00, 0x14, 0x00, 0x08, 0x00, 0x00, 0x00, 0x07, 0x00, 0x0c, 0x00, //
    0x00, 0x00, 0x10, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x10, 0x00, 0x00, 0x00, //
    0x20, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, //
    0x69, 0x6e, 0x64, 0x65, 0x78, 0x00, 0x00, 0x00, 0x08, 0x00, 0x0c, 0x00, 0x08, 0x00, 0x07, 0x00, //
    0x08, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x20, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];
/// Where `HEAD` has the bits of an index.
const HEAD_BITS: usize = 136;

/// The message of a record batch, with zeros for its numbers.
const MESSAGE: [u8; 144] = [
    0xff, 0xff, 0xff, 0xff, 0x88, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, //
    0x0c, 0x00, 0x16, 0x00, 0x06, 0x00, 0x05, 0x00, 0x08, 0x00, 0x0c, 0x00, 0x0c, 0x00, 0x00, 0x00, //
    0x00, 0x03, 0x04, 0x00, 0x18, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, //
    0x00, 0x00, 0x0a, 0x00, 0x18, 0x00, 0x0c, 0x00, 0x04, 0x00, 0x08, 0x00, 0x0a, 0x00, 0x00, 0x00, //
    0x3c, 0x00, 0x00, 0x00, 0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, //
    0x00, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, //
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, //
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, //
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
];
/// Where `MESSAGE` has the bytes of its body, its rows (of the batch and of the column), and the bytes of its indexes.
const BODY_AT: usize = 40;
const ROWS_AT: [usize; 2] = [72, 128];
const DATA_AT: usize = 112;

/// The footer before the number of its batches; zeros for two offsets that depend on it.
const FOOTER_HEAD: [u8; 36] = [
    0x10, 0x00, 0x00, 0x00, 0x0c, 0x00, 0x14, 0x00, 0x06, 0x00, 0x08, 0x00, 0x0c, 0x00, 0x10, 0x00, //
    0x0c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, //
    0x04, 0x00, 0x00, 0x00,
];
/// Where it has the offsets of the schema and of the (empty) list of dictionaries, and what they are without batches.
const FOOTER_OFFSETS: [(usize, u64); 2] = [(24, 32), (28, 16)];
/// A batch's place in the footer: offset, bytes of the message, bytes of the body.
const PLACE_BYTES: u64 = 24;
/// The footer after the places of the batches: no dictionaries, and the schema.
const FOOTER_TAIL: [u8; 104] = [
    0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x08, 0x00, 0x08, 0x00, 0x00, 0x00, 0x04, 0x00, //
    0x08, 0x00, 0x00, 0x00, 0x04, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x14, 0x00, 0x00, 0x00, //
    0x10, 0x00, 0x14, 0x00, 0x08, 0x00, 0x00, 0x00, 0x07, 0x00, 0x0c, 0x00, 0x00, 0x00, 0x10, 0x00, //
    0x10, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02, 0x10, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, //
    0x04, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x69, 0x6e, 0x64, 0x65, //
    0x78, 0x00, 0x00, 0x00, 0x08, 0x00, 0x0c, 0x00, 0x08, 0x00, 0x07, 0x00, 0x08, 0x00, 0x00, 0x00, //
    0x00, 0x00, 0x00, 0x01, 0x20, 0x00, 0x00, 0x00,
];
/// Where `FOOTER_TAIL` has the bits of an index.
const TAIL_BITS: usize = 100;

/// The bytes of a file of indexes.
#[derive(Debug, Clone, Copy)]
struct IndexFile {
    rows: u64,
    /// Bytes of an index.
    width: u64,
}

impl IndexFile {
    fn new(rows: u64) -> Self {
        Self { rows, width: if rows < WIDE_FROM { 4 } else { 8 } }
    }

    fn batches(&self) -> u64 {
        self.rows.div_ceil(BATCH_ROWS)
    }

    fn rows_of(&self, batch: u64) -> u64 {
        BATCH_ROWS.min(self.rows - batch * BATCH_ROWS)
    }

    fn body_bytes(&self, batch: u64) -> u64 {
        (self.rows_of(batch) * self.width).next_multiple_of(8)
    }

    /// Returns where the message of a batch begins.
    fn start_of(&self, batch: u64) -> u64 {
        HEAD.len() as u64 + batch * (MESSAGE.len() as u64 + BATCH_ROWS * self.width)
    }

    /// Returns where the last batch ends.
    fn end_of_batches(&self) -> u64 {
        let last = self.batches() - 1;
        self.start_of(last) + MESSAGE.len() as u64 + self.body_bytes(last)
    }

    fn footer_bytes(&self) -> u64 {
        (FOOTER_HEAD.len() + 4 + FOOTER_TAIL.len()) as u64 + self.batches() * PLACE_BYTES
    }

    fn size(&self) -> u64 {
        self.end_of_batches() + END.len() as u64 + self.footer_bytes() + 4 + MAGIC.len() as u64
    }

    /// Returns the bytes of a range of the file.
    fn read(&self, range: Range<u64>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(index(range.end - range.start));
        let mut at = range.start;
        while at < range.end {
            let (start, piece) = self.piece(at, range.end);
            let piece = piece.get(index(at - start)..).unwrap_or_default();
            let piece = &piece[..piece.len().min(index(range.end - at))];
            assert!(!piece.is_empty(), "byte {at} of {self:?}");
            bytes.extend_from_slice(piece);
            at += piece.len() as u64;
        }
        bytes
    }

    /// Returns bytes among which is byte `at`, and where they begin. Of indexes, those before `end`.
    fn piece(&self, at: u64, end: u64) -> (u64, Vec<u8>) {
        if at < HEAD.len() as u64 {
            return (0, self.with_bits(HEAD, HEAD_BITS));
        }
        if at >= self.end_of_batches() {
            return (self.end_of_batches(), self.tail());
        }
        let batch = (at - HEAD.len() as u64) / (MESSAGE.len() as u64 + BATCH_ROWS * self.width);
        let start = self.start_of(batch);
        let body = start + MESSAGE.len() as u64;
        if at < body {
            return (start, self.message(batch));
        }
        let rows = self.rows_of(batch);
        let data_end = body + rows * self.width;
        if at >= data_end {
            return (data_end, vec![0; index(body + self.body_bytes(batch) - data_end)]);
        }
        let first = (at - body) / self.width;
        let last = rows.min((end - body).div_ceil(self.width));
        let width = index(self.width);
        let mut bytes = Vec::with_capacity(index(last - first) * width);
        for row in first..last {
            bytes.extend_from_slice(&(batch * BATCH_ROWS + row).to_le_bytes()[..width]);
        }
        (body + first * self.width, bytes)
    }

    fn message(&self, batch: u64) -> Vec<u8> {
        let mut message = MESSAGE.to_vec();
        let rows = self.rows_of(batch);
        put(&mut message, BODY_AT, &self.body_bytes(batch).to_le_bytes());
        put(&mut message, DATA_AT, &(rows * self.width).to_le_bytes());
        ROWS_AT.iter().for_each(|&at| put(&mut message, at, &rows.to_le_bytes()));
        message
    }

    /// Returns what follows the last batch.
    fn tail(&self) -> Vec<u8> {
        let batches = self.batches();
        let mut tail = END.to_vec();
        let mut head = FOOTER_HEAD;
        for (at, without) in FOOTER_OFFSETS {
            put(&mut head, at, &low(without + batches * PLACE_BYTES));
        }
        tail.extend_from_slice(&head);
        tail.extend_from_slice(&low(batches));
        for batch in 0..batches {
            for number in [self.start_of(batch), MESSAGE.len() as u64, self.body_bytes(batch)] {
                tail.extend_from_slice(&number.to_le_bytes());
            }
        }
        tail.extend_from_slice(&self.with_bits(FOOTER_TAIL, TAIL_BITS));
        tail.extend_from_slice(&low(self.footer_bytes()));
        tail.extend_from_slice(MAGIC);
        tail
    }

    fn with_bits<const N: usize>(&self, mut bytes: [u8; N], at: usize) -> Vec<u8> {
        put(&mut bytes, at, &low(self.width * 8));
        bytes.to_vec()
    }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// Returns the lower 32 bits.
fn low(number: u64) -> [u8; 4] {
    let [a, b, c, d, ..] = number.to_le_bytes();
    [a, b, c, d]
}

fn index(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The store of `indexes://N/`. It has an object of every name that ends with `.arrow`, all with the same bytes.
#[derive(Debug)]
pub(super) struct Indexes(IndexFile);

impl Indexes {
    /// Opens the store of a location.
    pub(super) fn of(at: &Location) -> StoreResult<Self> {
        let rows = at.authority().parse().ok().filter(|rows| (1..=MAX_INDEXES).contains(rows));
        rows.map(|rows| Self(IndexFile::new(rows))).ok_or_else(|| {
            let number = shown(at.authority());
            failed(format!("a file of indexes has 1 to {MAX_INDEXES} of them, not {number}"))
        })
    }

    fn meta(&self, location: &Path) -> StoreResult<ObjectMeta> {
        if location.parts().count() != 1 || location.extension() != Some("arrow") {
            let path = location.to_string();
            return Err(StoreError::NotFound { path, source: "a file of indexes is NAME.arrow".into() });
        }
        let (location, last_modified) = (location.clone(), UNIX_EPOCH.into());
        Ok(ObjectMeta {
            location,
            last_modified,
            size: self.0.size(),
            e_tag: Some("indexes".into()),
            version: None,
        })
    }
}

fn failed(message: String) -> StoreError {
    StoreError::Generic { store: "indexes", source: message.into() }
}

fn not_written<T>(location: &Path) -> StoreResult<T> {
    Err(StoreError::NotSupported { source: format!("{location}: files of indexes are computed").into() })
}

impl fmt::Display for Indexes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} indexes", self.0.rows)
    }
}

#[async_trait]
impl ObjectStore for Indexes {
    async fn put_opts(&self, location: &Path, _: PutPayload, _: PutOptions) -> StoreResult<PutResult> {
        not_written(location)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        _: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        not_written(location)
    }

    /// Conditions hold: the bytes of a location never change.
    async fn get_opts(&self, location: &Path, options: GetOptions) -> StoreResult<GetResult> {
        let meta = self.meta(location)?;
        let range = match options.range {
            _ if options.head => 0..0,
            Some(range) => range.as_range(meta.size).map_err(|e| failed(e.to_string()))?,
            None => 0..meta.size,
        };
        let bytes = Bytes::from(self.0.read(range.clone()));
        let payload = GetResultPayload::Stream(futures::stream::iter([Ok(bytes)]).boxed());
        Ok(GetResult { payload, meta, range, attributes: Default::default() })
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, StoreResult<Path>>,
    ) -> BoxStream<'static, StoreResult<Path>> {
        locations.map(|location| location.and_then(|location| not_written(&location))).boxed()
    }

    /// Lists nothing: names are the caller's choice.
    fn list(&self, _: Option<&Path>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        futures::stream::empty().boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> StoreResult<ListResult> {
        Ok(ListResult { common_prefixes: Vec::new(), objects: Vec::new() })
    }

    async fn copy_opts(&self, _: &Path, to: &Path, _: CopyOptions) -> StoreResult<()> {
        not_written(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::AsArray;
    use arrow::datatypes::{DataType, Field, Int32Type};
    use arrow_ipc::reader::FileReader;
    use proptest::prelude::*;
    use std::hash::Hasher;
    use std::io::Cursor;
    use twox_hash::XxHash64;

    /// Indexes of 32 bits, bytes and hash of their file, as pyarrow 26.0.1 writes it.
    const PYARROW: [(u64, u64, u64); 8] = [
        (1, 482, 0xc94d_adb5_16ce_4189),
        (2, 482, 0x8f62_defa_ccf1_3b2c),
        (3, 490, 0xcf4a_1ac2_c3b9_251a),
        (48, 666, 0xde84_cd63_b270_e7d4),
        (65_535, 262_618, 0x2387_bc1c_2ddb_29c7),
        (65_536, 262_618, 0xa153_68b7_a983_2c76),
        (65_537, 262_794, 0x4a2d_d285_61c5_5e84),
        (200_001, 800_986, 0x047f_3044_ddb3_6285),
    ];
    /// The same of 70,001 indexes of 64 bits.
    const PYARROW_WIDE: (u64, u64) = (560_650, 0xb755_44a7_af9b_38bc);

    fn whole(file: IndexFile) -> Vec<u8> {
        file.read(0..file.size())
    }

    fn hash(bytes: &[u8]) -> u64 {
        let mut hash = XxHash64::with_seed(0);
        hash.write(bytes);
        hash.finish()
    }

    #[test]
    fn arrow_reads_the_indexes() {
        for rows in [1, 2, 3, BATCH_ROWS - 1, BATCH_ROWS, BATCH_ROWS + 1, 200_001] {
            let reader = FileReader::try_new(Cursor::new(whole(IndexFile::new(rows))), None).unwrap();
            let field = Field::new("index", DataType::Int32, false);
            assert_eq!(reader.schema().fields().iter().map(|field| &**field).collect::<Vec<_>>(), [&field]);
            let mut next = 0;
            for batch in reader {
                for &index in batch.unwrap().column(0).as_primitive::<Int32Type>().values() {
                    assert_eq!(index, next);
                    next += 1;
                }
            }
            assert_eq!(u64::try_from(next).unwrap(), rows);
        }
    }

    /// Identities of data sets, and so saved positions, depend on these bytes.
    #[test]
    fn files_have_the_bytes_that_pyarrow_wrote() {
        for (rows, bytes, expected) in PYARROW {
            let file = IndexFile::new(rows);
            assert_eq!((file.size(), hash(&whole(file))), (bytes, expected), "{rows} indexes");
        }
    }

    #[test]
    fn from_a_number_on_indexes_have_64_bits() {
        let file = IndexFile { rows: 70_001, width: 8 };
        assert_eq!((file.size(), hash(&whole(file))), PYARROW_WIDE);
        assert_eq!((IndexFile::new(WIDE_FROM - 1).width, IndexFile::new(WIDE_FROM).width), (4, 8));
        let largest = IndexFile::new(MAX_INDEXES);
        let last = largest.end_of_batches();
        assert_eq!(largest.read(last - 8..last), (MAX_INDEXES - 1).to_le_bytes());
        assert_eq!(largest.read(largest.size() - 6..largest.size()), MAGIC);
    }

    #[test]
    fn numbers_of_indexes_are_checked() {
        let open = |uri: &str| Indexes::of(&Location::parse(uri).unwrap());
        assert!(open("indexes://1/x.arrow").is_ok());
        for bad in [
            "indexes://0/x.arrow",
            "indexes://68719476737/x.arrow",
            "indexes://-1/x.arrow",
            "indexes://x/y.arrow",
        ] {
            let error = open(bad).unwrap_err().to_string();
            assert!(error.contains("a file of indexes has 1 to 68719476736 of them, not "), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_range_is_that_of_the_whole_file(
            rows in 1_u64..140_000, wide in any::<bool>(), ends in (0.0_f64..1.0, 0.0_f64..1.0),
        ) {
            let file = IndexFile { rows, width: if wide { 8 } else { 4 } };
            let bytes = whole(file);
            prop_assert_eq!(bytes.len() as u64, file.size());
            let at = |share: f64| (share * bytes.len() as f64) as usize;
            let (start, end) = (at(ends.0.min(ends.1)), at(ends.0.max(ends.1)));
            for (start, end) in [(start, end), (start, (start + 9).min(bytes.len()))] {
                prop_assert_eq!(&file.read(start as u64..end as u64)[..], &bytes[start..end]);
            }
        }
    }
}
