//! What one sample may cost at most: the defaults of all decoders' limits, and how they are reported.
//!
//! Limits count work: pixels, scans, blocks, packets, steps, bytes. None is a time, so that every rank, worker and repeated
//! request accepts the same samples. Each limit is an option of `decode_image` or `decode_audio` with the same name.
//!
//! The costs of the most that the defaults allow, on one core of 2.5 GHz: about a second for 67 million blocks, and less for
//! 268 million steps.

use std::fmt::Display;

use feedstock_base::Error;

/// Pillow's limit on pixels, a quarter of a GiB of RGB.
#[cfg(feature = "image")]
pub(crate) const MAX_PIXELS: u64 = 89_478_485;

/// Pixels that one encoded byte may claim, in pictures over [`RATIO_FREE_PIXELS`]. The flattest legitimate JPEG is
/// a grey progressive one with a bit per 8×8 block, 512 pixels a byte; deflate makes at most 1032 bytes of one,
/// 344 RGB pixels. A 16384² claim in 170 KB is 1542.
#[cfg(feature = "image")]
pub(crate) const MAX_PIXELS_PER_BYTE: u32 = 1024;

/// Pictures up to 4 megapixels (12 MB of RGB) may be as flat as they like: a small 1-bit PNG or a lossless WebP of
/// one colour legitimately has far more pixels than bytes. Not an option.
#[cfg(feature = "image")]
pub(crate) const RATIO_FREE_PIXELS: u64 = 4 << 20;

/// Scans of a JPEG, each of which costs a pass over the picture. Encoders write about ten, and the specification's useful
/// maximum (each bit of each band of each component) is a few hundred; a hostile file has thousands.
#[cfg(feature = "image")]
pub(crate) const MAX_SCANS: u32 = 500;

/// Blocks of 8×8 that all scans of a JPEG visit, about 15 ns each. A picture of [`MAX_PIXELS`] without subsampling has
/// 1.4 million blocks a component, so that 48 scans of one component are within the limit; encoders write 8 to 20.
#[cfg(feature = "image")]
pub(crate) const MAX_SCAN_BLOCKS: u64 = 1 << 26;

/// Coefficients that are kept between the scans of a JPEG, 2 bytes each: 716 MB for four components of [`MAX_PIXELS`], so the
/// default limits only pictures for which `max_pixels` was raised.
#[cfg(feature = "image")]
pub(crate) const MAX_COEFFICIENT_BYTES: u64 = 768 << 20;

/// Groups of Huffman codes of a lossless WebP. libwebp writes at most 2,600, and other encoders that we know one. A group takes
/// 21 KB with codes of up to 10 bits, and 130 KB at most: 54 MB and 330 MB.
#[cfg(feature = "image")]
pub(crate) const MAX_HUFFMAN_GROUPS: u32 = 2600;

/// Ten minutes: the longest utterances of speech corpora are below one, and at 48 kHz it is 115 MB of f32.
#[cfg(feature = "audio")]
pub(crate) const MAX_SECONDS: f64 = 600.0;

/// [`MAX_SECONDS`] at 96 kHz: 230 MB of f32.
#[cfg(feature = "audio")]
pub(crate) const MAX_SAMPLES: u64 = 57_600_000;

/// Bytes of f32 that all channels of a clip decode to: [`MAX_SAMPLES`] in stereo. It is also two hours of one channel at 16 kHz,
/// for which `max_seconds` and `max_samples` must be raised, and 5 minutes of 8 channels at 48 kHz.
#[cfg(feature = "audio")]
pub(crate) const MAX_DECODED_BYTES: u64 = MAX_SAMPLES * 2 * 4;

/// The highest rate that recording hardware makes.
#[cfg(feature = "audio")]
pub(crate) const MAX_SAMPLE_RATE: u32 = 384_000;

/// 7.1 surround.
#[cfg(feature = "audio")]
pub(crate) const MAX_CHANNELS: u32 = 8;

/// A tenth of a second in 5 s, four frames of a 48 kHz MP3: what a transcript survives.
#[cfg(feature = "audio")]
pub(crate) const MAX_LOST_SHARE: f64 = 0.02;

/// Packets of a clip: [`MAX_SAMPLES`] in FLAC's smallest blocks of 16 samples are 3.6 million.
#[cfg(feature = "audio")]
pub(crate) const MAX_PACKETS: u64 = 1 << 22;

/// Steps of looking for a clip's packets beyond one pass over its bytes, about a nanosecond each. Of the files that we know
/// none needs more than 0.4 % of them, but for an MP4 of ten minutes that states the duration of each packet: 40 %.
#[cfg(feature = "audio")]
pub(crate) const MAX_STEPS: u64 = 1 << 28;

/// Bytes of a Vorbis clip's codebooks, once unpacked. libvorbis' largest are below 3 MB.
#[cfg(feature = "audio")]
pub(crate) const MAX_CODEBOOK_BYTES: u64 = 64 << 20;

/// Bytes of a text that `tokenize` takes: 400 pages. The library takes about a second for them, and 300 MB with a token a byte.
#[cfg(feature = "text")]
pub(crate) const MAX_TEXT_BYTES: usize = 1 << 20;

/// Bytes of a text that `tokenize_chars` takes, some nanoseconds and 8 bytes each. Not an option.
#[cfg(feature = "text")]
pub(crate) const MAX_CHARACTERS_BYTES: usize = 4 << 20;

/// The error about a sample of which `found` is over the limit of `option`.
pub(crate) fn over(found: impl Display, option: &str, limit: impl Display) -> Error {
    Error::bad_sample(format!("{found}, over {option} ({limit}); raise the limit or set on_error=skip"))
}
