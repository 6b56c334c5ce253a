//! PNG through the `png` crate. The whole image is decoded and its checksums verified: rows depend on the rows above,
//! and a region saves little. A file that the crate refuses is decoded once more as Pillow reads it (`png_repair.rs`).

use std::io::Cursor;

use png::{BitDepth, ColorType, DecodeOptions, Decoder, Limits, Transformations};

use super::super::geometry::Size;
use super::layer::Layer;
use super::png_repair::{chunk_lengths, has_partial_palette_entry, rebuilt};
use crate::image::buffer::Buffer;
use crate::warning::{Warning, Warnings};
use crate::working::{Scope, exceeds};
use feedstock_base::{Error, Result};

fn bad(error: png::DecodingError) -> Error {
    Error::bad_sample(format!("PNG: {error}")).with_source(error)
}

/// The size in IHDR, which comes first.
pub(super) fn size(bytes: &[u8]) -> Result<Size> {
    let field = |at: usize| bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(u32::from_be_bytes);
    match (bytes.get(12..16), field(16), field(20)) {
        (Some(b"IHDR"), Some(width), Some(height)) => Ok(Size { height, width }),
        _ => Err(Error::bad_sample(format!("PNG: {} bytes hold no complete IHDR", bytes.len()))),
    }
}

/// Returns the bytes that decoding takes, the pixels included: those in their wider form, rows with up to 8 bytes a pixel,
/// what the inflater keeps, and a copy of each chunk that is not image data. A damaged file is rebuilt first: its image data
/// are collected in a buffer that grows, and copied.
pub(super) fn working_bytes(bytes: &[u8], size: Size, scope: Scope) -> u64 {
    const ROWS: u64 = 6;
    const FIXED_BYTES: u64 = 1 << 20;
    const COPIES: u64 = 4;
    let (width, height) = (u64::from(size.width), u64::from(size.height));
    let color = bytes.get(COLOR_TYPE_AT);
    let mut other_bytes = 0;
    for (name, length) in chunk_lengths(bytes) {
        other_bytes += if name == *b"IDAT" { 0 } else { length.min(bytes.len()) as u64 };
    }
    let is_grey = matches!(color, Some(0 | 4));
    let pixel_bytes = if has_alpha(bytes) && !is_grey { 4 } else { 3 };
    let rebuilding = if scope == Scope::Most { COPIES * bytes.len() as u64 } else { 0 };
    width * height * pixel_bytes + ROWS * 8 * width + FIXED_BYTES + other_bytes + rebuilding
}

/// Where IHDR states the kind of colours.
const COLOR_TYPE_AT: usize = 25;

/// Whether pixels may be transparent: by a channel, or by a chunk that names transparent colours.
pub(super) fn has_alpha(bytes: &[u8]) -> bool {
    matches!(bytes.get(COLOR_TYPE_AT), Some(4 | 6)) || chunk_lengths(bytes).any(|(name, _)| name == *b"tRNS")
}

/// What is made of stored values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Values {
    /// A layer of the colours, also of those of a palette.
    Layer(Layer),
    /// Palette indices or grey values, in three equal channels. The image has a palette or is grey.
    Stored,
    /// Grey values of 16 bits: the high byte, the low byte, and one that is not used. The image is 16-bit grey.
    Wide,
}

/// Decodes into dense RGB. `size` is within the limits. With [`Scope::Stated`], a damaged file is not rebuilt.
///
/// # Errors
/// `BadSample`, or that of [`exceeds`].
pub(super) fn decode(
    bytes: &[u8],
    size: Size,
    (values, scope): (Values, Scope),
    out: &mut Buffer,
) -> Result<Warnings> {
    let result = if has_partial_palette_entry(bytes) {
        Err(Error::bad_sample("PNG: the palette ends within an entry"))
    } else {
        decode_as_stored(bytes, size, (values, false), out)
    };
    let Err(error) = result else { return Ok(Warnings::default()) };
    if scope == Scope::Stated {
        return Err(exceeds());
    }
    let Some(png) = rebuilt(bytes, size) else { return Err(error) };
    decode_as_stored(&png, size, (values, true), out).map_err(|_| error)?;
    Ok([Warning::DamagedData].into_iter().collect())
}

fn decode_as_stored(
    bytes: &[u8],
    size: Size,
    (values, ignore_crc): (Values, bool),
    out: &mut Buffer,
) -> Result<()> {
    let pixels = size.height as usize * size.width as usize;
    // Ancillary chunks and row buffers: eight bytes a pixel is the widest row (RGBA, 16 bits), plus 1 MiB of text.
    let limits = Limits { bytes: pixels * 8 + (1 << 20) };
    let mut options = DecodeOptions::default();
    options.set_ignore_adler32(false);
    options.set_ignore_crc(ignore_crc);
    options.set_ignore_text_chunk(true);
    options.set_ignore_iccp_chunk(true);
    let mut decoder = Decoder::new_with_options(Cursor::new(bytes), options);
    decoder.set_limits(limits);
    if matches!(values, Values::Layer(_)) {
        decoder.set_transformations(Transformations::EXPAND | Transformations::STRIP_16);
    }
    let mut reader = decoder.read_info().map_err(bad)?;
    let (color, depth) = reader.output_color_type();
    let layer = match values {
        Values::Layer(layer) => layer,
        Values::Stored => return stored_values(reader, size, out),
        Values::Wide => return wide_values(reader, size, out),
    };
    let channels = color.samples();
    if depth != BitDepth::Eight || color == ColorType::Indexed {
        return Err(Error::bug(format!("the png crate yields {color:?} {depth:?} after expansion")));
    }
    if (reader.info().width, reader.info().height) != (size.width, size.height) {
        return Err(Error::bad_sample("PNG: the header's size is not the frame's"));
    }
    // Squeezed or widened to three channels in place.
    let wide = pixels * channels.max(3);
    let buffer = out.take(wide);
    reader.next_frame(&mut buffer[..pixels * channels]).map_err(bad)?;
    reader.finish().map_err(bad)?;
    layer.take(buffer, pixels, channels);
    Ok(())
}

/// Decodes grey values of 16 bits, each into three bytes.
fn wide_values(mut reader: png::Reader<Cursor<&[u8]>>, size: Size, out: &mut Buffer) -> Result<()> {
    // The mode was read from the first header, and a damaged file may have another one.
    let is_fit = reader.output_color_type() == (ColorType::Grayscale, BitDepth::Sixteen);
    if !is_fit || (reader.info().width, reader.info().height) != (size.width, size.height) {
        return Err(Error::bad_sample("PNG: the header's size or colours are not the frame's"));
    }
    let pixels = size.height as usize * size.width as usize;
    let buffer = out.take(pixels * 3);
    reader.next_frame(&mut buffer[..pixels * 2]).map_err(bad)?;
    reader.finish().map_err(bad)?;
    // Backwards: a pixel's three bytes never reach a source byte that is still needed.
    for pixel in (0..pixels).rev() {
        buffer.copy_within(pixel * 2..pixel * 2 + 2, pixel * 3);
        buffer[pixel * 3 + 2] = 0;
    }
    Ok(())
}

/// Decodes a palette's indices, or grey values of at most 8 bits, into three equal channels. Values of 2 and 4 bits of grey are
/// scaled to 0 … 255, as Pillow does; those of one bit stay 0 and 1.
fn stored_values(mut reader: png::Reader<Cursor<&[u8]>>, size: Size, out: &mut Buffer) -> Result<()> {
    let (color, depth) = reader.output_color_type();
    // The mode was read from the first header, and a damaged file may have another one.
    let is_fit = matches!(color, ColorType::Indexed | ColorType::Grayscale) && depth != BitDepth::Sixteen;
    if !is_fit || (reader.info().width, reader.info().height) != (size.width, size.height) {
        return Err(Error::bad_sample("PNG: the header's size or colours are not the frame's"));
    }
    let (width, pixels) = (size.width as usize, size.height as usize * size.width as usize);
    let line = reader.output_line_size(size.width).ok_or_else(|| Error::bad_sample("PNG: too wide"))?;
    let buffer = out.take(pixels * 3);
    reader.next_frame(&mut buffer[..line * size.height as usize]).map_err(bad)?;
    reader.finish().map_err(bad)?;
    if depth == BitDepth::Eight {
        Layer::Colors.take(buffer, pixels, 1);
        return Ok(());
    }
    let bits = depth as usize;
    let scale = match (color, depth) {
        (ColorType::Grayscale, BitDepth::Two) => 85,
        (ColorType::Grayscale, BitDepth::Four) => 17,
        _ => 1,
    };
    let (of_byte, mask) = (8 / bits, u8::MAX >> (8 - bits));
    // Backwards: a pixel's three bytes never reach a source byte that is still needed.
    for row in (0..size.height as usize).rev() {
        for x in (0..width).rev() {
            let value = (buffer[row * line + x / of_byte] >> ((of_byte - 1 - x % of_byte) * bits)) & mask;
            let at = (row * width + x) * 3;
            buffer[at..at + 3].fill(value * scale);
        }
    }
    Ok(())
}
