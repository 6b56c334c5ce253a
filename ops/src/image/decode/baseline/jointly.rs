//! MCUs by joint tables, at any scale: some blocks are decoded, then these are transformed.
//!
//! Coefficients are stored one by one and loaded sixteen at a time. A processor waits for such a load if the stores are recent, so
//! the blocks between make it faster. Each loop has the registers for itself.

use std::hint::select_unpredictable;

use super::bits::Bits;
use super::frame::{Component, Frame, Window};
use super::huffman::{LAST, PER_REFILL, WINDOW};
use super::idct::{self, Transform};
use super::joint::{END, Entries, Symbols};
use super::outcome::Declined;
use super::places::{Places, ZIGZAG};
use super::skip::{Found, Skip, alone};
use super::walk::{Mcus, Run};
use crate::image::buffer::Buffer;

/// Blocks that are decoded before they are transformed: 8 KiB.
const KEPT_BLOCKS: usize = 64;

/// The coefficients of some blocks, in natural order and not dequantised.
pub(super) struct Kept {
    coefficients: Box<[i16; 64 * KEPT_BLOCKS]>,
}

impl Default for Kept {
    fn default() -> Self {
        Self { coefficients: Box::new([0; 64 * KEPT_BLOCKS]) }
    }
}

/// Decodes and passes over MCUs.
pub(super) struct Jointly<'a, T> {
    frame: &'a Frame,
    window: Window,
    symbols: [Symbols<'a>; 3],
    skip: Skip<'a>,
    /// Blocks of an MCU.
    blocks: usize,
    /// Of each block that is kept: its component, the entries for all look-ups but the first, and those for the next block's first.
    components: [usize; KEPT_BLOCKS],
    rest: [&'a Entries; KEPT_BLOCKS],
    next_first: [&'a Entries; KEPT_BLOCKS],
    kept: &'a mut Kept,
    planes: &'a mut [Buffer; 3],
    transform: T,
}

impl<'a, T: Transform> Jointly<'a, T> {
    #[inline(always)]
    pub(super) fn new(
        (frame, window): (&'a Frame, Window),
        symbols: [Symbols<'a>; 3],
        kept: &'a mut Kept,
        planes: &'a mut [Buffer; 3],
        transform: T,
    ) -> Self {
        // Damaged data may have left some.
        kept.coefficients.fill(0);
        let (order, blocks) = frame.order();
        let skip = Skip::new(frame, &symbols);
        let components: [usize; KEPT_BLOCKS] = std::array::from_fn(|at| order[at % blocks]);
        let rest = components.map(|one| symbols[one].rest);
        let next_first = std::array::from_fn(|at| symbols[order[(at + 1) % blocks]].first);
        Self { frame, window, symbols, skip, blocks, components, rest, next_first, kept, planes, transform }
    }

    /// Decodes the blocks of `mcus` MCUs. As in [`Skip::run`], no branch depends on where blocks end.
    #[expect(clippy::cast_possible_truncation, reason = "at most 63")]
    #[inline(always)]
    fn keep(&mut self, mcus: usize, bits: &mut Bits<'_>, predictions: &mut [i32; 3]) -> Result<(), Declined> {
        let end = mcus * self.blocks * 64;
        let kept = &mut *self.kept.coefficients;
        let mut reader = *bits;
        let (mut base, mut at) = (0, 0);
        let mut table = self.symbols[0].first;
        while base < end {
            reader.refill();
            let mut run = reader.run();
            let mut is_alone = false;
            for _ in 0..PER_REFILL {
                let block = base / 64 % KEPT_BLOCKS;
                let (rest, next_first) = (self.rest[block], self.next_first[block]);
                let entry = table[run.peek(WINDOW)];
                let next = at + entry.steps();
                let second = next % END;
                if second >= LAST {
                    is_alone = true;
                    break;
                }
                run.consume(entry.length());
                put(kept, base, second.wrapping_sub(entry.second_steps()), entry.first());
                put(kept, base, second, entry.second());
                let ended = entry.ends();
                table = select_unpredictable(ended, next_first, rest);
                at = select_unpredictable(ended, 0, next);
                base += 64 * usize::from(ended);
                if base == end {
                    break;
                }
            }
            reader.end(run);
            if !is_alone {
                continue;
            }
            let block = base / 64 % KEPT_BLOCKS;
            let (rest, next_first) = (self.rest[block], self.next_first[block]);
            let from = std::ptr::eq(table, rest).then_some(at);
            let huffman = self.symbols[self.components[block]].huffman;
            let (after, found) = alone(reader, huffman, from)?;
            reader = after;
            let (position, ended) = match found {
                Found::Dc(value) => {
                    put(kept, base, 0, value);
                    table = rest;
                    (0, false)
                }
                Found::Ac(position, value) => {
                    put(kept, base, position, value);
                    (position, position == LAST)
                }
                Found::End => (at, true),
            };
            at = position;
            if ended {
                base += 64;
                (table, at) = (next_first, 0);
            }
        }
        for (at, block) in kept[..end].chunks_exact_mut(64).enumerate() {
            let prediction = &mut predictions[self.components[at]];
            *prediction = prediction.wrapping_add(block[0].into());
            block[0] = *prediction as i16;
        }
        *bits = reader;
        bits.check()
    }

    /// Transforms these blocks, and clears them.
    #[inline(always)]
    fn transform(&mut self, run: Run) {
        let mut first = 0;
        for (index, component) in self.frame.components().iter().enumerate() {
            let Component { h, v, side, ref places, .. } = *component;
            let stride = self.window.columns() * h * side;
            let plane = self.planes[index].bytes_mut();
            for (block_y, block_x) in (0..v).flat_map(|y| (0..h).map(move |x| (y, x))) {
                let start = ((run.row * v + block_y) * stride + run.column * h + block_x) * side;
                let blocks = Blocks { kept: self.kept, places, first, step: self.blocks, count: run.mcus };
                let target = (&mut plane[start..], stride, h * side);
                match side {
                    8 => blocks.transform::<8>(target, self.transform),
                    4 => blocks.transform::<4>(target, self.transform),
                    2 => blocks.transform::<2>(target, self.transform),
                    _ => blocks.transform::<1>(target, self.transform),
                }
                first += 1;
            }
        }
    }
}

impl<T: Transform> Mcus for Jointly<'_, T> {
    #[inline(always)]
    fn skip(&mut self, mcus: usize, bits: &mut Bits<'_>, predictions: &mut [i32; 3]) -> Result<(), Declined> {
        self.skip.run(mcus, bits, predictions)
    }

    #[inline(always)]
    fn decode(&mut self, run: Run, bits: &mut Bits<'_>, predictions: &mut [i32; 3]) -> Result<(), Declined> {
        let end = run.column + run.mcus;
        let mut column = run.column;
        while column < end {
            let mcus = (KEPT_BLOCKS / self.blocks).min(end - column);
            self.keep(mcus, bits, predictions)?;
            self.transform(Run { column, mcus, ..run });
            column += mcus;
        }
        Ok(())
    }
}

/// Blocks at the same place of some MCUs.
struct Blocks<'a> {
    kept: &'a mut Kept,
    places: &'a Places,
    first: usize,
    step: usize,
    count: usize,
}

impl Blocks<'_> {
    /// Transforms them into `out`, where rows are `stride` and blocks `advance` apart.
    #[inline(always)]
    fn transform<const SIDE: usize>(
        self,
        (out, stride, advance): (&mut [u8], usize, usize),
        transform: impl Transform,
    ) {
        for number in 0..self.count {
            let at = (self.first + number * self.step) % KEPT_BLOCKS;
            let block = &mut self.kept.coefficients.as_chunks_mut::<64>().0[at];
            let start = number * advance;
            let target = &mut out[start..start + (SIDE - 1) * stride + SIDE];
            if SIDE == 1 || is_flat(block) {
                idct::flat::<SIDE>(self.places.dc(block[0]), target, stride);
            } else {
                transform.block::<SIDE>(&self.places.dequantised(block), target, stride);
            }
            *block = [0; 64];
        }
    }
}

/// Stores a coefficient of the block at `base` in natural order.
#[expect(clippy::cast_possible_truncation, reason = "wraps in damaged files, as in libjpeg")]
#[inline(always)]
fn put(kept: &mut [i16; 64 * KEPT_BLOCKS], base: usize, at: usize, value: i32) {
    let place = base + usize::from(ZIGZAG[at % 64]);
    kept[place % (KEPT_BLOCKS * 64)] = value as i16;
}

/// Whether there is but a DC coefficient.
#[inline(always)]
fn is_flat(block: &[i16; 64]) -> bool {
    const AC: [i16; 64] = {
        let mut mask = [-1; 64];
        mask[0] = 0;
        mask
    };
    block.iter().zip(AC).fold(0, |all, (one, mask)| all | one & mask) == 0
}
