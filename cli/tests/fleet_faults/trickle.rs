//! Workers whose connections trickle: their streams are open, but a step would take a minute.

use crate::data::{Data, Whole};
use crate::relay::Relay;
use crate::run::{Run, longest_wait, quiet};
use crate::say;
use crate::worker::{Start, Worker};
use feedstock::{Local, Pipeline, Rank, RankIterator, Workers};
use std::time::{Duration, Instant};

/// Rate of such a connection: a third of a step, 96 KiB, takes 49 s.
const BYTES_PER_S: u64 = 2000;

/// Number of batches before the run ends and is resumed.
const BEFORE: usize = 5;

/// The longest time that a rank may wait for a worker that trickles.
const MOST: Duration = Duration::from_secs(2);

/// How many of three workers trickle, and whether this machine may decode in their place: one, two at once, all.
const CASES: [(usize, Local); 3] = [(1, Local::Never), (2, Local::Never), (3, Local::Fallback)];

/// Starts workers with relays in front of them.
fn start(data: &Data, count: usize) -> (Vec<Worker>, Vec<Relay>) {
    let workers: Vec<Worker> = (0..count).map(|_| Start::new(data).without_socket().start()).collect();
    let relays = workers.iter().map(|worker| Relay::start(worker.address()).unwrap()).collect();
    (workers, relays)
}

fn fleet(relays: &[Relay], local: Local) -> Workers {
    let addresses: Vec<String> = relays.iter().map(Relay::address).collect();
    Workers::at(&addresses.join(",")).unwrap().local(local)
}

/// Returns the longest allowed wait for a batch: the two seconds, and an allowance for making and sending the rows.
/// The allowance is measured in a new fleet in which nothing trickles. It is the first step once, because workers
/// open the data set for it, and three times another step: rows are made up to three times, and this machine may be
/// busy. It is at most as long as the wait itself, so that a busy machine cannot hide that ranks wait longer.
fn limit(data: &Data) -> Duration {
    let (_workers, relays) = start(data, 3);
    let mut batches =
        data.pipeline().workers(fleet(&relays, Local::Never)).rank(Rank::new(0, 1)).start().unwrap();
    let (_, first) = take(&mut batches, 1);
    let (_, other) = take(&mut batches, BEFORE);
    MOST + (first + 3 * other).min(MOST)
}

/// Takes the next batches, and returns them with the longest wait.
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

/// Runs the one epoch in two parts, and returns the longest wait of each, including the wait for its first batch.
fn started_and_resumed(pipeline: &Pipeline, quiet: &[Whole]) -> [Duration; 2] {
    let rank = Rank::new(0, 1);
    let mut batches = pipeline.rank(rank).start().unwrap();
    let (mut all, first) = take(&mut batches, BEFORE);
    let cursor = batches.state();
    let hedges = batches.stats().engine.hedges;
    drop(batches);
    let mut batches = pipeline.rank(rank).resume(cursor).start().unwrap();
    let (rest, second) = take(&mut batches, usize::MAX);
    all.extend(rest);
    let hedges = [hedges, batches.stats().engine.hedges];
    assert!(hedges.iter().all(|hedges| *hedges > 0), "hedges in the two parts: {hedges:?}");
    assert_eq!(all, quiet, "the same batches");
    [first, second]
}

#[test]
fn the_first_step_of_a_start_and_of_a_resume_does_not_wait_for_trickling_workers() {
    let data = Data::pictures(1);
    let quiet = quiet(&data, 1).remove(0);
    let limit = limit(&data);
    for (slow, local) in CASES {
        let (_workers, relays) = start(&data, 3);
        relays[..slow].iter().for_each(|relay| relay.trickle(Some(BYTES_PER_S)));
        let waits = started_and_resumed(&data.pipeline().workers(fleet(&relays, local)), &quiet);
        say!(
            "{slow} of three workers trickle: up to {waits:.2?} after a start and a resume, at most {limit:.2?}"
        );
        assert!(waits.iter().all(|wait| *wait < limit), "{slow} of three: {waits:?}, at most {limit:?}");
    }
}

#[test]
fn this_machine_decodes_if_the_only_worker_trickles() {
    let data = Data::pictures(1);
    let quiet = quiet(&data, 1).remove(0);
    let limit = limit(&data);
    let (_workers, relays) = start(&data, 1);
    relays[0].trickle(Some(BYTES_PER_S));
    let waits = started_and_resumed(&data.pipeline().workers(fleet(&relays, Local::Fallback)), &quiet);
    say!("the only worker trickles: up to {waits:.2?} after a start and a resume, at most {limit:.2?}");
    assert!(waits.iter().all(|wait| *wait < limit), "{waits:?}, at most {limit:?}");
}

#[test]
fn a_later_step_does_not_wait_for_trickling_workers() {
    let data = Data::pictures(12);
    let quiet = quiet(&data, 2);
    let limit = limit(&data);
    for (slow, local) in CASES {
        let (_workers, relays) = start(&data, 3);
        let run = Run::paced(&data, fleet(&relays, local), 2, Duration::from_millis(50));
        run.wait_for(10);
        let begun = Instant::now();
        relays[..slow].iter().for_each(|relay| relay.trickle(Some(BYTES_PER_S)));
        std::thread::sleep(Duration::from_secs(3));
        run.hurry();
        let late = longest_wait(&run.end_like(&quiet), begun);
        say!("{slow} of three workers begin to trickle together: up to {late:.2?}, at most {limit:.2?}");
        assert!(late < limit, "{slow} of three: {late:?}, at most {limit:?}");
    }
}
