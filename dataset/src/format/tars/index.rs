//! Indexes that other tools write next to tars: found, read, and compared with the tar before they are used.
//!
//! | next to `x.tar` | written by | states | what is still read of the tar |
//! |---|---|---|---|
//! | `x.idx` | DALI's `wds2idx.py` | every member's place, size and, from v1.2, name (`index_full.rs`) | texts, and headers that prove the index |
//! | `x.tar.idx` | Megatron Energon | where samples begin (`index_offsets.rs`) | all headers, several parts of the tar at once |
//!
//! feedstock's own index is the stored catalog. wids' JSON has the number of samples of a tar and no places, so it is not read.
//! Headers are read while cataloguing, since columns, labels and the identity follow from them. The exception is
//! [`TarHeaders::Read`](crate::TarHeaders::Read), with which Energon's index is all that is read of most samples
//! (`webdataset/at_read`); what follows is about the default.
//!
//! A wrong index never gives wrong samples:
//! - One that does not fit the tar (its size, headers, borders of members, or end) is left out with a note that names both
//!   files, and the tar is walked. Samples, order and identity are then those of a tar without an index.
//! - Headers that were not compared are compared when their payloads are read (`header.rs`). If they differ, reading
//!   fails with an error that names the tar and the index.

use super::super::cataloguing::Cataloguing;
use super::super::listing::Sources;
use super::index_read::{PATIENCE, Problem, is_absent};
use super::{index_full, index_offsets};
use crate::format::tars::{self, Member};
use crate::storage::shown;
use crate::{ObjectRef, Result, Storage};
use futures::{StreamExt, stream};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

/// Indexes that are requested at a time if they were not listed; storage may limit its requests to fewer.
const HEADS: usize = 64;

/// An index of one tar.
#[derive(Debug, Clone)]
pub(in crate::format) enum TarIndex {
    /// Every member's place and size.
    Full(ObjectRef),
    /// Where samples begin.
    Offsets(ObjectRef),
}

/// The indexes of a data set's tars, by the tars' URIs.
pub(in crate::format) struct TarIndexes(HashMap<String, TarIndex>);

impl TarIndexes {
    /// Finds the indexes in the listing. If the tars were named one by one, requests the first tar's index, and those of the
    /// others if there is one. After a request that fails, no more are sent.
    pub(in crate::format) async fn find(sources: &Sources, storage: &Storage) -> Self {
        let tars = &sources.objects;
        let Some(listed) = &sources.indexes else {
            let Some(first) = tars.first() else { return Self(HashMap::new()) };
            let has_failed = &AtomicBool::new(false);
            let Some(found) = ask(first, has_failed, storage).await else { return Self(HashMap::new()) };
            let rest = stream::iter(tars[1..].to_vec()).map(|tar| async move {
                let index = ask(&tar, has_failed, storage).await;
                index.map(|index| (tar.uri, index))
            });
            let rest: Vec<_> = rest.buffer_unordered(HEADS).collect().await;
            return Self(rest.into_iter().flatten().chain([(first.uri.clone(), found)]).collect());
        };
        let listed: HashMap<&str, &ObjectRef> = listed.iter().map(|(_, o)| (o.uri.as_str(), o)).collect();
        let index = |tar: &ObjectRef| {
            let (full, offsets) = names(&tar.uri)?;
            let found = |uri: &str| listed.get(uri).map(|&object| object.clone());
            found(&full).map(TarIndex::Full).or_else(|| found(&offsets).map(TarIndex::Offsets))
        };
        Self(tars.iter().filter_map(|tar| Some((tar.uri.clone(), index(tar)?))).collect())
    }

    fn of(&self, tar: &ObjectRef) -> Option<&TarIndex> {
        self.0.get(&tar.uri)
    }
}

/// Returns the URIs that indexes of a tar may have; none if the tar's URL has a query, since the index's query is unknown.
fn names(tar: &str) -> Option<(String, String)> {
    let stem = &tar[..tar.len().checked_sub(".tar".len()).filter(|&at| tar.is_char_boundary(at))?];
    let is_tar = tar[stem.len()..].eq_ignore_ascii_case(".tar");
    is_tar.then(|| (format!("{stem}.idx"), format!("{tar}.idx")))
}

/// Requests the index of a tar that was not listed. If a request fails, the tar is walked, and so are all others without an
/// index so far.
async fn ask(tar: &ObjectRef, has_failed: &AtomicBool, storage: &Storage) -> Option<TarIndex> {
    if storage.is_signed(&tar.uri) || has_failed.load(Ordering::Relaxed) {
        return None; // a signature is valid for one object
    }
    let (full, offsets) = names(&tar.uri)?;
    let patience = storage.options().deadline / PATIENCE;
    let both = futures::future::join(storage.head(&full), storage.head(&offsets));
    let why = match tokio::time::timeout(patience, both).await {
        Ok((Ok(index), _)) => return Some(TarIndex::Full(index)),
        Ok((Err(error), Ok(index))) if is_absent(&error) => return Some(TarIndex::Offsets(index)),
        Ok((Err(one), Err(other))) if is_absent(&one) && is_absent(&other) => return None,
        Ok((Err(one), Err(other))) if is_absent(&one) => other.to_string(),
        Ok((Err(error), _)) => error.to_string(),
        Err(_) => format!("no answer within {patience:?}"),
    };
    if !has_failed.swap(true, Ordering::Relaxed) {
        tracing::warn!(
            "{} or {} could not be requested: {why}; the headers in the tars are read instead",
            shown(&full),
            shown(&offsets)
        );
    }
    None
}

/// Returns the members of a tar, and a note if its index was not used.
pub(in crate::format) async fn members(
    tar: &ObjectRef,
    indexes: &TarIndexes,
    keep: fn(&str) -> bool,
    parts_at_once: usize,
    with: &Cataloguing<'_>,
) -> Result<(Vec<Member>, Option<String>)> {
    let (index, found) = match indexes.of(tar) {
        Some(TarIndex::Full(index)) => (index, index_full::members(tar, index, keep, with).await),
        // One part is a walk through the whole tar, for which offsets are not needed.
        Some(TarIndex::Offsets(index)) if parts_at_once > 1 => {
            let found = index_offsets::members(tar, index, keep, parts_at_once, with.storage).await;
            (index, found)
        }
        _ => return Ok((tars::members(tar, 0..tar.size, keep, with.storage).await?, None)),
    };
    let why = match found {
        Ok(members) => return Ok((members, None)),
        Err(Problem::Failed(error)) => return Err(error),
        Err(Problem::Unfit(why)) => why,
    };
    let note = format!("{} of {}: {why}", shown(&index.uri), shown(&tar.uri));
    tracing::warn!("the index {note}; the headers in the tar are read instead");
    Ok((tars::members(tar, 0..tar.size, keep, with.storage).await?, Some(note)))
}

/// Limit on the indexes that a note names.
const NAMED: usize = 3;

/// Returns one note about all indexes that were not used.
pub(in crate::format) fn note(unused: &[String]) -> Option<String> {
    let named = unused.iter().take(NAMED).map(String::as_str).collect::<Vec<_>>().join("; ");
    let more = if unused.len() > NAMED { "; …" } else { "" };
    let indexes = match unused.len() {
        0 => return None,
        1 => "1 index of a tar".to_owned(),
        n => format!("{n} indexes of tars"),
    };
    Some(format!(
        "{indexes} not used, the headers in the tar were read instead: {named}{more}; write the index anew or remove it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indexes_are_named_after_their_tars() {
        let some = |full: &str, offsets: &str| Some((full.to_owned(), offsets.to_owned()));
        assert_eq!(names("s3://b/x.0.tar"), some("s3://b/x.0.idx", "s3://b/x.0.tar.idx"));
        assert_eq!(names("a/é.TAR"), some("a/é.idx", "a/é.TAR.idx"));
        assert_eq!(names("https://h/x.tar?version=1"), None);
        assert_eq!(names("é"), None);
    }

    #[test]
    fn one_note_counts_all_indexes_and_names_the_first() {
        let unused = |n: usize| (0..n).map(|i| format!("{i}.idx: no")).collect::<Vec<_>>();
        assert_eq!(note(&unused(0)), None);
        assert!(note(&unused(1)).unwrap().starts_with("1 index of a tar not used"));
        let many = note(&unused(5)).unwrap();
        assert!(
            many.starts_with("5 indexes") && many.contains("2.idx: no; …") && !many.contains("3.idx"),
            "{many}"
        );
    }
}
