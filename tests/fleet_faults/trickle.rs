//! Workers whose connections trickle: their streams are open, and a step of them would take a minute.

use crate::data::{Data, Whole};
use crate::relay::Relay;
use crate::run::{LATE, Run, longest_wait, quiet};
use crate::say;
use crate::worker::{Start, Worker};
use feedstock::{Local, Pipeline, Rank, RankIterator, Workers};
use std::time::{Duration, Instant};

/// What is left of a connection: a third of a step, 96 KiB, takes 49 s.
const BYTES_PER_S: u64 = 2000;

/// Batches before the run ends and is resumed.
const BEFORE: usize = 5;

/// Workers behind relays.
fn start(data: &Data, count: usize) -> (Vec<Worker>, Vec<Relay>) {
    let workers: Vec<Worker> = (0..count).map(|_| Start::new(data).without_socket().start()).collect();
    let relays = workers.iter().map(|worker| Relay::start(worker.address()).unwrap()).collect();
    (workers, relays)
}

fn fleet(relays: &[Relay]) -> Workers {
    let addresses: Vec<String> = relays.iter().map(Relay::address).collect();
    Workers::at(&addresses.join(",")).unwrap()
}

/// The next batches, and the longest wait for one of them.
fn take(batches: &mut RankIterator, most: usize) -> (Vec<Whole>, Duration) {
    let (mut taken, mut longest) = (Vec::new(), Duration::ZERO);
    while taken.len() < most {
        let asked = Instant::now();
        let Some(batch) = batches.next() else { break };
        longest = longest.max(asked.elapsed());
        taken.push(Whole::of(&batch.unwrap()));
    }
    (taken, longest)
}

/// Runs the one epoch in two parts; the waits for each part's first batches are among the longest.
fn started_and_resumed(pipeline: &Pipeline, quiet: &[Whole]) -> [Duration; 2] {
    let rank = Rank::new(0, 1);
    let mut batches = pipeline.rank(rank).start().unwrap();
    let (mut all, first) = take(&mut batches, BEFORE);
    let cursor = batches.state();
    assert!(batches.stats().engine.hedges > 0, "nothing was asked of another worker");
    drop(batches);
    let mut batches = pipeline.rank(rank).resume(cursor).start().unwrap();
    let (rest, second) = take(&mut batches, usize::MAX);
    all.extend(rest);
    assert!(batches.stats().engine.hedges > 0, "nothing was asked of another worker after the resume");
    assert_eq!(all, quiet, "the same batches");
    [first, second]
}

#[test]
fn the_first_step_of_a_start_and_of_a_resume_waits_for_no_trickling_worker() {
    let data = Data::pictures(1);
    let quiet = quiet(&data, 1).remove(0);
    for slow in [1, 2] {
        let (_workers, relays) = start(&data, 3);
        relays[..slow].iter().for_each(|relay| relay.trickle(Some(BYTES_PER_S)));
        let waits = started_and_resumed(&data.pipeline().workers(fleet(&relays)), &quiet);
        say!(
            "{slow} of three workers trickle: no batch took longer than {waits:?} after a start and a resume"
        );
        assert!(waits.iter().all(|wait| *wait < LATE), "{waits:?}");
    }
}

#[test]
fn this_machine_serves_where_the_only_worker_trickles() {
    let data = Data::pictures(1);
    let quiet = quiet(&data, 1).remove(0);
    let (_workers, relays) = start(&data, 1);
    relays[0].trickle(Some(BYTES_PER_S));
    let waits = started_and_resumed(&data.pipeline().workers(fleet(&relays).local(Local::Fallback)), &quiet);
    say!("the only worker trickles: no batch took longer than {waits:?} after a start and a resume");
    assert!(waits.iter().all(|wait| *wait < LATE), "{waits:?}");
}

#[test]
fn two_of_three_workers_begin_to_trickle_together() {
    let data = Data::pictures(12);
    let quiet = quiet(&data, 2);
    let (_workers, relays) = start(&data, 3);
    let run = Run::paced(&data, fleet(&relays), 2, Duration::from_millis(50));
    run.wait_for(10);
    let slow = Instant::now();
    relays[..2].iter().for_each(|relay| relay.trickle(Some(BYTES_PER_S)));
    std::thread::sleep(Duration::from_secs(3));
    run.hurry();
    let late = longest_wait(&run.end_like(&quiet), slow);
    say!("two of three workers trickle: no batch was late by more than {:.2} s", late.as_secs_f64());
    assert!(late < LATE, "{late:?}");
}
