//! Baseline JPEG, our own decoder for the crop: faster than a full decode by libjpeg-turbo because it decodes less and
//! looks symbols up whole.
//!
//! ```text
//! entropy-coded bytes ─ unstuff once (bits.rs) ─▶ MCUs above and beside the crop: skipped, several symbols a look-up
//!                                             └─▶ MCUs of the crop: coefficients (huffman.rs) ─▶ idct.rs ─▶ planes
//! planes ─▶ upsample.rs: fancy upsampling and YCbCr → RGB, row by row, exactly the region ─▶ out
//! ```
//! Nothing below the crop is read; with restart markers nothing above it either. The pixels are those of
//! libjpeg-turbo's accurate path (islow DCT, fancy upsampling), bit for bit: `tests/suite/partial_decode.rs` compares.
//!
//! It takes what nearly all photos are: baseline or extended sequential Huffman, 8 bits, one scan, grey or YCbCr in
//! 4:4:4, 4:2:2, 4:2:0, 4:4:0. Everything else, and every file in which it finds damage, goes to libjpeg-turbo,
//! whose verdict counts.

mod bits;
mod frame;
mod huffman;
mod idct;
mod outcome;
mod places;
mod upsample;

use bits::{Bits, Segments};
use frame::{Component, Frame, Window};
use huffman::{Huffman, Tables};

pub(super) use outcome::Declined;

use super::jpeg_header::JpegHeader;
use crate::image::buffer::Buffer;
use crate::image::geometry::Rect;

/// Between restart markers this near, fewer MCUs are skipped than would pay for tables that skip.
const SHORT_INTERVAL: u16 = 16;

/// Whether this decoder knows the kind of JPEG.
pub(super) fn takes(header: &JpegHeader<'_>) -> bool {
    Frame::new(header).is_ok()
}

/// Bytes that decoding `region` takes, beyond the pixels: the data without their stuffing, where their segments end, and the
/// planes. `None` where this decoder does not know the kind.
pub(super) fn working_bytes(bytes: usize, header: &JpegHeader<'_>, region: Rect) -> Option<u64> {
    let frame = Frame::new(header).ok()?;
    let window = frame.window(region);
    let mcus = window.columns() * window.rows();
    let planes: usize = frame.components().iter().map(|one| mcus * one.h * one.v * 64).sum();
    Some((Segments::bytes(bytes, frame.segments(header)) + planes) as u64)
}

/// Buffers and tables of one thread.
#[derive(Default)]
pub(super) struct Baseline {
    segments: Segments,
    tables: Tables,
    planes: [Buffer; 3],
    rows: upsample::Rows,
}

impl Baseline {
    /// Bytes of the buffers that grow with the image; tables and rows are at most 1 MiB.
    pub(super) fn kept_bytes(&self) -> usize {
        self.segments.kept_bytes() + self.planes.iter().map(Buffer::kept_bytes).sum::<usize>()
    }

    /// Decodes exactly `region` as dense RGB into `out`.
    pub(super) fn decode(
        &mut self,
        bytes: &[u8],
        header: &JpegHeader<'_>,
        region: Rect,
        out: &mut Buffer,
    ) -> Result<(), Declined> {
        let frame = Frame::new(header)?;
        self.segments.read(&bytes[header.data.min(bytes.len())..], frame.segments(header))?;
        let window = frame.window(region);
        let skipping = (header.restart_interval == 0 || header.restart_interval > SHORT_INTERVAL)
            && (window.first_row > 0 || window.columns() < frame.mcus_across);
        for Component { dc, ac, .. } in frame.components() {
            self.tables.prepare_dc(*dc, header.dc[usize::from(*dc)])?;
            self.tables.prepare_ac(*ac, header.ac[usize::from(*ac)], skipping)?;
        }
        let mut decoder = Scan {
            frame: &frame,
            window,
            segments: &self.segments,
            tables: &self.tables,
            restart_interval: usize::from(header.restart_interval),
            planes: &mut self.planes,
        };
        decoder.run()?;
        let out = out.take(region.size().rgb_bytes());
        upsample::convert(&frame, window, region, &self.planes, &mut self.rows, out);
        Ok(())
    }
}

/// One pass over the entropy-coded data.
struct Scan<'a> {
    frame: &'a Frame,
    window: Window,
    segments: &'a Segments,
    tables: &'a Tables,
    restart_interval: usize,
    planes: &'a mut [Buffer; 3],
}

impl Scan<'_> {
    fn run(&mut self) -> Result<(), Declined> {
        for (index, component) in self.frame.components().iter().enumerate() {
            let bytes = self.window.columns() * self.window.rows() * component.h * component.v * 64;
            self.planes[index].take(bytes);
        }
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
        {
            // SAFETY: the features are there.
            return unsafe { self.run_avx2() };
        }
        self.run_with(idct::full)
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,bmi1,bmi2")]
    fn run_avx2(&mut self) -> Result<(), Declined> {
        self.run_with(|block, out, stride| idct::full_avx2(block, out, stride))
    }

    /// Walks the MCUs in runs that are skipped or decoded, each within one restart segment.
    #[inline(always)]
    fn run_with(&mut self, idct: impl Fn(&[i16; 64], &mut [u8], usize)) -> Result<(), Declined> {
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
                self.skip(stop - at, &mut bits, &mut predictions)?;
                at = stop;
            } else {
                let column = at % across;
                let stop = (at + self.window.last_column + 1 - column).min(segment_end);
                let place = (at / across, column, stop - at);
                self.decode(place, &mut bits, &mut predictions, &idct)?;
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

    #[inline(always)]
    fn skip(&self, mcus: usize, bits: &mut Bits<'_>, predictions: &mut [i32; 3]) -> Result<(), Declined> {
        for _ in 0..mcus {
            for (index, component) in self.frame.components().iter().enumerate() {
                let Huffman { dc, ac } = self.tables.of(component.dc, component.ac);
                for _ in 0..component.h * component.v {
                    predictions[index] = predictions[index].wrapping_add(huffman::dc(bits, dc)?);
                    huffman::skip_ac(bits, ac)?;
                }
            }
            bits.check()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn decode(
        &mut self,
        (row, column, mcus): (usize, usize, usize),
        bits: &mut Bits<'_>,
        predictions: &mut [i32; 3],
        idct: &impl Fn(&[i16; 64], &mut [u8], usize),
    ) -> Result<(), Declined> {
        let row = row - self.window.first_row;
        for mcu in column - self.window.first_column..column - self.window.first_column + mcus {
            for (index, component) in self.frame.components().iter().enumerate() {
                let Huffman { dc, ac } = self.tables.of(component.dc, component.ac);
                let Component { h, v, .. } = *component;
                let stride = self.window.columns() * h * 8;
                let plane = self.planes[index].bytes_mut();
                for (block_y, block_x) in (0..v).flat_map(|y| (0..h).map(move |x| (y, x))) {
                    let mut block = [0_i16; 64];
                    predictions[index] = predictions[index].wrapping_add(huffman::dc(bits, dc)?);
                    component.places.put(0, predictions[index], &mut block);
                    let flat = huffman::ac(bits, ac, &component.places, &mut block)?;
                    let start = ((row * v + block_y) * stride + mcu * h + block_x) * 8;
                    let target = &mut plane[start..start + 7 * stride + 8];
                    if flat {
                        idct::flat(block[0], target, stride);
                    } else {
                        idct(&block, target, stride);
                    }
                }
            }
            bits.check()?;
        }
        Ok(())
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
            baseline.decode(bytes, &JpegHeader::parse(bytes).unwrap(), region, &mut Buffer::default())
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
}
