//! Measures what an index of rows saves from the second epoch on: `cargo bench -p feedstock-ops --bench row_index --profile dev`
//!
//! One thread, baseline JPEGs of 500×375 px without restart markers, random_resized_crop(224) and a flip, u8. Each image is
//! decoded without an index and with the index that its earlier epochs left, in turns, in CPU time; hashing the
//! file, reading the stored form and writing it are counted. The outputs are compared bit for bit.
//! `FEEDSTOCK_BENCH_EPOCHS` sets the number of epochs (default 20), `FEEDSTOCK_BENCH_OPS` another chain.
//! `FEEDSTOCK_BENCH_PICTURES` is a folder of JPEGs to use instead, such as one that
//! `feedstock synth imagenet --layout folder --width 500 --height 375` wrote.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::cast_possible_truncation,
    clippy::undocumented_unsafe_blocks,
    reason = "a bench"
)]

#[path = "../tests/support/mod.rs"]
mod support;

use std::path::Path;
use std::time::Duration;

use feedstock_ops::image::RowIndex;
use feedstock_ops::{Chain, SampleSeed, Scratch};
use support::{Jpeg, cpu_time, textured_picture};

const WIDTH: u32 = 500;
const HEIGHT: u32 = 375;
const PICTURES: u64 = 96;
/// Of a folder.
const MOST_PICTURES: usize = 1000;
const QUALITIES: [i32; 2] = [95, 85];
const CHAIN: &str = "decode_image,random_resized_crop:224,horizontal_flip";

fn made(quality: i32) -> Vec<Vec<u8>> {
    let jpeg = Jpeg { quality, ..Jpeg::default() };
    (0..PICTURES)
        .map(|seed| jpeg.encode(&textured_picture(WIDTH, HEIGHT, seed, 15.0, 0.35), WIDTH, HEIGHT))
        .collect()
}

/// All JPEGs below a folder, by name.
fn found(folder: &Path, into: &mut Vec<Vec<u8>>) {
    let mut entries: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            found(&path, into);
        } else if into.len() < MOST_PICTURES {
            into.extend(Some(std::fs::read(path).unwrap()).filter(|bytes| bytes.starts_with(&[0xFF, 0xD8])));
        }
    }
}

/// Decodes all of `photos` once an epoch, and prints the CPU time without and with an index.
fn compare(photos: &[Vec<u8>], epochs: u64) {
    let ops = std::env::var("FEEDSTOCK_BENCH_OPS");
    let chain = Chain::parse(ops.as_deref().unwrap_or(CHAIN)).unwrap();
    let (mut plain, mut indexed) = (Scratch::new(), Scratch::new());
    let mut rows = [(); 2].map(|()| vec![0; chain.output().bytes()]);
    let [plain_row, indexed_row] = &mut rows;
    let mut known: Vec<Option<Vec<u8>>> = vec![None; photos.len()];
    for (id, photo) in photos.iter().enumerate() {
        for scratch in [&mut plain, &mut indexed] {
            chain.apply(photo, SampleSeed::new(8, 0, id as u64), scratch, plain_row).unwrap();
        }
    }
    let (mut later, mut first) = ([Duration::ZERO; 2], [Duration::ZERO; 2]);
    for epoch in 0..epochs {
        let mut spent = [Duration::ZERO; 2];
        for (id, photo) in photos.iter().enumerate() {
            let seed = SampleSeed::new(7, epoch, id as u64);
            let mut without = || {
                let begun = cpu_time();
                chain.apply(photo, seed, &mut plain, plain_row).unwrap();
                cpu_time() - begun
            };
            let mut with = || {
                let begun = cpu_time();
                indexed.note_rows(known[id].as_deref().and_then(RowIndex::from_bytes));
                chain.apply(photo, seed, &mut indexed, indexed_row).unwrap();
                if let Some(index) = indexed.take_rows() {
                    known[id] = Some(index.to_bytes());
                }
                cpu_time() - begun
            };
            // The second finds the file in the processor's caches.
            let times = match (id as u64 + epoch) % 2 {
                0 => [without(), with()],
                _ => {
                    let with = with();
                    [without(), with]
                }
            };
            assert!(plain_row == indexed_row, "image {id}, epoch {epoch}: not bit-identical");
            for (spent, time) in spent.iter_mut().zip(times) {
                *spent += time;
            }
        }
        for (sum, spent) in if epoch == 0 { &mut first } else { &mut later }.iter_mut().zip(spent) {
            *sum += spent;
        }
    }
    let count = photos.len() as f64;
    let line = |name: &str, [without, with]: [Duration; 2], count: f64| {
        let [without, with] = [without, with].map(|spent| spent.as_secs_f64() / count * 1e6);
        println!("{name:<16} without {without:>7.1} µs  with {with:>7.1} µs  ratio {:.3}", without / with);
    };
    line("first epoch", first, count);
    if epochs > 1 {
        line("later epochs", later, count * (epochs - 1) as f64);
    }
    let known: Vec<&Vec<u8>> = known.iter().flatten().collect();
    let bytes = known.iter().map(|bytes| bytes.len()).sum::<usize>() as f64 / known.len().max(1) as f64;
    println!("{} indexes of {bytes:.0} bytes on average", known.len());
}

fn main() {
    // `cargo test --benches` only checks that it runs.
    let test = std::env::args().any(|argument| argument == "--test");
    let epochs =
        std::env::var("FEEDSTOCK_BENCH_EPOCHS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let epochs = if test { 2 } else { epochs };
    let describe = |photos: &[Vec<u8>], what: &str| {
        let kib = photos.iter().map(Vec::len).sum::<usize>() as f64 / photos.len() as f64 / 1024.0;
        println!(
            "{} images, {what}, {kib:.0} KiB on average, {epochs} epochs, CPU time per image",
            photos.len()
        );
    };
    if let Some(folder) = std::env::var_os("FEEDSTOCK_BENCH_PICTURES") {
        let mut photos = Vec::new();
        found(Path::new(&folder), &mut photos);
        describe(&photos, "of the folder");
        return compare(&photos, epochs);
    }
    for quality in QUALITIES {
        let photos = made(quality);
        describe(&photos, &format!("{WIDTH}×{HEIGHT}, quality {quality}"));
        compare(&photos, epochs);
    }
}
