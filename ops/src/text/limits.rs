//! Limits on the cost of a text: the defaults of the options with the same names.

/// The longest text for `tokenize`, in bytes: 400 pages. The library needs about a second for it, and 300 MB if every
/// byte becomes a token.
pub(crate) const MAX_TEXT_BYTES: usize = 1 << 20;

/// The longest text for `tokenize_chars`, in bytes; each costs a few nanoseconds and 8 bytes. Not an option.
pub(crate) const MAX_CHARACTERS_BYTES: usize = 4 << 20;
