//! The layout `data-00000-of-0000N.arrow` with `dataset_info.json` and `state.json`, which `datasets` saves to disk
//! and loads with `load_from_disk`. Each file is an Arrow IPC stream.

use super::columns::{features, schema, take_batch};
use super::writer::{Shards, Writer};
use crate::output::{OutFile, Target, Written};
use crate::{Error, ErrorKind, ImagenetOptions, Result, Sample};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;

pub(crate) struct IpcWriter {
    target: Target,
    shards: Shards,
    schema: SchemaRef,
    classes: u32,
    fingerprint: String,
    rows_per_group: usize,
    shard: u64,
    open: Option<OpenShard>,
    rows: Vec<Sample>,
    written: Written,
}

struct OpenShard {
    file: StreamWriter<OutFile>,
    samples: u64,
}

impl IpcWriter {
    pub(crate) fn new(options: &ImagenetOptions, target: Target) -> Self {
        let classes = options.class_count();
        Self {
            target,
            shards: Shards::new(options.samples, options.samples_per_shard),
            schema: schema(classes),
            classes,
            fingerprint: format!("{:016x}", options.seed ^ options.samples.rotate_left(32)),
            rows_per_group: options.rows_per_group,
            shard: 0,
            open: None,
            rows: Vec::new(),
            written: Written::default(),
        }
    }

    fn shard_name(&self, shard: u64) -> String {
        format!("data-{shard:05}-of-{:05}.arrow", self.shards.count)
    }

    fn open_shard(&self) -> Result<OpenShard> {
        let file = self.target.file(&self.shard_name(self.shard))?;
        let path = file.path().to_owned();
        let file = StreamWriter::try_new(file, &self.schema).map_err(|e| arrow_error(&path, e))?;
        Ok(OpenShard { file, samples: 0 })
    }

    fn write_json(&mut self, name: &str, value: &Value) -> Result<()> {
        let mut file = self.target.file(name)?;
        writeln!(file, "{value:#}").map_err(|e| Error::write(file.path(), e))?;
        file.close(&mut self.written)
    }
}

impl Writer for IpcWriter {
    fn add(&mut self, sample: Sample) -> Result<()> {
        let mut shard = match self.open.take() {
            Some(shard) => shard,
            None => self.open_shard()?,
        };
        self.rows.push(sample);
        shard.samples += 1;
        let last = shard.samples == self.shards.len(self.shard);
        if last || self.rows.len() == self.rows_per_group {
            let batch = take_batch(&self.schema, &mut self.rows)?;
            shard.file.write(&batch).map_err(|e| arrow_error(shard.file.get_ref().path(), e))?;
        }
        if !last {
            self.open = Some(shard);
            return Ok(());
        }
        self.shard += 1;
        let path = shard.file.get_ref().path().to_owned();
        let file = shard.file.into_inner().map_err(|e| arrow_error(&path, e))?;
        file.close(&mut self.written)
    }

    fn finish(mut self: Box<Self>) -> Result<Written> {
        assert!(self.open.is_none() && self.shard == self.shards.count, "every shard is full");
        let info = json!({
            "citation": "",
            "description": "Sample data of feedstock",
            "features": features(self.classes),
            "homepage": "",
            "license": "",
        });
        let files: Vec<Value> =
            (0..self.shards.count).map(|shard| json!({ "filename": self.shard_name(shard) })).collect();
        let state = json!({
            "_data_files": files,
            "_fingerprint": self.fingerprint,
            "_format_columns": null,
            "_format_kwargs": {},
            "_format_type": null,
            "_output_all_columns": false,
            "_split": "train",
        });
        self.write_json("dataset_info.json", &info)?;
        self.write_json("state.json", &state)?;
        Ok(self.written)
    }
}

fn arrow_error(path: &Path, error: ArrowError) -> Error {
    match error {
        ArrowError::IoError(_, cause) => Error::write(path, cause),
        other => Error::new(ErrorKind::Bug, format!("{}: {other}", path.display())),
    }
}
