//! What the transforms in plain Rust and on AVX2 share: fixed point with 13 bits, and the limits of words and samples.

pub(super) const CONST_BITS: i32 = 13;
pub(super) const PASS1_BITS: i32 = 2;
/// What the passes over columns and rows shift out.
pub(super) const COLUMN_SHIFT: i32 = CONST_BITS - PASS1_BITS;
pub(super) const ROW_SHIFT: i32 = CONST_BITS + PASS1_BITS + 3;

/// The same to four and to two samples: bits of the averages, too.
pub(super) const HALF_COLUMN_SHIFT: i32 = CONST_BITS - PASS1_BITS + 1;
pub(super) const HALF_ROW_SHIFT: i32 = CONST_BITS + PASS1_BITS + 3 + 1;
pub(super) const QUARTER_COLUMN_SHIFT: i32 = CONST_BITS - PASS1_BITS + 2;
pub(super) const QUARTER_ROW_SHIFT: i32 = CONST_BITS + PASS1_BITS + 3 + 2;

pub(super) fn mul(a: i16, b: i32) -> i32 {
    i32::from(a) * b
}

/// Shifts out `SHIFT` bits and rounds.
pub(super) fn down<const SHIFT: i32>(value: i32) -> i32 {
    value.wrapping_add(1 << (SHIFT - 1)) >> SHIFT
}

#[expect(clippy::cast_possible_truncation, reason = "clamped")]
pub(super) fn word(value: i32) -> i16 {
    value.clamp(i16::MIN.into(), i16::MAX.into()) as i16
}

pub(super) fn sample(value: i32) -> u8 {
    value.saturating_add(128).clamp(0, 255) as u8
}
