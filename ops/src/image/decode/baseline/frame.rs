//! The geometry of a baseline JPEG: its components, its MCUs, and those that a region needs.

use super::outcome::Declined;
use super::places::Places;
use crate::image::decode::jpeg_header::JpegHeader;
use crate::image::geometry::Rect;

/// The smaller the image, the less there is to gain; below this the chroma planes are too narrow for fancy upsampling,
/// and libjpeg-turbo's rules for that are its own.
const LEAST_SIDE: u16 = 16;

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
    /// Samples of the component in the whole image.
    pub(super) width: usize,
    pub(super) height: usize,
}

impl Component {
    pub(super) const NONE: Self =
        Self { h: 0, v: 0, dc: 0, ac: 0, places: Places::NONE, width: 0, height: 0 };
}

/// The geometry of the image.
pub(super) struct Frame {
    pub(super) components: [Component; 3],
    pub(super) count: usize,
    pub(super) h_max: usize,
    pub(super) v_max: usize,
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
}

impl Frame {
    pub(super) fn new(header: &JpegHeader<'_>) -> Result<Self, Declined> {
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
        // A grey image has one block per MCU, whatever its factors are.
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
            // Whether a block is flat is decided before it is dequantised.
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

    pub(super) fn components(&self) -> &[Component] {
        &self.components[..self.count]
    }

    /// Restart segments of the whole image; 0 without restart markers.
    pub(super) fn segments(&self, header: &JpegHeader<'_>) -> usize {
        let mcus = self.mcus_across * self.mcus_down;
        if header.restart_interval == 0 { 0 } else { mcus.div_ceil(header.restart_interval.into()) }
    }

    pub(super) fn window(&self, region: Rect) -> Window {
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
