//! How many groups of Huffman codes a lossless WebP has, found by reading it up to them.
//!
//! ```text
//! size · transforms, each perhaps with an image · bits of the colour cache · entropy image ─▶ groups · pixels
//!                                                                             └ the largest value in it is the last group's number
//! ```
//! `image-webp` (0.2.4) builds every group up to the largest number, whether a pixel uses it or not: 65,536 of them take
//! 1.3 GB, for which an image of one pixel is enough. What is read here is what it reads (RFC 9649, section 3), and images
//! before the pixels have at most a sixteenth of their number, so that this costs little.

use super::super::geometry::Size;

/// The order in which the lengths of the code for lengths are written.
const LENGTHS_ORDER: [usize; 19] = [17, 18, 0, 1, 2, 3, 4, 5, 16, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

/// The symbols of the codes of a group: green, lengths and the colour cache's places; red; blue; alpha; distances.
const ALPHABETS: [usize; 5] = [256 + 24, 256, 256, 256, 40];

const LONGEST_CODE: usize = 15;
const LONGEST_CODE_BITS: u32 = 15;

/// The bytes before the transforms: the signature, then 14 bits each of width and height less one, alpha, version.
const HEADER_BYTES: usize = 5;

/// Places near a pixel, of codes 1 to 120: (columns to the left, rows up).
#[rustfmt::skip]
const NEAR: [(i64, i64); 120] = [
    (0, 1),  (1, 0),  (1, 1),  (-1, 1), (0, 2),  (2, 0),  (1, 2),  (-1, 2), (2, 1),  (-2, 1),
    (2, 2),  (-2, 2), (0, 3),  (3, 0),  (1, 3),  (-1, 3), (3, 1),  (-3, 1), (2, 3),  (-2, 3),
    (3, 2),  (-3, 2), (0, 4),  (4, 0),  (1, 4),  (-1, 4), (4, 1),  (-4, 1), (3, 3),  (-3, 3),
    (2, 4),  (-2, 4), (4, 2),  (-4, 2), (0, 5),  (3, 4),  (-3, 4), (4, 3),  (-4, 3), (5, 0),
    (1, 5),  (-1, 5), (5, 1),  (-5, 1), (2, 5),  (-2, 5), (5, 2),  (-5, 2), (4, 4),  (-4, 4),
    (3, 5),  (-3, 5), (5, 3),  (-5, 3), (0, 6),  (6, 0),  (1, 6),  (-1, 6), (6, 1),  (-6, 1),
    (2, 6),  (-2, 6), (6, 2),  (-6, 2), (4, 5),  (-4, 5), (5, 4),  (-5, 4), (3, 6),  (-3, 6),
    (6, 3),  (-6, 3), (0, 7),  (7, 0),  (1, 7),  (-1, 7), (5, 5),  (-5, 5), (7, 1),  (-7, 1),
    (4, 6),  (-4, 6), (6, 4),  (-6, 4), (2, 7),  (-2, 7), (7, 2),  (-7, 2), (3, 7),  (-3, 7),
    (7, 3),  (-7, 3), (5, 6),  (-5, 6), (6, 5),  (-6, 5), (8, 0),  (4, 7),  (-4, 7), (7, 4),
    (-7, 4), (8, 1),  (8, 2),  (6, 6),  (-6, 6), (8, 3),  (5, 7),  (-5, 7), (7, 5),  (-7, 5),
    (8, 4),  (6, 7),  (-6, 7), (7, 6),  (-7, 6), (8, 5),  (7, 7),  (-7, 7), (8, 6),  (8, 7),
];

/// The groups of a VP8L chunk, which must be an image of `size`; none where it is damaged before them.
pub(super) fn groups_of_image(chunk: &[u8], size: Size) -> Option<u32> {
    let fields = u32::from_le_bytes(*chunk.get(1..)?.first_chunk()?);
    let side = |bits: u32| (bits & 0x3FFF) + 1;
    let stated = Size { width: side(fields), height: side(fields >> 14) };
    (stated == size).then(|| groups(&chunk[HEADER_BYTES..], size))?
}

/// The groups of what follows the first byte of an ALPH chunk, for a frame of `size`.
pub(super) fn groups_of_alpha(stream: &[u8], size: Size) -> Option<u32> {
    groups(stream, size)
}

fn groups(stream: &[u8], Size { mut width, height }: Size) -> Option<u32> {
    let mut bits = Bits { bytes: stream, at: 0 };
    let mut seen = [false; 4];
    while bits.read(1)? == 1 {
        let kind = bits.read(2)?;
        if std::mem::replace(seen.get_mut(kind as usize)?, true) {
            return None;
        }
        match kind {
            // Predictors and colour transforms, one for each block.
            0 | 1 => {
                let side = bits.read(3)? + 2;
                image(&mut bits, blocks(width, side), blocks(height, side))?;
            }
            // Green is subtracted.
            2 => {}
            // A palette; several pixels of few colours are packed into one.
            _ => {
                let colours = bits.read(8)? + 1;
                image(&mut bits, colours, 1)?;
                let packed = match colours {
                    ..=2 => 3,
                    3..=4 => 2,
                    5..=16 => 1,
                    _ => 0,
                };
                width = blocks(width, packed);
            }
        }
    }
    read_cache_bits(&mut bits)?;
    if bits.read(1)? == 0 {
        return Some(1);
    }
    let side = bits.read(3)? + 2;
    let entropy = image(&mut bits, blocks(width, side), blocks(height, side))?;
    // Red and green.
    entropy.iter().map(|argb| (argb >> 8 & 0xFFFF) + 1).max()
}

/// The blocks of 2^`side` pixels in a side of `pixels`.
fn blocks(pixels: u32, side: u32) -> u32 {
    pixels.div_ceil(1 << side)
}

/// Bits from the lowest of the first byte up.
struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Bits<'_> {
    /// The next bits, at most 32, with zeros after the last.
    fn peek(&self, count: u32) -> u32 {
        let rest = self.bytes.get(self.at / 8..).unwrap_or_default();
        let mut eight = [0; 8];
        let held = rest.len().min(8);
        eight[..held].copy_from_slice(&rest[..held]);
        let word = u64::from_le_bytes(eight) >> (self.at % 8);
        // As many bits as asked for, so that they fit.
        u32::try_from(word & ((1 << count) - 1)).unwrap_or(u32::MAX)
    }

    fn skip(&mut self, count: u32) -> Option<()> {
        self.at += count as usize;
        (self.at <= self.bytes.len() * 8).then_some(())
    }

    fn read(&mut self, count: u32) -> Option<u32> {
        let value = self.peek(count);
        self.skip(count)?;
        Some(value)
    }
}

/// A canonical code: symbols in the order of their code words, and how many there are of each length. A code of one symbol
/// takes no bits.
struct Code {
    counts: [usize; LONGEST_CODE + 1],
    symbols: Vec<usize>,
}

impl Code {
    fn of_symbols(symbols: Vec<usize>) -> Self {
        let mut counts = [0; LONGEST_CODE + 1];
        counts[1] = symbols.len();
        Self { counts, symbols }
    }

    /// None where the lengths make no complete code.
    fn of_lengths(lengths: &[usize]) -> Option<Self> {
        let mut counts = [0; LONGEST_CODE + 1];
        let mut symbols: Vec<usize> = (0..lengths.len()).filter(|symbol| lengths[*symbol] > 0).collect();
        symbols.iter().for_each(|symbol| counts[lengths[*symbol]] += 1);
        symbols.sort_by_key(|symbol| lengths[*symbol]);
        let filled: usize = (1..=LONGEST_CODE).map(|length| counts[length] << (LONGEST_CODE - length)).sum();
        (symbols.len() == 1 || filled == 1 << LONGEST_CODE).then_some(Self { counts, symbols })
    }

    fn read(&self, bits: &mut Bits<'_>) -> Option<usize> {
        if let [only] = self.symbols[..] {
            return Some(only);
        }
        let mut ahead = bits.peek(LONGEST_CODE_BITS) as usize;
        // Of the words of each length: the first one, and the place of its symbol.
        let (mut word, mut first, mut place) = (0, 0, 0);
        for (length, width) in (1..=LONGEST_CODE).zip(1..) {
            word |= ahead & 1;
            ahead >>= 1;
            let count = self.counts[length];
            if word < first + count {
                bits.skip(width)?;
                return self.symbols.get(place + word - first).copied();
            }
            (word, first, place) = (word << 1, (first + count) << 1, place + count);
        }
        None
    }
}

fn read_code(bits: &mut Bits<'_>, symbols: usize) -> Option<Code> {
    if bits.read(1)? == 1 {
        let second = bits.read(1)? == 1;
        let width = if bits.read(1)? == 1 { 8 } else { 1 };
        let mut listed = vec![bits.read(width)? as usize];
        if second {
            listed.push(bits.read(8)? as usize);
        }
        return listed.iter().all(|symbol| *symbol < symbols).then(|| Code::of_symbols(listed));
    }
    let mut lengths = [0; LENGTHS_ORDER.len()];
    let written = 4 + bits.read(4)? as usize;
    for place in LENGTHS_ORDER.get(..written)? {
        lengths[*place] = bits.read(3)? as usize;
    }
    Code::of_lengths(&read_lengths(bits, &Code::of_lengths(&lengths)?, symbols)?)
}

/// The lengths of the code words of `symbols` symbols.
fn read_lengths(bits: &mut Bits<'_>, code: &Code, symbols: usize) -> Option<Vec<usize>> {
    let mut left = symbols;
    if bits.read(1)? == 1 {
        let width = 2 + 2 * bits.read(3)?;
        left = 2 + bits.read(width)? as usize;
        if left > symbols {
            return None;
        }
    }
    let (mut lengths, mut last) = (Vec::with_capacity(symbols), 8);
    while lengths.len() < symbols && left > 0 {
        left -= 1;
        let (length, count) = match code.read(bits)? {
            length @ 0..=15 => (length, 1),
            16 => (last, bits.read(2)? as usize + 3),
            17 => (0, bits.read(3)? as usize + 3),
            _ => (0, bits.read(7)? as usize + 11),
        };
        if length > 0 {
            last = length;
        }
        lengths.resize(lengths.len() + count, length);
    }
    (lengths.len() <= symbols).then(|| {
        lengths.resize(symbols, 0);
        lengths
    })
}

/// The bits of the colour cache's places; 0 without one.
fn read_cache_bits(bits: &mut Bits<'_>) -> Option<u32> {
    if bits.read(1)? == 0 {
        return Some(0);
    }
    bits.read(4).filter(|cache_bits| (1..=11).contains(cache_bits))
}

/// An image of one group, its pixels as ARGB.
fn image(bits: &mut Bits<'_>, width: u32, height: u32) -> Option<Vec<u32>> {
    let cache_bits = read_cache_bits(bits)?;
    let mut cache = vec![0; if cache_bits > 0 { 1 << cache_bits } else { 0 }];
    let mut codes = Vec::with_capacity(ALPHABETS.len());
    for (index, symbols) in ALPHABETS.iter().enumerate() {
        codes.push(read_code(bits, symbols + if index == 0 { cache.len() } else { 0 })?);
    }
    let [green, red, blue, alpha, distance] = &codes[..] else { return None };
    let count = width as usize * height as usize;
    let mut pixels: Vec<u32> = Vec::with_capacity(count);
    while pixels.len() < count {
        let start = pixels.len();
        match green.read(bits)? {
            symbol @ 0..=0xFF => {
                let [red, blue, alpha] = [red.read(bits)?, blue.read(bits)?, alpha.read(bits)?];
                pixels.push(u32::try_from(alpha << 24 | red << 16 | symbol << 8 | blue).ok()?);
            }
            symbol if symbol < ALPHABETS[0] => {
                let length = read_length(bits, symbol - 256)?;
                let symbol = distance.read(bits)?;
                let distance = pixels_back(read_length(bits, symbol)?, width);
                if distance > start || length > count - start {
                    return None;
                }
                for from in start - distance..start - distance + length {
                    pixels.push(*pixels.get(from)?);
                }
            }
            symbol => pixels.push(*cache.get(symbol - ALPHABETS[0])?),
        }
        if cache_bits > 0 {
            for argb in &pixels[start..] {
                cache[(argb.wrapping_mul(0x1E35_A7BD) >> (32 - cache_bits)) as usize] = *argb;
            }
        }
    }
    Some(pixels)
}

/// A length or a distance: its symbol, then more bits for the longer ones.
fn read_length(bits: &mut Bits<'_>, symbol: usize) -> Option<usize> {
    if symbol < 4 {
        return Some(symbol + 1);
    }
    let more = u32::try_from((symbol - 2) >> 1).ok()?;
    Some(((2 + (symbol & 1)) << more) + bits.read(more)? as usize + 1)
}

/// How many pixels back the one with this code of a distance is.
fn pixels_back(code: usize, width: u32) -> usize {
    match NEAR.get(code - 1) {
        Some((left, up)) => usize::try_from(left + up * i64::from(width)).unwrap_or(0).max(1),
        None => code - NEAR.len(),
    }
}
