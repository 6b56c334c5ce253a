//! `decode_audio`: MP3, FLAC, Ogg, WAV and AAC into one channel. Its options are in `audio/decode/options.rs`, because
//! codecs check them.

use crate::audio::compile::{AudioOp, Compiler};
use crate::audio::decode::DecodeAudio;
use feedstock_base::{Error, Result};

impl AudioOp for DecodeAudio {
    fn compile(&self, _: &mut Compiler<'_>) -> Result<()> {
        Err(Error::config("the audio clip is decoded already; decode_audio comes once"))
    }

    fn decoder(&self) -> Option<&DecodeAudio> {
        Some(self)
    }
}
