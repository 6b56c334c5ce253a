//! Reads MATLAB 5 files as far as the ILSVRC devkit's `meta.mat` needs: the struct array `synsets`.
//!
//! Follows "MAT-File Format" (MathWorks, level 5): little-endian elements of (type, length, data), some of them
//! zlib-compressed. Every length is checked against the bytes that exist, and the inflated size is limited.

use flate2::read::ZlibDecoder;
use std::io::Read;

/// Limit on inflated bytes; the devkit's file inflates to about 2 MB.
const MAX_INFLATED_BYTES: u64 = 64 << 20;
const HEADER_BYTES: usize = 128;

const INT8: u32 = 1;
const UINT8: u32 = 2;
const INT16: u32 = 3;
const UINT16: u32 = 4;
const INT32: u32 = 5;
const UINT32: u32 = 6;
const DOUBLE: u32 = 9;
const INT64: u32 = 12;
const UINT64: u32 = 13;
const MATRIX: u32 = 14;
const COMPRESSED: u32 = 15;
const UTF8: u32 = 16;

const CLASS_STRUCT: u32 = 2;

/// Returns `(ILSVRC2012_ID, WNID)` of every synset.
pub(crate) fn synsets(file: &[u8]) -> Result<Vec<(i64, String)>, String> {
    if file.len() < HEADER_BYTES || &file[126..128] != b"IM" {
        return Err("not a little-endian MATLAB 5 file".into());
    }
    let mut rest = &file[HEADER_BYTES..];
    while !rest.is_empty() {
        let (kind, data, after) = element(rest).ok_or("an element is cut off")?;
        rest = after;
        let inflated;
        let (kind, data) = if kind == COMPRESSED {
            inflated = inflate(data)?;
            let (kind, data, _) = element(&inflated).ok_or("a compressed element is cut off")?;
            (kind, data)
        } else {
            (kind, data)
        };
        if kind == MATRIX
            && let Some(found) = struct_array(data).ok_or("a matrix is malformed")?
        {
            return Ok(found);
        }
    }
    Err("it holds no struct array named synsets".into())
}

fn inflate(data: &[u8]) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    let read = ZlibDecoder::new(data).take(MAX_INFLATED_BYTES + 1).read_to_end(&mut out);
    read.map_err(|e| format!("a compressed element cannot be inflated: {e}"))?;
    if out.len() as u64 > MAX_INFLATED_BYTES {
        return Err(format!("a compressed element inflates to more than {MAX_INFLATED_BYTES} bytes"));
    }
    Ok(out)
}

/// Returns type and data of the first element, and what follows it.
fn element(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let tag = u32_at(bytes, 0)?;
    if tag >> 16 != 0 {
        // A small element: length and type share a word, and the data is in the next one.
        let length = (tag >> 16) as usize;
        return (length <= 4).then_some((tag & 0xffff, bytes.get(4..4 + length)?, bytes.get(8..)?));
    }
    let length = u32_at(bytes, 4)? as usize;
    let data = bytes.get(8..)?.get(..length)?;
    let padded = if tag == COMPRESSED { length } else { length.checked_next_multiple_of(8)? };
    let after = bytes.get(8..)?;
    Some((tag, data, after.get(padded.min(after.len())..)?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Returns the synsets, if this is their matrix; the inner `None` for another matrix.
fn struct_array(matrix: &[u8]) -> Option<Option<Vec<(i64, String)>>> {
    let (_, flags, rest) = element(matrix)?;
    let class = u32_at(flags, 0)? & 0xff;
    let (_, dimensions, rest) = element(rest)?;
    let (_, name, rest) = element(rest)?;
    if class != CLASS_STRUCT || name != b"synsets" {
        return Some(None);
    }
    let mut count = 1usize;
    for at in (0..dimensions.len()).step_by(4) {
        count = count.checked_mul(u32_at(dimensions, at)? as usize)?;
    }
    let (_, width, rest) = element(rest)?;
    let width = u32_at(width, 0)? as usize;
    let (_, names, mut rest) = element(rest)?;
    if width == 0 {
        return None;
    }
    let names: Vec<&[u8]> =
        names.chunks(width).map(|n| n.split(|b| *b == 0).next().unwrap_or_default()).collect();
    let id_at = names.iter().position(|n| *n == b"ILSVRC2012_ID")?;
    let wnid_at = names.iter().position(|n| *n == b"WNID")?;
    let mut found = Vec::new();
    for _ in 0..count {
        let (mut id, mut wnid) = (None, None);
        for field in 0..names.len() {
            let (kind, data, after) = element(rest)?;
            rest = after;
            if kind != MATRIX {
                return None;
            }
            if field == id_at {
                id = number(data);
            } else if field == wnid_at {
                wnid = text(data);
            }
        }
        found.push((id?, wnid?));
    }
    Some(Some(found))
}

/// Returns the data element of a plain matrix, which follows its flags, dimensions and name.
fn data_of(matrix: &[u8]) -> Option<(u32, &[u8])> {
    let (_, _, rest) = element(matrix)?;
    let (_, _, rest) = element(rest)?;
    let (_, _, rest) = element(rest)?;
    let (kind, data, _) = element(rest)?;
    Some((kind, data))
}

fn number(matrix: &[u8]) -> Option<i64> {
    let (kind, data) = data_of(matrix)?;
    match kind {
        INT8 => Some(i64::from(i8::from_le_bytes([*data.first()?]))),
        UINT8 => Some(i64::from(*data.first()?)),
        INT16 => Some(i64::from(i16::from_le_bytes(data.get(..2)?.try_into().ok()?))),
        UINT16 => Some(i64::from(u16::from_le_bytes(data.get(..2)?.try_into().ok()?))),
        INT32 => Some(i64::from(i32::from_le_bytes(data.get(..4)?.try_into().ok()?))),
        UINT32 => Some(i64::from(u32_at(data, 0)?)),
        INT64 => Some(i64::from_le_bytes(data.get(..8)?.try_into().ok()?)),
        UINT64 => i64::try_from(u64::from_le_bytes(data.get(..8)?.try_into().ok()?)).ok(),
        DOUBLE => {
            let value = f64::from_le_bytes(data.get(..8)?.try_into().ok()?);
            #[expect(clippy::cast_possible_truncation, reason = "checked to be a small whole number")]
            (value.fract() == 0.0 && value.abs() < 1e9).then_some(value as i64)
        }
        _ => None,
    }
}

fn text(matrix: &[u8]) -> Option<String> {
    let (kind, data) = data_of(matrix)?;
    match kind {
        INT8 | UINT8 | UTF8 => String::from_utf8(data.to_vec()).ok(),
        UINT16 => {
            let units: Vec<u16> = data.chunks_exact(2).map(|c| u16::from_le_bytes([c[0], c[1]])).collect();
            String::from_utf16(&units).ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::ZlibEncoder};
    use std::io::Write;

    fn put(kind: u32, data: &[u8]) -> Vec<u8> {
        let length = u32::try_from(data.len()).unwrap();
        let mut out = [kind.to_le_bytes(), length.to_le_bytes()].concat();
        out.extend_from_slice(data);
        out.resize(out.len().next_multiple_of(8), 0);
        out
    }

    fn matrix(class: u32, dimensions: &[u32], name: &[u8], rest: &[Vec<u8>]) -> Vec<u8> {
        let flags = [class.to_le_bytes(), [0; 4]].concat();
        let dimensions: Vec<u8> = dimensions.iter().flat_map(|d| d.to_le_bytes()).collect();
        let mut body = [put(UINT32, &flags), put(INT32, &dimensions), put(INT8, name)].concat();
        rest.iter().for_each(|r| body.extend_from_slice(r));
        put(MATRIX, &body)
    }

    fn devkit(compressed: bool) -> Vec<u8> {
        let mut elements = Vec::new();
        for (id, wnid) in [(1u16, "n02119789"), (1000, "n15075141"), (1001, "n00001740")] {
            let wide: Vec<u8> = wnid.encode_utf16().flat_map(u16::to_le_bytes).collect();
            elements.push(matrix(6, &[1, 1], b"", &[put(UINT16, &id.to_le_bytes())]));
            elements.push(matrix(4, &[1, 9], b"", &[put(UINT16, &wide)]));
        }
        let mut names = vec![0; 64];
        names[..13].copy_from_slice(b"ILSVRC2012_ID");
        names[32..36].copy_from_slice(b"WNID");
        // the field name length is a small element: length and type in one word
        let width = [INT32 | 4 << 16, 32].map(u32::to_le_bytes).concat();
        let rest = [vec![width, put(INT8, &names)], elements].concat();
        let synsets = matrix(CLASS_STRUCT, &[3, 1], b"synsets", &rest);
        let mut file = vec![b' '; HEADER_BYTES];
        file[124..128].copy_from_slice(b"\x00\x01IM");
        if compressed {
            let mut zip = ZlibEncoder::new(Vec::new(), Compression::default());
            zip.write_all(&synsets).unwrap();
            let zipped = zip.finish().unwrap();
            file.extend_from_slice(&COMPRESSED.to_le_bytes());
            file.extend_from_slice(&u32::try_from(zipped.len()).unwrap().to_le_bytes());
            file.extend_from_slice(&zipped);
        } else {
            file.extend_from_slice(&synsets);
        }
        file
    }

    #[test]
    fn ids_and_wnids_are_found() {
        let expected = [(1, "n02119789"), (1000, "n15075141"), (1001, "n00001740")];
        for compressed in [false, true] {
            let found = synsets(&devkit(compressed)).unwrap();
            assert_eq!(found, expected.map(|(id, wnid)| (id, wnid.to_owned())));
        }
    }

    #[test]
    fn damage_is_an_error_never_a_panic() {
        for compressed in [false, true] {
            let whole = devkit(compressed);
            for cut in 0..whole.len() {
                assert!(synsets(&whole[..cut]).is_err(), "cut at {cut}");
            }
            for at in HEADER_BYTES..whole.len() {
                let mut bent = whole.clone();
                bent[at] ^= 0xff;
                let _ = synsets(&bent); // any answer, but an answer
            }
        }
    }
}
