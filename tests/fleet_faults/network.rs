//! A rank, workers, and what lies between them: hosts on a wire where this process may make them, and relays always.

use crate::data::Data;
use crate::hosts::Hosts;
use crate::link::{Link, Way};
use crate::relay::Relay;
use crate::run::answered;
use crate::say;
use crate::trust::Trust;
use crate::worker::{Start, Worker};
use feedstock::Workers;
use std::io;

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

/// Tries `scenario` on every network there is, at the same time, each with so many workers.
pub fn on_every_network(data: &Data, workers: u8, scenario: impl Fn(&Network) + Sync) {
    let hosts = hosts(data, workers);
    if let Err(why) = &hosts {
        say!("{}: no hosts of their own here ({why}); only through relays", name_of_test());
    }
    let networks: Vec<Network> = hosts.into_iter().chain([relays(data, workers).unwrap()]).collect();
    let names: Vec<&str> = networks.iter().map(|network| network.name).collect();
    say!("{}: {}", name_of_test(), names.join(" and "));
    std::thread::scope(|scope| {
        let run = |network| {
            let scenario = &scenario;
            scope.spawn(move || scenario(network))
        };
        let running: Vec<_> = networks.iter().map(run).collect();
        for (thread, network) in running.into_iter().zip(&networks) {
            if let Err(panic) = thread.join() {
                say!("failed {}", network.name);
                std::panic::resume_unwind(panic);
            }
        }
    });
}

/// As the harness names its threads.
pub fn name_of_test() -> String {
    std::thread::current().name().unwrap_or_default().to_owned()
}

/// A host for the rank, one for each worker.
fn hosts(data: &Data, workers: u8) -> io::Result<Network> {
    let hosts = Hosts::start(workers + 1)?;
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
        crate::worker::succeeded(libc::unshare(libc::CLONE_NEWNS))?;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        crate::worker::succeeded(libc::mount(null(), root.as_ptr(), null(), private, null()))?;
        let data = options.as_ref().map_or(null(), |options| options.as_ptr().cast());
        crate::worker::succeeded(libc::mount(tmpfs.as_ptr(), folder.as_ptr(), tmpfs.as_ptr(), 0, data))
    }
}

/// Whether this process may do that.
pub fn has_own_folders(folder: &std::path::Path) -> io::Result<()> {
    use std::os::unix::process::CommandExt;
    let mut command = std::process::Command::new("true");
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

    /// Does something where the ranks are.
    pub fn as_rank<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        match &self.between {
            Between::Hosts(hosts, _) => hosts.host(0).run(act),
            Between::Relays(_) => act(),
        }
    }

    /// Samples that a worker has made, asked where the ranks are.
    pub fn samples(&self, worker: usize) -> u64 {
        let fleet = self.fleet();
        let address = fleet.addresses()[worker].clone();
        self.as_rank(|| answered(|| fleet.status(&address).ok()).samples)
    }
}
