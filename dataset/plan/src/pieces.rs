//! Pieces: the units of a shuffle that is finer than blocks.
//!
//! Piece i is the k selected samples from number i·k on, in catalog order; only the last one may be shorter. Pieces are permuted
//! without a table, so that 10⁹ samples take no more memory than ten.

use crate::keyed::KeyedPermutation;
use std::ops::Range;

/// All pieces in the order of one epoch. A *place* is an index into the concatenation of the pieces in that order, a *rank* is
/// an index into the selected samples in catalog order.
#[derive(Debug, Clone)]
pub(crate) struct Pieces {
    ranks: u64,
    /// k.
    samples: u64,
    permutation: KeyedPermutation,
    /// The turn of the last piece, and by how many samples it is shorter.
    last: (u64, u64),
}

impl Pieces {
    pub(crate) fn new(ranks: u64, samples: u64, seed: u64) -> Self {
        let count = ranks.div_ceil(samples);
        let permutation = KeyedPermutation::new(count, seed);
        let last = (permutation.place_of(count - 1), count * samples - ranks);
        Self { ranks, samples, permutation, last }
    }

    /// Returns the rank at `place`, and the turn of its piece in the order.
    pub(crate) fn rank_at(&self, place: u64) -> (u64, u64) {
        let (last, lacking) = self.last;
        let end_of_last = (last + 1) * self.samples - lacking;
        let place = if place < end_of_last { place } else { place + lacking };
        let turn = place / self.samples;
        (self.permutation.at(turn) * self.samples + place % self.samples, turn)
    }

    /// Returns the places of the samples of `ranks`, piece by piece.
    pub(crate) fn places_of(&self, ranks: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let pieces = if ranks.is_empty() {
            0..0
        } else {
            ranks.start / self.samples..(ranks.end - 1) / self.samples + 1
        };
        pieces.map(move |piece| {
            let all = self.ranks_of(piece);
            let start = self.start_of(piece);
            start + (ranks.start.max(all.start) - all.start)..start + (ranks.end.min(all.end) - all.start)
        })
    }

    fn ranks_of(&self, piece: u64) -> Range<u64> {
        piece * self.samples..((piece + 1) * self.samples).min(self.ranks)
    }

    /// Returns the first place of a piece.
    fn start_of(&self, piece: u64) -> u64 {
        let (turn, (last, lacking)) = (self.permutation.place_of(piece), self.last);
        turn * self.samples - if turn > last { lacking } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn places_and_ranks_are_inverse(ranks in 1u64..2000, samples in 1u64..50, seed: u64, a: u64, b: u64) {
            let pieces = Pieces::new(ranks, samples, seed);
            let mut seen = vec![false; ranks as usize];
            for place in 0..ranks {
                let (rank, turn) = pieces.rank_at(place);
                prop_assert!(!std::mem::replace(&mut seen[rank as usize], true));
                prop_assert_eq!(pieces.places_of(rank..rank + 1).flatten().collect::<Vec<_>>(), [place]);
                if place > 0 {
                    let (before, its_turn) = pieces.rank_at(place - 1);
                    prop_assert_eq!(turn == its_turn, rank == before + 1 && rank % samples != 0);
                }
            }
            let (from, to) = ((a % (ranks + 1)).min(b % (ranks + 1)), (a % (ranks + 1)).max(b % (ranks + 1)));
            let places: Vec<u64> = pieces.places_of(from..to).flatten().collect();
            let there: Vec<u64> = places.iter().map(|place| pieces.rank_at(*place).0).collect();
            prop_assert_eq!(there, (from..to).collect::<Vec<_>>());
        }
    }
}
