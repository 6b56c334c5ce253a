//! Mozilla's unpacked archive: `<locale>/clips/*.mp3`, and the TSVs and `clip_durations.tsv` next to `clips`.

use super::super::writer::Writer;
use super::tsv;
use crate::output::{OutFile, Target, Written};
use crate::speech::{Clip, Locale, Split};
use crate::{Error, Result};
use std::io::Write;

pub(crate) struct MozillaWriter {
    target: Target,
    open: Option<Tables>,
    written: Written,
}

impl MozillaWriter {
    pub(crate) fn new(target: Target) -> Self {
        Self { target, open: None, written: Written::default() }
    }

    fn close(&mut self) -> Result<()> {
        match self.open.take() {
            Some(tables) => tables.close(&mut self.written),
            None => Ok(()),
        }
    }
}

impl Writer<Clip> for MozillaWriter {
    fn add(&mut self, clip: Clip) -> Result<()> {
        if self.open.as_ref().is_none_or(|tables| tables.locale != clip.locale) {
            self.close()?;
        }
        let mut tables = match self.open.take() {
            Some(tables) => tables,
            None => Tables::new(&self.target, clip.locale)?,
        };
        let mut file = self.target.file(&format!("{}/clips/{}", clip.locale, clip.path))?;
        file.write_all(&clip.mp3).map_err(|e| Error::write(file.path(), e))?;
        file.close(&mut self.written)?;
        tables.add(&clip)?;
        self.open = Some(tables);
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<Written> {
        self.close()?;
        Ok(self.written)
    }
}

/// The TSVs of one language.
struct Tables {
    locale: Locale,
    splits: Vec<(Split, OutFile)>,
    validated: OutFile,
    durations: OutFile,
}

impl Tables {
    fn new(target: &Target, locale: Locale) -> Result<Self> {
        target.folder(&format!("{locale}/clips"))?;
        let table = |name: &str, header: &str| {
            let mut file = target.file(&format!("{locale}/{name}.tsv"))?;
            tsv::put(&mut file, header)?;
            Ok::<_, Error>(file)
        };
        let splits = Split::ALL.map(|split| table(split.name(), tsv::HEADER).map(|file| (split, file)));
        Ok(Self {
            locale,
            splits: splits.into_iter().collect::<Result<_>>()?,
            validated: table("validated", tsv::HEADER)?,
            durations: table("clip_durations", tsv::DURATIONS_HEADER)?,
        })
    }

    fn add(&mut self, clip: &Clip) -> Result<()> {
        let line = tsv::line(clip);
        let table = self.splits.iter_mut().find(|(split, _)| *split == clip.split);
        if let Some((_, file)) = table {
            tsv::put(file, &line)?;
        }
        if clip.split.is_validated() {
            tsv::put(&mut self.validated, &line)?;
        }
        tsv::put(&mut self.durations, &tsv::duration_line(clip))
    }

    fn close(self, written: &mut Written) -> Result<()> {
        let splits = self.splits.into_iter().map(|(_, file)| file);
        splits.chain([self.validated, self.durations]).try_for_each(|file| file.close(written))
    }
}
