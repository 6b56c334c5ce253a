//! Worker processes that are killed, stopped, drained, or out of disk space.

use crate::data::{Data, Whole};
use crate::network::{has_own_folders, own_folder};
use crate::rank_process::RankProcess;
use crate::run::{Batches, PATIENCE, Run, answered, eventually, quiet};
use crate::say;
use crate::worker::{Start, Worker};
use feedstock::Workers;
use std::time::Duration;

/// Duration of a trainer's step: a run then takes seconds.
const STEP: Duration = Duration::from_millis(50);

pub fn start(data: &Data, count: usize) -> Vec<Worker> {
    (0..count).map(|_| Start::new(data).start()).collect()
}

pub fn fleet(workers: &[Worker]) -> Workers {
    let addresses: Vec<&str> = workers.iter().map(Worker::address).collect();
    Workers::at(&addresses.join(",")).unwrap()
}

/// Returns the number of samples that a worker has made. Waits for its answer, because it may have been stopped a
/// moment ago.
fn samples(worker: &Worker) -> u64 {
    let workers = Workers::at(worker.address()).unwrap();
    answered(|| workers.status(worker.address()).ok()).samples
}

#[test]
fn a_rank_continues_when_its_pipeline_is_dropped() {
    let data = Data::pictures(1);
    let quiet = quiet(&data, 1);
    let worker = Start::new(&data).start();
    let rank = RankProcess::start(&data, worker.address(), Duration::ZERO);
    let digests: Vec<u64> = quiet[0].iter().map(Whole::digest).collect();
    assert_eq!(rank.end(), digests);
}

#[test]
fn workers_killed_in_the_middle_of_an_epoch() {
    let data = Data::pictures(6);
    let quiet = quiet(&data, 2);
    let workers = start(&data, 3);
    let run = Run::paced(&data, fleet(&workers), 2, STEP);
    run.wait_for(5);
    workers[0].kill();
    run.wait_for(15);
    workers[1].kill();
    std::thread::sleep(Duration::from_millis(500));
    run.hurry();
    run.end_like(&quiet);
    assert!(samples(&workers[2]) > 6 * 233 / 2, "the last one made most samples");
}

#[test]
fn a_worker_stopped_for_a_while_serves_again() {
    let data = Data::pictures(16);
    let quiet = quiet(&data, 2);
    let workers = start(&data, 3);
    let run = Run::paced(&data, fleet(&workers), 2, STEP);
    run.wait_for(10);
    workers[0].stop();
    std::thread::sleep(Duration::from_secs(2));
    workers[0].go_on();
    run.dawdle(STEP * 5);
    let made = samples(&workers[0]);
    eventually("it serves again", || samples(&workers[0]) > made + 100);
    run.hurry();
    run.end_like(&quiet);
}

#[test]
fn all_workers_gone_and_back() {
    let data = Data::pictures(6);
    let quiet = quiet(&data, 2);
    let workers = start(&data, 2);
    let run = Run::paced(&data, fleet(&workers), 2, STEP);
    run.wait_for(10);
    workers.iter().for_each(Worker::kill);
    std::thread::sleep(Duration::from_millis(1500));
    run.hurry();
    let back: Vec<Worker> =
        workers.iter().map(|worker| Start::new(&data).listen(worker.address()).start()).collect();
    run.end_like(&quiet);
    assert!(back.iter().map(samples).sum::<u64>() > 0);
}

#[test]
fn a_draining_worker_hands_over_and_exits() {
    let data = Data::pictures(24);
    let quiet = quiet(&data, 2);
    let patience = PATIENCE.as_secs().to_string();
    let start = || Start::new(&data).args(&["--drain-timeout", &patience]).start();
    let workers: Vec<Worker> = (0..3).map(|_| start()).collect();
    let run = Run::paced(&data, fleet(&workers), 2, STEP);
    run.wait_for(10);
    run.dawdle(STEP * 10); // so that the run takes longer than the worker's drain
    workers[0].terminate();
    let ended = workers[0].ended_within(PATIENCE);
    run.hurry(); // it did not wait until the ranks ended
    assert_eq!(ended.code(), Some(0), "{}", workers[0].log());
    assert!(!workers[0].log().contains("cut off"), "{}", workers[0].log());
    run.end_like(&quiet);
}

/// A full disk prevents the worker from storing catalogs and creating sockets. Serving rows needs neither.
#[test]
fn a_worker_whose_disk_is_full_still_serves() {
    let data = Data::pictures(2);
    let quiet = quiet(&data, 2);
    let limited = Start::new(&data).before(no_file_may_grow);
    let said = serves(&data, &quiet, limited.start());
    assert_eq!(said, "", "its log is a file, too");
    say!("a full disk: a worker that cannot write files has served");

    let full = data.folder("full");
    match has_own_folders(&full) {
        Ok(()) => {
            let start = Start::new(&data).before(own_folder(&full, Some("size=4k,nr_inodes=4")));
            let said = serves(&data, &quiet, start.env("FEEDSTOCK_CACHE", &full).start());
            say!("a full disk: a worker with a cache of one page has served, and logged: {}", said.trim());
            assert!(said.contains("catalog"), "the log has a warning: {said}");
        }
        Err(why) => say!(
            "a full disk: this process cannot mount a tmpfs ({why}); tested with file sizes limited to 0 only"
        ),
    }
}

fn serves(data: &Data, quiet: &Batches, worker: Worker) -> String {
    let fleet = Workers::at(worker.address()).unwrap();
    Run::start(data, fleet, 2).end_like(quiet);
    worker.log()
}

/// Makes every write to a file fail, as on a full disk. The log is a file, too, and is lost.
fn no_file_may_grow() -> std::io::Result<()> {
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN); // an error instead of a signal that kills
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        crate::worker::succeeded(libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit))
    }
}
