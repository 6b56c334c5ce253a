//! Bits of main data, the highest of a byte first.

/// The zero bytes after the data, so that eight bytes can be loaded at each of its bits.
pub(super) const PADDING: usize = 8;

/// A position in main data that [`PADDING`] follows. Everything after the end is 0.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bits<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Returns the number of bits before this position.
    #[inline(always)]
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn go_to(&mut self, at: usize) {
        self.at = at;
    }

    /// Returns at least 57 of the following bits, the next one highest.
    #[inline(always)]
    pub(super) fn peek(&self) -> u64 {
        let eight = self.bytes.get(self.at / 8..).and_then(|rest| rest.first_chunk());
        eight.map_or(0, |eight| u64::from_be_bytes(*eight)) << (self.at % 8)
    }

    #[inline(always)]
    pub(super) fn skip(&mut self, bits: u32) {
        self.at += bits as usize;
    }

    /// Takes the next `bits` bits, at most 32, as a number.
    #[expect(clippy::cast_possible_truncation, reason = "at most 32 bits")]
    #[inline(always)]
    pub(super) fn take(&mut self, bits: u32) -> u32 {
        let number = self.peek() >> 1 >> (63 - bits);
        self.skip(bits);
        number as u32
    }

    pub(super) fn flag(&mut self) -> bool {
        self.take(1) == 1
    }
}
