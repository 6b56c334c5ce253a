//! The result of a wait for the next batch.

use crate::Result;
use crate::batch::Batch;

/// The result of a bounded wait for a batch.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "it is moved once a step, which costs less than an allocation")]
pub enum Next {
    /// The next batch.
    Batch(Batch),
    /// The epoch is over. The next call continues with the next epoch.
    EpochEnd,
    /// Nothing yet: call again.
    Pending,
}

/// Waits until a batch comes; `None` at an epoch's end.
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
