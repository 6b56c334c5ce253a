//! Checks the codebooks of a Vorbis audio clip (Vorbis I, section 3.2.1) before symphonia reads them. symphonia assumes that
//! no codeword is longer than 32 bits and that a table's side is the root in f32, and panics otherwise. Only a forged audio
//! clip with right checksums can cause that.

use super::ogg_pages::{Page, pages};
use super::options::DecodeAudio;
use feedstock_base::{Error, Result};

const SETUP: &[u8; 7] = b"\x05vorbis";

/// Longest codeword, in bits.
const MAX_CODEWORD: u32 = 32;

/// The bytes of an entry: its length, its codeword, its number and its place in the table of codewords. Then those of each
/// number of its vector.
const ENTRY_BYTES: u64 = 1 + 4 + 4 + 8;
const VALUE_BYTES: u64 = 4;

/// As in symphonia: real codebooks have at most a few thousand entries of at most eight dimensions.
const MAX_ENTRIES: u32 = 128 << 10;
const MAX_DIMENSIONS: u32 = 32;

/// Checks the setup header of a stream, and its repetitions, which some encoders write. `bytes` has no other stream of
/// Vorbis.
pub(super) fn check_setup(op: &DecodeAudio, bytes: &[u8], serial: [u8; 4]) -> Result<()> {
    let damaged = || Error::bad_sample("the Vorbis audio clip's setup header is damaged or missing");
    // A packet's first bytes are never split between pages, so every setup header is found.
    let count = bytes.windows(SETUP.len()).filter(|seven| seven == SETUP).count();
    let packets = setup_packets(bytes, serial, count).ok_or_else(damaged)?;
    let mut unpacked = 0_u64;
    for packet in packets {
        let bytes =
            check_codebooks(&mut Bits { bytes: &packet[SETUP.len()..], at: 0 }).ok_or_else(damaged)?;
        unpacked = unpacked.saturating_add(bytes);
    }
    if unpacked > op.max_codebook_bytes {
        let found = format!("the codebooks of the Vorbis audio clip take {unpacked} bytes");
        return Err(op.over(found, "max_codebook_bytes", op.max_codebook_bytes));
    }
    Ok(())
}

/// Returns the first `count` setup headers, from pages without a gap. The first header is the third packet.
fn setup_packets(bytes: &[u8], serial: [u8; 4], count: usize) -> Option<Vec<Vec<u8>>> {
    let (mut packets, mut packet, mut found) = (0, Vec::new(), Vec::new());
    for (sequence, page) in (0..).zip(pages(bytes)) {
        let Page { body, lacing, .. } = page;
        let continued = page.flags & 1 != 0;
        if page.serial != serial
            || page.sequence != sequence
            || !page.is_intact()
            || continued == packet.is_empty()
        {
            return None;
        }
        let mut at = 0;
        for length in lacing {
            let length = usize::from(*length);
            packet.extend_from_slice(body.get(at..at + length)?);
            at += length;
            if length < 255 {
                packets += 1;
                if packet.starts_with(SETUP) {
                    found.push(std::mem::take(&mut packet));
                }
                if packets == 3 && found.len() != 1 {
                    return None;
                }
                if packets >= 3 && found.len() == count {
                    return Some(found);
                }
                packet.clear();
            }
        }
    }
    None
}

/// A reader of bits, from the lowest bit of the first byte up.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    fn read(&mut self, count: u32) -> Option<u32> {
        (0..count).try_fold(0, |value, bit| {
            let byte = *self.bytes.get(self.at / 8)?;
            let value = value | u32::from(byte >> (self.at % 8) & 1) << bit;
            self.at += 1;
            Some(value)
        })
    }

    fn skip(&mut self, count: u64) -> Option<()> {
        self.at = self.at.checked_add(usize::try_from(count).ok()?)?;
        (self.at <= self.bytes.len() * 8).then_some(())
    }
}

/// Returns the bytes that all codebooks take once unpacked.
fn check_codebooks(bits: &mut Bits<'_>) -> Option<u64> {
    let count = bits.read(8)? + 1;
    (0..count).try_fold(0_u64, |bytes, _| Some(bytes + check_codebook(bits)?))
}

fn check_codebook(bits: &mut Bits<'_>) -> Option<u64> {
    let (sync, dimensions, entries) = (bits.read(24)?, bits.read(16)?, bits.read(24)?);
    if sync != 0x56_4342 || !(1..=MAX_DIMENSIONS).contains(&dimensions) || entries > MAX_ENTRIES {
        return None;
    }
    let ordered = bits.read(1)? == 1;
    if ordered {
        let (mut entry, mut length) = (0, bits.read(5)? + 1);
        while entry < entries {
            let left = entries - entry;
            let number = bits.read(32 - left.leading_zeros())?;
            if number > left || number > 0 && length > MAX_CODEWORD {
                return None;
            }
            (entry, length) = (entry + number, length + 1);
        }
    } else {
        let sparse = bits.read(1)? == 1;
        for _ in 0..entries {
            if !sparse || bits.read(1)? == 1 {
                bits.skip(5)?;
            }
        }
    }
    let words = u64::from(entries) * ENTRY_BYTES;
    match bits.read(4)? {
        0 => Some(words),
        lookup @ 1..=2 => {
            bits.skip(64)?;
            let (value_bits, _) = (bits.read(4)? + 1, bits.read(1)?);
            let values = if lookup == 1 { side(entries, dimensions)? } else { entries * dimensions };
            bits.skip(u64::from(values) * u64::from(value_bits))?;
            Some(words + u64::from(entries) * u64::from(dimensions) * VALUE_BYTES)
        }
        _ => None,
    }
}

/// Returns the largest number whose power does not exceed the entries, or `None` if the root in f32 is another number.
fn side(entries: u32, dimensions: u32) -> Option<u32> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as symphonia computes it")]
    let side = (entries as f32).powf(1.0 / dimensions as f32).floor() as u32;
    let fits =
        |side: u32| u64::from(side).checked_pow(dimensions).is_some_and(|power| power <= entries.into());
    // A power of more than 32 bits would not be detected.
    let wraps = u64::from(side + 1).checked_pow(dimensions).is_none_or(|power| power > u32::MAX.into());
    (fits(side) && !fits(side + 1) && !wraps).then_some(side)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_whole_roots() {
        assert_eq!(
            (side(81, 4), side(80, 4), side(6561, 8), side(1, 1)),
            (Some(3), Some(2), Some(3), Some(1))
        );
        // 2 to the power of 32 is 0 to symphonia, and no more than one entry.
        assert_eq!(side(1, 32), None);
    }

    #[test]
    fn bits_come_from_below() {
        let mut bits = Bits { bytes: &[0b1010_0110, 0b1], at: 0 };
        assert_eq!((bits.read(3), bits.read(4), bits.read(2)), (Some(6), Some(0b0100), Some(0b11)));
        assert_eq!((bits.read(8), bits.skip(8)), (None, None));
    }
}
