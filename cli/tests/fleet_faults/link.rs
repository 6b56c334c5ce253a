//! Properties of a network link, for packets between hosts and for bytes through relays.

use std::time::{Duration, Instant};

/// The direction between a rank and a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    ToWorker,
    FromWorker,
}

pub const BOTH_WAYS: [Way; 2] = [Way::ToWorker, Way::FromWorker];

/// The state of one direction.
#[derive(Debug, Clone, Copy, Default)]
pub struct Link {
    /// Nothing arrives.
    pub cut: bool,
    /// Delay of everything that arrives.
    pub delay: Duration,
    /// Share of packets that are lost.
    pub loss: f64,
}

impl Link {
    pub fn cut() -> Self {
        Self { cut: true, ..Self::default() }
    }

    pub fn slow(delay: Duration, loss: f64) -> Self {
        Self { delay, loss, cut: false }
    }

    /// Returns the arrival time of a packet that is sent now.
    pub fn arrival(&self) -> Instant {
        Instant::now() + self.delay
    }
}

/// Pseudo-random numbers from a seed (xorshift64*).
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Returns true in this share of calls.
    pub fn happens(&mut self, share: f64) -> bool {
        (self.roll() as f64) / ((1u64 << 53) as f64) < share
    }

    /// Returns a number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound
    }

    /// Returns 53 random bits.
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }
}
