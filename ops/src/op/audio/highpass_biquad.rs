//! `highpass_biquad`: keeps frequencies above a cutoff.

use serde::{Deserialize, Serialize};

use crate::audio::biquad::{Biquad, Kind, default_q};
use crate::audio::compile::{AudioOp, Compiler};
use feedstock_base::Result;

/// Keeps frequencies above a cutoff, by a filter of second order, as `torchaudio.functional.highpass_biquad`.
///
/// The filter runs in double precision, starts from silence, and limits its result to −1 … 1, as torchaudio's.
///
/// ```
/// use feedstock_ops::ChainSpec;
///
/// ChainSpec::parse("decode_audio,resample:16000,highpass_biquad:80..300:Q=1")?.compile()?;
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct HighpassBiquad {
    /// The cutoff frequency in Hz, below half of the sample rate: least and greatest, drawn uniformly; one number is both.
    #[serde(deserialize_with = "crate::check::range")]
    pub cutoff_freq: [f64; 2],
    /// The quality factor: greater is narrower, 0.001 … 1000; default 0.707.
    #[serde(rename = "Q", default = "default_q")]
    pub q: f64,
}

impl HighpassBiquad {
    /// Sets the cutoff frequency, `[least, greatest]`.
    pub fn new(cutoff_freq: [f64; 2]) -> Self {
        Self { cutoff_freq, q: default_q() }
    }

    /// Sets the quality factor.
    #[must_use]
    pub fn q(self, q: f64) -> Self {
        Self { q, ..self }
    }
}

impl AudioOp for HighpassBiquad {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        let sample_rate = compiler.rate("its coefficients depend on the sample rate")?;
        let kind = Kind::Highpass;
        let (frequency, gain) = (self.cutoff_freq, [0.0; 2]);
        compiler.wave(Biquad { kind, sample_rate, frequency, gain, q: self.q }.checked("cutoff_freq")?)
    }
}
