//! What a wait for the next batch brings.

use crate::Result;
use crate::batch::Batch;

/// What a bounded wait for a batch brought.
#[derive(Debug)]
pub enum Next {
    /// The next batch.
    Batch(Batch),
    /// The epoch is over; the next call is about the next one.
    EpochEnd,
    /// Nothing yet: ask again.
    Pending,
}

/// Waits on, however often nothing has come yet; `None` at an epoch's end.
pub(crate) fn block(mut next: impl FnMut() -> Result<Next>) -> Option<Result<Batch>> {
    loop {
        match next() {
            Ok(Next::Batch(batch)) => return Some(Ok(batch)),
            Ok(Next::EpochEnd) => return None,
            Ok(Next::Pending) => {}
            Err(error) => return Some(Err(error)),
        }
    }
}
