//! The two faults that take 30 seconds; they run at the same time as all others.

use crate::data::Data;
use crate::processes::{fleet, start};
use crate::rank_process::RankProcess;
use crate::raw::{MAGIC, Raw};
use crate::run::{Run, eventually, longest_wait, quiet};
use crate::say;
use crate::worker::Start;
use std::time::{Duration, Instant};

/// Longer than a worker waits for a silent rank.
const STOPPED: Duration = Duration::from_secs(31);

/// Memory that the worker may promise to streams.
const MEMORY_BYTES: u64 = 128 << 20;

#[test]
fn a_worker_stopped_for_thirty_seconds() {
    let data = Data::pictures(28);
    let quiet = quiet(&data, 2);
    let workers = start(&data, 3);
    let run = Run::paced(&data, fleet(&workers), 2, Duration::from_millis(150));
    run.wait_for(10);
    let stopped = Instant::now();
    workers[1].stop();
    std::thread::sleep(Duration::from_secs(30));
    workers[1].go_on();
    run.hurry();
    let late = longest_wait(&run.end_like(&quiet), stopped);
    say!("stopped for 30 s: no batch was late by more than {:.2} s", late.as_secs_f64());
    eventually("it releases rows that no rank requests any more", || {
        fleet(&workers).status(workers[1].address()).is_ok_and(|status| status.streams == 0)
    });
}

#[test]
fn a_rank_that_stops_reading() {
    let data = Data::pictures(6).crop(224);
    let quiet = quiet(&data, 1);
    let worker = Start::new(&data).args(&["--memory-bytes", &MEMORY_BYTES.to_string()]).start();
    let workers = fleet(std::slice::from_ref(&worker));
    let (mut nobody, mut half) = (Raw::connect(worker.address()), Raw::connect(worker.address()));
    half.say(&MAGIC[..5]);
    let mut idle = Raw::greeted(worker.address());
    let mut rank = RankProcess::start(&data, worker.address(), Duration::from_millis(20));
    rank.wait_for(10);
    rank.stop();
    let stopped = Instant::now();
    std::thread::sleep(Duration::from_secs(1)); // until sockets and slots are full
    let before = worker.memory_bytes();
    // Another rank of the same job continues: first for a moment, much shorter than the time limit for the stopped
    // one, …
    let few = data.epochs(2);
    Run::start(&few, workers.clone(), 1).end_like(&vec![quiet[0][..few.steps()].to_vec()]);
    eventually("its stream has ended, the stopped rank's has not", || {
        workers.status(worker.address()).is_ok_and(|status| status.streams == 1)
    });
    // … and twice over.
    for _ in 0..2 {
        Run::start(&data, workers.clone(), 1).end_like(&quiet);
    }
    let grown = worker.memory_bytes().saturating_sub(before) >> 20;
    say!("a rank stopped reading: the worker grew by {grown} MiB while another one was served");
    // The memory that it may promise and share, and a few steps of 3.5 MiB. All rows that the stopped rank lacks are
    // 200 MiB.
    assert!(grown < (MEMORY_BYTES >> 20) + 32, "{grown} MiB");
    std::thread::sleep(STOPPED.saturating_sub(stopped.elapsed()));
    eventually("the stopped rank's stream is closed", || {
        let status = workers.status(worker.address());
        status.is_ok_and(|status| (status.streams, status.reserved_bytes) == (0, 0))
    });
    for silent in [&mut nobody, &mut half, &mut idle] {
        assert!(silent.rest().is_empty(), "the connection of a silent client is closed");
    }
    rank.go_on();
    let digests: Vec<u64> = quiet[0].iter().map(crate::data::Whole::digest).collect();
    assert_eq!(rank.end(), digests, "what the rank got, before and after");
}
