//! Defects of ops and decoders: a panic is a bad sample, and a sample that does not end is named. The faults are injected into
//! the chains of this process, whose workers run in it too.

use crate::bad_input::one_bad_picture_in;
use crate::common::pictures::{jpegs, write_with};
use crate::common::{open, pipeline};
use crate::fleet::{at, worker};
use feedstock_dataset::Rank;
use feedstock_ops::faults;
use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A good JPEG that no other test has, so that only the test that made it injects a fault for it.
fn jpeg_with(trailer: &str) -> Vec<u8> {
    [&jpegs(1)[0], trailer.as_bytes()].concat()
}

const REASONS: [&str; 2] = ["an op panicked (an index out of range)", "please report it"];

#[test]
fn a_panic_of_an_op_is_a_bad_sample() {
    let (dir, bad) = (tempfile::tempdir().unwrap(), jpeg_with("panics alone"));
    let _injected = faults::inject(bad.clone(), || panic!("an index out of range"));
    one_bad_picture_in(dir.path(), Some(bad), &REASONS, |pipeline| pipeline);
}

#[test]
fn a_panic_on_a_worker_is_a_bad_sample_of_the_rank() {
    let (dir, bad) = (tempfile::tempdir().unwrap(), jpeg_with("panics on a worker"));
    let _injected = faults::inject(bad.clone(), || panic!("an index out of range"));
    let fleet = [worker(dir.path())];
    one_bad_picture_in(dir.path(), Some(bad), &REASONS, |pipeline| pipeline.workers(at(&fleet)));
    assert!(fleet[0].status().samples >= 19, "the worker decoded: {:?}", fleet[0].status());
}

/// Takes 11 s: a sample is named after 10 s.
#[test]
fn a_sample_that_does_not_end_is_named_and_delivered_once_it_ends() {
    let (dir, slow) = (tempfile::tempdir().unwrap(), jpeg_with("does not end"));
    let (release, released) = channel();
    let released = Mutex::new(released);
    let _injected = faults::inject(slow.clone(), move || {
        // The test that fails drops the sender, which releases the sample.
        let _dropped: Result<(), _> = lock(&released).recv();
    });
    write_with(dir.path(), &jpegs(8), &[(5, Some(slow))]);
    let warnings = warnings();
    let run = pipeline(open(dir.path()), 8).deadline(Duration::from_secs(60));
    let batch = std::thread::spawn(move || run.rank(Rank::new(0, 1)).start().unwrap().next());

    let stuck = line_with(&warnings, "stuck: ");
    let name = "train.parquet row 5 (sample 5)";
    assert!(stuck.contains(name) && stuck.contains("has run for 1") && stuck.contains("WARN"), "{stuck}");
    assert!(!batch.is_finished(), "nothing but the warning");
    release.send(()).unwrap();
    let ended = line_with(&warnings, "has ended after 1");
    assert!(ended.contains(name), "{ended}");
    let batch = batch.join().unwrap().unwrap().unwrap();
    assert!(batch.valid().iter().all(|valid| *valid), "time bounds nothing: {:?}", batch.valid());
}

/// The next warning that has this text.
fn line_with(warnings: &Receiver<String>, text: &str) -> String {
    loop {
        let line = warnings.recv_timeout(Duration::from_secs(45)).unwrap_or_else(|_| panic!("no '{text}'"));
        if line.contains(text) {
            return line;
        }
    }
}

/// The warnings of this process from now on. Called once: a process has a single subscriber.
fn warnings() -> Receiver<String> {
    let (lines, received) = channel();
    let lines = Mutex::new(lines);
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::WARN)
        .with_ansi(false)
        .with_writer(move || Lines(lock(&lines).clone()))
        .init();
    received
}

/// Sends what is logged.
struct Lines(Sender<String>);

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        // Other tests log after this one has ended.
        let _unheard = self.0.send(String::from_utf8_lossy(line).into_owned());
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}
