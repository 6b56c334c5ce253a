//! MPEG audio layer III as a stream of frames: their positions, the tag before them, and missing frames.
//!
//! ```text
//! ID3v2 … │ Xing/Info/VBRI frame │ frame │ frame │ garbage │ frame │ … │ half a frame │ ID3v1, APEv2, Lyrics3
//!  skipped   count, delay, padding   └──────┴── walk ──┴────────┘        the clip was cut   skipped
//! ```
//! Specifications: ISO 11172-3 and 13818-3 for the header; the Xing, LAME and VBRI tags as every decoder reads them.

use std::ops::Range;

use super::options::DecodeAudio;
use crate::audio::format::{AudioFormat, unknown};
use feedstock_base::{Error, Result};

/// The most junk before the first frame, in addition to ID3 tags: 64 KiB, the largest padding seen in files that other
/// decoders play.
const MAX_JUNK_BYTES: usize = 64 << 10;

/// The delay of every layer III decoder: 528 samples of the filter banks and 1 of the synthesis window. LAME counts
/// its own delay and padding without it.
const DECODER_DELAY: u64 = 528 + 1;

/// The content of a frame's four header bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    /// 3, 2 and 0: MPEG-1, -2, -2.5.
    version: u8,
    pub(crate) sample_rate: u32,
    pub(crate) channels: u32,
    /// Bytes of the whole frame.
    pub(crate) bytes: usize,
    /// Samples per channel: 1152, or 576 for MPEG-2 and -2.5.
    pub(crate) samples: u32,
    checksum: bool,
}

impl FrameHeader {
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        const MPEG1_KBPS: [u32; 15] = [0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320];
        const MPEG2_KBPS: [u32; 15] = [0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160];
        let &[sync, second, third, fourth, ..] = bytes else { return None };
        let (version, layer) = (second >> 3 & 3, second >> 1 & 3);
        let (bit_rate, rate) = (usize::from(third >> 4), usize::from(third >> 2 & 3));
        // Layer III is coded as 1. A bit rate of 0 is "free", which no decoder here supports.
        if sync != 0xFF || second < 0xE0 || version == 1 || layer != 1 || rate == 3 || bit_rate == 0 {
            return None;
        }
        let mpeg1 = version == 3;
        let kbps = *(if mpeg1 { MPEG1_KBPS } else { MPEG2_KBPS }).get(bit_rate)?;
        let halved = match version {
            3 => 0,
            2 => 1,
            _ => 2,
        };
        let sample_rate = [44_100_u32, 48_000, 32_000][rate] >> halved;
        let samples = if mpeg1 { 1152 } else { 576 };
        let bytes = samples / 8 * kbps * 1000 / sample_rate + u32::from(third >> 1 & 1);
        Some(Self {
            version,
            sample_rate,
            channels: if fourth >> 6 == 3 { 1 } else { 2 },
            bytes: bytes as usize,
            samples,
            checksum: second & 1 == 0,
        })
    }

    /// Whether two frames belong to one stream: they may differ only in bit rate and padding.
    pub(crate) fn same_stream(&self, other: &Self) -> bool {
        (self.version, self.sample_rate, self.channels) == (other.version, other.sample_rate, other.channels)
    }

    fn side_info_bytes(&self) -> usize {
        match (self.version == 3, self.channels) {
            (true, 1) | (false, 2) => 17,
            (true, _) => 32,
            (false, _) => 9,
        }
    }

    /// Returns the range of a frame's side information, which main data follow.
    pub(super) fn side_info(&self) -> Range<usize> {
        let start = 4 + if self.checksum { 2 } else { 0 };
        start..start + self.side_info_bytes()
    }

    fn main_data_bytes(&self) -> usize {
        self.bytes.saturating_sub(self.side_info().end)
    }

    /// Returns the number of bytes of earlier frames' main data with which this frame begins.
    fn main_data_begin(&self, frame: &[u8]) -> usize {
        let at = self.side_info().start;
        match *frame.get(at..at + 2).unwrap_or(&[0, 0]) {
            [high, low] if self.version == 3 => usize::from(high) << 1 | usize::from(low >> 7),
            [high, _] => usize::from(high),
            _ => 0,
        }
    }
}

/// The content of the tag in the frame before the audio.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Tag {
    /// Frames of audio, without the tag's frame; `None` if the writer did not know it.
    pub(crate) frames: Option<u32>,
    /// The encoder's delay and padding in samples, as LAME and libavformat write them.
    pub(crate) gaps: Option<(u32, u32)>,
}

impl Tag {
    /// Returns the tag in `frame`, if it has one. Such a frame has no audio.
    pub(crate) fn read(header: &FrameHeader, frame: &[u8]) -> Option<Self> {
        let be32 = |at: usize| Some(u32::from_be_bytes(frame.get(at..at + 4)?.try_into().ok()?));
        let xing = 4 + header.side_info_bytes();
        if let Some(b"Xing" | b"Info") = frame.get(xing..xing + 4) {
            let flags = be32(xing + 4)?;
            let mut at = xing + 8;
            let frames = if flags & 1 != 0 { be32(at).filter(|frames| *frames > 0) } else { None };
            // Count, bytes, table of contents, quality: each is present if its flag is set.
            for (bit, bytes) in [(1, 4), (2, 4), (4, 100), (8, 4)] {
                at += if flags & bit != 0 { bytes } else { 0 };
            }
            let known = matches!(frame.get(at..at + 4), Some(b"LAME" | b"Lavf" | b"Lavc"));
            let packed = be32(at + 21).map(|word| word >> 8).filter(|_| known);
            return Some(Self { frames, gaps: packed.map(|packed| (packed >> 12, packed & 0xFFF)) });
        }
        if frame.get(36..40) == Some(b"VBRI") {
            return Some(Self { frames: be32(36 + 14).filter(|frames| *frames > 0), gaps: None });
        }
        None
    }

    /// Returns the samples that ffmpeg and LAME's decoder leave out.
    ///
    /// In audio clips of very few frames, delay and padding may leave nothing. ffmpeg then ends the delay at the frame in which
    /// the padding begins; if that is the first frame, it keeps that frame's padding.
    pub(crate) fn trim(&self, samples_per_frame: u32) -> Trim {
        let Some((delay, padding)) = self.gaps else { return Trim::default() };
        let start = u64::from(delay) + DECODER_DELAY;
        let Some(frames) = self.frames else { return Trim { start, end: 0..0 } };
        let per_frame = u64::from(samples_per_frame);
        let end = u64::from(frames) * per_frame;
        let padding_at = end - u64::from(padding).saturating_sub(DECODER_DELAY).min(end);
        if start < padding_at {
            Trim { start, end: padding_at..end }
        } else if padding_at < per_frame {
            Trim { start, end: per_frame.min(end)..end }
        } else {
            Trim { start: padding_at - padding_at % per_frame, end: padding_at..end }
        }
    }
}

/// Decoded samples that are the encoder's, not the audio clip's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Trim {
    /// The number of samples to leave out at the start.
    pub(crate) start: u64,
    /// The samples to leave out at the end. Samples after them (an appended file) stay.
    pub(crate) end: Range<u64>,
}

impl Trim {
    /// Returns the number of `samples` that remain.
    pub(crate) fn left(&self, samples: u64) -> u64 {
        let end = self.end.end.min(samples).saturating_sub(self.end.start.max(self.start));
        samples.saturating_sub(self.start) - end.min(samples.saturating_sub(self.start))
    }
}

/// One frame, and the frames that are missing before it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frame {
    pub(crate) at: usize,
    pub(crate) bytes: usize,
    /// Bytes before it that are not a frame.
    garbage: usize,
    /// Frames lost in them.
    pub(crate) lost_before: u64,
    /// Bytes of main data that it takes from earlier frames, and those that it has.
    reservoir: (usize, usize),
    /// Whether it needs main data of frames that were lost.
    pub(crate) broken: bool,
}

/// The frames of an audio clip.
#[derive(Debug)]
pub(crate) struct Walk {
    pub(crate) first: FrameHeader,
    pub(crate) tag: Option<Tag>,
    /// Frames that the tag counts but that are missing after the last one.
    ///
    /// 0 without a tag that counts: then only whole frames count, and a partial last one is left out.
    pub(crate) lost_at_end: u64,
}

/// Returns the first frame: a header that two more of its stream, or the end of the audio clip, follow.
pub(crate) fn first_frame(bytes: &[u8], start: usize, whole: bool) -> Option<(usize, FrameHeader)> {
    find_first_frame(&Ends::of(bytes), start, whole)
}

fn find_first_frame(ends: &Ends<'_>, start: usize, whole: bool) -> Option<(usize, FrameHeader)> {
    let bytes = ends.bytes;
    let last = bytes.len().min(start.saturating_add(MAX_JUNK_BYTES));
    (start..last).find_map(|at| {
        let first = FrameHeader::parse(bytes.get(at..)?)?;
        let mut next = at + first.bytes;
        for _ in 0..2 {
            if ends.at(next) {
                break;
            }
            match bytes.get(next..next + 4) {
                Some(four) => {
                    next += FrameHeader::parse(four).filter(|header| header.same_stream(&first))?.bytes;
                }
                // The bytes after the junk are too few to recognise a frame.
                None if whole && at != start => return None,
                None => break,
            }
        }
        Some((at, first))
    })
}

/// The places where an audio clip may end.
struct Ends<'a> {
    bytes: &'a [u8],
    /// From here on all bytes are 0. It is computed once, so that an audio clip with many possible ends is not searched to
    /// its end from each of them.
    padding_at: usize,
}

impl<'a> Ends<'a> {
    fn of(bytes: &'a [u8]) -> Self {
        let padding_at = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Self { bytes, padding_at }
    }

    /// Whether only tags and padding follow from `at` on.
    fn at(&self, at: usize) -> bool {
        let Some(rest) = self.bytes.get(at..) else { return false };
        rest.starts_with(b"TAG") && rest.len() <= 128 + 227
            || rest.starts_with(b"APETAGEX")
            || rest.starts_with(b"LYRICSBEGIN")
            || rest.starts_with(b"ID3")
            || at >= self.padding_at
    }
}

impl Walk {
    /// Finds all frames of the audio clip from `start` on, and stores them in `frames`. `op` limits their number, which bounds
    /// the memory for their descriptions.
    ///
    /// Garbage between frames counts as lost frames: the number that is missing by the tag's count, or, without a count, the
    /// number that would have taken its bytes.
    pub(crate) fn new(op: &DecodeAudio, bytes: &[u8], start: usize, frames: &mut Vec<Frame>) -> Result<Self> {
        frames.clear();
        let ends = Ends::of(bytes);
        let Some((mut at, first)) = find_first_frame(&ends, start, true) else {
            return Err(unknown(bytes));
        };
        let tag = bytes.get(at..at + first.bytes).and_then(|frame| Tag::read(&first, frame));
        if tag.is_some() {
            at += first.bytes;
        }
        let (mut garbage, mut cut) = (0_usize, false);
        while !ends.at(at) {
            let here = FrameHeader::parse(&bytes[at..]);
            match here {
                Some(header) if header.same_stream(&first) => {
                    let Some(frame) = bytes.get(at..at + header.bytes) else {
                        cut = true;
                        break;
                    };
                    at += header.bytes;
                    // Another file was appended: its tag is not audio.
                    if Tag::read(&header, frame).is_some() {
                        continue;
                    }
                    op.check_packets(AudioFormat::Mp3, frames.len() as u64 + 1)?;
                    frames.push(Frame {
                        at: at - header.bytes,
                        bytes: header.bytes,
                        garbage,
                        lost_before: 0,
                        reservoir: (header.main_data_begin(frame), header.main_data_bytes()),
                        broken: false,
                    });
                    garbage = 0;
                    continue;
                }
                Some(other) if continues(bytes, at, &other) => {
                    return Err(Error::bad_sample(format!(
                        "the MP3 changes from {} Hz, {} channels to {} Hz, {} channels at byte {at}; split it",
                        first.sample_rate, first.channels, other.sample_rate, other.channels
                    )));
                }
                _ => {}
            }
            match (at + 1..bytes.len()).find(|at| stands(bytes, *at, &first)) {
                Some(next) => {
                    garbage = next - at;
                    at = next;
                }
                None => {
                    garbage = bytes.len() - at;
                    break;
                }
            }
        }
        let mut walk = Self { first, tag, lost_at_end: 0 };
        walk.settle(frames, if cut { 0 } else { garbage });
        Ok(walk)
    }

    /// Converts bytes of garbage to lost frames.
    fn settle(&mut self, frames: &mut [Frame], garbage_at_end: usize) {
        let total: usize = frames.iter().map(|frame| frame.bytes).sum();
        let mean = (total / frames.len().max(1)).max(1);
        let estimate = |garbage: usize| ((garbage + mean / 2) / mean) as u64;
        let counted = self.tag.and_then(|tag| tag.frames).map(u64::from);
        let mut missing = match counted {
            Some(counted) => counted.saturating_sub(frames.len() as u64),
            None => u64::MAX,
        };
        // Main data missing at the start of an audio clip that was cut out of a longer one is not lost: this file never had it.
        let mut held = None;
        for frame in frames.iter_mut() {
            frame.lost_before = estimate(frame.garbage).min(missing);
            missing -= frame.lost_before;
            if frame.lost_before > 0 {
                held = Some(0);
            }
            let (takes, brings) = frame.reservoir;
            frame.broken = held.is_some_and(|held| takes > held);
            held = match held {
                None if takes > 0 => None,
                held => Some(held.unwrap_or(0) + brings),
            };
        }
        self.lost_at_end = match counted {
            Some(_) => missing,
            None => estimate(garbage_at_end),
        };
    }
}

/// Whether a frame of `first`'s stream is at `at`, followed by another one or the end.
fn stands(bytes: &[u8], at: usize, first: &FrameHeader) -> bool {
    bytes[at] == 0xFF
        && FrameHeader::parse(&bytes[at..])
            .is_some_and(|header| header.same_stream(first) && continues(bytes, at, &header))
}

fn continues(bytes: &[u8], at: usize, header: &FrameHeader) -> bool {
    let next = at + header.bytes;
    next == bytes.len()
        || bytes.get(next..).and_then(FrameHeader::parse).is_some_and(|next| next.same_stream(header))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::cpu_time;

    /// A header of MPEG-1 layer III, 320 kbit/s at 32 kHz, one channel: its frame has 1440 bytes.
    const HEADER: [u8; 4] = [0xFF, 0xFB, 0xE8, 0xC0];

    /// The CPU time is compared with that of a search of the same number of zeros. A search from each of the 360 places would
    /// take 360 times as long.
    #[test]
    fn a_clip_with_many_places_where_it_may_end_is_searched_once() {
        let mut bytes = HEADER.repeat(360);
        bytes.resize(4 << 20, 0);
        bytes.push(1);
        let zeros = std::hint::black_box(vec![0_u8; bytes.len()]);
        let (pass, _) = cpu_time(|| zeros.iter().all(|byte| *byte == 0));
        let (op, mut frames) = (DecodeAudio::new(), Vec::new());
        let (time, walk) = cpu_time(|| Walk::new(&op, &bytes, 0, &mut frames));
        assert!(walk.is_err(), "no frame follows another");
        assert!(time < 30 * pass, "{time:?}, a pass takes {pass:?}");
        // Also before the padding: here all of it is searched.
        bytes.pop();
        let (time, walk) = cpu_time(|| Walk::new(&op, &bytes, 0, &mut frames));
        walk.unwrap();
        assert!(time < 30 * pass, "{time:?}, a pass takes {pass:?}");
    }

    #[test]
    fn no_more_frames_are_kept_than_may_be() {
        let mut frame = HEADER.to_vec();
        frame.resize(1440, 0);
        let (bytes, mut frames) = (frame.repeat(1000), Vec::new());
        let error = Walk::new(&DecodeAudio::new().max_packets(7), &bytes, 0, &mut frames).unwrap_err();
        assert!(error.message().contains("at least 8 packets, over max_packets (7)"), "{error}");
        assert_eq!(frames.len(), 7);
        Walk::new(&DecodeAudio::new().max_packets(1000), &bytes, 0, &mut frames).unwrap();
        assert_eq!(frames.len(), 1000);
    }

    #[test]
    fn padding_of_zeros_ends_a_clip_and_one_byte_in_it_does_not() {
        let bytes = [&[7_u8][..], &[0; 9]].concat();
        let ends = Ends::of(&bytes);
        assert_eq!((ends.at(0), ends.at(1), ends.at(10), ends.at(11)), (false, true, true, false));
        let bytes = [&bytes[..], &[1]].concat();
        assert!(!Ends::of(&bytes).at(1));
        assert!(Ends::of(&[]).at(0));
    }
}
