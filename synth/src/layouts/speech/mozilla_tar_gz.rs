//! Mozilla's archives `cv-corpus-17.0-2024-03-15-<locale>.tar.gz`, one per language: first the audio clips, then the
//! TSVs. They are compressed at the lowest level, because MP3 does not get smaller. The TSVs stay in memory until the
//! audio clips are written, which takes 400 bytes per audio clip.

use super::super::tar_file;
use super::super::writer::Writer;
use super::tsv;
use crate::output::{OutFile, Target, Written};
use crate::speech::{Clip, Locale, Split};
use crate::{Error, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::path::PathBuf;

/// The release of Common Voice whose form this is.
const RELEASE: &str = "cv-corpus-17.0-2024-03-15";

pub(crate) struct MozillaTarGzWriter {
    target: Target,
    open: Option<Archive>,
    written: Written,
}

impl MozillaTarGzWriter {
    pub(crate) fn new(target: Target) -> Self {
        Self { target, open: None, written: Written::default() }
    }

    fn close(&mut self) -> Result<()> {
        match self.open.take() {
            Some(archive) => archive.close(&mut self.written),
            None => Ok(()),
        }
    }
}

impl Writer<Clip> for MozillaTarGzWriter {
    fn add(&mut self, clip: Clip) -> Result<()> {
        if self.open.as_ref().is_none_or(|archive| archive.locale != clip.locale) {
            self.close()?;
        }
        let mut archive = match self.open.take() {
            Some(archive) => archive,
            None => Archive::new(&self.target, clip.locale)?,
        };
        archive.member(&format!("clips/{}", clip.path), &clip.mp3)?;
        archive.tell(&clip);
        self.open = Some(archive);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Written> {
        self.close()?;
        Ok(self.written)
    }
}

struct Archive {
    locale: Locale,
    path: PathBuf,
    file: GzEncoder<OutFile>,
    /// Name and text of each TSV.
    tables: Vec<(&'static str, String)>,
}

impl Archive {
    fn new(target: &Target, locale: Locale) -> Result<Self> {
        let file = target.file(&format!("{RELEASE}-{locale}.tar.gz"))?;
        let path = file.path().to_owned();
        let names = Split::ALL.map(Split::name).into_iter().chain(["validated"]);
        let mut tables: Vec<_> = names.map(|name| (name, tsv::HEADER.to_owned())).collect();
        tables.push(("clip_durations", tsv::DURATIONS_HEADER.to_owned()));
        Ok(Self { locale, path, file: GzEncoder::new(file, Compression::fast()), tables })
    }

    fn member(&mut self, name: &str, data: &[u8]) -> Result<()> {
        let name = format!("{RELEASE}/{}/{name}", self.locale);
        tar_file::write_member(&mut self.file, &name, data).map_err(|e| Error::write(&self.path, e))
    }

    fn tell(&mut self, clip: &Clip) {
        let line = tsv::line(clip);
        for (name, text) in &mut self.tables {
            if *name == clip.split.name() || (*name == "validated" && clip.split.is_validated()) {
                text.push_str(&line);
            } else if *name == "clip_durations" {
                text.push_str(&tsv::duration_line(clip));
            }
        }
    }

    fn close(mut self, written: &mut Written) -> Result<()> {
        for (name, text) in std::mem::take(&mut self.tables) {
            self.member(&format!("{name}.tsv"), text.as_bytes())?;
        }
        let ended = self.file.write_all(&[0; 1024]).and_then(|()| self.file.finish());
        ended.map_err(|e| Error::write(&self.path, e))?.close(written)
    }
}
