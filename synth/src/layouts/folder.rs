//! The layout `<class>/<name>.JPEG`: one file per sample.

use super::writer::Writer;
use crate::output::{Target, Written};
use crate::painter::class_name;
use crate::{Error, ImagenetOptions, Result, Sample};
use std::io::Write;

pub(crate) struct FolderWriter {
    target: Target,
    written: Written,
}

impl FolderWriter {
    pub(crate) fn new(options: &ImagenetOptions, target: Target) -> Result<Self> {
        for label in 0..options.class_count() {
            target.folder(&class_name(label))?;
        }
        Ok(Self { target, written: Written::default() })
    }
}

impl Writer for FolderWriter {
    fn add(&mut self, sample: Sample) -> Result<()> {
        let mut file = self.target.file(&format!("{}/{}", sample.class, sample.name))?;
        file.write_all(&sample.jpeg).map_err(|e| Error::write(file.path(), e))?;
        file.close(&mut self.written)
    }

    fn finish(self: Box<Self>) -> Result<Written> {
        Ok(self.written)
    }
}
