//! Writes Common Voice-like sample data.

use crate::Result;
use crate::layouts;
use crate::layouts::writer::Writer;
use crate::output::Target;
use crate::parallel::in_order;
use crate::progress::{Progress, ProgressFn};
use crate::speech::options::{CommonVoiceLayout, CommonVoiceOptions, Voice};
use crate::speech::{Clip, Narrator, Role};
use std::collections::BTreeSet;
use std::path::Path;

/// A summary of the files written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CommonVoiceSummary {
    /// Number of audio clips.
    pub samples: u64,
    /// Number of distinct speakers.
    pub speakers: u64,
    /// Total duration of the audio clips, in seconds.
    pub seconds: f64,
    /// The voice used; never [`Voice::Auto`].
    pub voice: Voice,
    /// Number of files written.
    pub files: u64,
    /// Total bytes of the audio clips.
    pub audio_bytes: u64,
    /// Total bytes of the files.
    pub file_bytes: u64,
}

impl CommonVoiceOptions {
    /// Writes the data set into `dir`, creates it if necessary, and calls `progress` after every audio clip.
    ///
    /// # Errors
    /// `BadConfig` if an option is out of range, espeak-ng is requested but not installed, or `dir` holds files;
    /// `Storage` if a write fails, for example because the disk is full (the folder is then incomplete).
    pub fn write(&self, dir: impl AsRef<Path>, progress: &mut ProgressFn<'_>) -> Result<CommonVoiceSummary> {
        self.check()?;
        let voice = self.voice_used()?;
        let target = Target::prepare(dir.as_ref(), self.overwrite)?;
        let order = self.order();
        let mut writer = self.writer(target, &order)?;
        let (mut done, mut audio_bytes, mut ms) = (0, 0, 0_u64);
        let mut speakers = BTreeSet::new();
        let fixed = Self { voice, ..self.clone() }; // resolved once, not by every thread
        #[expect(clippy::cast_possible_truncation, reason = "positions are below the order's length")]
        in_order(
            self.threads,
            self.samples,
            || Narrator::new(&fixed),
            |narrator, place| narrator.clip(order[place as usize].into()),
            |clip| {
                done += 1;
                audio_bytes += clip.mp3.len() as u64;
                ms += u64::from(clip.duration_ms);
                speakers.insert(clip.client_id.clone());
                writer.add(clip)?;
                progress(Progress { done, total: self.samples, bytes: audio_bytes });
                Ok(())
            },
        )?;
        let written = writer.finish()?;
        Ok(CommonVoiceSummary {
            samples: self.samples,
            speakers: speakers.len() as u64,
            seconds: ms as f64 / 1000.0,
            voice,
            files: written.files,
            audio_bytes,
            file_bytes: written.bytes,
        })
    }

    /// Returns the indices of the audio clips in the order in which every layout stores them: by language, split and
    /// index. Only one file is open at a time.
    fn order(&self) -> Vec<u32> {
        let cast = self.cast();
        let mut order: Vec<u32> = (0..u32::try_from(self.samples).unwrap_or(u32::MAX)).collect();
        order.sort_by_cached_key(|&index| {
            let Role { locale, split, .. } = cast.role(index.into());
            match self.layout {
                // These layouts store all languages of a split in the same files.
                CommonVoiceLayout::Parquet | CommonVoiceLayout::WebDataset => (None, split, index),
                _ => (Some(locale), split, index),
            }
        });
        order
    }

    fn writer(&self, target: Target, order: &[u32]) -> Result<Box<dyn Writer<Clip>>> {
        let cast = self.cast();
        let roles = order.iter().map(|&index| cast.role(index.into()));
        layouts::speech::open(self, target, roles)
    }
}
