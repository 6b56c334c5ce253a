//! What the two ways to compute rows of pixels share.

/// Elements after a row's sums, so that whole vectors can be loaded: their values are never seen.
pub(super) const SUMS_PADDING: usize = 16;

/// A row of pixels before it becomes RGB.
#[derive(Debug, Clone, Copy)]
pub(super) enum Row<'a> {
    Grey { luma: &'a [u8] },
    Full { luma: &'a [u8], cb: &'a [u8], cr: &'a [u8] },
    Halved { luma: &'a [u8], cb: &'a [u16], cr: &'a [u16], sums: Sums },
}

/// The sums of a [`Row::Halved`]: for n samples n + 2, then [`SUMS_PADDING`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Sums {
    /// The first pixel is the second of its sample.
    pub(super) odd: bool,
    /// Two rows weighed 3 : 1, otherwise one row unchanged.
    pub(super) of_two_rows: bool,
}

/// The two ways to compute the same.
pub(super) trait Arithmetic {
    /// Sums for as many samples of two rows, weighed 3 : 1, or of one row as they are.
    fn sum(&self, near: &[u8], far: Option<&[u8]>, sums: &mut [u16]);

    /// Writes a row of pixels.
    fn write(&mut self, row: Row<'_>, out: &mut [u8]);
}

/// Sums in plain Rust.
pub(super) fn plain_sum(near: &[u8], far: Option<&[u8]>, sums: &mut [u16]) {
    if let Some(far) = far {
        for ((sum, near), far) in sums.iter_mut().zip(near).zip(far) {
            *sum = u16::from(*near) * 3 + u16::from(*far);
        }
    } else {
        for (sum, near) in sums.iter_mut().zip(near) {
            *sum = u16::from(*near);
        }
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a weighted mean of bytes")]
#[inline(always)]
pub(super) fn low(value: u16) -> u8 {
    value as u8
}
