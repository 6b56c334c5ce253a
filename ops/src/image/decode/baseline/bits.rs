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

    /// Takes `bands` of data apart, each into one segment. They hold no marker but the one at their end. Returns where in them
    /// the last segment begins.
    pub(super) fn read_bands<'a>(&mut self, bands: impl Iterator<Item = &'a [u8]> + Clone) -> usize {
        let (bytes, count) =
            bands.clone().fold((0, 0), |(bytes, count), band| (bytes + band.len(), count + 1));
        self.bytes.clear();
        fit(&mut self.bytes, bytes + PADDING);
        self.ends.clear();
        fit(&mut self.ends, count);
        let mut last = 0;
        for band in bands {
            last = self.bytes.len();
            self.append(band);
            self.ends.push(self.bytes.len());
        }
        self.bytes.extend_from_slice(&[0; PADDING]);
        last
    }

    /// Appends `data` without its stuffing, up to a marker.
    fn append(&mut self, data: &[u8]) {
        let mut from = 0;
        for at in memchr::memchr_iter(0xFF, data) {
            if data.get(at + 1) != Some(&0) {
                self.bytes.extend_from_slice(&data[from..at]);
                return;
            }
            self.bytes.extend_from_slice(&data[from..=at]);
            from = at + 2;
        }
        self.bytes.extend_from_slice(&data[from..]);
    }

    /// Whether the data ends in EOI after at least `segments` segments.
    pub(super) fn is_complete(&self, segments: usize) -> bool {
        self.ended && self.ends.len() >= segments
    }

    /// A reader over segment `index`, from its bit `bit` on, 0 … 7.
    pub(super) fn get_from(&self, index: usize, bit: u32) -> Result<Bits<'_>, Declined> {
        let mut bits = self.get(index)?;
        bits.refill();
        bits.consume(bit);
        Ok(bits)
    }

    /// A reader over segment `index`.
    pub(super) fn get(&self, index: usize) -> Result<Bits<'_>, Declined> {
        let end = *self.ends.get(index).ok_or(Declined::Damage)?;
        let at = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        Ok(Bits { bytes: &self.bytes, at, end, word: 0, count: 0 })
    }
}

/// Where bits of data without stuffing are in `data`, which has it: replaces each of `bits`, which rise. Those that come after
/// fill bytes or a marker are removed.
pub(super) fn with_stuffing(data: &[u8], bits: &mut Vec<u64>) {
    let mut stuffed = 0;
    let mut escapes = memchr::memchr_iter(0xFF, data).peekable();
    for index in 0..bits.len() {
        while let Some(at) = escapes.next_if(|at| (*at as u64 - stuffed) < bits[index] / 8) {
            if data.get(at + 1) != Some(&0) {
                bits.truncate(index);
                return;
            }
            stuffed += 1;
        }
        bits[index] += stuffed * 8;
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

    /// Taken apart from any of its bytes on, data are the same.
    #[test]
    fn places_lead_to_the_same_bits_with_stuffing_and_without() {
        let mut generator = crate::SampleSeed::new(3, 0, 0).op(0);
        let mut data = Vec::new();
        for _ in 0..500 {
            match generator.below(5) {
                0 => data.extend_from_slice(&[0xFF, 0]),
                _ => data.push(u8::try_from(generator.below(255)).unwrap()),
            }
        }
        let mut whole = Segments::default();
        whole.read(&[&data[..], &[0xFF, 0xD9]].concat(), 0).unwrap();
        let without = whole.bytes[..whole.ends[0]].to_vec();
        let mut places: Vec<u64> = (0..without.len() as u64 * 8).step_by(3).collect();
        let before = places.clone();
        with_stuffing(&data, &mut places);
        assert_eq!(places.len(), before.len());
        for (with, bit) in places.into_iter().zip(before) {
            let mut cut = Segments::default();
            cut.read_bands([&data[usize::try_from(with / 8).unwrap()..]].into_iter());
            assert_eq!(
                (cut.bytes[..cut.ends[0]].to_vec(), with % 8),
                (without[usize::try_from(bit / 8).unwrap()..].to_vec(), bit % 8)
            );
        }
        let mut places = vec![8, 16, 24];
        with_stuffing(&[1, 2, 0xFF, 0xFF, 0, 3], &mut places);
        assert_eq!(places, [8, 16]);
    }

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
