//! The layout `ILSVRC2012_img_train.tar`: a tar of `n########.tar`, each with one class's `n########_<k>.JPEG`.
//!
//! The header of an inner tar precedes its members. It is therefore written with size 0, and again when the class
//! ends; no class is held in memory. The samples must come class by class.

use super::tar_file;
use super::writer::Writer;
use crate::output::{OutFile, Target, Written};
use crate::{Error, Result, Sample};
use std::io::{Seek, SeekFrom, Write};

const NAME: &str = "ILSVRC2012_img_train.tar";

pub(crate) struct IlsvrcWriter {
    file: OutFile,
    length: u64,
    class: Option<OpenClass>,
}

struct OpenClass {
    name: String,
    header_at: u64,
}

impl IlsvrcWriter {
    pub(crate) fn new(target: Target) -> Result<Self> {
        Ok(Self { file: target.file(NAME)?, length: 0, class: None })
    }

    fn end_class(&mut self) -> Result<()> {
        let Some(OpenClass { name, header_at }) = self.class.take() else { return Ok(()) };
        self.length += tar_file::end(&mut self.file)?;
        let size = self.length - header_at - 512; // a multiple of 512, so the outer tar needs no padding
        let header = tar_file::header(&format!("{name}.tar"), size, &self.file)?;
        self.write_at(header_at, header.as_bytes()).map_err(|e| Error::write(self.file.path(), e))
    }

    fn write_at(&mut self, place: u64, bytes: &[u8]) -> std::io::Result<()> {
        self.file.seek(SeekFrom::Start(place))?;
        self.file.write_all(bytes)?;
        self.file.seek(SeekFrom::Start(self.length))?;
        Ok(())
    }
}

impl Writer for IlsvrcWriter {
    fn add(&mut self, sample: Sample) -> Result<()> {
        if self.class.as_ref().is_none_or(|class| class.name != sample.class) {
            self.end_class()?;
            let header_at = self.length;
            self.length += tar_file::append(&mut self.file, &format!("{}.tar", sample.class), &[])?;
            self.class = Some(OpenClass { name: sample.class, header_at });
        }
        self.length += tar_file::append(&mut self.file, &sample.name, &sample.jpeg)?;
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Written> {
        self.end_class()?;
        tar_file::end(&mut self.file)?;
        let mut written = Written::default();
        self.file.close(&mut written)?;
        Ok(written)
    }
}
