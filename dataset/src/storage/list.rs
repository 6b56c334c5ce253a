//! Listings and single objects.

use super::failure::Fault;
use super::failure::Verdict;
use super::fan_out::{FannedOut, LISTERS, PAGE_KEYS};
use super::fetch::{blocking, path};
use super::object::ObjectRef;
use super::progress::Progress;
use super::retry::{Ended, within};
use super::seen::{ListingFn, Seen};
use super::store::{Backend, Remote, Store};
use super::uri::{Location, Scheme};
use super::version::{has_etag, version};
use super::walk;
use super::walk_step::Watch;
use crate::{Error, ErrorKind, Result};
use feedstock_base::shown;
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectMeta;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A listing that comes in one answer may take this many stall time-outs, 200 s by default: a store takes 100 ms for 1,000
/// keys, so this is enough for two million.
const LISTING_STALLS: u32 = 10;
/// If a listing lacks ETags, up to this many objects are requested one by one for theirs: 4,096 shards of 256 MiB are a
/// terabyte, and take about 10 s with 16 requests at once.
const PIN_MAX: usize = 4_096;

/// The objects that a listing found, sorted bytewise by key.
#[derive(Default)]
pub(crate) struct Listed {
    pub(crate) objects: Vec<ObjectRef>,
    /// Whether a part of the listing is from an earlier process, up to an hour old: later additions and removals may be missed.
    pub(crate) is_resumed: bool,
}

impl From<Vec<ObjectRef>> for Listed {
    /// Makes a listing of this moment.
    fn from(objects: Vec<ObjectRef>) -> Self {
        Self { objects, is_resumed: false }
    }
}

impl Store {
    /// Lists everything below `at`, or the object itself, up to `limit`. `told` receives the number of objects found so far.
    /// `journal` is the file from which a long listing is resumed.
    pub(super) async fn list(
        &self,
        at: &Location,
        limit: usize,
        told: Option<ListingFn>,
        journal: Option<PathBuf>,
    ) -> Result<Listed> {
        let what = format!("listing of {}", shown(&at.uri_of(&at.key)));
        let seen = Seen::new(&what, told);
        let listed = self.list_here(at, limit, &what, journal, &seen).await?;
        seen.finish(listed.objects.len() as u64);
        Ok(listed)
    }

    async fn list_here(
        &self,
        at: &Location,
        limit: usize,
        what: &str,
        journal: Option<PathBuf>,
        seen: &Arc<Seen>,
    ) -> Result<Listed> {
        let Backend::Remote(remote) = &self.backend else {
            return Ok(self.list_files(at, limit, what, seen).await?.into());
        };
        if self.scheme == Scheme::Http {
            return Ok(self.list_http(remote, at, limit, what).await?.into());
        }
        let prefix = at.folder_key();
        let anew = |objects| FannedOut { objects, is_resumed: false };
        let listed = match &remote.pages {
            Some(pages) if limit <= PAGE_KEYS => {
                self.first_pages(pages, &prefix, limit, seen).await.map(anew)
            }
            Some(pages) => self.fan_out(pages, &prefix, journal, seen).await,
            None => self.list_stream(remote, &prefix).await.map(anew),
        };
        let FannedOut { objects: mut metas, is_resumed } = match listed {
            Ok(found) => found,
            Err(mut ended) => {
                if ended.failure.verdict == Verdict::Missing {
                    ended.failure.verdict = Verdict::NoStore; // an empty prefix is not an error, so the bucket is missing
                }
                return Err(ended.into_error(what));
            }
        };
        metas.sort_unstable_by(|a, b| a.location.as_ref().cmp(b.location.as_ref()));
        // A folder's mark at the border of two listers' keys may be in both.
        metas.dedup_by(|b, a| a.location == b.location && a.size == 0 && b.size == 0);
        drop_folder_marks(&mut metas, &prefix);
        metas.truncate(limit);
        let mut objects: Vec<_> = metas.into_iter().map(|meta| object(at, meta)).collect();
        if objects.is_empty() && !at.key.is_empty() && !at.key.ends_with('/') {
            objects.extend(self.find(at).await?);
        }
        Ok(Listed { objects: self.pin(at, objects).await?, is_resumed })
    }

    async fn list_files(
        &self,
        at: &Location,
        limit: usize,
        what: &str,
        seen: &Arc<Seen>,
    ) -> Result<Vec<ObjectRef>> {
        let progress = Arc::new(Progress::files());
        let found = self
            .until_done_with(&progress, |_| {
                let (root, abandoned) = (at.key.clone(), Abandoned::default());
                progress.lose();
                seen.restart();
                let watch = Watch {
                    progress: Arc::clone(&progress),
                    seen: Arc::clone(seen),
                    is_abandoned: Arc::clone(&abandoned.0),
                    stat: |path| fs::metadata(path),
                };
                async move {
                    let found = blocking(move || walk::list(&root, limit, &watch)).await;
                    drop(abandoned); // not earlier: dropping this future stops the threads
                    found
                }
            })
            .await;
        match found {
            Ok(files) => Ok(files.into_iter().map(|file| file.at(at)).collect()),
            Err(ended) if ended.failure.verdict == Verdict::Missing => Err(Error::new(
                ErrorKind::Gone,
                format!("{what}: the file or folder does not exist; check the path"),
            )),
            Err(ended) => Err(ended.into_error(what)),
        }
    }

    /// Lists the first `limit` objects below `prefix`, page by page.
    async fn first_pages(
        &self,
        pages: &Arc<dyn PaginatedListStore>,
        prefix: &str,
        limit: usize,
        seen: &Seen,
    ) -> Result<Vec<ObjectMeta>, Ended> {
        let mut objects = Vec::new();
        let mut options = PaginatedListOptions {
            max_keys: (limit < PAGE_KEYS).then(|| limit + 1), // one more: the folder's own mark may be among them
            ..PaginatedListOptions::default()
        };
        loop {
            let page = self.page(pages, prefix, &options).await?;
            seen.add(page.result.objects.len() as u64);
            objects.extend(page.result.objects);
            options.page_token = page.page_token;
            if options.page_token.is_none() || objects.len() > limit {
                return Ok(objects);
            }
        }
    }

    async fn list_stream(&self, remote: &Remote, prefix: &str) -> Result<Vec<ObjectMeta>, Ended> {
        let patience = self.stall() * LISTING_STALLS; // one answer holds the whole listing
        self.until_done_with(&Progress::patient(patience), |_| async move {
            let path = path(prefix).map_err(|e| Fault::Refused(e.message().to_owned()))?;
            within(patience, remote.objects.list(Some(&path)).try_collect()).await
        })
        .await
    }

    /// Plain HTTP servers serve files but list nothing; WebDAV servers answer PROPFIND.
    async fn list_http(
        &self,
        remote: &Remote,
        at: &Location,
        limit: usize,
        what: &str,
    ) -> Result<Vec<ObjectRef>> {
        if !at.key.is_empty()
            && !at.key.ends_with('/')
            && let Some(found) = self.find(at).await?
        {
            return Ok(vec![found]);
        }
        const HOW: &str = "name the files themselves, or a manifest (CSV, TSV or Parquet) that lists them";
        let patience = self.stall() * LISTING_STALLS;
        let listed = self
            .until_done_with(&Progress::patient(patience), |_| async move {
                let path = path(&at.key).map_err(|e| Fault::Refused(e.message().to_owned()))?;
                let listed = remote.objects.list(Some(&path)).try_collect::<Vec<_>>();
                match within(patience, listed).await {
                    Err(Fault::Store(e)) if e.to_string().contains("PROPFIND response") => {
                        Err(Fault::Refused("the answer to PROPFIND is not a WebDAV listing".into()))
                    }
                    other => other,
                }
            })
            .await;
        let mut metas = match listed {
            Ok(metas) if metas.is_empty() => {
                return Err(Error::new(
                    ErrorKind::Gone,
                    format!(
                        "{what}: the folder is empty or missing, or the server cannot list folders; {HOW}"
                    ),
                ));
            }
            Ok(metas) => metas,
            Err(ended)
                if matches!(ended.failure.verdict, Verdict::Config | Verdict::Denied | Verdict::Changed) =>
            {
                let cause = ended.failure.cause;
                return Err(Error::config(format!(
                    "{what}: this server cannot list folders ({cause}); {HOW}"
                )));
            }
            Err(ended) => return Err(ended.into_error(what)),
        };
        metas.sort_unstable_by(|a, b| a.location.as_ref().cmp(b.location.as_ref()));
        metas.truncate(limit);
        let objects = metas.into_iter().map(|meta| object(at, meta)).collect();
        self.pin(at, objects).await
    }

    /// Requests the ETags that the listing lacks, so that a replaced object is noticed. Logs how many objects have only a size
    /// to distinguish versions.
    async fn pin(&self, at: &Location, objects: Vec<ObjectRef>) -> Result<Vec<ObjectRef>> {
        let bare = objects.iter().filter(|o| !has_etag(o)).count();
        let objects: Vec<_> = if bare == 0 || bare > PIN_MAX {
            objects
        } else {
            futures::stream::iter(objects)
                .map(|object| async move {
                    if has_etag(&object) {
                        return Ok(object);
                    }
                    let one = Location { key: Location::parse(&object.uri)?.key, ..at.clone() };
                    let found = self.head(&one).await?;
                    Ok(ObjectRef { uri: object.uri, ..found })
                })
                .buffered(LISTERS)
                .try_collect()
                .await?
        };
        let by_size = objects.iter().filter(|o| o.etag.is_none()).count();
        if by_size > 0 {
            tracing::warn!(
                "{}: {by_size} of {} objects have neither an ETag nor a time of change: if one is replaced, only a change \
                 of its size is noticed",
                self.name,
                objects.len()
            );
        }
        Ok(objects)
    }

    /// Returns the error of a failed operation; it distinguishes a missing object from a missing bucket.
    pub(super) async fn explain(&self, mut ended: Ended, what: &str) -> Error {
        if let (Verdict::Missing, Backend::Remote(Remote { pages: Some(pages), .. })) =
            (ended.failure.verdict, &self.backend)
        {
            let options = PaginatedListOptions { max_keys: Some(1), ..PaginatedListOptions::default() };
            let probe = self.page(pages, "", &options).await;
            if probe.is_err_and(|e| matches!(e.failure.verdict, Verdict::NoStore | Verdict::Missing)) {
                ended.failure.verdict = Verdict::NoStore;
            }
        }
        let what = if ended.failure.verdict == Verdict::NoStore {
            format!("{what} in {}", self.name)
        } else {
            what.into()
        };
        ended.into_error(&what)
    }
}

/// Stops the threads of a walk when it is dropped.
#[derive(Default)]
struct Abandoned(Arc<AtomicBool>);

impl Drop for Abandoned {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn object(at: &Location, meta: ObjectMeta) -> ObjectRef {
    ObjectRef { uri: at.uri_of(meta.location.as_ref()), size: meta.size, etag: version(&meta) }
}

/// Removes marks. Consoles mark folders with empty objects named `folder/`, which arrive here without their slash: a mark is
/// the listed folder itself or has entries below it. `metas` is sorted.
fn drop_folder_marks(metas: &mut Vec<ObjectMeta>, prefix: &str) {
    let folder = prefix.trim_end_matches('/');
    let mut parents = std::collections::HashSet::new();
    for meta in metas.iter() {
        if let Some((parent, _)) = meta.location.as_ref().rsplit_once('/')
            && !parents.contains(parent)
        {
            parents.insert(parent.to_owned());
        }
    }
    metas.retain(|meta| {
        let key = meta.location.as_ref();
        !(meta.size == 0 && (key == folder || parents.contains(key)))
    });
}
