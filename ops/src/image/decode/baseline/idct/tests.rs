//! The transforms against each other: flat blocks, fewer samples, AVX2.

use super::*;
use crate::seed::{Generator, SampleSeed};

#[test]
fn a_flat_block_is_what_each_transform_makes_of_it() {
    for dc in i16::MIN..=i16::MAX {
        let mut block = [0; 64];
        block[0] = dc;
        let (mut eight, mut four, mut two) = ([0; 64], [0; 16], [0; 4]);
        Plain.block::<8>(&block, &mut eight, 8);
        Plain.block::<4>(&block, &mut four, 4);
        Plain.block::<2>(&block, &mut two, 2);
        assert_eq!(eight, [full::flat(dc); 64]);
        assert_eq!((four, two), ([reduced::flat(4, dc); 16], [reduced::flat(2, dc); 4]));
    }
}

/// A reduced block is close to the means of the full one, if that is smooth.
#[test]
fn reduced_blocks_are_means_of_full_ones() {
    let mut generator = crate::SampleSeed::new(3, 0, 0).op(0);
    for _round in 0..2000 {
        let mut block = [0; 64];
        for (at, largest) in [(0, 400), (1, 100), (8, 100), (9, 50), (2, 40), (16, 40)] {
            block[at] =
                i16::try_from(generator.below(2 * largest)).unwrap() - i16::try_from(largest).unwrap();
        }
        let mut full = [0; 64];
        full::full(&block, &mut full, 8);
        let (mut four, mut two) = ([0; 16], [0; 4]);
        reduced::half(&block, &mut four, 4);
        reduced::quarter(&block, &mut two, 2);
        let one = [reduced::flat(1, block[0])];
        for (side, samples) in [(4, &four[..]), (2, &two), (1, &one)] {
            let step = 8 / side;
            for (at, value) in samples.iter().enumerate() {
                let (x, y) = (at % side * step, at / side * step);
                let sum: u32 = (y..y + step)
                    .flat_map(|y| full[y * 8 + x..][..step].iter())
                    .map(|one| u32::from(*one))
                    .sum();
                let mean = f64::from(sum) / (step * step) as f64;
                assert!((mean - f64::from(*value)).abs() <= 1.5, "{side}: {value} {mean}");
            }
        }
    }
}

/// A block of small values in even rounds, and of the full range in odd ones.
#[cfg(target_arch = "x86_64")]
fn random_block(generator: &mut Generator, round: usize) -> [i16; 64] {
    let range = if round.is_multiple_of(2) { 200 } else { 65_536 };
    std::array::from_fn(|_| i16::try_from(i64::from(generator.below(range)) - i64::from(range / 2)).unwrap())
}

/// Compares `SIDE` × `SIDE` samples of plain Rust and of AVX2.
#[cfg(target_arch = "x86_64")]
fn same_bits<const SIDE: usize>(block: &[i16; 64]) {
    let (mut a, mut b) = ([0; 64], [0; 64]);
    Plain.block::<SIDE>(block, &mut a, SIDE);
    Lanes(()).block::<SIDE>(block, &mut b, SIDE);
    assert_eq!(a, b);
}

#[cfg(target_arch = "x86_64")]
#[test]
fn full_lanes_give_the_bits_of_plain_rust() {
    if !is_x86_feature_detected!("avx2") {
        return;
    }
    let mut generator = SampleSeed::new(1, 0, 0).op(0);
    for round in 0..8000 {
        let mut block = random_block(&mut generator, round);
        // All, or the first four rows, or the first row alone.
        block[[64, 32, 8][round / 2 % 3]..].fill(0);
        same_bits::<8>(&block);
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn reduced_lanes_give_the_bits_of_plain_rust() {
    if !is_x86_feature_detected!("avx2") {
        return;
    }
    let mut generator = SampleSeed::new(4, 0, 0).op(0);
    for round in 0..12_000 {
        let mut block = random_block(&mut generator, round);
        // All, or the first four rows, the first row, or the first row and the unused one.
        match round / 2 % 4 {
            0 => {}
            1 => block[32..].fill(0),
            2 => block[8..].fill(0),
            _ => {
                block[8..32].fill(0);
                block[40..].fill(0);
            }
        }
        same_bits::<4>(&block);
        same_bits::<2>(&block);
    }
}
