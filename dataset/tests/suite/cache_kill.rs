//! Processes that share a cache folder and are killed at random moments.

use crate::cache_support::{bytes_on_disk, has, in_another_process, open, put, task};
use feedstock_dataset::DiskCache;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::Child;
use std::sync::mpsc;
use std::time::Duration;

const OBJECTS: u64 = 1500;
/// Room for all objects.
const LARGE: u64 = 1 << 30;
/// Room for about a third of them.
const SMALL: u64 = 6 << 20;
/// What a process stores to be taken over.
const FILLED: u64 = 2000;

/// A small generator: the moments and objects are random, and the same in each run of the test.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Returns the bytes of an object: 12 kB on average; one of 300 is too large for a slab.
fn len(n: u64) -> u64 {
    if n % 300 == 7 { (1 << 20) + 1000 } else { 100 + n * 7919 % 17_000 }
}

/// Reads and stores random objects until it is killed. Prints the number of each object that it stored.
fn read_and_store(cache: &DiskCache, seed: u64) -> ! {
    let mut random = Random(seed);
    println!("\nready");
    let mut at = 0;
    loop {
        let n = random.below(OBJECTS);
        if !has(cache, n, len(n)) && put(cache, n, len(n), at + random.below(OBJECTS)) {
            println!("stored {n}");
        }
        at += 1;
    }
}

/// Not a separate test: the others run it. Its tasks: `works CAP SEED`, `fills FIRST`, `opens`.
#[test]
fn run_as_another_process() {
    let Some((folder, what)) = task() else { return };
    let words: Vec<&str> = what.split(' ').collect();
    let number = |word: usize| words[word].parse().unwrap();
    match words[0] {
        "works" => read_and_store(&open(&folder, number(1)), number(2)),
        "fills" => {
            let cache = open(&folder, LARGE);
            (number(1)..number(1) + FILLED).for_each(|n| assert!(put(&cache, n, 100, n)));
            println!("\nready");
        }
        _ => {
            println!("\nready");
            open(&folder, LARGE);
        }
    }
    std::io::stdin().read_line(&mut String::new()).unwrap(); // until it is killed
}

struct Process {
    child: Child,
    ready: mpsc::Receiver<()>,
    stored: std::thread::JoinHandle<BTreeSet<u64>>,
}

impl Process {
    fn start(folder: &Path, what: &str) -> Self {
        let mut child = in_another_process("cache_kill::run_as_another_process", folder, what);
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let (send, ready) = mpsc::channel();
        let stored = std::thread::spawn(move || {
            let mut line = String::new();
            while line != "ready\n" {
                line.clear();
                if output.read_line(&mut line).unwrap() == 0 {
                    return BTreeSet::new(); // killed before it was ready
                }
            }
            send.send(()).unwrap();
            let mut text = String::new();
            output.read_to_string(&mut text).unwrap();
            text.truncate(text.rfind('\n').map_or(0, |last| last + 1)); // the last line may be half a number
            text.lines().map(|line| line.strip_prefix("stored ").unwrap().parse().unwrap()).collect()
        });
        Self { child, ready, stored }
    }

    fn wait_until_ready(&self) {
        self.ready.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    /// Sends SIGKILL. Returns what it has stored.
    fn kill(mut self) -> BTreeSet<u64> {
        assert_eq!(self.child.try_wait().unwrap(), None, "it ended before it was killed");
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.stored.join().unwrap()
    }
}

/// Two ranks of a node are killed in ten rounds, in every second one while they open the folder, one after the other. A
/// third process then finds only right bytes, within the cap, and, as long as nothing is evicted, all that they stored.
#[test]
fn killed_processes_lose_only_what_they_were_writing() {
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(7);
    let mut stored = BTreeSet::new();
    let sleep = |millis| std::thread::sleep(Duration::from_millis(millis));
    for round in 0..10 {
        let cap = if round < 5 { LARGE } else { SMALL };
        let mut start = || Process::start(dir.path(), &format!("works {cap} {}", random.below(1 << 30)));
        let (first, second) = (start(), start());
        if round % 2 == 0 {
            [&first, &second].into_iter().for_each(Process::wait_until_ready);
            sleep(random.below(80));
            // A slab's own blocks (12 KiB for 1,000 extents) count after they were measured.
            let on_disk = bytes_on_disk(dir.path());
            assert!(on_disk <= cap + (64 << 10), "{on_disk} bytes on disk, cap {cap}");
        }
        sleep(random.below(60));
        stored.extend(first.kill());
        sleep(random.below(40));
        stored.extend(second.kill());

        let cache = open(dir.path(), cap);
        assert_eq!(cache.stats().used_bytes, bytes_on_disk(dir.path()), "round {round}");
        assert!(cache.stats().used_bytes <= cap, "round {round}: {:?}", cache.stats());
        let found: BTreeSet<u64> = (0..OBJECTS).filter(|n| has(&cache, *n, len(*n))).collect();
        assert_eq!(cache.stats().damaged, 0, "round {round}");
        assert_eq!(cache.stats().entries, found.len(), "round {round}");
        if cap == LARGE {
            assert_eq!(stored.difference(&found).count(), 0, "round {round}");
        }
        assert!(round == 0 || !found.is_empty());
    }
    assert!(stored.len() > 100, "the processes were killed before they stored anything: {}", stored.len());
}

/// Copies a part. Files keep their lengths; what is after the last entry stays a hole.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for file in fs::read_dir(from).unwrap().map(|file| file.unwrap()) {
        let mut copy = fs::File::create(to.join(file.file_name())).unwrap();
        let mut written = fs::File::open(file.path()).unwrap().take(FILLED * 4096);
        std::io::copy(&mut written, &mut copy).unwrap();
        copy.set_len(file.metadata().unwrap().len()).unwrap();
    }
}

/// The parts of two killed processes are taken over by a third, which is killed at random moments of that.
#[test]
fn a_take_over_that_is_killed_loses_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let folder = |name: &str| dir.path().join(name);
    let owners = [0, FILLED].map(|first| Process::start(&folder("killed"), &format!("fills {first}")));
    owners.iter().for_each(Process::wait_until_ready);
    owners.into_iter().for_each(|owner| drop(owner.kill()));
    let mut random = Random(11);
    for round in 0..12 {
        for part in ["part-0", "part-1"] {
            copy(&folder("killed").join(part), &folder("copy").join(part));
        }
        let third = Process::start(&folder("copy"), "opens");
        third.wait_until_ready();
        std::thread::sleep(Duration::from_micros(random.below(15_000)));
        third.kill();
        let cache = open(&folder("copy"), LARGE);
        assert_eq!(cache.stats().entries as u64, 2 * FILLED, "round {round}");
        assert!((0..2 * FILLED).all(|n| has(&cache, n, 100)), "round {round}");
        assert_eq!((cache.stats().used_bytes, cache.stats().damaged), (bytes_on_disk(&folder("copy")), 0));
        drop(cache);
        fs::remove_dir_all(folder("copy")).unwrap();
    }
}
