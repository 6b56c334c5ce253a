//! Ogg (RFC 3533) with Vorbis, FLAC or, behind the feature `opus`, Opus.
//!
//! Pages have checksums, numbers and the count of samples up to their end, so a damaged or missing page inside an audio
//! clip is always noticed. The last page should have the end-of-stream flag, but many writers leave it out. Without the
//! flag the audio clip ends with the last whole page, as in libsndfile.
//!
//! Of a chain of streams the first is the audio clip, as in libsndfile.

use std::io::Cursor;

use symphonia::core::formats::FormatOptions;
use symphonia::default::formats::OggReader;

use super::decoded::Decoded;
use super::flac_format::StreamInfo;
use super::mpeg::Trim;
use super::ogg_pages::{LAST_PAGE, PAGE_MARK, Page, first_stream, is_complete, page, search_steps};
use super::options::DecodeAudio;
use super::stream::{self, Track};
use super::{opus, vorbis};
use crate::audio::format::{AudioFormat, unsupported};
use crate::warning::Warning;
use feedstock_base::{Error, Result};

/// The content of the first page.
#[derive(Debug, Clone, Copy)]
pub(in crate::audio) struct OggHeader {
    pub(in crate::audio) format: AudioFormat,
    pub(in crate::audio) sample_rate: u32,
    pub(in crate::audio) channels: u32,
    /// Samples before the first audible one (Opus).
    pre_skip: u64,
    /// The gain of the samples (Opus), in 256ths of a dB.
    gain: i16,
    serial: [u8; 4],
}

/// The places that are tried as an audio clip's last page, from its end on. More than one is needed only if other streams,
/// damage or junk follow. Each may cost a checksum of 64 KiB.
const LAST_PAGES_TRIED: usize = 64;

impl OggHeader {
    pub(in crate::audio) fn parse(head: &[u8]) -> Result<Self> {
        let Some(Page { body, serial, .. }) = page(head) else {
            return Err(Error::bad_sample("the Ogg audio clip does not begin with a whole page"));
        };
        let le32 = |at: usize| Some(u32::from_le_bytes(*body.get(at..)?.first_chunk()?));
        let known = match body {
            [1, b'v', b'o', b'r', b'b', b'i', b's', _, _, _, _, channels, ..] => {
                le32(12).map(|rate| (AudioFormat::Vorbis, rate, u32::from(*channels), (0, 0)))
            }
            [b'O', b'p', b'u', b's', b'H', b'e', b'a', b'd', _, channels, low, high, ..] => {
                let pre_skip = u16::from_le_bytes([*low, *high]).into();
                let gain = body
                    .get(16..)
                    .and_then(|rest| rest.first_chunk())
                    .map_or(0, |two| i16::from_le_bytes(*two));
                Some((AudioFormat::Opus, 48_000, u32::from(*channels), (pre_skip, gain)))
            }
            [0x7F, b'F', b'L', b'A', b'C', _, _, _, _, rest @ ..] => {
                let info = StreamInfo::parse(rest)?;
                Some((AudioFormat::Flac, info.sample_rate, info.channels, (0, 0)))
            }
            _ => None,
        };
        let Some((format, sample_rate, channels, (pre_skip, gain))) = known else {
            if let Some(codec) = codec_of(body) {
                return Err(unsupported(codec));
            }
            return Err(Error::bad_sample("the Ogg audio clip's first stream is not Vorbis, Opus or FLAC"));
        };
        Ok(Self { format, sample_rate, channels, pre_skip, gain, serial })
    }

    /// Returns the samples up to the end of the last page. `stream` is the whole of the audio clip's [`first_stream`].
    ///
    /// A cut last page counts if it has the end-of-stream flag: the audio clip was that long. Otherwise the last whole page
    /// counts. `None` if no packet ends on any page.
    pub(in crate::audio) fn samples(&self, stream: &[u8]) -> Option<u64> {
        self.end(stream).map(|(samples, _)| samples)
    }

    /// As [`samples`](Self::samples), and also returns whether a page has the end-of-stream flag.
    fn end(&self, stream: &[u8]) -> Option<(u64, bool)> {
        let (mut end, mut is_marked) = (stream.len(), false);
        for _ in 0..LAST_PAGES_TRIED {
            let at = stream[..end].windows(4).rposition(|four| four == PAGE_MARK)?;
            end = at;
            let Some(page) = page(&stream[at..]).filter(|page| page.serial == self.serial) else { continue };
            let is_cut = page.whole.len() < page.bytes;
            let counts = if is_cut { page.flags & LAST_PAGE != 0 } else { page.is_intact() };
            is_marked |= counts && page.flags & LAST_PAGE != 0;
            // All bits set: no packet ends on the page.
            if counts && page.granule != u64::MAX {
                return Some((page.granule.saturating_sub(self.pre_skip), is_marked));
            }
        }
        None
    }
}

/// Returns the name of the first stream's codec, if it is not decoded.
pub(in crate::audio) fn codec_in_ogg(head: &[u8]) -> Option<&'static str> {
    codec_of(page(head)?.body)
}

/// Returns the name of the codec that a stream's first page states, if it is not decoded.
fn codec_of(body: &[u8]) -> Option<&'static str> {
    match body {
        [b'S', b'p', b'e', b'e', b'x', b' ', b' ', b' ', ..] => Some("Speex"),
        [0x80, b't', b'h', b'e', b'o', b'r', b'a', ..] => Some("Theora"),
        [b'O', b'p', b'u', b's', b'H', b'e', b'a', b'd', _, channels, ..] if *channels > 2 => {
            Some("Opus of more than two channels")
        }
        _ => None,
    }
}

pub(super) fn decode(op: &DecodeAudio, bytes: &[u8], out: &mut Vec<f32>) -> Result<Decoded> {
    if let Some(codec) = codec_in_ogg(bytes) {
        return Err(unsupported(codec));
    }
    let header = OggHeader::parse(bytes)?;
    let whole_bytes = bytes.len();
    let bytes = first_stream(bytes);
    let OggHeader { format, sample_rate, channels, .. } = header;
    op.check_header(format, sample_rate, channels)?;
    let end = header.end(bytes);
    let samples = end.map(|(samples, _)| samples);
    op.check_samples(format, samples.unwrap_or(0), (sample_rate, channels))?;
    if format == AudioFormat::Opus && !opus::IS_BUILT {
        return Err(Error::bad_sample("the audio clip is Opus; build with the feature `opus` to decode it"));
    }
    let steps = search_steps(bytes);
    op.check_steps(format, steps)?;
    if format == AudioFormat::Vorbis {
        vorbis::check_setup(op, bytes, header.serial)?;
    } else if bytes.windows(7).any(|seven| seven == b"\x05vorbis") {
        return Err(Error::bad_sample(format!(
            "the {format} audio clip holds a stream of Vorbis too; split it"
        )));
    }
    let mut reader = OggReader::try_new(stream::source(Cursor::new(bytes)), FormatOptions::default())
        .map_err(|error| stream::refused(format, &error))?;
    let (id, mut parameters) = stream::audio_track(&reader)?;
    // The times of Opus packets include the samples to be skipped, so these are cut off here, not by the decoder.
    if let (AudioFormat::Opus, Some(head)) = (format, &mut parameters.extra_data)
        && let Some(pre_skip) = head.get_mut(10..12)
    {
        pre_skip.fill(0);
    }
    let mut decoder = stream::new_decoder(format, &parameters)?;
    // Without the end-of-stream flag the encoder's padding is not always recognized as such, so it is cut off here.
    let padding = samples.map_or(0..0, |samples| header.pre_skip.saturating_add(samples)..u64::MAX);
    let trim = Trim { start: header.pre_skip, end: padding };
    // If no page is missing, jumps in the counts of samples are the writer's error. libsndfile and ffmpeg ignore them, too.
    let complete = std::cell::LazyCell::new(|| is_complete(bytes, header.serial)); // reads every page, at most once
    let loses_in_gaps = || !*complete;
    let track = Track {
        format,
        sample_rate,
        samples,
        trim,
        timed: true,
        loses_in_gaps: &loses_in_gaps,
        bytes: bytes.len(),
        steps,
    };
    stream::decode(op, &mut reader, &mut *decoder, (id, track), out)?;
    if header.gain != 0 {
        // RFC 7845: dB in 256ths.
        #[expect(clippy::cast_possible_truncation, reason = "to single precision, once")]
        let factor = libm::pow(10.0, f64::from(header.gain) / (20.0 * 256.0)) as f32;
        out.iter_mut().for_each(|value| *value *= factor);
    }
    let mut decoded = Decoded::whole(sample_rate, end.is_some_and(|(_, is_marked)| is_marked));
    decoded.warnings.add((bytes.len() < whole_bytes).then_some(Warning::LaterStreams).into_iter().collect());
    Ok(decoded)
}
