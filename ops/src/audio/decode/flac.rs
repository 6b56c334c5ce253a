//! FLAC (RFC 9639): STREAMINFO is read here, so that symphonia sees no other metadata: megabytes of cover art are
//! skipped, not read.

use std::io::{Cursor, Read};
use std::ops::RangeInclusive;

use symphonia::core::checksum::Crc16Ansi;
use symphonia::core::formats::FormatOptions;
use symphonia::core::io::{Monitor, ReadOnlySource};
use symphonia::default::formats::FlacReader;

use super::mpeg::Trim;
use super::stream::{self, Track};
use super::{DecodeAudio, Decoded, Losses};
use crate::audio::header::AudioFormat;
use feedstock_base::{Error, Result};

const STREAM_INFO_BYTES: usize = 34;

/// What STREAMINFO says.
#[derive(Debug, Clone, Copy)]
pub(in crate::audio) struct StreamInfo {
    pub(in crate::audio) sample_rate: u32,
    pub(in crate::audio) channels: u32,
    /// None where the encoder did not know.
    pub(in crate::audio) samples: Option<u64>,
    block: [u8; STREAM_INFO_BYTES],
}

impl StreamInfo {
    /// Reads the block that is the first after `fLaC`.
    pub(in crate::audio) fn parse(head: &[u8]) -> Result<Self> {
        let block = head.get(4..8).filter(|header| header[0] & 0x7F == 0).and_then(|_| head.get(8..));
        let Some(block) = block.and_then(|rest| rest.first_chunk::<STREAM_INFO_BYTES>()).copied() else {
            return Err(Error::bad_sample("the FLAC clip does not begin with a whole STREAMINFO block"));
        };
        let packed = u64::from_be_bytes([
            block[10], block[11], block[12], block[13], block[14], block[15], block[16], block[17],
        ]);
        // 20 bits of rate, 3 of channels − 1, 5 of bits − 1, 36 of samples.
        let (sample_rate, channels) = ((packed >> 44) as u32, (packed >> 41 & 7) as u32 + 1);
        let samples = packed & 0xF_FFFF_FFFF;
        Ok(Self { sample_rate, channels, samples: (samples > 0).then_some(samples), block })
    }
}

/// Whether a frame's checksum, its last two bytes, is right.
pub(super) fn is_intact(frame: &[u8]) -> bool {
    let Some((content, checksum)) = frame.split_last_chunk::<2>() else { return false };
    let mut crc = Crc16Ansi::new(0);
    crc.process_buf_bytes(content);
    crc.crc() == u16::from_be_bytes(*checksum)
}

/// Where the first frame lies.
fn audio_at(bytes: &[u8]) -> Option<usize> {
    let mut at = 4;
    loop {
        let &[kind, a, b, c] = bytes.get(at..)?.first_chunk::<4>()?;
        at += 4 + u32::from_be_bytes([0, a, b, c]) as usize;
        if kind & 0x80 != 0 {
            return (at <= bytes.len()).then_some(at);
        }
    }
}

/// An upper bound of the steps that symphonia (0.6.1) takes to find the frames in `audio`, beyond one pass over it. From each
/// place that looks like a frame's header on it reads, anew, about as many bytes as the last frames had.
fn search_steps(audio: &[u8]) -> u64 {
    /// Fewest and most bytes that are read at once.
    const READ_BYTES: RangeInclusive<usize> = 1024..=32 << 10;
    /// The most parts that a frame is put together from, each of which begins with what looks like a header.
    const PARTS: usize = 5;
    // 14 bits of sync.
    let headers = memchr::memchr_iter(0xFF, audio)
        .filter(|at| audio.get(at + 1).is_some_and(|second| second & 0xFC == 0xF8));
    let (mut count, mut last, mut longest) = (0_u64, 0, 0);
    for at in headers {
        (count, longest) = (count + 1, longest.max(at - last));
        last = at;
    }
    let read =
        longest.max(audio.len() - last).saturating_mul(PARTS).clamp(*READ_BYTES.start(), *READ_BYTES.end());
    let again = count.saturating_mul(read as u64).saturating_sub(audio.len() as u64);
    again / stream::COPIED_BYTES_PER_STEP
}

pub(super) fn decode(op: &DecodeAudio, bytes: &[u8], out: &mut Vec<f32>) -> Result<Decoded> {
    let format = AudioFormat::Flac;
    let info = StreamInfo::parse(bytes)?;
    op.check_header(format, info.sample_rate, info.channels)?;
    op.check_samples(format, info.samples.unwrap_or(0), (info.sample_rate, info.channels))?;
    let mut audio = audio_at(bytes).map(|at| &bytes[at..]).unwrap_or_default();
    // An ID3v1 tag would spoil the last frame's checksum.
    if let Some((rest, tag)) = audio.split_last_chunk::<128>()
        && tag.starts_with(b"TAG")
    {
        audio = rest;
    }
    if audio.is_empty() {
        let total = info.samples.unwrap_or(1);
        Losses { lost: total, total, ended_early: true }.check(op, format, info.sample_rate)?;
        return Err(Error::bad_sample("the FLAC clip ends before its first frame"));
    }

    let steps = search_steps(audio);
    op.check_steps(format, steps)?;
    let mut header = Vec::with_capacity(8 + STREAM_INFO_BYTES);
    header.extend_from_slice(b"fLaC\x80\0\0\x22"); // the last block, 34 bytes of STREAMINFO
    header.extend_from_slice(&info.block);
    let media = stream::source(ReadOnlySource::new(Cursor::new(header).chain(Cursor::new(audio))));
    let mut reader = FlacReader::try_new(media, FormatOptions::default())
        .map_err(|error| stream::refused(format, &error))?;
    let (id, parameters) = stream::audio_track(&reader)?;
    let mut decoder = stream::new_decoder(format, &parameters)?;
    let track = Track {
        format,
        sample_rate: info.sample_rate,
        samples: info.samples,
        trim: Trim::default(),
        timed: true,
        loses_in_gaps: &|| true,
        bytes: bytes.len(),
        steps,
    };
    stream::decode(op, &mut reader, &mut *decoder, (id, track), out)?;
    Ok(Decoded::whole(info.sample_rate, info.samples.is_some()))
}
