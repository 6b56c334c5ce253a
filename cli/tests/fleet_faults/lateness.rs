//! One of four workers is lost: how late are batches?

use crate::data::Data;
use crate::processes::{fleet, start};
use crate::run::{LATE, Run, longest_wait, quiet};
use crate::say;
use crate::worker::Worker;
use std::time::{Duration, Instant};

fn longest_wait_after(what: &str, lose: impl Fn(&Worker)) {
    let data = Data::pictures(10);
    let quiet = quiet(&data, 2);
    let workers = start(&data, 4);
    let run = Run::paced(&data, fleet(&workers), 2, Duration::from_millis(50));
    run.wait_for(10);
    let lost = Instant::now();
    lose(&workers[1]);
    std::thread::sleep(Duration::from_millis(2500));
    run.hurry();
    let timings = run.end_like(&quiet);
    let late = longest_wait(&timings, lost);
    say!("one of four workers {what}: no batch was late by more than {:.2} s", late.as_secs_f64());
    assert!(late < LATE, "{late:?}");
}

#[test]
fn no_batch_is_late_when_one_of_four_is_killed() {
    longest_wait_after("killed", Worker::kill);
}

#[test]
fn no_batch_is_late_when_one_of_four_stops() {
    longest_wait_after("stopped", Worker::stop);
}
