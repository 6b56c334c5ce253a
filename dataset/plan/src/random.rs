//! Randomness derived from words, the same on every machine and in every release of one plan version.
//!
//! Hash: SplitMix64's finaliser (Steele, Lea, Flood 2014) chained over the words. Generator: xoshiro256++
//! (Blackman, Vigna 2019) seeded from that hash. Bounded draws: Lemire 2019, unbiased.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// SplitMix64's output function: a bijection of 64-bit words that scatters every bit.
pub(crate) const fn scatter(word: u64) -> u64 {
    let mut z = word.wrapping_add(GOLDEN);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Returns a hash of `words` that depends on their order and number.
pub(crate) fn hash(words: &[u64]) -> u64 {
    hash_all(words.len() as u64, words.iter().copied())
}

/// Returns [`hash`] of `count` words that are not stored in a slice.
pub(crate) fn hash_all(count: u64, words: impl Iterator<Item = u64>) -> u64 {
    words.fold(scatter(count), |state, word| scatter(state ^ scatter(word)))
}

/// Hashes a text, as words of eight little-endian bytes after its length.
pub(crate) fn hash_text(text: &str) -> u64 {
    let words = text.as_bytes().chunks(8).map(|chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(word)
    });
    let all: Vec<u64> = std::iter::once(text.len() as u64).chain(words).collect();
    hash(&all)
}

/// Returns a generator that is determined by `words` alone.
pub(crate) fn generator(words: &[u64]) -> Xoshiro256PlusPlus {
    Xoshiro256PlusPlus::seed_from_u64(hash(words))
}

/// Draws a number in `0..bound`; all are equally likely.
fn below(rng: &mut Xoshiro256PlusPlus, bound: u64) -> u64 {
    debug_assert!(bound > 0, "no number is below zero");
    loop {
        let product = u128::from(rng.next_u64()) * u128::from(bound);
        let low = product & u128::from(u64::MAX);
        // Reject the few low halves that would make some results more likely than others.
        if low >= u128::from(bound.wrapping_neg() % bound) {
            return (product >> 64) as u64;
        }
    }
}

/// Returns `0..len` in an order that is determined by `words` alone (Fisher–Yates).
pub(crate) fn permutation(len: u32, words: &[u64]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..len).collect();
    let mut rng = generator(words);
    for last in (1..order.len()).rev() {
        #[expect(clippy::cast_possible_truncation, reason = "below a u32 length")]
        let other = below(&mut rng, last as u64 + 1) as usize;
        order.swap(last, other);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order depends on these values: a change here is a new plan version.
    #[test]
    fn values_are_pinned() {
        assert_eq!(scatter(0), 0xE220_A839_7B1D_CDAF); // SplitMix64's published first output for seed 0
        assert_eq!(permutation(8, &[7, 0]), permutation(8, &[7, 0]));
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
        assert_ne!(hash(&[1]), hash(&[1, 0]));
        assert_ne!(hash_text("a"), hash_text("a\0"));
    }

    #[test]
    fn permutations_of_three_are_equally_likely() {
        let mut counts = std::collections::BTreeMap::new();
        for key in 0..6000 {
            *counts.entry(permutation(3, &[key])).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|&n| (850..1150).contains(&n)), "{counts:?}");
    }
}
