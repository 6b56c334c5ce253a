//! Reads the index of a tar, of either kind, and states why one is not used.

use crate::{Error, ErrorKind, ObjectRef, Result, Storage};
use bytes::Bytes;
use std::time::Duration;

/// An index has 8 to 100 bytes for each member: 64 MiB are enough for some 700,000 members with names.
const MAX_INDEX_BYTES: u64 = 64 << 20;
/// A request for an index may take 1 / `PATIENCE` of the deadline: an index only saves time, so it must not cost more of
/// it.
pub(super) const PATIENCE: u32 = 4;

/// Why the members of a tar do not come from its index.
#[derive(Debug)]
pub(in crate::format) enum Problem {
    /// The index does not fit the tar.
    Unfit(String),
    Failed(Error),
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

pub(super) fn unfit<T>(why: impl Into<String>) -> Result<T, Problem> {
    Err(Problem::Unfit(why.into()))
}

/// Whether there is no such object, or none that these credentials may see.
pub(super) fn is_absent(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Gone | ErrorKind::Denied)
}

/// Reads the index of a tar of `tar_bytes`, if the storage sends it in time.
pub(super) async fn read(index: &ObjectRef, tar_bytes: u64, storage: &Storage) -> Result<Bytes, Problem> {
    check_size(index, tar_bytes)?;
    // Storage requires 64 KiB/s of a read.
    let patience = storage.options().deadline / PATIENCE + Duration::from_secs(index.size >> 16);
    match tokio::time::timeout(patience, storage.read(index, 0..index.size)).await {
        Ok(Ok(bytes)) => Ok(bytes),
        Ok(Err(error)) if is_absent(&error) || error.kind() == ErrorKind::Retryable => {
            unfit(format!("it cannot be read: {error}"))
        }
        Ok(Err(error)) => Err(Problem::Failed(error)),
        Err(_) => unfit(format!("it was not read within {patience:?}")),
    }
}

/// As [`read`], for an index without which the tar cannot be used: if it cannot be read, that is an error.
pub(super) async fn read_required(
    index: &ObjectRef,
    tar_bytes: u64,
    storage: &Storage,
) -> Result<Bytes, Problem> {
    check_size(index, tar_bytes)?;
    storage.read(index, 0..index.size).await.map_err(Problem::Failed)
}

/// Rejects an index that is larger than its tar, which has a header for each member.
fn check_size(index: &ObjectRef, tar_bytes: u64) -> Result<(), Problem> {
    let most = MAX_INDEX_BYTES.min(tar_bytes);
    match index.size > most {
        true => unfit(format!("it has {} bytes; the limit for this tar is {most}", index.size)),
        false => Ok(()),
    }
}
