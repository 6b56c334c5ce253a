//! `band_biquad`: keeps frequencies around a center, with a gentle slope.

use serde::{Deserialize, Serialize};

use crate::audio::biquad::{Biquad, Kind, default_q};
use crate::audio::compile::{AudioOp, Compiler};
use feedstock_base::Result;

/// Keeps frequencies around a center, with a gentle slope, by a filter of second order, as `torchaudio.functional.band_biquad`.
///
/// The filter runs in double precision, starts from silence, and limits its result to −1 … 1, as torchaudio's.
///
/// ```
/// use feedstock_ops::ChainSpec;
///
/// ChainSpec::parse("decode_audio,resample:16000,band_biquad:300..3000:Q=1:noise=true")?.compile()?;
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BandBiquad {
    /// The center frequency in Hz, below half of the sample rate: least and greatest, drawn uniformly; one number is both.
    #[serde(deserialize_with = "crate::check::range")]
    pub central_freq: [f64; 2],
    /// The quality factor, the center divided by the width of the band: 0.001 … 1000; default 0.707.
    #[serde(rename = "Q", default = "default_q")]
    pub q: f64,
    /// Whether the gain suits sounds without a pitch, such as noise; default false: sounds with a pitch.
    #[serde(default)]
    pub noise: bool,
}

impl BandBiquad {
    /// Sets the center frequency, `[least, greatest]`.
    pub fn new(central_freq: [f64; 2]) -> Self {
        Self { central_freq, q: default_q(), noise: false }
    }

    /// Sets the quality factor.
    #[must_use]
    pub fn q(self, q: f64) -> Self {
        Self { q, ..self }
    }

    /// Sets whether the gain suits sounds without a pitch.
    #[must_use]
    pub fn noise(self, noise: bool) -> Self {
        Self { noise, ..self }
    }
}

impl AudioOp for BandBiquad {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        let sample_rate = compiler.rate("its coefficients depend on the sample rate")?;
        let kind = Kind::Band { noise: self.noise };
        let (frequency, gain) = (self.central_freq, [0.0; 2]);
        compiler.wave(Biquad { kind, sample_rate, frequency, gain, q: self.q }.checked("central_freq")?)
    }
}
