//! The order of MCUs: which are decoded, which are passed over.

use super::bits::{Bits, Segments};
use super::frame::{Frame, Window};
use super::outcome::Declined;

/// MCUs of a row, within the window.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) row: usize,
    pub(super) column: usize,
    pub(super) mcus: usize,
}

/// What decodes MCUs. Predictions are the DC coefficients of the components' last blocks.
pub(super) trait Mcus {
    /// Passes over MCUs.
    fn skip(&mut self, mcus: usize, bits: &mut Bits<'_>, predictions: &mut [i32; 3]) -> Result<(), Declined>;

    /// Decodes MCUs into the planes.
    fn decode(&mut self, run: Run, bits: &mut Bits<'_>, predictions: &mut [i32; 3]) -> Result<(), Declined>;
}

/// One pass over the entropy-coded data.
pub(super) struct Scan<'a> {
    pub(super) frame: &'a Frame,
    pub(super) window: Window,
    pub(super) segments: &'a Segments,
    pub(super) restart_interval: usize,
}

impl Scan<'_> {
    /// Walks the MCUs in runs that are skipped or decoded, each within one restart segment.
    #[inline(always)]
    pub(super) fn walk(&self, mut mcus: impl Mcus) -> Result<(), Declined> {
        let across = self.frame.mcus_across;
        let total = across * self.frame.mcus_down;
        let interval = if self.restart_interval == 0 { total } else { self.restart_interval };
        // Without an end marker only decoding everything shows whether something is missing.
        let complete = self.segments.is_complete(total.div_ceil(interval));
        let end = if complete { self.window.last_row * across + self.window.last_column + 1 } else { total };
        let mut at = 0;
        let mut bits = Bits::default();
        let mut predictions = [0_i32; 3];
        while at < end {
            let segment_end = ((at / interval + 1) * interval).min(end);
            let wanted = self.next_wanted(at).min(end);
            // With a marker after it, what is not needed is not read.
            if wanted >= segment_end && complete {
                at = segment_end;
                continue;
            }
            if at % interval == 0 {
                bits = self.segments.get(at / interval)?;
                predictions = [0; 3];
            }
            if wanted > at {
                let stop = wanted.min(segment_end);
                mcus.skip(stop - at, &mut bits, &mut predictions)?;
                at = stop;
            } else {
                let (row, column) = (at / across, at % across);
                let stop = (at + self.window.last_column + 1 - column).min(segment_end);
                let (row, column) = (row - self.window.first_row, column - self.window.first_column);
                mcus.decode(Run { row, column, mcus: stop - at }, &mut bits, &mut predictions)?;
                at = stop;
            }
        }
        bits.check()
    }

    /// The first MCU of the window at or after `at`.
    #[inline(always)]
    fn next_wanted(&self, at: usize) -> usize {
        let across = self.frame.mcus_across;
        let Window { first_column, last_column, first_row, last_row } = self.window;
        let (row, column) = (at / across, at % across);
        if row < first_row {
            first_row * across + first_column
        } else if row > last_row {
            usize::MAX
        } else if column < first_column {
            row * across + first_column
        } else if column <= last_column {
            at
        } else if row < last_row {
            (row + 1) * across + first_column
        } else {
            usize::MAX
        }
    }
}
