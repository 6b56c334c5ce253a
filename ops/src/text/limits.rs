//! What a text may cost at most: the defaults of the options with the same names.

/// Bytes of a text that `tokenize` takes: 400 pages. The library takes about a second for them, and 300 MB with a token a byte.
pub(crate) const MAX_TEXT_BYTES: usize = 1 << 20;

/// Bytes of a text that `tokenize_chars` takes, some nanoseconds and 8 bytes each. Not an option.
pub(crate) const MAX_CHARACTERS_BYTES: usize = 4 << 20;
