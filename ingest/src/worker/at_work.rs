//! Signs of life of a worker whose answer takes a while.

use crate::wire::{ALIVE_EVERY, Io, write_not_yet};
use crate::{Error, ErrorKind, Result};
use futures::future::BoxFuture;
use std::io;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{Instant, interval_at};

/// A lane that takes longer to open waits for a data set or its ops; where they are ready, it takes milliseconds. With this,
/// six round trips of 100 ms until a lane is asked for stay below the 750 ms after which a rank calls a worker slow.
const OPENING_AFTER: Duration = Duration::from_millis(100);

/// Does work that prepares later streams, which a worker that drains refuses. Work that began before the drain runs to its end, and then
/// gets the same error.
pub(super) async fn unless_leaving<T>(
    io: &mut impl Io,
    leaving: &watch::Receiver<bool>,
    work: BoxFuture<'_, Result<T>>,
) -> io::Result<Result<T>> {
    let gone = || Err(Error::new(ErrorKind::Retryable, "the worker is going away; ask another one"));
    if *leaving.borrow() {
        return Ok(gone());
    }
    let done = at_work(io, work).await?;
    Ok(if *leaving.borrow() { gone() } else { done })
}

/// Waits for a data set or a lane and reports meanwhile that it is at work: a catalog may have to be built. The rank does not
/// call a worker late that reports this.
pub(super) async fn at_work<T>(
    io: &mut impl Io,
    mut work: BoxFuture<'_, Result<T>>,
) -> io::Result<Result<T>> {
    let mut tick = interval_at(Instant::now() + OPENING_AFTER, ALIVE_EVERY);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return Ok(done),
            _ = tick.tick() => {
                write_not_yet(io).await?;
            }
        }
    }
}
