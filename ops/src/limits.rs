//! Limits on the cost of one sample: the defaults of all decoders' limits, and how they are reported.
//!
//! Limits count work: pixels, scans, blocks, packets, steps, bytes. None is a time, so that every rank, worker and repeated
//! request accepts the same samples. Each limit is an option of `decode_image` or `decode_audio` with the same name.
//!
//! A sample at the default limits takes, on one core of 2.5 GHz, about a second for 67 million blocks, and less for 268
//! million steps.

use std::fmt::Display;

use feedstock_base::Error;

/// The error about a sample of which `found` is over the limit of `option`.
pub(crate) fn over(found: impl Display, option: &str, limit: impl Display) -> Error {
    Error::bad_sample(format!("{found}, over {option} ({limit}); raise the limit or set on_error=skip"))
}
