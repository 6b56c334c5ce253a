//! A blocking `Read + Seek` over one object, for parsers that need one.

use super::{ObjectRef, Storage};
use crate::Result;
use bytes::Bytes;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use tokio::task::JoinHandle;

/// Reads one object through a buffer. While a sequential caller consumes one buffer, the next is being fetched, so at most two
/// are held: memory ≤ 2 · `buffer_bytes`.
///
/// A hopping reader adapts to the caller's jumps: it fetches little after a jump over more than 1 MiB, and up to
/// `buffer_bytes` if the caller reads on.
///
/// Call it off the I/O threads (`spawn_blocking` or a plain thread). Errors are [`io::Error`]s whose inner error is the
/// crate's [`Error`](crate::Error).
pub struct ObjectReader {
    storage: Storage,
    object: ObjectRef,
    buffer_bytes: u64,
    hops: Option<Hops>,
    position: u64,
    start: u64,
    buffer: Bytes,
    next: Option<Ahead>,
}

struct Ahead {
    range: Range<u64>,
    task: JoinHandle<Result<Bytes>>,
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Minimum buffer: smaller ones would turn every tar header into a request.
const BUFFER_MIN_BYTES: u64 = 4 << 10;
/// A jump over more than this is a hop: a request takes as long as reading this much, 15 ms at 60 MB/s.
const HOP_MIN_BYTES: u64 = 1 << 20;
/// The part of a jump that is read after it: 3.1 %, so that hops read less than 5 % of an object. At the smallest hop that is
/// 32 KiB, enough for the headers and texts of some ten small members.
const HOP_PART: u64 = 32;
/// Maximum read after a hop. More is seldom needed, and reading on takes larger steps anyway.
const HOP_READ_MAX_BYTES: u64 = 64 << 10;
/// Read at the start of an object, before the size of its members is known.
const FIRST_READ_BYTES: u64 = 64 << 10;
/// The factor by which the next request grows if the caller reads on: 64 KiB, 256 KiB, 1 MiB.
const GROWTH: u64 = 4;

/// The amount to fetch for a caller that jumps.
struct Hops {
    /// Where the caller's last read ended.
    read_to: u64,
    /// Bytes of the last fetch; 0 before the first request.
    window: u64,
}

impl Hops {
    /// Returns the bytes to fetch at `position`, at most `most`.
    fn next(&mut self, position: u64, most: u64) -> u64 {
        let jump = position.saturating_sub(self.read_to);
        let window = match self.window {
            _ if jump > HOP_MIN_BYTES => (jump / HOP_PART).min(HOP_READ_MAX_BYTES),
            0 => FIRST_READ_BYTES,
            window => window.saturating_mul(GROWTH),
        };
        self.window = window.min(most);
        self.window
    }
}

impl ObjectReader {
    pub(super) fn new(storage: Storage, object: ObjectRef, buffer_bytes: usize) -> Self {
        let buffer_bytes = (buffer_bytes as u64).max(BUFFER_MIN_BYTES);
        let (hops, buffer) = (None, Bytes::new());
        Self { storage, object, buffer_bytes, hops, position: 0, start: 0, buffer, next: None }
    }

    /// Creates a hopping reader.
    pub(super) fn hopping(storage: Storage, object: ObjectRef, buffer_bytes: usize) -> Self {
        Self { hops: Some(Hops { read_to: 0, window: 0 }), ..Self::new(storage, object, buffer_bytes) }
    }

    /// Returns the size of the object in bytes.
    pub fn size(&self) -> u64 {
        self.object.size
    }

    fn window(&self, start: u64, bytes: u64) -> Range<u64> {
        start..start.saturating_add(bytes).min(self.object.size)
    }

    fn fetch_ahead(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (storage, object, wanted) = (self.storage.clone(), self.object.clone(), range.clone());
        let task = self.storage.io().handle().spawn(async move { storage.read_here(&object, wanted).await });
        self.next = Some(Ahead { range, task });
    }

    fn fill(&mut self) -> io::Result<()> {
        let end = self.start + self.buffer.len() as u64;
        let sequential = self.position == end && !self.buffer.is_empty();
        let most = self.buffer_bytes;
        let window = self.hops.as_mut().map_or(most, |hops| hops.next(self.position, most));
        let range = self.window(self.position, window);
        let ahead = self.next.take().filter(|ahead| ahead.range == range);
        if ahead.is_none() {
            self.fetch_ahead(range.clone());
        }
        let Some(mut ahead) = ahead.or_else(|| self.next.take()) else { return Ok(()) };
        self.buffer = Bytes::new(); // freed before the next arrives
        let bytes = futures::executor::block_on(&mut ahead.task).map_err(io::Error::other)?;
        self.buffer = bytes.map_err(io::Error::other)?;
        self.start = range.start;
        if sequential && window == most {
            self.fetch_ahead(self.window(range.end, most));
        }
        Ok(())
    }

    /// Returns what is buffered at the position; fetches if nothing is. Empty at the end of the object.
    fn available(&mut self) -> io::Result<Bytes> {
        if self.position >= self.object.size {
            return Ok(Bytes::new());
        }
        let end = self.start + self.buffer.len() as u64;
        if self.position < self.start || self.position >= end {
            self.fill()?;
        }
        let at = usize::try_from(self.position - self.start).map_err(io::Error::other)?;
        Ok(self.buffer.slice(at..))
    }
}

impl Read for ObjectReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if out.is_empty() {
            return Ok(0);
        }
        let bytes = self.available()?;
        let n = bytes.len().min(out.len());
        out[..n].copy_from_slice(&bytes[..n]);
        self.position += n as u64;
        if let Some(hops) = &mut self.hops {
            hops.read_to = self.position;
        }
        Ok(n)
    }
}

impl Seek for ObjectReader {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let target = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.object.size.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = target.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{:?}: seek before the start", self.object))
        })?;
        Ok(self.position)
    }
}

impl fmt::Debug for ObjectReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectReader")
            .field("object", &self.object)
            .field("position", &self.position)
            .finish()
    }
}
