//! Separate hosts: a network namespace for each, connected by this program.
//!
//! ```text
//! rank's process (10.77.0.1) ─▶ its kernel's TCP ─▶ TUN ─┐
//!                                                        ├─▶ this thread: packets pass, are late, or are lost
//! worker's process (10.77.0.2) ◀─ its kernel's TCP ◀─ TUN ┘
//! ```
//! Namespaces and devices have no names and end with their last file descriptor. Nothing remains after a test, and
//! tests do not interfere with each other. This needs CAP_SYS_ADMIN and /dev/net/tun, but not `ip`, `iptables` or the
//! kernel's netem.

use crate::link::{Chance, Link};
use crate::worker::succeeded;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Maximum bytes of a packet, as on Ethernet.
const MTU_BYTES: i32 = 1500;

/// Maximum sleep of the network thread while no packet is in flight.
const LOOK_UP_EVERY: Duration = Duration::from_millis(20);

/// Connected hosts.
pub struct Hosts {
    hosts: Vec<Host>,
    wire: Arc<Wire>,
    thread: Option<JoinHandle<()>>,
}

/// One host; the first one is the rank's.
pub struct Host {
    pub address: Ipv4Addr,
    namespace: OwnedFd,
}

struct Wire {
    tuns: Vec<File>,
    /// Links by sender, then by receiver.
    links: Mutex<Vec<Vec<Link>>>,
    lost: AtomicU64,
    ended: AtomicBool,
}

impl Hosts {
    /// Makes this process, whose network must be new, a host, and starts further hosts.
    pub fn start(others: u8) -> io::Result<Self> {
        let made = std::iter::once(enter(0)).chain((1..=others).map(host)).collect::<io::Result<Vec<_>>>()?;
        let (hosts, tuns): (Vec<Host>, Vec<File>) = made.into_iter().unzip();
        let links = Mutex::new(vec![vec![Link::default(); hosts.len()]; hosts.len()]);
        let wire = Arc::new(Wire { tuns, links, lost: AtomicU64::new(0), ended: AtomicBool::new(false) });
        let carried = wire.clone();
        let thread = std::thread::Builder::new().name("wire".into()).spawn(move || carried.carry())?;
        Ok(Self { hosts, wire, thread: Some(thread) })
    }

    /// Returns whether this process may create hosts.
    pub fn probe() -> io::Result<()> {
        host(0).map(drop)
    }

    pub fn host(&self, nth: usize) -> &Host {
        &self.hosts[nth]
    }

    pub fn set(&self, from: usize, to: usize, link: Link) {
        self.wire.links.lock().unwrap()[from][to] = link;
    }

    /// Returns the number of packets lost so far.
    pub fn lost(&self) -> u64 {
        self.wire.lost.load(Ordering::Relaxed)
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.wire.ended.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the network thread failed");
        }
    }
}

impl Host {
    /// Returns a function that moves the process which calls it to this host.
    pub fn entry(&self) -> impl FnMut() -> io::Result<()> + Send + Sync + 'static {
        let namespace = self.namespace.try_clone().unwrap();
        move || succeeded(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })
    }
}

/// Creates a host in a separate thread, which leaves the program's network for good.
fn host(nth: u8) -> io::Result<(Host, File)> {
    let made = std::thread::spawn(move || {
        succeeded(unsafe { libc::unshare(libc::CLONE_NEWNET) })?;
        enter(nth)
    });
    made.join().expect("no panic")
}

/// Makes this thread's new and empty network the `nth` host.
fn enter(nth: u8) -> io::Result<(Host, File)> {
    let address = Ipv4Addr::new(10, 77, 0, nth + 1);
    let namespace = File::open("/proc/thread-self/ns/net")?;
    let tun = tun(address)?;
    Ok((Host { address, namespace: namespace.into() }, tun))
}

/// Creates a network device whose other end is a file of packets.
fn tun(address: Ipv4Addr) -> io::Result<File> {
    let tun = File::options().read(true).write(true).open("/dev/net/tun")?;
    let mut wanted = request("wire");
    wanted.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as i16;
    succeeded(unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF as _, &raw mut wanted) })?;
    let flags = unsafe { libc::fcntl(tun.as_raw_fd(), libc::F_GETFL) };
    succeeded(unsafe { libc::fcntl(tun.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) })?;

    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    succeeded(socket)?;
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    let mut at = request("wire");
    at.ifr_ifru.ifru_addr = socket_address(address);
    configure(&socket, libc::SIOCSIFADDR, &mut at)?;
    let mut mask = request("wire");
    mask.ifr_ifru.ifru_addr = socket_address(Ipv4Addr::new(255, 255, 255, 0));
    configure(&socket, libc::SIOCSIFNETMASK, &mut mask)?;
    let mut size = request("wire");
    size.ifr_ifru.ifru_mtu = MTU_BYTES;
    configure(&socket, libc::SIOCSIFMTU, &mut size)?;
    for device in ["lo", "wire"] {
        let mut up = request(device);
        up.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        configure(&socket, libc::SIOCSIFFLAGS, &mut up)?;
    }
    Ok(tun)
}

fn request(device: &str) -> libc::ifreq {
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(device.bytes()) {
        *to = from as _;
    }
    request
}

fn configure(socket: &OwnedFd, what: libc::c_ulong, request: &mut libc::ifreq) -> io::Result<()> {
    succeeded(unsafe { libc::ioctl(socket.as_raw_fd(), what as _, std::ptr::from_mut(request)) })
}

fn socket_address(address: Ipv4Addr) -> libc::sockaddr {
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.octets()) },
        sin_zero: [0; 8],
    };
    // The two types differ in name only, as required for ifreq.
    unsafe { std::mem::transmute::<libc::sockaddr_in, libc::sockaddr>(address) }
}

/// A packet in flight: arrival time, its number (packets do not overtake each other), receiver, bytes.
type Late = Reverse<(Instant, u64, usize, Vec<u8>)>;

impl Wire {
    fn carry(&self) {
        let mut late: BinaryHeap<Late> = BinaryHeap::new();
        let (mut chance, mut packet, mut number) = (Chance::new(7), vec![0; 64 << 10], 0);
        while !self.ended.load(Ordering::Relaxed) {
            let next = late.peek().map(|Reverse((at, ..))| at.saturating_duration_since(Instant::now()));
            for sender in readable(&self.tuns, next.unwrap_or(LOOK_UP_EVERY).min(LOOK_UP_EVERY)) {
                while let Ok(length @ 1..) = (&self.tuns[sender]).read(&mut packet) {
                    let Some(receiver) = receiver(&packet[..length], self.tuns.len()) else { continue };
                    let link = self.links.lock().unwrap()[sender][receiver];
                    if link.cut || chance.happens(link.loss) {
                        self.lost.fetch_add(1, Ordering::Relaxed);
                    } else if link.delay.is_zero() {
                        self.deliver(receiver, &packet[..length]);
                    } else {
                        number += 1;
                        late.push(Reverse((link.arrival(), number, receiver, packet[..length].to_vec())));
                    }
                }
            }
            while late.peek().is_some_and(|Reverse((at, ..))| *at <= Instant::now()) {
                let Some(Reverse((_, _, receiver, packet))) = late.pop() else { break };
                self.deliver(receiver, &packet);
            }
        }
    }

    fn deliver(&self, receiver: usize, packet: &[u8]) {
        // A host that does not accept a packet loses it, as in any network.
        let _lost = (&self.tuns[receiver]).write(packet);
    }
}

/// Returns the host to which an IPv4 packet is addressed.
fn receiver(packet: &[u8], hosts: usize) -> Option<usize> {
    match packet {
        [first, ..] if first >> 4 == 4 && packet.len() >= 20 && packet[16..19] == [10, 77, 0] => {
            usize::from(packet[19]).checked_sub(1).filter(|host| *host < hosts)
        }
        _ => None, // announcements of IPv6
    }
}

fn readable(files: &[File], timeout: Duration) -> Vec<usize> {
    let of = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut polled: Vec<libc::pollfd> = files.iter().map(|file| of(file.as_raw_fd())).collect();
    let millis = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, millis) };
    (0..files.len()).filter(|&file| polled[file].revents & libc::POLLIN != 0).collect()
}
