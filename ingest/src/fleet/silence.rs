//! When a worker was heard last, and how long it has been silent.

use super::progress::Counters;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::{Instant, sleep_until};

/// Three signs of life are missing: the worker is lost, stuck or cut off.
pub(super) const SILENCE: Duration = Duration::from_millis(1500);

/// Stands for the time at which something was heard while the stream does not read.
const PAUSED: u64 = u64::MAX;

/// When something was heard last; clones share it.
#[derive(Clone)]
pub(super) struct LastHeard {
    /// Milliseconds since `start`.
    millis: Arc<AtomicU64>,
    start: Instant,
}

impl LastHeard {
    pub(super) fn new() -> Self {
        Self { millis: Arc::default(), start: Instant::now() }
    }

    /// Something is heard now.
    pub(super) fn mark(&self) {
        let millis = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.millis.store(millis, Ordering::Relaxed);
    }

    /// The stream does not read until the next mark, so it cannot hear.
    pub(super) fn pause(&self) {
        self.millis.store(PAUSED, Ordering::Relaxed);
    }

    /// Returns once nothing was heard for [`SILENCE`].
    pub(super) async fn silence(&self) {
        loop {
            let last = match self.millis.load(Ordering::Relaxed) {
                PAUSED => Instant::now(),
                millis => self.start + Duration::from_millis(millis),
            };
            if last.elapsed() >= SILENCE {
                return;
            }
            sleep_until(last + SILENCE).await;
        }
    }
}

/// A reader that records when bytes come, and how many.
pub(super) struct HeardReader<R> {
    inner: R,
    last_heard: LastHeard,
    counters: Arc<Counters>,
}

impl<R> HeardReader<R> {
    pub(super) fn new(inner: R, last_heard: LastHeard, counters: Arc<Counters>) -> Self {
        Self { inner, last_heard, counters }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for HeardReader<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        let came = buf.filled().len() - before;
        if came > 0 {
            self.counters.received(came);
            self.last_heard.mark();
        }
        Poll::Ready(Ok(()))
    }
}
