//! A host whose connections write a limited number of bytes a second.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};
use turmoil::net::TcpStream;

/// What a limited host writes arrives in parts, one each of this time.
const PART: Duration = Duration::from_millis(50);

/// Bytes a second that each connection of a host writes; 0: no limit.
pub(super) type Limit = Arc<AtomicU64>;

/// A connection whose writes trickle while its host is limited.
pub(super) struct Throttled {
    stream: TcpStream,
    limit: Limit,
    /// Until the next part may be written.
    pause: Pin<Box<Sleep>>,
    /// What the last part took beyond its time, in bytes: rates of less than a byte a part add up.
    saved: u64,
}

impl Throttled {
    pub(super) fn new(stream: TcpStream, limit: Limit) -> Self {
        Self { stream, limit, pause: Box::pin(sleep(Duration::ZERO)), saved: 0 }
    }
}

impl AsyncRead for Throttled {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Throttled {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.pause.as_mut().poll(cx));
            let limit = self.limit.load(Ordering::Relaxed);
            if limit == 0 {
                return Pin::new(&mut self.stream).poll_write(cx, buf);
            }
            self.saved += limit * PART.as_millis() as u64;
            let part = buf.len().min((self.saved / 1000) as usize);
            self.saved %= 1000;
            self.pause.as_mut().reset(Instant::now() + PART);
            if part > 0 {
                return Pin::new(&mut self.stream).poll_write(cx, &buf[..part]);
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
