//! Log-mel spectra of an audio clip, which `log_mel` and `mfcc` compute.

use super::logarithm::Logarithm;
use super::mel::MelFilters;
use super::spectrum::{Frames, LANES, SpectrumScratch};
use feedstock_base::Result;

/// The powers of ten below the loudest value that Whisper keeps.
const WHISPER_RANGE: f32 = 8.0;

/// The last step, once all frames are known, since it depends on their greatest value.
pub(crate) enum Range {
    All,
    Below(f32),
    Whisper,
}

/// Log-mel spectra for one sample rate.
pub(crate) struct MelSpectrogram {
    pub(crate) frames: Frames,
    pub(crate) filters: MelFilters,
    pub(crate) n_mels: usize,
    pub(crate) magnitude: bool,
    pub(crate) drop_last_frame: bool,
    pub(crate) log: Option<Logarithm>,
    /// (added, least): the result is x + added, at least `least`.
    pub(crate) floor: (f32, f32),
    pub(crate) range: Range,
}

impl MelSpectrogram {
    /// Returns the number of frames of an audio clip of `samples`, which may be 0.
    pub(crate) fn count(&self, samples: usize) -> usize {
        self.frames.count(samples).saturating_sub(usize::from(self.drop_last_frame))
    }

    /// Returns the samples that the first frame takes, for messages.
    pub(crate) fn least_samples(&self) -> usize {
        match (self.frames.center, self.drop_last_frame) {
            (true, true) => self.frames.hop_length + self.frames.n_fft % 2,
            (true, false) => 1,
            (false, dropped) => self.frames.n_fft + usize::from(dropped) * self.frames.hop_length,
        }
    }

    /// Writes all frames of `wave` into `out`, [`count`](Self::count) × `n_mels`.
    pub(crate) fn run(&self, wave: &[f32], out: &mut [f32], scratch: &mut SpectrumScratch) -> Result<()> {
        scratch.mels.resize(self.n_mels, [0.0; LANES]);
        for (block, out) in out.chunks_mut(LANES * self.n_mels).enumerate() {
            let count = out.len() / self.n_mels;
            self.frames.power(wave, (block * LANES, count), self.magnitude, scratch)?;
            self.mel_and_log(scratch, out);
        }
        self.spread(out);
        Ok(())
    }

    pub(crate) fn mel_and_log(&self, scratch: &mut SpectrumScratch, out: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has AVX2.
            unsafe { self.mel_and_log_avx2(scratch, out) };
            return;
        }
        self.mel_and_log_portable(scratch, out);
    }

    /// Does the same additions in wider registers, with the same bits as a result.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    pub(crate) fn mel_and_log_avx2(&self, scratch: &mut SpectrumScratch, out: &mut [f32]) {
        self.mel_and_log_portable(scratch, out);
    }

    #[inline(always)]
    pub(crate) fn mel_and_log_portable(&self, scratch: &mut SpectrumScratch, out: &mut [f32]) {
        let SpectrumScratch { power, mels, .. } = scratch;
        self.filters.run(power, mels);
        if let Some(log) = self.log {
            let (added, least) = self.floor;
            for x in mels.as_flattened_mut() {
                // max before min, so that NaN, from a spectrum beyond f32, becomes the floor.
                *x = log.of((*x + added).max(least).min(f32::MAX));
            }
        }
        for (lane, frame) in out.chunks_exact_mut(self.n_mels).enumerate() {
            for (out, mel) in frame.iter_mut().zip(mels.iter()) {
                *out = mel[lane];
            }
        }
    }

    /// Applies the step that depends on the audio clip's greatest value.
    fn spread(&self, out: &mut [f32]) {
        let greatest = || {
            let mut lanes = [f32::MIN; LANES];
            let blocks = out.chunks_exact(LANES);
            let rest = blocks.remainder().iter().copied().fold(f32::MIN, f32::max);
            for block in blocks {
                for (lane, &x) in lanes.iter_mut().zip(block) {
                    *lane = if x > *lane { x } else { *lane };
                }
            }
            lanes.into_iter().fold(rest, f32::max)
        };
        match self.range {
            Range::All => {}
            Range::Below(top_db) => {
                let least = greatest() - top_db;
                out.iter_mut().for_each(|x| *x = x.max(least));
            }
            Range::Whisper => {
                let least = greatest() - WHISPER_RANGE;
                out.iter_mut().for_each(|x| *x = (x.max(least) + 4.0) / 4.0);
            }
        }
    }
}
