//! FLAC (RFC 9639). STREAMINFO is read here, so that symphonia gets no other metadata. Megabytes of cover art are skipped
//! instead of read.

use std::io::{Cursor, Read};
use std::ops::RangeInclusive;

use symphonia::core::formats::FormatOptions;
use symphonia::core::io::ReadOnlySource;
use symphonia::default::formats::FlacReader;

use super::decoded::{Decoded, Losses};
use super::flac_format::{STREAM_INFO_BYTES, StreamInfo};
use super::mpeg::Trim;
use super::options::DecodeAudio;
use super::stream::{self, Track};
use crate::audio::format::AudioFormat;
use feedstock_base::{Error, Result};

/// Returns the start of the first frame.
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

/// Returns an upper bound of the steps that symphonia (0.6.1) takes to find the frames in `audio`, beyond one pass over it.
/// From each place that looks like a frame's header, it reads again about the number of bytes of the last frames.
fn search_steps(audio: &[u8]) -> u64 {
    /// The fewest and the most bytes that are read at once.
    const READ_BYTES: RangeInclusive<usize> = 1024..=32 << 10;
    /// The most parts from which a frame is assembled. Each begins with bytes that look like a header.
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
    // An ID3v1 tag would break the last frame's checksum.
    if let Some((rest, tag)) = audio.split_last_chunk::<128>()
        && tag.starts_with(b"TAG")
    {
        audio = rest;
    }
    if audio.is_empty() {
        let total = info.samples.unwrap_or(1);
        Losses { lost: total, total, ended_early: true }.check(op, format, info.sample_rate)?;
        return Err(Error::bad_sample("the FLAC audio clip ends before its first frame"));
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
