//! The layout `imagenet-train-000000.tar` …: three members per sample, `.jpg`, `.cls` (ASCII label) and `.json`.

use super::tar_file;
use super::writer::{Shards, Writer};
use crate::output::{OutFile, Target, Written};
use crate::{ImagenetOptions, Result, Sample};
use serde_json::json;

pub(crate) struct WebDatasetWriter {
    target: Target,
    shards: Shards,
    shard: u64,
    open: Option<(OutFile, u64)>,
    written: Written,
}

impl WebDatasetWriter {
    pub(crate) fn new(options: &ImagenetOptions, target: Target) -> Self {
        Self {
            target,
            shards: Shards::new(options.samples, options.samples_per_shard),
            shard: 0,
            open: None,
            written: Written::default(),
        }
    }
}

impl Writer for WebDatasetWriter {
    fn add(&mut self, sample: Sample) -> Result<()> {
        let (mut file, count) = match self.open.take() {
            Some(open) => open,
            None => (self.target.file(&format!("imagenet-train-{:06}.tar", self.shard))?, 0),
        };
        let key = sample.name.trim_end_matches(".JPEG");
        let facts = json!({
            "class": sample.class,
            "filename": sample.name,
            "height": sample.height,
            "label": sample.label,
            "width": sample.width,
        });
        tar_file::append(&mut file, &format!("{key}.cls"), sample.label.to_string().as_bytes())?;
        tar_file::append(&mut file, &format!("{key}.jpg"), &sample.jpeg)?;
        tar_file::append(&mut file, &format!("{key}.json"), facts.to_string().as_bytes())?;
        if count + 1 < self.shards.len(self.shard) {
            self.open = Some((file, count + 1));
            return Ok(());
        }
        tar_file::end(&mut file)?;
        self.shard += 1;
        file.close(&mut self.written)
    }

    fn finish(self: Box<Self>) -> Result<Written> {
        assert!(self.open.is_none() && self.shard == self.shards.count, "every shard is full");
        Ok(self.written)
    }
}
