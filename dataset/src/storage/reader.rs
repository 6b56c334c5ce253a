//! A blocking `Read + Seek` over one object, for parsers that want one.

use super::{ObjectRef, Storage};
use crate::Result;
use bytes::Bytes;
use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use tokio::task::JoinHandle;

/// Reads one object through a buffer. While a sequential caller consumes one buffer the next is on its
/// way, so at most two are held: memory ≤ 2 · `buffer_bytes`.
///
/// Call it off the I/O threads (`spawn_blocking` or a plain thread). Errors come as [`io::Error`] whose inner
/// error is the crate's [`Error`](crate::Error).
pub struct ObjectReader {
    storage: Storage,
    object: ObjectRef,
    buffer_bytes: u64,
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

/// Smaller buffers would make a request out of every tar header.
const BUFFER_MIN_BYTES: u64 = 4 << 10;

impl ObjectReader {
    pub(super) fn new(storage: Storage, object: ObjectRef, buffer_bytes: usize) -> Self {
        let buffer_bytes = (buffer_bytes as u64).max(BUFFER_MIN_BYTES);
        Self { storage, object, buffer_bytes, position: 0, start: 0, buffer: Bytes::new(), next: None }
    }

    /// Bytes in the object.
    pub fn size(&self) -> u64 {
        self.object.size
    }

    fn window(&self, start: u64) -> Range<u64> {
        start..(start.saturating_add(self.buffer_bytes)).min(self.object.size)
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
        let range = self.window(self.position);
        let ahead = self.next.take().filter(|ahead| ahead.range == range);
        if ahead.is_none() {
            self.fetch_ahead(range.clone());
        }
        let Some(mut ahead) = ahead.or_else(|| self.next.take()) else { return Ok(()) };
        self.buffer = Bytes::new(); // given back before the next arrives
        let bytes = futures::executor::block_on(&mut ahead.task).map_err(io::Error::other)?;
        self.buffer = bytes.map_err(io::Error::other)?;
        self.start = range.start;
        if sequential {
            self.fetch_ahead(self.window(range.end));
        }
        Ok(())
    }

    /// What is buffered at the position; fetches when nothing is. Empty at the end of the object.
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
