//! Mel scales and banks of triangular filters.

use serde::{Deserialize, Serialize};

use super::parameters::single;
use super::spectrum::LANES;

/// The mapping from Hz to mel.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MelScale {
    /// Linear to 1 kHz, logarithmic above (Slaney's Auditory Toolbox): librosa's and Whisper's.
    #[default]
    Slaney,
    /// 2595 log10(1 + f/700) (O'Shaughnessy 1987): HTK's, Kaldi's and torchaudio's.
    Htk,
}

/// The height of the filters.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, Default)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum MelNorm {
    /// Each filter has area 1 (over Hz): librosa's and Whisper's.
    #[default]
    Slaney,
    /// Each filter peaks at 1: torchaudio's default.
    None,
}

/// Hz per mel below Slaney's corner, the corner in Hz, and the growth per mel above it: 27 mel for a factor of 6.4.
const SLANEY_STEP: f64 = 200.0 / 3.0;
const SLANEY_CORNER: f64 = 1000.0;
const SLANEY_GROWTH: [f64; 2] = [6.4, 27.0];

impl MelScale {
    fn mel(self, hz: f64) -> f64 {
        match self {
            Self::Htk => 2595.0 * libm::log10(1.0 + hz / 700.0),
            Self::Slaney if hz < SLANEY_CORNER => hz / SLANEY_STEP,
            Self::Slaney => {
                let growth = libm::log(SLANEY_GROWTH[0]) / SLANEY_GROWTH[1];
                SLANEY_CORNER / SLANEY_STEP + libm::log(hz / SLANEY_CORNER) / growth
            }
        }
    }

    fn hz(self, mel: f64) -> f64 {
        let corner = SLANEY_CORNER / SLANEY_STEP;
        match self {
            Self::Htk => 700.0 * (libm::pow(10.0, mel / 2595.0) - 1.0),
            Self::Slaney if mel < corner => mel * SLANEY_STEP,
            Self::Slaney => {
                let growth = libm::log(SLANEY_GROWTH[0]) / SLANEY_GROWTH[1];
                SLANEY_CORNER * libm::exp(growth * (mel - corner))
            }
        }
    }
}

/// The parameters of a bank of filters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MelBands {
    pub(crate) n_mels: usize,
    /// Lower end of the first filter and upper end of the last, in Hz.
    pub(crate) range_hz: [f64; 2],
    pub(crate) scale: MelScale,
    pub(crate) norm: MelNorm,
}

/// A bank of filters, each with only the bins that it uses: (first bin, weights).
pub(crate) struct MelFilters(Vec<(usize, Vec<f32>)>);

impl MelFilters {
    /// Makes filters for a spectrum of n_fft / 2 + 1 bins. A filter narrower than a bin can miss all of them, and is then 0.
    pub(crate) fn new(bands: MelBands, sample_rate: u32, n_fft: usize) -> Self {
        let [low, high] = bands.range_hz.map(|hz| bands.scale.mel(hz));
        let step = (high - low) / (bands.n_mels + 1) as f64;
        let corner = |i: usize| bands.scale.hz(low + step * i as f64);
        let bin_hz = f64::from(sample_rate) / n_fft as f64;
        let filters = (0..bands.n_mels).map(|i| {
            let [left, middle, right] = [0, 1, 2].map(|side| corner(i + side));
            let peak = if bands.norm == MelNorm::Slaney { 2.0 / (right - left) } else { 1.0 };
            let weight = |bin: usize| {
                let hz = bin as f64 * bin_hz;
                peak * ((hz - left) / (middle - left)).min((right - hz) / (right - middle))
            };
            let first = (0..=n_fft / 2).position(|bin| weight(bin) > 0.0).unwrap_or(0);
            let weights = (first..=n_fft / 2).map(weight).take_while(|&w| w > 0.0).map(single).collect();
            (first, weights)
        });
        Self(filters.collect())
    }

    /// Weights [`LANES`] spectra, bin by bin, into the same number of mel spectra, filter by filter.
    #[inline(always)]
    pub(crate) fn run(&self, spectra: &[[f32; LANES]], out: &mut [[f32; LANES]]) {
        for ((first, weights), out) in self.0.iter().zip(out) {
            let mut sum = [0.0; LANES];
            for (bin, &weight) in spectra[*first..first + weights.len()].iter().zip(weights) {
                for lane in 0..LANES {
                    sum[lane] += weight * bin[lane];
                }
            }
            *out = sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_their_published_values_and_inverses() {
        // librosa.hz_to_mel(60) = 0.9, hz_to_mel([110, 220, 440]) = [1.65, 3.3, 6.6], hz_to_mel(2000) = 25.08; HTK's
        // 1000 Hz is 1000 mel.
        for (hz, mel) in [(60.0, 0.9), (440.0, 6.6), (1000.0, 15.0), (2000.0, 25.081_876)] {
            assert!((MelScale::Slaney.mel(hz) - mel).abs() < 1e-5, "{hz}");
        }
        assert!((MelScale::Htk.mel(1000.0) - 999.9855).abs() < 1e-3);
        for scale in [MelScale::Slaney, MelScale::Htk] {
            for hz in [0.0, 1.0, 999.0, 1000.0, 1001.0, 8000.0, 24_000.0] {
                assert!((scale.hz(scale.mel(hz)) - hz).abs() < 1e-8 * (1.0 + hz), "{scale:?} {hz}");
            }
        }
    }

    #[test]
    fn filters_overlap_to_one_between_their_corners() {
        let bands =
            MelBands { n_mels: 20, range_hz: [0.0, 8000.0], scale: MelScale::Htk, norm: MelNorm::None };
        let filters = MelFilters::new(bands, 16_000, 2048);
        let mut out = vec![[0.0; LANES]; 20];
        for bin in 40..890 {
            let mut spectra = vec![[0.0; LANES]; 1025];
            spectra[bin] = [1.0; LANES];
            filters.run(&spectra, &mut out);
            let sum: f32 = out.iter().map(|lanes| lanes[3]).sum();
            assert!((sum - 1.0).abs() < 1e-5, "{bin}: {sum}");
        }
    }
}
