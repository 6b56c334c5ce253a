//! Single objects: size and version, by HEAD or, where the server rejects that, by a GET of one byte.
//!
//! A signature of S3 or Google covers the method: a URL that was presigned for GET answers 403 to HEAD. Some gateways
//! answer HEAD with 405 or 501.

use super::failure::Fault;
use super::failure::Verdict;
use super::fetch::{blocking, path};
use super::latencies::Kind;
use super::local;
use super::object::ObjectRef;
use super::observe::status;
use super::retry::{Ended, within};
use super::store::{Backend, Remote, Store};
use super::uri::{Location, Scheme};
use super::version::version;
use crate::Result;
use feedstock_base::shown;
use object_store::path::Path;
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStoreExt};
use std::time::Duration;

impl Store {
    /// Returns the single object at `at`.
    pub(super) async fn head(&self, at: &Location) -> Result<ObjectRef> {
        let what = shown(&at.uri_of(&at.key));
        match self.try_head(at).await {
            Ok(found) => Ok(found),
            Err(ended) => Err(self.explain(ended, &what).await),
        }
    }

    async fn try_head(&self, at: &Location) -> Result<ObjectRef, Ended> {
        match &self.backend {
            Backend::Local => self
                .until_done(|_| {
                    let key = at.key.clone();
                    blocking(move || local::head(&key))
                })
                .await
                .map(|file| file.at(at)),
            Backend::Remote(remote) => self
                .until_answered(Kind::Head, || self.ask_for(remote, at))
                .await
                .map(|meta| ObjectRef { uri: at.uri_of(&at.key), size: meta.size, etag: version(&meta) }),
        }
    }

    async fn ask_for(&self, remote: &Remote, at: &Location) -> Result<ObjectMeta, Fault> {
        let path = path(&at.key).map_err(|e| Fault::Refused(e.message().to_owned()))?;
        if at.is_signed() {
            return by_get(remote, &path, self.stall()).await;
        }
        match within(self.stall(), remote.objects.head(&path)).await {
            Err(_) if self.scheme == Scheme::Http && matches!(status(), Some(403 | 405 | 501)) => {
                by_get(remote, &path, self.stall()).await
            }
            other => other,
        }
    }

    /// Returns the object at `at`, or `None` if there is none.
    pub(super) async fn find(&self, at: &Location) -> Result<Option<ObjectRef>> {
        match self.try_head(at).await {
            Ok(found) => Ok(Some(found)),
            Err(ended) if ended.failure.verdict == Verdict::Missing => Ok(None),
            Err(ended) => Err(self.explain(ended, &shown(&at.uri_of(&at.key))).await),
        }
    }
}

/// Requests the first byte, and takes size and version from the answer. If the object is empty (416) or the server does not
/// support ranges, it requests the whole object and does not read the body.
async fn by_get(remote: &Remote, path: &Path, stall: Duration) -> Result<ObjectMeta, Fault> {
    let first = GetOptions { range: Some(GetRange::Bounded(0..1)), ..GetOptions::default() };
    match within(stall, remote.objects.get_opts(path, first)).await {
        Ok(answer) => {
            let meta = answer.meta.clone();
            within(stall, answer.bytes()).await?; // then the connection serves the next request
            Ok(meta)
        }
        Err(Fault::Store(object_store::Error::NotSupported { .. })) => whole(remote, path, stall).await,
        Err(_) if status() == Some(416) => whole(remote, path, stall).await,
        Err(fault) => Err(fault),
    }
}

async fn whole(remote: &Remote, path: &Path, stall: Duration) -> Result<ObjectMeta, Fault> {
    Ok(within(stall, remote.objects.get(path)).await?.meta)
}
