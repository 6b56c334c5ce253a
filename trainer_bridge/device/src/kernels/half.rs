//! Rounds single precision to 16 bits, to nearest even, as the kernels do.

/// Returns the bits of `value` in IEEE half precision.
pub(crate) fn f16_bits(value: f32) -> u16 {
    let word = value.to_bits();
    let (sign, magnitude) = (word >> 16 & 0x8000, word & 0x7fff_ffff);
    let bits = match magnitude {
        0x7f80_0001.. => 0x7fff, // NaN
        0x477f_f000.. => sign | 0x7c00,
        0x3880_0000.. => {
            let rebased = magnitude - 0x3800_0000;
            sign | (rebased + 0xfff + (rebased >> 13 & 1)) >> 13
        }
        0x3300_0000.. => {
            let (mantissa, shift) = (magnitude & 0x7f_ffff | 0x80_0000, 126 - (magnitude >> 23));
            let (kept, rest, middle) = (mantissa >> shift, mantissa & ((1 << shift) - 1), 1 << (shift - 1));
            sign | (kept + u32::from(rest > middle || (rest == middle && kept & 1 == 1)))
        }
        _ => sign,
    };
    low(bits)
}

/// Returns the bits of `value` in bfloat16, the upper half of a float.
pub(crate) fn bf16_bits(value: f32) -> u16 {
    let word = value.to_bits();
    match word & 0x7fff_ffff > 0x7f80_0000 {
        true => 0x7fff,
        false => low((word + 0x7fff + (word >> 16 & 1)) >> 16),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the upper half is empty")]
fn low(bits: u32) -> u16 {
    bits as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the value of half-precision bits, by definition.
    fn f16_value(bits: u16) -> f64 {
        let (exponent, mantissa) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
        let magnitude = match exponent {
            0 => mantissa * 2f64.powi(-24),
            31 => f64::INFINITY,
            _ => (1.0 + mantissa / 1024.0) * 2f64.powi(exponent - 15),
        };
        if bits >> 15 == 1 { -magnitude } else { magnitude }
    }

    #[test]
    fn every_half_is_itself_and_what_lies_between_goes_to_the_nearest() {
        for bits in 0..0x7c00_u16 {
            let (low, high) = (f16_value(bits), f16_value(bits + 1));
            assert_eq!(f16_bits(low as f32), bits);
            assert_eq!(f16_bits(-low as f32), bits | 0x8000);
            if bits + 1 == 0x7c00 {
                continue;
            }
            let middle = f64::midpoint(low, high) as f32; // exact: two more bits than half precision
            let even = if bits & 1 == 0 { bits } else { bits + 1 };
            assert_eq!(f16_bits(middle), even, "{low} and {high}");
            assert_eq!(f16_bits(middle.next_up()), bits + 1);
            assert_eq!(f16_bits(middle.next_down()), bits);
        }
        assert_eq!(f16_bits(65_519.9), 0x7bff);
        assert_eq!(f16_bits(65_520.0), 0x7c00);
        assert_eq!(f16_bits(f32::NEG_INFINITY), 0xfc00);
        assert_eq!(f16_bits(f32::NAN), 0x7fff);
    }

    #[test]
    fn upper_halves_are_rounded_to_nearest_even() {
        for (value, bits) in [
            (1.0, 0x3f80),
            (f32::from_bits(0x3f80_8000), 0x3f80),
            (f32::from_bits(0x3f80_8001), 0x3f81),
            (f32::from_bits(0x3f81_8000), 0x3f82),
            (-0.0, 0x8000),
            (f32::INFINITY, 0x7f80),
            (f32::MAX, 0x7f80),
        ] {
            assert_eq!(bf16_bits(value), bits, "{value}");
        }
        assert_eq!(bf16_bits(f32::NAN), 0x7fff);
    }
}
