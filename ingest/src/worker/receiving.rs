//! One catalog over a connection: the bytes of its tables, whose sizes its index states.

use super::receptions::{Receiving, Reception};
use crate::Result;
use crate::wire::{Io, garbage};
use std::io;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, timeout_at};

/// The least rate at which a rank must send, after the first seconds.
const LEAST_BYTES_PER_S: u64 = 1 << 20;
const FIRST_SECONDS: u64 = 20;

/// Receives the tables of a catalog whose index has come.
///
/// # Errors
/// Those of the connection, also for a rank that sends too slowly. Inside: the catalog's own, after which the connection is of no
/// more use, since the rest of the tables may be on its way.
pub(super) async fn tables<'a>(
    io: &mut impl Io,
    reception: &'a Reception,
    index: &str,
) -> io::Result<Result<Receiving<'a>>> {
    let mut receiving = match reception.receive(index).await {
        Ok(receiving) => receiving,
        Err(error) => return Ok(Err(error)),
    };
    while let Some(bytes) = receiving.catalog.next_bytes() {
        let seconds = FIRST_SECONDS + bytes / LEAST_BYTES_PER_S;
        let deadline = Instant::now() + Duration::from_secs(seconds);
        let mut table = Vec::new(); // it grows as bytes come: a rank may state many and send few
        let read = timeout_at(deadline, (&mut *io).take(bytes).read_to_end(&mut table)).await;
        let read = read.map_err(|_| garbage("a catalog that comes too slowly".into()))??;
        if read as u64 != bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Err(error) = receiving.catalog.put(table.into()).await {
            return Ok(Err(error));
        }
    }
    Ok(Ok(receiving))
}
