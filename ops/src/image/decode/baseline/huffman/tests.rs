//! Every table and every way to read it.

use super::super::bits::Segments;
use super::super::places::ZIGZAG;
use super::*;
use crate::seed::{Generator, SampleSeed};

struct Spec {
    counts: [u8; 16],
    symbols: Vec<u8>,
}

impl Spec {
    /// Codes of random lengths, with a liking for short codes of zeros and ends; some bits belong to no code.
    fn random(generator: &mut Generator, is_dc: bool) -> Self {
        let mut symbols: Vec<u8> =
            if is_dc { (0..=11).collect() } else { (0..=255).filter(|symbol| symbol & 15 <= 10).collect() };
        generator.shuffle(&mut symbols);
        for first in [0x00, 0xF0] {
            if !is_dc && generator.chance(0.5) {
                symbols.retain(|symbol| *symbol != first);
                symbols.insert(generator.below(3) as usize, first);
            }
        }
        symbols.truncate(2 + generator.below(symbols.len() as u32 - 2) as usize);
        let (mut counts, mut code, mut left) = ([0; 16], 0_u32, symbols.len() as u32);
        let shortest = generator.below(4) as usize;
        for (length, count) in (1..).zip(&mut counts).skip(shortest) {
            let room = (1_u32 << length) - code - 1;
            let most = room.min(left).min(200);
            let taken = if length == 16 || most == 0 { most } else { generator.below(most.min(6) + 1) };
            *count = u8::try_from(taken).unwrap();
            (code, left) = ((code + taken) << 1, left - taken);
        }
        symbols.truncate(symbols.len() - left as usize);
        Self { counts, symbols }
    }

    fn spec(&self) -> HuffmanSpec<'_> {
        HuffmanSpec { counts: &self.counts, symbols: &self.symbols }
    }
}

/// Bit after bit, as T.81 has it in annex F.2.
struct Slow<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Slow<'_> {
    fn bits(&mut self, count: u32) -> usize {
        (0..count).fold(0, |bits, _| {
            let bit = self.bytes[self.at / 8] >> (7 - self.at % 8) & 1;
            self.at += 1;
            bits << 1 | usize::from(bit)
        })
    }

    fn symbol(&mut self, spec: &Spec) -> Option<u8> {
        let (mut code, mut first, mut index) = (0, 0, 0);
        for count in spec.counts.map(usize::from) {
            code = code << 1 | self.bits(1);
            if code < first + count {
                return Some(spec.symbols[index + code - first]);
            }
            (first, index) = ((first + count) << 1, index + count);
        }
        None
    }

    fn value(&mut self, size: u32) -> i32 {
        let bits = i32::try_from(self.bits(size)).unwrap();
        if size > 0 && bits < 1 << (size - 1) { bits - (1 << size) + 1 } else { bits }
    }

    fn difference(&mut self, spec: &Spec) -> Option<i32> {
        let size = self.symbol(spec)?;
        Some(self.value(size.into()))
    }

    /// The block without its first coefficient, and whether it has no other.
    fn block(&mut self, spec: &Spec) -> Option<([i16; 64], bool)> {
        let (mut block, mut at) = ([0; 64], 0);
        while at < LAST {
            let symbol = self.symbol(spec)?;
            let (run, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            if size == 0 && run < 15 {
                break;
            }
            let value = self.value(size);
            at += run + 1;
            block[usize::from(*ZIGZAG.get(at)?)] = i16::try_from(value).unwrap();
        }
        Some((block, at == 0))
    }
}

#[test]
fn blocks_are_those_of_bit_after_bit() {
    let mut generator = SampleSeed::new(11, 0, 0).op(0);
    let (mut tables, mut segments) = (Tables::default(), Segments::default());
    let places = Places::new(&[1; 64]);
    let none = Spec { counts: [2; 16], symbols: vec![1; 32] };
    let mut whole = 0;
    for round in 0..6_000 {
        // An invalid table leaves nothing in memory.
        if round % 7 == 0 {
            assert_eq!(tables.prepare_ac(1, Some(none.spec()), true), Err(Declined::Damage));
        }
        let [dc_spec, ac_spec] = [true, false].map(|is_dc| Spec::random(&mut generator, is_dc));
        tables.prepare_dc(0, Some(dc_spec.spec())).unwrap();
        tables.prepare_ac(1, Some(ac_spec.spec()), false).unwrap();
        let bytes = (0..600).map(|_| generator.next_u64().to_le_bytes()[0]);
        let bytes: Vec<u8> = bytes.filter(|byte| *byte != 0xFF).collect();
        segments.read(&bytes, 0).unwrap();

        let mut slow = Slow { bytes: &bytes, at: 0 };
        let mut bits = segments.get(0).unwrap();
        let difference = slow.difference(&dc_spec);
        assert_eq!(dc(&mut bits, tables.of(0, 1).dc).ok(), difference, "round {round}");
        if difference.is_none() {
            continue;
        }
        let start = bits;
        let expected = slow.block(&ac_spec);
        let mut block = [0; 64];
        let flat = ac(&mut bits, tables.of(0, 1).ac, &places, &mut block);
        let found = flat.ok().map(|flat| (block, flat));
        assert!(found == expected, "round {round}: {found:?} instead of {expected:?}");
        let skip = |tables: &Tables| {
            let mut bits = start;
            skip_ac(&mut bits, tables.of(0, 1).ac).ok().map(|()| bits.place())
        };
        let each = skip(&tables);
        tables.prepare_ac(1, Some(ac_spec.spec()), true).unwrap();
        let end = expected.map(|_| slow.at);
        assert_eq!(
            [each, skip(&tables)],
            [end, end],
            "round {round}: skipped one by one, and several at once"
        );
        if let Some(end) = end {
            assert_eq!(bits.place(), end, "round {round}");
            whole += 1;
        }
    }
    assert!(whole > 1_000, "only {whole} blocks were whole");
}
