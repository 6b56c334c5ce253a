//! `decode_image`: JPEG, PNG and WebP into RGB, only as much as is needed. Pixels of one channel are kept as three equal ones
//! until the row is written.
//!
//! ```text
//! bytes ─▶ sniff by magic bytes ─▶ header and limits ─▶ region ─▶ RGB in a scratch buffer, and where the region is
//!          (a PNG named .jpg decodes)  (before any allocation)
//! ```
//! A region of a JPEG is decoded bit for bit as in the whole image (`jpeg.rs` has the margins). What is checked: the
//! header, the limits, every entropy-coded symbol that is read, and that the file reaches its end marker. Damage inside
//! rows below the region that does not shorten the file cannot be seen without decoding them.
//!
//! What Pillow's `load()` decodes without an error is decoded, with its result; where Pillow is silent about damage, the
//! sample carries a [`Warning`](crate::Warning).

mod baseline;
mod exif;
mod format;
mod gray;
mod header;
mod jpeg;
mod jpeg_header;
mod jpeg_scans;
mod layer;
mod mode;
mod opened;
mod options;
mod pixels;
mod png;
mod png_repair;
mod vp8l;
mod webp;

pub(crate) use jpeg::JpegDecoder;
pub(crate) use layer::Layer;
pub(crate) use opened::{Demand, Opened};
pub(crate) use pixels::Pixels;

pub use format::{ImageFormat, ImageHeader};
pub use header::read_header;
pub use mode::{DecodeMode, read_mode};
pub use opened::{decode_rgb, decode_rgb_warned};
pub use options::DecodeImage;
