//! `bandpass_biquad`: keeps frequencies around a center.

use serde::{Deserialize, Serialize};

use crate::audio::biquad::{Biquad, Kind, default_q};
use crate::audio::compile::{AudioOp, Compiler};
use feedstock_base::Result;

/// Keeps frequencies around a center, by a filter of second order, as `torchaudio.functional.bandpass_biquad`.
///
/// The filter runs in double precision, starts from silence, and limits its result to −1 … 1, as torchaudio's.
///
/// ```
/// use feedstock_ops::ChainSpec;
///
/// ChainSpec::parse("decode_audio,resample:16000,bandpass_biquad:1000:Q=1")?.compile()?;
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BandpassBiquad {
    /// The center frequency in Hz, below half of the sample rate: least and greatest, drawn uniformly; one number is both.
    #[serde(deserialize_with = "crate::check::range")]
    pub central_freq: [f64; 2],
    /// The quality factor: greater is narrower, 0.001 … 1000; default 0.707.
    #[serde(rename = "Q", default = "default_q")]
    pub q: f64,
    /// Whether the gain far from the center is constant, and `Q` at the center; default false: 0 dB at the center.
    #[serde(default)]
    pub const_skirt_gain: bool,
}

impl BandpassBiquad {
    /// Sets the center frequency, `[least, greatest]`.
    pub fn new(central_freq: [f64; 2]) -> Self {
        Self { central_freq, q: default_q(), const_skirt_gain: false }
    }

    /// Sets the quality factor.
    #[must_use]
    pub fn q(self, q: f64) -> Self {
        Self { q, ..self }
    }

    /// Sets whether the gain far from the center is constant.
    #[must_use]
    pub fn const_skirt_gain(self, const_skirt_gain: bool) -> Self {
        Self { const_skirt_gain, ..self }
    }
}

impl AudioOp for BandpassBiquad {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        let sample_rate = compiler.rate("its coefficients depend on the sample rate")?;
        let kind = Kind::Bandpass { const_skirt_gain: self.const_skirt_gain };
        let (frequency, gain) = (self.central_freq, [0.0; 2]);
        compiler.wave(Biquad { kind, sample_rate, frequency, gain, q: self.q }.checked("central_freq")?)
    }
}
