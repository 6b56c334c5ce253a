//! The order's span arithmetic: N places of the block order cut into C lanes, each lane into windows.

/// `samples` places on `lanes` lanes; the first `samples % lanes` lanes hold one more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lanes {
    pub(crate) samples: u64,
    pub(crate) lanes: u64,
    /// Entries of a lane that are shuffled among each other.
    pub(crate) window: u64,
}

impl Lanes {
    /// Returns C.
    pub(crate) fn count(&self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "Shuffle::lanes is a u32")]
        {
            self.lanes as u32
        }
    }

    /// Returns the number of entries of `lane`.
    pub(crate) fn len(&self, lane: u64) -> u64 {
        self.samples / self.lanes + u64::from(lane < self.samples % self.lanes)
    }

    /// Returns where `lane` starts in the block order.
    pub(crate) fn start(&self, lane: u64) -> u64 {
        lane * (self.samples / self.lanes) + lane.min(self.samples % self.lanes)
    }

    /// Returns the lane of a place of the block order, and the offset in it.
    pub(crate) fn locate(&self, place: u64) -> (u64, u64) {
        debug_assert!(place < self.samples);
        let (short, longer) = (self.samples / self.lanes, self.samples % self.lanes);
        let in_longer = longer * (short + 1);
        if place < in_longer {
            (place / (short + 1), place % (short + 1))
        } else {
            (longer + (place - in_longer) / short, (place - in_longer) % short)
        }
    }

    /// Returns the number of entries of window `window` of `lane`.
    pub(crate) fn window_len(&self, lane: u64, window: u64) -> u64 {
        self.window.min(self.len(lane) - window * self.window)
    }

    /// Returns the entries of `lane` whose positions are in `from..to`.
    pub(crate) fn entries(&self, lane: u64, from: u64, to: u64) -> std::ops::Range<u64> {
        let first_at = |position: u64| position.saturating_sub(lane).div_ceil(self.lanes);
        first_at(from)..first_at(to)
    }

    /// Returns how many positions of `from..to` are on lanes before `lane`.
    pub(crate) fn rows_before_lane(&self, lane: u64, from: u64, to: u64) -> u64 {
        let below = |position: u64| position / self.lanes * lane + (position % self.lanes).min(lane);
        below(to) - below(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn spans_tile_the_block_order(samples in 1u64..5000, lanes in 1u64..70, window in 1u64..100) {
            let lanes = Lanes { samples, lanes: lanes.min(samples), window };
            let mut place = 0;
            for lane in 0..lanes.lanes {
                prop_assert_eq!(lanes.start(lane), place);
                for offset in 0..lanes.len(lane) {
                    prop_assert_eq!(lanes.locate(place), (lane, offset));
                    place += 1;
                }
            }
            prop_assert_eq!(place, samples);
        }

        #[test]
        fn entries_are_the_positions_of_a_range(samples in 1u64..500, lanes in 1u64..20, a: u64, b: u64) {
            let lanes = Lanes { samples, lanes: lanes.min(samples), window: 1 };
            let (from, to) = ((a % (samples + 1)).min(b % (samples + 1)), (a % (samples + 1)).max(b % (samples + 1)));
            for lane in 0..lanes.lanes {
                let expected: Vec<u64> = (from..to).filter(|p| p % lanes.lanes == lane).map(|p| p / lanes.lanes).collect();
                prop_assert_eq!(lanes.entries(lane, from, to).collect::<Vec<_>>(), expected);
            }
        }
    }
}
