//! The layout `data/train-00000-of-0000N.parquet`, as Hugging Face `datasets` writes images: row groups of 100 rows,
//! Snappy, the features in the key-value metadata `huggingface`, pages of about 1 MiB and an offset index.

use super::columns::{FEATURES_KEY, schema, take_batch};
use super::writer::{Shards, Writer};
use crate::output::{OutFile, Target, Written};
use crate::{Compression, Error, ErrorKind, ImagenetOptions, Result, Sample};
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression as Codec;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use std::path::Path;

/// Rows between two checks of the page's size: pages grow to 1 MiB plus at most 4 images.
const ROWS_PER_PAGE_CHECK: usize = 4;

pub(crate) struct ParquetWriter {
    target: Target,
    shards: Shards,
    schema: SchemaRef,
    properties: WriterProperties,
    rows_per_group: usize,
    shard: u64,
    open: Option<OpenShard>,
    rows: Vec<Sample>,
    written: Written,
}

struct OpenShard {
    file: ArrowWriter<OutFile>,
    samples: u64,
}

impl ParquetWriter {
    pub(crate) fn new(options: &ImagenetOptions, target: Target) -> Result<Self> {
        target.folder("data")?;
        let schema = schema(options.class_count());
        let features = schema.metadata().get(FEATURES_KEY).cloned();
        let codec = match options.compression {
            Compression::Snappy => Codec::SNAPPY,
            Compression::None => Codec::UNCOMPRESSED,
        };
        let bytes = ColumnPath::new(vec!["image".to_owned(), "bytes".to_owned()]);
        let properties = WriterProperties::builder()
            .set_compression(codec)
            .set_column_dictionary_enabled(bytes, false) // every image is unique
            .set_write_batch_size(ROWS_PER_PAGE_CHECK)
            .set_key_value_metadata(Some(vec![KeyValue::new(FEATURES_KEY.to_owned(), features)]))
            .build();
        let rows_per_group = options.rows_per_group;
        let (shards, rows, written) =
            (Shards::new(options.samples, options.samples_per_shard), Vec::new(), Written::default());
        Ok(Self { target, shards, schema, properties, rows_per_group, shard: 0, open: None, rows, written })
    }

    fn open_shard(&self) -> Result<OpenShard> {
        let name = format!("data/train-{:05}-of-{:05}.parquet", self.shard, self.shards.count);
        let file = self.target.file(&name)?;
        let path = file.path().to_owned();
        let file = ArrowWriter::try_new(file, self.schema.clone(), Some(self.properties.clone()))
            .map_err(|e| parquet_error(&path, e))?;
        Ok(OpenShard { file, samples: 0 })
    }

    /// Writes the collected rows as one row group.
    fn write_group(&mut self, shard: &mut OpenShard) -> Result<()> {
        let batch = take_batch(&self.schema, &mut self.rows)?;
        let written = shard.file.write(&batch).and_then(|()| shard.file.flush());
        written.map_err(|e| parquet_error(shard.file.inner().path(), e))
    }
}

impl Writer for ParquetWriter {
    fn add(&mut self, sample: Sample) -> Result<()> {
        let mut shard = match self.open.take() {
            Some(shard) => shard,
            None => self.open_shard()?,
        };
        self.rows.push(sample);
        shard.samples += 1;
        let last = shard.samples == self.shards.len(self.shard);
        if last || self.rows.len() == self.rows_per_group {
            self.write_group(&mut shard)?;
        }
        if !last {
            self.open = Some(shard);
            return Ok(());
        }
        self.shard += 1;
        let path = shard.file.inner().path().to_owned();
        let file = shard.file.into_inner().map_err(|e| parquet_error(&path, e))?;
        file.close(&mut self.written)
    }

    fn finish(self: Box<Self>) -> Result<Written> {
        assert!(self.open.is_none() && self.shard == self.shards.count, "every shard is full");
        Ok(self.written)
    }
}

/// Converts an error of Parquet. A full disk comes wrapped; any other error about our own rows is a defect.
pub(crate) fn parquet_error(path: &Path, error: ParquetError) -> Error {
    match error {
        ParquetError::External(cause) => match cause.downcast::<std::io::Error>() {
            Ok(cause) => Error::write(path, *cause),
            Err(cause) => Error::new(ErrorKind::Bug, format!("{}: {cause}", path.display())),
        },
        other => Error::new(ErrorKind::Bug, format!("{}: {other}", path.display())),
    }
}
