//! WebP through `image-webp`; of an animation the first frame.

use std::io::Cursor;

use image_webp::WebPDecoder;

use super::super::geometry::Size;
use super::png::to_rgb;
use crate::error::{Error, Result};
use crate::scratch::Buffer;

fn bad(error: image_webp::DecodingError) -> Error {
    Error::sample(format!("WebP: {error}")).with_source(error)
}

/// The canvas size from the first chunk (RFC 9649 sections 2.5 to 2.7).
pub(super) fn size(bytes: &[u8]) -> Result<Size> {
    let cut = || Error::sample(format!("WebP: {} bytes hold no complete header", bytes.len()));
    let byte = |at: usize| bytes.get(at).copied().map(u32::from).ok_or_else(cut);
    let (width, height) = match bytes.get(12..16).ok_or_else(cut)? {
        b"VP8X" => {
            let field = |at| Ok::<_, Error>((byte(at)? | byte(at + 1)? << 8 | byte(at + 2)? << 16) + 1);
            (field(24)?, field(27)?)
        }
        b"VP8L" => {
            let bits = byte(21)? | byte(22)? << 8 | byte(23)? << 16 | byte(24)? << 24;
            ((bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
        }
        b"VP8 " => ((byte(26)? | byte(27)? << 8) & 0x3FFF, (byte(28)? | byte(29)? << 8) & 0x3FFF),
        other => return Err(Error::sample(format!("WebP: unknown first chunk {other:02x?}"))),
    };
    Ok(Size { height, width })
}

/// Decodes into dense RGB. `size` is within the limits.
pub(super) fn decode(bytes: &[u8], size: Size, out: &mut Buffer, spare: &mut Buffer) -> Result<()> {
    complete(bytes)?;
    let pixels = size.height as usize * size.width as usize;
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(bad)?;
    // RGBA once for the frame and once for an animation's canvas, plus 1 MiB of metadata.
    decoder.set_memory_limit(pixels * 8 + (1 << 20));
    if decoder.dimensions() != (size.width, size.height) {
        return Err(Error::sample("WebP: the header's size is not the frame's"));
    }
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let buffer = if channels == 4 { &mut *spare } else { &mut *out };
    decoder.read_image(buffer.take(pixels * channels)).map_err(bad)?;
    if channels == 4 {
        to_rgb(spare.take(pixels * 4), pixels, 4);
        std::mem::swap(out, spare);
    }
    Ok(())
}

/// A lossy bitstream's arithmetic decoder reads zeros past its end, so a file shorter than its RIFF header says
/// would decode to something: refuse it here.
fn complete(bytes: &[u8]) -> Result<()> {
    let stated = bytes.get(4..8).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes).unwrap_or(u32::MAX);
    if bytes.len() as u64 >= u64::from(stated) + 8 {
        return Ok(());
    }
    Err(Error::sample(format!(
        "WebP: the file is cut off: {} bytes of the {} that its header states",
        bytes.len(),
        u64::from(stated) + 8
    )))
}
