//! A relay in front of a worker, which applies network faults to connections. It needs no special rights.
//!
//! ```text
//! rank ─▶ relay's port ─▶ pump: pieces wait until they may arrive ─▶ worker
//!      ◀─────────────────── pump ◀──────────────────────────────────
//! ```
//! TCP turns lost packets into delays, and so does the relay. A cut holds bytes back until it heals. A lost piece,
//! and all pieces after it, arrive one retransmission later. Connections are accepted as usual, because the kernel
//! does that.

use crate::link::{BOTH_WAYS, Chance, Link, Way};
use crate::worker::succeeded;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes that are lost or delivered together.
const PIECE_BYTES: usize = 4 << 10;

/// Maximum pieces in flight, and maximum bytes in each socket.
const PIECES: usize = 16;
const SOCKET_BYTES: libc::c_int = 64 << 10;

/// TCP's minimum time until it sends again, and a round trip.
const RETRANSMISSION: Duration = Duration::from_millis(400);

/// Interval at which the end of the relay is checked.
const LOOK_UP_EVERY: Duration = Duration::from_millis(20);

/// A running relay. Dropping it closes its connections.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    worker: String,
    to_worker: Mutex<Link>,
    from_worker: Mutex<Link>,
    /// The number of the worker's bytes that arrive on each connection.
    limit: Mutex<Option<u64>>,
    /// The bit of one way that arrives flipped on each connection.
    flipped: Mutex<Option<(Way, u64)>>,
    /// The number of the worker's bytes that arrive per second on each connection; 0 means no limit.
    rate: AtomicU64,
    lost: AtomicU64,
    ended: AtomicBool,
    said: Mutex<Vec<u8>>,
    heard: Mutex<Vec<u8>>,
}

impl Relay {
    pub fn start(worker: &str) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let shared = Arc::new(Shared {
            worker: worker.to_owned(),
            to_worker: Mutex::default(),
            from_worker: Mutex::default(),
            limit: Mutex::default(),
            flipped: Mutex::default(),
            rate: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            ended: AtomicBool::new(false),
            said: Mutex::default(),
            heard: Mutex::default(),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || accepting.accept(&listener));
        Ok(Self { address, shared })
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    pub fn set(&self, way: Way, link: Link) {
        *self.shared.link(way).lock().unwrap() = link;
    }

    /// Limits the number of the worker's bytes that arrive on each connection. After them, the connection is silent
    /// and open.
    pub fn silent_after(&self, bytes: Option<u64>) {
        *self.shared.limit.lock().unwrap() = bytes;
    }

    /// Limits each connection to this number of the worker's bytes per second, at least 50; `None` removes the limit.
    pub fn trickle(&self, bytes_per_s: Option<u64>) {
        self.shared.rate.store(bytes_per_s.unwrap_or(0), Ordering::Relaxed);
    }

    /// Flips this bit of one way on each connection.
    pub fn flip(&self, way: Way, bit: u64) {
        *self.shared.flipped.lock().unwrap() = Some((way, bit));
    }

    /// Returns the number of pieces lost, held back or damaged so far.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Returns the bytes sent by ranks and by the worker, over all connections.
    pub fn said(&self) -> Vec<u8> {
        self.shared.said.lock().unwrap().clone()
    }

    pub fn heard(&self) -> Vec<u8> {
        self.shared.heard.lock().unwrap().clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
    }
}

/// Bytes, and their arrival time.
type Piece = (Instant, Vec<u8>);

impl Shared {
    fn link(&self, way: Way) -> &Mutex<Link> {
        match way {
            Way::ToWorker => &self.to_worker,
            Way::FromWorker => &self.from_worker,
        }
    }

    fn ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn accept(self: Arc<Self>, listener: &TcpListener) {
        let mut unanswered = Vec::new();
        while !self.ended() {
            let Ok((rank, _)) = listener.accept() else {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            };
            rank.set_nonblocking(false).unwrap();
            little_memory(&rank);
            if BOTH_WAYS.iter().any(|way| self.link(*way).lock().unwrap().cut) {
                unanswered.push(rank); // no SYN arrives, or no answer to it
                continue;
            }
            // A worker that is not running refuses connections; the relay does so by closing them.
            let Ok(worker) = TcpStream::connect(&self.worker) else { continue };
            little_memory(&worker);
            for (way, from, to) in [(Way::ToWorker, &rank, &worker), (Way::FromWorker, &worker, &rank)] {
                let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                from.set_read_timeout(Some(LOOK_UP_EVERY)).unwrap();
                to.set_nodelay(true).unwrap();
                to.set_write_timeout(Some(LOOK_UP_EVERY)).unwrap();
                let (send, receive) = sync_channel(PIECES);
                let (reader, writer) = (self.clone(), self.clone());
                std::thread::spawn(move || reader.read(way, from, &send));
                std::thread::spawn(move || writer.write(way, to, &receive));
            }
        }
    }

    fn read(&self, way: Way, mut from: TcpStream, send: &SyncSender<Piece>) {
        let (mut chance, mut after) = (Chance::new(11), Instant::now());
        let mut bytes = [0; PIECE_BYTES];
        while !self.ended() {
            let length = match from.read(&mut bytes) {
                Ok(0) => return,
                Ok(length) => length,
                Err(e) if is_timeout(&e) => continue,
                Err(_) => return,
            };
            let log = match way {
                Way::ToWorker => &self.said,
                Way::FromWorker => &self.heard,
            };
            log.lock().unwrap().extend(&bytes[..length]);
            let link = *self.link(way).lock().unwrap();
            let mut arrival = link.arrival();
            if chance.happens(link.loss) {
                self.lost.fetch_add(1, Ordering::Relaxed);
                arrival += RETRANSMISSION;
            }
            after = arrival.max(after); // pieces do not overtake each other
            let mut piece = (after, bytes[..length].to_vec());
            while let Err(back) = send.try_send(piece) {
                match back {
                    TrySendError::Full(back) if !self.ended() => piece = back,
                    _ => return,
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    fn write(&self, way: Way, mut to: TcpStream, pieces: &Receiver<Piece>) {
        let mut written = 0;
        while !self.ended() {
            let (arrival, mut bytes) = match pieces.recv_timeout(LOOK_UP_EVERY) {
                Ok(piece) => piece,
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            std::thread::sleep(arrival.saturating_duration_since(Instant::now()));
            self.wait_while_cut(way);
            self.damage(way, written, &mut bytes);
            let mut rest = &bytes[..];
            while !rest.is_empty() && !self.ended() {
                let room = self.room(way, written).min(self.trickles(way));
                let part = &rest[..room.min(rest.len())];
                if part.is_empty() {
                    std::thread::sleep(LOOK_UP_EVERY); // silent from here on
                    continue;
                }
                match to.write(part) {
                    Ok(length) => (rest, written) = (&rest[length..], written + length as u64),
                    Err(e) if is_timeout(&e) => {}
                    Err(_) => return,
                }
            }
        }
        // The end of a connection travels like its bytes.
        self.wait_while_cut(way);
        if self.room(way, written) > 0 || self.ended() {
            let _gone = to.shutdown(Shutdown::Write);
        }
    }

    /// Flips the bit if it is among these `bytes`, which begin at offset `first`.
    fn damage(&self, way: Way, first: u64, bytes: &mut [u8]) {
        let bit = self.flipped.lock().unwrap().filter(|flipped| flipped.0 == way).map(|flipped| flipped.1);
        let byte = bit.and_then(|bit| bytes.get_mut(usize::try_from((bit / 8).checked_sub(first)?).ok()?));
        if let (Some(bit), Some(byte)) = (bit, byte) {
            *byte ^= 1 << (bit % 8);
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn wait_while_cut(&self, way: Way) {
        if self.link(way).lock().unwrap().cut {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        while self.link(way).lock().unwrap().cut && !self.ended() {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Returns the number of bytes that may arrive at once; with a rate limit, after a pause.
    fn trickles(&self, way: Way) -> usize {
        match self.rate.load(Ordering::Relaxed) {
            0 => usize::MAX,
            _ if way == Way::ToWorker => usize::MAX,
            rate => {
                std::thread::sleep(LOOK_UP_EVERY);
                usize::try_from(u128::from(rate) * LOOK_UP_EVERY.as_millis() / 1000).unwrap().max(1)
            }
        }
    }

    /// Returns the number of further bytes that may arrive on the connection.
    fn room(&self, way: Way, written: u64) -> usize {
        let limit = self.limit.lock().unwrap().filter(|_| way == Way::FromWorker);
        limit.map_or(usize::MAX, |limit| usize::try_from(limit.saturating_sub(written)).unwrap())
    }
}

/// Shrinks socket buffers: buffers of megabytes would hold seconds of a run, and faults would have no effect.
fn little_memory(stream: &TcpStream) {
    for option in [libc::SO_RCVBUF, libc::SO_SNDBUF] {
        let (bytes, length) = (SOCKET_BYTES, size_of::<libc::c_int>() as libc::socklen_t);
        let value = (&raw const bytes).cast();
        let set = unsafe { libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, option, value, length) };
        succeeded(set).unwrap();
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
