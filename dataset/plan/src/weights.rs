//! How often samples are drawn: systematic sampling, in integers.
//!
//! ```text
//! weights   3   1   1   1         M = 4 draws of W = 6: a draw for each 1.5 of weight
//! sums      0 ──── 3 ─ 4 ─ 5 ─ 6
//! draws        1.5  3    4.5   6   →   2 0 1 1
//! ```

/// The largest weight becomes an integer from 2⁶¹ to below 2⁶², so weights of any size keep their proportions.
const BITS: i32 = 61;

/// Returns how often each sample is drawn: `⌊M · w / W⌋` times or once more, where M is `draws` and W the sum of the weights. In all
/// it is M. The draws are spread evenly over the weights in their sequence, so they are the same on every machine.
///
/// Weights below 2⁻⁶¹ of the largest count as that; 0 is never drawn.
///
/// ```
/// use feedstock_plan::draws_by_weight;
///
/// assert_eq!(draws_by_weight(&[1.0, 2.0, 3.0], 6), [1, 2, 3]);
/// assert_eq!(draws_by_weight(&[3.0, 1.0, 1.0, 1.0], 4), [2, 0, 1, 1]);
/// assert_eq!(draws_by_weight(&[0.5, 0.0, 0.5], 3), [1, 0, 2]);
/// ```
///
/// # Panics
/// If a weight is negative, infinite or NaN, or if none is above 0.
pub fn draws_by_weight(weights: &[f64], draws: u64) -> Vec<u64> {
    assert!(weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0), "weights are numbers >= 0");
    let largest = weights.iter().copied().fold(0.0, f64::max);
    assert!(largest > 0.0, "one of the weights is above 0");
    let weights = weights.iter().map(|weight| integer(*weight, largest));
    let sum: u128 = weights.clone().map(u128::from).sum();
    let mut left = 0; // of the draws before, × sum
    weights
        .map(|weight| {
            // Less than 2⁶⁴ × 2⁶² + 2⁶² × the samples.
            let due = left + u128::from(draws) * u128::from(weight);
            left = due % sum;
            #[expect(clippy::cast_possible_truncation, reason = "at most all draws")]
            {
                (due / sum) as u64
            }
        })
        .collect()
}

/// Returns a weight as an integer, in units that make the largest one fill 62 bits.
fn integer(weight: f64, largest: f64) -> u64 {
    if weight == 0.0 {
        return 0;
    }
    let exponent = BITS - exponent(largest);
    // In two steps, because 2^exponent may be beyond f64.
    let scaled = weight * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 0 to below 2^62")]
    {
        (scaled as u64).max(1)
    }
}

/// Returns e, where 2^e is the largest power of two that is not above `number`, which is above 0.
fn exponent(number: f64) -> i32 {
    const FRACTION_BITS: u32 = f64::MANTISSA_DIGITS - 1;
    let biased = (number.to_bits() >> FRACTION_BITS) & 0x7FF;
    match i32::try_from(biased) {
        Ok(0) | Err(_) => {
            let bits = i32::try_from(number.to_bits().ilog2()).unwrap_or(0);
            bits - 1074 // a subnormal number is a multiple of 2^-1074
        }
        Ok(biased) => biased - 1023,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_sample_has_its_share_or_one_draw_more(
            weights in prop::collection::vec(0u64..1_000, 1..200), draws in 0u64..5_000, shift in -1000i32..900,
        ) {
            let sum: u64 = weights.iter().sum();
            prop_assume!(sum > 0);
            let scaled: Vec<f64> = weights.iter().map(|weight| *weight as f64 * 2f64.powi(shift)).collect();
            let drawn = draws_by_weight(&scaled, draws);
            prop_assert_eq!(drawn.iter().sum::<u64>(), draws);
            for (weight, drawn) in weights.iter().zip(&drawn) {
                let share = draws * weight / sum;
                prop_assert!(*drawn == share || *drawn == share + 1 && draws * weight % sum > 0, "{drawn} of {share}");
            }
        }

        #[test]
        fn any_weights_have_all_draws(
            weights in prop::collection::vec(prop::num::f64::POSITIVE | prop::num::f64::SUBNORMAL, 1..50), draws: u64,
        ) {
            let weights: Vec<f64> = weights.into_iter().map(f64::abs).filter(|weight| weight.is_finite()).collect();
            prop_assume!(weights.iter().any(|weight| *weight > 0.0));
            let drawn = draws_by_weight(&weights, draws);
            prop_assert_eq!(drawn.iter().map(|drawn| u128::from(*drawn)).sum::<u128>(), u128::from(draws));
        }
    }

    #[test]
    fn exponents_of_all_sizes() {
        for (number, e) in
            [(1.0, 0), (1.999, 0), (0.5, -1), (3.0, 1), (f64::MAX, 1023), (f64::from_bits(1), -1074)]
        {
            assert_eq!(exponent(number), e, "{number}");
        }
        assert_eq!(exponent(f64::MIN_POSITIVE / 2.0), -1023);
    }
}
