//! What an interrupted build had read of a data set's shards, so that the next build does not read it again.
//!
//! ```text
//! shard is read ─▶ journal: key (URI, size, ETag, place in the shard), what was found      next build ─▶ found, or read
//! ```
//! A shard that was replaced has another key, so it is read again. What has neither an ETag nor a time of change is not
//! stored. The file is removed when the catalog is stored; without that, after a week (`storage/journal.rs`). It is in the folder of
//! the catalog, or for a catalog next to the data in the user's cache (`open/place.rs`).
//!
//! Cost: some 100 bytes for each member of a tar, at most 1 GiB; further shards are read again after an interruption.

use crate::storage::{Journal, JournalKind};
use crate::{Error, ErrorKind, IoRuntime, ObjectRef, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The file is created after shards of 256 MiB: less is read again in a few seconds.
pub(crate) static FINISHED: JournalKind = JournalKind {
    what: "list of shards that were read",
    begins_at: 256 << 20,
    max_bytes: 1 << 30,
    max_age: Duration::from_secs(7 * 24 * 3_600),
};

/// The shards that an interrupted build, and now this one, have read.
pub(crate) struct Finished {
    journal: Arc<Journal>,
    /// Where in the file each shard is.
    found: HashMap<String, Range<u64>>,
    io: IoRuntime,
}

#[derive(Serialize)]
struct Line<'a, T> {
    key: &'a str,
    found: &'a T,
}

#[derive(Deserialize)]
struct KeyOfLine {
    key: String,
}

#[derive(Deserialize)]
struct FoundOfLine<T> {
    found: T,
}

impl Finished {
    /// Opens the file at `path`. `form` names the layout and the version of what is stored of a shard.
    pub(crate) async fn open(path: PathBuf, form: String, io: &IoRuntime) -> Result<Self> {
        let opened = blocking(io, move || {
            let mut found = HashMap::new();
            let head = format!("shards 1 of {form}");
            let journal = Journal::open(&FINISHED, &path, &head, |json, place| {
                serde_json::from_slice(json).map(|KeyOfLine { key }| found.insert(key, place)).is_ok()
            });
            (journal, found)
        });
        let (journal, found) = opened.await?;
        if !found.is_empty() {
            tracing::info!(shards = found.len(), "resuming the building of a catalog that was interrupted");
        }
        Ok(Self { journal, found, io: io.clone() })
    }

    /// Returns what an earlier build found in `range` of a shard; otherwise awaits `read`, and stores what it found. Without a
    /// list, it only awaits `read`.
    pub(super) async fn or_read<T>(
        this: Option<&Self>,
        shard: &ObjectRef,
        range: Range<u64>,
        read: impl Future<Output = Result<T>>,
    ) -> Result<T>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
    {
        let Some((this, key)) = this.zip(key(shard, &range)) else { return read.await };
        if let Some(place) = this.found.get(&key).cloned() {
            let journal = Arc::clone(&this.journal);
            let found = blocking(&this.io, move || {
                let json = journal.part(place)?;
                serde_json::from_slice(&json).ok().map(|FoundOfLine { found }| found)
            });
            if let Some(found) = found.await? {
                return Ok(found);
            }
        }
        let (found, journal) = (read.await?, Arc::clone(&this.journal));
        blocking(&this.io, move || {
            journal.add(&Line { key: &key, found: &found }, range.end - range.start);
            found
        })
        .await
    }

    /// Removes the file: the catalog is stored.
    pub(crate) async fn remove(self) -> Result<()> {
        blocking(&self.io, move || self.journal.remove()).await
    }
}

/// Returns the name of a part of one version of a shard; `None` if its versions cannot be distinguished.
fn key(shard: &ObjectRef, range: &Range<u64>) -> Option<String> {
    let etag = shard.etag.as_ref()?;
    Some(format!("{}..{} of {} {etag} {}", range.start, range.end, shard.size, shard.uri))
}

async fn blocking<T: Send + 'static>(io: &IoRuntime, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    io.handle().spawn_blocking(work).await.map_err(|error| {
        Error::new(
            ErrorKind::Bug,
            format!("a task with the journal of shards ended without a result: {error}"),
        )
    })
}
