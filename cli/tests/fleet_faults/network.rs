//! A rank, workers, and the network between them: separate hosts if this process may create them, and always relays.

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

/// The port of a worker that has its own host.
const PORT: u16 = 7117;

/// Workers, and how ranks reach them.
pub struct Network {
    name: &'static str,
    pub workers: Vec<Worker>,
    between: Between,
}

enum Between {
    /// The first host is the rank's. Workers and ranks use certificates and a token, as between machines.
    Hosts(Hosts, Box<Trust>),
    /// One relay before each worker.
    Relays(Vec<Relay>),
}

/// Environment variable of a test process that is the rank's host.
const HOST: &str = "FEEDSTOCK_TEST_HOST";

/// Runs `scenario` on every kind of network at the same time, each with this number of workers.
pub fn on_every_network(data: &Data, workers: u8, scenario: impl Fn(&Network)) {
    if std::env::var_os(HOST).is_some() {
        return scenario(&hosts(data, workers).unwrap());
    }
    let host = match Hosts::probe() {
        Ok(()) => Some(RankHost::start()),
        Err(why) => {
            say!("{}: this process cannot create hosts ({why}); tested through relays only", name_of_test());
            None
        }
    };
    scenario(&relays(data, workers).unwrap());
    if let Some(host) = host {
        host.end();
    }
}

/// The same test again, in a process that is a host. A separate process is necessary because all data sets of a
/// process share their I/O threads, and threads use the network of the thread that started them.
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

/// Returns the name of the test, which the harness gives to its thread.
pub fn name_of_test() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

/// Creates a host for each worker. This process is on the rank's host.
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

/// Gives the process a file system as on another host: no other process sees what it writes below `folder`. `options`
/// are those of a tmpfs.
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

/// Returns whether this process may do that.
pub fn has_own_folders(folder: &std::path::Path) -> io::Result<()> {
    let mut command = Command::new("true");
    unsafe { command.pre_exec(own_folder(folder, None)) };
    command.status().map(drop)
}

impl Network {
    pub fn name(&self) -> &str {
        self.name
    }

    /// Returns the fleet as a rank is configured for it.
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

    /// Sets the link between the ranks and the `worker`th worker, in direction `way`, from now on.
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

    /// Returns the number of packets or pieces lost so far.
    pub fn lost(&self) -> u64 {
        match &self.between {
            Between::Hosts(hosts, _) => hosts.lost(),
            Between::Relays(relays) => relays.iter().map(Relay::lost).sum(),
        }
    }

    /// Returns the number of samples that a worker has made.
    pub fn samples(&self, worker: usize) -> u64 {
        let fleet = self.fleet();
        let address = fleet.addresses()[worker].clone();
        answered(|| fleet.status(&address).ok()).samples
    }
}
