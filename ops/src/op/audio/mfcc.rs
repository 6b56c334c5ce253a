//! `mfcc`: mel-frequency cepstral coefficients, as torchaudio's.

use std::f64::consts::PI;

use serde::{Deserialize, Serialize};

use super::log_mel::{FloorBy, Log, LogMel};
use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::mel::{MelNorm, MelScale};
use crate::audio::mel_spectrogram::MelSpectrogram;
use crate::audio::parameters::single;
use crate::audio::spectrum::{PadMode, SpectrumScratch};
use crate::audio::step::{Extractor, FeatureScratch};
use crate::audio::window::Window;
use crate::buffer::fit;
use feedstock_base::{Error, Result};

/// Computes the first `n_mfcc` coefficients of the orthonormal DCT-II of each frame's log-mel spectrum.
///
/// The result is f32 `[time, n_mfcc]`. The parameters are [`LogMel`]'s, with the defaults of
/// `torchaudio.transforms.MFCC`: 128 filters of HTK's scale, decibels down to 80 below the greatest. Its
/// `log_mels=True` is `log=ln:floor=1e-6:floor_by=add` without `top_db`.
///
/// ```
/// use feedstock_ops::{Chain, RaggedRow, SampleSeed, Scratch};
///
/// # fn wav(rate: u32, samples: &[i16]) -> Vec<u8> {
/// #     let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
/// #     let (len, head) = (data.len() as u32, [16, 0x0001_0001, rate, 2 * rate, 0x0010_0002].map(u32::to_le_bytes));
/// #     let riff = [b"RIFF", &(36 + len).to_le_bytes()[..], b"WAVEfmt ", head.as_flattened()].concat();
/// #     [&riff, &b"data"[..], &len.to_le_bytes(), &data].concat()
/// # }
/// let chain = Chain::parse("decode_audio,resample:16000,mfcc:40")?;
/// let mut row = RaggedRow::new();
/// let clip = wav(16_000, &[0; 16_000]);
/// chain.apply_ragged(&clip, SampleSeed::new(7, 0, 0), &mut Scratch::new(), &mut row)?;
/// assert_eq!(chain.output().shape_at(row.length()), [81, 40]); // 1 s: 1 + 16,000 / 200 frames
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields, default)]
#[non_exhaustive]
pub struct Mfcc {
    /// Coefficients, at most `n_mels`; default 40.
    pub n_mfcc: usize,
    /// Filters; default 128.
    pub n_mels: usize,
    /// Samples of a frame's transform; default 400.
    pub n_fft: usize,
    /// Samples under the window; default `n_fft`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub win_length: Option<usize>,
    /// Samples from frame to frame; default 200.
    pub hop_length: usize,
    /// Where the first filter begins, in Hz; default 0.
    pub f_min: f64,
    /// Where the last filter ends, in Hz; default half the sample rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub f_max: Option<f64>,
    /// What frames are multiplied by; default Hann.
    pub window: Window,
    /// Default HTK's.
    pub mel_scale: MelScale,
    /// The filters' height; default none, peak 1.
    pub norm: MelNorm,
    /// Frame i has its middle, not its start, at sample i · hop_length; default true.
    pub center: bool,
    /// What is assumed beyond the audio clip's ends; default reflect.
    pub pad_mode: PadMode,
    /// The logarithm; default decibels.
    pub log: Log,
    /// The floor that protects the logarithm; default 1e-10.
    pub floor: f64,
    /// How the floor is applied; default: the greater of both.
    pub floor_by: FloorBy,
    /// Raise everything to this far below the audio clip's greatest value (with `log` db only); by default 80 with
    /// `log` db, and not otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_db: Option<f64>,
}

impl Default for Mfcc {
    fn default() -> Self {
        Self::of(40, LogMel { top_db: None, ..LogMel::torchaudio(128) })
    }
}

impl Mfcc {
    /// Computes `n_mfcc` coefficients, otherwise as torchaudio.
    pub fn new(n_mfcc: usize) -> Self {
        Self { n_mfcc, ..Self::default() }
    }

    /// Computes `n_mfcc` coefficients of the spectra that `mel` describes. Its `power` and `drop_last_frame` are ignored.
    pub fn of(n_mfcc: usize, mel: LogMel) -> Self {
        Self {
            n_mfcc,
            n_mels: mel.n_mels,
            n_fft: mel.n_fft,
            win_length: mel.win_length,
            hop_length: mel.hop_length,
            f_min: mel.f_min,
            f_max: mel.f_max,
            window: mel.window,
            mel_scale: mel.mel_scale,
            norm: mel.norm,
            center: mel.center,
            pad_mode: mel.pad_mode,
            log: mel.log,
            floor: mel.floor,
            floor_by: mel.floor_by,
            top_db: mel.top_db,
        }
    }

    fn mel(&self) -> LogMel {
        let torchaudio = LogMel::torchaudio(self.n_mels);
        LogMel {
            n_fft: self.n_fft,
            win_length: self.win_length,
            hop_length: self.hop_length,
            f_min: self.f_min,
            f_max: self.f_max,
            window: self.window,
            mel_scale: self.mel_scale,
            norm: self.norm,
            center: self.center,
            pad_mode: self.pad_mode,
            log: self.log,
            floor: self.floor,
            floor_by: self.floor_by,
            top_db: self.top_db.or(torchaudio.top_db.filter(|_| self.log == Log::Db)),
            ..torchaudio
        }
    }
}

/// [`Mfcc`] for one sample rate.
pub(crate) struct Cepstrum {
    pub(crate) mel: MelSpectrogram,
    n_mfcc: usize,
    /// [n_mels, n_mfcc].
    dct: Vec<f32>,
}

impl Cepstrum {
    pub(crate) fn new(op: &Mfcc, sample_rate: u32) -> Result<Self> {
        if op.n_mfcc == 0 || op.n_mfcc > op.n_mels {
            return Err(Error::config(format!(
                "n_mfcc must be 1 … n_mels ({}); got {}",
                op.n_mels, op.n_mfcc
            )));
        }
        let mel = op.mel().spectrogram(sample_rate)?;
        let n = op.n_mels as f64;
        let weight = |i: usize, k: usize| {
            let norm = if k == 0 { (1.0 / n).sqrt() } else { (2.0 / n).sqrt() };
            single(norm * libm::cos(PI / n * (i as f64 + 0.5) * k as f64))
        };
        let n_mfcc = op.n_mfcc;
        let dct = (0..op.n_mels).flat_map(|i| (0..n_mfcc).map(move |k| weight(i, k))).collect();
        Ok(Self { mel, n_mfcc, dct })
    }

    /// Computes all frames of `wave` into `out`, frames × `n_mfcc`.
    pub(crate) fn run(
        &self,
        wave: &[f32],
        out: &mut [f32],
        mels: &mut Vec<f32>,
        scratch: &mut SpectrumScratch,
    ) -> Result<()> {
        let n_mels = self.mel.n_mels;
        fit(mels, out.len() / self.n_mfcc * n_mels);
        mels.resize(out.len() / self.n_mfcc * n_mels, 0.0);
        self.mel.run(wave, mels, scratch)?;
        self.transform(mels, out);
        Ok(())
    }

    fn transform(&self, mels: &[f32], out: &mut [f32]) {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the CPU has AVX2.
            unsafe { self.transform_avx2(mels, out) };
            return;
        }
        self.transform_portable(mels, out);
    }

    /// The same additions in wider registers, which give the same bits.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn transform_avx2(&self, mels: &[f32], out: &mut [f32]) {
        self.transform_portable(mels, out);
    }

    #[inline(always)]
    fn transform_portable(&self, mels: &[f32], out: &mut [f32]) {
        let frames = mels.chunks_exact(self.mel.n_mels);
        for (out, mels) in out.chunks_exact_mut(self.n_mfcc).zip(frames) {
            out.fill(0.0);
            for (mel, weights) in mels.iter().zip(self.dct.chunks_exact(self.n_mfcc)) {
                for (x, weight) in out.iter_mut().zip(weights) {
                    *x += mel * weight;
                }
            }
        }
    }
}

impl AudioOp for Mfcc {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        compiler.extract(|rate| Cepstrum::new(self, rate))
    }
}

impl Extractor for Cepstrum {
    fn width(&self) -> usize {
        self.n_mfcc
    }

    fn count(&self, samples: usize) -> usize {
        self.mel.count(samples)
    }

    fn least_samples(&self) -> usize {
        self.mel.least_samples()
    }

    fn run(&self, wave: &[f32], out: &mut [f32], scratch: &mut FeatureScratch) -> Result<()> {
        self.run(wave, out, &mut scratch.mels, &mut scratch.spectrum)
    }

    fn between(&self, frames: u64) -> u64 {
        frames.saturating_mul(self.mel.n_mels as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_transform_is_orthonormal() {
        let cepstrum = Cepstrum::new(&Mfcc { n_mels: 24, ..Mfcc::new(24) }, 16_000).unwrap();
        for (a, b) in (0..24).flat_map(|a| (0..24).map(move |b| (a, b))) {
            let product: f32 = (0..24).map(|i| cepstrum.dct[i * 24 + a] * cepstrum.dct[i * 24 + b]).sum();
            assert!((product - f32::from(u8::from(a == b))).abs() < 1e-5, "{a} {b}: {product}");
        }
        assert!(Cepstrum::new(&Mfcc::new(129), 16_000).is_err());
    }
}
