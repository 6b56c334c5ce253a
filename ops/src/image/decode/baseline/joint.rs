//! Tables of joint symbols, for files that are large enough to pay for them.
//!
//! A look-up sees [`WINDOW`] bits and gives up to two coefficients, and whether the block ends with them. A block's first look-up
//! gives its DC difference, too: in smooth parts of a photo it is the only one. Where values do not matter, a look-up gives as
//! many coefficients as there are.

use super::frame::Frame;
use super::huffman::{ENTRIES, Huffman, LAST, Table, Tables, WINDOW};

/// A look-up's result: bits 0–5 bits consumed, bits 6–7 steps from the first coefficient to the second, bits 8–15 steps to the
/// second in all, bits 16–23 and 24–31 their values. Without a second coefficient the first one is there twice.
///
/// As in entries for one symbol, steps of the block's end lead out of it: they are [`END`] more. The end alone is a zero one step
/// ahead. Entries take four bytes so that those of luma and chroma, 32 KiB, stay in a small first-level cache.
#[derive(Clone, Copy)]
pub(super) struct Entry(u32);

/// What is added to the steps at the block's end.
pub(super) const END: usize = END_STEPS as usize;
const END_STEPS: u32 = 128;
/// The steps of what a window does not show, or what has no place in an entry: consumes nothing. They lead past the last
/// coefficient, with or without END.
const ALONE: usize = ALONE_STEPS as usize;
const ALONE_STEPS: u32 = 192;
const _: () = assert!(END.is_power_of_two() && ALONE % END > LAST && ALONE + LAST < 256 && LAST < END);

/// Steps to a second coefficient that an entry has room for.
const MOST_SECOND_STEPS: u32 = 3;

impl Entry {
    fn new(length: u32, steps: u32) -> Self {
        Self(length | steps << 8)
    }

    /// Bits consumed, in the lowest six bits.
    #[inline(always)]
    pub(super) fn length(self) -> u32 {
        self.0
    }

    /// Steps to the second coefficient.
    #[inline(always)]
    pub(super) fn steps(self) -> usize {
        (self.0 >> 8 & 255) as usize
    }

    /// Whether the block ends.
    #[inline(always)]
    pub(super) fn ends(self) -> bool {
        self.0 & END_STEPS << 8 != 0
    }

    /// Steps from the first coefficient to the second.
    #[inline(always)]
    pub(super) fn second_steps(self) -> usize {
        (self.0 >> 6 & 3) as usize
    }

    #[inline(always)]
    pub(super) fn first(self) -> i32 {
        (self.0 << 8).cast_signed() >> 24
    }

    #[inline(always)]
    pub(super) fn second(self) -> i32 {
        self.0.cast_signed() >> 24
    }
}

pub(super) type Entries = [Entry; ENTRIES];

/// A pair of Huffman tables as joint tables.
struct Pair {
    /// What the tables are known by.
    key: [u64; 4],
    /// For a block's first look-up.
    first: Box<Entries>,
    /// For the others.
    rest: Box<Entries>,
    /// For the others where only the end matters.
    skip: Box<Entries>,
}

/// The joint tables of a scan; those of the scan before are kept.
#[derive(Default)]
pub(super) struct Joint {
    pairs: [Option<Pair>; 3],
    /// The pair of each component.
    places: [usize; 3],
}

/// What decodes a component's blocks.
#[derive(Clone, Copy)]
pub(super) struct Symbols<'a> {
    pub(super) first: &'a Entries,
    pub(super) rest: &'a Entries,
    pub(super) skip: &'a Entries,
    pub(super) huffman: Huffman<'a>,
}

impl Joint {
    /// Makes the tables of `frame` ready, of whose components `tables` has the tables of single symbols.
    pub(super) fn prepare<'a>(&'a mut self, frame: &Frame, tables: &'a Tables) -> [Symbols<'a>; 3] {
        for (index, component) in frame.components().iter().enumerate() {
            let key = tables.key(component.dc, component.ac);
            let is_made = |pair: &Option<Pair>| pair.as_ref().is_some_and(|pair| pair.key == key);
            self.places[index] = self.pairs[..=index].iter().position(is_made).unwrap_or_else(|| {
                self.pairs[index] = Some(Pair::new(key, tables.of(component.dc, component.ac)));
                index
            });
        }
        std::array::from_fn(|index| {
            let index = index.min(frame.count - 1);
            let component = &frame.components()[index];
            let huffman = tables.of(component.dc, component.ac);
            match &self.pairs[self.places[index]] {
                Some(Pair { first, rest, skip, .. }) => Symbols { first, rest, skip, huffman },
                None => unreachable!("every component's tables were just made"),
            }
        })
    }
}

impl Pair {
    fn new(key: [u64; 4], Huffman { dc, ac }: Huffman<'_>) -> Self {
        let table = |entry: &dyn Fn(usize) -> Entry| Box::new(std::array::from_fn(entry));
        Self {
            key,
            first: table(&|window| entry(dc, ac, window)),
            rest: table(&|window| entry(ac, ac, window)),
            skip: table(&|window| skip_entry(ac, window)),
        }
    }
}

/// The entry of a window that begins with a symbol of `table` and goes on with those of `ac`.
fn entry(table: &Table, ac: &Table, window: usize) -> Entry {
    let one = table.look(window);
    if one.is_end() {
        return Entry::new(one.length, END_STEPS + 1);
    }
    let Some(first) = value_bits(one.value).filter(|_| !one.is_long()) else {
        return Entry::new(0, ALONE_STEPS);
    };
    // The first symbol of a block is at its place, an AC coefficient 1 to 16 steps ahead.
    let steps = if std::ptr::eq(table, ac) { one.steps } else { 0 };
    let next = |length: u32| {
        Some(ac.look((window << length) % ENTRIES)).filter(|next| length + next.length <= WINDOW)
    };
    let second = next(one.length)
        .filter(|two| two.steps <= MOST_SECOND_STEPS)
        .and_then(|two| Some((two.length, two.steps, value_bits(two.value)?)));
    let (more, second_steps, second) = second.unwrap_or((0, 0, first));
    let length = one.length + more;
    let (length, end) = match next(length) {
        Some(end) if end.is_end() => (length + end.length, END_STEPS),
        _ => (length, 0),
    };
    Entry(Entry::new(length, steps + second_steps + end).0 | second_steps << 6 | first << 16 | second << 24)
}

/// A value as an entry has it, if it fits.
fn value_bits(value: i32) -> Option<u32> {
    i8::try_from(value).ok().map(|value| u32::from(value.cast_unsigned()))
}

/// The entry of all AC symbols that a window has, without values.
fn skip_entry(ac: &Table, window: usize) -> Entry {
    let (mut length, mut steps) = (0, 0);
    loop {
        let one = ac.look((window << length) % ENTRIES);
        if one.is_long()
            || length + one.length > WINDOW
            || (!one.is_end() && (steps + one.steps) as usize > LAST)
        {
            break;
        }
        length += one.length;
        if one.is_end() {
            return Entry::new(length, steps + END_STEPS);
        }
        steps += one.steps;
    }
    Entry::new(length, if length == 0 { ALONE_STEPS } else { steps })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_do_not_overlap() {
        let first = value_bits(-128).unwrap();
        let second = value_bits(127).unwrap();
        let entry = Entry(Entry::new(11, 19 + END_STEPS).0 | 3 << 6 | first << 16 | second << 24);
        assert_eq!((entry.length() & 63, entry.steps() % END, entry.second_steps()), (11, 19, 3));
        assert_eq!((entry.first(), entry.second(), entry.ends()), (-128, 127, true));
        assert_eq!(value_bits(128), None);
    }
}
