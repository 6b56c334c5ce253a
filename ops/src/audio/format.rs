//! The formats of audio files, and the error about bytes in none of them.

use super::id3::id3_bytes;
use super::magic::codec_by_magic;
use feedstock_base::Error;

/// An audio clip's file format and codec.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AudioFormat {
    /// MPEG-1, -2 or -2.5 audio, layer III.
    Mp3,
    /// FLAC, bare or in Ogg.
    Flac,
    /// Vorbis in Ogg.
    Vorbis,
    /// Opus in Ogg.
    Opus,
    /// PCM in RIFF/WAVE.
    Wav,
    /// AAC in MP4 (M4A) or ADTS.
    Aac,
    /// A codec in MP4 that is not decoded, by its name.
    Unsupported(&'static str),
}

impl std::fmt::Display for AudioFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Mp3 => "MP3",
            Self::Flac => "FLAC",
            Self::Vorbis => "Vorbis",
            Self::Opus => "Opus",
            Self::Wav => "WAV",
            Self::Aac => "AAC",
            Self::Unsupported(codec) => codec,
        })
    }
}

/// Returns the error about bytes that are in none of the formats. It names their codec if that is recognised.
pub(super) fn unknown(bytes: &[u8]) -> Error {
    let clip = usize::try_from(id3_bytes(bytes)).ok().and_then(|start| bytes.get(start..));
    if let Some(codec) = clip.and_then(codec_by_magic) {
        return unsupported(codec);
    }
    Error::bad_sample(format!(
        "{} bytes starting with {:02x?} are no MP3, FLAC, Ogg, WAV, M4A or AAC",
        bytes.len(),
        &bytes[..bytes.len().min(12)]
    ))
}

/// Returns the error about an audio clip of a codec that is not decoded.
pub(super) fn unsupported(codec: &str) -> Error {
    Error::bad_sample(format!(
        "the audio clip's codec is {codec}, which feedstock does not decode; convert the file, for example to FLAC"
    ))
}
