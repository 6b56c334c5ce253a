//! PNGs that are not as their specification wants, but that Pillow decodes: they are rebuilt of what it reads.
//!
//! Pillow checks the checksums of chunks before the image data, and the zlib stream's own. It does not check those of the
//! image data, needs no IEND, and ignores what it does not know: critical chunks, frames of an animation after the first.

use super::super::geometry::Size;

const SIGNATURE_BYTES: usize = 8;
const HEADER_BYTES: usize = 13;
/// Length, name and checksum.
const CHUNK_FRAME_BYTES: usize = 12;
const MAX_PALETTE_BYTES: usize = 768;
const INDEXED: u8 = 3;

/// A chunk, perhaps cut off by the end of the file.
struct Chunk<'a> {
    name: [u8; 4],
    content: &'a [u8],
    is_whole: bool,
    is_intact: bool,
}

/// The chunks up to the end of the file, or up to a name that cannot be one.
fn chunks(bytes: &[u8]) -> impl Iterator<Item = Chunk<'_>> {
    let mut rest = bytes.get(SIGNATURE_BYTES..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (length, after) = rest.split_first_chunk::<4>()?;
        let (name, after) = after.split_first_chunk::<4>()?;
        if !name.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'_') {
            return None;
        }
        let length = u32::from_be_bytes(*length) as usize;
        let content = &after[..length.min(after.len())];
        let checksum = after.get(length..).and_then(|rest| rest.first_chunk::<4>());
        let is_intact = checksum.is_some_and(|checksum| {
            let mut crc = crc32fast::Hasher::new();
            crc.update(name);
            crc.update(content);
            crc.finalize().to_be_bytes() == *checksum
        });
        rest = after.get(length.saturating_add(4)..).unwrap_or_default();
        Some(Chunk { name: *name, content, is_whole: content.len() == length, is_intact })
    })
}

/// The names and lengths of the chunks, as the file states them. A length may be more than is left of the file.
pub(super) fn chunk_lengths(bytes: &[u8]) -> impl Iterator<Item = ([u8; 4], usize)> {
    let mut at = SIGNATURE_BYTES;
    std::iter::from_fn(move || {
        let (length, rest) = bytes.get(at..)?.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length) as usize;
        at = at.saturating_add(length.saturating_add(CHUNK_FRAME_BYTES));
        Some((*rest.first_chunk::<4>()?, length))
    })
}

/// Whether the palette has a part of an entry, at which the `png` crate (0.18.1) panics.
pub(super) fn has_partial_palette_entry(bytes: &[u8]) -> bool {
    chunk_lengths(bytes)
        .take_while(|(name, _)| name != b"IDAT")
        .any(|(name, length)| name == *b"PLTE" && !length.is_multiple_of(3))
}

/// A PNG of what Pillow reads of `bytes`: header, palette and image data, with checksums of 0. None where Pillow does not
/// open the file, or finds it cut off after the image data.
pub(super) fn rebuilt(bytes: &[u8], size: Size) -> Option<Vec<u8>> {
    let (mut header, mut palette, mut data): (Option<[u8; HEADER_BYTES]>, Vec<u8>, Vec<u8>) =
        Default::default();
    let mut chunks = chunks(bytes).peekable();
    while let Some(chunk) = chunks.next_if(|chunk| chunk.name != *b"IDAT") {
        match &chunk.name {
            _ if !chunk.is_intact => return None,
            b"IHDR" => header = Some(*chunk.content.first_chunk()?),
            b"PLTE" => palette = chunk.content.to_vec(),
            _ => {}
        }
    }
    while let Some(chunk) = chunks.next_if(|chunk| chunk.name == *b"IDAT") {
        data.extend_from_slice(chunk.content);
    }
    if chunks.take_while(|chunk| chunk.name != *b"IEND").any(|chunk| !chunk.is_whole) {
        return None;
    }
    let [w3, w2, w1, w0, h3, h2, h1, h0, _, color, compression, _, interlace] = header.as_mut()?;
    let stored = Size {
        height: u32::from_be_bytes([*h3, *h2, *h1, *h0]),
        width: u32::from_be_bytes([*w3, *w2, *w1, *w0]),
    };
    if stored != size || palette.len() > MAX_PALETTE_BYTES {
        return None;
    }
    *compression = 0;
    *interlace = (*interlace).min(1);
    let is_indexed = *color == INDEXED;
    let mut png = bytes.get(..SIGNATURE_BYTES)?.to_vec();
    push(&mut png, *b"IHDR", &header?)?;
    if is_indexed {
        // A part of an entry does not count, and what is missing is black.
        palette.truncate(palette.len() / 3 * 3);
        palette.resize(palette.len().max(3), 0);
        push(&mut png, *b"PLTE", &palette)?;
    }
    push(&mut png, *b"IDAT", &data)?;
    push(&mut png, *b"IEND", &[])?;
    Some(png)
}

fn push(png: &mut Vec<u8>, name: [u8; 4], content: &[u8]) -> Option<()> {
    png.extend_from_slice(&u32::try_from(content.len()).ok()?.to_be_bytes());
    png.extend_from_slice(&name);
    png.extend_from_slice(content);
    png.extend_from_slice(&[0; 4]);
    Some(())
}
