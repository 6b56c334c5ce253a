//! Why the baseline decoder leaves a file to libjpeg-turbo.

/// Why this decoder does not decode a file; libjpeg-turbo then does, or reports what is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::image::decode) enum Declined {
    /// A kind of JPEG that is not for this decoder.
    Kind,
    /// Something is wrong with the data.
    Damage,
}
