//! Frames: what a stream consists of once it is open.
//!
//! ```text
//! tag · if Rows: epoch u64, position u64, rows u32, head bytes u32, head CRC u32, CRC of these u32
//!       │ head: Arrow IPC │ body: row after row, column after column │ body CRC u32
//! ```
//! Numbers are little-endian, CRCs are CRC-32 as in Ethernet (IEEE 802.3). Each is compared before what it covers is used:
//! a receiver allocates only by numbers whose checksum matched. Tags differ from each other in four bits, so
//! that three flipped ones make no other tag. The head is one message of an Arrow IPC stream (the first also brings its schema): sample
//! ids, why a row failed, what is unusual about it, the lengths of ragged rows, and the columns that ride along. A failed row has no body.

use super::control::{damaged, garbage, read_whole};
use super::message::Failure;
use crate::{Error, ErrorKind};
use arrow::array::{Array, ArrayRef, AsArray, StringArray, UInt8Array, UInt64Array};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef, UInt8Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::root_as_message;
use arrow_ipc::writer::StreamWriter;
use bytes::Buf;
use feedstock_dataset::SampleId;
use feedstock_ops::{Chain, Warnings};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Before a message's metadata: a continuation marker and its length, 4 bytes each. Streams of before 2019 lack the marker, and
/// arrow-ipc still reads them.
const MESSAGE_PREFIX_BYTES: usize = 8;
const CONTINUATION: [u8; 4] = [0xFF; 4];

/// A head at most: 64 Ki rows with 4 KiB each of metadata.
pub(crate) const HEAD_BYTES: u32 = 256 << 20;

/// Rows of a frame at most.
pub(crate) const FRAME_ROWS: u32 = 1 << 20;

/// A ragged row at most: an hour and a half of speech at 48 kHz.
pub(crate) const ROW_BYTES: usize = Chain::MAX_ROW_BYTES;

/// Columns of a head before the lengths: sample ids, failures, warnings.
const OWN_COLUMNS: usize = 3;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Tag {
    /// The rows of one step.
    Rows = 0x0F,
    /// Nothing yet.
    Alive = 0x33,
    /// The worker wants to go: ask elsewhere for the next steps.
    Leaving = 0x55,
    /// What share of the strands the worker wants has changed; a message has the capacity.
    Capacity = 0x3C,
    /// The next rows will never come; a message has the reason.
    Failed = 0x69,
    /// There are no more.
    End = 0x96,
}

impl Tag {
    pub(crate) async fn read(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let byte = io.read_u8().await?;
        [Self::Rows, Self::Alive, Self::Leaving, Self::Capacity, Self::Failed, Self::End]
            .into_iter()
            .find(|tag| *tag as u8 == byte)
            .ok_or_else(|| garbage(format!("a frame that begins with byte {byte}")))
    }
}

/// Which step, and how much follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHead {
    pub(crate) epoch: u64,
    pub(crate) position: u64,
    pub(crate) rows: u32,
    pub(crate) head_bytes: u32,
    /// That of the head.
    pub(crate) head_crc: u32,
}

/// Bytes of a [`FrameHead`] after its tag, with its CRC.
pub(crate) const FRAME_HEAD_BYTES: usize = 32;

impl FrameHead {
    pub(crate) async fn write(self, io: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(1 + FRAME_HEAD_BYTES);
        bytes.push(Tag::Rows as u8);
        bytes.extend(self.epoch.to_le_bytes());
        bytes.extend(self.position.to_le_bytes());
        bytes.extend(self.rows.to_le_bytes());
        bytes.extend(self.head_bytes.to_le_bytes());
        bytes.extend(self.head_crc.to_le_bytes());
        bytes.extend(crc32fast::hash(&bytes[1..]).to_le_bytes());
        io.write_all(&bytes).await
    }

    /// What follows [`Tag::Rows`].
    pub(crate) async fn read(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut bytes = [0; FRAME_HEAD_BYTES];
        io.read_exact(&mut bytes).await?;
        let (mut fields, mut crc) = bytes.split_at(FRAME_HEAD_BYTES - size_of::<u32>());
        if crc32fast::hash(fields) != crc.get_u32_le() {
            return Err(damaged("a frame's first bytes"));
        }
        let head = Self {
            epoch: fields.get_u64_le(),
            position: fields.get_u64_le(),
            rows: fields.get_u32_le(),
            head_bytes: fields.get_u32_le(),
            head_crc: fields.get_u32_le(),
        };
        if head.head_bytes > HEAD_BYTES || head.rows > FRAME_ROWS {
            return Err(garbage(format!("a frame of {} rows and {} bytes", head.rows, head.head_bytes)));
        }
        Ok(head)
    }

    /// The bytes of the head, which follow. Memory is taken as they come.
    pub(crate) async fn read_head(&self, io: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
        let bytes = read_whole(io, self.head_bytes).await?;
        match crc32fast::hash(&bytes) == self.head_crc {
            true => Ok(bytes),
            false => Err(damaged("a frame's head")),
        }
    }
}

/// What is sent of each row before its bytes.
#[derive(Debug)]
pub(crate) struct RowHead {
    pub(crate) sample: SampleId,
    pub(crate) failure: Option<Error>,
    pub(crate) warnings: Warnings,
    /// By ragged column, in the order of the maps.
    pub(crate) lengths: Vec<usize>,
}

/// Writes the heads of one stream.
pub(crate) struct HeadWriter {
    ragged: usize,
    writer: Option<StreamWriter<Vec<u8>>>,
}

impl HeadWriter {
    /// Returns a reader for rows with `ragged` ragged columns.
    pub(crate) fn new(ragged: usize) -> Self {
        Self { ragged, writer: None }
    }

    /// The bytes of the next head.
    pub(crate) fn write(&mut self, rows: &[RowHead], columns: &RecordBatch) -> Result<Vec<u8>, Error> {
        self.encode(rows, columns)
            .map_err(|e| Error::new(ErrorKind::Bug, format!("cannot send a step's columns: {e}")))
    }

    fn encode(
        &mut self,
        rows: &[RowHead],
        columns: &RecordBatch,
    ) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
        let samples: UInt64Array = rows.iter().map(|row| row.sample.0).collect();
        let failures = rows.iter().map(|row| {
            row.failure.as_ref().map(|error| serde_json::to_string(&Failure::from(error))).transpose()
        });
        let failures: StringArray = failures.collect::<Result<Vec<_>, _>>()?.into_iter().collect();
        let warnings: UInt8Array = rows.iter().map(|row| row.warnings.bits()).collect();
        let mut arrays: Vec<ArrayRef> = vec![Arc::new(samples), Arc::new(failures), Arc::new(warnings)];
        let field = |data_type, nullable| Arc::new(Field::new("", data_type, nullable));
        let mut fields: Vec<FieldRef> =
            vec![field(DataType::UInt64, false), field(DataType::Utf8, true), field(DataType::UInt8, false)];
        for column in 0..self.ragged {
            let lengths = rows.iter().map(|row| row.lengths.get(column).map_or(0, |&length| length as u64));
            arrays.push(Arc::new(lengths.collect::<UInt64Array>()));
            fields.push(field(DataType::UInt64, false));
        }
        fields.extend(columns.schema().fields().iter().cloned());
        arrays.extend(columns.columns().iter().cloned());
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays)?;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => self.writer.insert(StreamWriter::try_new(Vec::new(), &batch.schema())?),
        };
        writer.write(&batch)?;
        Ok(std::mem::take(writer.get_mut()))
    }
}

/// Reads the heads of one stream.
pub(crate) struct HeadReader {
    ragged: usize,
    /// What rides along.
    columns: SchemaRef,
    decoder: StreamDecoder,
}

impl HeadReader {
    /// A reader of rows with `ragged` ragged columns; `columns` ride along.
    pub(crate) fn new(ragged: usize, columns: SchemaRef) -> Self {
        Self { ragged, columns, decoder: StreamDecoder::new() }
    }

    /// The rows and their columns from the bytes of the next head, which must be about `rows` rows. After an error the
    /// reader is of no more use.
    pub(crate) fn read(&mut self, bytes: Vec<u8>, rows: u32) -> io::Result<(Vec<RowHead>, RecordBatch)> {
        check_messages(&bytes, rows)?;
        let mut buffer = Buffer::from_vec(bytes);
        // Arrow's reader validates less than it indexes by.
        let decoded = catch_unwind(AssertUnwindSafe(|| self.decoder.decode(&mut buffer)));
        let batch = decoded.map_err(|_| garbage("a head that cannot be decoded".into()))?;
        let batch = batch.map_err(|e| garbage(format!("a head: {e}")))?;
        let batch = batch.filter(|batch| buffer.is_empty() && batch.num_rows() == rows as usize);
        let batch = batch.ok_or_else(|| garbage(format!("a head that is not one of {rows} rows")))?;
        self.check_columns(&batch)?;
        self.split(&batch).ok_or_else(|| garbage("a head with values that it cannot have".into()))
    }

    /// The worker may read another version of the data set, or other ops.
    fn check_columns(&self, batch: &RecordBatch) -> io::Result<()> {
        let own = OWN_COLUMNS + self.ragged;
        let schema = batch.schema();
        let theirs = schema.fields().get(own..).unwrap_or_default();
        let alike = |(ours, theirs): (&FieldRef, &FieldRef)| {
            (ours.name(), ours.data_type(), ours.is_nullable())
                == (theirs.name(), theirs.data_type(), theirs.is_nullable())
        };
        let ours = self.columns.fields();
        if schema.fields().len() == own + ours.len() && ours.iter().zip(theirs).all(alike) {
            return Ok(());
        }
        let found = schema.fields().len();
        let message = format!(
            "the worker sends {found} columns, which end in {}, where {} are expected, which end in {}; let both open the same data",
            listed(theirs),
            own + ours.len(),
            listed(ours)
        );
        Err(io::Error::other(Error::new(ErrorKind::BadConfig, message)))
    }

    fn split(&self, batch: &RecordBatch) -> Option<(Vec<RowHead>, RecordBatch)> {
        let own = OWN_COLUMNS + self.ragged;
        let samples = batch.column(0).as_primitive_opt::<UInt64Type>()?;
        let failures = batch.column(1).as_string_opt::<i32>()?;
        let warnings = batch.column(2).as_primitive_opt::<UInt8Type>()?;
        let lengths: Vec<&UInt64Array> = (OWN_COLUMNS..own)
            .map(|column| batch.column(column).as_primitive_opt::<UInt64Type>())
            .collect::<Option<_>>()?;
        let rows = (0..batch.num_rows()).map(|row| {
            let failure = match failures.is_valid(row) {
                true => Some(serde_json::from_str::<Failure>(failures.value(row)).ok()?.into()),
                false => None,
            };
            let lengths = lengths.iter().map(|column| usize::try_from(column.value(row)).ok());
            let lengths = lengths.collect::<Option<_>>()?;
            let warnings = Warnings::from_bits(warnings.value(row))?;
            Some(RowHead { sample: SampleId(samples.value(row)), failure, warnings, lengths })
        });
        let rows = rows.collect::<Option<Vec<_>>>()?;
        let columns: Vec<usize> = (own..batch.num_columns()).collect();
        Some((rows, batch.project(&columns).ok()?))
    }
}

/// Columns as an error names them.
fn listed(fields: &[FieldRef]) -> String {
    let column = |field: &FieldRef| {
        format!("{} {}{}", field.name(), field.data_type(), if field.is_nullable() { "?" } else { "" })
    };
    format!("({})", fields.iter().map(column).collect::<Vec<_>>().join(", "))
}

/// Refuses messages that no worker sends: compressed ones, since arrow-ipc allocates the length that a compressed buffer
/// claims; batches of another number of rows, by which it allocates too; and those without a continuation marker, of which
/// it would read the bytes at other places than they are checked here.
fn check_messages(mut bytes: &[u8], rows: u32) -> io::Result<()> {
    let cut = || garbage("a head that is cut short".into());
    while let Some((prefix, rest)) = bytes.split_first_chunk::<MESSAGE_PREFIX_BYTES>() {
        let [marker @ .., a, b, c, d] = *prefix;
        if marker != CONTINUATION {
            return Err(garbage("a head without a continuation marker".into()));
        }
        let length = u32::from_le_bytes([a, b, c, d]) as usize;
        if length == 0 {
            return Ok(()); // the end of a stream
        }
        let (metadata, rest) = rest.split_at_checked(length).ok_or_else(cut)?;
        let message = root_as_message(metadata).map_err(|e| garbage(format!("a head: {e}")))?;
        let batch = message.header_as_record_batch();
        if let Some(found) = batch.map(|batch| batch.length()).filter(|found| *found != i64::from(rows)) {
            return Err(garbage(format!("a head that claims {found} rows where {rows} come")));
        }
        let batch =
            batch.or_else(|| message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data()));
        if batch.is_some_and(|batch| batch.compression().is_some()) {
            return Err(garbage("a compressed head".into()));
        }
        let body = usize::try_from(message.bodyLength()).ok();
        bytes = body.and_then(|body| rest.split_at_checked(body)).ok_or_else(cut)?.1;
    }
    if bytes.is_empty() { Ok(()) } else { Err(cut()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SampleContext;
    use arrow::array::Int64Array;
    use arrow_ipc::CompressionType;
    use arrow_ipc::writer::IpcWriteOptions;
    use feedstock_ops::Warning;

    #[test]
    fn heads_come_back_as_they_were() {
        let labels: ArrayRef = Arc::new(Int64Array::from(vec![7, 8]));
        let columns = RecordBatch::try_from_iter([("label", labels)]).unwrap();
        let (mut writer, mut reader) = (HeadWriter::new(1), HeadReader::new(1, columns.schema()));
        for first in [0, 10] {
            let about = SampleContext {
                sample: SampleId(first + 1),
                uri: "s3://bucket/b.jpg".into(),
                column: Some("image".into()),
            };
            let error = Error::new(ErrorKind::BadSample, "b.jpg is broken").with_sample(about.clone());
            let warnings = Warnings::from_iter([Warning::EndUnknown]);
            let rows = [
                RowHead { sample: SampleId(first), failure: None, warnings, lengths: vec![3] },
                RowHead {
                    sample: SampleId(first + 1),
                    failure: Some(error),
                    warnings: Warnings::default(),
                    lengths: vec![0],
                },
            ];
            let bytes = writer.write(&rows, &columns).unwrap();
            let (read, rides) = reader.read(bytes, 2).unwrap();
            assert_eq!(read[0].sample, SampleId(first));
            assert_eq!((&read[0].lengths[..], read[0].failure.is_none()), (&[3][..], true));
            assert_eq!([read[0].warnings, read[1].warnings], [warnings, Warnings::default()]);
            let failure = read[1].failure.as_ref().unwrap();
            assert_eq!(
                (failure.kind(), failure.to_string()),
                (ErrorKind::BadSample, "b.jpg is broken".into())
            );
            assert_eq!(failure.sample_context(), Some(&about));
            assert_eq!(rides, columns);
        }
    }

    #[test]
    fn garbage_is_refused() {
        let none = || Arc::new(Schema::empty());
        let reader = |ragged| HeadReader::new(ragged, none());
        assert!(reader(0).read(vec![0xff; 64], 1).is_err());
        assert!(reader(0).read(Vec::new(), 0).is_err());
        let mut bytes = HeadWriter::new(0).write(&[], &RecordBatch::new_empty(none())).unwrap();
        assert!(reader(1).read(bytes.clone(), 0).is_err(), "a length is missing");
        let label = Arc::new(Schema::new(vec![Field::new("label", DataType::Int64, false)]));
        assert!(HeadReader::new(0, label).read(bytes.clone(), 0).is_err(), "a column is missing");
        bytes.truncate(bytes.len() - 1);
        assert!(reader(0).read(bytes, 0).is_err(), "the last byte is missing");
    }

    /// arrow-ipc would allocate what a compressed buffer claims to hold, and abort.
    #[test]
    fn compressed_heads_are_refused() {
        let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::ZSTD)).unwrap();
        let samples: ArrayRef = Arc::new(UInt64Array::from(vec![7; 1000]));
        let batch = RecordBatch::try_from_iter([("", samples)]).unwrap();
        let mut writer = StreamWriter::try_new_with_options(Vec::new(), &batch.schema(), options).unwrap();
        writer.write(&batch).unwrap();
        let mut bytes = std::mem::take(writer.get_mut());
        let length = 8000i64.to_le_bytes();
        let at = bytes.windows(8).position(|eight| eight == length).unwrap();
        bytes[at..at + 8].copy_from_slice(&60_000_000_000i64.to_le_bytes());
        let error = HeadReader::new(0, Arc::new(Schema::empty())).read(bytes, 1000).unwrap_err();
        assert!(error.to_string().contains("compressed"), "{error}");
    }

    /// arrow-ipc reads streams without continuation markers too, and would so find a message where none was checked.
    #[test]
    fn heads_without_a_continuation_marker_are_refused() {
        let none = RecordBatch::new_empty(Arc::new(Schema::empty()));
        let bytes = HeadWriter::new(0).write(&[], &none).unwrap();
        assert!(bytes.starts_with(&CONTINUATION));
        let reader = || HeadReader::new(0, none.schema());
        reader().read(bytes.clone(), 0).unwrap();
        for legacy in [bytes[4..].to_vec(), [&[0, 0, 0, 0][..], &bytes[4..]].concat()] {
            let error = reader().read(legacy, 0).unwrap_err();
            assert!(error.to_string().contains("without a continuation marker"), "{error}");
        }
        let error = reader().read([&bytes[..], &[0xFF; 3]].concat(), 0).unwrap_err();
        assert!(error.to_string().contains("cut short"), "{error}");
    }

    /// Of a column that has no buffers, by the number of rows alone.
    #[test]
    fn heads_of_more_rows_than_the_frame_are_refused_before_they_are_read() {
        let field = Field::new("", DataType::Null, true);
        let batch = RecordBatch::try_new(
            Arc::new(Schema::new(vec![field])),
            vec![Arc::new(arrow::array::NullArray::new(1 << 40)) as ArrayRef],
        );
        let batch = batch.unwrap();
        let mut writer = StreamWriter::try_new(Vec::new(), &batch.schema()).unwrap();
        writer.write(&batch).unwrap();
        let bytes = std::mem::take(writer.get_mut());
        let error = HeadReader::new(0, batch.schema()).read(bytes, 7).unwrap_err();
        assert!(error.to_string().contains("claims 1099511627776 rows where 7 come"), "{error}");
    }

    #[test]
    fn columns_that_differ_are_named_and_no_reason_to_ask_again() {
        let columns = |name: &str, data_type| Arc::new(Schema::new(vec![Field::new(name, data_type, false)]));
        let sent = RecordBatch::new_empty(columns("label", DataType::Int64));
        let bytes = HeadWriter::new(1).write(&[], &sent).unwrap();
        HeadReader::new(1, sent.schema()).read(bytes.clone(), 0).unwrap();
        let others =
            [columns("label", DataType::Int32), columns("class", DataType::Int64), Arc::new(Schema::empty())];
        for ours in others {
            let error = HeadReader::new(1, ours).read(bytes.clone(), 0).unwrap_err();
            let error = error.downcast::<Error>().unwrap();
            assert_eq!(error.kind(), ErrorKind::BadConfig);
            assert!(error.to_string().contains("5 columns, which end in (label Int64), where"), "{error}");
        }
    }

    #[tokio::test]
    async fn a_flipped_bit_of_a_frame_is_noticed() {
        let head = vec![7; 100];
        let frame =
            FrameHead { epoch: 1, position: 48, rows: 2, head_bytes: 100, head_crc: crc32fast::hash(&head) };
        let mut bytes = Vec::new();
        frame.write(&mut bytes).await.unwrap();
        bytes.extend(&head);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let mut read = &flipped[..];
            let read = async {
                assert_eq!(Tag::read(&mut read).await?, Tag::Rows);
                let frame = FrameHead::read(&mut read).await?;
                frame.read_head(&mut read).await
            };
            read.await.unwrap_err();
        }
        let mut read = &bytes[1..];
        assert_eq!(FrameHead::read(&mut read).await.unwrap(), frame);
        assert_eq!(frame.read_head(&mut read).await.unwrap(), head);
    }
}
