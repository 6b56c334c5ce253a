//! A worker's process: started as by its operator, and sent signals.

use crate::data::Data;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How to start a worker. By default it has one thread, listens on a free port of 127.0.0.1, and serves all clients.
pub struct Start {
    command: Command,
    listen: String,
    log: PathBuf,
}

/// A worker's process. Dropping it kills it.
pub struct Worker {
    child: Mutex<Child>,
    pid: i32,
    address: String,
    log: PathBuf,
}

/// Number of workers started by this program: each has its own log and cache.
static STARTED: AtomicU32 = AtomicU32::new(0);

impl Start {
    /// Configures a worker that may read the images.
    pub fn new(data: &Data) -> Self {
        let name = format!("worker-{}", STARTED.fetch_add(1, Ordering::Relaxed));
        let folder = data.folder(&name);
        let (log, temporary) = (folder.join("log"), folder.join("temporary"));
        std::fs::create_dir(&temporary).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_feedstock"));
        command.args(["worker", "--json", "--threads", "1", "--allow", &data.uri()]);
        command.env("FEEDSTOCK_CACHE", folder.join("cache")).env_remove("FEEDSTOCK_TOKEN");
        command.env("TMPDIR", temporary); // a killed worker does not delete its socket
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(&log).unwrap());
        unsafe {
            command.pre_exec(|| {
                // Workers end with the test program if it is killed.
                succeeded(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))
            });
        }
        Self { command, listen: "127.0.0.1:0".into(), log }
    }

    pub fn listen(self, address: &str) -> Self {
        Self { listen: address.to_owned(), ..self }
    }

    pub fn args(mut self, arguments: &[&str]) -> Self {
        self.command.args(arguments);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    /// Disables the socket for ranks on this host: they must connect over the network.
    pub fn without_socket(self) -> Self {
        self.env("TMPDIR", "/nonexistent")
    }

    /// Runs a function in the new process before the program begins. It may make system calls only.
    pub fn before(mut self, act: impl FnMut() -> io::Result<()> + Send + Sync + 'static) -> Self {
        unsafe { self.command.pre_exec(act) };
        self
    }

    /// Starts the worker, and returns when it listens.
    pub fn start(mut self) -> Worker {
        let mut child = self.command.args(["--listen", &self.listen]).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).unwrap_or_else(|_| {
            panic!("a worker printed '{line}': {}", std::fs::read_to_string(&self.log).unwrap())
        });
        let address = said["address"].as_str().unwrap().to_owned();
        let pid = i32::try_from(child.id()).unwrap();
        Worker { child: Mutex::new(child), pid, address, log: self.log }
    }
}

impl Worker {
    /// Returns the address on which it listens.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Sends SIGKILL.
    pub fn kill(&self) {
        self.signal(libc::SIGKILL);
        self.child.lock().unwrap().wait().unwrap();
    }

    /// Sends SIGSTOP.
    pub fn stop(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Sends SIGCONT.
    pub fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        self.signal(libc::SIGTERM);
    }

    fn signal(&self, signal: i32) {
        signal_to(self.pid, signal);
    }

    /// Waits until the worker exits, and returns its status.
    pub fn ended_within(&self, time: Duration) -> ExitStatus {
        ended_within(&mut self.child.lock().unwrap(), time)
            .unwrap_or_else(|| panic!("the worker still runs after {time:?}: {}", self.log()))
    }

    /// Returns the resident memory.
    pub fn memory_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it runs");
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }

    /// Returns the share of a core that it uses.
    pub fn busy(&self, time: Duration) -> f64 {
        let used = || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap();
            // After the name: user and system time are the 12th and 13th field, in hundredths of a second.
            let fields = stat.rsplit(')').next().unwrap().split_whitespace();
            fields.skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
        };
        let before = used();
        std::thread::sleep(time);
        (used() - before) / time.as_secs_f64()
    }

    /// Returns its standard error.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let mut child = self.child.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let _gone = child.kill();
        let _gone = child.wait();
        if std::thread::panicking() {
            crate::say!("the log of the worker at {}:\n{}", self.address, self.log());
        }
    }
}

pub fn signal_to(pid: i32, signal: i32) {
    succeeded(unsafe { libc::kill(pid, signal) }).unwrap();
}

pub fn ended_within(child: &mut Child, time: Duration) -> Option<ExitStatus> {
    let begun = Instant::now();
    loop {
        match child.try_wait().unwrap() {
            Some(status) => return Some(status),
            None if begun.elapsed() > time => return None,
            None => std::thread::sleep(Duration::from_millis(10)),
        }
    }
}

/// Returns the result of a system call, or its error.
pub fn succeeded(answer: i32) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
