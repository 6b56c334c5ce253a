//! Bits of main data, the highest of a byte first.

/// Bytes of zeros that follow the data, so that eight can be loaded at each of its bits.
pub(super) const PADDING: usize = 8;

/// A place in main data that [`PADDING`] follows. After it everything is 0.
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bits<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bits before this place.
    #[inline(always)]
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn go_to(&mut self, at: usize) {
        self.at = at;
    }

    /// At least 57 of the bits that follow, the next one highest.
    #[inline(always)]
    pub(super) fn peek(&self) -> u64 {
        let eight = self.bytes.get(self.at / 8..).and_then(|rest| rest.first_chunk());
        eight.map_or(0, |eight| u64::from_be_bytes(*eight)) << (self.at % 8)
    }

    #[inline(always)]
    pub(super) fn skip(&mut self, bits: u32) {
        self.at += bits as usize;
    }

    /// The number that the next `bits` are, at most 32.
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
