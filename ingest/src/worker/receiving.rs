//! One catalog over a connection: the bytes of its tables, whose sizes its index states.

use super::at_work::unless_leaving;
use super::receptions::Reception;
use crate::Result;
use crate::wire::{Io, garbage};
use futures::FutureExt;
use std::io;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

/// A rank that sends nothing for this long is given up, so that others need not wait for it.
const SILENCE: Duration = Duration::from_secs(5);

/// The least rate at which a rank must send, after the first seconds. Where it takes longer, a worker had better build the catalog.
const LEAST_BYTES_PER_S: u64 = 8 << 20;
const FIRST_SECONDS: u64 = 10;

/// Receives a catalog whose index has come, and makes it usable.
///
/// # Errors
/// Those of the connection, also for a rank that sends too slowly. Inside: the catalog's own, after which the connection is of no
/// more use, since the rest of the tables may be on its way.
pub(super) async fn catalog(
    io: &mut impl Io,
    leaving: &watch::Receiver<bool>,
    reception: Reception,
    index: String,
) -> io::Result<Result<()>> {
    let mut receiving = match unless_leaving(io, leaving, reception.receive(index).boxed()).await? {
        Ok(receiving) => receiving,
        Err(error) => return Ok(Err(error)),
    };
    while let Some(bytes) = receiving.catalog.next_bytes() {
        let table = table(io, bytes).await?;
        let stored = unless_leaving(io, leaving, receiving.catalog.put(table.into()).boxed()).await?;
        if let Err(error) = stored {
            return Ok(Err(error));
        }
    }
    unless_leaving(io, leaving, receiving.finish().boxed()).await
}

/// Receives one table. Memory is taken as its bytes come: a rank may state many and send few.
async fn table(io: &mut impl Io, bytes: u64) -> io::Result<Vec<u8>> {
    let late = |_| garbage("a catalog that comes too slowly".into());
    let deadline = Instant::now() + Duration::from_secs(FIRST_SECONDS + bytes / LEAST_BYTES_PER_S);
    let (mut table, mut left) = (Vec::new(), io.take(bytes));
    while left.limit() > 0 {
        let read = timeout(SILENCE, left.read_buf(&mut table));
        if timeout_at(deadline, read).await.map_err(late)?.map_err(late)?? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(table)
}
