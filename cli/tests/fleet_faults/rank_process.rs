//! A rank in a separate process: this test program again, running its one ignored test.

use crate::data::{Data, Whole, pipeline_of};
use crate::worker::{ended_within, signal_to, succeeded};
use feedstock::{Rank, Workers};
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// Environment variable with the task: the workers' addresses, milliseconds per step, the data.
const TASK: &str = "FEEDSTOCK_TEST_RANK";

/// Prefix of a digest on standard output, to which the harness also prints.
const MARK: &str = "batch ";

/// A rank's process. Dropping it kills it.
pub struct RankProcess {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    digests: Vec<u64>,
}

impl RankProcess {
    pub fn start(data: &Data, workers: &str, step: Duration) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["rank_process::rank", "--exact", "--ignored", "--nocapture"]);
        command.env(TASK, format!("{workers}\n{}\n{}", step.as_millis(), data.described()));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        unsafe { command.pre_exec(|| succeeded(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))) };
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, digests: Vec::new() }
    }

    /// Waits until it has taken this number of batches.
    pub fn wait_for(&mut self, batches: usize) {
        while self.digests.len() < batches {
            assert!(self.read(), "it ended after {} batches", self.digests.len());
        }
    }

    fn read(&mut self) -> bool {
        let Some(line) = self.lines.next() else { return false };
        let line = line.unwrap();
        if let Some((_, digest)) = line.split_once(MARK) {
            self.digests.push(digest.parse().unwrap());
        }
        true
    }

    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: i32) {
        signal_to(i32::try_from(self.child.id()).unwrap(), signal);
    }

    /// Returns the digests of all its batches.
    pub fn end(mut self) -> Vec<u64> {
        while self.read() {}
        let ended = ended_within(&mut self.child, Duration::from_secs(10)).expect("it ends");
        assert!(ended.success(), "{ended}");
        std::mem::take(&mut self.digests)
    }
}

impl Drop for RankProcess {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

#[test]
#[ignore = "a rank that other tests start as a separate process"]
fn rank() {
    let Ok(task) = std::env::var(TASK) else { return };
    let [workers, step, data] = task.splitn(3, '\n').collect::<Vec<_>>()[..] else { panic!("{task}") };
    let pipeline = pipeline_of(data).workers(Workers::at(workers).unwrap()).deadline(Duration::from_secs(90));
    let mut batches = pipeline.rank(Rank::new(0, 1)).start().unwrap();
    drop(pipeline); // and with it everything that this process holds of the data set
    loop {
        let mut none = true;
        for batch in batches.by_ref() {
            none = false;
            println!("{MARK}{}", Whole::of(&batch.unwrap()).digest());
            std::thread::sleep(Duration::from_millis(step.parse().unwrap()));
        }
        if none {
            return;
        }
    }
}
