//! A JPEG's segments up to the first scan: sizes, tables and where the entropy-coded data begins.
//!
//! Sources: ITU-T T.81 annex B, JFIF 1.02, Adobe technical note 5116.

use super::super::geometry::Size;
use crate::image::limits::MAX_SCANS;
use feedstock_base::{Error, Result};

/// One component of the frame.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Component {
    pub(super) id: u8,
    /// Horizontal and vertical sampling factors, 1 … 4.
    pub(super) h: u8,
    pub(super) v: u8,
    /// Quantisation table 0 … 3.
    pub(super) quant: u8,
    /// Huffman tables 0 … 3 of the first scan.
    pub(super) dc: u8,
    pub(super) ac: u8,
}

/// A Huffman table as in the file: 16 counts, then the symbols.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HuffmanSpec<'a> {
    pub(super) counts: &'a [u8; 16],
    pub(super) symbols: &'a [u8],
}

/// Everything before the first scan's data.
#[derive(Debug, Clone)]
pub(super) struct JpegHeader<'a> {
    /// SOF0 is 0xC0 (baseline), SOF1 extended, SOF2 progressive …
    pub(super) frame: u8,
    pub(super) precision: u8,
    pub(super) width: u16,
    pub(super) height: u16,
    pub(super) components: [Component; 4],
    pub(super) component_count: usize,
    /// Natural order is the codec's business: these are in zigzag order, as in the file.
    pub(super) quant: [Option<[u16; 64]>; 4],
    pub(super) dc: [Option<HuffmanSpec<'a>>; 4],
    pub(super) ac: [Option<HuffmanSpec<'a>>; 4],
    /// MCUs between restart markers; 0 is none.
    pub(super) restart_interval: u16,
    /// Components in the first scan.
    pub(super) scan_components: usize,
    /// Which they are, a bit each.
    pub(super) scan_mask: u8,
    /// Scans after which libjpeg-turbo gives up.
    pub(super) max_scans: u32,
    /// The scan covers the full spectrum at full precision, as a baseline scan does.
    pub(super) scan_is_full: bool,
    pub(super) jfif: bool,
    pub(super) adobe_transform: Option<u8>,
    /// Offset of the first entropy-coded byte.
    pub(super) data: usize,
}

/// The end marker, EOI.
const END: u8 = 0xD9;

fn bad(what: impl std::fmt::Display) -> Error {
    Error::bad_sample(format!("JPEG header: {what}"))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*bytes.get(at)?, *bytes.get(at + 1)?]))
}

impl<'a> JpegHeader<'a> {
    pub(super) fn size(&self) -> Size {
        Size { height: self.height.into(), width: self.width.into() }
    }

    pub(super) fn components(&self) -> &[Component] {
        &self.components[..self.component_count]
    }

    /// As T.81 has baseline: two tables of each kind, all there, and one block an MCU where there is but one component.
    pub(super) fn is_strictly_baseline(&self) -> bool {
        let is_usual = |component: &Component| {
            let (dc, ac) = (usize::from(component.dc), usize::from(component.ac));
            dc < 2 && ac < 2 && self.dc[dc].is_some() && self.ac[ac].is_some()
        };
        let is_one_block = |component: &Component| (component.h, component.v) == (1, 1);
        self.frame == 0xC0
            && self.components().iter().all(is_usual)
            && (self.component_count > 1 || self.components().iter().all(is_one_block))
    }

    /// Whether libjpeg-turbo can decode a part of the image: the subsampling is one that it has a name for.
    pub(super) fn is_cut_by_turbo(&self) -> bool {
        let [first, rest @ ..] = self.components() else { return false };
        let is_named = matches!((first.h, first.v), (1, 1) | (2, 1) | (2, 2) | (1, 2) | (4, 1) | (1, 4));
        let is_plain = |one: &Component| (one.h, one.v) == (1, 1);
        let is_lossless = matches!(self.frame, 0xC3 | 0xC7 | 0xCB | 0xCF);
        !is_lossless
            && match rest.len() {
                0 => true,
                2 => is_named && rest.iter().all(is_plain),
                _ => self.components().iter().all(is_plain),
            }
    }

    /// The largest sampling factors, horizontal and vertical.
    pub(super) fn max_sampling(&self) -> (u8, u8) {
        self.components().iter().fold((1, 1), |(h, v), c| (h.max(c.h), v.max(c.v)))
    }

    /// Whether libjpeg comes to the last row before the file's end, whatever it makes of the data.
    ///
    /// In entropy-coded data 0xFF is followed by 0x00 or by more of 0xFF. Every other byte makes a marker, at which the
    /// data end; a scan's missing rows are filled up. Of restart markers that is true only where there should be none.
    pub(super) fn leads_to_its_last_row(&self, bytes: &[u8]) -> bool {
        let restarts = self.restart_interval > 0;
        if self.is_sequential() && self.scan_components == self.component_count {
            // Searching for a restart marker, libjpeg skips codes that are no markers of a JPEG.
            let ends = |marker: &u8| !restarts || matches!(marker, 0xC0..=0xCF | 0xD8..);
            return self.markers(bytes).any(|(marker, _)| ends(&marker));
        }
        // All scans come first, so that the end marker must be there.
        self.segments(bytes).any(|(marker, _)| marker == END)
    }

    /// The segments after the first scan's header, up to and with the end marker: their markers, and where the byte
    /// after each marker is. As in libjpeg, the search for the next marker goes on at a segment's end, so that no byte
    /// in a segment is taken for a marker or for a part of one.
    pub(super) fn segments(&self, bytes: &[u8]) -> impl Iterator<Item = (u8, usize)> {
        let (mut at, mut has_ended) = (self.data, false);
        std::iter::from_fn(move || {
            while !has_ended {
                let (marker, after) = next_marker(bytes, at)?;
                at = after;
                if matches!(marker, 0xC0..=0xCF | 0xD9..) {
                    let length =
                        u16_at(bytes, after).map_or(bytes.len(), |length| usize::from(length).max(2));
                    at += length;
                    has_ended = marker == END;
                    return Some((marker, after));
                }
            }
            None
        })
    }

    pub(super) fn is_sequential(&self) -> bool {
        matches!(self.frame, 0xC0 | 0xC1 | 0xC9)
    }

    /// The markers after the first scan's header, and where the byte after each is.
    fn markers(&self, bytes: &[u8]) -> impl Iterator<Item = (u8, usize)> {
        let mut at = self.data;
        std::iter::from_fn(move || {
            let found = next_marker(bytes, at)?;
            at = found.1;
            Some(found)
        })
    }

    /// The component that libjpeg-turbo takes for place `at` in a scan, named `id`: the first of this id that is not in front
    /// of the place. Ids may be equal, and a scan of all components has them in the frame's order.
    pub(super) fn component_in_scan(&self, at: usize, id: u8) -> Option<usize> {
        (at..self.component_count).find(|index| self.components[*index].id == id)
    }

    /// Reads the segments up to and including the first SOS.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<Self> {
        let mut header = Self {
            frame: 0,
            precision: 0,
            width: 0,
            height: 0,
            components: [Component::default(); 4],
            component_count: 0,
            quant: [None; 4],
            dc: [None; 4],
            ac: [None; 4],
            restart_interval: 0,
            scan_components: 0,
            scan_mask: 0,
            max_scans: MAX_SCANS,
            scan_is_full: false,
            jfif: false,
            adobe_transform: None,
            data: 0,
        };
        let mut at = 2;
        // Each turn consumes at least the marker's byte, so the loop ends with the bytes.
        loop {
            // Like libjpeg, step over garbage and fill bytes before a marker.
            while bytes.get(at).is_some_and(|&byte| byte != 0xFF) {
                at += 1;
            }
            while bytes.get(at) == Some(&0xFF) {
                at += 1;
            }
            let Some(&marker) = bytes.get(at) else {
                return Err(bad(format_args!("{} bytes end before the image's data", bytes.len())));
            };
            at += 1;
            if matches!(marker, 0x00 | 0x01 | 0xD0..=0xD8) {
                continue;
            }
            if marker == 0xD9 {
                return Err(bad("the end marker comes before the image's data"));
            }
            let length = u16_at(bytes, at).map(usize::from).unwrap_or(0);
            let Some(body) = bytes.get(at + 2..at + length.max(2)).filter(|_| length >= 2) else {
                return Err(bad(format_args!(
                    "segment {marker:#04x} is cut off after {} bytes",
                    bytes.len()
                )));
            };
            at += length;
            match marker {
                0xC4 => header.huffman(body)?,
                0xC0..=0xC3 | 0xC5..=0xC7 | 0xC9..=0xCB | 0xCD..=0xCF => header.frame(marker, body)?,
                0xDA => {
                    header.scan(body)?;
                    header.data = at;
                    return Ok(header);
                }
                0xDB => header.quantisation(body)?,
                0xDD => {
                    header.restart_interval =
                        u16_at(body, 0).ok_or_else(|| bad("the restart interval is cut off"))?;
                }
                0xE0 if body.len() >= 14 && body.starts_with(b"JFIF\0") => header.jfif = true,
                0xEE if body.len() >= 12 && body.starts_with(b"Adobe") => {
                    header.adobe_transform = Some(body[11]);
                }
                _ => {}
            }
        }
    }

    fn frame(&mut self, marker: u8, body: &[u8]) -> Result<()> {
        if self.frame != 0 {
            return Err(bad("a second frame"));
        }
        let &[precision, h1, h0, w1, w0, count, ref rest @ ..] = body else {
            return Err(bad("the frame is cut off"));
        };
        let count = usize::from(count);
        if !(1..=4).contains(&count) || rest.len() < count * 3 {
            return Err(bad(format_args!("a frame of {count} components in {} bytes", body.len())));
        }
        self.frame = marker;
        self.precision = precision;
        self.height = u16::from_be_bytes([h1, h0]);
        self.width = u16::from_be_bytes([w1, w0]);
        self.component_count = count;
        for (component, raw) in self.components.iter_mut().zip(rest.chunks_exact(3)) {
            let (h, v) = (raw[1] >> 4, raw[1] & 15);
            if !(1..=4).contains(&h) || !(1..=4).contains(&v) {
                return Err(bad(format_args!("sampling factors {h}×{v}")));
            }
            *component = Component { id: raw[0], h, v, quant: raw[2], dc: 0, ac: 0 };
        }
        Ok(())
    }

    fn scan(&mut self, body: &[u8]) -> Result<()> {
        let (&count, rest) = body.split_first().ok_or_else(|| bad("the scan is cut off"))?;
        let count = usize::from(count);
        if self.frame == 0 {
            return Err(bad("a scan before the frame"));
        }
        if !(1..=self.component_count).contains(&count) || rest.len() < count * 2 + 3 {
            return Err(bad(format_args!("a scan of {count} components in {} bytes", body.len())));
        }
        self.scan_components = count;
        let mut in_order = true;
        for (at, raw) in rest.chunks_exact(2).take(count).enumerate() {
            // A component that is misplaced libjpeg-turbo refuses when it decodes.
            let index = self.component_in_scan(at, raw[0]).or_else(|| self.component_in_scan(0, raw[0]));
            let Some(index) = index else {
                return Err(bad(format_args!("a scan of the unknown component {}", raw[0])));
            };
            // Where ids are equal, decoders differ about which component is meant.
            in_order &= index == at && self.component_in_scan(0, raw[0]) == Some(at);
            self.scan_mask |= 1 << index;
            (self.components[index].dc, self.components[index].ac) = (raw[1] >> 4, raw[1] & 15);
        }
        self.scan_is_full = in_order && rest[count * 2..count * 2 + 3] == [0, 63, 0];
        Ok(())
    }

    fn quantisation(&mut self, mut body: &[u8]) -> Result<()> {
        while let Some((&info, rest)) = body.split_first() {
            let wide = info >> 4 != 0;
            let bytes = if wide { 128 } else { 64 };
            let (Some(raw), Some(slot)) = (rest.get(..bytes), self.quant.get_mut(usize::from(info & 15)))
            else {
                return Err(bad(format_args!("quantisation table {info:#04x} is cut off or unknown")));
            };
            let mut table = [0; 64];
            for (i, value) in table.iter_mut().enumerate() {
                *value = if wide { u16::from_be_bytes([raw[2 * i], raw[2 * i + 1]]) } else { raw[i].into() };
            }
            *slot = Some(table);
            body = &rest[bytes..];
        }
        Ok(())
    }

    fn huffman(&mut self, mut body: &'a [u8]) -> Result<()> {
        while let Some((&info, rest)) = body.split_first() {
            let Some((counts, rest)) = rest.split_first_chunk::<16>() else {
                return Err(bad("a Huffman table is cut off"));
            };
            let total: usize = counts.iter().map(|&n| usize::from(n)).sum();
            let class = if info & 0x10 == 0 { &mut self.dc } else { &mut self.ac };
            let (Some(symbols), Some(slot)) =
                (rest.get(..total).filter(|_| total <= 256), class.get_mut(usize::from(info & 15)))
            else {
                return Err(bad(format_args!("Huffman table {info:#04x} is cut off or unknown")));
            };
            *slot = Some(HuffmanSpec { counts, symbols });
            body = &rest[total..];
        }
        Ok(())
    }
}

/// The first marker from `at` on, and where the byte after it is. 0xFF, any number of times, makes a marker of the byte after
/// it, unless that is 0.
fn next_marker(bytes: &[u8], mut at: usize) -> Option<(u8, usize)> {
    loop {
        at += memchr::memchr(0xFF, bytes.get(at..)?)? + 1;
        match *bytes.get(at)? {
            0x00 => at += 1,
            0xFF => {}
            marker => return Some((marker, at + 1)),
        }
    }
}

/// Whether the image's data from `data` on comes to an end marker (EOI), as far as a quick look shows.
///
/// Most files end in it; where something is appended (padding, a second image) the first one counts. In entropy-coded
/// data 0xFF is always followed by 0x00 or a restart marker, so FF D9 is not data there.
pub(super) fn reaches_its_end(bytes: &[u8], data: usize) -> bool {
    let rest = &bytes[data.min(bytes.len())..];
    rest.ends_with(&[0xFF, 0xD9]) || memchr::memmem::find(rest, &[0xFF, 0xD9]).is_some()
}
