//! The options of `decode_audio`: the limits of an audio clip's cost, and their checks.

use std::fmt::Display;

use serde::{Deserialize, Serialize};

use crate::audio::format::AudioFormat;
use crate::audio::limits::{
    MAX_CHANNELS, MAX_CODEBOOK_BYTES, MAX_DECODED_BYTES, MAX_LOST_SHARE, MAX_PACKETS, MAX_SAMPLE_RATE,
    MAX_SAMPLES, MAX_SECONDS, MAX_STEPS,
};
use crate::limits::over;
use crate::working::exceeds;
use feedstock_base::{Error, Result};

/// Decodes an MP3, FLAC, Ogg Vorbis, WAV or AAC audio clip into one channel, the mean of its channels.
///
/// ```
/// use feedstock_ops::{ChainSpec, audio::DecodeAudio};
///
/// let chain = ChainSpec::from([DecodeAudio::new().max_seconds(30.0).into()]).compile()?;
/// assert!(chain.output().is_ragged());
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct DecodeAudio {
    /// The longest audio clip, in seconds; default 600. Checked against the header, and while decoding.
    #[serde(default = "max_seconds")]
    pub max_seconds: f64,
    /// The most samples (of one channel), at any sample rate; default 57,600,000, which is 600 s at 96 kHz.
    #[serde(default = "max_samples")]
    pub max_samples: u64,
    /// The highest sample rate, in Hz; default 384,000.
    #[serde(default = "max_sample_rate")]
    pub max_sample_rate: u32,
    /// The most channels; default 8.
    #[serde(default = "max_channels")]
    pub max_channels: u32,
    /// The share of an audio clip, 0 … 1, that may be lost to damaged frames or a missing end, which become silence; default
    /// 0.02. With 1, any loss is accepted.
    #[serde(default = "max_lost_share")]
    pub max_lost_share: f64,
    /// The most packets (frames of MP3, FLAC and AAC) that an audio clip's tracks may have; default 4,194,304.
    #[serde(default = "max_packets", skip_serializing_if = "is_max_packets")]
    pub max_packets: u64,
    /// The most steps of looking for an audio clip's packets, beyond one pass over its bytes; default 268,435,456. A
    /// step is a byte looked at again, 16 bytes copied again, 4 entries of a table passed over for a packet, or a byte
    /// of a packet that cannot be decoded, with 1024 more for each such packet. It bounds the time for files that are
    /// made to be searched: false page and frame headers, long tables.
    #[serde(default = "max_steps", skip_serializing_if = "is_max_steps")]
    pub max_steps: u64,
    /// The most bytes that the codebooks of a Vorbis audio clip may take once unpacked; default 67,108,864.
    #[serde(default = "max_codebook_bytes", skip_serializing_if = "is_max_codebook_bytes")]
    pub max_codebook_bytes: u64,
    /// The most bytes of f32 that all channels of an audio clip decode to, 4 for each sample of each channel; default
    /// 460,800,000, which is `max_samples` in stereo. It bounds the time for audio clips of many channels.
    #[serde(default = "max_decoded_bytes", skip_serializing_if = "is_max_decoded_bytes")]
    pub max_decoded_bytes: u64,
    /// Takes this channel instead of the mean. Only [`decode_channels`] sets it, so it is not part of a recipe.
    #[serde(skip)]
    pub(super) channel: Option<usize>,
    /// Whether limits are below those of the recipe, for lack of working memory.
    #[serde(skip)]
    is_tightened: bool,
}

fn max_seconds() -> f64 {
    MAX_SECONDS
}

fn max_samples() -> u64 {
    MAX_SAMPLES
}

fn max_sample_rate() -> u32 {
    MAX_SAMPLE_RATE
}

fn max_channels() -> u32 {
    MAX_CHANNELS
}

fn max_lost_share() -> f64 {
    MAX_LOST_SHARE
}

fn max_packets() -> u64 {
    MAX_PACKETS
}

fn max_steps() -> u64 {
    MAX_STEPS
}

fn max_codebook_bytes() -> u64 {
    MAX_CODEBOOK_BYTES
}

fn max_decoded_bytes() -> u64 {
    MAX_DECODED_BYTES
}

// Limits that were added later are written only if they differ from the default, so that earlier descriptions keep their hash.
fn is_max_packets(packets: &u64) -> bool {
    *packets == MAX_PACKETS
}

fn is_max_steps(steps: &u64) -> bool {
    *steps == MAX_STEPS
}

fn is_max_codebook_bytes(bytes: &u64) -> bool {
    *bytes == MAX_CODEBOOK_BYTES
}

fn is_max_decoded_bytes(bytes: &u64) -> bool {
    *bytes == MAX_DECODED_BYTES
}

impl Default for DecodeAudio {
    fn default() -> Self {
        Self {
            max_seconds: MAX_SECONDS,
            max_samples: MAX_SAMPLES,
            max_sample_rate: MAX_SAMPLE_RATE,
            max_channels: MAX_CHANNELS,
            max_lost_share: MAX_LOST_SHARE,
            max_packets: MAX_PACKETS,
            max_steps: MAX_STEPS,
            max_codebook_bytes: MAX_CODEBOOK_BYTES,
            max_decoded_bytes: MAX_DECODED_BYTES,
            channel: None,
            is_tightened: false,
        }
    }
}

impl DecodeAudio {
    /// Returns the default options.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the longest audio clip, in seconds.
    #[must_use]
    pub fn max_seconds(self, seconds: f64) -> Self {
        Self { max_seconds: seconds, ..self }
    }

    /// Sets the most samples per channel.
    #[must_use]
    pub fn max_samples(self, samples: u64) -> Self {
        Self { max_samples: samples, ..self }
    }

    /// Sets the highest sample rate, in Hz.
    #[must_use]
    pub fn max_sample_rate(self, sample_rate: u32) -> Self {
        Self { max_sample_rate: sample_rate, ..self }
    }

    /// Sets the most channels.
    #[must_use]
    pub fn max_channels(self, channels: u32) -> Self {
        Self { max_channels: channels, ..self }
    }

    /// Sets the share of an audio clip that may be lost.
    #[must_use]
    pub fn max_lost_share(self, share: f64) -> Self {
        Self { max_lost_share: share, ..self }
    }

    /// Sets the most packets of an audio clip.
    #[must_use]
    pub fn max_packets(self, packets: u64) -> Self {
        Self { max_packets: packets, ..self }
    }

    /// Sets the most steps of looking for an audio clip's packets, beyond one pass over its bytes.
    #[must_use]
    pub fn max_steps(self, steps: u64) -> Self {
        Self { max_steps: steps, ..self }
    }

    /// Sets the most bytes of a Vorbis audio clip's codebooks.
    #[must_use]
    pub fn max_codebook_bytes(self, bytes: u64) -> Self {
        Self { max_codebook_bytes: bytes, ..self }
    }

    /// Sets the most bytes of f32 that all channels of an audio clip decode to.
    #[must_use]
    pub fn max_decoded_bytes(self, bytes: u64) -> Self {
        Self { max_decoded_bytes: bytes, ..self }
    }

    /// Returns the same options for one channel instead of the mean of all.
    pub(super) fn of_channel(&self, channel: Option<usize>) -> Self {
        Self { channel, ..self.clone() }
    }

    /// Returns the same options with tighter limits. An audio clip with more samples or codebooks ends with [`exceeds`].
    pub(in crate::audio) fn tightened(&self, samples: u64, codebook_bytes: u64) -> Self {
        Self {
            max_samples: self.max_samples.min(samples),
            max_codebook_bytes: self.max_codebook_bytes.min(codebook_bytes),
            is_tightened: true,
            ..self.clone()
        }
    }

    /// Returns the error about an audio clip whose `found` is over the limit of an option that
    /// [`tightened`](Self::tightened) sets.
    pub(super) fn over(&self, found: impl Display, option: &str, limit: u64) -> Error {
        if self.is_tightened { exceeds() } else { over(found, option, limit) }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !(self.max_seconds.is_finite() && self.max_seconds > 0.0) {
            return Err(Error::config(format!("max_seconds must be above 0; got {}", self.max_seconds)));
        }
        if !(0.0..=1.0).contains(&self.max_lost_share) {
            return Err(Error::config(format!("max_lost_share must be 0 … 1; got {}", self.max_lost_share)));
        }
        let zeros = [
            ("max_samples", self.max_samples == 0),
            ("max_sample_rate", self.max_sample_rate == 0),
            ("max_channels", self.max_channels == 0),
            ("max_packets", self.max_packets == 0),
            ("max_steps", self.max_steps == 0),
            ("max_codebook_bytes", self.max_codebook_bytes == 0),
            ("max_decoded_bytes", self.max_decoded_bytes == 0),
        ];
        match zeros.iter().find(|(_, zero)| *zero) {
            Some((name, _)) => Err(Error::config(format!("{name} must be at least 1; got 0"))),
            None => Ok(()),
        }
    }

    /// Checks a header before anything is allocated for it.
    pub(super) fn check_header(&self, format: AudioFormat, sample_rate: u32, channels: u32) -> Result<()> {
        if sample_rate == 0 || channels == 0 {
            return Err(Error::bad_sample(format!(
                "the {format} header states {sample_rate} Hz, {channels} channels; an audio clip needs at least one of each"
            )));
        }
        if sample_rate > self.max_sample_rate {
            let found = format!("the {format} header states {sample_rate} Hz");
            return Err(over(found, "max_sample_rate", self.max_sample_rate));
        }
        if channels > self.max_channels {
            let found = format!("the {format} header states {channels} channels");
            return Err(over(found, "max_channels", self.max_channels));
        }
        Ok(())
    }

    /// Checks the number of packets.
    pub(super) fn check_packets(&self, format: AudioFormat, packets: u64) -> Result<()> {
        if packets > self.max_packets {
            return Err(over(
                format!("the {format} audio clip has at least {packets} packets"),
                "max_packets",
                self.max_packets,
            ));
        }
        Ok(())
    }

    /// Checks the number of search steps.
    pub(super) fn check_steps(&self, format: AudioFormat, steps: u64) -> Result<()> {
        if steps > self.max_steps {
            let found = format!("it takes {steps} steps to find the packets of the {format} audio clip");
            return Err(over(found, "max_steps", self.max_steps));
        }
        Ok(())
    }

    /// Checks a stated length, of each channel.
    pub(super) fn check_samples(
        &self,
        format: AudioFormat,
        samples: u64,
        (sample_rate, channels): (u32, u32),
    ) -> Result<()> {
        self.check_length(samples, sample_rate, || format!("the {format} audio clip states that it is"))?;
        self.check_values(samples.saturating_mul(channels.into()))
    }

    /// Checks the samples of all channels together.
    pub(super) fn check_values(&self, values: u64) -> Result<()> {
        let bytes = values.saturating_mul(size_of::<f32>() as u64);
        if bytes > self.max_decoded_bytes {
            let found = format!("the audio clip's channels decode to at least {bytes} bytes");
            return Err(over(found, "max_decoded_bytes", self.max_decoded_bytes));
        }
        Ok(())
    }

    /// Checks a decoded length.
    pub(super) fn check_decoded(&self, samples: u64, sample_rate: u32) -> Result<()> {
        self.check_length(samples, sample_rate, || "the audio clip is at least".to_owned())
    }

    fn check_length(&self, samples: u64, sample_rate: u32, who: impl Fn() -> String) -> Result<()> {
        let seconds = samples as f64 / f64::from(sample_rate);
        if seconds > self.max_seconds {
            return Err(over(format!("{} {seconds:.1} s long", who()), "max_seconds", self.max_seconds));
        }
        if samples > self.max_samples {
            let found = format!("{} {samples} samples long", who());
            return Err(self.over(found, "max_samples", self.max_samples));
        }
        Ok(())
    }

    /// Checks the number of samples that are decoded and then cut off, such as the encoder's delay and padding.
    pub(super) fn check_cut_off(&self, samples: u64) -> Result<()> {
        if samples > self.max_samples {
            let found =
                format!("at least {samples} samples before and after the audio clip are decoded and cut off");
            return Err(self.over(found, "max_samples", self.max_samples));
        }
        Ok(())
    }
}
