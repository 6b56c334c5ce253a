//! The formats of images, by their first bytes, and what a header states.

use feedstock_base::{Error, Result};

/// An image's file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ImageFormat {
    /// ITU-T T.81.
    Jpeg,
    /// W3C PNG.
    Png,
    /// RFC 9649.
    WebP,
}

impl std::fmt::Display for ImageFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Jpeg => "JPEG",
            Self::Png => "PNG",
            Self::WebP => "WebP",
        })
    }
}

/// What the header states: the stored size, before any EXIF orientation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ImageHeader {
    /// The format, by the magic bytes.
    pub format: ImageFormat,
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

/// Returns the format that the bytes begin as.
pub(super) fn sniff(bytes: &[u8]) -> Result<ImageFormat> {
    if bytes.starts_with(&[0xFF, 0xD8, 0xFF]) {
        return Ok(ImageFormat::Jpeg);
    }
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Ok(ImageFormat::Png);
    }
    if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        return Ok(ImageFormat::WebP);
    }
    if bytes.is_empty() {
        return Err(Error::bad_sample("the image is empty (0 bytes)"));
    }
    Err(Error::bad_sample(format!(
        "{} bytes starting with {:02x?} are no JPEG, PNG or WebP",
        bytes.len(),
        &bytes[..bytes.len().min(12)]
    )))
}
