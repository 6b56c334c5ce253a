//! Networks that lose packets in one or both directions, delay them, or go down.

use crate::data::Data;
use crate::link::{BOTH_WAYS, Chance, Link, Way};
use crate::network::{Network, on_every_network};
use crate::raw::{MAGIC, MESSAGE_HEAD_BYTES};
use crate::relay::Relay;
use crate::run::{Batches, LATE, Run, eventually, longest_wait, quiet};
use crate::say;
use crate::worker::{Start, Worker};
use feedstock::{Local, Workers};
use std::time::{Duration, Instant};

/// Duration of a trainer's step. Enough of them last longer than a fault and the recovery from it.
const STEP: Duration = Duration::from_millis(50);

/// First byte of protocol frames without rows and with rows; and the number of bytes before a frame's header.
const ALIVE: u8 = 0x33;
const ROWS: u8 = 0x0F;
const FRAME_HEAD_BYTES: usize = 33;
const CRC_BYTES: usize = 4;

/// Longer than a worker may be silent.
const CUT: Duration = Duration::from_millis(2500);

/// Socket buffers hold megabytes, which must be only a small part of a run.
fn pictures() -> Data {
    Data::pictures(18).crop(96)
}

/// Cuts off one of three workers and heals the link during the run. The worker must serve again.
fn cut_and_healed(network: &Network, data: &Data, quiet: &Batches, ways: &[Way]) {
    let fleet = network.fleet();
    let run = Run::paced(data, fleet, 2, STEP);
    run.wait_for(10);
    ways.iter().for_each(|way| network.set(1, *way, Link::cut()));
    let (cut, at) = (Instant::now(), run.taken());
    std::thread::sleep(CUT); // the others continue
    assert!(network.lost() > 0, "nothing was lost");
    eventually("the others continued", || run.taken() > at + 10);
    let passed = cut.elapsed();
    ways.iter().for_each(|way| network.set(1, *way, Link::default()));
    run.dawdle(STEP * 5);
    let before = network.samples(1);
    eventually("it serves again after healing", || network.samples(1) > before + 48);
    run.hurry();
    let timings = run.end_like(quiet);
    let late = longest_wait(&timings, cut);
    say!("{}: {ways:?} cut for {passed:.1?}: no batch was late by more than {late:.1?}", network.name());
    assert!(late < LATE, "{late:?}");
}

#[test]
fn packets_to_a_worker_are_lost() {
    let data = pictures();
    let quiet = quiet(&data, 2);
    on_every_network(&data, 3, |network| cut_and_healed(network, &data, &quiet, &[Way::ToWorker]));
}

#[test]
fn packets_from_a_worker_are_lost() {
    let data = pictures();
    let quiet = quiet(&data, 2);
    on_every_network(&data, 3, |network| cut_and_healed(network, &data, &quiet, &[Way::FromWorker]));
}

#[test]
fn every_packet_is_late_and_some_are_lost() {
    let data = Data::pictures(1).crop(32);
    let quiet = quiet(&data, 2);
    on_every_network(&data, 3, |network| {
        for worker in 0..3 {
            let delay = Duration::from_millis(100); // 200 ms round trip
            BOTH_WAYS.iter().for_each(|way| network.set(worker, *way, Link::slow(delay, 0.05)));
        }
        let (begun, fleet) = (Instant::now(), network.fleet());
        let run = Run::start(&data, fleet, 2);
        run.end_like(&quiet);
        say!("{}: 200 ms and 5 %: {:.1?} for {} batches", network.name(), begun.elapsed(), data.steps());
        assert!(network.lost() > 5, "{} lost", network.lost());
    });
}

/// A half-open connection: the worker's host vanishes, and no FIN or RST is sent.
#[test]
fn a_workers_host_vanishes() {
    let data = pictures();
    let quiet = quiet(&data, 2);
    on_every_network(&data, 3, |network| {
        let fleet = network.fleet();
        let run = Run::paced(&data, fleet, 2, STEP);
        run.wait_for(10);
        BOTH_WAYS.iter().for_each(|way| network.set(1, *way, Link::cut()));
        network.workers[1].kill();
        let gone = Instant::now();
        std::thread::sleep(CUT);
        run.hurry();
        let late = longest_wait(&run.end_like(&quiet), gone);
        say!("{}: a host vanished: no batch was late by more than {late:.1?}", network.name());
        assert!(late < LATE, "{late:?}");
    });
}

/// Wherever in the conversation a worker falls silent, the rank notices, and another worker serves.
#[test]
fn a_worker_falls_silent_anywhere() {
    let data = Data::pictures(1);
    let quiet = quiet(&data, 1);
    let worker = Start::new(&data).without_socket().start();
    let points = points(&data, &worker);
    through_relays(&worker, points, |relay, (place, after)| {
        relay.silent_after(Some(after));
        let begun = Instant::now();
        // Unnoticed silence would exceed the ranks' deadline, which is an error.
        run_beside(&data, relay).end_like(&quiet);
        say!("silent {place}, after {after} bytes: finished after {:.1?}", begun.elapsed());
    });
}

/// Runs `scenario` for every case at the same time, each with a relay before the worker.
fn through_relays<T: Send>(worker: &Worker, cases: Vec<T>, scenario: impl Fn(&Relay, T) + Sync) {
    std::thread::scope(|scope| {
        let scenario = &scenario;
        let run = |case| scope.spawn(move || scenario(&Relay::start(worker.address()).unwrap(), case));
        let running: Vec<_> = cases.into_iter().map(run).collect();
        running.into_iter().for_each(|running| running.join().unwrap());
    });
}

/// Starts a rank of the worker with the relay in front of it. The rank's process decodes if that worker is lost.
fn run_beside(data: &Data, relay: &Relay) -> Run {
    Run::start(data, Workers::at(&relay.address()).unwrap().local(Local::Fallback), 1)
}

/// A bit of a frame or of a control message is flipped in transit: the rank notices, and its batches are correct.
#[test]
fn a_bit_is_flipped() {
    let data = Data::pictures(1);
    let quiet = quiet(&data, 1);
    let worker = Start::new(&data).without_socket().start();
    let points = points(&data, &worker);
    let frames = points.iter().find(|(place, _)| *place == "after the tensors").unwrap().1 * 8;
    let mut dice = Chance::new(5);
    let mut bits: Vec<(Way, u64)> = points.iter().map(|(_, byte)| (Way::FromWorker, byte * 8 + 2)).collect();
    bits.extend((0..10).map(|_| (Way::FromWorker, frames + dice.below(64 << 10))));
    // Welcome, Opened and tensors; the magic and the greeting of the rank, and its request.
    bits.extend((0..10).map(|_| (Way::FromWorker, dice.below(frames))));
    let greeting = MAGIC.len() as u64 * 8;
    bits.extend([0, greeting, greeting + 32].map(|bit| (Way::ToWorker, bit)));
    bits.extend((0..10).map(|_| (Way::ToWorker, dice.below(8 * 400))));
    through_relays(&worker, bits, |relay, (way, bit)| {
        relay.flip(way, bit);
        run_beside(&data, relay).end_like(&quiet);
        assert!(relay.lost() > 0, "bit {bit} was flipped");
    });
}

/// Records a conversation, and returns numbers of bytes after which a worker is in the middle of something.
fn points(data: &Data, worker: &Worker) -> Vec<(&'static str, u64)> {
    let listen = || {
        let relay = Relay::start(worker.address()).unwrap();
        let fleet = Workers::at(&relay.address()).unwrap();
        Run::start(data, fleet, 1).end();
        relay.heard()
    };
    listen(); // this rank describes the plan
    let heard = listen();
    let length = |at: usize| u32::from_le_bytes(heard[at..at + 4].try_into().unwrap()) as usize;
    let welcome = 4 + length(0);
    let mut at = welcome;
    let mut message = || loop {
        let (text, length) = (at + MESSAGE_HEAD_BYTES, length(at));
        at = text;
        if length > 0 {
            at += length + CRC_BYTES;
            return (at, &heard[text..text + length]);
        }
    };
    let (opened, text) = message();
    assert_eq!(text, b"\"opened\"");
    let (tensors, text) = message();
    assert_eq!(text[0], b'[', "the tensors of a row");
    let frame = tensors + heard[tensors..].iter().position(|byte| *byte != ALIVE).unwrap();
    assert_eq!(heard[frame], ROWS, "a frame of rows after those without rows");
    let head = u32::from_le_bytes(heard[frame + 21..frame + 25].try_into().unwrap()) as usize;
    let rows = frame + FRAME_HEAD_BYTES + head;
    let points = [
        ("from the start", 0),
        ("in the welcome's length", 3),
        ("in the welcome", welcome - 1),
        ("after the welcome", welcome),
        ("in the answer", opened - 3),
        ("after the answer", opened),
        ("in the tensors", tensors - 9),
        ("after the tensors", tensors),
        ("in a frame's first bytes", frame + 9),
        ("in a head", frame + FRAME_HEAD_BYTES + head / 2),
        ("in the rows", rows + 1000),
        ("much later", heard.len() / 2),
    ];
    points.into_iter().map(|(name, at)| (name, at as u64)).collect()
}
