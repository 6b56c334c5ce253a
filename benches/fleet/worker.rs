//! `feedstock worker` in a separate process: this program again, so that both sides are of one build.

use crate::share::Share;
use crate::{Bench, support};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

/// The argument before the arguments of `feedstock`.
pub(super) const WORD: &str = "as-feedstock";

/// A worker's process. Dropping it kills it.
pub(super) struct Worker {
    child: Child,
    address: String,
    /// The control group, dropped after the process.
    share: Option<Share>,
}

/// How ranks connect to it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum By {
    /// By the host's socket, which ranks use automatically if it exists.
    Socket,
    /// By TCP, as from other machines.
    Tcp,
}

impl Worker {
    /// Starts the worker, and returns when it listens.
    pub(super) fn start(bench: &Bench, by: By, threads: usize, arguments: &[&str]) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([WORD, "worker", "--json", "--listen", "127.0.0.1:0", "--allow", bench.data()]);
        command.args(["--threads", &threads.to_string()]).args(arguments);
        command.env("FEEDSTOCK_CACHE", bench.folder()).env_remove("FEEDSTOCK_TOKEN");
        if by == By::Tcp {
            command.env("TMPDIR", "/nonexistent"); // without this folder, there is no socket
        }
        let log = bench.folder().join("workers.log");
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        // SAFETY: one system call, which may be made between fork and exec.
        unsafe {
            command.pre_exec(|| {
                // Workers end with the bench if it is killed.
                match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).unwrap();
        Self { child, address: said["address"].as_str().unwrap().to_owned(), share: None }
    }

    /// Starts several workers that listen on TCP, with one thread and this number of cores each.
    pub(super) fn fleet(bench: &Bench, workers: usize, cores: f64) -> Vec<Self> {
        let start = |number| {
            let mut worker = Self::start(bench, By::Tcp, 1, &[]);
            let share = bench.group.share(&format!("worker-{number}"), cores).unwrap();
            share.adopt(worker.child.id()).unwrap();
            worker.share = Some(share);
            worker
        };
        (0..workers).map(start).collect()
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    /// Returns user and system time so far, in seconds.
    pub(super) fn cpu_s(&self) -> f64 {
        support::cpu_s_of(self.child.id())
    }

    pub(super) fn signal(&self, signal: i32) {
        let process = i32::try_from(self.child.id()).unwrap();
        // SAFETY: kill takes two numbers, and the process is our child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(process, signal) }, 0);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
        self.share.take();
    }
}

/// Runs this process as a worker.
pub(super) fn be_one() -> ExitCode {
    let arguments = std::env::args_os().skip_while(|argument| argument != WORD);
    feedstock_cli::main(arguments).into()
}
