//! RIFF/WAVE: our own walk over the chunks, symphonia's decoder for the samples.

use symphonia::core::audio::{Channels, layouts};
use symphonia::core::codecs::audio::well_known as codec;
use symphonia::core::codecs::audio::{AudioCodecId, AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::packet::PacketRef;
use symphonia::core::units::{Duration, Timestamp};
use symphonia::default::codecs::PcmDecoder;

use super::decoded::{Decoded, Losses};
use super::mono::Mono;
use super::mpeg::Trim;
use super::options::DecodeAudio;
use crate::audio::format::{AudioFormat, unsupported};
use feedstock_base::{Error, Result};

/// Samples (of one channel) that are decoded at once: 8 channels of f64 are 512 KiB, which fit the second-level cache.
const PACKET_SAMPLES: usize = 8192;

/// Writers that do not know the length write the largest number, minus the size of the headers. A larger value than this does
/// not state a length. An audio clip of that size would exceed any limit anyway.
const ENDLESS_BYTES: u32 = 0x7FFF_0000;

/// The content of the chunks before the samples.
#[derive(Debug, Clone, Copy)]
pub(in crate::audio) struct WavHeader {
    pub(in crate::audio) sample_rate: u32,
    pub(in crate::audio) channels: u32,
    codec: AudioCodecId,
    /// Bytes of one sample of all channels.
    frame_bytes: u32,
    data_at: u64,
    /// `None` if the writer did not know it.
    data_bytes: Option<u32>,
}

impl WavHeader {
    /// Reads `head`, the first bytes of an audio clip.
    pub(in crate::audio) fn parse(head: &[u8]) -> Result<Self> {
        let mut at = 12_u64;
        let mut format = None;
        loop {
            let chunk = usize::try_from(at).ok().and_then(|at| head.get(at..)).unwrap_or_default();
            let (Some(name), Some(size)) = (chunk.first_chunk::<4>(), le32(chunk, 4)) else {
                return Err(Error::bad_sample(format!(
                    "the WAV audio clip ends after {} bytes, before its {} chunk",
                    head.len(),
                    if format.is_none() { "fmt" } else { "data" }
                )));
            };
            at += 8;
            match name {
                b"fmt " => format = Some(Format::parse(&chunk[8..], size)?),
                b"data" => {
                    let Some(Format { sample_rate, channels, codec, frame_bytes }) = format else {
                        return Err(Error::bad_sample("the WAV audio clip has no fmt chunk before its data"));
                    };
                    let known = size < ENDLESS_BYTES && (size > 0 || chunk.len() <= 8);
                    let data_bytes = known.then_some(size);
                    return Ok(Self { sample_rate, channels, codec, frame_bytes, data_at: at, data_bytes });
                }
                _ => {}
            }
            // Chunks start at even places.
            at += u64::from(size) + u64::from(size & 1);
        }
    }

    /// Returns the samples of one channel in an audio clip of `total_bytes`, and whether all are present.
    pub(in crate::audio) fn samples(&self, total_bytes: u64) -> (u64, bool) {
        let there = total_bytes.saturating_sub(self.data_at);
        let said = self.data_bytes.map_or(there, u64::from);
        (said / u64::from(self.frame_bytes), said <= there)
    }
}

struct Format {
    sample_rate: u32,
    channels: u32,
    codec: AudioCodecId,
    frame_bytes: u32,
}

impl Format {
    fn parse(chunk: &[u8], size: u32) -> Result<Self> {
        let chunk = &chunk[..chunk.len().min(size as usize)];
        let fields = (kind_of(chunk), le16(chunk, 2), le32(chunk, 4), le16(chunk, 14));
        let (Some(kind), Some(channels), Some(sample_rate), Some(bits)) = fields else {
            return Err(Error::bad_sample(format!(
                "the WAV audio clip's fmt chunk has {} bytes of 16",
                chunk.len()
            )));
        };
        let Some((codec, bytes)) = codec_of(kind, bits) else { return Err(unsupported(codec_name(kind))) };
        // The block alignment is wrong in many files; libsndfile and ffmpeg ignore it, too.
        let channels = u32::from(channels);
        Ok(Self { sample_rate, channels, codec, frame_bytes: channels.max(1) * bytes })
    }
}

const PCM: u16 = 1;
const FLOAT: u16 = 3;
const A_LAW: u16 = 6;
const MU_LAW: u16 = 7;
const EXTENSIBLE: u16 = 0xFFFE;

/// Returns the format's number; that of the subformat if the format is extensible.
fn kind_of(chunk: &[u8]) -> Option<u16> {
    let kind = le16(chunk, 0)?;
    Some(if kind == EXTENSIBLE { le16(chunk, 24).unwrap_or(kind) } else { kind })
}

/// Returns the codec, and the bytes of a sample of one channel; `None` if it is not decoded.
fn codec_of(kind: u16, bits: u16) -> Option<(AudioCodecId, u32)> {
    Some(match (kind, bits) {
        (PCM, 8) => (codec::CODEC_ID_PCM_U8, 1),
        (PCM, 9..=16) => (codec::CODEC_ID_PCM_S16LE, 2),
        (PCM, 17..=24) => (codec::CODEC_ID_PCM_S24LE, 3),
        (PCM, 25..=32) => (codec::CODEC_ID_PCM_S32LE, 4),
        (FLOAT, 32) => (codec::CODEC_ID_PCM_F32LE, 4),
        (FLOAT, 64) => (codec::CODEC_ID_PCM_F64LE, 8),
        (A_LAW, 8) => (codec::CODEC_ID_PCM_ALAW, 1),
        (MU_LAW, 8) => (codec::CODEC_ID_PCM_MULAW, 1),
        _ => return None,
    })
}

/// Returns the name of a codec that is not decoded (registered numbers of RFC 2361).
fn codec_name(kind: u16) -> &'static str {
    match kind {
        PCM => "PCM of an unsupported depth in WAV",
        FLOAT => "float of an unsupported depth in WAV",
        0x0002 => "Microsoft ADPCM",
        0x0011 => "IMA ADPCM",
        0x0014 | 0x0040 | 0x0045 => "G.726 or G.721 ADPCM",
        0x0020 => "Yamaha ADPCM",
        0x0022 => "TrueSpeech",
        0x0031 => "GSM 6.10",
        0x0050 => "MPEG audio layer II (MP2) in WAV",
        0x0055 => "MP3 in WAV",
        0x00FF | 0x1600 | 0x1602 | 0x1610 => "AAC in WAV",
        0x0160..=0x0163 => "WMA",
        0x2000 => "AC-3",
        _ => "an unknown one in WAV",
    }
}

/// Returns the codec's name, if the fmt chunk states one that is not decoded.
pub(in crate::audio) fn codec_in_wav(head: &[u8]) -> Option<&'static str> {
    let mut at = 12_usize;
    loop {
        let chunk = head.get(at..)?;
        let (name, size) = (chunk.first_chunk::<4>()?, le32(chunk, 4)?);
        if name == b"fmt " {
            let (kind, bits) = (kind_of(&chunk[8..])?, le16(&chunk[8..], 14)?);
            return codec_of(kind, bits).is_none().then(|| codec_name(kind));
        }
        at = at.checked_add(8)?.checked_add(usize::try_from(u64::from(size) + u64::from(size & 1)).ok()?)?;
    }
}

fn le16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn le32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn decode(op: &DecodeAudio, bytes: &[u8], out: &mut Vec<f32>) -> Result<Decoded> {
    let header = WavHeader::parse(bytes)?;
    let WavHeader { sample_rate, channels, codec, frame_bytes, data_at, .. } = header;
    op.check_header(AudioFormat::Wav, sample_rate, channels)?;
    let (samples, _) = header.samples(bytes.len() as u64);
    op.check_samples(AudioFormat::Wav, samples, (sample_rate, channels))?;
    let frame_bytes = frame_bytes as usize;
    let data = usize::try_from(data_at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
    let there = samples.min((data.len() / frame_bytes) as u64);
    let losses = Losses { lost: samples - there, total: samples, ended_early: true };
    losses.check(op, AudioFormat::Wav, sample_rate)?;

    let mut parameters = AudioCodecParameters::new();
    parameters
        .for_codec(codec)
        .with_sample_rate(sample_rate)
        .with_channels(if channels == 1 { layouts::CHANNEL_LAYOUT_MONO } else { discrete(channels) })
        .with_max_frames_per_packet(PACKET_SAMPLES as u64);
    let mut decoder = PcmDecoder::try_new(&parameters, &AudioDecoderOptions::default())
        .map_err(|error| Error::bad_sample("the WAV audio clip cannot be decoded").with_source(error))?;
    let mut mono = Mono::new(op, Trim::default(), sample_rate, out);
    // At most max_samples, each of which has bytes in the audio clip.
    let whole = usize::try_from(there).unwrap_or(usize::MAX).saturating_mul(frame_bytes);
    for packet in data[..whole.min(data.len())].chunks(PACKET_SAMPLES * frame_bytes) {
        let decoded = decoder
            .decode_ref(&PacketRef::new(0, Timestamp::ZERO, Duration::ZERO, packet))
            .map_err(|error| Error::bad_sample("the WAV audio clip cannot be decoded").with_source(error))?;
        mono.push(&decoded)?;
    }
    mono.silence(losses.lost)?;
    Ok(Decoded::whole(sample_rate, header.data_bytes.is_some()))
}

/// Returns channels without positions: only their mean is used.
fn discrete(channels: u32) -> Channels {
    Channels::Discrete(u16::try_from(channels).unwrap_or(u16::MAX))
}
