//! Huffman decoding by tables that hold whole coefficients: code, run and value bits in one look-up.
//!
//! A coefficient takes about 5 bits in a typical photo, code and value together, so a window of [`WINDOW`] bits
//! holds nearly every one, and often two or three where the values do not matter.

use super::bits::{Bits, FULL};
use super::outcome::Declined;
use super::places::Places;
use crate::image::decode::jpeg_header::HuffmanSpec;

/// Bits that one look-up sees. 2¹¹ entries of 4 bytes for coefficients and 2 bytes for skipping are 12 KiB a table.
pub(super) const WINDOW: u32 = 11;
pub(super) const ENTRIES: usize = 1 << WINDOW;

/// Look-ups that a full reader surely has the bits for. Whether a reader runs empty cannot be predicted, so it is filled
/// up once for all of these instead of asked before each.
pub(super) const PER_REFILL: u32 = FULL / WINDOW;

/// A coefficient entry: bits 0–5 bits consumed, bits 8–15 steps from the coefficient before, bits 16–31 its value.
///
/// The block's end and what is too long for the window stand there as steps that lead out of the block, each into a
/// separate range, so that the loop over coefficients asks one question. A long entry consumes nothing; it has the
/// symbol (run and size) in bits 16–23 and its code's bits in bits 24–31, 0 if the code is too long or does not exist.
const END: u32 = 128;
const LONG: u32 = 192;
/// The last coefficient of a block.
pub(super) const LAST: usize = 63;
/// Steps of the symbols of a window without an end, one (16 zeros) or several: none takes a block into the range of END.
const MOST_STEPS: u32 = 63;
const _: () = assert!(LAST - 1 + (MOST_STEPS as usize) < END as usize && MOST_STEPS >= 16);
const _: () = assert!(LAST - 1 + (END as usize) < LONG as usize && LONG < 256);

/// One table, ready to decode.
pub(super) struct Table {
    counts: [u8; 16],
    symbols: Vec<u8>,
    entries: Box<[u32; ENTRIES]>,
    /// As entries without values, of as many symbols as the window holds. Only where there is enough to skip.
    skips: Option<Box<[u16; ENTRIES]>>,
    /// How often it was made.
    made: u64,
    /// First code of each length, left-aligned in 16 bits, and one past the last.
    first: [u32; 17],
    limit: [u32; 17],
    /// Index of the first symbol of each length.
    index: [usize; 17],
}

/// The symbol at a window's begin: the bits of code and value, steps from the coefficient before, and its value.
pub(super) struct Look {
    pub(super) length: u32,
    pub(super) steps: u32,
    pub(super) value: i32,
}

impl Look {
    /// The block's end.
    pub(super) fn is_end(&self) -> bool {
        self.steps == END
    }

    /// The window does not show all of it.
    pub(super) fn is_long(&self) -> bool {
        self.steps == LONG
    }
}

/// The tables of one component.
#[derive(Clone, Copy)]
pub(super) struct Huffman<'a> {
    pub(super) dc: &'a Table,
    pub(super) ac: &'a Table,
}

/// The tables of a scan, by their numbers. Most files use the same ones (annex K's), so the last ones are kept.
#[derive(Default)]
pub(super) struct Tables {
    dc: [Option<Table>; 4],
    ac: [Option<Table>; 4],
}

impl Tables {
    /// Makes table `number` for DC coefficients ready.
    pub(super) fn prepare_dc(&mut self, number: u8, spec: Option<HuffmanSpec<'_>>) -> Result<(), Declined> {
        self.dc[usize::from(number)].get_or_insert_with(Table::empty).prepare(spec, true)
    }

    /// Makes table `number` for AC coefficients ready; `skipping` many blocks takes longer to prepare, and less to do.
    pub(super) fn prepare_ac(
        &mut self,
        number: u8,
        spec: Option<HuffmanSpec<'_>>,
        skipping: bool,
    ) -> Result<(), Declined> {
        let table = self.ac[usize::from(number)].get_or_insert_with(Table::empty);
        table.prepare(spec, false)?;
        if skipping && table.skips.is_none() {
            table.skips = Some(table.skips());
        }
        Ok(())
    }

    /// What the content of two tables is known by.
    pub(super) fn key(&self, dc: u8, ac: u8) -> [u64; 4] {
        let Huffman { dc: dc_table, ac: ac_table } = self.of(dc, ac);
        [dc.into(), dc_table.made, ac.into(), ac_table.made]
    }

    #[inline(always)]
    pub(super) fn of(&self, dc: u8, ac: u8) -> Huffman<'_> {
        match (&self.dc[usize::from(dc)], &self.ac[usize::from(ac)]) {
            (Some(dc), Some(ac)) => Huffman { dc, ac },
            _ => unreachable!("every component's tables are prepared before the scan"),
        }
    }
}

/// The steps of a symbol without a value. Runs other than 15 mean the end in a sequential file, as in libjpeg.
#[inline(always)]
fn steps_without_value(symbol: u8) -> u32 {
    if symbol == 0xF0 { 16 } else { END }
}

/// The value that `size` bits stand for (T.81 table F.1, EXTEND).
#[inline(always)]
fn extend(bits: usize, size: u32) -> i32 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "at most 15 bits")]
    let value = bits as i32;
    if size > 0 && value < 1 << (size - 1) { value - (1 << size) + 1 } else { value }
}

impl Table {
    /// The table without any code.
    fn empty() -> Self {
        Self {
            counts: [0; 16],
            symbols: Vec::new(),
            entries: Box::new([LONG << 8; ENTRIES]),
            skips: None,
            made: 0,
            first: [0; 17],
            limit: [0; 17],
            index: [0; 17],
        }
    }

    /// Becomes the table of `spec`, unless it is that already.
    fn prepare(&mut self, spec: Option<HuffmanSpec<'_>>, is_dc: bool) -> Result<(), Declined> {
        // A file without tables is abbreviated; libjpeg-turbo may know what to do.
        let spec = spec.ok_or(Declined::Kind)?;
        if self.counts == *spec.counts && self.symbols == spec.symbols {
            return Ok(());
        }
        // Nothing of a table that turns out to be damaged is taken for ready.
        self.symbols.clear();
        self.counts = *spec.counts;
        self.skips = None;
        self.made += 1;
        let (mut code, mut index) = (0_u32, 0);
        for length in 1..=16_u32 {
            let count = u32::from(spec.counts[length as usize - 1]);
            // No code consists of ones alone (T.81, annex C).
            if count > 0 && code + count >= 1 << length {
                return Err(Declined::Damage);
            }
            self.first[length as usize] = code << (16 - length);
            self.limit[length as usize] = (code + count) << (16 - length);
            self.index[length as usize] = index;
            for offset in 0..count {
                let symbol = spec.symbols[index];
                if is_dc && symbol > 15 {
                    return Err(Declined::Damage);
                }
                self.fill(code + offset, length, symbol, is_dc);
                index += 1;
            }
            if length == WINDOW {
                self.entries[(code + count) as usize..].fill(LONG << 8);
            }
            code = (code + count) << 1;
        }
        self.symbols.extend_from_slice(spec.symbols);
        Ok(())
    }

    /// Enters all windows that start with `code`.
    fn fill(&mut self, code: u32, length: u32, symbol: u8, is_dc: bool) {
        if length > WINDOW {
            return;
        }
        let (run, size) =
            if is_dc { (0, u32::from(symbol)) } else { (u32::from(symbol >> 4), u32::from(symbol & 15)) };
        let start = (code << (WINDOW - length)) as usize;
        let windows = &mut self.entries[start..start + (1 << (WINDOW - length))];
        if size == 0 && !is_dc {
            windows.fill(length | steps_without_value(symbol) << 8);
        } else if length + size <= WINDOW {
            for (bits, windows) in windows.chunks_exact_mut(1 << (WINDOW - length - size)).enumerate() {
                let value = extend(bits, size);
                windows.fill((length + size) | (run + 1) << 8 | (value << 16).cast_unsigned());
            }
        } else {
            windows.fill(LONG << 8 | u32::from(symbol) << 16 | length << 24);
        }
    }

    /// The symbol that a window begins with.
    pub(super) fn look(&self, window: usize) -> Look {
        let entry = self.entries[window];
        Look { length: entry & 63, steps: entry >> 8 & 255, value: value(entry) }
    }

    /// Sums up as many whole symbols as each window holds.
    fn skips(&self) -> Box<[u16; ENTRIES]> {
        let mut skips = Box::new([0; ENTRIES]);
        for (window, skip) in skips.iter_mut().enumerate() {
            let (mut used, mut sum) = (0, 0);
            while sum < MOST_STEPS {
                let entry = self.entries[(window << used) & (ENTRIES - 1)];
                let (length, steps) = (entry & 63, entry >> 8 & 255);
                // Bits that the window does not have read as zeros: a code that needs them is not known.
                if used + length > WINDOW || steps == LONG || (steps < END && sum + steps > MOST_STEPS) {
                    break;
                }
                used += length;
                sum += steps;
            }
            let sum = if used == 0 { LONG } else { sum };
            *skip = u16::try_from(used | sum << 8).unwrap_or(0);
        }
        skips
    }

    /// The symbol that the next 16 bits start with, where its code is longer than a window, and its length. By value, so that the
    /// reader of the hot loops stays in registers.
    #[cold]
    #[inline(never)]
    fn symbol(&self, window: usize) -> Result<(u8, u32), Declined> {
        let window = u32::try_from(window).unwrap_or(u32::MAX);
        for length in WINDOW + 1..=16 {
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
    bits.refill();
    let entry = table.entries[bits.peek(WINDOW)];
    if steps(entry) != LONG as usize {
        bits.consume(entry);
        return Ok(value(entry));
    }
    let size = u32::from(long_symbol(bits, table, entry)?);
    if size == 0 {
        return Ok(0);
    }
    let value = extend(bits.peek(size), size);
    bits.consume(size);
    Ok(value)
}

#[inline(always)]
fn steps(entry: u32) -> usize {
    (entry >> 8 & 255) as usize
}

#[inline(always)]
fn value(entry: u32) -> i32 {
    entry.cast_signed() >> 16
}

/// The symbol of a long entry, whose code is consumed.
#[inline(always)]
fn long_symbol(bits: &mut Bits<'_>, table: &Table, entry: u32) -> Result<u8, Declined> {
    let (symbol, length) = match entry >> 24 {
        0 => table.symbol(bits.peek(16))?,
        length => ((entry >> 16 & 255) as u8, length),
    };
    bits.consume(length);
    Ok(symbol)
}

/// The steps to and the value of a coefficient whose entry is long; takes 31 bits at most.
#[inline(always)]
fn long(bits: &mut Bits<'_>, table: &Table, entry: u32) -> Result<(usize, i32), Declined> {
    bits.refill();
    let symbol = long_symbol(bits, table, entry)?;
    let size = u32::from(symbol & 15);
    if size == 0 {
        return Ok((steps_without_value(symbol) as usize, 0));
    }
    let value = extend(bits.peek(size), size);
    bits.consume(size);
    Ok((usize::from(symbol >> 4) + 1, value))
}

/// The steps to and the value of the next AC coefficient; `None` at the block's end.
#[inline(always)]
pub(super) fn coefficient(bits: &mut Bits<'_>, table: &Table) -> Result<Option<(usize, i32)>, Declined> {
    bits.refill();
    let entry = table.entries[bits.peek(WINDOW)];
    bits.consume(entry);
    let (steps, value) = match steps(entry) {
        steps if steps == LONG as usize => long(bits, table, entry)?,
        steps => (steps, value(entry)),
    };
    Ok((steps != END as usize).then_some((steps, value)))
}

/// Decodes and dequantises a block's AC coefficients into natural order; true if there are none.
#[inline(always)]
pub(super) fn ac(
    bits: &mut Bits<'_>,
    table: &Table,
    places: &Places,
    block: &mut [i16; 64],
) -> Result<bool, Declined> {
    let mut at = 0_usize;
    let last = 'block: loop {
        bits.refill();
        let mut run = bits.run();
        for _ in 0..PER_REFILL {
            let entry = table.entries[run.peek(WINDOW)];
            run.consume(entry);
            at += steps(entry);
            if at < LAST {
                places.put(at, value(entry), block);
                continue;
            }
            bits.end(run);
            if at < LONG as usize {
                break 'block value(entry);
            }
            let (steps, value) = long(bits, table, entry)?;
            at = at - LONG as usize + steps;
            if at >= LAST {
                break 'block value;
            }
            places.put(at, value, block);
            continue 'block;
        }
        bits.end(run);
    };
    if at == LAST {
        places.put(LAST, last, block);
    } else if at < END as usize {
        return Err(Declined::Damage);
    }
    Ok(at == END as usize)
}

/// Passes over a block's AC coefficients.
#[inline(always)]
pub(super) fn skip_ac(bits: &mut Bits<'_>, table: &Table) -> Result<(), Declined> {
    match &table.skips {
        Some(skips) => skip_by(|window| u32::from(skips[window]), bits, table),
        None => skip_by(|window| table.entries[window], bits, table),
    }
}

/// Passes over them by what `look` returns for a window: whole symbols, one or several, in the form of an entry.
#[inline(always)]
fn skip_by(look: impl Fn(usize) -> u32, bits: &mut Bits<'_>, table: &Table) -> Result<(), Declined> {
    let mut at = 0_usize;
    'block: loop {
        bits.refill();
        let mut run = bits.run();
        for _ in 0..PER_REFILL {
            let symbols = look(run.peek(WINDOW));
            let mut behind = run;
            behind.consume(symbols);
            let next = at + steps(symbols);
            if next < LAST {
                (run, at) = (behind, next);
                continue;
            }
            if next == LAST || (END as usize..END as usize + LAST).contains(&next) {
                bits.end(behind);
                return Ok(());
            }
            // Too long, or the window goes on after the block's last coefficient and shows another block's bits: one
            // symbol alone.
            bits.end(run);
            let entry = table.entries[bits.peek(WINDOW)];
            bits.consume(entry);
            at += steps(entry);
            if at >= LONG as usize {
                at = at - LONG as usize + long(bits, table, entry)?.0;
            }
            match at {
                ..LAST => continue 'block,
                LAST => return Ok(()),
                _ if at >= END as usize => return Ok(()),
                _ => return Err(Declined::Damage),
            }
        }
        bits.end(run);
    }
}

#[cfg(test)]
mod tests;
