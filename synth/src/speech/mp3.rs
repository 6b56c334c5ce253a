//! MP3: 48 kHz mono, 64 kb/s constant, as in Common Voice. An Info tag gives the number of samples of delay and
//! padding that a decoder drops, so that a decoder returns exactly the samples that were encoded.
//!
//! The encoder's crate reads the environment variables `MP3_RESERVOIR`, `MP3_RESV_GAIN` and `MP3_RESV_LOOKAHEAD`,
//! which change its bytes. They are unlikely to be set by accident.

use super::SAMPLE_RATE;
use crate::{Error, ErrorKind, Result};
use rusty_mp3::{Error as Mp3Error, Mp3Encoder, Mp3EncoderConfig};

/// Bit rate of Common Voice.
pub(crate) const KBIT_PER_S: u32 = 64;

/// Encodes mono samples of −1 … 1.
pub(crate) fn encode(samples: &[f32]) -> Result<Vec<u8>> {
    let failed = |cause: Mp3Error| {
        Error::new(ErrorKind::Bug, format!("the MP3 encoder rejects an audio clip: {cause}"))
    };
    let mut encoder = Mp3Encoder::new(Mp3EncoderConfig { bitrate_kbps: KBIT_PER_S, vbr_quality: None });
    encoder.push_pcm_f32(samples, 1, SAMPLE_RATE).map_err(failed)?;
    encoder.finish();
    let mut mp3 = Vec::with_capacity(samples.len() / 6 + 1024); // 64 kb/s at 48 kHz are 1/6 byte per sample
    loop {
        match encoder.next_packet() {
            Ok(packet) => mp3.extend_from_slice(&packet),
            Err(Mp3Error::Eof) => return Ok(mp3),
            Err(cause) => return Err(failed(cause)),
        }
    }
}
