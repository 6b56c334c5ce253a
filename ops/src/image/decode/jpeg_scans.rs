//! What the scans of a JPEG cost, found by walking the markers before anything is decoded.
//!
//! A file whose coefficients come in several scans is decoded whole, one pass over its components for each scan, and all its
//! coefficients are kept in memory. A few bytes are enough for a scan that visits every block and changes none.

use super::jpeg_header::{Component, JpegHeader};
use super::options::DecodeImage;
use crate::limits::over;
use feedstock_base::Result;

/// A start of scan, SOS.
const SCAN: u8 = 0xDA;

/// The side of a block in pixels.
const BLOCK_SIDE: u64 = 8;

/// A coefficient is 2 bytes, a block has 64.
const BLOCK_BYTES: u64 = 128;

/// Bytes that are kept between the scans; 0 where there is one.
pub(super) fn kept_bytes(header: &JpegHeader<'_>) -> u64 {
    match header.is_sequential() && header.scan_components == header.component_count {
        true => 0,
        false => blocks(header, u8::MAX).saturating_mul(BLOCK_BYTES),
    }
}

/// Checks a JPEG against the limits for files with several scans.
pub(super) fn check(header: &JpegHeader<'_>, bytes: &[u8], op: &DecodeImage) -> Result<()> {
    if header.is_sequential() && header.scan_components == header.component_count {
        return Ok(()); // rows are decoded as they come
    }
    let (width, height) = (header.width, header.height);
    let coefficient_bytes = kept_bytes(header);
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
        (0..).zip(ids).fold(0, |mask, (place, id)| {
            mask | header.component_in_scan(place, id).map_or(0, |index| 1 << index)
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

#[cfg(test)]
mod tests {
    use std::ffi::c_int;

    use rand_core::{Rng as _, SeedableRng as _};
    use rand_xoshiro::Xoshiro256PlusPlus;
    use turbojpeg_sys as tj;

    use super::super::super::turbo::Handle;
    use super::*;

    fn segment(out: &mut Vec<u8>, marker: u8, body: &[u8]) {
        out.extend([0xFF, marker]);
        out.extend((body.len() as u16 + 2).to_be_bytes());
        out.extend(body);
    }

    /// A progressive JPEG of 32×16 px up to its first scan's data; the components have these ids, the first is 2×2.
    fn start(ids: [u8; 3], scan: &[u8]) -> Vec<u8> {
        let mut out = vec![0xFF, 0xD8];
        segment(&mut out, 0xDB, &[&[0][..], &[1; 64]].concat());
        let [a, b, c] = ids;
        segment(&mut out, 0xC2, &[8, 0, 16, 0, 32, 3, a, 0x22, 0, b, 0x11, 0, c, 0x11, 0]);
        for class in [0x00, 0x10] {
            segment(&mut out, 0xC4, &[&[class, 1][..], &[0; 16]].concat());
        }
        out.extend(scan_of(scan));
        out
    }

    /// A first scan of the DC coefficients.
    fn scan_of(ids: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let components: Vec<u8> = ids.iter().flat_map(|id| [*id, 0]).collect();
        segment(&mut out, SCAN, &[&[ids.len() as u8][..], &components, &[0, 0, 0]].concat());
        out
    }

    fn counted(bytes: &[u8]) -> u32 {
        let header = JpegHeader::parse(bytes).unwrap();
        1 + later_scans(&header, bytes).count() as u32
    }

    /// The scans after which libjpeg-turbo ends, and whether it ends well.
    fn libjpegs(bytes: &[u8]) -> (u32, bool) {
        let mut pixels = [0; 32 * 16 * 3];
        for limit in 1.. {
            let handle = Handle::new(tj::TJINIT_TJINIT_DECOMPRESS).unwrap();
            handle.set(tj::TJPARAM_TJPARAM_SCANLIMIT, limit).unwrap();
            // SAFETY: pointer and length are one slice's; the image that every caller makes has 32×16 px.
            let status = unsafe {
                let length = bytes.len() as tj::size_t;
                tj::tj3DecompressHeader(handle.raw(), bytes.as_ptr(), length);
                let format = tj::TJPF_TJPF_RGB as c_int;
                tj::tj3Decompress8(handle.raw(), bytes.as_ptr(), length, pixels.as_mut_ptr(), 96, format)
            };
            let text = handle.check(status).err().unwrap_or_default();
            if !text.contains("scans") {
                // The code after an error is that of a warning that came before, the text is the error's.
                const WARNINGS: [&str; 3] =
                    ["Corrupt JPEG data", "Inconsistent progression", "Premature end"];
                let is_warning = WARNINGS.iter().any(|warning| text.starts_with(warning));
                return (limit.unsigned_abs(), status == 0 || is_warning);
            }
        }
        unreachable!("the loop has no end")
    }

    #[test]
    fn scans_hidden_behind_a_comment_are_counted() {
        let mut bytes = start([1, 2, 3], &[1, 2, 3]);
        for _ in 0..5 {
            // The comment's last byte and the stray one after it would make a marker that hides the scan.
            segment(&mut bytes, 0xFE, &[0, 0xFF]);
            bytes.push(0xFE);
            bytes.extend(scan_of(&[1]));
        }
        bytes.extend([0xFF, 0xD9]);
        assert_eq!(libjpegs(&bytes), (6, true));
        assert_eq!(counted(&bytes), 6);
    }

    /// Of what may follow a scan in any order: markers, stray bytes, segments that hold and end in parts of markers.
    #[test]
    fn as_many_scans_are_counted_as_libjpeg_reads() {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
        let mut below = |most: u64| (random.next_u64() % most) as usize;
        let (mut ended_well, mut most) = (0, 0);
        for round in 0..3_000 {
            let mut bytes = start([1, 2, 3], &[1, 2, 3]);
            for _ in 0..below(12) {
                const PARTS: [u8; 10] = [0xFF, 0xFF, 0xFE, 0xDA, 0x00, 0xD9, 0xD3, 0x01, 0x08, 0xC4];
                let body: Vec<u8> = (0..below(6)).map(|_| PARTS[below(10)]).collect();
                match below(8) {
                    0..=2 => bytes.extend(scan_of(&[1 + below(3) as u8])),
                    3 | 4 => segment(&mut bytes, [0xFE, 0xE1, 0xDC][below(3)], &body),
                    5 => segment(&mut bytes, 0xDD, &[0, below(3) as u8]),
                    6 => bytes.extend([0xFF, 0xD0 + below(8) as u8]),
                    _ => bytes.extend(body.iter().filter(|byte| !matches!(byte, 0xD9 | 0x01 | 0x08))),
                }
            }
            bytes.extend([0xFF, 0xD9]);
            let ((theirs, is_whole), ours) = (libjpegs(&bytes), counted(&bytes));
            // Where libjpeg gives up, it does so before the scans that may follow.
            assert!(ours == theirs || !is_whole && ours > theirs, "{round}: {ours}, {theirs}: {bytes:02x?}");
            ended_well += u32::from(is_whole);
            most = most.max(theirs);
        }
        assert!(ended_well > 500 && most > 5, "{ended_well} ended well, one with {most} scans");
    }

    /// Blocks of a component on its own: 4 × 2, 2 × 1, 2 × 1; of all, and of the colours: 2 MCUs.
    #[test]
    fn components_of_equal_ids_are_told_apart_as_libjpeg_does() {
        let cases: [([u8; 3], &[u8], u64); 8] = [
            ([1, 2, 3], &[1, 2, 3], 12),
            ([1, 1, 1], &[1, 1, 1], 12),
            ([1, 1, 1], &[1, 1], 10),
            ([1, 1, 1], &[1], 8),
            ([1, 2, 3], &[2], 2),
            ([1, 2, 2], &[2], 2),
            // The second place takes no component in front of it.
            ([1, 2, 1], &[2, 1], 4),
            ([1, 2, 3], &[2, 3], 4),
        ];
        for (ids, scan, expected) in cases {
            let bytes = [start(ids, scan), scan_of(scan), vec![0xFF, 0xD9]].concat();
            assert_eq!(libjpegs(&bytes), (2, true), "{ids:?}, {scan:?}");
            let header = JpegHeader::parse(&bytes).unwrap();
            let later: Vec<u8> = later_scans(&header, &bytes).collect();
            assert_eq!(later, [header.scan_mask], "{ids:?}, {scan:?}");
            assert_eq!(blocks(&header, header.scan_mask), expected, "{ids:?}, {scan:?}");
            // What libjpeg spends shows in the limit: just enough, and too little.
            let limit = |blocks| check(&header, &bytes, &DecodeImage::new().max_scan_blocks(blocks));
            assert!(limit(2 * expected).is_ok() && limit(2 * expected - 1).is_err());
        }
        for (ids, scan) in [([1, 2, 3], &[2_u8, 1][..]), ([1, 2, 3], &[4]), ([1, 1, 1], &[1, 1, 1, 1])] {
            let bytes = [start(ids, scan), vec![0xFF, 0xD9]].concat();
            assert!(!libjpegs(&bytes).1, "{ids:?}, {scan:?}");
        }
    }
}
