//! AAC in MP4 (ISO 14496-12): symphonia reads the sample tables; the edit list, which states where the audio clip
//! begins, is read here.
//!
//! The audio clip begins where the edit list states, so the encoder's delay is cut off, as in ffmpeg. Without an edit
//! list, the delay of the encoder FAAC is cut off. The audio clip ends where the sample table states: the last frame's
//! duration may be shorter than a frame, and ffmpeg (5.1) keeps its padding.

use std::io::Cursor;

use symphonia::core::codecs::audio::well_known::CODEC_ID_AAC;
use symphonia::core::formats::FormatOptions;
use symphonia::core::io::ReadOnlySource;
use symphonia::default::formats::IsoMp4Reader;

use super::adts::RATES;
use super::decoded::Decoded;
use super::mp4_boxes::{all, be32, boxes, inside};
use super::mpeg::Trim;
use super::options::DecodeAudio;
use super::stream::{self, Track};
use super::{faac, mp4_tables};
use crate::audio::format::{AudioFormat, unsupported};
use feedstock_base::{Error, Result};

/// The first audio track's header.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::audio) struct Mp4Header {
    pub(in crate::audio) sample_rate: u32,
    pub(in crate::audio) channels: u32,
    /// Samples before the audio clip's first: the encoder's delay.
    pub(in crate::audio) delay: u64,
    /// All samples, including the delay.
    pub(in crate::audio) samples: u64,
    /// Whether an edit list or the first packet showed the delay. The first packet may be beyond the bytes that were read.
    pub(in crate::audio) delay_is_known: bool,
    timescale: u32,
}

impl Mp4Header {
    /// Returns `None` if `head` does not contain the whole header, which may follow the audio.
    pub(in crate::audio) fn parse(head: &[u8]) -> Option<Self> {
        let movie = inside(head, &[b"moov"])?;
        boxes(movie).filter(|(name, _)| name == b"trak").find_map(|(_, track)| Self::track(track, head))
    }

    fn track(track: &[u8], head: &[u8]) -> Option<Self> {
        let media = inside(track, &[b"mdia"])?;
        if inside(media, &[b"hdlr"])?.get(8..12) != Some(b"soun") {
            return None;
        }
        let header = inside(media, &[b"mdhd"])?;
        let timescale = be32(header, if header.first() == Some(&1) { 20 } else { 12 })?;
        let table = inside(media, &[b"minf", b"stbl"])?;
        // One sample entry: its size and name, 8 bytes, 8 of version and vendor, channels, bits, 4, rate.
        let entry = inside(table, &[b"stsd"])?.get(8..)?;
        let said = (be32(entry, 32)? >> 16, u32::from(u16::from_be_bytes(*entry.get(24..)?.first_chunk()?)));
        // The entry's own fields are often wrong (ffmpeg writes two channels always); the codec's are right.
        let (sample_rate, channels) =
            inside(entry.get(36..)?, &[b"esds"]).and_then(aac_config).unwrap_or(said);
        let times = inside(table, &[b"stts"])?;
        let entries = times.get(8..)?.chunks_exact(8);
        let duration = entries.fold(0_u64, |sum, entry| {
            let (count, each) = (be32(entry, 0).unwrap_or(0), be32(entry, 4).unwrap_or(0));
            sum.saturating_add(u64::from(count) * u64::from(each))
        });
        let edit = inside(track, &[b"edts", b"elst"]).and_then(first_edit);
        // Rates over 65535 do not fit the entry. The timescale is the rate in every known audio file.
        let sample_rate = if sample_rate == 0 { timescale } else { sample_rate };
        let scaled = |time: u64| {
            let samples = u128::from(time) * u128::from(sample_rate) / u128::from(timescale.max(1));
            u64::try_from(samples).unwrap_or(u64::MAX)
        };
        let first_packet = first_packet_at(table).and_then(|at| head.get(at..)).unwrap_or_default();
        Some(Self {
            sample_rate,
            channels,
            delay: edit.map_or_else(|| faac::delay(first_packet), scaled),
            samples: scaled(duration),
            delay_is_known: edit.is_some() || first_packet.len() >= faac::ELEMENT_BYTES,
            timescale,
        })
    }
}

/// Returns the name of the first audio track's codec, if no audio track is decoded: symphonia leaves tracks of codecs out that it
/// does not know.
pub(in crate::audio) fn codec_in_mp4(head: &[u8]) -> Option<&'static str> {
    let media = all(head, &[b"moov", b"trak", b"mdia"]);
    let is_audio =
        |media: &&&[u8]| inside(media, &[b"hdlr"]).is_some_and(|handler| handler.get(8..12) == Some(b"soun"));
    let codecs: Option<Vec<&'static str>> =
        media.iter().filter(is_audio).map(|media| codec_of_track(media)).collect();
    codecs?.first().copied()
}

/// Returns the name of a track's codec, if it is not decoded.
fn codec_of_track(media: &[u8]) -> Option<&'static str> {
    let entry = inside(media, &[b"minf", b"stbl", b"stsd"])?.get(8..)?;
    Some(match entry.get(4..8)?.first_chunk::<4>()? {
        b"mp4a" => return inside(entry.get(36..)?, &[b"esds"]).and_then(codec_of_mp4a),
        b"alac" => "ALAC",
        b"ac-3" => "AC-3",
        b"ec-3" => "E-AC-3",
        b"samr" => "AMR-NB",
        b"sawb" => "AMR-WB",
        b"Opus" => "Opus in MP4",
        b"fLaC" => "FLAC in MP4",
        b".mp3" => "MP3 in MP4",
        b"enca" | b"drms" => "encrypted",
        b"ima4" => "IMA ADPCM",
        b"dtsc" | b"dtsh" | b"dtsl" | b"dtse" => "DTS",
        b"lpcm" | b"sowt" | b"twos" | b"in24" | b"in32" | b"fl32" | b"fl64" | b"ipcm" | b"fpcm" => {
            "PCM in MP4"
        }
        _ => "an unknown one in MP4",
    })
}

/// Returns the codec's name, if an `esds` box states one that is not decoded.
fn codec_of_mp4a(bytes: &[u8]) -> Option<&'static str> {
    let (object, config) = descriptors(bytes)?;
    match object {
        0x40 => {}
        0x69 | 0x6B => return Some("MP3 in MP4"),
        0xA5 => return Some("AC-3"),
        0xA9 => return Some("DTS"),
        0xDD => return Some("Vorbis in MP4"),
        _ => return None, // AAC of MPEG-2, and what has no name
    }
    // Five bits of audio object type; 31 means that six more bits follow.
    let first = *config.first()?;
    let kind = match first >> 3 {
        31 => 32 + ((first & 7) << 3 | config.get(1)? >> 5),
        kind => kind,
    };
    match kind {
        1 => Some("AAC Main"),
        3 => Some("AAC SSR"),
        4 => Some("AAC LTP"),
        5 => Some("HE-AAC"),
        29 => Some("HE-AAC v2"),
        23 => Some("AAC-LD"),
        39 => Some("AAC-ELD"),
        42 => Some("xHE-AAC"),
        _ => aac_config(bytes).filter(|(_, channels)| *channels > 2).map(|_| "AAC of more than two channels"),
    }
}

/// Returns the object type and the AudioSpecificConfig (ISO 14496-3) in the nested descriptors of an `esds` box. The
/// configuration is empty if there is none.
fn descriptors(bytes: &[u8]) -> Option<(u8, &[u8])> {
    // The stream's, the decoder's and the codec's descriptor, each with fields before the next.
    let (kind, bytes) = descriptor(bytes.get(4..)?)?;
    let (inner, bytes) = descriptor(bytes.get(3..)?)?;
    let (&object, fields) = bytes.split_first().filter(|_| (kind, inner) == (3, 4))?;
    let config = fields.get(12..).and_then(descriptor).filter(|(kind, _)| *kind == 5);
    Some((object, config.map_or(&[][..], |(_, config)| config)))
}

/// Returns a descriptor's kind, and the bytes after its length.
fn descriptor(bytes: &[u8]) -> Option<(u8, &[u8])> {
    let (&kind, rest) = bytes.split_first()?;
    // Seven bits of the length per byte, and a bit that is set if more follow.
    let length_bytes = 1 + rest.iter().take(3).take_while(|byte| **byte & 0x80 != 0).count();
    Some((kind, rest.get(length_bytes..)?))
}

/// Returns sample rate and channels of an AudioSpecificConfig (ISO 14496-3), inside its nested descriptors.
fn aac_config(bytes: &[u8]) -> Option<(u32, u32)> {
    let (_, bytes) = descriptors(bytes)?;
    // Five bits of object type, four of rate (15: 24 bits of it follow), four of channels.
    let bits = bytes.iter().take(5).fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte))
        << (8 * 5_usize.saturating_sub(bytes.len()));
    let field = |at: u32, width: u32| u32::try_from(bits >> (40 - at - width) & ((1 << width) - 1)).ok();
    let (sample_rate, channels) = match field(5, 4)? {
        15 => (field(9, 24)?, field(33, 4)?),
        index => (*RATES.get(index as usize)?, field(9, 4)?),
    };
    // 7 means eight channels; 0 means a list of channels further on.
    let channels = if channels == 7 { 8 } else { channels };
    (channels > 0).then_some((sample_rate, channels))
}

/// Returns the start of the first packet in the file, from the table of chunks (`stco`, or `co64` in files over 4 GiB).
fn first_packet_at(table: &[u8]) -> Option<usize> {
    if let Some(chunks) = inside(table, &[b"stco"]) {
        return usize::try_from(be32(chunks, 8)?).ok();
    }
    let at = inside(table, &[b"co64"])?.get(8..)?.first_chunk()?;
    usize::try_from(u64::from_be_bytes(*at)).ok()
}

/// Returns the start in the media of the first edit that is not empty.
fn first_edit(list: &[u8]) -> Option<u64> {
    let wide = *list.first()? == 1;
    list.get(8..)?.chunks_exact(if wide { 20 } else { 12 }).find_map(|entry| {
        if wide {
            u64::try_from(i64::from_be_bytes(*entry.get(8..)?.first_chunk()?)).ok()
        } else {
            u64::try_from(i32::from_be_bytes(*entry.get(4..)?.first_chunk()?)).ok()
        }
    })
}

pub(super) fn decode(op: &DecodeAudio, bytes: &[u8], out: &mut Vec<f32>) -> Result<Decoded> {
    let format = AudioFormat::Aac;
    let Some(header) = Mp4Header::parse(bytes) else {
        return Err(Error::bad_sample(
            "the MP4 audio clip has no audio track, or ends before its header, which may follow the audio",
        ));
    };
    if let Some(codec) = codec_in_mp4(bytes) {
        return Err(unsupported(codec));
    }
    let Mp4Header { sample_rate, channels, delay, samples, timescale, .. } = header;
    op.check_header(format, sample_rate, channels)?;
    op.check_samples(format, samples.saturating_sub(delay), (sample_rate, channels))?;
    let steps = mp4_tables::search_steps(bytes, op.max_packets);
    op.check_steps(format, steps)?;
    // A reader that can seek needs all boxes whole; one that cannot needs the header before the audio.
    let in_front = boxes(bytes).take_while(|(name, _)| name != b"mdat").any(|(name, _)| name == *b"moov");
    let media = if in_front {
        stream::source(ReadOnlySource::new(bytes))
    } else {
        stream::source(Cursor::new(bytes))
    };
    let mut reader = IsoMp4Reader::try_new(media, FormatOptions::default())
        .map_err(|error| stream::refused(format, &error))?;
    let (id, parameters) = stream::audio_track(&reader)?;
    if parameters.codec != CODEC_ID_AAC {
        return Err(Error::bad_sample(
            "the MP4 audio clip's audio is not AAC, the only codec in MP4 that is decoded",
        ));
    }
    let mut decoder = stream::new_decoder(format, &parameters)?;
    // Fragmented files have no sample table: their length is that of their content.
    let known = (samples > 0).then(|| samples.saturating_sub(delay));
    let end = if samples > 0 { samples..u64::MAX } else { 0..0 };
    let track = Track {
        format,
        sample_rate,
        samples: known,
        trim: Trim { start: delay, end },
        timed: samples > 0 && timescale == sample_rate,
        loses_in_gaps: &|| true,
        bytes: bytes.len(),
        steps,
    };
    stream::decode(op, &mut reader, &mut *decoder, (id, track), out)?;
    Ok(Decoded::whole(sample_rate, known.is_some()))
}
