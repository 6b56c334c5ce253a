//! A permutation of `0..len` without a table, for pieces.
//!
//! Swap-or-not (Hoang, Morris, Rogaway, CRYPTO 2012): each round pairs `x` with `key − x` and swaps the two on the toss of a
//! keyed coin. The domain need not be a power of two, and each round is its own inverse. 64 rounds take about 0.2 µs a
//! sample, less than a thousandth of decoding one.

use crate::random::{hash, scatter};

/// Six rounds for each bit of a domain of 2¹⁰, two for each of 2³²: far more than the quality of a shuffle needs.
const ROUNDS: usize = 64;

#[derive(Debug, Clone)]
pub(crate) struct KeyedPermutation {
    len: u64,
    rounds: Box<[(u64, u64)]>, // (pairing key below len, coin key)
}

impl KeyedPermutation {
    pub(crate) fn new(len: u64, key: u64) -> Self {
        let rounds = (0..ROUNDS as u64)
            .map(|round| (hash(&[key, round, 0]) % len.max(1), hash(&[key, round, 1])))
            .collect();
        Self { len, rounds }
    }

    /// Returns the element at `place`.
    pub(crate) fn at(&self, place: u64) -> u64 {
        self.rounds.iter().fold(place, |x, round| self.swap(x, *round))
    }

    /// Returns the place of `element`.
    pub(crate) fn place_of(&self, element: u64) -> u64 {
        self.rounds.iter().rev().fold(element, |x, round| self.swap(x, *round))
    }

    fn swap(&self, x: u64, (key, coin): (u64, u64)) -> u64 {
        debug_assert!(x < self.len);
        let partner = if key >= x { key - x } else { key + self.len - x };
        if scatter(coin ^ x.max(partner)) & 1 == 1 { partner } else { x }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn is_a_permutation_with_an_inverse(len in 1u64..2000, key: u64) {
            let permutation = KeyedPermutation::new(len, key);
            let mut seen = vec![false; len as usize];
            for place in 0..len {
                let element = permutation.at(place);
                prop_assert!(!std::mem::replace(&mut seen[element as usize], true));
                prop_assert_eq!(permutation.place_of(element), place);
            }
        }
    }

    #[test]
    fn neighbours_part() {
        let permutation = KeyedPermutation::new(1_000_000_007, 3);
        let near = (0..10_000u64).filter(|&p| permutation.at(p).abs_diff(permutation.at(p + 1)) < 1_000_000);
        // Uniform pairs are that near with probability 0.002.
        assert!((5..60).contains(&near.count()));
    }
}
