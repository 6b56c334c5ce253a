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
    frames_fit(bytes, size)?;
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

/// The chunks of `bytes`: name and content, the last perhaps cut.
fn chunks(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    std::iter::from_fn(move || {
        let (name, rest) = bytes.split_first_chunk::<4>()?;
        let (length, rest) = rest.split_first_chunk::<4>()?;
        let length = u32::from_le_bytes(*length) as usize;
        // Chunks start at even places.
        bytes = rest.get(length.saturating_add(length & 1)..).unwrap_or_default();
        Some((name, &rest[..length.min(rest.len())]))
    })
}

/// Refuses a lossy frame that is larger than the canvas around it: `image-webp` (0.2.4) allocates and decodes such a frame
/// before it compares the two, and only the canvas was within the limits.
fn frames_fit(bytes: &[u8], canvas: Size) -> Result<()> {
    let fits = |frame: &[u8]| {
        let field = |at: usize| {
            frame.get(at..at + 2).map_or(0, |two| u32::from(u16::from_le_bytes([two[0], two[1]]) & 0x3FFF))
        };
        let (width, height) = (field(6), field(8));
        if width <= canvas.width && height <= canvas.height {
            return Ok(());
        }
        Err(Error::sample(format!(
            "WebP: a frame of {width}×{height} px is in a canvas of {}×{} px",
            canvas.width, canvas.height
        )))
    };
    let mut has_frame = false;
    for (name, content) in chunks(bytes.get(12..).unwrap_or_default()) {
        match name {
            b"VP8 " => return fits(content),
            // Place, size and duration of the first frame, the only one that is decoded, then its chunks.
            b"ANMF" if !has_frame => {
                has_frame = true;
                let inside = chunks(content.get(16..).unwrap_or_default());
                inside.filter(|(name, _)| *name == b"VP8 ").try_for_each(|(_, frame)| fits(frame))?;
            }
            _ => {}
        }
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
