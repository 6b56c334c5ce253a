//! Frames: what a stream consists of once it is open.
//!
//! ```text
//! tag · if Rows: epoch u64, position u64, rows u32, head bytes u32 │ head: Arrow IPC │ body: row after row, column after column
//! ```
//! Numbers are little-endian. The head is one message of an Arrow IPC stream (the first also brings its schema): sample
//! ids, why a row failed, what is unusual about it, the lengths of ragged rows, and the columns that ride along. A failed row has no body.

use super::message::{Failure, garbage};
use crate::{Error, ErrorKind};
use arrow::array::{Array, ArrayRef, AsArray, StringArray, UInt8Array, UInt64Array};
use arrow::buffer::Buffer;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, UInt8Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use arrow_ipc::reader::StreamDecoder;
use arrow_ipc::writer::StreamWriter;
use feedstock_dataset::SampleId;
use feedstock_ops::Warnings;
use std::io;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A head at most: 64 Ki rows with 4 KiB each of metadata.
const HEAD_BYTES: u32 = 256 << 20;

/// Rows of a frame at most.
const ROWS: u32 = 1 << 20;

/// Columns of a head before the lengths: sample ids, failures, warnings.
const OWN_COLUMNS: usize = 3;

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Tag {
    /// The rows of one step.
    Rows = b'R',
    /// Nothing yet.
    Alive = b'A',
    /// The worker wants to go: ask elsewhere for the next steps.
    Leaving = b'L',
    /// The next rows will never come; a message says why.
    Failed = b'F',
    /// There are no more.
    End = b'E',
}

impl Tag {
    pub(crate) async fn read(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let byte = io.read_u8().await?;
        [Self::Rows, Self::Alive, Self::Leaving, Self::Failed, Self::End]
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
}

impl FrameHead {
    pub(crate) async fn write(self, io: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(25);
        bytes.push(Tag::Rows as u8);
        bytes.extend(self.epoch.to_le_bytes());
        bytes.extend(self.position.to_le_bytes());
        bytes.extend(self.rows.to_le_bytes());
        bytes.extend(self.head_bytes.to_le_bytes());
        io.write_all(&bytes).await
    }

    /// What follows [`Tag::Rows`].
    pub(crate) async fn read(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let head = Self {
            epoch: io.read_u64_le().await?,
            position: io.read_u64_le().await?,
            rows: io.read_u32_le().await?,
            head_bytes: io.read_u32_le().await?,
        };
        if head.head_bytes > HEAD_BYTES || head.rows > ROWS {
            return Err(garbage(format!("a frame of {} rows and {} bytes", head.rows, head.head_bytes)));
        }
        Ok(head)
    }
}

/// What is told of each row before its bytes.
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
    /// For rows with so many ragged columns.
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
    decoder: StreamDecoder,
}

impl HeadReader {
    pub(crate) fn new(ragged: usize) -> Self {
        Self { ragged, decoder: StreamDecoder::new() }
    }

    /// The rows and their columns from the bytes of the next head, which must tell of `rows` rows.
    pub(crate) fn read(&mut self, bytes: Vec<u8>, rows: u32) -> io::Result<(Vec<RowHead>, RecordBatch)> {
        let mut buffer = Buffer::from_vec(bytes);
        let batch = self.decoder.decode(&mut buffer).map_err(|e| garbage(format!("a head: {e}")))?;
        let batch = batch.filter(|batch| buffer.is_empty() && batch.num_rows() == rows as usize);
        let batch = batch.ok_or_else(|| garbage(format!("a head that is not one of {rows} rows")))?;
        self.split(&batch).ok_or_else(|| garbage("a head with other columns than it should have".into()))
    }

    fn split(&self, batch: &RecordBatch) -> Option<(Vec<RowHead>, RecordBatch)> {
        let own = OWN_COLUMNS + self.ragged;
        if batch.num_columns() < own {
            return None;
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SampleContext;
    use arrow::array::Int64Array;
    use feedstock_ops::Warning;

    #[test]
    fn heads_come_back_as_they_were() {
        let labels: ArrayRef = Arc::new(Int64Array::from(vec![7, 8]));
        let columns = RecordBatch::try_from_iter([("label", labels)]).unwrap();
        let (mut writer, mut reader) = (HeadWriter::new(1), HeadReader::new(1));
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
        assert!(HeadReader::new(0).read(vec![0xff; 64], 1).is_err());
        assert!(HeadReader::new(0).read(Vec::new(), 0).is_err());
        let bytes =
            HeadWriter::new(0).write(&[], &RecordBatch::new_empty(Arc::new(Schema::empty()))).unwrap();
        assert!(HeadReader::new(1).read(bytes, 0).is_err(), "a length is missing");
    }
}
