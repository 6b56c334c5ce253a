//! AAC in ADTS (ISO 13818-7): each frame has a header, and nothing states their number.

use std::io::Cursor;

use symphonia::core::formats::FormatOptions;
use symphonia::core::packet::PacketRef;
use symphonia::core::units::{Duration, Timestamp};
use symphonia::default::formats::AdtsReader;

use super::decoded::{Decoded, Losses};
use super::mono::Mono;
use super::mpeg::Trim;
use super::options::DecodeAudio;
use super::{faac, stream};
use crate::audio::format::{AudioFormat, unknown, unsupported};
use feedstock_base::Result;

/// The samples of every AAC frame.
pub(in crate::audio) const FRAME_SAMPLES: u64 = 1024;

/// Sample rates by their index.
pub(super) const RATES: [u32; 13] =
    [96_000, 88_200, 64_000, 48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 11_025, 8_000, 7_350];

/// What a frame's header states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::audio) struct AdtsHeader {
    pub(in crate::audio) sample_rate: u32,
    pub(in crate::audio) channels: u32,
    header_bytes: usize,
    pub(in crate::audio) bytes: usize,
}

impl AdtsHeader {
    pub(in crate::audio) fn parse(bytes: &[u8]) -> Option<Self> {
        let &[0xFF, second, third, fourth, fifth, sixth, _, ..] = bytes else { return None };
        if second & 0xF6 != 0xF0 {
            return None;
        }
        let header_bytes = if second & 1 == 0 { 9 } else { 7 };
        let length = usize::from(fourth & 3) << 11 | usize::from(fifth) << 3 | usize::from(sixth >> 5);
        let channels = u32::from(third & 1) << 2 | u32::from(fourth >> 6);
        Some(Self {
            sample_rate: *RATES.get(usize::from(third >> 2 & 15))?,
            // 7 means eight channels.
            channels: if channels == 7 { 8 } else { channels },
            header_bytes,
            bytes: length,
        })
        .filter(|header| header.bytes > header_bytes)
    }

    /// Returns the number of samples that the encoder put before the audio clip, as its first frame shows. That frame begins
    /// with this header.
    pub(in crate::audio) fn delay(&self, frame: &[u8]) -> u64 {
        let end = self.bytes.min(frame.len());
        faac::delay(frame.get(self.header_bytes..end).unwrap_or_default())
    }

    /// Returns the codec's name, if it is not decoded.
    pub(in crate::audio) fn unsupported_codec(&self) -> Option<&'static str> {
        (self.channels > 2).then_some("AAC of more than two channels")
    }

    fn same_stream(&self, other: &Self) -> bool {
        (self.sample_rate, self.channels) == (other.sample_rate, other.channels)
    }
}

pub(super) fn decode(op: &DecodeAudio, bytes: &[u8], out: &mut Vec<f32>) -> Result<Decoded> {
    let format = AudioFormat::Aac;
    let Some(first) = AdtsHeader::parse(bytes) else { return Err(unknown(bytes)) };
    if let Some(codec) = first.unsupported_codec() {
        return Err(unsupported(codec));
    }
    op.check_header(format, first.sample_rate, first.channels)?;
    let reader = AdtsReader::try_new(stream::source(Cursor::new(bytes)), FormatOptions::default())
        .map_err(|error| stream::refused(format, &error))?;
    let (_, parameters) = stream::audio_track(&reader)?;
    let mut decoder = stream::new_decoder(format, &parameters)?;
    let trim = Trim { start: first.delay(bytes), ..Trim::default() };
    let mut mono = Mono::new(op, trim, first.sample_rate, out);
    let mut losses = Losses::default();
    let (mut at, mut packets) = (0, 0);
    while at < bytes.len() {
        let header = AdtsHeader::parse(&bytes[at..]).filter(|header| header.same_stream(&first));
        let Some(header) = header else {
            let next = (at + 1..bytes.len()).find(|at| stands(bytes, *at, &first)).unwrap_or(bytes.len());
            // The number of frames that would have taken these bytes. A tag at the end is shorter than one frame.
            let mean = (at / losses_in_frames(&mono).max(1)).max(1);
            let missing = ((next - at) / mean) as u64 * FRAME_SAMPLES;
            lose(&mut losses, op, missing, &mut mono, first.sample_rate)?;
            at = next;
            continue;
        };
        let Some(frame) = bytes.get(at + header.header_bytes..at + header.bytes) else {
            // A partial last frame: only whole frames count.
            break;
        };
        at += header.bytes;
        packets += 1;
        op.check_packets(format, packets)?;
        match decoder.decode_ref(&PacketRef::new(0, Timestamp::ZERO, Duration::new(FRAME_SAMPLES), frame)) {
            Ok(buffer) => mono.push(&buffer)?,
            Err(_) => lose(&mut losses, op, FRAME_SAMPLES, &mut mono, first.sample_rate)?,
        }
    }
    losses.total = mono.position();
    losses.check(op, format, first.sample_rate)?;
    Ok(Decoded::whole(first.sample_rate, false))
}

fn losses_in_frames(mono: &Mono<'_>) -> usize {
    usize::try_from(mono.position() / FRAME_SAMPLES).unwrap_or(usize::MAX)
}

fn lose(losses: &mut Losses, op: &DecodeAudio, samples: u64, mono: &mut Mono<'_>, rate: u32) -> Result<()> {
    losses.lost += samples;
    // The share is checked at the end. Here, only a loss that exceeds the limits already ends decoding.
    op.check_decoded(losses.lost, rate)?;
    mono.silence(samples)
}

fn stands(bytes: &[u8], at: usize, first: &AdtsHeader) -> bool {
    let Some(header) = AdtsHeader::parse(&bytes[at..]).filter(|header| header.same_stream(first)) else {
        return false;
    };
    let next = at + header.bytes;
    next == bytes.len()
        || bytes.get(next..).and_then(AdtsHeader::parse).is_some_and(|next| next.same_stream(first))
}
