//! What the scans of a JPEG cost, found by walking the markers before anything is decoded.
//!
//! A file whose coefficients come in several scans is decoded whole, one pass over its components for each scan, and all its
//! coefficients are kept in memory. A few bytes are enough for a scan that visits every block and changes none.

use super::DecodeImage;
use super::jpeg_header::{Component, JpegHeader};
use crate::error::Result;
use crate::limits::over;

/// A start of scan, SOS.
const SCAN: u8 = 0xDA;

/// The side of a block in pixels.
const BLOCK_SIDE: u64 = 8;

/// A coefficient is 2 bytes, a block has 64.
const BLOCK_BYTES: u64 = 128;

/// Checks a JPEG against the limits for files with several scans.
pub(super) fn check(header: &JpegHeader<'_>, bytes: &[u8], op: &DecodeImage) -> Result<()> {
    if header.is_sequential() && header.scan_components == header.component_count {
        return Ok(()); // rows are decoded as they come
    }
    let (width, height) = (header.width, header.height);
    let coefficient_bytes = blocks(header, u8::MAX).saturating_mul(BLOCK_BYTES);
    if coefficient_bytes > op.max_coefficient_bytes {
        let found =
            format!("the JPEG of {width}×{height} px keeps {coefficient_bytes} bytes between its scans");
        return Err(over(found, "max_coefficient_bytes", op.max_coefficient_bytes));
    }
    let (mut scans, mut visited) = (1_u64, blocks(header, header.scan_mask));
    for mask in later_scans(header, bytes) {
        scans += 1;
        visited = visited.saturating_add(blocks(header, mask));
    }
    if scans > u64::from(op.max_scans) {
        return Err(over(format!("the JPEG has {scans} scans"), "max_scans", op.max_scans));
    }
    if visited > op.max_scan_blocks {
        let found = format!("the {scans} scans of the JPEG of {width}×{height} px visit {visited} blocks");
        return Err(over(found, "max_scan_blocks", op.max_scan_blocks));
    }
    Ok(())
}

/// The components of each scan but the first, a bit each. libjpeg-turbo refuses a scan that names none or unknown ones.
fn later_scans(header: &JpegHeader<'_>, bytes: &[u8]) -> impl Iterator<Item = u8> {
    header.segments(bytes).filter(|(marker, _)| *marker == SCAN).map(|(_, at)| {
        let body = bytes.get(at + 2..).unwrap_or_default();
        let (&count, rest) = body.split_first().unwrap_or((&0, &[]));
        let ids = rest.chunks_exact(2).take(count.into()).map(|pair| pair[0]);
        ids.fold(0, |mask, id| {
            let index = header.components().iter().position(|component| component.id == id);
            mask | index.map_or(0, |index| 1 << index)
        })
    })
}

/// The blocks that a scan of the components in `mask` visits: a component's own, or whole MCUs where there are several.
fn blocks(header: &JpegHeader<'_>, mask: u8) -> u64 {
    let (width, height) = (u64::from(header.width), u64::from(header.height));
    let (most_h, most_v) = header.max_sampling();
    let across =
        |side: u64, share: u8, most: u8| (side * u64::from(share)).div_ceil(u64::from(most) * BLOCK_SIDE);
    let components: Vec<&Component> = (0..)
        .zip(header.components())
        .filter(|(index, _)| mask >> index & 1 == 1)
        .map(|(_, one)| one)
        .collect();
    match components[..] {
        [only] => across(width, only.h, most_h) * across(height, only.v, most_v),
        ref several => {
            let mcus = across(width, 1, most_h) * across(height, 1, most_v);
            mcus * several.iter().map(|one| u64::from(one.h) * u64::from(one.v)).sum::<u64>()
        }
    }
}
