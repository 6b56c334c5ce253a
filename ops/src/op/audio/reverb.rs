//! `reverb`: the sound of a room, by its impulse response.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::audio::clip::Clip;
use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::convolution::{self, Convolver};
use crate::audio::parameters::single;
use crate::audio::step::WaveOp;
use crate::audio::sums::energy;
use crate::audio::wave_memory::WaveMemory;
use crate::check::check_probability;
use crate::resources::{Needs, Noise};
use crate::seed::Generator;
use feedstock_base::{Error, Result};

/// The longest impulse response, in seconds: those of cathedrals have about 10.
const MAX_SECONDS: u32 = 60;

/// Convolves the audio clip with an impulse response, drawn uniformly from a data set, as `torchaudio.functional.fftconvolve`.
///
/// As Kaldi's `wav-reverberate`, it keeps the length, the energy, and the time of the direct sound: the result starts at the
/// response's greatest magnitude. The chain is compiled with the responses in its [`Resources`](crate::Resources), decoded at the
/// sample rate of the waveform, so a `resample` must come before. Channels of a response are averaged, as `decode_audio` does; store
/// one channel of a microphone array, since its channels are shifted in time.
///
/// ```
/// use feedstock_ops::{ChainSpec, Need, Noise, Resources};
///
/// let spec: ChainSpec = "decode_audio,resample:16000,reverb:'s3://b/rirs':0.5".parse()?;
/// let uri = "s3://b/rirs".to_owned();
/// assert_eq!(spec.needs(), [Need::ImpulseResponses { uri, sample_rate: 16_000 }]);
/// let responses = Noise { sample_rate: 16_000, clips: vec![vec![0.0, 1.0, 0.3, 0.1]] };
/// spec.compile_with(&Resources::new().with_impulse_responses("s3://b/rirs", responses))?;
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Reverb {
    /// The URI of the data set of impulse responses.
    pub responses: String,
    /// 0 … 1; default 1.
    #[serde(default = "one")]
    pub probability: f64,
}

fn one() -> f64 {
    1.0
}

impl Reverb {
    /// Convolves with a response of the data set `responses` with `probability`, 0 … 1.
    pub fn new(responses: impl Into<String>, probability: f64) -> Self {
        Self { responses: responses.into(), probability }
    }
}

/// Checks one decoded impulse response.
///
/// # Errors
/// `BadConfig` for silence, for values that are not finite, and for more than 60 s.
pub fn check_impulse_response(response: &[f32], sample_rate: u32) -> Result<()> {
    let most = MAX_SECONDS as usize * sample_rate as usize;
    if response.len() > most {
        let length = response.len();
        return Err(Error::config(format!(
            "the impulse response has {length} samples, over the {most} of {MAX_SECONDS} s"
        )));
    }
    let energy = energy(response);
    if energy > 0.0 && energy.is_finite() {
        return Ok(());
    }
    Err(Error::config("the impulse response is silent or has values that are not finite"))
}

impl AudioOp for Reverb {
    fn compile(&self, compiler: &mut Compiler<'_>) -> Result<()> {
        check_probability(self.probability)?;
        let rate = compiler.rate("impulse responses are loaded at the waveform's rate")?;
        let uri = &self.responses;
        let responses = compiler.resources().impulse_responses(uri).ok_or_else(|| {
            Error::config(format!("the impulse responses {uri} are not loaded; compile with their resources"))
        })?;
        if responses.sample_rate != rate {
            return Err(Error::config(format!(
                "the impulse responses {uri} were loaded at {} Hz, but the waveform has {rate} Hz here; load them as \
                 ChainSpec::needs states",
                responses.sample_rate
            )));
        }
        if responses.clips.is_empty() {
            return Err(Error::config(format!("{uri} has no impulse responses")));
        }
        for (index, response) in responses.clips.iter().enumerate() {
            check_impulse_response(response, rate)
                .map_err(|error| error.context(format!("impulse response {index} of {uri}")))?;
        }
        let lengths = || responses.clips.iter().map(Vec::len);
        compiler.wave(Room {
            probability: self.probability,
            responses: Arc::clone(responses),
            convolver: Convolver::new(lengths()),
            bytes: lengths().map(convolution::working_bytes).max().unwrap_or(0),
        })
    }

    fn refer(&self, needs: &mut Needs) {
        needs.impulse_responses(&self.responses);
    }
}

/// [`Reverb`] with its impulse responses.
struct Room {
    probability: f64,
    responses: Arc<Noise>,
    convolver: Convolver,
    /// Working memory for any of the responses.
    bytes: u64,
}

impl WaveOp for Room {
    fn run(&self, clip: &mut Clip<'_>, generator: &mut Generator) -> Result<()> {
        if !generator.chance(self.probability) {
            return Ok(());
        }
        let drawn = generator.below(u32::try_from(self.responses.clips.len()).unwrap_or(u32::MAX));
        let Some(response) = self.responses.clips.get(drawn as usize) else { return Ok(()) };
        let (wave, scratch) = clip.wave_and_convolution();
        let before = energy(wave);
        self.convolver.run(wave, response, peak(response), scratch)?;
        let gain = (before / energy(wave)).sqrt();
        if gain.is_finite() {
            let gain = single(gain);
            wave.iter_mut().for_each(|x| *x *= gain);
        }
        Ok(())
    }

    fn count(&self, memory: &mut WaveMemory) {
        memory.take(self.bytes);
    }
}

/// The place of the greatest magnitude, the first of equal ones.
fn peak(response: &[f32]) -> usize {
    let most = response
        .iter()
        .enumerate()
        .max_by(|(at, a), (other_at, b)| a.abs().total_cmp(&b.abs()).then(other_at.cmp(at)));
    most.map_or(0, |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_first_greatest_magnitude() {
        assert_eq!([peak(&[0.1, -0.9, 0.9, 0.2]), peak(&[1.0]), peak(&[])], [1, 0, 0]);
    }

    #[test]
    fn responses_that_are_silent_or_too_long_are_refused() {
        assert!(check_impulse_response(&[0.0, 0.5], 8000).is_ok());
        for (response, words) in [
            (vec![0.0; 9], "silent"),
            (vec![f32::NAN], "not finite"),
            (vec![0.1; 481], "over the 480 of 60 s"),
        ] {
            let error = check_impulse_response(&response, 8).unwrap_err();
            assert!(error.message().contains(words), "{error}");
        }
    }
}
