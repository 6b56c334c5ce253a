//! Huffman decoding by tables that hold whole coefficients: code, run and value bits in one look-up.
//!
//! A coefficient takes about 5 bits in a typical photo, code and value together, so a window of [`WINDOW`] bits
//! holds nearly every one, and often two or three where the values do not matter.

use super::super::jpeg_header::HuffmanSpec;
use super::bits::Bits;
use super::{Declined, ZIGZAG};

/// Bits that one look-up sees. 2¹¹ entries of 4 bytes for coefficients and 2 bytes for skipping are 12 KiB a table.
const WINDOW: u32 = 11;
const ENTRIES: usize = 1 << WINDOW;

/// A coefficient entry: bits 0–5 bits consumed, bit 6 special, bits 8–15 run (or, if special, run and size), bits
/// 16–31 value (or, if special, one of the kinds below).
const SPECIAL: u32 = 1 << 6;
/// The code is longer than the window or does not exist.
const LONG_CODE: u32 = 0;
/// The block ends.
const END: u32 = 1;
/// Sixteen zeros.
const ZEROS: u32 = 2;
/// The code is here, its value bits reach over the window.
const LONG_VALUE: u32 = 3;

/// A skip entry: bits 0–3 bits consumed (0: look at the coefficient entry), bit 4 block ends, bits 8–15 coefficients.
const SKIP_END: u16 = 1 << 4;

/// One table, ready to decode.
pub(super) struct Table {
    counts: [u8; 16],
    symbols: Vec<u8>,
    entries: Box<[u32; ENTRIES]>,
    skips: Box<[u16; ENTRIES]>,
    /// First code of each length, left-aligned in 16 bits, and one past the last.
    first: [u32; 17],
    limit: [u32; 17],
    /// Index of the first symbol of each length.
    index: [usize; 17],
}

/// The tables of one component.
pub(super) struct Huffman<'a> {
    pub(super) dc: &'a Table,
    pub(super) ac: &'a Table,
}

/// The tables of a scan. Most files use the same ones (annex K's), so the last ones are kept.
#[derive(Default)]
pub(super) struct Tables {
    dc: [Option<Table>; 3],
    ac: [Option<Table>; 3],
}

impl Tables {
    /// Makes component `index` ready.
    pub(super) fn prepare(
        &mut self,
        index: usize,
        dc: Option<HuffmanSpec<'_>>,
        ac: Option<HuffmanSpec<'_>>,
    ) -> Result<(), Declined> {
        for (slot, spec, is_dc) in [(&mut self.dc[index], dc, true), (&mut self.ac[index], ac, false)] {
            // A file without tables is abbreviated; libjpeg-turbo may know what to do.
            let spec = spec.ok_or(Declined::Kind)?;
            if !slot
                .as_ref()
                .is_some_and(|table| table.counts == *spec.counts && table.symbols == spec.symbols)
            {
                *slot = Some(Table::new(spec, is_dc)?);
            }
        }
        Ok(())
    }

    #[inline(always)]
    pub(super) fn of(&self, index: usize) -> Huffman<'_> {
        match (&self.dc[index], &self.ac[index]) {
            (Some(dc), Some(ac)) => Huffman { dc, ac },
            _ => unreachable!("every component of the frame is prepared before the scan"),
        }
    }
}

/// The value that `size` bits stand for (T.81 table F.1, EXTEND).
#[inline(always)]
fn extend(bits: usize, size: u32) -> i32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "at most 15 bits")]
    let value = bits as i32;
    if size > 0 && value < 1 << (size - 1) { value - (1 << size) + 1 } else { value }
}

impl Table {
    fn new(spec: HuffmanSpec<'_>, is_dc: bool) -> Result<Self, Declined> {
        let mut table = Self {
            counts: *spec.counts,
            symbols: spec.symbols.to_vec(),
            entries: Box::new([SPECIAL | LONG_CODE << 16; ENTRIES]),
            skips: Box::new([0; ENTRIES]),
            first: [0; 17],
            limit: [0; 17],
            index: [0; 17],
        };
        let (mut code, mut index) = (0_u32, 0);
        for length in 1..=16_u32 {
            let count = u32::from(spec.counts[length as usize - 1]);
            if code + count > 1 << length {
                return Err(Declined::Damage);
            }
            table.first[length as usize] = code << (16 - length);
            table.limit[length as usize] = (code + count) << (16 - length);
            table.index[length as usize] = index;
            for offset in 0..count {
                let symbol = spec.symbols[index];
                if is_dc && symbol > 15 {
                    return Err(Declined::Damage);
                }
                table.fill(code + offset, length, symbol, is_dc);
                index += 1;
            }
            code = (code + count) << 1;
        }
        if !is_dc {
            table.fill_skips();
        }
        Ok(table)
    }

    /// Enters all windows that start with `code`.
    fn fill(&mut self, code: u32, length: u32, symbol: u8, is_dc: bool) {
        if length > WINDOW {
            return;
        }
        let (run, size) =
            if is_dc { (0, u32::from(symbol)) } else { (u32::from(symbol >> 4), u32::from(symbol & 15)) };
        let start = (code << (WINDOW - length)) as usize;
        for window in start..start + (1 << (WINDOW - length)) {
            self.entries[window] = if size == 0 && !is_dc {
                match run {
                    15 => length | SPECIAL | ZEROS << 16,
                    // Runs with size 0 other than 15 mean the end in a sequential file, as in libjpeg.
                    _ => length | SPECIAL | END << 16,
                }
            } else if length + size <= WINDOW {
                let bits = (window >> (WINDOW - length - size)) & ((1 << size) - 1);
                let value = extend(bits, size);
                (length + size) | run << 8 | (value << 16).cast_unsigned()
            } else {
                length | SPECIAL | u32::from(symbol) << 8 | LONG_VALUE << 16
            };
        }
    }

    /// Sums up as many whole symbols as each window holds.
    fn fill_skips(&mut self) {
        for window in 0..ENTRIES {
            let (mut used, mut coefficients, mut ended) = (0, 0, false);
            while !ended {
                let entry = self.entries[(window << used) & (ENTRIES - 1)];
                let length = entry & 63;
                // Bits that the window does not have read as zeros: a code that needs them is not known.
                if length == 0 || used + length > WINDOW {
                    break;
                }
                if entry & SPECIAL == 0 {
                    coefficients += (entry >> 8 & 255) + 1;
                } else {
                    match entry >> 16 {
                        END => ended = true,
                        ZEROS => coefficients += 16,
                        _ => break,
                    }
                }
                used += length;
            }
            if let (Ok(used), Ok(coefficients @ 0..=255)) = (u16::try_from(used), u16::try_from(coefficients))
            {
                self.skips[window] = used | if ended { SKIP_END } else { 0 } | coefficients << 8;
            }
        }
    }

    /// The symbol of any length that the next 16 bits start with, and its length. By value, so that the reader of the
    /// hot loops stays in registers.
    #[cold]
    #[inline(never)]
    fn symbol(&self, window: usize) -> Result<(u8, u32), Declined> {
        let window = u32::try_from(window).unwrap_or(u32::MAX);
        for length in 1..=16_u32 {
            let at = length as usize;
            if window < self.limit[at] && window >= self.first[at] {
                let offset = ((window - self.first[at]) >> (16 - length)) as usize;
                let symbol = self.symbols.get(self.index[at] + offset).ok_or(Declined::Damage)?;
                return Ok((*symbol, length));
            }
        }
        Err(Declined::Damage)
    }
}

/// The next DC difference.
#[inline(always)]
pub(super) fn dc(bits: &mut Bits<'_>, table: &Table) -> Result<i32, Declined> {
    bits.need_32();
    let entry = table.entries[bits.peek(WINDOW)];
    if entry & SPECIAL == 0 {
        bits.consume(entry & 63);
        return Ok(entry.cast_signed() >> 16);
    }
    let size = if entry >> 16 == LONG_VALUE {
        bits.consume(entry & 63);
        entry >> 8 & 255
    } else {
        let (symbol, length) = table.symbol(bits.peek(16))?;
        bits.consume(length);
        u32::from(symbol)
    };
    if size == 0 {
        return Ok(0);
    }
    let value = extend(bits.peek(size), size);
    bits.consume(size);
    Ok(value)
}

/// The run and value of a coefficient that is not in the entries, or `None` at the block's end. 32 bits are
/// available, 31 at most are used.
#[inline(always)]
fn special(bits: &mut Bits<'_>, table: &Table, entry: u32) -> Result<Option<(usize, i32)>, Declined> {
    let symbol = match entry >> 16 {
        END => {
            bits.consume(entry & 63);
            return Ok(None);
        }
        ZEROS => {
            bits.consume(entry & 63);
            return Ok(Some((15, 0)));
        }
        LONG_VALUE => {
            bits.consume(entry & 63);
            entry >> 8 & 255
        }
        _ => {
            let (symbol, length) = table.symbol(bits.peek(16))?;
            bits.consume(length);
            u32::from(symbol)
        }
    };
    let (run, size) = ((symbol >> 4) as usize, symbol & 15);
    if size == 0 {
        return Ok((run == 15).then_some((15, 0)));
    }
    let value = extend(bits.peek(size), size);
    bits.consume(size);
    Ok(Some((run, value)))
}

/// Decodes and dequantises a block's AC coefficients into natural order; true if there are none.
#[inline(always)]
pub(super) fn ac(
    bits: &mut Bits<'_>,
    table: &Table,
    quant: &[i16; 64],
    block: &mut [i16; 64],
) -> Result<bool, Declined> {
    let mut at = 1_usize;
    while at < 64 {
        bits.need_32();
        let entry = table.entries[bits.peek(WINDOW)];
        let (run, value) = if entry & SPECIAL == 0 {
            bits.consume(entry & 63);
            ((entry >> 8 & 255) as usize, entry.cast_signed() >> 16)
        } else {
            match special(bits, table, entry)? {
                Some(coefficient) => coefficient,
                None => break,
            }
        };
        at += run;
        if at > 63 {
            return Err(Declined::Damage);
        }
        #[expect(clippy::cast_possible_truncation, reason = "wraps in damaged files, as in libjpeg")]
        {
            block[usize::from(ZIGZAG[at]) & 63] = (value as i16).wrapping_mul(quant[at]);
        }
        at += 1;
    }
    Ok(at == 1)
}

/// Passes over a block's AC coefficients.
#[inline(always)]
pub(super) fn skip_ac(bits: &mut Bits<'_>, table: &Table) -> Result<(), Declined> {
    let mut at = 1_usize;
    while at < 64 {
        bits.need_32();
        let window = bits.peek(WINDOW);
        let skip = table.skips[window];
        let next = at + usize::from(skip >> 8);
        if skip & 15 != 0 && next <= 64 {
            // A window that goes on after the block's 64th coefficient shows another block's bits; that it ends the
            // block as well is only right if it does so before.
            if skip & SKIP_END != 0 && next == 64 {
                // The end code after a full block is not this block's.
            } else {
                bits.consume(u32::from(skip & 15));
                if skip & SKIP_END != 0 {
                    return Ok(());
                }
                at = next;
                continue;
            }
        }
        let entry = table.entries[window];
        let run = if entry & SPECIAL == 0 {
            bits.consume(entry & 63);
            (entry >> 8 & 255) as usize
        } else {
            match special(bits, table, entry)? {
                Some((run, _)) => run,
                None => return Ok(()),
            }
        };
        at += run + 1;
        if at > 64 {
            return Err(Declined::Damage);
        }
    }
    Ok(())
}
