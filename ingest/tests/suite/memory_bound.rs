//! Measures the memory of a run: at most its budget, its batches and a fixed rest, for any files.
//!
//! A separate process (this program, running [`reader`]) reads each data set. Its peak of resident memory counts, since blocks
//! are in mappings, which no allocator sees.

use crate::memory_files as files;
use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions};
use feedstock_ingest::{ErrorKind, RawBatches, RawOptions};
use proptest::prelude::*;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const BUDGET_BYTES: u64 = 64 << 20;
/// Memory beyond budget and batches: 64 MiB of blocks being made, 32 MiB of idle blocks, an eighth of the budget, and the
/// program.
const REST_BYTES: u64 = 200_000_000;
/// The batches of [`RawBatches`]: four being made and one in use.
const SLOTS: u64 = 5;
const FOLDER: &str = "FEEDSTOCK_MEMORY_FOLDER";
const BATCH_ROWS: u64 = 8;

/// The report of a reader.
#[derive(Debug)]
struct Read {
    rows: u64,
    growth: u64,
    slots: u64,
}

fn open(folder: &str) -> Dataset {
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let options = OpenOptions { catalog, ..OpenOptions::default() };
    futures::executor::block_on(Dataset::open_with(folder, options)).unwrap()
}

/// Returns a line of `/proc/self/status`, in bytes.
fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Reads the data set that the environment names, and prints the memory that it took.
#[test]
#[ignore = "the other tests of this file run it in a separate process"]
fn reader() {
    let dataset = open(&std::env::var(FOLDER).unwrap());
    std::fs::write("/proc/self/clear_refs", "5").unwrap(); // resets the peak
    let before = status("VmRSS");
    let options = RawOptions { batch_rows: BATCH_ROWS, budget_bytes: BUDGET_BYTES, ..RawOptions::default() };
    let batches = match RawBatches::start(&dataset, &options) {
        Ok(batches) => batches,
        Err(error) if error.kind() == ErrorKind::BadConfig => return println!("refused: {error}"),
        Err(error) => panic!("{error}"),
    };
    let (mut rows, mut largest) = (0, 0);
    for (step, batch) in batches.enumerate() {
        let batch = batch.unwrap();
        rows += batch.num_rows();
        largest = largest.max(batch.get_array_memory_size());
        if step < 4 {
            std::thread::sleep(Duration::from_millis(250)); // by then, everything that may be read ahead is read
        }
    }
    let growth = status("VmHWM").saturating_sub(before);
    println!("read: {rows} {growth} {}", largest as u64 * SLOTS);
}

/// Reads `folder` in a separate process. `Err` is the reason for a rejection.
fn read(folder: &Path) -> Result<Read, String> {
    let program = std::env::current_exe().unwrap();
    let child = Command::new(program)
        .args(["--exact", "memory_bound::reader", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{out}");
    let line =
        |start: &str| out.lines().find_map(|line| line.split_once(start)).map(|(_, rest)| rest.to_owned());
    if let Some(refused) = line("refused: ") {
        return Err(refused);
    }
    let numbers = line("read: ").unwrap_or_else(|| panic!("{out}"));
    let numbers: Vec<u64> = numbers.split_whitespace().map(|number| number.parse().unwrap()).collect();
    Ok(Read { rows: numbers[0], growth: numbers[1], slots: numbers[2] })
}

fn is_bounded(what: &str, read: &Read) {
    let most = BUDGET_BYTES + read.slots + REST_BYTES;
    let mib = |bytes: u64| bytes >> 20;
    println!("{what}: {} MiB, at most {}", mib(read.growth), mib(most));
    assert!(
        read.growth <= most,
        "{what}: memory grew by {} MiB, more than {} MiB: {read:?}",
        mib(read.growth),
        mib(most)
    );
}

/// 512 MiB of values in a few MB of files, of each kind that takes another code path.
#[test]
fn files_that_take_far_more_memory_than_bytes_stay_within_the_budget() {
    for (what, write, rows) in files::HOSTILE {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        let read = read(folder.path()).unwrap_or_else(|refused| panic!("{what}: {refused}"));
        assert_eq!(read.rows, *rows, "{what}");
        is_bounded(what, &read);
    }
}

/// A block that alone exceeds the budget is rejected before anything is decompressed. The error states its size.
#[test]
fn a_block_larger_than_the_budget_when_decompressed_is_refused() {
    for (what, write) in files::TOO_LARGE {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        let refused = read(folder.path()).expect_err(what);
        assert!(
            refused.contains("smaller than one batch") && refused.contains("of memory"),
            "{what}: {refused}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, max_shrink_iters: 4, ..ProptestConfig::default() })]

    #[test]
    fn files_of_every_format_stay_within_the_budget(file in files::any_file()) {
        let folder = tempfile::tempdir().unwrap();
        files::write(&file, folder.path());
        match read(folder.path()) {
            Ok(read) => {
                prop_assert_eq!(read.rows, file.rows());
                is_bounded(&format!("{file:?}"), &read);
            }
            Err(refused) => prop_assert!(refused.contains("smaller than one batch"), "{}", refused),
        }
    }
}
