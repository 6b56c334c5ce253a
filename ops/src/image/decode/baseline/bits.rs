//! The entropy-coded bytes without their stuffing, in restart segments, and a bit reader over one segment.

use super::outcome::Declined;
use crate::buffer::fit;

/// Bytes of zeros after the data, so that a reader can load whole words at its end.
const PADDING: usize = 8;

/// Segments after the last one that are passed over: some encoders write a marker at the end. More are damage, so that
/// memory for their ends is bounded by the image's size.
const STRAY_SEGMENTS: usize = 8;

/// Bits that a reader has at least when it is full.
pub(super) const FULL: u32 = 56;

/// The scan's bytes with `FF 00` turned into `FF`, cut at restart markers.
#[derive(Default)]
pub(super) struct Segments {
    bytes: Vec<u8>,
    /// End of each segment in `bytes`; a segment starts where the one before it ends.
    ends: Vec<usize>,
    /// The data ended in an EOI marker.
    ended: bool,
}

impl Segments {
    pub(super) fn kept_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>()
    }

    /// Bytes that `data` bytes in `segments` take.
    pub(super) fn bytes(data: usize, segments: usize) -> usize {
        data + PADDING + (segments + STRAY_SEGMENTS + 1) * size_of::<usize>()
    }

    /// Takes `data` apart, from the scan's first byte on; `segments` is the number that the image has, 0 without
    /// restart markers. Costs a copy.
    pub(super) fn read(&mut self, data: &[u8], segments: usize) -> Result<(), Declined> {
        self.bytes.clear();
        fit(&mut self.bytes, data.len() + PADDING);
        self.ends.clear();
        fit(&mut self.ends, segments + STRAY_SEGMENTS + 1);
        self.ended = false;
        let mut from = 0;
        for at in memchr::memchr_iter(0xFF, data) {
            if at < from {
                continue;
            }
            match data.get(at + 1) {
                Some(0) => {
                    self.bytes.extend_from_slice(&data[from..=at]);
                    from = at + 2;
                }
                // Fill bytes before a marker.
                Some(0xFF) => {
                    self.bytes.extend_from_slice(&data[from..at]);
                    from = at + 1;
                }
                Some(marker @ 0xD0..=0xD7) => {
                    // The markers count 0 … 7 and around.
                    let is_next = usize::from(marker & 7) == self.ends.len() % 8;
                    if segments == 0 || !is_next || self.ends.len() >= segments + STRAY_SEGMENTS {
                        return Err(Declined::Damage);
                    }
                    self.bytes.extend_from_slice(&data[from..at]);
                    self.ends.push(self.bytes.len());
                    from = at + 2;
                }
                marker => {
                    self.bytes.extend_from_slice(&data[from..at]);
                    from = data.len();
                    self.ended = marker == Some(&0xD9);
                    break;
                }
            }
        }
        self.bytes.extend_from_slice(&data[from.min(data.len())..]);
        self.ends.push(self.bytes.len());
        self.bytes.extend_from_slice(&[0; PADDING]);
        Ok(())
    }

    /// Whether the data ends in EOI after at least `segments` segments.
    pub(super) fn is_complete(&self, segments: usize) -> bool {
        self.ended && self.ends.len() >= segments
    }

    /// A reader over segment `index`.
    pub(super) fn get(&self, index: usize) -> Result<Bits<'_>, Declined> {
        let end = *self.ends.get(index).ok_or(Declined::Damage)?;
        let at = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Ok(Bits { bytes: &self.bytes, at, end, word: 0, count: 0 })
    }
}

/// Reads bits from the top of a 64-bit word.
#[derive(Clone, Copy, Default)]
pub(super) struct Bits<'a> {
    bytes: &'a [u8],
    /// The next byte to load.
    at: usize,
    end: usize,
    /// The next bits, from the highest down; below `count` bits the content is a preview that refilling repeats.
    word: u64,
    count: u32,
}

impl Bits<'_> {
    /// Makes at least [`FULL`] bits available, zeros past the end of all data.
    #[inline(always)]
    pub(super) fn refill(&mut self) {
        let next = match self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(chunk) => u64::from_be_bytes(*chunk),
            None => 0,
        };
        self.word |= next >> self.count;
        let bytes = (63 - self.count) >> 3;
        self.at += bytes as usize;
        self.count += bytes * 8;
    }

    /// The next `count` bits, 1 … 32.
    #[expect(clippy::cast_possible_truncation, reason = "at most 32 bits")]
    #[inline(always)]
    pub(super) fn peek(&self, count: u32) -> usize {
        (self.word >> (64 - count)) as usize
    }

    /// Passes over the number of bits in the lowest six bits of `count`, no more than are available.
    #[inline(always)]
    pub(super) fn consume(&mut self, count: u32) {
        self.word = self.word.wrapping_shl(count);
        self.count -= count & 63;
    }

    /// Begins to read what is available.
    #[inline(always)]
    pub(super) fn run(&self) -> Run {
        Run { word: self.word, used: 0 }
    }

    /// Goes on after what `run` has read.
    #[inline(always)]
    pub(super) fn end(&mut self, run: Run) {
        self.word = run.word;
        self.count -= run.used & 63;
    }

    /// Bits passed over, those of earlier segments included.
    #[inline(always)]
    pub(super) fn place(&self) -> usize {
        self.at * 8 - self.count as usize
    }

    /// An error if more was consumed than the segment holds.
    #[inline(always)]
    pub(super) fn check(&self) -> Result<(), Declined> {
        if self.place() > self.end * 8 { Err(Declined::Damage) } else { Ok(()) }
    }
}

/// What a reader has available, taken in a run: fewer instructions between one look-up and the next.
#[derive(Clone, Copy)]
pub(super) struct Run {
    word: u64,
    /// Sum of what was consumed, in the lowest six bits.
    used: u32,
}

impl Run {
    /// As [`Bits::peek`].
    #[expect(clippy::cast_possible_truncation, reason = "at most 32 bits")]
    #[inline(always)]
    pub(super) fn peek(&self, count: u32) -> usize {
        (self.word >> (64 - count)) as usize
    }

    /// As [`Bits::consume`].
    #[inline(always)]
    pub(super) fn consume(&mut self, count: u32) {
        self.word = self.word.wrapping_shl(count);
        self.used = self.used.wrapping_add(count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stuffing_restarts_and_the_end_are_taken_apart() {
        let mut segments = Segments::default();
        let data = [1, 0xFF, 0, 2, 0xFF, 0xD0, 3, 0xFF, 0xFF, 0xD1, 4, 0xFF, 0xD9, 9, 9];
        segments.read(&data, 20).unwrap();
        assert_eq!(segments.bytes[..5], [1, 0xFF, 2, 3, 4]);
        assert_eq!(segments.ends, [3, 4, 5]);
        assert!(segments.is_complete(3) && !segments.is_complete(4));
        assert_eq!(segments.read(&data, 0), Err(Declined::Damage));
        segments.read(&[1, 2, 0xFF], 20).unwrap();
        assert!(!segments.is_complete(1));
        segments.read(&[1, 2, 0xFF, 0xDA], 20).unwrap();
        assert!(!segments.is_complete(1));
        let mut bits = Bits { bytes: &[0xA5, 0xC3, 0x0F, 0, 0, 0, 0, 0], at: 0, end: 3, word: 0, count: 0 };
        bits.refill();
        assert_eq!((bits.peek(4), bits.peek(12)), (0xA, 0xA5C));
        bits.consume(12);
        assert_eq!(bits.peek(12), 0x30F);
        bits.consume(12);
        assert!(bits.check().is_ok());
        bits.consume(1);
        assert!(bits.check().is_err());
    }
}
