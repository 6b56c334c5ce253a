//! `allpass_biquad`: shifts phases around a center.

use serde::{Deserialize, Serialize};

use crate::audio::biquad::{Biquad, Kind, default_q};
use crate::audio::compile::{AudioOp, Compiler};
use feedstock_base::Result;

/// Shifts phases around a center and keeps all amplitudes, by a filter of second order, as `torchaudio.functional.allpass_biquad`.
///
/// The filter runs in double precision, starts from silence, and limits its result to −1 … 1, as torchaudio's.
///
/// ```
/// use feedstock_ops::ChainSpec;
///
/// ChainSpec::parse("decode_audio,resample:16000,allpass_biquad:300..3000:Q=1")?.compile()?;
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct AllpassBiquad {
    /// The center frequency in Hz, below half of the sample rate: least and greatest, drawn uniformly; one number is both.
    #[serde(deserialize_with = "crate::check::range")]
    pub central_freq: [f64; 2],
    /// The quality factor: greater is narrower, 0.001 … 1000; default 0.707.
    #[serde(rename = "Q", default = "default_q")]
    pub q: f64,
}

impl AllpassBiquad {
    /// Sets the center frequency, `[least, greatest]`.
    pub fn new(central_freq: [f64; 2]) -> Self {
        Self { central_freq, q: default_q() }
    }

    /// Sets the quality factor.
    #[must_use]
    pub fn q(self, q: f64) -> Self {
        Self { q, ..self }
    }
}

impl AudioOp for AllpassBiquad {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        let sample_rate = compiler.rate("its coefficients depend on the sample rate")?;
        let (kind, frequency, gain) = (Kind::Allpass, self.central_freq, [0.0; 2]);
        compiler.wave(Biquad { kind, sample_rate, frequency, gain, q: self.q }.checked("central_freq")?)
    }
}
