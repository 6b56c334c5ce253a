//! The geometry of a baseline JPEG at one of its scales: its components, its MCUs, and those that a region needs.
//!
//! At 1/2, 1/4 and 1/8 a luma block becomes 4×4, 2×2 or 1×1 samples. As in libjpeg, a subsampled component keeps twice as many
//! where that spares its upsampling in both directions: at 1/2, chroma blocks of 4:2:0 become 8×8, those of 4:2:2 4×4.

use super::outcome::Declined;
use super::places::Places;
use crate::image::decode::jpeg_header::JpegHeader;
use crate::image::geometry::Rect;

/// The smaller the image, the less there is to gain; below this, in pixels of the scaled image, the chroma planes are too narrow
/// for fancy upsampling, and libjpeg-turbo's rules for that are its own.
const LEAST_SIDE: u32 = 16;

/// The scale from which on libjpeg repeats chroma samples instead of interpolating them.
const PLAIN_UPSAMPLING: usize = 8;

/// Blocks of an MCU at most, 2 × 2 of luma and two of chroma; a power of two, so that an index is masked instead of checked.
pub(super) const MOST_BLOCKS: usize = 8;

/// One component, its quantisation table resolved.
#[derive(Debug, Clone, Copy)]
pub(super) struct Component {
    /// Blocks per MCU.
    pub(super) h: usize,
    pub(super) v: usize,
    /// Table numbers.
    pub(super) dc: u8,
    pub(super) ac: u8,
    pub(super) places: Places,
    /// Samples on each side of a block: 8, 4, 2 or 1.
    pub(super) side: usize,
    /// Samples of the component in the whole image.
    pub(super) width: usize,
    pub(super) height: usize,
}

impl Component {
    pub(super) const NONE: Self =
        Self { h: 0, v: 0, dc: 0, ac: 0, places: Places::NONE, side: 8, width: 0, height: 0 };
}

/// The geometry of the image.
pub(super) struct Frame {
    pub(super) components: [Component; 3],
    pub(super) count: usize,
    /// Pixels for each chroma sample, across and down: 1 or 2.
    pub(super) chroma: (usize, usize),
    /// Chroma is interpolated where there are more pixels than samples.
    pub(super) interpolates: bool,
    pub(super) mcus_across: usize,
    pub(super) mcus_down: usize,
}

/// The MCUs that a region needs, inclusive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    pub(super) first_column: usize,
    pub(super) last_column: usize,
    pub(super) first_row: usize,
    pub(super) last_row: usize,
}

impl Window {
    pub(super) fn columns(self) -> usize {
        self.last_column - self.first_column + 1
    }

    pub(super) fn rows(self) -> usize {
        self.last_row - self.first_row + 1
    }

    /// Samples of the component.
    pub(super) fn samples(self, component: &Component) -> usize {
        self.columns() * self.rows() * component.h * component.v * component.side * component.side
    }
}

impl Frame {
    /// The geometry at 1/`denominator` of the size: 1, 2, 4 or 8.
    pub(super) fn new(header: &JpegHeader<'_>, denominator: u32) -> Result<Self, Declined> {
        let count = header.component_count;
        let plain = matches!(header.frame, 0xC0 | 0xC1)
            && header.precision == 8
            && header.scan_components == count
            && header.scan_is_full
            && u32::from(header.width.min(header.height)) >= LEAST_SIDE * denominator
            && (count == 1 || (count == 3 && is_ycc(header)));
        if !plain {
            return Err(Declined::Kind);
        }
        let (h_max, v_max) = header.max_sampling();
        // A grey image has one block per MCU, whatever its factors are.
        let (h_max, v_max) = if count == 1 { (1, 1) } else { (usize::from(h_max), usize::from(v_max)) };
        if h_max > 2 || v_max > 2 {
            return Err(Declined::Kind);
        }
        let [width, height] = [header.width, header.height].map(usize::from);
        let denominator = denominator as usize;
        let luma_side = 8 / denominator;
        let chroma_side = if denominator > 1 && h_max == 2 && v_max == 2 { 2 * luma_side } else { luma_side };
        let mut frame = Self {
            components: [Component::NONE; 3],
            count,
            chroma: (h_max * luma_side / chroma_side, v_max * luma_side / chroma_side),
            interpolates: denominator < PLAIN_UPSAMPLING,
            mcus_across: width.div_ceil(8 * h_max),
            mcus_down: height.div_ceil(8 * v_max),
        };
        for (index, (component, raw)) in frame.components.iter_mut().zip(header.components()).enumerate() {
            let (h, v) = if count == 1 { (1, 1) } else { (raw.h.into(), raw.v.into()) };
            let is_usual = if index == 0 { (h, v) == (h_max, v_max) } else { (h, v) == (1, 1) };
            let quant = header.quant.get(usize::from(raw.quant)).copied().flatten();
            let (Some(quant), true) = (quant, is_usual && raw.dc < 4 && raw.ac < 4) else {
                return Err(Declined::Kind);
            };
            // Whether a block is flat is decided before it is dequantised.
            if quant.contains(&0) {
                return Err(Declined::Kind);
            }
            let side = if index == 0 { luma_side } else { chroma_side };
            *component = Component {
                h,
                v,
                dc: raw.dc,
                ac: raw.ac,
                places: Places::new(&quant),
                side,
                width: (width * h * side).div_ceil(h_max * 8),
                height: (height * v * side).div_ceil(v_max * 8),
            };
        }
        Ok(frame)
    }

    pub(super) fn components(&self) -> &[Component] {
        &self.components[..self.count]
    }

    /// The component of each block of an MCU, and the number of these blocks.
    pub(super) fn order(&self) -> ([usize; MOST_BLOCKS], usize) {
        let (mut order, mut blocks) = ([0; MOST_BLOCKS], 0);
        for (index, component) in self.components().iter().enumerate() {
            order[blocks..blocks + component.h * component.v].fill(index);
            blocks += component.h * component.v;
        }
        (order, blocks)
    }

    /// Restart segments of the whole image; 0 without restart markers.
    pub(super) fn segments(&self, header: &JpegHeader<'_>) -> usize {
        let mcus = self.mcus_across * self.mcus_down;
        if header.restart_interval == 0 { 0 } else { mcus.div_ceil(header.restart_interval.into()) }
    }

    /// The MCUs that `region`, in pixels of the scaled image, needs.
    pub(super) fn window(&self, region: Rect) -> Window {
        let chroma = self.components[self.count - 1];
        let span = |start: u32, length: u32, pixels: usize, samples: usize| {
            let (start, end) = (start as usize / pixels, (start + length - 1) as usize / pixels);
            // Interpolation looks one chroma sample to each side.
            let context = usize::from(pixels > 1 && self.interpolates);
            (start.saturating_sub(context) / chroma.side, (end + context).min(samples - 1) / chroma.side)
        };
        let (first_column, last_column) = span(region.x, region.width, self.chroma.0, chroma.width);
        let (first_row, last_row) = span(region.y, region.height, self.chroma.1, chroma.height);
        Window { first_column, last_column, first_row, last_row }
    }
}

/// Whether libjpeg takes three components for YCbCr.
fn is_ycc(header: &JpegHeader<'_>) -> bool {
    let ids = [0, 1, 2].map(|index: usize| header.components[index].id);
    header.jfif || header.adobe_transform == Some(1) || (header.adobe_transform.is_none() && ids == [1, 2, 3])
}
