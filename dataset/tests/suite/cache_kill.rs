//! Processes that share a cache folder and are killed at random moments.

use crate::cache_support::{bytes_on_disk, has, in_another_process, open, put, task};
use feedstock_dataset::DiskCache;
use std::collections::BTreeSet;
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

/// Not a separate test: the next one runs it.
#[test]
fn run_as_another_process() {
    let Some((folder, what)) = task() else { return };
    let (cap, seed) = what.split_once(' ').unwrap();
    let cache = open(&folder, cap.parse().unwrap());
    read_and_store(&cache, seed.parse().unwrap());
}

struct Process {
    child: Child,
    ready: mpsc::Receiver<()>,
    stored: std::thread::JoinHandle<BTreeSet<u64>>,
}

impl Process {
    fn start(folder: &Path, cap: u64, seed: u64) -> Self {
        let mut child =
            in_another_process("cache_kill::run_as_another_process", folder, &format!("{cap} {seed}"));
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
        let mut start = || Process::start(dir.path(), cap, random.below(1 << 30));
        let (first, second) = (start(), start());
        if round % 2 == 0 {
            [&first, &second].map(Process::wait_until_ready);
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
