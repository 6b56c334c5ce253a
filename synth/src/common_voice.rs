//! Writes Common Voice-like sample data.

use crate::Result;
use crate::common_voice_options::{CommonVoiceLayout, CommonVoiceOptions, Voice};
use crate::layouts;
use crate::layouts::writer::Writer;
use crate::output::Target;
use crate::parallel::in_order;
use crate::progress::{Progress, ProgressFn};
use crate::speech::{Clip, Narrator, Role};
use std::collections::BTreeSet;
use std::path::Path;

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CommonVoiceSummary {
    /// Number of clips.
    pub samples: u64,
    /// Distinct speakers.
    pub speakers: u64,
    /// Length of all clips.
    pub seconds: f64,
    /// Who spoke: never [`Voice::Auto`].
    pub voice: Voice,
    /// Files written.
    pub files: u64,
    /// Bytes of all clips.
    pub audio_bytes: u64,
    /// Bytes of all files.
    pub file_bytes: u64,
}

impl CommonVoiceOptions {
    /// Writes the data set into `dir`, making it if need be, and tells `progress` after every clip.
    ///
    /// # Errors
    /// `BadConfig` if an option is out of range, espeak-ng is asked for and not there, or `dir` holds files;
    /// `Storage` if the disk is full or refuses (the folder is then incomplete).
    pub fn write(&self, dir: impl AsRef<Path>, progress: &mut ProgressFn<'_>) -> Result<CommonVoiceSummary> {
        self.check()?;
        let voice = self.voice_used()?;
        let target = Target::prepare(dir.as_ref(), self.overwrite)?;
        let order = self.order();
        let mut writer = self.writer(target, &order)?;
        let (mut done, mut audio_bytes, mut ms) = (0, 0, 0_u64);
        let mut speakers = BTreeSet::new();
        let fixed = Self { voice, ..self.clone() }; // looked for once, not by every thread
        #[expect(clippy::cast_possible_truncation, reason = "places are below the order's length")]
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

    /// The clips' indices in the order in which every layout stores them: by language, by split, by index; so
    /// that one file is open at a time.
    fn order(&self) -> Vec<u32> {
        let cast = self.cast();
        let mut order: Vec<u32> = (0..u32::try_from(self.samples).unwrap_or(u32::MAX)).collect();
        order.sort_by_cached_key(|&index| {
            let Role { locale, split, .. } = cast.role(index.into());
            match self.layout {
                // Their files hold all languages of a split.
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
