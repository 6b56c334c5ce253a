//! Measures the memory of a loader: at most `budget_bytes` + slots + 200 MB + `threads` × `decoder_memory`, for any files.
//!
//! A separate process (this program, running [`loader`]) loads each data set. Its peak of resident memory counts.

use crate::memory_files::{self as files, Files};
use feedstock_dataset::{CatalogOptions, CatalogStore, Durations, OpenOptions, Rank, Shuffle};
use feedstock_ops::ChainSpec;
use feedstock_trainer_bridge::{BatchSize, Dataset, ErrorKind, OnError};
use proptest::prelude::*;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Memory beyond budget, slots and working memory: 64 MiB of blocks being made, 32 MiB of idle blocks, and the program.
const REST_BYTES: u64 = 200_000_000;
const SLOTS: u64 = 3;
const ARGUMENTS: &str = "FEEDSTOCK_MEMORY_ARGUMENTS";
const MIB: u64 = 1 << 20;

/// How a data set is loaded.
#[derive(Debug, Clone, Copy)]
struct Settings {
    budget_bytes: u64,
    decoder_memory: u64,
    threads: usize,
    batch: usize,
    shuffle: bool,
}

/// The report of a loader.
#[derive(Debug)]
struct Loaded {
    valid: usize,
    bad: usize,
    growth: u64,
    slot_bytes: u64,
}

/// Returns a line of `/proc/self/status`, in bytes.
fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// Returns the split of a layout that has several.
fn split(layout: &str) -> Option<String> {
    layout.starts_with("common_voice").then(|| "train".to_owned())
}

/// Loads the data set that the environment names, and prints the memory that it took.
#[test]
#[ignore = "the other tests of this file run it in a separate process"]
fn loader() {
    let arguments = std::env::var(ARGUMENTS).unwrap();
    let [folder, layout, column, ops, budget_bytes, decoder_memory, threads, batch, shuffle] =
        arguments.split('|').collect::<Vec<_>>().try_into().unwrap();
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    let options = OpenOptions { catalog, durations: Durations::Never, ..OpenOptions::default() };
    let options = OpenOptions { layout: layout.parse().ok(), split: split(layout), ..options };
    let dataset: Dataset = futures::executor::block_on(Dataset::open_with(folder, options)).unwrap();
    let pipeline = dataset
        .map(column, ops.parse::<ChainSpec>().unwrap())
        .shuffle(if shuffle == "true" { Shuffle::full(3) } else { Shuffle::none() })
        .batch(BatchSize::per_rank(batch.parse().unwrap()))
        .epochs(1)
        .slots(usize::try_from(SLOTS).unwrap())
        .threads(threads.parse().unwrap())
        .on_error(OnError::Skip { max_fraction: 1.0 })
        .budget_bytes(budget_bytes.parse().unwrap())
        .decoder_memory(decoder_memory.parse().unwrap())
        .deadline(Duration::from_secs(200));
    std::fs::write("/proc/self/clear_refs", "5").unwrap(); // resets the peak
    let before = status("VmRSS");
    let batches = match pipeline.rank(Rank::new(0, 1)).start() {
        Ok(batches) => batches,
        Err(error) if error.kind() == ErrorKind::BadConfig => return println!("refused: {error}"),
        Err(error) => panic!("{error}"),
    };
    let (mut valid, mut bad, mut largest) = (0, 0, 0);
    for batch in batches {
        let batch = match batch {
            Ok(batch) => batch,
            Err(error) if error.kind() == ErrorKind::BadConfig => return println!("refused: {error}"),
            Err(error) => panic!("{error}"),
        };
        let good = batch.valid().iter().filter(|valid| **valid).count();
        (valid, bad) = (valid + good, bad + batch.len() - good);
        largest = largest.max(batch.tensors().iter().map(|tensor| tensor.bytes().len()).sum::<usize>());
    }
    let growth = status("VmHWM").saturating_sub(before);
    println!("loaded: {valid} {bad} {growth} {}", largest as u64);
}

/// Loads `folder` in a separate process. `Err` is the reason for a rejection.
fn load(folder: &Path, files: &Files, settings: Settings) -> Result<Loaded, String> {
    let Settings { budget_bytes, decoder_memory, threads, batch, shuffle } = settings;
    let (column, ops) = (files.column(), files.ops());
    let folder = folder.display();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory_bound::loader", "--ignored", "--nocapture"])
        .env(
            ARGUMENTS,
            format!(
                "{folder}|{}|{column}|{ops}|{budget_bytes}|{decoder_memory}|{threads}|{batch}|{shuffle}",
                files.layout
            ),
        )
        .output()
        .unwrap();
    let out = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert!(child.status.success(), "{out}");
    let line =
        |start: &str| out.lines().find_map(|line| line.split_once(start)).map(|(_, rest)| rest.to_owned());
    if let Some(refused) = line("refused: ") {
        return Err(refused);
    }
    let numbers = line("loaded: ").unwrap_or_else(|| panic!("{out}"));
    let numbers: Vec<u64> = numbers.split_whitespace().map(|number| number.parse().unwrap()).collect();
    let [valid, bad] = [numbers[0], numbers[1]].map(|count| usize::try_from(count).unwrap());
    Ok(Loaded { valid, bad, growth: numbers[2], slot_bytes: numbers[3] })
}

/// Returns the memory that a loader may take with these settings.
fn bound(loaded: &Loaded, settings: Settings) -> u64 {
    let Settings { budget_bytes, decoder_memory, threads, .. } = settings;
    budget_bytes + SLOTS * loaded.slot_bytes + REST_BYTES + threads as u64 * decoder_memory
}

fn assert_bounded(what: &str, loaded: &Loaded, settings: Settings) {
    let most = bound(loaded, settings);
    let mib = |bytes: u64| bytes >> 20;
    println!("{what}, {settings:?}: {} MiB of {}: {loaded:?}", mib(loaded.growth), mib(most));
    assert!(
        loaded.growth <= most,
        "{what}, {settings:?}: memory grew by {} MiB, more than {} MiB: {loaded:?}",
        mib(loaded.growth),
        mib(most)
    );
}

/// Puts all samples in one batch, so that every thread has a large one.
fn narrow(files: &Files) -> Settings {
    let (budget_bytes, decoder_memory, batch) = (512 * MIB, 16 * MIB, files.samples.len());
    Settings { budget_bytes, decoder_memory, threads: 8, batch, shuffle: false }
}

/// Proves that the next test can measure growth: without a limit, threads take more.
#[test]
fn without_a_limit_the_same_samples_take_more() {
    let (what, files, _) = files::large().into_iter().find(|(what, ..)| what.contains("155 MB")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    files.write(folder.path());
    let loaded =
        load(folder.path(), &files, Settings { decoder_memory: 1024 * MIB, ..narrow(&files) }).unwrap();
    println!("{what}: {} MiB", loaded.growth >> 20);
    assert!(loaded.growth > bound(&loaded, narrow(&files)), "{what}: {loaded:?}");
}

/// Decodes 16 images or audio clips at once, each of which takes 90 to 400 MB.
#[test]
fn large_and_hostile_samples_stay_within_the_bound() {
    for (what, files, bad) in files::large() {
        let folder = tempfile::tempdir().unwrap();
        files.write(folder.path());
        let settings = narrow(&files);
        let loaded =
            load(folder.path(), &files, settings).unwrap_or_else(|refused| panic!("{what}: {refused}"));
        assert_eq!((loaded.valid, loaded.bad), (files.samples.len() - bad, bad), "{what}");
        assert_bounded(what, &loaded, settings);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10, max_shrink_iters: 4, ..ProptestConfig::default() })]

    #[test]
    fn samples_of_every_format_stay_within_the_bound(
        files in files::any_files(),
        (budget, decoder, threads) in (64u64..800, 1u64..100, 1usize..9),
        (shuffle, is_one_batch) in any::<(bool, bool)>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        files.write(folder.path());
        let batch = if is_one_batch { files.samples.len() } else { 2 };
        let (budget_bytes, decoder_memory) = (budget * MIB, decoder * MIB);
        let settings = Settings { budget_bytes, decoder_memory, threads, batch, shuffle };
        match load(folder.path(), &files, settings) {
            Ok(loaded) => {
                prop_assert_eq!(loaded.valid + loaded.bad, files.samples.len());
                assert_bounded(&format!("{files:?}"), &loaded, settings);
            }
            Err(refused) => prop_assert!(
                refused.contains("smaller than one batch") || refused.contains("raise budget_bytes or decoder_memory"),
                "{}",
                refused
            ),
        }
    }
}
