//! The working memory of a chain of speech ops, from an audio clip's header.
//!
//! | part | bytes |
//! |---|---|
//! | waveform, and what `resample` and `speed_perturb` make of it: two buffers that change places | 4 a sample |
//! | features that are turned or made of others (`feature_major`, `mfcc`), and rows that are not aligned | 4 an element |
//! | levels of `trim_silence` | 8 a hop |
//! | where the frames of an MP3 or AAC audio clip lie | 112 a frame of at least 24 bytes; 64 a packet of an MP4 |
//! | codebooks of Vorbis | 8 MiB, at most `max_codebook_bytes` |
//! | filters of resampling | 1 MiB each |
//! | spectra of `reverb` | 16 a sample of the longest impulse response, and at most 1.7 MiB |
//! | blocks of the decoder, its tables, spectra | 4 MiB |
//!
//! Bytes that claim more samples than the header states are found while they are decoded: [`Scope::Most`] takes the limits of
//! `decode_audio` instead of those of the header, and of MPEG audio at most what its bytes can hold and the silence of lost
//! frames.

use std::borrow::Cow;

use super::decode::DecodeAudio;
use super::decode::sniff::{Container, sniff};
use super::format::AudioFormat;
use super::header::{AudioHeader, read_audio_header};
use super::scratch::AudioScratch;
use super::stages::Stages;
use super::wave_memory::WaveMemory;
use crate::buffer::fit;
use crate::scratch::Scratch;
use crate::working::Scope;
use feedstock_base::Result;

/// Samples that a header's word is exceeded by: an estimate's error, and frames at both ends.
const SLACK_SHARE: u64 = 64;
const SLACK_SAMPLES: u64 = 8192;

/// Samples of a byte, where the container has no count: 0.25 bytes a sample of FLAC, 6 kbit/s of Opus.
const FLAC_SAMPLES_A_BYTE: u64 = 4;
const OTHER_SAMPLES_A_BYTE: u64 = 64;

/// Samples of a byte of MPEG audio at most: layer III has up to 1,152 samples a frame of at least [`LEAST_FRAME`] bytes, and AAC
/// up to 2,048 (with SBR) a frame of at least 7, ADTS's header.
const MOST_MPEG_SAMPLES_A_BYTE: u64 = 48;
const MOST_ADTS_SAMPLES_A_BYTE: u64 = 293;

/// Stands for the rate of an audio clip whose header is refused.
const REFUSED_RATE: u32 = 48_000;

const FIXED_BYTES: u64 = 4 << 20;
/// A frame's place, in a buffer that may be twice as large; the smallest frame of layer III.
const FRAME_BYTES: u64 = 112;
const LEAST_FRAME: u64 = 24;
const MP4_PACKET_BYTES: u64 = 64;
const MP4_PACKET_SAMPLES: u64 = 1024;
/// libvorbis' largest codebooks are below 3 MB.
const USUAL_CODEBOOK_BYTES: u64 = 8 << 20;

/// What is known of an audio clip before it is decoded.
struct Claim {
    header: AudioHeader,
    container: Container,
    bytes: u64,
}

impl Claim {
    fn read(encoded: &[u8]) -> Self {
        let bytes = encoded.len() as u64;
        let container = sniff(encoded).map_or(Container::Mpeg, |(container, _)| container);
        // As if the file were longer: then the header estimates the number of frames and does not list them.
        let of = if matches!(container, Container::Mpeg | Container::Adts) { bytes + 1 } else { bytes };
        // The decoder refuses such a header, too, before it decodes anything.
        let header = read_audio_header(encoded, of).unwrap_or(AudioHeader {
            format: AudioFormat::Mp3,
            sample_rate: REFUSED_RATE,
            channels: 1,
            samples: Some(0),
            exact: false,
        });
        Self { header, container, bytes }
    }

    fn stated_samples(&self) -> u64 {
        let stated = self.header.samples.unwrap_or_else(|| match self.header.format {
            AudioFormat::Flac => self.bytes * FLAC_SAMPLES_A_BYTE / u64::from(self.header.channels.max(1)),
            _ => self.bytes * OTHER_SAMPLES_A_BYTE,
        });
        stated.saturating_add(stated / SLACK_SHARE).saturating_add(SLACK_SAMPLES)
    }

    /// What the bytes can hold, whatever the header states. Frames that the tag of an MP3 counts and the file lacks become
    /// silence, up to `max_lost_share` of all samples.
    fn most_samples(&self, max_lost_share: f64) -> u64 {
        let of_a_byte = match self.container {
            Container::Mpeg => MOST_MPEG_SAMPLES_A_BYTE,
            Container::Adts => MOST_ADTS_SAMPLES_A_BYTE,
            _ => return u64::MAX,
        };
        let held = self.bytes.saturating_mul(of_a_byte);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturation is meant")]
        let with_silence = (held as f64 / (1.0 - max_lost_share)).ceil() as u64;
        held.saturating_add(SLACK_SAMPLES).max(self.stated_samples().min(with_silence))
    }
}

/// Returns the decoder's options for an audio clip: with limits that keep it within the working memory of `scratch`.
pub(super) fn within_memory<'a>(
    stages: &'a Stages,
    encoded: &[u8],
    scratch: &mut Scratch,
) -> Result<Cow<'a, DecodeAudio>> {
    let op = Cow::Borrowed(&stages.decode);
    if !scratch.is_bounded() {
        return Ok(op);
    }
    let claim = Claim::read(encoded);
    let scope = scratch.admit(|scope| stages.working_bytes(&claim, scope))?;
    let samples = stages.samples(&claim, scope);
    // All at once, because a buffer that grows is there twice for a time.
    fit(&mut scratch.part::<AudioScratch>().wave, usize::try_from(samples).unwrap_or(usize::MAX));
    Ok(match scope {
        Scope::Most => op,
        Scope::Stated => Cow::Owned(stages.decode.tightened(samples, USUAL_CODEBOOK_BYTES)),
    })
}

impl Stages {
    /// Returns the most samples of an audio clip.
    fn samples(&self, claim: &Claim, scope: Scope) -> u64 {
        let most = most_samples(&self.decode, claim.header.sample_rate)
            .min(claim.most_samples(self.decode.max_lost_share));
        match scope {
            Scope::Most => most,
            Scope::Stated => claim.stated_samples().min(most),
        }
    }

    /// Returns the working memory for an audio clip.
    fn working_bytes(&self, claim: &Claim, scope: Scope) -> u64 {
        let samples = self.samples(claim, scope);
        let codebooks = match (claim.header.format, scope) {
            (AudioFormat::Vorbis, Scope::Stated) => USUAL_CODEBOOK_BYTES.min(self.decode.max_codebook_bytes),
            (AudioFormat::Vorbis, Scope::Most) => self.decode.max_codebook_bytes,
            _ => 0,
        };
        let frames = match claim.container {
            Container::Mpeg | Container::Adts => FRAME_BYTES * (claim.bytes / LEAST_FRAME),
            Container::Mp4 => MP4_PACKET_BYTES * (samples / MP4_PACKET_SAMPLES).min(claim.bytes),
            _ => 0,
        };
        let waves = self.wave_bytes(samples, claim.header.sample_rate.max(1));
        (FIXED_BYTES + frames).saturating_add(codebooks).saturating_add(waves)
    }

    /// Bytes of the waveforms and features of an audio clip of `clip_samples` samples.
    fn wave_bytes(&self, clip_samples: u64, sample_rate: u32) -> u64 {
        let mut memory = WaveMemory::new(clip_samples, sample_rate);
        for (_, op) in &self.waves {
            op.count(&mut memory);
        }
        let elements = match &self.extractor {
            None => memory.length(),
            Some(extractor) => {
                let length = usize::try_from(memory.length()).unwrap_or(usize::MAX);
                let frames = extractor.count(length) as u64;
                let features = frames.saturating_mul(extractor.width() as u64);
                let turned = if self.feature_major { features } else { 0 };
                memory.take(4 * (extractor.between(frames).saturating_add(turned)));
                features
            }
        };
        memory.bytes(if self.output.is_ragged() { 0 } else { elements })
    }
}

/// The samples that `op`'s limits allow an audio clip of this rate.
fn most_samples(op: &DecodeAudio, sample_rate: u32) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturation is meant")]
    let by_seconds = (op.max_seconds * f64::from(sample_rate)).ceil() as u64;
    let by_bytes = op.max_decoded_bytes / size_of::<f32>() as u64;
    op.max_samples.min(by_seconds.max(1)).min(by_bytes)
}
