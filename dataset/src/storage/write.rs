//! Writes: whole or not at all, large objects part by part, or only if nothing exists there.

use super::failure::Fault;
use super::failure::Verdict;
use super::fetch::{blocking, path};
use super::local;
use super::observe::status;
use super::progress::{LEAST_BYTES_PER_S, Progress};
use super::retry::{Ended, within};
use super::store::{Backend, Remote, Store};
use super::uri::Location;
use crate::{ErrorKind, Result};
use bytes::Bytes;
use feedstock_base::shown;
use futures::{StreamExt, TryStreamExt};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{MultipartId, ObjectStoreExt, PutMode, PutOptions};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Larger objects are uploaded in parts of this size: S3 requires parts of at least 5 MiB and at most 10,000 of them.
const PART_BYTES: usize = 8 << 20;
/// S3's limit; a larger object has larger parts.
const PARTS_MAX: usize = 10_000;
/// Parts of one object under way at once: 4 × 8 MiB fill a line without filling memory.
const PARTS_AT_ONCE: usize = 4;
/// Joining parts may take this many stall time-outs, 200 s by default: S3 takes minutes for thousands of parts.
const JOIN_STALLS: u32 = 10;

/// The result of a conditional write.
enum Created {
    New,
    Existed,
    Unsupported,
}

impl Store {
    pub(super) async fn write(&self, at: &Location, bytes: Bytes) -> Result<()> {
        let what = format!("write of {} ({} bytes)", shown(&at.uri_of(&at.key)), bytes.len());
        let len = bytes.len() as u64;
        match &self.backend {
            Backend::Local => {
                let result = self
                    .until_done_with(&Progress::upload(bytes.len()), |_| {
                        let (key, bytes) = (at.key.clone(), bytes.clone());
                        blocking(move || local::write(&key, &bytes))
                    })
                    .await;
                result.map_err(|ended| ended.into_error(&what))?;
            }
            Backend::Remote(remote) => {
                let path = path(&at.key).map_err(|e| e.context(&what))?;
                match remote.parts.as_deref().filter(|_| bytes.len() > PART_BYTES) {
                    Some(store) => self.write_parts(store, &path, at, bytes, &what).await?,
                    None => self.write_one(remote, &path, bytes, &what).await?,
                }
            }
        }
        self.shared.counters.written_bytes.fetch_add(len, Ordering::Relaxed);
        Ok(())
    }

    /// As [`write`](Self::write), if the object does not exist yet; returns whether the object has these bytes.
    pub(super) async fn create(&self, at: &Location, bytes: Bytes) -> Result<bool> {
        let what = format!("creation of {} ({} bytes)", shown(&at.uri_of(&at.key)), bytes.len());
        let progress = Progress::upload(bytes.len());
        let created = match &self.backend {
            Backend::Local => {
                let is_new = self.until_done_with(&progress, |_| {
                    let (key, bytes) = (at.key.clone(), bytes.clone());
                    blocking(move || local::create(&key, &bytes))
                });
                is_new.await.map(|is_new| if is_new { Created::New } else { Created::Existed })
            }
            Backend::Remote(remote) => {
                let path = path(&at.key).map_err(|e| e.context(&what))?;
                self.put_new(remote, &path, &bytes, &progress).await
            }
        };
        let exists = match created {
            Ok(Created::New) => {
                self.shared.counters.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                return Ok(true);
            }
            Ok(Created::Existed) => true,
            Ok(Created::Unsupported) => self.find(at).await?.is_some(),
            Err(ended) => return Err(self.explain(ended, &what).await),
        };
        if exists {
            // If the answer to an earlier request was lost, this process created it.
            return self.holds(at, &bytes, PART_BYTES).await;
        }
        tracing::warn!("{what}: the store has no conditional writes, so two processes may both create it");
        self.write(at, bytes).await.map(|()| true)
    }

    /// Sends a conditional write.
    async fn put_new(
        &self,
        remote: &Remote,
        path: &Path,
        bytes: &Bytes,
        progress: &Progress,
    ) -> Result<Created, Ended> {
        const NOT_IMPLEMENTED: u16 = 501; // Backblaze B2's answer to a conditional write
        let limit = upload_limit(self.stall(), bytes.len());
        let created = self.until_done_with(progress, |_| {
            let put = remote.objects.put_opts(path, bytes.clone().into(), PutMode::Create.into());
            async move {
                match within(limit, put).await {
                    Err(Fault::Store(object_store::Error::NotImplemented { .. })) => Ok(Created::Unsupported),
                    Err(_) if status() == Some(NOT_IMPLEMENTED) => Ok(Created::Unsupported),
                    put => put.map(|_| Created::New),
                }
            }
        });
        match created.await {
            Err(ended) if ended.failure.verdict == Verdict::Exists => Ok(Created::Existed),
            created => created,
        }
    }

    async fn write_one(&self, remote: &Remote, path: &Path, bytes: Bytes, what: &str) -> Result<()> {
        let limit = upload_limit(self.stall(), bytes.len());
        let result = self
            .until_done_with(&Progress::upload(bytes.len()), |_| {
                let put = remote.objects.put_opts(path, bytes.clone().into(), PutOptions::default());
                async move { within(limit, put).await.map(|_| ()) }
            })
            .await;
        match result {
            Ok(()) => Ok(()),
            Err(ended) => Err(self.explain(ended, what).await),
        }
    }

    async fn write_parts(
        &self,
        store: &dyn MultipartStore,
        path: &Path,
        at: &Location,
        bytes: Bytes,
        what: &str,
    ) -> Result<()> {
        let stall = self.stall();
        let id = match self.until_done(|_| within(stall, store.create_multipart(path))).await {
            Ok(id) => id,
            Err(ended) => return Err(self.explain(ended, what).await),
        };
        let part_bytes = PART_BYTES.max(bytes.len().div_ceil(PARTS_MAX));
        let done = match self.send_parts(store, path, &id, &bytes, part_bytes).await {
            Ok(parts) => self.join_parts(store, path, &id, &parts).await,
            Err(ended) => Err(ended),
        };
        let Err(ended) = done else { return Ok(()) };
        // The store forgets an upload after joining it, so a second request gets this answer if the answer to the first one
        // was lost.
        if ended.failure.verdict == Verdict::Missing && self.holds(at, &bytes, part_bytes).await? {
            return Ok(());
        }
        // abandoned parts cost money until a rule of the bucket removes them
        if let Err(e) = within(stall, store.abort_multipart(path, &id)).await {
            tracing::warn!("{what}: the parts sent so far could not be removed: {:?}", shorten(&e));
        }
        Err(self.explain(ended, what).await)
    }

    async fn send_parts(
        &self,
        store: &dyn MultipartStore,
        path: &Path,
        id: &MultipartId,
        bytes: &Bytes,
        part_bytes: usize,
    ) -> Result<Vec<PartId>, Ended> {
        let limit = upload_limit(self.stall(), part_bytes);
        let cuts: Vec<Bytes> = cuts(bytes.len(), part_bytes).map(|cut| bytes.slice(cut)).collect();
        futures::stream::iter(cuts.into_iter().enumerate())
            .map(|(index, part)| async move {
                let progress = Progress::upload(part.len());
                self.until_done_with(&progress, |_| {
                    within(limit, store.put_part(path, id, index, part.clone().into()))
                })
                .await
            })
            .buffered(PARTS_AT_ONCE)
            .try_collect()
            .await
    }

    async fn join_parts(
        &self,
        store: &dyn MultipartStore,
        path: &Path,
        id: &MultipartId,
        parts: &[PartId],
    ) -> Result<(), Ended> {
        let patience = self.stall() * JOIN_STALLS;
        self.until_done_with(&Progress::patient(patience), |_| async move {
            within(patience, store.complete_multipart(path, id, parts.to_vec())).await.map(|_| ())
        })
        .await
    }

    /// Whether the object has these bytes; compares them part by part.
    async fn holds(&self, at: &Location, bytes: &Bytes, part_bytes: usize) -> Result<bool> {
        let Some(found) = self.find(at).await? else { return Ok(false) };
        if found.size != bytes.len() as u64 {
            return Ok(false);
        }
        for cut in cuts(bytes.len(), part_bytes) {
            match self.read(&at.key, &found, cut.start as u64..cut.end as u64).await {
                Ok(there) if there == bytes[cut] => {}
                Ok(_) => return Ok(false),
                // Another process replaced it in the meantime.
                Err(error) if error.kind() == ErrorKind::Gone => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    pub(super) async fn delete(&self, key: &str, uri: &str) -> Result<()> {
        let what = format!("removal of {}", shown(uri));
        let result = match &self.backend {
            Backend::Local => {
                self.until_done(|_| {
                    let key = key.to_owned();
                    blocking(move || local::delete(&key))
                })
                .await
            }
            Backend::Remote(remote) => {
                let path = path(key).map_err(|e| e.context(&what))?;
                self.until_done(|_| {
                    let path = path.clone();
                    async move { within(self.stall(), remote.objects.delete(&path)).await }
                })
                .await
            }
        };
        match result {
            Err(ended) if ended.failure.verdict != Verdict::Missing => Err(self.explain(ended, &what).await),
            _ => Ok(()), // the object is gone, as requested
        }
    }
}

/// Returns the ranges of the parts of an object.
fn cuts(len: usize, part_bytes: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(part_bytes).map(move |at| at..len.min(at + part_bytes))
}

fn upload_limit(stall: Duration, len: usize) -> Duration {
    stall + Duration::from_secs(len as u64 / LEAST_BYTES_PER_S)
}

/// Returns the kind of fault without the library's text, which may name credentials.
fn shorten(fault: &Fault) -> &'static str {
    match fault {
        Fault::Stalled(_) => "no answer",
        _ => "refused",
    }
}
