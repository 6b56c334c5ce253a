//! WebP through `image-webp`; of an animation the first frame.

use std::io::Cursor;

use image_webp::WebPDecoder;

use super::super::geometry::Size;
use super::layer::Layer;
use super::options::DecodeImage;
use super::vp8l;
use crate::image::buffer::Buffer;
use crate::limits::over;
use feedstock_base::{Error, Result};

fn bad(error: image_webp::DecodingError) -> Error {
    Error::bad_sample(format!("WebP: {error}")).with_source(error)
}

/// The canvas size from the first chunk (RFC 9649 sections 2.5 to 2.7).
pub(super) fn size(bytes: &[u8]) -> Result<Size> {
    let cut = || Error::bad_sample(format!("WebP: {} bytes hold no complete header", bytes.len()));
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
        other => return Err(Error::bad_sample(format!("WebP: unknown first chunk {other:02x?}"))),
    };
    Ok(Size { height, width })
}

/// Bytes that decoding takes, the pixels included.
///
/// | part | bytes a pixel |
/// |---|---|
/// | result | 3, with alpha 4 |
/// | lossy frame: planes of whole macroblocks, and what is known of each | 2 |
/// | lossless frame: ARGB, its transforms and the entropy image in blocks of 4×4 | 4 + 1 |
/// | alpha channel, itself a lossless image | 4 + 2 |
/// | an animation's canvas, and its frame | 4 + 4 |
///
/// A chunk is copied before it is decoded. A group of Huffman codes takes 21 KB with codes of up to 10 bits, and at most 130 KB.
pub(super) fn working_bytes(bytes: &[u8], size: Size) -> u64 {
    const GROUP_BYTES: u64 = 130_000;
    const ROW_BYTES: u64 = 128;
    const FIXED_BYTES: u64 = 1 << 20;
    let has = |name: &[u8; 4]| chunks(bytes.get(12..).unwrap_or_default()).any(|(found, _)| found == name);
    let is_animated = has(b"ANMF");
    let is_extended = bytes.get(12..16) == Some(b"VP8X");
    let has_alpha = is_extended || bytes.get(24).is_some_and(|byte| byte & 0x10 != 0);
    let frame = match (is_animated, has(b"VP8L")) {
        (true, _) => 2 + 5 + 6 + 4 + 4,
        // With alpha the result is the ARGB.
        (false, true) if has_alpha && !is_extended => 1,
        (false, true) => 5,
        (false, false) => 2 + if has(b"ALPH") { 6 } else { 0 },
    };
    let pixel_bytes = frame + if has_alpha { 4 } else { 3 };
    // A macroblock more on each side.
    let (width, height) = (u64::from(size.width) + 16, u64::from(size.height) + 16);
    let groups = u64::from(huffman_groups(bytes, size));
    width * height * pixel_bytes + groups * GROUP_BYTES + bytes.len() as u64 + ROW_BYTES * width + FIXED_BYTES
}

/// The most groups of Huffman codes of an image in the file.
fn huffman_groups(bytes: &[u8], size: Size) -> u32 {
    let of = |name: &[u8; 4], content: &[u8], size: Size| match (name, content) {
        (b"VP8L", _) => vp8l::groups_of_image(content, size).unwrap_or(0),
        (b"ALPH", [info, stream @ ..]) if info & 3 == 1 => vp8l::groups_of_alpha(stream, size).unwrap_or(0),
        _ => 0,
    };
    let mut most = 0;
    for (name, content) in chunks(bytes.get(12..).unwrap_or_default()) {
        most = most.max(of(name, content, size));
        if name == b"ANMF" {
            let inner = chunks(content.get(16..).unwrap_or_default());
            let size = frame_size(content);
            most = inner.map(|(name, content)| of(name, content, size)).fold(most, u32::max);
        }
    }
    most
}

/// Decodes a layer of what [`check`] accepted into three dense channels. `size` is within the limits.
pub(super) fn decode(
    bytes: &[u8],
    size: Size,
    layer: Layer,
    (out, spare): (&mut Buffer, &mut Buffer),
) -> Result<()> {
    let pixels = size.height as usize * size.width as usize;
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(bad)?;
    // RGBA once for the frame and once for an animation's canvas, plus 1 MiB of metadata.
    decoder.set_memory_limit(pixels * 8 + (1 << 20));
    if decoder.dimensions() != (size.width, size.height) {
        return Err(Error::bad_sample("WebP: the header's size is not the frame's"));
    }
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let buffer = if channels == 4 { &mut *spare } else { &mut *out };
    decoder.read_image(buffer.take(pixels * channels)).map_err(bad)?;
    if channels == 4 {
        layer.take(spare.take(pixels * 4), pixels, 4);
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

/// Checks that a WebP is whole, and what its frame claims, the first one of an animation, against the `canvas` and the limits.
pub(super) fn check(bytes: &[u8], canvas: Size, op: &DecodeImage) -> Result<()> {
    complete(bytes)?;
    let mut seen: Vec<&[u8; 4]> = Vec::new();
    for (name, content) in chunks(bytes.get(12..).unwrap_or_default()) {
        // Of several chunks of a name the first counts.
        if !matches!(name, b"VP8 " | b"VP8L" | b"ALPH" | b"ANMF") || seen.contains(&name) {
            continue;
        }
        seen.push(name);
        if name != b"ANMF" {
            check_frame(name, content, canvas, canvas, op)?;
            continue;
        }
        // The frame's chunks follow its place, size and duration.
        let frame = frame_size(content);
        fits(frame, canvas)?;
        for (name, content) in chunks(content.get(16..).unwrap_or_default()) {
            check_frame(name, content, frame, canvas, op)?;
        }
    }
    Ok(())
}

/// The size of an animation's frame.
fn frame_size(content: &[u8]) -> Size {
    let three = |at: usize| {
        let bytes = content.get(at..at + 3).unwrap_or(&[0; 3]);
        bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
    };
    Size { width: three(6) + 1, height: three(9) + 1 }
}

/// Checks one chunk of a frame of `size`.
fn check_frame(name: &[u8; 4], content: &[u8], size: Size, canvas: Size, op: &DecodeImage) -> Result<()> {
    let groups = match (name, content) {
        (b"VP8 ", _) => {
            let field = |at: usize| {
                let two = content.get(at..at + 2).unwrap_or(&[0; 2]);
                u32::from(u16::from_le_bytes([two[0], two[1]]) & 0x3FFF)
            };
            return fits(Size { width: field(6), height: field(8) }, canvas);
        }
        (b"VP8L", _) => vp8l::groups_of_image(content, size),
        // Two bits for the compression: 1 is a lossless image without its header.
        (b"ALPH", [info, stream @ ..]) if info & 3 == 1 => vp8l::groups_of_alpha(stream, size),
        _ => return Ok(()),
    };
    let Some(groups) = groups else {
        return Err(Error::bad_sample("WebP: the lossless data are damaged in front of the pixels"));
    };
    if groups > op.max_huffman_groups {
        let found =
            format!("the WebP of {}×{} px has {groups} groups of Huffman codes", canvas.width, canvas.height);
        return Err(over(found, "max_huffman_groups", op.max_huffman_groups));
    }
    Ok(())
}

/// Refuses a frame that is larger than the canvas around it: `image-webp` (0.2.4) allocates and decodes such a frame before it
/// compares the two, and only the canvas was within the limits.
fn fits(frame: Size, canvas: Size) -> Result<()> {
    if frame.width <= canvas.width && frame.height <= canvas.height {
        return Ok(());
    }
    Err(Error::bad_sample(format!(
        "WebP: a frame of {}×{} px is in a canvas of {}×{} px",
        frame.width, frame.height, canvas.width, canvas.height
    )))
}

/// A lossy bitstream's arithmetic decoder reads zeros past its end, so a file shorter than its RIFF header states would
/// decode to something: refuse it here.
fn complete(bytes: &[u8]) -> Result<()> {
    let stated = bytes.get(4..8).and_then(|b| b.try_into().ok()).map(u32::from_le_bytes).unwrap_or(u32::MAX);
    if bytes.len() as u64 >= u64::from(stated) + 8 {
        return Ok(());
    }
    Err(Error::bad_sample(format!(
        "WebP: the file is cut off: {} bytes of the {} that its header states",
        bytes.len(),
        u64::from(stated) + 8
    )))
}
