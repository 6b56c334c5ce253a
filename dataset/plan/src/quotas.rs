//! The places of each part in a cycle of a mix, by their weights.

use feedstock_base::{Error, Result};

/// Minimum positions of a cycle: shares are exact within a few batches.
const MIN_CYCLE: u64 = 1 << 10;
/// Maximum positions of a cycle: 12 bytes each, 768 KiB; a part with less than half of 1/65,536 has no place in it.
pub(crate) const MAX_CYCLE: u64 = 1 << 16;
/// The cycle doubles until every part's share is this close to its weight.
const SHARE_ERROR: f64 = 0.01;

/// Returns a part's name in errors.
pub(crate) type PartName<'a> = &'a dyn Fn(usize) -> String;

/// Returns each weight's share of the sum of all.
fn shares(weights: &[f64]) -> Vec<f64> {
    let sum: f64 = weights.iter().sum();
    // Weights near the largest number have no finite sum. Halved 64 times they have one, with the same shares.
    let scale = if sum.is_finite() { 1.0 } else { f64::from_bits((1023 - 64) << 52) };
    let sum: f64 = weights.iter().map(|weight| weight * scale).sum();
    weights.iter().map(|weight| weight * scale / sum).collect()
}

/// Returns each weight's exact number of places in a cycle; their sum is the cycle's length.
pub(crate) fn quotas(weights: &[f64], name: PartName<'_>) -> Result<Vec<u64>> {
    for (part, weight) in weights.iter().enumerate() {
        if !weight.is_finite() || *weight <= 0.0 {
            return Err(Error::config(format!(
                "the weight of {} in the mix must be a finite number > 0; got {weight}",
                name(part)
            )));
        }
    }
    let shares = shares(weights);
    let mut cycle = MIN_CYCLE;
    loop {
        let quotas = largest_remainder(&shares, cycle);
        let off =
            |(quota, share): (&u64, &f64)| (*quota as f64 / (share * cycle as f64) - 1.0).abs() > SHARE_ERROR;
        if cycle == MAX_CYCLE || !quotas.iter().zip(&shares).any(off) {
            return match quotas.iter().position(|quota| *quota == 0) {
                None => Ok(quotas),
                Some(part) => Err(Error::config(format!(
                    "the weight of {} in the mix is {}, a share of {:.1e}: less than one sample in {cycle}; raise it or \
                     leave the part out",
                    name(part),
                    weights[part],
                    shares[part]
                ))),
            };
        }
        cycle *= 2;
    }
}

/// Returns (part, requested share, actual share) for every part whose share is off by more than 1 %, because it is only a few
/// places of the longest cycle.
pub(crate) fn rounded(weights: &[f64], quotas: &[u64]) -> Vec<(usize, f64, f64)> {
    let cycle: u64 = quotas.iter().sum();
    let shares = shares(weights);
    let shares = shares.iter().zip(quotas).map(|(share, quota)| (*share, *quota as f64 / cycle as f64));
    let rounded = shares.enumerate().filter(|(_, (asked, given))| (given / asked - 1.0).abs() > SHARE_ERROR);
    rounded.map(|(part, (asked, given))| (part, asked, given)).collect()
}

/// Returns the integers nearest to share × `places` that sum to `places` (Hare's quota); ties go to the earlier part.
fn largest_remainder(shares: &[f64], places: u64) -> Vec<u64> {
    let exact: Vec<f64> = shares.iter().map(|share| share * places as f64).collect();
    #[expect(clippy::cast_possible_truncation, reason = "below MAX_CYCLE")]
    let mut quotas: Vec<u64> = exact.iter().map(|exact| exact.floor() as u64).collect();
    let mut by_rest: Vec<usize> = (0..shares.len()).collect();
    by_rest.sort_by(|&a, &b| (exact[b] - exact[b].floor()).total_cmp(&(exact[a] - exact[a].floor())));
    let left = places.saturating_sub(quotas.iter().sum());
    // Fewer places than parts are left, except for rounding.
    by_rest.iter().cycle().zip(0..left).for_each(|(&part, _)| quotas[part] += 1);
    quotas
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(at: usize) -> String {
        format!("part {at}")
    }

    proptest! {
        #[test]
        fn quotas_are_the_weights_within_a_hundredth_or_it_is_told(
            weights in prop::collection::vec(0.05f64..10.0, 1..20),
        ) {
            let quotas = quotas(&weights, &part).unwrap();
            let cycle: u64 = quotas.iter().sum();
            prop_assert!(cycle.is_power_of_two() && (MIN_CYCLE..=MAX_CYCLE).contains(&cycle));
            let told: Vec<usize> = rounded(&weights, &quotas).into_iter().map(|(part, ..)| part).collect();
            prop_assert!(told.is_empty() || cycle == MAX_CYCLE);
            for (part, (quota, weight)) in quotas.iter().zip(&weights).enumerate() {
                let share = weight / weights.iter().sum::<f64>();
                prop_assert!((*quota as f64 - share * cycle as f64).abs() < 1.0);
                let off = (*quota as f64 / (share * cycle as f64) - 1.0).abs();
                prop_assert!(off < 0.011 || told.contains(&part), "{off}");
            }
        }
    }

    #[test]
    fn quotas_are_exact_where_they_can_be() {
        let quotas = |weights: &[f64]| quotas(weights, &part);
        assert_eq!(quotas(&[3.0, 1.0]).unwrap(), [768, 256]);
        assert_eq!(quotas(&[1.0, 1.0, 1.0]).unwrap(), [342, 341, 341]);
        assert_eq!(quotas(&[0.001, 0.999]).unwrap(), [33, (1 << 15) - 33]);
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(quotas(&[1.0, bad]).unwrap_err().to_string().contains("part 1"));
        }
        assert!(quotas(&[1.0, 1e-9]).unwrap_err().to_string().contains("part 1"));
    }

    #[test]
    fn weights_of_any_size_have_shares() {
        let quotas = |weights: &[f64]| quotas(weights, &part);
        for scale in [f64::MAX / 3.5, 1.0, f64::MIN_POSITIVE] {
            assert_eq!(quotas(&[3.0 * scale, 1.0 * scale]).unwrap(), [768, 256], "{scale}");
        }
        assert_eq!(quotas(&[f64::MAX; 4]).unwrap(), [256; 4]);
    }

    #[test]
    fn shares_that_are_rounded_are_told() {
        let told = |weights: &[f64]| rounded(weights, &quotas(weights, &part).unwrap());
        assert!(told(&[3.0, 1.0]).is_empty());
        assert!(told(&[0.001, 0.999]).is_empty());
        let [(part, asked, given)] = told(&[1.0, 2.5e-5])[..] else { panic!("one part is") };
        assert_eq!((part, given), (1, 2.0 / 65_536.0), "1.6 places are 2");
        assert!((asked - 2.5e-5).abs() < 1e-8);
    }
}
