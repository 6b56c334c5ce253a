//! Baseline JPEG, our own decoder for the crop: faster than a full decode by libjpeg-turbo because it decodes less and
//! looks symbols up whole.
//!
//! ```text
//! entropy-coded bytes ─ unstuff once (bits.rs) ─▶ walk.rs ─▶ MCUs above and beside the crop: skipped (skip.rs)
//!                                                       └─▶ MCUs of the crop: coefficients ─▶ idct.rs ─▶ planes
//! planes ─▶ upsample.rs: fancy upsampling and YCbCr → RGB, row by row, exactly the region ─▶ out
//! ```
//! MCUs are decoded in one of two ways: `singly.rs` looks up single symbols (huffman.rs), which suits small files, `jointly.rs` up
//! to two coefficients and the block's end (joint.rs), whose tables take some 50 µs where the Huffman tables are not those of the file before.
//!
//! Nothing below the crop is read; with restart markers, or an index of where rows begin (`jumps.rs`), nothing above it either. The
//! pixels are those of libjpeg-turbo's accurate path (islow DCT, fancy upsampling), bit for bit, in full size and at 1/2, 1/4 and 1/8:
//! `tests/suite/partial_decode.rs` and `scaled_decode.rs` compare.
//!
//! It takes what nearly all photos are: baseline or extended sequential Huffman, 8 bits, one scan, grey or YCbCr in
//! 4:4:4, 4:2:2, 4:2:0, 4:4:0. Everything else, and every file in which it finds damage, goes to libjpeg-turbo,
//! whose verdict counts.

mod bits;
mod frame;
mod huffman;
mod idct;
mod joint;
mod jointly;
mod jumps;
mod outcome;
mod places;
mod singly;
mod skip;
mod upsample;
mod walk;

use bits::Segments;
use frame::{Component, Frame, Window};
use huffman::Tables;
use idct::Transform;
use joint::Joint;
use jointly::{Jointly, Kept};
use jumps::{File, Jumps, Use};
use singly::Singly;
use walk::{Cut, Notes, Scan};

pub(super) use outcome::Declined;

use super::jpeg_header::JpegHeader;
use crate::image::buffer::Buffer;
use crate::image::geometry::Rect;
use crate::image::row_index::Rows;

/// Between restart markers this near, fewer MCUs are skipped than would pay for tables that skip.
const SHORT_INTERVAL: u16 = 16;

/// Entropy-coded data from which on joint tables pay for themselves.
const JOINT_BYTES: usize = 128 << 10;

/// Whether this decoder knows the kind of JPEG.
pub(super) fn takes(header: &JpegHeader<'_>) -> bool {
    Frame::new(header, 1).is_ok()
}

/// Bytes that decoding `region` at 1/`denominator` takes, beyond the pixels: the data without their stuffing, where their
/// segments end, and the planes. `None` where this decoder does not know the kind.
pub(super) fn working_bytes(
    bytes: usize,
    header: &JpegHeader<'_>,
    (region, denominator): (Rect, u32),
) -> Option<u64> {
    let frame = Frame::new(header, denominator).ok()?;
    let window = frame.window(region);
    let planes: usize = frame.components().iter().map(|component| window.samples(component)).sum();
    Some((Segments::bytes(bytes, frame.segments(header)) + planes) as u64)
}

/// Buffers and tables of one thread.
#[derive(Default)]
pub(super) struct Baseline {
    segments: Segments,
    tables: Tables,
    joint: Joint,
    kept: Kept,
    notes: Notes,
    planes: [Buffer; 3],
    rows: upsample::Rows,
}

impl Baseline {
    /// Bytes of the buffers that grow with the image; tables and rows are at most 1 MiB.
    pub(super) fn kept_bytes(&self) -> usize {
        self.segments.kept_bytes() + self.planes.iter().map(Buffer::kept_bytes).sum::<usize>()
    }

    /// Decodes exactly `region`, in pixels of the image at 1/`denominator` of its size, as dense RGB into `out`. Uses what is
    /// known in `rows` about the image, and notes there what it finds.
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        header: &JpegHeader<'_>,
        (region, denominator): (Rect, u32),
        rows: &mut Rows,
        out: &mut Buffer,
    ) -> Result<(), Declined> {
        let is_joint = denominator > 1 || bytes.len() >= JOINT_BYTES;
        self.decode_by(is_joint, bytes, header, (region, denominator), rows, out)
    }

    fn decode_by(
        &mut self,
        is_joint: bool,
        bytes: &[u8],
        header: &JpegHeader<'_>,
        (region, denominator): (Rect, u32),
        rows: &mut Rows,
        out: &mut Buffer,
    ) -> Result<(), Declined> {
        let frame = Frame::new(header, denominator)?;
        let window = frame.window(region);
        let file = File::new(bytes, header);
        let rows_use = Use::of(rows, file, header, (&frame, window));
        let skips_rows = window.first_row > 0 && !matches!(rows_use, Use::Jump(_));
        let skipping = !is_joint
            && (header.restart_interval == 0 || header.restart_interval > SHORT_INTERVAL)
            && (skips_rows || window.columns() < frame.mcus_across);
        for Component { dc, ac, .. } in frame.components() {
            self.tables.prepare_dc(*dc, header.dc[usize::from(*dc)])?;
            self.tables.prepare_ac(*ac, header.ac[usize::from(*ac)], skipping)?;
        }
        for (component, plane) in frame.components().iter().zip(&mut self.planes) {
            plane.take(window.samples(component));
        }
        let place = (&frame, window);
        match rows_use {
            Use::Nothing => self.read(is_joint, file, header, place, rows)?,
            Use::Idle => self.read(is_joint, file, header, place, &mut Rows::default())?,
            Use::Jump(jumps) => match self.jump(is_joint, file, place, rows, &jumps) {
                Ok(()) => {}
                // Forged: without it, what is wrong with the file shows, if anything is.
                Err(_) => self.read(is_joint, file, header, place, rows)?,
            },
        }
        let out = out.take(region.size().rgb_bytes());
        upsample::convert(&frame, window, region, &self.planes, &mut self.rows, out);
        Ok(())
    }

    /// Fills the planes from the whole data.
    fn read(
        &mut self,
        is_joint: bool,
        file: File<'_>,
        header: &JpegHeader<'_>,
        (frame, window): (&Frame, Window),
        rows: &mut Rows,
    ) -> Result<(), Declined> {
        self.segments.read(file.data(), frame.segments(header))?;
        let total = frame.mcus_across * frame.mcus_down;
        let interval = if header.restart_interval == 0 { total } else { header.restart_interval.into() };
        let count = total.div_ceil(interval);
        let is_complete = self.segments.is_complete(count);
        jumps::note_all(rows, header, frame, &mut self.notes);
        self.scan((frame, window), Cut { interval, count, first: 0, starts: &[], is_complete }, is_joint)?;
        if is_complete {
            rows.noted = jumps::noted(&self.notes, file);
        }
        Ok(())
    }

    /// Fills the planes from the bands that the window needs.
    fn jump(
        &mut self,
        is_joint: bool,
        file: File<'_>,
        (frame, window): (&Frame, Window),
        rows: &mut Rows,
        jumps: &Jumps,
    ) -> Result<(), Declined> {
        let last = self.segments.read_bands(jumps.data(file));
        jumps.note(rows, frame, &mut self.notes);
        self.scan((frame, window), jumps.cut(), is_joint)?;
        rows.noted = jumps.grown(&self.notes, file, last);
        Ok(())
    }

    fn scan(&mut self, place: (&Frame, Window), cut: Cut<'_>, is_joint: bool) -> Result<(), Declined> {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
        {
            // SAFETY: the features are there.
            return unsafe { self.scan_avx2(place, cut, is_joint) };
        }
        self.scan_with(place, cut, is_joint, idct::Plain)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn scan_avx2(&mut self, place: (&Frame, Window), cut: Cut<'_>, is_joint: bool) -> Result<(), Declined> {
        self.scan_with(place, cut, is_joint, idct::Lanes::new())
    }

    #[inline(always)]
    fn scan_with(
        &mut self,
        (frame, window): (&Frame, Window),
        cut: Cut<'_>,
        is_joint: bool,
        transform: impl Transform,
    ) -> Result<(), Declined> {
        let Self { segments, tables, joint, kept, notes, planes, .. } = self;
        let scan = Scan { frame, window, segments, cut };
        if is_joint {
            let symbols = joint.prepare(frame, tables);
            scan.walk(Jointly::new((frame, window), symbols, kept, planes, transform), notes)
        } else {
            scan.walk(Singly { frame, window, tables, planes, transform }, notes)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden;

    #[test]
    fn it_takes_photos_and_declines_the_rest() {
        let region = Rect { x: 5, y: 7, width: 30, height: 20 };
        let mut baseline = Baseline::default();
        let mut decode = |bytes: &[u8]| {
            baseline.decode(
                bytes,
                &JpegHeader::parse(bytes).unwrap(),
                (region, 1),
                &mut Rows::default(),
                &mut Buffer::default(),
            )
        };
        let read = |name| std::fs::read(golden::path(&format!("decode/{name}.jpg"))).unwrap();
        for name in ["444", "422", "420", "grey", "optimized", "restarts"] {
            assert_eq!(decode(&read(name)), Ok(()), "{name}");
        }
        for name in ["progressive", "cmyk", "rgb"] {
            assert_eq!(decode(&read(name)), Err(Declined::Kind), "{name}");
        }
        let whole = read("420");
        assert_eq!(decode(&whole[..whole.len() - 30]), Err(Declined::Damage));
        // Only the end marker is missing: everything is decoded to see that.
        assert_eq!(decode(&whole[..whole.len() - 2]), Ok(()));
    }
    /// Both kinds of tables return the same pixels, and find the same damage.
    #[test]
    fn joint_tables_decode_what_single_ones_do() {
        let mut generator = crate::SampleSeed::new(5, 0, 0).op(0);
        let mut below = |bound: usize| generator.below(u32::try_from(bound).unwrap()) as usize;
        let mut baseline = Baseline::default();
        let (mut damaged, mut whole) = (0, 0);
        for round in 0..3000 {
            let name = ["444", "422", "420", "grey", "optimized", "restarts"][round % 6];
            let mut bytes = std::fs::read(golden::path(&format!("decode/{name}.jpg"))).unwrap();
            let data = JpegHeader::parse(&bytes).unwrap().data;
            if round % 4 > 0 {
                let at = data + below(bytes.len() - data);
                bytes[at] ^= 1 << below(8);
            }
            let header = JpegHeader::parse(&bytes).unwrap();
            let [width, height] = [header.width, header.height].map(usize::from);
            let [x, y] = [below(width), below(height)];
            let [width, height] = [1 + below(width - x), 1 + below(height - y)];
            let [x, y, width, height] = [x, y, width, height].map(|value| u32::try_from(value).unwrap());
            let region = Rect { x, y, width, height };
            let [one, two] = [false, true].map(|is_joint| {
                let mut out = Buffer::default();
                baseline
                    .decode_by(is_joint, &bytes, &header, (region, 1), &mut Rows::default(), &mut out)
                    .map(|()| out.bytes()[..region.size().rgb_bytes()].to_vec())
            });
            assert!(one == two, "round {round}: {name}, {region:?}");
            damaged += usize::from(one.is_err());
            whole += usize::from(one.is_ok());
        }
        assert!(damaged > 100 && whole > 750, "{damaged} {whole}");
    }

    #[test]
    fn reduced_sizes_are_taken_where_chroma_is_wide_enough() {
        for (side, denominator, expected) in
            [(32, 2, Ok(())), (31, 2, Err(Declined::Kind)), (128, 8, Ok(())), (127, 8, Err(Declined::Kind))]
        {
            let bytes = std::fs::read(golden::path("decode/422.jpg")).unwrap();
            let mut header = JpegHeader::parse(&bytes).unwrap();
            (header.width, header.height) = (side, side);
            assert_eq!(Frame::new(&header, denominator).map(|_| ()), expected, "{side}, 1/{denominator}");
        }
    }
}
