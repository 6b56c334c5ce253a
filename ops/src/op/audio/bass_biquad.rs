//! `bass_biquad`: amplifies or attenuates frequencies below a center.

use serde::{Deserialize, Serialize};

use crate::audio::biquad::{Biquad, Kind, default_q};
use crate::audio::compile::{AudioOp, Compiler};
use feedstock_base::Result;

/// Amplifies or attenuates frequencies below a center, by a filter of second order, as `torchaudio.functional.bass_biquad`.
///
/// The filter runs in double precision, starts from silence, and limits its result to −1 … 1, as torchaudio's.
///
/// ```
/// use feedstock_ops::ChainSpec;
///
/// ChainSpec::parse("decode_audio,resample:16000,bass_biquad:-6..6:Q=1")?.compile()?;
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct BassBiquad {
    /// The gain in decibels, −100 … 100: least and greatest, drawn uniformly; one number is both.
    #[serde(deserialize_with = "crate::check::range")]
    pub gain: [f64; 2],
    /// The center frequency in Hz, below half of the sample rate: least and greatest, drawn uniformly; one number is both.
    /// Default 100.
    #[serde(default = "default_central_freq", deserialize_with = "crate::check::range")]
    pub central_freq: [f64; 2],
    /// The quality factor: greater is narrower, 0.001 … 1000; default 0.707.
    #[serde(rename = "Q", default = "default_q")]
    pub q: f64,
}

fn default_central_freq() -> [f64; 2] {
    [100.0; 2]
}

impl BassBiquad {
    /// Sets the gain, `[least, greatest]`.
    pub fn new(gain: [f64; 2]) -> Self {
        Self { gain, central_freq: default_central_freq(), q: default_q() }
    }

    /// Sets the center frequency, `[least, greatest]`.
    #[must_use]
    pub fn central_freq(self, central_freq: [f64; 2]) -> Self {
        Self { central_freq, ..self }
    }

    /// Sets the quality factor.
    #[must_use]
    pub fn q(self, q: f64) -> Self {
        Self { q, ..self }
    }
}

impl AudioOp for BassBiquad {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        let sample_rate = compiler.rate("its coefficients depend on the sample rate")?;
        let kind = Kind::Bass;
        let (frequency, gain) = (self.central_freq, self.gain);
        compiler.wave(Biquad { kind, sample_rate, frequency, gain, q: self.q }.checked("central_freq")?)
    }
}
