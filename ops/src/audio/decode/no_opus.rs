//! Replaces `opus.rs` without the feature `opus`.

use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Result;

/// Whether this build decodes Opus.
pub(super) const IS_BUILT: bool = false;

/// Returns `None`, since there is no decoder.
pub(super) fn decoder(
    _: &AudioCodecParameters,
    _: &AudioDecoderOptions,
) -> Option<Result<Box<dyn AudioDecoder>>> {
    None
}
