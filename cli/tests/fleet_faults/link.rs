//! What a network does with what is sent: the same words for packets between hosts and bytes through relays.

use std::time::{Duration, Instant};

/// Which way between a rank and a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    ToWorker,
    FromWorker,
}

pub const BOTH_WAYS: [Way; 2] = [Way::ToWorker, Way::FromWorker];

/// How one way is.
#[derive(Debug, Clone, Copy, Default)]
pub struct Link {
    /// Nothing arrives.
    pub cut: bool,
    /// All arrives later by this.
    pub delay: Duration,
    /// This share of packets is lost.
    pub loss: f64,
}

impl Link {
    pub fn cut() -> Self {
        Self { cut: true, ..Self::default() }
    }

    pub fn slow(delay: Duration, loss: f64) -> Self {
        Self { delay, loss, cut: false }
    }

    /// When something sent now arrives.
    pub fn arrival(&self) -> Instant {
        Instant::now() + self.delay
    }
}

/// Chance from a seed (xorshift64*).
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// True in this share of calls.
    pub fn happens(&mut self, share: f64) -> bool {
        (self.roll() as f64) / ((1u64 << 53) as f64) < share
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound
    }

    /// 53 bits.
    fn roll(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11
    }
}
