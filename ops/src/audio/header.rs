//! Reads the properties of an audio clip from its first bytes, without decoding.
//!
//! | format | samples | from |
//! |---|---|---|
//! | MP3 | exact with a Xing, Info or VBRI tag, minus LAME's delay and padding; else an estimate | the first 4 KiB of audio |
//! | FLAC, WAV | exact | the first bytes; a WAV may have other chunks before |
//! | M4A | exact if the header is before the audio and has an edit list or is followed by the first packet; else an estimate | the `moov` box, the first packet |
//! | ADTS | an estimate | the first 4 KiB |
//! | Ogg | none: the last page has it | |
//!
//! With the whole audio clip, every length is exact. Megabytes of ID3 tags may precede an MP3. [`leading_tag_bytes`] returns
//! their size, so that a reader can request the bytes after them.

use super::decode::DecodeAudio;
use super::decode::adts::{AdtsHeader, FRAME_SAMPLES};
use super::decode::flac_format::StreamInfo;
use super::decode::mp4::{Mp4Header, codec_in_mp4};
use super::decode::mpeg::{FrameHeader, Tag, Walk, first_frame};
use super::decode::ogg::OggHeader;
use super::decode::ogg_pages::first_stream;
use super::decode::sniff::{Container, sniff};
use super::decode::wav::WavHeader;
use super::format::{AudioFormat, unknown};
use super::id3::id3_bytes;
use feedstock_base::{Error, Result};

/// The content of an audio clip's header.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct AudioHeader {
    /// The format of the content, independent of the file's name.
    pub format: AudioFormat,
    /// Samples per second; 0 if the first bytes do not state it (an MP4 whose header follows its audio).
    pub sample_rate: u32,
    /// Channels, before mixing down; 0 as for `sample_rate`.
    pub channels: u32,
    /// Samples per channel, after gapless trimming; `None` if the first bytes do not state them.
    pub samples: Option<u64>,
    /// Whether `samples` is the result of decoding, not an estimate from the bit rate.
    pub exact: bool,
}

impl AudioHeader {
    /// Returns the audio clip's length in seconds.
    pub fn seconds(&self) -> Option<f64> {
        self.samples
            .filter(|_| self.sample_rate > 0)
            .map(|samples| samples as f64 / f64::from(self.sample_rate))
    }
}

/// Returns the length in bytes of the ID3v2 tags that `head` begins with. They may reach past its end. `head` must have
/// at least 10 bytes.
///
/// ```
/// use feedstock_ops::audio::leading_tag_bytes;
///
/// let tag = b"ID3\x04\0\0\0\0\x02\x01"; // 2 × 128 + 1 bytes after its 10
/// assert_eq!(leading_tag_bytes(tag), 267);
/// assert_eq!(leading_tag_bytes(b"RIFF\0\0\0\0WAVE"), 0);
/// ```
pub fn leading_tag_bytes(head: &[u8]) -> u64 {
    id3_bytes(head)
}

/// Raised when [`read_audio_header`] returns another duration for the same audio clip. Durations in stored catalogs are then
/// read again, and with them the codecs that are not decoded: raise it also when [`unsupported_codec`](super::unsupported_codec)
/// no longer names one. 2: AAC of the encoder FAAC is shorter by the encoder's delay. 3: MP3s whose encoder's delay and padding
/// overlap have samples.
pub const AUDIO_HEADER_VERSION: u32 = 3;

/// Reads the header in `head`, the first bytes of an audio clip of `total_bytes`. Nothing is decoded.
///
/// `head` must have at least 4 KiB after the [`leading_tag_bytes`] (with `total_bytes` minus the bytes left out), or the whole
/// audio clip. The header is not checked against the content: decoding does that. The header of an MP4 is read for every codec,
/// also one that is not decoded ([`AudioFormat::Unsupported`]).
///
/// ```
/// use feedstock_ops::audio::{AudioFormat, read_audio_header};
///
/// # fn wav(rate: u32, samples: &[i16]) -> Vec<u8> {
/// #     let data: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
/// #     let (len, head) = (data.len() as u32, [16, 0x0001_0001, rate, 2 * rate, 0x0010_0002].map(u32::to_le_bytes));
/// #     let riff = [b"RIFF", &(36 + len).to_le_bytes()[..], b"WAVEfmt ", head.as_flattened()].concat();
/// #     [&riff, &b"data"[..], &len.to_le_bytes(), &data].concat()
/// # }
/// let clip = wav(16_000, &[0; 24_000]);
/// let header = read_audio_header(&clip[..4_096], clip.len() as u64)?;
/// assert_eq!((header.format, header.sample_rate, header.channels), (AudioFormat::Wav, 16_000, 1));
/// assert_eq!((header.seconds(), header.exact), (Some(1.5), true));
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
///
/// # Errors
/// `BadSample` for bytes in another format, or if the header is damaged or not within `head`.
pub fn read_audio_header(head: &[u8], total_bytes: u64) -> Result<AudioHeader> {
    let (container, start) = sniff(head)?;
    let (clip, bytes) = (&head[start..], total_bytes.saturating_sub(start as u64));
    let whole = head.len() as u64 >= total_bytes;
    let header = match container {
        Container::Mpeg => mp3(head, start, total_bytes, whole)?,
        Container::Adts => adts(clip, bytes, whole)?,
        Container::Flac => {
            let StreamInfo { sample_rate, channels, samples, .. } = StreamInfo::parse(clip)?;
            AudioHeader {
                format: AudioFormat::Flac,
                sample_rate,
                channels,
                samples,
                exact: samples.is_some(),
            }
        }
        Container::Wav => {
            let header = WavHeader::parse(clip)?;
            let (sample_rate, channels) = (header.sample_rate, header.channels);
            let samples = Some(header.samples(bytes).0);
            AudioHeader { format: AudioFormat::Wav, sample_rate, channels, samples, exact: true }
        }
        Container::Ogg => {
            let header = OggHeader::parse(clip)?;
            let OggHeader { format, sample_rate, channels, .. } = header;
            let samples = if whole { header.samples(first_stream(clip)) } else { None };
            AudioHeader { format, sample_rate, channels, samples, exact: samples.is_some() }
        }
        Container::Mp4 => {
            // Without its header, which is after the audio, only the format is known.
            let Mp4Header { sample_rate, channels, delay, samples, delay_is_known, .. } =
                Mp4Header::parse(clip).unwrap_or_default();
            let samples = (samples > 0).then(|| samples.saturating_sub(delay));
            let exact = samples.is_some() && (delay_is_known || whole);
            let format = codec_in_mp4(clip).map_or(AudioFormat::Aac, AudioFormat::Unsupported);
            return Ok(AudioHeader { format, sample_rate, channels, samples, exact });
        }
    };
    if header.sample_rate == 0 || header.channels == 0 {
        return Err(Error::bad_sample(format!(
            "the {} header states {} Hz, {} channels; an audio clip needs at least one of each",
            header.format, header.sample_rate, header.channels
        )));
    }
    Ok(header)
}

fn mp3(head: &[u8], start: usize, total_bytes: u64, whole: bool) -> Result<AudioHeader> {
    let Some((at, first)) = first_frame(head, start, whole) else { return Err(unknown(head)) };
    let FrameHeader { sample_rate, channels, samples: per_frame, .. } = first;
    let tag = head.get(at..at + first.bytes).and_then(|frame| Tag::read(&first, frame));
    let trim = tag.map(|tag| tag.trim(per_frame)).unwrap_or_default();
    let counted = tag.and_then(|tag| tag.frames);
    let frames = if let Some(frames) = counted {
        u64::from(frames)
    } else if whole {
        let mut frames = Vec::new();
        let op = DecodeAudio::new().max_packets(u64::MAX); // the decoder checks limits
        let walk = Walk::new(&op, head, start, &mut frames)?;
        frames.iter().map(|frame| 1 + frame.lost_before).sum::<u64>() + walk.lost_at_end
    } else {
        let audio = at + tag.map_or(0, |_| first.bytes);
        let frames = frames_in(head, audio, |bytes| {
            FrameHeader::parse(bytes).filter(|header| header.same_stream(&first)).map(|header| header.bytes)
        });
        estimate(frames, total_bytes.saturating_sub(audio as u64), first.bytes)
    };
    let samples = trim.left(frames.saturating_mul(per_frame.into()));
    let exact = whole || counted.is_some();
    Ok(AudioHeader { format: AudioFormat::Mp3, sample_rate, channels, samples: Some(samples), exact })
}

fn adts(head: &[u8], total_bytes: u64, whole: bool) -> Result<AudioHeader> {
    let Some(first) = AdtsHeader::parse(head) else { return Err(unknown(head)) };
    let counted = frames_in(head, 0, |bytes| AdtsHeader::parse(bytes).map(|header| header.bytes));
    let frames = if whole { counted.0 } else { estimate(counted, total_bytes, first.bytes) };
    Ok(AudioHeader {
        format: AudioFormat::Aac,
        sample_rate: first.sample_rate,
        channels: first.channels,
        samples: Some((frames * FRAME_SAMPLES).saturating_sub(first.delay(head))),
        exact: whole,
    })
}

/// Returns the number of consecutive whole frames from `at` on, and their bytes.
fn frames_in(head: &[u8], mut at: usize, length: impl Fn(&[u8]) -> Option<usize>) -> (u64, u64) {
    let start = at;
    let mut frames = 0;
    while let Some(bytes) = head.get(at..).and_then(&length) {
        if at + bytes > head.len() {
            break;
        }
        (at, frames) = (at + bytes, frames + 1);
    }
    (frames, (at - start) as u64)
}

/// Returns the number of frames that fit in `bytes`, if all are as long as those seen.
fn estimate((frames, seen): (u64, u64), bytes: u64, first: usize) -> u64 {
    let (frames, seen) = if frames == 0 { (1, first as u64) } else { (frames, seen) };
    u64::try_from(u128::from(bytes) * u128::from(frames) / u128::from(seen.max(1))).unwrap_or(u64::MAX)
}
