//! Jumping to rows by an index of where they begin, and making one.
//!
//! ```text
//! rows of MCUs   0        1        2        3        4 …       the index has the starts of 1 to 4
//!                         ┌────────────┐                       a crop of rows 1 to 3
//! read           ·········▓▓▓▓▓▓▓▓▓····▓▓▓▓▓▓▓▓▓····▓▓▓▓▓▓     from a row's start to the crop's right edge
//! ```
//! Rows count in bands of [`rows_a_band`]; each band of the crop becomes a segment, as between restart markers. From the last known
//! start on, all data are one segment, in which further starts are noted. The index has a hash of the whole file, which a
//! decoder that made it has seen to end in an end marker; so data outside the bands are not even searched for markers.

use std::ops::Range;

use super::bits::with_stuffing;
use super::frame::{Frame, Window};
use super::walk::{Cut, Notes};
use crate::image::decode::jpeg_header::JpegHeader;
use crate::image::row_index::{RowIndex, Rows, Start, rows_a_band};

/// Bytes of the next band that a reader at a band's end may load: a word, each of its bytes stuffed.
const TAIL: usize = 16;

/// Where the data of an image are: in `file`, from `data` on.
#[derive(Clone, Copy)]
pub(super) struct File<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) data: usize,
}

impl<'a> File<'a> {
    pub(super) fn new(bytes: &'a [u8], header: &JpegHeader<'_>) -> Self {
        Self { bytes, data: header.data.min(bytes.len()) }
    }

    pub(super) fn data(self) -> &'a [u8] {
        &self.bytes[self.data..]
    }
}

/// What an index does for one crop.
pub(super) enum Use {
    /// No index of this file is known.
    Nothing,
    /// It would not help: nothing is looked up or noted.
    Idle,
    Jump(Jumps),
}

/// The bands of one crop.
pub(super) struct Jumps {
    index: RowIndex,
    /// MCUs of a band.
    band: usize,
    bands: Range<usize>,
}

/// MCUs of a band.
fn band(frame: &Frame) -> usize {
    rows_a_band(frame.mcus_down) * frame.mcus_across
}

impl Use {
    /// Looks at what is known in `rows`.
    pub(super) fn of(
        rows: &mut Rows,
        file: File<'_>,
        header: &JpegHeader<'_>,
        (frame, window): (&Frame, Window),
    ) -> Self {
        let Some(index) = rows.known.take().filter(|_| header.restart_interval == 0) else {
            return Self::Nothing;
        };
        let (band, total) = (band(frame), frame.mcus_across * frame.mcus_down);
        let known = index.starts().len();
        let last_bit = index.starts().last().map_or(0, |start| start.bit);
        if known * band >= total || last_bit / 8 >= file.data().len() as u64 {
            return Self::Nothing;
        }
        let band_of = |row: usize| (row * frame.mcus_across / band).min(known);
        let bands = band_of(window.first_row)..band_of(window.last_row) + 1;
        let jumps = bands.start > 0 || (bands.len() > 1 && window.last_column + 1 < frame.mcus_across);
        let end = window.last_row * frame.mcus_across + window.last_column + 1;
        let grows = rows.is_noted && (known + 1) * band < total && (known + 1) * band <= end;
        if !jumps && !grows {
            return Self::Idle;
        }
        // Last, because it reads the whole file.
        if !index.is_of(file.bytes) {
            return Self::Nothing;
        }
        Self::Jump(Jumps { index, band, bands })
    }
}

impl Jumps {
    /// The data of each band.
    pub(super) fn data<'a>(&self, file: File<'a>) -> impl Iterator<Item = &'a [u8]> + Clone {
        let data = file.data();
        let starts = self.index.starts();
        let byte =
            move |band: usize| band.checked_sub(1).map_or(0, |before| (starts[before].bit / 8) as usize);
        self.bands.clone().map(move |band| {
            let end = if band < starts.len() { byte(band + 1) + TAIL } else { data.len() };
            &data[byte(band)..end.min(data.len())]
        })
    }

    pub(super) fn cut(&self) -> Cut<'_> {
        Cut {
            interval: self.band,
            count: self.index.starts().len() + 1,
            first: self.bands.start,
            starts: self.index.starts(),
            is_complete: true,
        }
    }

    pub(super) fn note(&self, rows: &Rows, frame: &Frame, notes: &mut Notes) {
        let total = frame.mcus_across * frame.mcus_down;
        match rows.is_noted {
            true => notes.begin(self.band, (self.index.starts().len() + 1) * self.band, total),
            false => notes.off(),
        }
    }

    /// The index with what was noted; `last` is where in the segments' bytes the last one begins. `None` if nothing was.
    pub(super) fn grown(&self, notes: &Notes, file: File<'_>, last: usize) -> Option<RowIndex> {
        let from = self.index.starts().last().map_or(0, |start| (start.bit / 8) as usize);
        let starts = starts(notes, last, &file.data()[from..], from);
        (!starts.is_empty()).then(|| self.index.grown(&starts))
    }
}

/// Gets ready to note the rows of an image of which nothing is known.
pub(super) fn note_all(rows: &Rows, header: &JpegHeader<'_>, frame: &Frame, notes: &mut Notes) {
    // Restart markers lead further, and reset the predictions.
    if rows.is_noted && header.restart_interval == 0 {
        notes.begin(band(frame), band(frame), frame.mcus_across * frame.mcus_down);
    } else {
        notes.off();
    }
}

/// The index of what was noted in a file whose data are one segment.
pub(super) fn noted(notes: &Notes, file: File<'_>) -> Option<RowIndex> {
    RowIndex::new(file.bytes, starts(notes, 0, file.data(), 0))
}

/// What was noted in one segment: it begins at `segment` in the segments' bytes, and with `data`, which is `from` bytes after the
/// scan's begin.
#[expect(clippy::cast_possible_truncation, reason = "libjpeg keeps 16 bits, too; sums wrap")]
fn starts(notes: &Notes, segment: usize, data: &[u8], from: usize) -> Vec<Start> {
    let mut bits: Vec<u64> = notes.found.iter().map(|(place, _)| (place - segment * 8) as u64).collect();
    with_stuffing(data, &mut bits);
    let starts = bits.into_iter().zip(&notes.found).map(|(bit, (_, predictions))| Start {
        bit: bit + from as u64 * 8,
        predictions: predictions.map(|value| value as i16),
    });
    starts.collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Baseline, Declined};
    use super::*;
    use crate::SampleSeed;
    use crate::golden;
    use crate::image::buffer::Buffer;
    use crate::image::geometry::Rect;

    fn decode(
        baseline: &mut Baseline,
        is_joint: bool,
        bytes: &[u8],
        region: Rect,
        rows: &mut Rows,
    ) -> Result<Vec<u8>, Declined> {
        let header = JpegHeader::parse(bytes).unwrap();
        let mut out = Buffer::default();
        baseline.decode_by(is_joint, bytes, &header, (region, 1), rows, &mut out)?;
        Ok(out.bytes()[..region.size().rgb_bytes()].to_vec())
    }

    fn read(name: &str) -> Vec<u8> {
        std::fs::read(golden::path(&format!("decode/{name}.jpg"))).unwrap()
    }

    fn noting(known: Option<RowIndex>) -> Rows {
        Rows { known, is_noted: true, noted: None }
    }

    const WHOLE: Rect = Rect { x: 0, y: 0, width: 47, height: 33 };

    /// All runs of rows, and all of columns at the MCUs' edges, by both kinds of tables, from every index that a crop leaves.
    #[test]
    fn every_window_is_the_same_with_every_part_of_an_index() {
        let mut baseline = Baseline::default();
        for name in ["444", "422", "420", "grey", "optimized"] {
            let bytes = read(name);
            let mut rows = noting(None);
            let whole = decode(&mut baseline, false, &bytes, WHOLE, &mut rows).unwrap();
            let index = rows.noted.unwrap();
            assert_eq!(
                index.starts().len(),
                if name == "444" || name == "422" || name == "grey" { 4 } else { 2 }
            );
            for y in 0..33 {
                for height in 1..=33 - y {
                    for (x, width) in [(0, 47), (0, 15), (9, 7), (17, 30), (33, 1)] {
                        let region = Rect { x, y, width, height };
                        let expected: Vec<u8> = (y..y + height)
                            .flat_map(|row| {
                                let from = ((row * 47 + x) * 3) as usize;
                                whole[from..from + width as usize * 3].to_vec()
                            })
                            .collect();
                        let count = (y + height + x) as usize % (index.starts().len() + 1);
                        let known = RowIndex::new(&bytes, index.starts()[..count].to_vec());
                        for is_joint in [false, true] {
                            let mut rows = noting(known.clone());
                            let found = decode(&mut baseline, is_joint, &bytes, region, &mut rows);
                            assert!(found == Ok(expected.clone()), "{name}, {region:?}, {count} starts");
                            if let Some(noted) = rows.noted {
                                assert!(noted.starts().len() > count);
                                assert!(index.starts().starts_with(noted.starts()));
                            }
                        }
                    }
                }
            }
        }
    }

    /// An index with the file's own hash but wrong places: another image or an error, but no panic, and nothing from outside. What
    /// leads to damage is decoded again without it.
    #[test]
    fn forged_places_lead_nowhere_else() {
        let mut generator = SampleSeed::new(6, 0, 0).op(0);
        let mut below = |bound: usize| generator.below(u32::try_from(bound).unwrap()) as usize;
        let mut baseline = Baseline::default();
        let mut replaced = 0;
        for round in 0..3000 {
            let name = ["444", "422", "420", "grey", "optimized", "restarts"][round % 6];
            let bytes = read(name);
            let mut bit = 0;
            let starts = (0..1 + below(if round % 5 == 0 { 32 } else { 4 })).map(|_| {
                bit += 1 + below(bytes.len() * 3) as u64;
                let predictions = [(); 3].map(|()| i16::try_from(below(1 << 15)).unwrap());
                Start { bit, predictions }
            });
            let known = RowIndex::new(&bytes, starts.collect());
            let region = Rect { y: below(33).try_into().unwrap(), height: 1, ..WHOLE };
            let mut rows = noting(known);
            let pixels = decode(&mut baseline, round % 2 == 0, &bytes, region, &mut rows).unwrap();
            if rows.noted.is_some() {
                let plain = decode(&mut baseline, false, &bytes, region, &mut Rows::default());
                replaced += usize::from(plain == Ok(pixels));
            }
        }
        assert!(replaced > 100, "{replaced}");
    }
}
