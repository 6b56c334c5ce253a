//! Passing over MCUs by joint tables.

use std::hint::select_unpredictable;

use super::bits::Bits;
use super::frame::{Frame, MOST_BLOCKS};
use super::huffman::{self, Huffman, LAST, PER_REFILL, WINDOW};
use super::joint::{END, Entries, Symbols};
use super::outcome::Declined;

/// What passes over MCUs. In arrays: for each block of an MCU.
pub(super) struct Skip<'a> {
    blocks: usize,
    components: [usize; MOST_BLOCKS],
    /// The entries for all look-ups but the first.
    rest: [&'a Entries; MOST_BLOCKS],
    /// The next block, and the entries for its first look-up.
    next: [usize; MOST_BLOCKS],
    next_first: [&'a Entries; MOST_BLOCKS],
    huffman: [Huffman<'a>; 3],
}

/// A symbol that was read alone.
pub(super) enum Found {
    Dc(i32),
    /// At this position.
    Ac(usize, i32),
    End,
}

impl<'a> Skip<'a> {
    pub(super) fn new(frame: &Frame, symbols: &[Symbols<'a>; 3]) -> Self {
        let (components, blocks) = frame.order();
        let next = std::array::from_fn(|block| if block + 1 < blocks { block + 1 } else { 0 });
        Self {
            blocks,
            components,
            rest: components.map(|component| symbols[component].skip),
            next,
            next_first: next.map(|block| symbols[components[block]].first),
            huffman: symbols.map(|one| one.huffman),
        }
    }

    /// Passes over `mcus` MCUs, and adds their DC differences to `predictions`.
    ///
    /// What a look-up finds selects the next table without a branch: where blocks end cannot be predicted, and a wrong guess takes
    /// longer than a look-up.
    #[inline(always)]
    pub(super) fn run(
        &self,
        mcus: usize,
        bits: &mut Bits<'_>,
        predictions: &mut [i32; 3],
    ) -> Result<(), Declined> {
        let mut sums = [0_i32; MOST_BLOCKS];
        let mut left = mcus * self.blocks;
        let (mut block, mut at) = (0, 0);
        let mut table = self.next_first[self.blocks - 1];
        let (mut rest, mut next_first) = (self.rest[0], self.next_first[0]);
        let mut reader = *bits;
        while left > 0 {
            reader.refill();
            let mut run = reader.run();
            let mut is_alone = false;
            for _ in 0..PER_REFILL {
                let entry = table[run.peek(WINDOW)];
                let next = at + entry.steps();
                if next % END >= LAST {
                    is_alone = true;
                    break;
                }
                run.consume(entry.length());
                let ended = entry.ends();
                // Entries of later look-ups have no values.
                sums[block] = sums[block].wrapping_add(entry.first());
                // Both tables are known before the look-up is.
                table = select_unpredictable(ended, next_first, rest);
                at = select_unpredictable(ended, 0, next);
                block = select_unpredictable(ended, self.next[block], block) % MOST_BLOCKS;
                (rest, next_first) = (self.rest[block], self.next_first[block]);
                left -= usize::from(ended);
                if left == 0 {
                    break;
                }
            }
            reader.end(run);
            if !is_alone {
                continue;
            }
            let from = std::ptr::eq(table, rest).then_some(at);
            let (after, found) = alone(reader, self.huffman[self.components[block]], from)?;
            reader = after;
            match found {
                Found::Dc(value) => {
                    sums[block] = sums[block].wrapping_add(value);
                    table = rest;
                }
                Found::Ac(position, _) if position < LAST => at = position,
                Found::Ac(..) | Found::End => {
                    (table, block, at) = (next_first, self.next[block], 0);
                    (rest, next_first) = (self.rest[block], self.next_first[block]);
                    left -= 1;
                }
            }
        }
        *bits = reader;
        for (component, sum) in self.components.into_iter().zip(sums) {
            predictions[component] = predictions[component].wrapping_add(sum);
        }
        bits.check()
    }
}

/// Reads one symbol: an AC coefficient after the one at `at`, or a DC coefficient. By value, so that the reader of the loop stays
/// in registers.
#[inline(never)]
pub(super) fn alone<'a>(
    mut bits: Bits<'a>,
    Huffman { dc, ac }: Huffman<'_>,
    at: Option<usize>,
) -> Result<(Bits<'a>, Found), Declined> {
    let found = match at {
        None => Found::Dc(huffman::dc(&mut bits, dc)?),
        Some(at) => match huffman::coefficient(&mut bits, ac)? {
            None => Found::End,
            Some((steps, value)) if at + steps <= LAST => Found::Ac(at + steps, value),
            Some(_) => return Err(Declined::Damage),
        },
    };
    Ok((bits, found))
}
