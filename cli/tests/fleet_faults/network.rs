//! A rank, workers, and what lies between them: hosts on a wire where this process may make them, and relays always.

use crate::data::Data;
use crate::hosts::Hosts;
use crate::link::{Link, Way};
use crate::relay::Relay;
use crate::run::{PATIENCE, answered};
use crate::say;
use crate::trust::Trust;
use crate::worker::{Start, Worker, ended_within, succeeded};
use feedstock::Workers;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// The port of a worker that has a host for itself.
const PORT: u16 = 7117;

/// Workers, and the way to them.
pub struct Network {
    name: &'static str,
    pub workers: Vec<Worker>,
    between: Between,
}

enum Between {
    /// The rank's host is the first; workers and ranks show certificates and say a token, as across machines.
    Hosts(Hosts, Box<Trust>),
    /// One before each worker.
    Relays(Vec<Relay>),
}

/// In the environment of a test that is the rank's host.
const HOST: &str = "FEEDSTOCK_TEST_HOST";

/// Tries `scenario` on every network there is, at the same time, each with so many workers.
pub fn on_every_network(data: &Data, workers: u8, scenario: impl Fn(&Network)) {
    if std::env::var_os(HOST).is_some() {
        return scenario(&hosts(data, workers).unwrap());
    }
    let host = match Hosts::probe() {
        Ok(()) => Some(RankHost::start()),
        Err(why) => {
            say!("{}: no separate hosts here ({why}); only through relays", name_of_test());
            None
        }
    };
    scenario(&relays(data, workers).unwrap());
    if let Some(host) = host {
        host.end();
    }
}

/// The same test once more, in a process that is a host by itself: all data sets of a process share their threads for I/O,
/// and threads reach the network of the thread that started them.
struct RankHost(Child);

impl RankHost {
    fn start() -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&name_of_test(), "--exact", "--nocapture"]).env(HOST, "1");
        command.stdin(Stdio::null()).stdout(Stdio::null());
        unsafe {
            command.pre_exec(|| {
                succeeded(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL))?;
                succeeded(libc::unshare(libc::CLONE_NEWNET))
            });
        }
        Self(command.spawn().unwrap())
    }

    fn end(mut self) {
        let ended = ended_within(&mut self.0, 2 * PATIENCE).expect("it ends");
        assert!(ended.success(), "between hosts: {ended}; its panic is printed above");
    }
}

impl Drop for RankHost {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _gone = self.0.wait();
    }
}

/// As the harness names its threads.
pub fn name_of_test() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

/// A host for each worker; this process is on the rank's.
fn hosts(data: &Data, workers: u8) -> io::Result<Network> {
    let hosts = Hosts::start(workers)?;
    let trust = Trust::new();
    let start = |nth: u8| {
        let host = hosts.host(usize::from(nth) + 1);
        let folder = data.folder(&format!("temporary-{nth}"));
        let start = trust.worker(Start::new(data)).listen(&format!("{}:{PORT}", host.address));
        start.before(host.entry()).before(own_folder(&folder, None)).env("TMPDIR", folder).start()
    };
    let workers = (0..workers).map(start).collect();
    Ok(Network { name: "between hosts", workers, between: Between::Hosts(hosts, Box::new(trust)) })
}

fn relays(data: &Data, workers: u8) -> io::Result<Network> {
    let workers: Vec<Worker> = (0..workers).map(|_| Start::new(data).without_socket().start()).collect();
    let relays = workers.iter().map(|worker| Relay::start(worker.address())).collect::<io::Result<_>>()?;
    Ok(Network { name: "through relays", workers, between: Between::Relays(relays) })
}

/// Another host's file system, as far as that matters here: what the process writes below `folder` nobody else sees.
/// `options` are a tmpfs's.
pub fn own_folder(
    folder: &std::path::Path,
    options: Option<&str>,
) -> impl FnMut() -> io::Result<()> + Send + Sync + 'static {
    use std::ffi::CString;
    use std::ptr::null;
    let text = |text: &str| CString::new(text).unwrap();
    let (folder, root, tmpfs) = (text(folder.to_str().unwrap()), text("/"), text("tmpfs"));
    let options = options.map(text);
    move || unsafe {
        succeeded(libc::unshare(libc::CLONE_NEWNS))?;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        succeeded(libc::mount(null(), root.as_ptr(), null(), private, null()))?;
        let data = options.as_ref().map_or(null(), |options| options.as_ptr().cast());
        succeeded(libc::mount(tmpfs.as_ptr(), folder.as_ptr(), tmpfs.as_ptr(), 0, data))
    }
}

/// Whether this process may do that.
pub fn has_own_folders(folder: &std::path::Path) -> io::Result<()> {
    let mut command = Command::new("true");
    unsafe { command.pre_exec(own_folder(folder, None)) };
    command.status().map(drop)
}

impl Network {
    pub fn name(&self) -> &str {
        self.name
    }

    /// What a rank is told of the workers.
    pub fn fleet(&self) -> Workers {
        match &self.between {
            Between::Hosts(_, trust) => {
                let addresses: Vec<&str> = self.workers.iter().map(Worker::address).collect();
                trust.rank(Workers::at(&addresses.join(",")).unwrap())
            }
            Between::Relays(relays) => {
                let addresses: Vec<String> = relays.iter().map(Relay::address).collect();
                Workers::at(&addresses.join(",")).unwrap()
            }
        }
    }

    /// Between the ranks and the `worker`th worker, all that is sent `way` meets this from now on.
    pub fn set(&self, worker: usize, way: Way, link: Link) {
        match &self.between {
            Between::Hosts(hosts, _) => {
                let (from, to) = match way {
                    Way::ToWorker => (0, worker + 1),
                    Way::FromWorker => (worker + 1, 0),
                };
                hosts.set(from, to, link);
            }
            Between::Relays(relays) => relays[worker].set(way, link),
        }
    }

    /// Packets or pieces that were lost so far.
    pub fn lost(&self) -> u64 {
        match &self.between {
            Between::Hosts(hosts, _) => hosts.lost(),
            Between::Relays(relays) => relays.iter().map(Relay::lost).sum(),
        }
    }

    /// Samples that a worker has made.
    pub fn samples(&self, worker: usize) -> u64 {
        let fleet = self.fleet();
        let address = fleet.addresses()[worker].clone();
        answered(|| fleet.status(&address).ok()).samples
    }
}
