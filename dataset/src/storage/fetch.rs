//! Reads one range of an object with one request at a time; each attempt continues where the last one ended.
//!
//! ```text
//! attempt 1  ████████░░░░░░░░  cut: reset, stalled, or below the minimum rate
//! attempt 2          ████░░░░  Range from the offset reached, of the same version
//! attempt 3              ████  done
//! ```
//! Bytes that arrived are kept only if their answer and the next one have the same strong ETag. Otherwise they may be of two
//! versions, and the range is read again. Two versions may have an equal weak ETag or time of change. A server that leaves the
//! ETag out of a 206 does not state which version it sends.

use super::failure::Fault;
use super::hedge::Hedged;
use super::latencies::Kind;
use super::object::ObjectRef;
use super::pace::{Limits, Pace};
use super::progress::Progress;
use super::retry::{Ended, within};
use super::store::{Remote, Store};
use super::version::{check_version, conditions, strong};
use crate::{Error, Result};
use bytes::{Bytes, BytesMut};
use futures::{FutureExt, StreamExt};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, GetResult};
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// The request: what is read.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub(super) remote: &'a Remote,
    pub(super) path: &'a Path,
    pub(super) object: &'a ObjectRef,
}

/// The part of a range that has arrived.
pub(super) struct Partial {
    range: Range<u64>,
    /// Whether the range is the whole object, which is requested without a range.
    is_whole: bool,
    /// Whether the bytes go into `buffer`, whose memory has their size and must not move.
    is_in_place: bool,
    arrived: Mutex<Arrived>,
}

/// The bytes, and the strong ETag of the answer that they came in.
#[derive(Default)]
struct Arrived {
    buffer: BytesMut,
    etag: Option<String>,
}

impl Partial {
    /// Starts with no bytes of `range`.
    pub(super) fn new(range: Range<u64>, is_whole: bool) -> Self {
        Self { range, is_whole, is_in_place: false, arrived: Mutex::default() }
    }

    /// Starts with no bytes of `range`; they go into `buffer`, which is empty and has room for them.
    pub(super) fn in_place(range: Range<u64>, buffer: BytesMut) -> Self {
        let arrived = Mutex::new(Arrived { buffer, etag: None });
        Self { range, is_whole: false, is_in_place: true, arrived }
    }

    fn lock(&self) -> MutexGuard<'_, Arrived> {
        self.arrived.lock().unwrap_or_else(PoisonError::into_inner) // bytes are appended whole
    }

    fn arrived(&self) -> u64 {
        self.lock().buffer.len() as u64
    }

    fn missing(&self) -> Range<u64> {
        self.range.start + self.arrived()..self.range.end
    }

    fn append(&self, part: &[u8]) -> Result<(), Fault> {
        let buffer = &mut self.lock().buffer;
        if buffer.capacity() == 0 {
            let len = self.range.end - self.range.start;
            let len = usize::try_from(len)
                .map_err(|_| Fault::Refused(format!("{len} bytes do not fit in memory")))?;
            buffer.reserve(len);
        }
        buffer.extend_from_slice(part);
        Ok(())
    }

    fn lose(&self, progress: &Progress) {
        let mut arrived = self.lock();
        arrived.buffer.clear();
        arrived.etag = None;
        progress.lose();
    }

    /// Whether an answer with this strong ETag, or with none, continues what has arrived. If nothing has, it is the beginning.
    fn continues(&self, etag: Option<&str>) -> bool {
        let mut arrived = self.lock();
        if arrived.buffer.is_empty() {
            arrived.etag = etag.map(str::to_owned);
            return true;
        }
        etag.is_some() && arrived.etag.as_deref() == etag
    }

    fn is_pinned(&self) -> bool {
        self.lock().etag.is_some()
    }

    /// Takes the bytes that arrived.
    pub(super) fn take(&self) -> BytesMut {
        std::mem::take(&mut self.lock().buffer)
    }
}

impl Store {
    /// Fills `partial`, or returns its bytes if they came in one part.
    pub(super) async fn fetch(&self, asked: Asked<'_>, partial: &Partial) -> Result<Option<Bytes>, Ended> {
        let progress = &Progress::bytes(partial.range.end - partial.range.start);
        let conditions = conditions(asked.object, self.scheme);
        let with = Means { conditions: &conditions, limits: self.shared.limits, hedged: self.hedged() };
        self.until_done_with(progress, |_| attempt(asked, with, partial, progress)).await
    }
}

/// How a range is requested.
#[derive(Clone, Copy)]
struct Means<'a> {
    /// What pins the version.
    conditions: &'a GetOptions,
    limits: Limits,
    hedged: Hedged<'a>,
}

/// Makes one attempt. Compares the length with the range, and size and version with the catalog's.
async fn attempt(
    asked: Asked<'_>,
    with: Means<'_>,
    partial: &Partial,
    progress: &Progress,
) -> Result<Option<Bytes>, Fault> {
    let limits = with.limits;
    if partial.arrived() > 0 && !partial.is_pinned() {
        partial.lose(progress);
    }
    let answer = request(asked, with, partial, progress).await?;
    check_version(&answer.meta, asked.object)?;
    if !partial.continues(strong(&answer.meta)) {
        partial.lose(progress);
        return Err(Fault::Unversioned);
    }
    let missing = partial.missing();
    let expected = missing.end - missing.start;
    if answer.range != missing {
        return Err(Fault::Range { asked: missing, got: answer.range });
    }
    let mut body = answer.into_stream();
    let mut pace = Pace::new(limits.window, Instant::now());
    let mut got = 0_u64;
    loop {
        let left =
            pace.check(Instant::now()).map_err(|bytes| Fault::Slow { bytes, window: limits.window })?;
        let Ok(part) = tokio::time::timeout(left, body.next()).await else { continue };
        let Some(part) = part else { break };
        let part = part?;
        pace.on_bytes(part.len() as u64);
        got += part.len() as u64;
        if got > expected {
            partial.lose(progress); // a server that sends a wrong length may have sent anything
            return Err(Fault::Length { expected, got });
        }
        progress.add(part.len() as u64);
        let is_all = part.len() as u64 == partial.range.end - partial.range.start;
        let alone = (is_all && !partial.is_in_place).then_some(part.clone()); // nothing to copy
        if alone.is_none() {
            partial.append(&part)?;
        }
        if got == expected {
            // Reading the end as well lets the connection serve the next request.
            return match body.next().now_or_never().flatten() {
                Some(Ok(more)) if !more.is_empty() => {
                    partial.lose(progress);
                    Err(Fault::Length { expected, got: got + more.len() as u64 })
                }
                _ => Ok(alone),
            };
        }
    }
    Err(Fault::Length { expected, got })
}

/// Requests the missing bytes.
async fn request(
    asked: Asked<'_>,
    with: Means<'_>,
    partial: &Partial,
    progress: &Progress,
) -> Result<GetResult, Fault> {
    let ask = async |range: Option<Range<u64>>| {
        let missing = partial.missing();
        let options = GetOptions { range: range.map(GetRange::Bounded), ..with.conditions.clone() };
        let get = || within(with.limits.stall, asked.remote.objects.get_opts(asked.path, options.clone()));
        with.hedged.first(Kind::Range(missing.end - missing.start), get).await
    };
    if !partial.is_whole {
        return ask(Some(partial.missing())).await;
    }
    if partial.arrived() > 0 {
        match ask(Some(partial.missing())).await {
            // the server sends whole objects only
            Err(Fault::Store(object_store::Error::NotSupported { .. })) => partial.lose(progress),
            answered => return answered,
        }
    }
    ask(None).await
}

/// Returns the key as object_store's type; an error names a key that the type cannot hold.
pub(super) fn path(key: &str) -> Result<Path> {
    Path::parse(key).map_err(|e| Error::config(format!("the key '{key}' cannot be addressed: {e}")))
}

/// Runs file I/O off the async threads.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) => Err(Fault::Refused(format!("a file operation ended without a result: {e}"))),
    }
}
