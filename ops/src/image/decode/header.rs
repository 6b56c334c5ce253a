//! The format and size of an image, from its header.

use super::format::{ImageFormat, ImageHeader, sniff};
use super::jpeg_header::JpegHeader;
use super::{png, webp};
use feedstock_base::{Error, Result};

/// Reads format and size without decoding.
///
/// ```
/// use feedstock_ops::image::{ImageFormat, read_header};
///
/// # fn encode(width: u32, height: u32, rgb: &[u8]) -> Vec<u8> {
/// #     let mut out = Vec::new();
/// #     let mut encoder = png::Encoder::new(&mut out, width, height);
/// #     encoder.set_color(png::ColorType::Rgb);
/// #     encoder.write_header().unwrap().write_image_data(rgb).unwrap();
/// #     out
/// # }
/// let header = read_header(&encode(3, 2, &[0; 18]))?; // a PNG
/// assert_eq!((header.format, header.width, header.height), (ImageFormat::Png, 3, 2));
///
/// let error = read_header(b"<html>").unwrap_err();
/// assert_eq!(error.message(), "6 bytes starting with [3c, 68, 74, 6d, 6c, 3e] are no JPEG, PNG or WebP");
/// # Ok::<(), feedstock_ops::Error>(())
/// ```
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
