//! In place of `opus.rs`, without the feature `opus`.

use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::errors::Result;

/// True if this build decodes Opus.
pub(super) const IS_BUILT: bool = false;

/// Returns `None`: no decoder.
pub(super) fn decoder(
    _: &AudioCodecParameters,
    _: &AudioDecoderOptions,
) -> Option<Result<Box<dyn AudioDecoder>>> {
    None
}
