//! The layout `data/<split>-00000-of-0000N.parquet`, as Hugging Face `datasets` writes audio: row groups of 100 rows,
//! Snappy, the features in the key-value metadata `huggingface`.

use super::super::columns::FEATURES_KEY;
use super::super::parquet::parquet_error;
use super::super::writer::Writer;
use super::columns::{schema, take_batch};
use super::shards::{Place, ShardPlan, hf_split};
use crate::Result;
use crate::output::{OutFile, Target, Written};
use crate::speech::options::CommonVoiceOptions;
use crate::speech::{Clip, Split};
use arrow::datatypes::SchemaRef;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

/// Rows between two checks of the page's size: pages grow to 1 MiB plus at most 8 audio clips.
const ROWS_PER_PAGE_CHECK: usize = 8;

pub(crate) struct ParquetWriter {
    target: Target,
    plan: ShardPlan<Split>,
    place: Option<Place<Split>>,
    schema: SchemaRef,
    properties: WriterProperties,
    rows_per_group: usize,
    rows: Vec<Clip>,
    file: Option<ArrowWriter<OutFile>>,
    written: Written,
}

impl ParquetWriter {
    pub(crate) fn new(options: &CommonVoiceOptions, target: Target, plan: ShardPlan<Split>) -> Result<Self> {
        target.folder("data")?;
        let schema = schema();
        let features = schema.metadata().get(FEATURES_KEY).cloned();
        let bytes = ColumnPath::new(vec!["audio".to_owned(), "bytes".to_owned()]);
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_column_dictionary_enabled(bytes, false) // every audio clip is unique
            .set_write_batch_size(ROWS_PER_PAGE_CHECK)
            .set_key_value_metadata(Some(vec![KeyValue::new(FEATURES_KEY.to_owned(), features)]))
            .build();
        let (rows_per_group, written) = (options.rows_per_group, Written::default());
        let (place, rows, file) = (None, Vec::new(), None);
        Ok(Self { target, plan, place, schema, properties, rows_per_group, rows, file, written })
    }

    fn open(&self, place: Place<Split>) -> Result<ArrowWriter<OutFile>> {
        let count = self.plan.of(&place.group).map_or(0, |shards| shards.count);
        let split = hf_split(place.group);
        let file = self.target.file(&format!("data/{split}-{:05}-of-{count:05}.parquet", place.shard))?;
        let path = file.path().to_owned();
        ArrowWriter::try_new(file, self.schema.clone(), Some(self.properties.clone()))
            .map_err(|e| parquet_error(&path, e))
    }
}

impl Writer<Clip> for ParquetWriter {
    fn add(&mut self, clip: Clip) -> Result<()> {
        let mut place = Place::next(self.place, clip.split, &self.plan);
        let mut file = match self.file.take() {
            Some(file) => file,
            None => self.open(place)?,
        };
        self.rows.push(clip);
        place.left -= 1;
        self.place = Some(place);
        if place.left == 0 || self.rows.len() == self.rows_per_group {
            let batch = take_batch(&self.schema, &mut self.rows)?;
            let written = file.write(&batch).and_then(|()| file.flush());
            written.map_err(|e| parquet_error(file.inner().path(), e))?;
        }
        if place.left > 0 {
            self.file = Some(file);
            return Ok(());
        }
        let path = file.inner().path().to_owned();
        file.into_inner().map_err(|e| parquet_error(&path, e))?.close(&mut self.written)
    }

    fn finish(self: Box<Self>) -> Result<Written> {
        assert!(self.file.is_none() && self.rows.is_empty(), "every shard is full");
        Ok(self.written)
    }
}
