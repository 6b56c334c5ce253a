//! What an image may cost at most: the defaults of the options with the same names.

/// Pillow's limit on pixels, a quarter of a GiB of RGB.
pub(crate) const MAX_PIXELS: u64 = 89_478_485;

/// Pixels that one encoded byte may claim, in images over [`RATIO_FREE_PIXELS`]. The flattest legitimate JPEG is a grey
/// progressive one with a bit per 8×8 block, 512 pixels a byte; deflate makes at most 1032 bytes of one, 344 RGB
/// pixels. A 16384² claim in 170 KB is 1542.
pub(crate) const MAX_PIXELS_PER_BYTE: u32 = 1024;

/// Images up to 4 megapixels (12 MB of RGB) may be as flat as they like: a small 1-bit PNG or a lossless WebP of one
/// colour legitimately has far more pixels than bytes. Not an option.
pub(crate) const RATIO_FREE_PIXELS: u64 = 4 << 20;

/// Scans of a JPEG, each of which costs a pass over the image. Encoders write about ten, and the specification's useful
/// maximum (each bit of each band of each component) is a few hundred; a hostile file has thousands.
pub(crate) const MAX_SCANS: u32 = 500;

/// Blocks of 8×8 that all scans of a JPEG visit, about 15 ns each. An image of [`MAX_PIXELS`] without subsampling has
/// 1.4 million blocks a component, so that 48 scans of one component are within the limit; encoders write 8 to 20.
pub(crate) const MAX_SCAN_BLOCKS: u64 = 1 << 26;

/// Coefficients that are kept between the scans of a JPEG, 2 bytes each: 716 MB for four components of [`MAX_PIXELS`],
/// so the default limits only images for which `max_pixels` was raised.
pub(crate) const MAX_COEFFICIENT_BYTES: u64 = 768 << 20;

/// Groups of Huffman codes of a lossless WebP. libwebp writes at most 2,600, and other encoders that we know one. A group takes
/// 21 KB with codes of up to 10 bits, and 130 KB at most: 54 MB and 330 MB.
pub(crate) const MAX_HUFFMAN_GROUPS: u32 = 2600;
