//! Random numbers of one sample, from a separate generator seeded by (seed, index).

use rand_core::{Rng, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// The random numbers of one sample.
pub(crate) struct Draw(Xoshiro256PlusPlus);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Xoshiro256PlusPlus::seed_from_u64(seed))
    }

    /// Returns a number uniformly distributed from low to high.
    pub(crate) fn real(&mut self, low: f32, high: f32) -> f32 {
        let unit = (self.0.next_u64() >> 40) as f32 / (1 << 24) as f32;
        low + (high - low) * unit
    }

    /// Returns an integer uniformly distributed from 0 to `bound` − 1. (The bias of at most bound / 2^64 does not
    /// matter here.)
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns 32 random bits.
    pub(crate) fn word(&mut self) -> u32 {
        self.0.next_u32()
    }

    /// Returns 64 random bits.
    pub(crate) fn long(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns true with probability `share`.
    pub(crate) fn chance(&mut self, share: f32) -> bool {
        self.real(0.0, 1.0) < share
    }

    /// Returns one of `things`, which must not be empty.
    pub(crate) fn pick<'a, T: ?Sized>(&mut self, things: &[&'a T]) -> &'a T {
        #[expect(clippy::cast_possible_truncation, reason = "below a length")]
        let place = self.below(things.len() as u64) as usize;
        things[place]
    }
}

/// Applies splitmix64's finaliser to both words, so that neighbouring seeds and indices give independent values.
pub(crate) fn mix_seed(seed: u64, index: u64) -> u64 {
    let mut mixed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(index);
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        mixed = (mixed ^ mixed >> 30).wrapping_mul(factor);
    }
    mixed ^ mixed >> 31
}
