//! A relay in front of a worker: what a network does, done to connections. It needs no rights at all.
//!
//! ```text
//! rank ─▶ relay's port ─▶ pump: pieces wait until they may arrive ─▶ worker
//!      ◀─────────────────── pump ◀──────────────────────────────────
//! ```
//! TCP hides lost packets behind time, so that is what this makes of them: a cut holds bytes back until it heals, a lost
//! piece and all behind it come a retransmission later. Connections are accepted as ever, since the kernel does that.

use crate::link::{BOTH_WAYS, Chance, Link, Way};
use crate::worker::succeeded;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes that are lost or come together.
const PIECE_BYTES: usize = 4 << 10;

/// Pieces on the way, and bytes in each socket.
const PIECES: usize = 16;
const SOCKET_BYTES: libc::c_int = 64 << 10;

/// TCP's least time until it sends again, and a round trip.
const RETRANSMISSION: Duration = Duration::from_millis(400);

/// Between looks at whether all is over.
const LOOK_UP_EVERY: Duration = Duration::from_millis(20);

/// A running relay; dropping it ends its connections.
pub struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    worker: String,
    to_worker: Mutex<Link>,
    from_worker: Mutex<Link>,
    /// Of each connection, so many of the worker's bytes arrive.
    limit: Mutex<Option<u64>>,
    /// Of each connection, this one of the worker's bits arrives flipped.
    flipped: Mutex<Option<u64>>,
    /// Of each connection, so many of the worker's bytes arrive in a second; 0: all.
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

    /// Of each connection, only so many of the worker's bytes arrive; then it is silent, and open.
    pub fn silent_after(&self, bytes: Option<u64>) {
        *self.shared.limit.lock().unwrap() = bytes;
    }

    /// From now on each connection brings so many of the worker's bytes a second, at least 50; `None`: all of them.
    pub fn trickle(&self, bytes_per_s: Option<u64>) {
        self.shared.rate.store(bytes_per_s.unwrap_or(0), Ordering::Relaxed);
    }

    /// Of each connection, this one of the worker's bits arrives flipped.
    pub fn flip(&self, bit: u64) {
        *self.shared.flipped.lock().unwrap() = Some(bit);
    }

    /// Pieces lost, held back or damaged so far.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// What ranks have said, and what the worker: all connections' together.
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

/// Bytes, and when they arrive.
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
            // A worker that is not there refuses: so does the relay, by hanging up.
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
            after = arrival.max(after); // nothing overtakes
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

    /// Flips the bit, if it is among these `bytes` from the `first` on.
    fn damage(&self, way: Way, first: u64, bytes: &mut [u8]) {
        let bit = self.flipped.lock().unwrap().filter(|_| way == Way::FromWorker);
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

    /// How many bytes may arrive at once; where they trickle, after a pause.
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

    /// How many more of the connection's bytes may arrive.
    fn room(&self, way: Way, written: u64) -> usize {
        let limit = self.limit.lock().unwrap().filter(|_| way == Way::FromWorker);
        limit.map_or(usize::MAX, |limit| usize::try_from(limit.saturating_sub(written)).unwrap())
    }
}

/// Sockets that grow to megabytes would hold seconds of a run, and no fault were felt.
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
