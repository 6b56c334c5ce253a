//! The container of an audio clip, from its first bytes.

use crate::audio::id3::id3_bytes;
use feedstock_base::{Error, Result};

/// The container at the start of an audio clip's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::audio) enum Container {
    /// Frames of MPEG audio, possibly after junk.
    Mpeg,
    Adts,
    Flac,
    Ogg,
    Wav,
    Mp4,
}

/// Returns the container by its magic bytes, and its start after ID3 tags.
pub(in crate::audio) fn sniff(bytes: &[u8]) -> Result<(Container, usize)> {
    if bytes.is_empty() {
        return Err(Error::bad_sample("the audio clip is empty (0 bytes)"));
    }
    let tags = id3_bytes(bytes);
    let start = usize::try_from(tags).unwrap_or(usize::MAX);
    let Some(rest) = bytes.get(start..).filter(|rest| !rest.is_empty()) else {
        return Err(Error::bad_sample(format!(
            "the audio clip's ID3 tags are {tags} bytes long, and there are only {}: it ends before its audio",
            bytes.len()
        )));
    };
    let container = match rest {
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'A', b'V', b'E', ..] => Container::Wav,
        [b'f', b'L', b'a', b'C', ..] => Container::Flac,
        [b'O', b'g', b'g', b'S', ..] => Container::Ogg,
        [_, _, _, _, b'f', b't', b'y', b'p', ..] => Container::Mp4,
        // Twelve bits of sync and layer 0.
        [0xFF, second, ..] if second & 0xF6 == 0xF0 => Container::Adts,
        _ => Container::Mpeg,
    };
    Ok((container, start))
}
