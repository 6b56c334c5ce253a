//! Listings of many objects by several listers: by folders first, and by ranges of keys where folders are not enough.
//!
//! ```text
//! s3://b/train ─▶ few folders: one level down ─▶ 8 to 2,000 folders: a range for each ─▶ 16 listers, which split long ones
//!              └▶ more than 2,000 names in one level: one range of all keys below it ────────┘
//! ```
//! A page of 1,000 keys takes a cloud about 100 ms, so one lister finds 10,000 keys a second and 16 find 160,000: 10⁷ keys take
//! a minute instead of a quarter of an hour. The result equals that of one lister: every key that existed throughout, once.
//! Neither is a snapshot of one moment.
//! A listing of more than 32,000 keys is stored in a file page by page, and can be resumed from it (`listed_part.rs`).
//! Ranges need a store that lists in bytewise order and from any key, as S3 and Google do. In Azure and S3's directory buckets,
//! each long folder has one lister. If a store turns out not to support ranges, it is listed again without them.

use super::fetch::blocking;
use super::journal::Journal;
use super::key_ranges::{Key, KeyRanges, Next, Unordered};
use super::key_span::{KeySpan, rest};
use super::latencies::Kind;
use super::listed_part::{self, Listed};
use super::retry::{Ended, within};
use super::seen::Seen;
use super::store::Store;
use super::uri::Scheme;
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectMeta;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Listers of one listing, and the number of single objects requested at once.
pub(super) const LISTERS: usize = 16;
/// The maximum page size of all clouds.
pub(super) const PAGE_KEYS: usize = 1_000;
/// Descends while there are fewer folders than this: too few would leave listers idle.
const FOLDERS_MIN: usize = 8;
/// With more folders than this, one page of many folders is cheaper than one page for each.
const FOLDERS_MAX: usize = 2_000;
/// `corpus/imagenet/data/train` has four levels; all keys below them are one range.
const FOLDERS_DEPTH: usize = 4;
/// Pages that are read of one level: more names than [`FOLDERS_MAX`] are listed as ranges of keys. At most seven folders of
/// four levels are read in vain: 56 pages, but usually 2.
const LEVEL_PAGES: usize = FOLDERS_MAX / PAGE_KEYS;

/// What is directly in a folder.
enum Level {
    Few {
        objects: Vec<ObjectMeta>,
        folders: Vec<String>,
    },
    /// More than [`LEVEL_PAGES`] pages.
    Many(String),
}

/// What listers share.
struct Shared {
    ranges: Mutex<KeyRanges>,
    /// Signals that a page has arrived.
    changed: Notify,
}

/// The rest of an interrupted listing.
#[derive(Default)]
struct Resumed {
    journal: Option<Arc<Journal>>,
    known: Vec<KeySpan>,
    objects: Vec<ObjectMeta>,
}

impl Resumed {
    async fn remove_journal(&mut self) {
        if let Some(journal) = self.journal.take() {
            let _done = blocking(move || {
                journal.remove();
                Ok(())
            })
            .await;
        }
    }
}

/// The objects that a listing by several listers found, in no order.
pub(super) struct FannedOut {
    pub(super) objects: Vec<ObjectMeta>,
    /// Whether some of them were found by an earlier, interrupted listing: up to an hour ago.
    pub(super) is_resumed: bool,
}

enum Failure {
    Ended(Ended),
    Unordered,
}

impl From<Ended> for Failure {
    fn from(ended: Ended) -> Self {
        Self::Ended(ended)
    }
}

impl From<Unordered> for Failure {
    fn from(_: Unordered) -> Self {
        Self::Unordered
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, KeyRanges> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner) // a lister that panics ends the listing
    }
}

impl Store {
    /// Lists all objects below `prefix`. `journal` is the file from which the listing is resumed.
    pub(super) async fn fan_out(
        &self,
        pages: &Arc<dyn PaginatedListStore>,
        prefix: &str,
        journal: Option<PathBuf>,
        seen: &Seen,
    ) -> Result<FannedOut, Ended> {
        let (above, prefixes) = self.levels(pages, prefix, seen).await?;
        let mut can_split = self.lists_from_any_key();
        let mut resumed = self.resume(prefix, &prefixes, journal.filter(|_| can_split)).await;
        seen.add(resumed.objects.len() as u64);
        loop {
            let ranges = KeyRanges::new(rest(prefixes.clone(), &resumed.known), can_split, PAGE_KEYS);
            match self.list_ranges(pages, ranges, resumed.journal.as_ref(), seen).await {
                Ok(below) => {
                    resumed.remove_journal().await;
                    let is_resumed = !resumed.known.is_empty();
                    let objects = [above, resumed.objects, below].into_iter().flatten().collect();
                    return Ok(FannedOut { objects, is_resumed });
                }
                Err(Failure::Ended(ended)) => return Err(ended),
                Err(Failure::Unordered) => {
                    tracing::info!(
                        "{}: the store does not list in bytewise order from any key; listing it again with one lister a folder",
                        self.name
                    );
                    resumed.remove_journal().await;
                    resumed = Resumed::default();
                    can_split = false; // which turns the check of the order off
                    seen.restart();
                    seen.add(above.len() as u64);
                }
            }
        }
    }

    /// Opens the journal, if there is to be one, and reads its parts of `prefixes`.
    async fn resume(&self, prefix: &str, prefixes: &[String], journal: Option<PathBuf>) -> Resumed {
        let Some(path) = journal else { return Resumed::default() };
        let place = format!("{} {prefix}", self.name);
        let Ok((journal, parts)) = blocking(move || Ok(listed_part::open(&path, &place))).await else {
            return Resumed::default();
        };
        let prefixes: HashSet<&str> = prefixes.iter().map(String::as_str).collect();
        let mut resumed = Resumed { journal: Some(journal), ..Resumed::default() };
        for part in parts.into_iter().filter(|part| prefixes.contains(part.span.prefix.as_str())) {
            let span = part.span.clone();
            if let Some(objects) = part.objects() {
                resumed.known.push(span);
                resumed.objects.extend(objects);
            }
        }
        if !resumed.known.is_empty() {
            tracing::info!(
                "{}: resuming a listing that was interrupted after {} objects",
                self.name,
                resumed.objects.len()
            );
        }
        resumed
    }

    /// Descends to a level with many folders. Returns the objects above it, and the prefixes that hold all others.
    async fn levels(
        &self,
        pages: &Arc<dyn PaginatedListStore>,
        prefix: &str,
        seen: &Seen,
    ) -> Result<(Vec<ObjectMeta>, Vec<String>), Ended> {
        let (mut objects, mut long) = (Vec::new(), Vec::new());
        let mut folders = vec![prefix.to_owned()];
        for _ in 0..FOLDERS_DEPTH {
            let level: Vec<_> = futures::stream::iter(folders)
                .map(|folder| self.level(pages, folder, seen))
                .buffered(LISTERS)
                .try_collect()
                .await?;
            folders = Vec::new();
            for found in level {
                match found {
                    Level::Few { objects: found, folders: below } => {
                        objects.extend(found);
                        folders.extend(below);
                    }
                    Level::Many(folder) => long.push(folder),
                }
            }
            if folders.len() > FOLDERS_MAX {
                seen.restart();
                return Ok((Vec::new(), vec![prefix.to_owned()]));
            }
            if folders.is_empty() || folders.len() >= FOLDERS_MIN {
                break;
            }
        }
        folders.extend(long);
        Ok((objects, folders))
    }

    async fn level(
        &self,
        pages: &Arc<dyn PaginatedListStore>,
        folder: String,
        seen: &Seen,
    ) -> Result<Level, Ended> {
        let (mut objects, mut folders) = (Vec::new(), Vec::new());
        let mut options =
            PaginatedListOptions { delimiter: Some("/".into()), ..PaginatedListOptions::default() };
        for _ in 0..LEVEL_PAGES {
            let page = self.page(pages, &folder, &options).await?;
            objects.extend(page.result.objects);
            folders.extend(page.result.common_prefixes.into_iter().map(|p| format!("{p}/")));
            options.page_token = page.page_token;
            if options.page_token.is_none() {
                seen.add(objects.len() as u64);
                return Ok(Level::Few { objects, folders });
            }
        }
        Ok(Level::Many(folder))
    }

    /// Lists all objects in these ranges, which do not overlap.
    async fn list_ranges(
        &self,
        pages: &Arc<dyn PaginatedListStore>,
        ranges: KeyRanges,
        journal: Option<&Arc<Journal>>,
        seen: &Seen,
    ) -> Result<Vec<ObjectMeta>, Failure> {
        let shared = Shared { ranges: Mutex::new(ranges), changed: Notify::new() };
        let listers = (0..LISTERS).map(|_| self.lister(pages, &shared, journal, seen));
        let found = futures::future::try_join_all(listers).await?;
        let mut objects = Vec::with_capacity(found.iter().map(Vec::len).sum());
        found.into_iter().for_each(|found| objects.extend(found));
        Ok(objects)
    }

    /// Runs one lister, which lists ranges until there are none.
    async fn lister(
        &self,
        pages: &Arc<dyn PaginatedListStore>,
        shared: &Shared,
        journal: Option<&Arc<Journal>>,
        seen: &Seen,
    ) -> Result<Vec<ObjectMeta>, Failure> {
        let mut objects = Vec::new();
        loop {
            // Registered before `next`, so that a page that arrives in between is not missed.
            let mut changed = std::pin::pin!(shared.changed.notified());
            changed.as_mut().enable();
            let next = shared.lock().next();
            let (range, prefix, after) = match next {
                Next::Done => return Ok(objects),
                Next::Wait => {
                    changed.await;
                    continue;
                }
                Next::List { range, prefix, after } => (range, prefix, after),
            };
            let mut span = KeySpan { prefix: prefix.to_string(), after: after.clone(), until: None };
            let mut options = PaginatedListOptions { offset: after, ..PaginatedListOptions::default() };
            loop {
                let page = self.page(pages, &prefix, &options).await?;
                let mut found = page.result.objects;
                let keys: Vec<Key<'_>> = found
                    .iter()
                    .map(|meta| Key { text: meta.location.as_ref(), is_empty: meta.size == 0 })
                    .collect();
                let taken = shared.lock().on_page(range, &keys, page.page_token.is_some());
                shared.changed.notify_waiters();
                let taken = taken?;
                found.truncate(taken.keys);
                if let Some(journal) = journal.filter(|_| taken.is_progress()) {
                    span.until.clone_from(&taken.through);
                    let (journal, listed) = (Arc::clone(journal), Listed::new(span.clone(), &found));
                    let _done = blocking(move || {
                        journal.add(&listed, 1);
                        Ok(())
                    })
                    .await;
                }
                seen.add(found.len() as u64);
                objects.extend(found);
                if !taken.goes_on {
                    break;
                }
                span.after = taken.through;
                options =
                    PaginatedListOptions { page_token: page.page_token, ..PaginatedListOptions::default() };
            }
        }
    }

    /// Lists one page of the keys that begin with `prefix`.
    pub(super) async fn page(
        &self,
        pages: &Arc<dyn PaginatedListStore>,
        prefix: &str,
        options: &PaginatedListOptions,
    ) -> Result<PaginatedListResult, Ended> {
        let prefix = Some(prefix).filter(|prefix| !prefix.is_empty());
        let list = || within(self.stall(), pages.list_paginated(prefix, options.clone()));
        self.until_answered(Kind::Page, list).await
    }

    /// Azure's listings from a key need a protocol version that object_store does not support. Its hierarchical containers,
    /// like S3's directory buckets, have another order.
    fn lists_from_any_key(&self) -> bool {
        matches!(self.scheme, Scheme::S3 | Scheme::Gcs)
            && !self.name.trim_end_matches('/').ends_with("--x-s3")
    }
}
