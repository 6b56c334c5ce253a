//! Where a block's coefficients go.

/// Zigzag position → natural position.
pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// What becomes of a component's coefficients, in the order they come (zigzag).
#[derive(Debug, Clone, Copy)]
pub(super) struct Places {
    quant: [i16; 64],
    /// The quantisers in natural order.
    natural_quant: [i16; 64],
    /// Natural positions; next to the quantisers, so that the loop needs one address for both.
    natural: [u8; 64],
}

impl Places {
    pub(super) const NONE: Self = Self { quant: [0; 64], natural_quant: [0; 64], natural: [0; 64] };

    /// Takes `quant` in the file's order.
    pub(super) fn new(quant: &[u16; 64]) -> Self {
        let quant = quant.map(u16::cast_signed);
        let mut natural_quant = [0; 64];
        for (at, quant) in ZIGZAG.into_iter().zip(quant) {
            natural_quant[usize::from(at)] = quant;
        }
        Self { quant, natural_quant, natural: ZIGZAG }
    }

    #[expect(clippy::cast_possible_truncation, reason = "wraps in damaged files, as in libjpeg")]
    #[inline(always)]
    pub(super) fn put(&self, at: usize, value: i32, block: &mut [i16; 64]) {
        block[usize::from(self.natural[at] & 63)] = (value as i16).wrapping_mul(self.quant[at]);
    }

    /// Dequantises a DC coefficient.
    #[inline(always)]
    pub(super) fn dc(&self, value: i16) -> i16 {
        value.wrapping_mul(self.quant[0])
    }

    /// Dequantises a block in natural order.
    #[inline(always)]
    pub(super) fn dequantised(&self, block: &[i16; 64]) -> [i16; 64] {
        std::array::from_fn(|at| block[at].wrapping_mul(self.natural_quant[at]))
    }
}
