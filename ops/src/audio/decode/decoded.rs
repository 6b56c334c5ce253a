//! The result of decoding an audio clip.

use super::options::DecodeAudio;
use crate::audio::format::AudioFormat;
use crate::limits::over;
use crate::warning::{Warning, Warnings};
use feedstock_base::Result;

/// The properties of a decoded audio clip.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoded {
    /// The audio clip's sample rate in Hz.
    pub(crate) sample_rate: u32,
    /// The audio clip's number of samples, if only every second one was decoded.
    pub(crate) halved: Option<u64>,
    pub(crate) warnings: Warnings,
}

impl Decoded {
    /// Returns the result for all samples of an audio clip. `end_known` is whether the container proves its end.
    pub(super) fn whole(sample_rate: u32, end_known: bool) -> Self {
        let warning = (!end_known).then_some(Warning::EndUnknown);
        Self { sample_rate, halved: None, warnings: warning.into_iter().collect() }
    }
}

/// The samples of an audio clip that are missing or could not be decoded.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Losses {
    pub(super) lost: u64,
    pub(super) total: u64,
    pub(super) ended_early: bool,
}

impl Losses {
    /// Counts the samples that are missing at the end, after `decoded` samples.
    pub(super) fn end(&mut self, decoded: u64, missing: u64) {
        self.ended_early = missing > 0;
        self.lost += missing;
        self.total = decoded + missing;
    }

    pub(super) fn check(&self, op: &DecodeAudio, format: AudioFormat, sample_rate: u32) -> Result<()> {
        let share = self.lost as f64 / self.total.max(1) as f64;
        if share <= op.max_lost_share {
            return Ok(());
        }
        let seconds = |samples: u64| samples as f64 / f64::from(sample_rate);
        let (lost, total) = (seconds(self.lost), seconds(self.total));
        let what = if self.ended_early { "ends early or is damaged" } else { "is damaged" };
        let found = format!(
            "the {format} audio clip {what}: {lost:.2} s of {total:.2} s are lost ({:.1} %)",
            share * 100.0
        );
        Err(over(found, "max_lost_share", op.max_lost_share))
    }
}
