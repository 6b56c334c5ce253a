//! Opus, by libopus: the feature `opus`.

use symphonia::core::codecs::audio::well_known::CODEC_ID_OPUS;
use symphonia::core::codecs::audio::{AudioCodecParameters, AudioDecoder, AudioDecoderOptions};
use symphonia::core::codecs::registry::RegisterableAudioDecoder;
use symphonia::core::errors::Result;

/// Whether this build decodes Opus.
pub(super) const IS_BUILT: bool = true;

/// Returns a decoder for a track of Opus, or `None` for a track of another codec.
pub(super) fn decoder(
    parameters: &AudioCodecParameters,
    options: &AudioDecoderOptions,
) -> Option<Result<Box<dyn AudioDecoder>>> {
    let is_opus = parameters.codec == CODEC_ID_OPUS;
    is_opus.then(|| symphonia_adapter_libopus::OpusDecoder::try_registry_new(parameters, options))
}
