//! Writes: whole or not at all, large objects part by part.

use super::failure::Verdict;
use super::fetch::{blocking, path};
use super::progress::{LEAST_BYTES_PER_S, Progress};
use super::retry::within;
use super::secret::shown;
use super::store::{Backend, Remote, Store};
use super::{Fault, local};
use crate::Result;
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{ObjectStoreExt, PutMode, PutOptions};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Objects above this go up in parts of it: S3 asks for parts of at least 5 MiB and at most 10,000 of them.
const PART_BYTES: usize = 8 << 20;
/// S3's bound; a larger object takes larger parts.
const PARTS_MAX: usize = 10_000;
/// Parts of one object under way at once: 4 × 8 MiB fill a line without filling memory.
const PARTS_AT_ONCE: usize = 4;

impl Store {
    /// `false` when `only_new` and the object exists already.
    pub(super) async fn write(&self, key: &str, uri: &str, bytes: Bytes, only_new: bool) -> Result<bool> {
        let what = format!("write of {} ({} bytes)", shown(uri), bytes.len());
        let len = bytes.len() as u64;
        let written = match &self.backend {
            Backend::Local => {
                let result = self
                    .until_done_with(&Progress::upload(bytes.len()), |_| {
                        let (key, bytes) = (key.to_owned(), bytes.clone());
                        blocking(move || local::write(&key, &bytes, only_new))
                    })
                    .await;
                result.map_err(|ended| ended.into_error(&what))?
            }
            Backend::Remote(remote) => {
                let path = path(key).map_err(|e| e.context(&what))?;
                if !only_new && bytes.len() > PART_BYTES && remote.parts.is_some() {
                    self.write_parts(remote, &path, bytes, &what).await?;
                    true
                } else {
                    self.write_one(remote, &path, bytes, only_new, &what).await?
                }
            }
        };
        if written {
            self.shared.counters.written_bytes.fetch_add(len, Ordering::Relaxed);
        }
        Ok(written)
    }

    async fn write_one(
        &self,
        remote: &Remote,
        path: &Path,
        bytes: Bytes,
        only_new: bool,
        what: &str,
    ) -> Result<bool> {
        let limit = upload_limit(self.stall(), bytes.len());
        let progress = Progress::upload(bytes.len());
        let mode = if only_new { PutMode::Create } else { PutMode::Overwrite };
        let result = self
            .until_done_with(&progress, |_| {
                let put = remote.objects.put_opts(path, bytes.clone().into(), PutOptions::from(mode.clone()));
                async move { within(limit, put).await.map(|_| ()) }
            })
            .await;
        let ended = match result {
            Ok(()) => return Ok(true),
            Err(ended) => ended,
        };
        // S3 answers 412 to If-None-Match: *, others 409
        let exists = only_new && matches!(ended.failure.verdict, Verdict::Exists | Verdict::Changed);
        if !exists {
            return Err(self.explain(ended, what).await);
        }
        if ended.attempts == 1 {
            return Ok(false);
        }
        // a lost answer to an earlier attempt looks like somebody else's object: compare
        let there = self
            .until_done_with(&progress, |_| async move {
                let answer = within(self.stall(), remote.objects.get(path)).await?;
                within(limit, answer.bytes()).await
            })
            .await
            .map_err(|ended| ended.into_error(what))?;
        Ok(there == bytes)
    }

    async fn write_parts(&self, remote: &Remote, path: &Path, bytes: Bytes, what: &str) -> Result<()> {
        let Some(store) = &remote.parts else { return Ok(()) };
        let stall = self.stall();
        let id = match self.until_done(|_| within(stall, store.create_multipart(path))).await {
            Ok(id) => id,
            Err(ended) => return Err(self.explain(ended, what).await),
        };
        let part_bytes = PART_BYTES.max(bytes.len().div_ceil(PARTS_MAX));
        let limit = upload_limit(stall, part_bytes);
        let cuts: Vec<Bytes> = (0..bytes.len())
            .step_by(part_bytes)
            .map(|at| bytes.slice(at..bytes.len().min(at + part_bytes)))
            .collect();
        let id = &id;
        let sent = futures::stream::iter(cuts.into_iter().enumerate())
            .map(|(index, part)| async move {
                let progress = Progress::upload(part.len());
                self.until_done_with(&progress, |_| {
                    within(limit, store.put_part(path, id, index, part.clone().into()))
                })
                .await
            })
            .buffered(PARTS_AT_ONCE)
            .try_collect::<Vec<_>>()
            .await;
        let done = match sent {
            Ok(parts) => {
                // joining parts may take the store longer than a read: ten times the patience
                self.until_done(|_| within(stall * 10, store.complete_multipart(path, id, parts.clone())))
                    .await
            }
            Err(ended) => Err(ended),
        };
        if let Err(ended) = done {
            // abandoned parts cost money until the bucket's own rules remove them
            if let Err(e) = within(stall, store.abort_multipart(path, id)).await {
                tracing::warn!("{what}: the parts sent so far could not be removed: {:?}", shorten(&e));
            }
            return Err(self.explain(ended, what).await);
        }
        Ok(())
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
            _ => Ok(()), // gone is what was asked for
        }
    }
}

fn upload_limit(stall: Duration, len: usize) -> Duration {
    stall + Duration::from_secs(len as u64 / LEAST_BYTES_PER_S)
}

/// What kind of fault, without the library's text, which may name credentials.
fn shorten(fault: &Fault) -> &'static str {
    match fault {
        Fault::Stalled(_) => "no answer",
        _ => "refused",
    }
}
