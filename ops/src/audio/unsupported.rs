//! Names the codecs that are recognised but not decoded, from an audio clip's first bytes.
//!
//! A name is given only if decoding certainly fails: a catalog counts these audio clips before a run, and a run that would
//! stop at them does not start.

use super::decode::adts::AdtsHeader;
use super::decode::mp4::codec_in_mp4;
use super::decode::mpeg::first_frame;
use super::decode::ogg::codec_in_ogg;
use super::decode::sniff::{Container, sniff};
use super::decode::wav::codec_in_wav;
use super::magic::codec_by_magic;

/// Returns the name of the codec in `head`, the first bytes of an audio clip, if feedstock recognises it and does not decode
/// it: ALAC, HE-AAC, WMA, AMR, MPEG layers I and II, ADPCM.
///
/// `None` means that the codec is decoded, that `head` does not state it, as in an MP4 whose header follows its audio, or that
/// the bytes are unknown. More than 16 KiB are needed only for such MP4s.
///
/// ```
/// use feedstock_ops::audio::unsupported_codec;
///
/// assert_eq!(unsupported_codec(b"#!AMR\n<\x91\x17\x16\xbe"), Some("AMR-NB"));
/// assert_eq!(unsupported_codec(b"fLaC\0\0\0\x22"), None);
/// ```
pub fn unsupported_codec(head: &[u8]) -> Option<&'static str> {
    let (container, start) = sniff(head).ok()?;
    let clip = head.get(start..)?;
    match container {
        Container::Wav => codec_in_wav(clip),
        Container::Mp4 => codec_in_mp4(clip),
        Container::Ogg => codec_in_ogg(clip),
        Container::Adts => AdtsHeader::parse(clip)?.unsupported_codec(),
        Container::Flac => None,
        Container::Mpeg => codec_by_magic(clip).filter(|_| first_frame(head, start, true).is_none()),
    }
}
