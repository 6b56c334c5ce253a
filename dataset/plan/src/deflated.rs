//! Bytes as text, for workers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::{DeflateDecoder, DeflateEncoder};
use std::io::Read;

/// Returns bytes as text: deflated, in base64.
pub(crate) fn deflated(bytes: &[u8]) -> String {
    let mut deflated = Vec::new();
    // Reading from memory into memory does not fail.
    let _ = DeflateEncoder::new(bytes, Compression::fast()).read_to_end(&mut deflated);
    STANDARD.encode(deflated)
}

/// Returns the bytes of a text that [`deflated`] made, one byte more than `most` of them at most.
pub(crate) fn inflated(text: &str, most: u64) -> Result<Vec<u8>, String> {
    let deflated = STANDARD.decode(text).map_err(|e| e.to_string())?;
    let mut bytes = Vec::new();
    DeflateDecoder::new(deflated.as_slice())
        .take(most.saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|e| e.to_string())?;
    Ok(bytes)
}
