//! `decode_audio`: MP3, FLAC, Ogg Vorbis, WAV and AAC into one channel of f32.
//!
//! ```text
//! bytes ─▶ sniff by magic bytes ─▶ header and limits ─▶ frames ─▶ mean of the channels, trimmed ─▶ out: Vec<f32>
//!          (ID3 tags skipped)       (before any allocation)   └─ a lost frame is silence of its length
//! ```
//! symphonia decodes the frames; where they lie is told here for MP3, WAV and the edit lists of MP4, by symphonia for
//! the rest. Intact MP3s that are resampled to less than half their rate are decoded here, at half of it
//! (`layer3/`).
//!
//! - **Gapless as ffmpeg**: the encoder's delay and padding are cut off where LAME or libavformat wrote them (MP3), by
//!   the last page's granule (Ogg), by the edit list (M4A). An MP3 without such a tag keeps the decoder's delay, in
//!   ffmpeg as here.
//! - **Alignment is kept**: frames that are damaged or overwritten become silence of the same length, where ffmpeg
//!   and mpg123 close the gap. Their share of the clip is bounded by `max_lost_share`; a missing end counts as lost.
//! - **Ends that the container cannot prove**: an MP3 without a count of its frames (CBR without a Xing, Info or VBRI
//!   tag), ADTS, FLAC without a count of its samples, or Ogg without the end-of-stream flag may have lost its end without
//!   a trace. The clip then ends with its last whole frame or page, as in libsndfile and ffmpeg.
//! - **Bytes**: equal clips give equal samples in every thread and at every time. Lossless formats are bit-identical on
//!   all machines; symphonia's tables and transforms for the lossy ones are not promised to be, in their last bits.
//! - **Not here**: HE-AAC (its lower half is taken where the header does not tell), the delay that only iTunes' own
//!   tag tells, free-format MP3, layers I and II, more than two channels of Opus.

pub(super) mod adts;
mod faac;
pub(super) mod flac;
mod layer3;
mod mono;
mod mp3;
pub(super) mod mp4;
mod mp4_tables;
pub(super) mod mpeg;
pub(super) mod ogg;
mod stream;
mod vorbis;
pub(super) mod wav;

use serde::{Deserialize, Serialize};

use super::header::{AudioFormat, read_audio_header};
use crate::chain::Op;
use crate::limits::{
    MAX_CHANNELS, MAX_CODEBOOK_BYTES, MAX_DECODED_BYTES, MAX_LOST_SHARE, MAX_PACKETS, MAX_SAMPLE_RATE,
    MAX_SAMPLES, MAX_SECONDS, MAX_STEPS, over,
};
use crate::warning::{Warning, Warnings};
use crate::working::exceeds;
use feedstock_base::{Error, Result};
use std::fmt::Display;

/// Decodes an MP3, FLAC, Ogg Vorbis, WAV or AAC clip into one channel, the mean of its channels.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct DecodeAudio {
    /// The longest clip, in seconds; default 600. Checked on what the header claims, and while decoding.
    #[serde(default = "max_seconds")]
    pub max_seconds: f64,
    /// The most samples (of one channel), whatever the sample rate; default 57,600,000, which is 600 s at 96 kHz.
    #[serde(default = "max_samples")]
    pub max_samples: u64,
    /// The highest sample rate, in Hz; default 384,000.
    #[serde(default = "max_sample_rate")]
    pub max_sample_rate: u32,
    /// The most channels; default 8.
    #[serde(default = "max_channels")]
    pub max_channels: u32,
    /// The share of a clip, 0 … 1, that may be lost to damaged frames or a missing end, which become silence; default
    /// 0.02. With 1, what is there is taken.
    #[serde(default = "max_lost_share")]
    pub max_lost_share: f64,
    /// The most packets (frames of MP3, FLAC and AAC) that a clip's tracks may have; default 4,194,304.
    #[serde(default = "max_packets", skip_serializing_if = "is_max_packets")]
    pub max_packets: u64,
    /// The most steps of looking for a clip's packets, beyond one pass over its bytes; default 268,435,456. A step is a byte
    /// looked at again, 16 bytes copied again, 4 entries of a table passed over for a packet, or a byte of a packet that cannot
    /// be decoded, with 1024 more for each such packet. It bounds the time for files that are made to be searched: false page
    /// and frame headers, long tables.
    #[serde(default = "max_steps", skip_serializing_if = "is_max_steps")]
    pub max_steps: u64,
    /// The most bytes that the codebooks of a Vorbis clip may take once unpacked; default 67,108,864.
    #[serde(default = "max_codebook_bytes", skip_serializing_if = "is_max_codebook_bytes")]
    pub max_codebook_bytes: u64,
    /// The most bytes of f32 that all channels of an audio clip decode to, 4 for each sample of each channel; default 460,800,000, which
    /// is `max_samples` in stereo. It bounds the time for clips of many channels.
    #[serde(default = "max_decoded_bytes", skip_serializing_if = "is_max_decoded_bytes")]
    pub max_decoded_bytes: u64,
    /// Takes this channel instead of the mean. Only [`decode_channels`] sets it, so it is no part of a recipe.
    #[serde(skip)]
    pub(super) channel: Option<usize>,
    /// Limits are below those of the recipe, for lack of working memory.
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

// Limits that came later are written only where they differ from the default: descriptions of before keep their hash.
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
    /// With the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The longest clip, in seconds.
    #[must_use]
    pub fn max_seconds(self, seconds: f64) -> Self {
        Self { max_seconds: seconds, ..self }
    }

    /// The most samples a channel.
    #[must_use]
    pub fn max_samples(self, samples: u64) -> Self {
        Self { max_samples: samples, ..self }
    }

    /// The highest sample rate, in Hz.
    #[must_use]
    pub fn max_sample_rate(self, sample_rate: u32) -> Self {
        Self { max_sample_rate: sample_rate, ..self }
    }

    /// The most channels.
    #[must_use]
    pub fn max_channels(self, channels: u32) -> Self {
        Self { max_channels: channels, ..self }
    }

    /// The share of a clip that may be lost.
    #[must_use]
    pub fn max_lost_share(self, share: f64) -> Self {
        Self { max_lost_share: share, ..self }
    }

    /// The most packets of a clip.
    #[must_use]
    pub fn max_packets(self, packets: u64) -> Self {
        Self { max_packets: packets, ..self }
    }

    /// The most steps of looking for a clip's packets, beyond one pass over its bytes.
    #[must_use]
    pub fn max_steps(self, steps: u64) -> Self {
        Self { max_steps: steps, ..self }
    }

    /// The most bytes of a Vorbis clip's codebooks.
    #[must_use]
    pub fn max_codebook_bytes(self, bytes: u64) -> Self {
        Self { max_codebook_bytes: bytes, ..self }
    }

    /// The most bytes of f32 that all channels of a clip decode to.
    #[must_use]
    pub fn max_decoded_bytes(self, bytes: u64) -> Self {
        Self { max_decoded_bytes: bytes, ..self }
    }

    /// Returns the same options, with which a clip that has more samples or codebooks ends with [`exceeds`].
    pub(super) fn tightened(&self, samples: u64, codebook_bytes: u64) -> Self {
        Self {
            max_samples: self.max_samples.min(samples),
            max_codebook_bytes: self.max_codebook_bytes.min(codebook_bytes),
            is_tightened: true,
            ..self.clone()
        }
    }

    /// Returns the error about a clip of which `found` is over the limit of an option that [`tightened`](Self::tightened) sets.
    fn over(&self, found: impl Display, option: &str, limit: u64) -> Error {
        if self.is_tightened { exceeds() } else { over(found, option, limit) }
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !(self.max_seconds.is_finite() && self.max_seconds > 0.0) {
            return Err(Error::config(format!("max_seconds {} must be positive", self.max_seconds)));
        }
        if !(0.0..=1.0).contains(&self.max_lost_share) {
            return Err(Error::config(format!("max_lost_share {} must be 0 … 1", self.max_lost_share)));
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
            Some((name, _)) => Err(Error::config(format!("{name} must be positive"))),
            None => Ok(()),
        }
    }

    /// Refuses a header before anything is allocated for it.
    fn check_header(&self, format: AudioFormat, sample_rate: u32, channels: u32) -> Result<()> {
        if sample_rate == 0 || channels == 0 {
            return Err(Error::bad_sample(format!(
                "the {format} header says {sample_rate} Hz, {channels} channels; a clip needs at least one of each"
            )));
        }
        if sample_rate > self.max_sample_rate {
            let found = format!("the {format} header says {sample_rate} Hz");
            return Err(over(found, "max_sample_rate", self.max_sample_rate));
        }
        if channels > self.max_channels {
            let found = format!("the {format} header says {channels} channels");
            return Err(over(found, "max_channels", self.max_channels));
        }
        Ok(())
    }

    /// Refuses too many packets.
    fn check_packets(&self, format: AudioFormat, packets: u64) -> Result<()> {
        if packets > self.max_packets {
            return Err(over(
                format!("the {format} clip has at least {packets} packets"),
                "max_packets",
                self.max_packets,
            ));
        }
        Ok(())
    }

    /// Refuses too much searching.
    fn check_steps(&self, format: AudioFormat, steps: u64) -> Result<()> {
        if steps > self.max_steps {
            let found = format!("it takes {steps} steps to find the packets of the {format} clip");
            return Err(over(found, "max_steps", self.max_steps));
        }
        Ok(())
    }

    /// Refuses a claimed length, of each of the channels.
    fn check_samples(
        &self,
        format: AudioFormat,
        samples: u64,
        (sample_rate, channels): (u32, u32),
    ) -> Result<()> {
        self.check_length(samples, sample_rate, || format!("the {format} clip says that it is"))?;
        self.check_values(samples.saturating_mul(channels.into()))
    }

    /// Refuses too many samples of all channels together.
    fn check_values(&self, values: u64) -> Result<()> {
        let bytes = values.saturating_mul(size_of::<f32>() as u64);
        if bytes > self.max_decoded_bytes {
            let found = format!("the clip's channels decode to at least {bytes} bytes");
            return Err(over(found, "max_decoded_bytes", self.max_decoded_bytes));
        }
        Ok(())
    }

    /// Refuses a decoded length.
    fn check_decoded(&self, samples: u64, sample_rate: u32) -> Result<()> {
        self.check_length(samples, sample_rate, || "the clip is at least".to_owned())
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

    /// Refuses samples that are decoded and then cut off, as the encoder's delay and padding are.
    fn check_cut_off(&self, samples: u64) -> Result<()> {
        if samples > self.max_samples {
            let found =
                format!("at least {samples} samples before and after the clip are decoded and cut off");
            return Err(self.over(found, "max_samples", self.max_samples));
        }
        Ok(())
    }
}

impl From<DecodeAudio> for Op {
    fn from(op: DecodeAudio) -> Self {
        Self::DecodeAudio(op)
    }
}

/// [`DecodeAudio`] with its defaults.
pub fn decode_audio() -> Op {
    DecodeAudio::default().into()
}

/// What a clip's bytes begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    /// Frames of MPEG audio, perhaps after junk.
    Mpeg,
    Adts,
    Flac,
    Ogg,
    Wav,
    Mp4,
}

/// Tells the container by its magic bytes, and where it starts after ID3 tags.
pub(super) fn sniff(bytes: &[u8]) -> Result<(Container, usize)> {
    if bytes.is_empty() {
        return Err(Error::bad_sample("the clip is empty (0 bytes)"));
    }
    let tags = mpeg::id3_bytes(bytes);
    let start = usize::try_from(tags).unwrap_or(usize::MAX);
    let Some(rest) = bytes.get(start..).filter(|rest| !rest.is_empty()) else {
        return Err(Error::bad_sample(format!(
            "the clip's ID3 tags are {tags} bytes long, and there are only {}: it ends before its audio",
            bytes.len()
        )));
    };
    let container = match rest {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => Container::Wav,
        [b'f', b'L', b'a', b'C', ..] => Container::Flac,
        [b'O', b'g', b'g', b'S', ..] => Container::Ogg,
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => Container::Mp4,
        // Twelve bits of sync and layer 0.
        [0xFF, second, ..] if second & 0xF6 == 0xF0 => Container::Adts,
        _ => Container::Mpeg,
    };
    Ok((container, start))
}

pub(super) fn unknown(bytes: &[u8]) -> Error {
    Error::bad_sample(format!(
        "{} bytes starting with {:02x?} are no MP3, FLAC, Ogg, WAV, M4A or AAC",
        bytes.len(),
        &bytes[..bytes.len().min(12)]
    ))
}

/// How much of a clip is not there or could not be decoded, in samples.
#[derive(Debug, Clone, Copy, Default)]
struct Losses {
    lost: u64,
    total: u64,
    ended_early: bool,
}

impl Losses {
    fn check(&self, op: &DecodeAudio, format: AudioFormat, sample_rate: u32) -> Result<()> {
        let share = self.lost as f64 / self.total.max(1) as f64;
        if share <= op.max_lost_share {
            return Ok(());
        }
        let seconds = |samples: u64| samples as f64 / f64::from(sample_rate);
        let (lost, total) = (seconds(self.lost), seconds(self.total));
        let what = if self.ended_early { "ends early or is damaged" } else { "is damaged" };
        let found = format!(
            "the {format} clip {what}: {lost:.2} s of {total:.2} s are lost ({:.1} %)",
            share * 100.0
        );
        Err(over(found, "max_lost_share", op.max_lost_share))
    }
}

/// What one thread keeps between clips.
#[derive(Default)]
pub(crate) struct AudioDecoder {
    mp3: mp3::Mp3Decoder,
}

/// What was decoded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Decoded {
    /// The clip's own, in Hz.
    pub(crate) sample_rate: u32,
    /// The clip's samples, where only every second one of them was decoded.
    pub(crate) halved: Option<u64>,
    pub(crate) warnings: Warnings,
}

impl Decoded {
    /// All samples of a clip of which the container does, or does not, prove the end.
    fn whole(sample_rate: u32, end_known: bool) -> Self {
        let warning = (!end_known).then_some(Warning::EndUnknown);
        Self { sample_rate, halved: None, warnings: warning.into_iter().collect() }
    }
}

impl AudioDecoder {
    pub(crate) fn kept_bytes(&self) -> usize {
        self.mp3.kept_bytes()
    }

    /// Replaces `out` by the clip's samples, one channel in −1 … 1: by every second one, where that is cheaper and
    /// enough for a clip that is resampled to `to` Hz next.
    ///
    /// Values of float formats beyond ±1 are kept. After an error the content of `out` is unspecified.
    ///
    /// # Errors
    /// `BadSample` where the bytes are none of the formats, are over a limit, end early, lose more than
    /// `max_lost_share`, or decode to no samples or to some that are not finite.
    pub(crate) fn decode(
        &mut self,
        op: &DecodeAudio,
        encoded: &[u8],
        to: Option<u32>,
        out: &mut Vec<f32>,
    ) -> Result<Decoded> {
        out.clear();
        let (container, start) = sniff(encoded)?;
        let decoded = match container {
            Container::Mpeg => self.mp3.decode(op, encoded, start, to, out)?,
            Container::Wav => wav::decode(op, &encoded[start..], out)?,
            Container::Flac => flac::decode(op, &encoded[start..], out)?,
            Container::Ogg => ogg::decode(op, &encoded[start..], out)?,
            Container::Mp4 => mp4::decode(op, &encoded[start..], out)?,
            Container::Adts => adts::decode(op, &encoded[start..], out)?,
        };
        if out.is_empty() {
            return Err(Error::bad_sample("the clip holds no samples"));
        }
        // 0 · x is 0 for every number, and NaN for what is none.
        let sum: f32 = out.iter().map(|value| value * 0.0).sum();
        if sum != 0.0 {
            let at = out.iter().position(|value| !value.is_finite()).unwrap_or_default();
            return Err(Error::bad_sample(format!(
                "sample {at} of the clip is {}, not a finite number",
                out[at]
            )));
        }
        Ok(decoded)
    }
}

/// Decodes a whole clip: its sample rate in Hz, and its samples, one channel in −1 … 1.
///
/// # Errors
/// `BadSample`, as [`Chain::apply`](crate::Chain::apply).
pub fn decode_mono(bytes: &[u8], op: &DecodeAudio) -> Result<(u32, Vec<f32>)> {
    decode_mono_warned(bytes, op).map(|(rate, samples, _)| (rate, samples))
}

/// As [`decode_mono`], with what is unusual about the clip.
///
/// # Errors
/// `BadSample`, as [`decode_mono`].
pub fn decode_mono_warned(bytes: &[u8], op: &DecodeAudio) -> Result<(u32, Vec<f32>, Warnings)> {
    let mut samples = Vec::new();
    let decoded = AudioDecoder::default().decode(op, bytes, None, &mut samples)?;
    Ok((decoded.sample_rate, samples, decoded.warnings))
}

/// Decodes every channel of a whole clip: its sample rate in Hz, and one vector of samples in −1 … 1 for each channel.
///
/// Ops work on the mean of the channels; this is for programs that compare decoders. The clip is decoded once for each
/// channel.
///
/// # Errors
/// `BadSample`, as [`decode_mono`].
pub fn decode_channels(bytes: &[u8], op: &DecodeAudio) -> Result<(u32, Vec<Vec<f32>>)> {
    let channels = read_audio_header(bytes, bytes.len() as u64)?.channels;
    let mut sample_rate = 0;
    let decoded = (0..channels).map(|channel| {
        let op = DecodeAudio { channel: usize::try_from(channel).ok(), ..op.clone() };
        let (rate, samples) = decode_mono(bytes, &op)?;
        sample_rate = rate;
        Ok(samples)
    });
    let decoded: Vec<_> = decoded.collect::<Result<_>>()?;
    Ok((sample_rate, decoded))
}
