//! The lines of a granule: their Huffman codes, several bits per look-up, and x to the power of 4/3.

use std::sync::LazyLock;

use super::bits::Bits;
use super::side_info::{Channel, LINES};
use super::tables::{BIG_VALUES, Code, QUADRUPLES};

/// Bits of a table's first look-up. Most words are shorter, and 32 tables of 2 KiB stay in the second-level cache.
const FIRST_BITS: u32 = 9;

/// The largest value: 15 and an escape of 13 bits.
const MAX_VALUE: usize = 15 + (1 << 13) - 1;

/// Marks an entry that names a second table.
const LINK: u32 = 1 << 31;

/// A code's words by their bits. An entry is `x << 12 | y << 8 | length`, or [`LINK`] with the place of a second table and
/// its bits.
struct Table {
    entries: Vec<u32>,
    escape_bits: u32,
}

/// The tables from which lines are made.
struct Tables {
    /// Empty if there is no such code.
    pairs: Vec<Table>,
    quadruples: Vec<Table>,
    /// x to the power of 4/3.
    powers: Vec<f32>,
}

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    #[expect(clippy::cast_possible_truncation, reason = "to single precision, once")]
    let power = |x: usize| (x as f64 * libm::cbrt(x as f64)) as f32;
    Tables {
        pairs: BIG_VALUES.iter().map(|&(code, escape_bits)| Table::new(code, escape_bits)).collect(),
        quadruples: QUADRUPLES.iter().map(|code| Table::new(code, 0)).collect(),
        powers: (0..=MAX_VALUE).map(power).collect(),
    }
});

impl Table {
    fn new(code: &Code, escape_bits: u32) -> Self {
        if code.is_empty() {
            return Self { entries: Vec::new(), escape_bits };
        }
        let mut entries = vec![0; 1 << FIRST_BITS];
        // The words' places among all numbers of 32 bits, which are adjacent.
        let mut place = 0_u64;
        let words = code.iter().map(|word| {
            let length = u32::from(word >> 8);
            let first = place;
            place += 1 << (32 - length);
            (first, length, u32::from(word & 0xFF) << 8 | length)
        });
        let words: Vec<_> = words.collect();
        for same_start in words.chunk_by(|a, b| a.0 >> (32 - FIRST_BITS) == b.0 >> (32 - FIRST_BITS)) {
            let start = (same_start[0].0 >> (32 - FIRST_BITS)) as usize;
            let longest = same_start.iter().map(|word| word.1).max().unwrap_or(0);
            if longest <= FIRST_BITS {
                for &(first, length, entry) in same_start {
                    let at = (first >> (32 - FIRST_BITS)) as usize;
                    entries[at..at + (1 << (FIRST_BITS - length))].fill(entry);
                }
                continue;
            }
            let bits = longest - FIRST_BITS;
            let second = entries.len();
            #[expect(clippy::cast_possible_truncation, reason = "a few thousand entries")]
            let link = LINK | (second as u32) << 8 | bits;
            entries[start] = link;
            for &(_, length, entry) in same_start {
                entries.extend(std::iter::repeat_n(entry, 1 << (longest - length)));
            }
        }
        Self { entries, escape_bits }
    }

    /// Returns the word at the start of `bits`.
    #[expect(clippy::cast_possible_truncation, reason = "at most 10 bits")]
    #[inline(always)]
    fn word(entries: &[u32], bits: u64) -> u32 {
        let entry = entries[(bits >> (64 - FIRST_BITS)) as usize];
        if entry & LINK == 0 {
            return entry;
        }
        let rest = bits << FIRST_BITS >> (64 - (entry & 0xFF));
        entries[(entry >> 8 & 0x7F_FFFF) as usize + rest as usize]
    }
}

/// The remaining bits of a look-up.
struct Rest {
    bits: u64,
    used: u32,
}

impl Rest {
    #[inline(always)]
    fn skip(&mut self, bits: u32) {
        self.bits <<= bits;
        self.used += bits;
    }

    /// Takes the next `bits` bits, 1 … 13, as a number.
    #[expect(clippy::cast_possible_truncation, reason = "at most 13 bits")]
    #[inline(always)]
    fn take(&mut self, bits: u32) -> u32 {
        let number = (self.bits >> (64 - bits)) as u32;
        self.skip(bits);
        number
    }

    /// Returns `value` with the next bit as its sign. A 0 has no sign bit.
    #[inline(always)]
    fn signed(&mut self, value: f32, is_there: bool) -> f32 {
        let sign = (self.bits >> 63) as u32 & u32::from(is_there);
        self.skip(is_there.into());
        f32::from_bits(value.to_bits() ^ sign << 31)
    }
}

/// Reads the lines below `limit`, an even number, without their scales. The others of `lines` become unspecified. Returns
/// `None` if a code does not exist or reaches past `end`.
#[inline(always)]
pub(super) fn lines(
    bits: &mut Bits<'_>,
    channel: &Channel,
    (end, limit): (usize, usize),
    lines: &mut [f32; LINES],
) -> Option<()> {
    let tables = &*TABLES;
    let powers: &[f32; MAX_VALUE + 1] = tables.powers.first_chunk()?;
    let mut at = 0;
    for (code, region_end) in channel.codes.into_iter().zip([channel.ends[0], channel.ends[1], LINES]) {
        let to = region_end.min(channel.big_values).min(limit).max(at);
        let region = &mut lines[at..to];
        at = to;
        if code == 0 {
            region.fill(0.0);
            continue;
        }
        let Table { entries, escape_bits } = &tables.pairs[code];
        if entries.is_empty() && !region.is_empty() {
            return None;
        }
        for pair in region.chunks_exact_mut(2) {
            // A word of 19 bits, and two escapes of 13 with their signs.
            let mut rest = Rest { bits: bits.peek(), used: 0 };
            let entry = Table::word(entries, rest.bits);
            rest.skip(entry & 0xFF);
            for (line, shift) in pair.iter_mut().zip([12, 8]) {
                let mut value = entry >> shift & 15;
                if value == 15 && *escape_bits > 0 {
                    value += rest.take(*escape_bits);
                }
                *line = rest.signed(powers[value as usize], value != 0);
            }
            bits.skip(rest.used);
        }
        if bits.at() > end {
            return None;
        }
    }
    let Table { entries, .. } = &tables.quadruples[channel.quadruples];
    // Encoders may leave a few bits that are not a whole quadruple.
    while at < limit && bits.at() < end {
        let Some(four) = lines.get_mut(at..at + 4) else { break };
        let mut rest = Rest { bits: bits.peek(), used: 0 };
        let entry = Table::word(entries, rest.bits);
        rest.skip(entry & 0xFF);
        for (line, bit) in four.iter_mut().zip([11, 10, 9, 8]) {
            let is_there = entry >> bit & 1 == 1;
            *line = rest.signed(if is_there { 1.0 } else { 0.0 }, is_there);
        }
        bits.skip(rest.used);
        if bits.at() > end {
            break;
        }
        at += 4;
    }
    lines[at.min(limit)..limit].fill(0.0);
    Some(())
}
