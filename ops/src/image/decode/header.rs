//! The format and size of an image, from its header.

use super::format::{ImageFormat, ImageHeader, sniff};
use super::jpeg_header::JpegHeader;
use super::{png, webp};
use feedstock_base::{Error, Result};

/// Reads format and size without decoding.
///
/// # Errors
/// `BadSample` for bytes in another format, or if the header is damaged.
pub fn read_header(bytes: &[u8]) -> Result<ImageHeader> {
    let format = sniff(bytes)?;
    let size = match format {
        ImageFormat::Jpeg => JpegHeader::parse(bytes)?.size(),
        ImageFormat::Png => png::size(bytes)?,
        ImageFormat::WebP => webp::size(bytes)?,
    };
    if size.width == 0 || size.height == 0 {
        return Err(Error::bad_sample(format!(
            "the {format} header asks for {}×{} px; an image needs at least one",
            size.width, size.height
        )));
    }
    Ok(ImageHeader { format, width: size.width, height: size.height })
}
