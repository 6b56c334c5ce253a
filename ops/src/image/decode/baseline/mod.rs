//! Baseline JPEG, our own decoder for the crop: faster than a full decode by libjpeg-turbo because it decodes less and
//! looks symbols up whole.
//!
//! ```text
//! entropy-coded bytes ─ unstuff once (bits.rs) ─▶ MCUs above and beside the crop: skipped, several symbols a look-up
//!                                             └─▶ MCUs of the crop: coefficients (huffman.rs) ─▶ idct.rs ─▶ planes
//! planes ─▶ upsample.rs: fancy upsampling and YCbCr → RGB, row by row, exactly the region ─▶ out
//! ```
//! Nothing below the crop is read; with restart markers nothing above it either. The pixels are those of
//! libjpeg-turbo's accurate path (islow DCT, fancy upsampling), bit for bit: `tests/partial_decode.rs` compares.
//!
//! It takes what nearly all photos are: baseline or extended sequential Huffman, 8 bits, one scan, grey or YCbCr in
//! 4:4:4, 4:2:2, 4:2:0, 4:4:0. Everything else, and every file in which it finds damage, goes to libjpeg-turbo,
//! whose verdict counts.

mod bits;
mod huffman;
mod idct;
mod upsample;

use bits::{Bits, Segments};
use huffman::{Huffman, Places, Tables};

use super::super::geometry::Rect;
use super::jpeg_header::JpegHeader;
use crate::buffer::Buffer;

/// The smaller the picture, the less there is to gain; below this the chroma planes are too narrow for fancy
/// upsampling, and libjpeg-turbo's rules for that are its own.
const LEAST_SIDE: u16 = 16;

/// Between restart markers this near, fewer MCUs are skipped than would pay for tables that skip.
const SHORT_INTERVAL: u16 = 16;

/// Zigzag position → natural position.
const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7,
    14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59, 52, 45, 38, 31, 39,
    46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// Why this decoder does not decode a file; libjpeg-turbo then does, or says what is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Declined {
    /// A kind of JPEG that is not for this decoder.
    Kind,
    /// Something is wrong with the data.
    Damage,
}

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

/// One component, its quantisation table resolved.
#[derive(Debug, Clone, Copy)]
struct Component {
    /// Blocks per MCU.
    h: usize,
    v: usize,
    /// Table numbers.
    dc: u8,
    ac: u8,
    places: Places,
    /// Samples of the component in the whole picture.
    width: usize,
    height: usize,
}

impl Component {
    const NONE: Self = Self { h: 0, v: 0, dc: 0, ac: 0, places: Places::NONE, width: 0, height: 0 };
}

/// The geometry of the picture.
struct Frame {
    components: [Component; 3],
    count: usize,
    h_max: usize,
    v_max: usize,
    mcus_across: usize,
    mcus_down: usize,
}

/// The MCUs that a region needs, inclusive.
#[derive(Debug, Clone, Copy)]
struct Window {
    first_column: usize,
    last_column: usize,
    first_row: usize,
    last_row: usize,
}

impl Window {
    fn columns(self) -> usize {
        self.last_column - self.first_column + 1
    }

    fn rows(self) -> usize {
        self.last_row - self.first_row + 1
    }
}

impl Frame {
    fn new(header: &JpegHeader<'_>) -> Result<Self, Declined> {
        let count = header.component_count;
        let plain = matches!(header.frame, 0xC0 | 0xC1)
            && header.precision == 8
            && header.scan_components == count
            && header.scan_is_full
            && header.width.min(header.height) >= LEAST_SIDE
            && (count == 1 || (count == 3 && is_ycc(header)));
        if !plain {
            return Err(Declined::Kind);
        }
        let (h_max, v_max) = header.max_sampling();
        // A grey picture has one block per MCU, whatever its factors say.
        let (h_max, v_max) = if count == 1 { (1, 1) } else { (h_max, v_max) };
        if h_max > 2 || v_max > 2 {
            return Err(Declined::Kind);
        }
        let mut frame = Self {
            components: [Component::NONE; 3],
            count,
            h_max: h_max.into(),
            v_max: v_max.into(),
            mcus_across: usize::from(header.width).div_ceil(8 * usize::from(h_max)),
            mcus_down: usize::from(header.height).div_ceil(8 * usize::from(v_max)),
        };
        for (index, (component, raw)) in frame.components.iter_mut().zip(header.components()).enumerate() {
            let (h, v) = if count == 1 { (1, 1) } else { (raw.h, raw.v) };
            let standard = if index == 0 { (h, v) == (h_max, v_max) } else { (h, v) == (1, 1) };
            let quant = header.quant.get(usize::from(raw.quant)).copied().flatten();
            let (Some(quant), true) = (quant, standard && raw.dc < 4 && raw.ac < 4) else {
                return Err(Declined::Kind);
            };
            // Which blocks are flat is asked of what is quantised, and answered behind it.
            if quant.contains(&0) {
                return Err(Declined::Kind);
            }
            *component = Component {
                h: h.into(),
                v: v.into(),
                dc: raw.dc,
                ac: raw.ac,
                places: Places::new(&quant),
                width: (usize::from(header.width) * usize::from(h)).div_ceil(h_max.into()),
                height: (usize::from(header.height) * usize::from(v)).div_ceil(v_max.into()),
            };
        }
        Ok(frame)
    }

    fn components(&self) -> &[Component] {
        &self.components[..self.count]
    }

    /// Restart segments of the whole image; 0 without restart markers.
    fn segments(&self, header: &JpegHeader<'_>) -> usize {
        let mcus = self.mcus_across * self.mcus_down;
        if header.restart_interval == 0 { 0 } else { mcus.div_ceil(header.restart_interval.into()) }
    }

    fn window(&self, region: Rect) -> Window {
        let span = |start: u32, length: u32, factor: usize, samples: usize| {
            let (start, end) = (start as usize / factor, (start + length - 1) as usize / factor);
            // Upsampling looks one chroma sample to each side.
            let context = usize::from(factor > 1);
            (start.saturating_sub(context) / 8, (end + context).min(samples - 1) / 8)
        };
        let chroma = self.components[self.count - 1];
        let (first_column, last_column) = span(region.x, region.width, self.h_max, chroma.width);
        let (first_row, last_row) = span(region.y, region.height, self.v_max, chroma.height);
        Window { first_column, last_column, first_row, last_row }
    }
}

/// Whether libjpeg takes three components for YCbCr.
fn is_ycc(header: &JpegHeader<'_>) -> bool {
    let ids = [0, 1, 2].map(|index: usize| header.components[index].id);
    header.jfif || header.adobe_transform == Some(1) || (header.adobe_transform.is_none() && ids == [1, 2, 3])
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
        // Without an end marker only decoding everything tells whether something is missing.
        let complete = self.segments.is_complete(total.div_ceil(interval));
        let end = if complete { self.window.last_row * across + self.window.last_column + 1 } else { total };
        let mut at = 0;
        let mut bits = Bits::default();
        let mut predictions = [0_i32; 3];
        while at < end {
            let segment_end = ((at / interval + 1) * interval).min(end);
            let wanted = self.next_wanted(at).min(end);
            // With a marker behind it, what is not wanted need not be read.
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
