//! The header in front of a payload in a WebDataset tar, compared with the catalog whenever the payload is read.
//!
//! ```text
//! … │ header, 512 bytes │ payload │ header │ payload │ …      one read returns both
//! ```
//! The catalog states where payloads are. It may follow an index of the tar, of which only some headers were compared
//! (`index.rs`), and a store without versions cannot show that a tar was replaced by another one of equal size. So the
//! header must be intact, and its size and name must be those of the sample. If not, reading fails.
//!
//! The header of a long name may hold a shortened form, since an extended header has the name. Names are therefore compared if
//! key and name are shorter than [`PLAIN_NAME_BYTES`], and sizes below [`PLAIN_SIZE_MAX`]. A character that is not ASCII may
//! have a placeholder in the header, such as `?` (`alike`). Names that differ only in such characters are compared when an
//! index is used (`index_full.rs`).
//! Cost: 512 bytes a payload, which blocks read anyway as the gap between two payloads.

use crate::{Error, ErrorKind, ObjectRef};
use std::hash::Hasher;
use std::ops::Range;

pub(crate) const HEADER_BYTES: usize = 512;
/// The field of a name has 100 bytes; writers that shorten a name into it use nearly all of them.
pub(in crate::format) const PLAIN_NAME_BYTES: usize = 90;
/// Eleven octal digits; larger sizes may be in an extended header.
const PLAIN_SIZE_MAX: u64 = 1 << 33;

/// A payload as the catalog states it.
pub(crate) struct Stated<'a> {
    pub(crate) range: Range<u64>,
    /// The sample's key; `None` if the catalog has none.
    pub(crate) key: Option<&'a str>,
    /// The payload's column: its extension with `_` for dots, or `image`, `audio`.
    pub(crate) column: &'a str,
}

impl Stated<'_> {
    /// Compares the header in front of the payload with the catalog.
    pub(crate) fn check(&self, header: &[u8], tar: &ObjectRef) -> Result<(), Error> {
        self.compare(header).map_err(|found| {
            let (uri, key, column) = (&tar.uri, self.key.unwrap_or_default(), self.column);
            let bytes = self.range.end - self.range.start;
            Error::new(
                ErrorKind::Gone,
                format!(
                    "{uri}: the catalog states {column} of sample {key} with {bytes} bytes at {}; {found}. The tar was \
                     replaced, or its index (.idx in place of .tar, or {uri}.idx) belongs to another tar: write the index \
                     anew or remove it, and rebuild the catalog",
                    self.range.start
                ),
            )
        })
    }

    fn compare(&self, header: &[u8]) -> Result<(), String> {
        if header.len() != HEADER_BYTES {
            return Err("there is no room for a header".to_owned());
        }
        let is_intact = is_intact(header);
        let header = tar::Header::from_byte_slice(header);
        let Some(size) = header.entry_size().ok().filter(|_| is_intact) else {
            return Err("no member begins there".to_owned());
        };
        let name = header.path_bytes();
        let bytes = self.range.end - self.range.start;
        let has_size = size == bytes || bytes >= PLAIN_SIZE_MAX;
        if has_size && self.has_name(&name) {
            return Ok(());
        }
        Err(format!("member {} of {size} bytes begins there", String::from_utf8_lossy(&name)))
    }

    /// Whether a member of this name may be the payload.
    fn has_name(&self, name: &[u8]) -> bool {
        let Some(key) = self.key.filter(|key| key.len().max(name.len()) < PLAIN_NAME_BYTES) else {
            return true;
        };
        // A key has no dot after its last slash, and the extension begins there.
        let file = name.iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
        let Some(dot) = name[file..].iter().position(|&byte| byte == b'.').map(|at| at + file) else {
            return false;
        };
        let extension: Vec<u8> = name[dot + 1..]
            .iter()
            .map(|byte| if *byte == b'.' { b'_' } else { byte.to_ascii_lowercase() })
            .collect();
        alike(key, &name[..dot])
            && (matches!(self.column, "image" | "audio") || alike(self.column, &extension))
    }
}

/// Whether these bytes are the header of a member, by its checksum.
pub(super) fn is_intact(header: &[u8]) -> bool {
    header.len() == HEADER_BYTES && {
        let header = tar::Header::from_byte_slice(header);
        header.cksum().is_ok_and(|sum| sum == checksum(header.as_bytes()))
    }
}

/// Hashes the name, size and type in a header.
pub(super) fn digest(header: &[u8]) -> u64 {
    let mut hash = twox_hash::XxHash64::default();
    for field in [0..100, 124..136, 156..157, 345..500] {
        hash.write(header.get(field).unwrap_or_default());
    }
    hash.finish()
}

/// Whether a header may have `found` for the name `stated`. If `found` is UTF-8 beyond ASCII, names are compared whole.
/// Otherwise a character beyond ASCII may have another encoding or a placeholder, for each of its bytes or once: `?`
/// (Python, libarchive), `_`, or `%U20AC` (Apache Commons Compress).
fn alike(stated: &str, found: &[u8]) -> bool {
    let is_encoded =
        !found.is_ascii() && std::str::from_utf8(found).is_ok_and(|found| !found.contains('\u{fffd}'));
    if stated.is_ascii() || is_encoded {
        return stated.as_bytes() == found;
    }
    // The offsets in `found` up to which the characters so far may reach.
    let mut reached = vec![0];
    for c in stated.chars() {
        let mut next = Vec::new();
        for at in reached {
            if c.is_ascii() {
                next.extend((found.get(at) == Some(&(c as u8))).then_some(at + 1));
                continue;
            }
            let rest = &found[at..];
            let placeholders = rest.iter().take_while(|byte| !byte.is_ascii() || matches!(byte, b'?' | b'_'));
            next.extend((1..=placeholders.take(c.len_utf8()).count()).map(|length| at + length));
            let is_escaped = rest
                .get(..6)
                .is_some_and(|text| text.starts_with(b"%U") && text[2..].iter().all(u8::is_ascii_hexdigit));
            next.extend(is_escaped.then_some(at + 6));
        }
        next.sort_unstable();
        next.dedup();
        reached = next;
    }
    reached.contains(&found.len())
}

/// Returns the sum of a header's bytes, with those of the sum itself as blanks.
fn checksum(header: &[u8; HEADER_BYTES]) -> u32 {
    let byte = |(i, &byte): (usize, &u8)| if (148..156).contains(&i) { u32::from(b' ') } else { byte.into() };
    header.iter().enumerate().map(byte).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(name: &str, size: u64) -> Vec<u8> {
        header_of(name.as_bytes(), size)
    }

    fn header_of(name: &[u8], size: u64) -> Vec<u8> {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name); // unchanged, with a leading `./`
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    }

    fn compare(key: &str, column: &str, bytes: u64, header: &[u8]) -> Result<(), String> {
        Stated { range: 512..512 + bytes, key: Some(key), column }.compare(header)
    }

    #[test]
    fn the_header_of_the_payload_fits() {
        for (key, column, name) in [
            ("a/0", "image", "a/0.JPG"),
            ("a/0", "seg_png", "a/0.seg.PNG"),
            ("a/b/", "bin", "a/b/.bin"),
            ("./0", "bin", "./0.bin"),
        ] {
            compare(key, column, 700, &header(name, 700)).unwrap();
        }
    }

    #[test]
    fn other_headers_do_not_fit() {
        let right = header("a/0.seg.png", 700);
        compare("a/0", "seg_png", 700, &right).unwrap();
        let mut damaged = right.clone();
        damaged[5] ^= 1;
        for (found, why) in [
            (header("a/1.seg.png", 700), "a/1.seg.png"),
            (header("a/00.seg.png", 700), "a/00.seg.png"),
            (header("a/0.png", 700), "a/0.png"),
            (header("a/0.seg.png", 701), "701 bytes"),
            (damaged, "no member begins there"),
            (vec![0; HEADER_BYTES], "no member begins there"),
            (vec![0xff; HEADER_BYTES], "no member begins there"),
            (Vec::new(), "no room"),
        ] {
            let error = compare("a/0", "seg_png", 700, &found).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let tar = ObjectRef { uri: "s3://b/x.tar".into(), size: 1 << 20, etag: None };
        let stated = Stated { range: 512..1212, key: Some("a/0"), column: "seg_png" };
        let error = stated.check(&header("a/1.seg.png", 700), &tar).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Gone);
        assert!(error.message().contains("s3://b/x.tar.idx"), "{error}");
    }

    /// As GNU tar (raw bytes), Python and libarchive (`?`), and Commons Compress write them, the last three with the name in
    /// an extended header.
    #[test]
    fn names_beyond_ascii_are_compared() {
        for (key, column, name) in [
            ("d/é", "image", &b"d/\xc3\xa9.JPG"[..]),
            ("d/é", "image", b"d/?.jpg"),
            ("d/é", "image", b"d/??.jpg"),
            ("d/é", "image", b"d/\xe9.jpg"),
            ("d/é", "image", b"d/%U00E9.jpg"),
            ("größe?_ж", "seg_png", b"gr??e?_?.seg.png"),
            ("a/0", "fotó", b"a/0.fot?"),
            ("a/0", "fotó_1", b"a/0.fot\xc3\xb3.1"),
            ("a/0", "fotó", b"a/0.fot\xf3"),
        ] {
            compare(key, column, 700, &header_of(name, 700)).unwrap();
        }
        for (key, column, name) in [
            ("d/é", "image", &b"d/\xc3\xbc.jpg"[..]),
            ("d/é", "image", b"d/x.jpg"),
            ("d/é0", "image", b"d/?1.jpg"),
            ("d/é", "image", b"d/???.jpg"),
            ("d/é", "image", b"e/?.jpg"),
            ("d/é", "image", b"d/.jpg"),
            ("d/e", "image", b"d/\xc3\xa9.jpg"),
            ("d/e", "image", b"d/?.jpg"),
            ("a/0", "fotó", b"a/0.fotx"),
            ("a/0", "fotó", b"a/1.fot?"),
            ("a/0", "seg", b"a/0.s\xc3\xa9g"),
        ] {
            assert!(compare(key, column, 700, &header_of(name, 700)).is_err(), "{key} {column}: {name:?}");
        }
    }

    /// An extended header has the name or the size, so this one need not.
    #[test]
    fn shortened_headers_are_not_compared_by_what_they_lack() {
        compare(&"k".repeat(120), "image", 700, &header(&"k".repeat(99), 700)).unwrap();
        compare("d/é", "image", 700, &header("d/?.jpg", 700)).unwrap();
        compare("a/0", "bin", 9 << 30, &header("a/0.bin", 0)).unwrap();
        assert!(compare("a/0", "bin", 9 << 30, &header("a/1.bin", 0)).is_err());
        assert!(compare(&"k".repeat(120), "image", 700, &header(&"k".repeat(99), 0)).is_err());
    }
}
