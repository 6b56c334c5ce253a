//! Pages of Ogg (RFC 3533): their checksums, numbers and streams.

use symphonia::core::checksum::Crc32;
use symphonia::core::io::Monitor;

/// A page, which may be cut at its end.
pub(super) struct Page<'a> {
    pub(super) flags: u8,
    pub(super) granule: u64,
    pub(super) serial: [u8; 4],
    pub(super) sequence: u32,
    pub(super) lacing: &'a [u8],
    pub(super) body: &'a [u8],
    /// Header, lacing and body.
    pub(super) whole: &'a [u8],
    /// The length that it states.
    pub(super) bytes: usize,
}

impl Page<'_> {
    /// Whether it has the length that it states, and its checksum is right.
    pub(super) fn is_intact(&self) -> bool {
        let mut crc = Crc32::new(0);
        // The checksum covers the page, with the checksum as 0.
        crc.process_buf_bytes(&self.whole[..22]);
        crc.process_buf_bytes(&[0; 4]);
        crc.process_buf_bytes(&self.whole[26..]);
        self.whole.len() == self.bytes && self.whole[22..26] == crc.crc().to_le_bytes()
    }
}

/// Yields the pages that follow each other without a gap.
pub(super) fn pages(bytes: &[u8]) -> impl Iterator<Item = Page<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let page = page(rest)?;
        rest = rest.get(page.bytes..).unwrap_or_default();
        Some(page)
    })
}

/// Flags of a stream's first and last page.
const FIRST_PAGE: u8 = 2;
pub(super) const LAST_PAGE: u8 = 4;

pub(super) const PAGE_MARK: &[u8; 4] = b"OggS";

/// Returns the first of the chained streams in `bytes`: up to the first page that begins another one.
pub(in crate::audio) fn first_stream(bytes: &[u8]) -> &[u8] {
    let (mut at, mut after_headers) = (0, false);
    while let Some(rest) = bytes.get(at..) {
        let Some(page) = page(rest) else {
            // Damage: the next page is searched for.
            match rest.get(1..).and_then(|rest| rest.windows(4).position(|four| four == PAGE_MARK)) {
                Some(next) => at += 1 + next,
                None => break,
            }
            continue;
        };
        let begins = page.flags & FIRST_PAGE != 0;
        if begins && after_headers && page.is_intact() {
            return &bytes[..at];
        }
        after_headers |= !begins;
        at += page.bytes;
    }
    bytes
}

/// Returns the steps that it takes to find the pages of `stream`, beyond one pass over it. Each place that looks like a page
/// is read and its checksum computed. If that is wrong, the search continues directly after the mark.
pub(super) fn search_steps(stream: &[u8]) -> u64 {
    let marks = memchr::memmem::find_iter(stream, PAGE_MARK);
    let bytes: usize = marks.map(|at| page(&stream[at..]).map_or(0, |page| page.whole.len())).sum();
    bytes.saturating_sub(stream.len()) as u64
}

/// Whether `stream` consists of intact pages of one stream from its first to its last, without a missing number.
pub(super) fn is_complete(stream: &[u8], serial: [u8; 4]) -> bool {
    let (mut at, mut next) = (0, 0);
    for page in pages(stream) {
        if page.serial != serial || page.sequence != next || !page.is_intact() {
            return false;
        }
        (at, next) = (at + page.bytes, next.wrapping_add(1));
    }
    at == stream.len()
}

/// Returns the page at the start of `bytes`, whole or cut.
pub(super) fn page(bytes: &[u8]) -> Option<Page<'_>> {
    if !bytes.starts_with(PAGE_MARK) {
        return None;
    }
    let header = bytes.first_chunk::<27>()?;
    let lacing = bytes.get(27..27 + usize::from(header[26]))?;
    let start = 27 + lacing.len();
    let length: usize = lacing.iter().map(|bytes| usize::from(*bytes)).sum();
    Some(Page {
        flags: header[5],
        granule: u64::from_le_bytes(*header[6..].first_chunk()?),
        serial: *header[14..].first_chunk()?,
        sequence: u32::from_le_bytes(*header[18..].first_chunk()?),
        lacing,
        body: bytes.get(start..(start + length).min(bytes.len()))?,
        whole: &bytes[..(start + length).min(bytes.len())],
        bytes: start + length,
    })
}
