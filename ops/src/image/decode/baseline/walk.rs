//! The order of MCUs: which are decoded, which are passed over.

use super::bits::{Bits, Segments};
use super::frame::{Frame, Window};
use super::outcome::Declined;
use crate::image::row_index::Start;

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
    pub(super) cut: Cut<'a>,
}

/// Where reading can begin: the MCUs of the image in segments.
#[derive(Clone, Copy)]
pub(super) struct Cut<'a> {
    /// MCUs of each segment but the last one.
    pub(super) interval: usize,
    pub(super) count: usize,
    /// The first of them that is at hand.
    pub(super) first: usize,
    /// The rows that the segments after segment 0 begin with; none where restart markers begin them.
    pub(super) starts: &'a [Start],
    /// All data are known to be there. Without an end marker only decoding everything shows whether something is missing.
    pub(super) is_complete: bool,
}

impl Cut<'_> {
    /// The segment of an MCU.
    #[inline(always)]
    fn segment(&self, mcu: usize) -> usize {
        (mcu / self.interval).min(self.count - 1)
    }

    /// The reader and the predictions at a segment's start.
    fn begin<'a>(&self, segment: usize, segments: &'a Segments) -> Result<(Bits<'a>, [i32; 3]), Declined> {
        let index = segment.checked_sub(self.first).ok_or(Declined::Damage)?;
        Ok(match segment.checked_sub(1).and_then(|before| self.starts.get(before)) {
            Some(start) => {
                (segments.get_from(index, (start.bit % 8) as u32)?, start.predictions.map(i32::from))
            }
            None => (segments.get(index)?, [0; 3]),
        })
    }
}

/// Notes where rows begin, for an index.
#[derive(Default)]
pub(super) struct Notes {
    /// MCUs from one noted row to the next, and of the image.
    every: usize,
    total: usize,
    /// The next MCU to note; past the image if there is none.
    next: usize,
    /// Places in the segments' bits, and the predictions there.
    pub(super) found: Vec<(usize, [i32; 3])>,
}

impl Notes {
    /// Notes MCU `next` and every `every` MCUs after it, of `total` MCUs.
    pub(super) fn begin(&mut self, every: usize, next: usize, total: usize) {
        let next = if next < total { next } else { usize::MAX };
        self.found.clear();
        (self.every, self.total, self.next) = (every, total, next);
    }

    pub(super) fn off(&mut self) {
        self.begin(0, 0, 0);
    }

    #[inline(always)]
    fn pass(&mut self, at: usize, bits: &Bits<'_>, predictions: [i32; 3]) {
        if at == self.next {
            self.found.push((bits.place(), predictions));
            self.next = if at + self.every < self.total { at + self.every } else { usize::MAX };
        }
    }
}

impl Scan<'_> {
    /// Walks the MCUs in runs that are skipped or decoded, each within one segment.
    #[inline(always)]
    pub(super) fn walk(&self, mut mcus: impl Mcus, notes: &mut Notes) -> Result<(), Declined> {
        let across = self.frame.mcus_across;
        let total = across * self.frame.mcus_down;
        let Cut { interval, count, is_complete, .. } = self.cut;
        let end =
            if is_complete { self.window.last_row * across + self.window.last_column + 1 } else { total };
        let mut at = 0;
        let mut bits = Bits::default();
        let mut predictions = [0_i32; 3];
        while at < end {
            notes.pass(at, &bits, predictions);
            let segment = self.cut.segment(at);
            let segment_end = if segment + 1 == count { end } else { ((segment + 1) * interval).min(end) };
            let wanted = self.next_wanted(at).min(end);
            // With a segment after it, what is not needed is not read.
            if wanted >= segment_end && is_complete {
                at = segment_end;
                continue;
            }
            if at == segment * interval {
                (bits, predictions) = self.cut.begin(segment, self.segments)?;
            }
            if wanted > at {
                let stop = wanted.min(segment_end).min(notes.next);
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
        bits.check()?;
        notes.pass(at, &bits, predictions);
        Ok(())
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
