//! Opens a catalog: the stored one if it still fits the data, else a new one.
//!
//! One complete listing decides whether it fits: names, sizes and ETags of the objects must hash to what the catalog was
//! built from. If they do not, the data set is catalogued anew. Footers and headers are read again, and the identity, which
//! holds no ETags, shows whether the data is still the same.
//!
//! A catalog of more than [`MAX_LISTED_OBJECTS`] objects is listed only if the caller requests it ([`CatalogCheck::List`])
//! or one of a few objects differs, because the listing takes longer than an open may. Otherwise only the tables among its
//! objects (TSVs, manifests) are compared, and the log states that the rest was not checked. A catalog whose own listing was
//! resumed is listed once more at the next open, since objects may have appeared or vanished between its two parts.
//!
//! The next open resumes an interrupted listing of more than 32,000 objects (`storage/journal.rs`), unless the caller requests
//! a listing or a rebuild.

use super::codecs::with_codecs;
use super::durations;
use super::options::OpenOptions;
use crate::catalog::{Catalog, CatalogCheck, Content, Objects, Probed, VIEW_BYTES};
use crate::format::{self, Cataloguing, Choice, Sources, find_sources};
use crate::storage::{remove_abandoned, shown};
use crate::stored::{self, Found, Place, Stored};
use crate::{Error, ErrorKind, Layout, Result, Storage};
use std::path::{Path, PathBuf};

/// 100 listing requests of 1,000 objects: about five seconds on S3.
const MAX_LISTED_OBJECTS: usize = 100_000;
/// Objects of a larger catalog that are compared without a listing.
const COMPARED_OBJECTS: usize = 16;

/// The file of an interrupted listing in a catalog's folder.
const JOURNAL: &str = "listing.journal";

/// Opens the catalog of `uri`, and returns whether it is stored at `place`; runs on the I/O threads.
pub(crate) async fn open_or_build(
    uri: &str,
    place: Option<&Place>,
    options: &OpenOptions,
    storage: &Storage,
) -> Result<(Catalog, bool)> {
    let mut is_listed_anew = options.catalog.rebuild || options.catalog.check == CatalogCheck::List;
    let mut is_newer_form = false;
    if let Some(place) = place.filter(|_| !options.catalog.rebuild) {
        match stored::load(place, storage).await? {
            Stored::Found(found) if !durations::are_current(&found.catalog, options) => {
                is_newer_form = true;
                tracing::info!(
                    uri = shown(uri),
                    "another release read the durations in the stored catalog; reading them again from the audio clips' headers"
                );
            }
            Stored::Found(mut found) => {
                if still_fits(uri, options, storage, &mut found.catalog).await? {
                    store_again(&mut found, place, storage).await;
                    let own = listing_journal(place);
                    remove_abandoned_journals(|| own.into_iter().collect(), storage).await;
                    return Ok((found.catalog, true));
                }
                is_listed_anew = true; // an interrupted listing is older than what was just compared
                tracing::info!(
                    uri = shown(uri),
                    "files changed, were touched or copied since they were catalogued; cataloguing anew"
                )
            }
            Stored::Nothing => {}
            Stored::Unusable(why) => {
                tracing::warn!(uri = shown(uri), why, "the stored catalog cannot be used; cataloguing anew");
            }
        }
    }
    options.catalog.report("listing", 0, None);
    let journal = place.and_then(listing_journal);
    if let Some(journal) = journal.clone() {
        remove_abandoned_journals(move || all_journals(&journal), storage).await;
    }
    if let Some(path) = journal.as_ref().filter(|_| is_listed_anew) {
        let _absent = std::fs::remove_file(path);
    }
    let choice = Choice {
        layout: options.layout,
        stored: None,
        split: options.split.as_deref(),
        told: Some(&options.catalog),
        journal: journal.as_deref(),
    };
    let sources = find_sources(uri, choice, storage).await?;
    let mut catalog = build(sources, options, storage).await?;
    if place.is_some() && storage.has_signed_objects() {
        tracing::info!(
            uri = shown(uri),
            "the catalog is not stored: its objects' URLs are signed, and signatures are not stored"
        );
    } else if let Some(place) = place {
        let is_kept = keep(&mut catalog, place, storage, options, is_newer_form).await?;
        return Ok((catalog, is_kept));
    }
    Ok((catalog, false))
}

/// Stores what changed in the form of a catalog that fits. After a failure, the next open does the same work again.
async fn store_again(found: &mut Found, place: &Place, storage: &Storage) {
    let was_resumed = std::mem::take(&mut found.catalog.is_resumed);
    let stored = match (found.converted, was_resumed) {
        (true, _) => stored::save(&mut found.catalog, place, storage).await,
        (false, true) => stored::save_compared(&found.catalog, place, storage).await,
        (false, false) => Ok(()),
    };
    if let Err(error) = stored {
        tracing::warn!(folder = place.folder(), %error, "the catalog could not be stored in its new form");
    }
}

/// Returns the file from which an interrupted listing is resumed; none next to the data, where others may read it.
fn listing_journal(place: &Place) -> Option<PathBuf> {
    place.is_cache().then(|| PathBuf::from(place.file(JOURNAL)))
}

/// Returns the journals of all listings in the same cache. Each data set has one folder, so this takes a few milliseconds.
fn all_journals(own: &Path) -> Vec<PathBuf> {
    let cache = own.parent().and_then(Path::parent);
    let folders = cache.and_then(|cache| std::fs::read_dir(cache).ok());
    folders.into_iter().flatten().flatten().map(|folder| folder.path().join(JOURNAL)).collect()
}

/// Removes journals of listings that were interrupted too long ago to be resumed. A failure costs only disk space.
async fn remove_abandoned_journals(find: impl FnOnce() -> Vec<PathBuf> + Send + 'static, storage: &Storage) {
    let remove = move || {
        for path in find() {
            if let Err(error) = remove_abandoned(&path) {
                tracing::debug!(path = %path.display(), %error, "an old listing could not be removed");
            }
        }
    };
    let _ended = storage.io().handle().spawn_blocking(remove).await;
}

async fn build(sources: Sources, options: &OpenOptions, storage: &Storage) -> Result<Catalog> {
    let (uri, layout, listing) = (sources.uri.clone(), sources.layout, sources.fingerprint());
    let with = Cataloguing {
        storage,
        options: &options.catalog,
        block_bytes: options.block_bytes,
        bad_shards: options.bad_shards,
        archives: options.archives.as_deref(),
        split: options.split.as_deref(),
    };
    let (listing_notes, is_resumed) = (sources.notes.clone(), sources.is_resumed);
    let draft = format::of(layout).catalog(sources, &with).await?;
    if draft.blocks.samples() == 0 {
        return Err(Error::config(format!("{uri}: the data set is empty: it has no samples")));
    }
    let hashes = stored::hashes(&draft, layout, options.block_bytes, storage).await?;
    let listing_notes = draft.notes.starts_with(&listing_notes).then_some(listing_notes.len());
    let mut notes = draft.notes;
    if let by_size @ 1.. = draft.objects.pinned_by_size() {
        notes.push(format!(
            "{by_size} of {} objects have neither an ETag nor a time of change: if one is replaced, only a change of its size \
             is noticed",
            draft.objects.len()
        ));
    }
    let blocks = match &draft.content {
        Content::Located(_) => draft.blocks.with_memory_per_sample(VIEW_BYTES * draft.payload.len() as u64),
        Content::Units { .. } | Content::Union(_) => draft.blocks,
    };
    let catalog = Catalog {
        uri,
        layout,
        block_bytes: options.block_bytes,
        objects: draft.objects,
        blocks,
        content: draft.content,
        schema: draft.schema,
        payload: draft.payload,
        audio: draft.audio,
        notes,
        listing_notes,
        null_columns: draft.null_columns,
        hashes,
        listing,
        is_resumed,
        probed: Probed::Nothing, // yet
        unsupported: Vec::new(), // yet
    };
    let (catalog, codecs) = durations::with_durations(catalog, options, &with).await?;
    with_codecs(catalog, codecs, options, &with).await
}

/// Whether the stored catalog describes the objects that exist now. If they were listed, the catalog's notes about the
/// listing, which name objects that are not data, are renewed.
async fn still_fits(
    uri: &str,
    options: &OpenOptions,
    storage: &Storage,
    stored: &mut Catalog,
) -> Result<bool> {
    let objects = &stored.objects;
    let all = 0..objects.len();
    if format::of(stored.layout).reads_copies() && !still_there(objects, all.clone(), storage).await? {
        return Ok(false); // the seekable copies were removed
    }
    let is_large = options.catalog.check == CatalogCheck::Auto && objects.len() > MAX_LISTED_OBJECTS;
    if is_large && stored.is_resumed {
        tracing::info!(
            uri = shown(uri),
            objects = objects.len(),
            "the listing of the stored catalog was interrupted and resumed; comparing it once with a whole listing"
        );
    }
    let is_large = is_large && !stored.is_resumed;
    // In a copy all inodes or ETags differ, so a few objects suffice.
    let some = all.clone().step_by(objects.len().div_ceil(COMPARED_OBJECTS).max(1));
    if is_large && still_there(objects, some, storage).await? {
        tracing::warn!(
            uri = shown(uri),
            objects = objects.len(),
            "the stored catalog was not compared with the storage, because it has more than {MAX_LISTED_OBJECTS} \
             objects; if the data may have changed, open it with check=\"list\" (command line: --check list) or \
             rebuild=True (feedstock catalog --rebuild)"
        );
        if stored.layout == Layout::Folder {
            // No other file of a folder is a table, and 10⁷ names take seconds to look at.
            return Ok(!format::may_have_table(uri, options.layout, options.split.as_deref())
                || !format::has_metadata_table(uri, storage).await?);
        }
        return still_there(objects, all.filter(|&i| format::is_table(objects.name(i))), storage).await;
    }
    let choice = Choice {
        layout: options.layout,
        stored: Some(format::Stored { layout: stored.layout, listing: stored.listing }),
        split: options.split.as_deref(),
        told: Some(&options.catalog),
        journal: None, // the catalog is compared with what exists now
    };
    match find_sources(uri, choice, storage).await {
        Ok(sources) if (sources.layout, sources.fingerprint()) != (stored.layout, stored.listing) => {
            Ok(false)
        }
        Ok(sources) => {
            stored.renew_notes(sources.notes);
            Ok(true)
        }
        // What exists now is not such a data set: building returns the error that states what it is.
        Err(error) if error.kind() == ErrorKind::BadConfig => Ok(false),
        Err(error) => Err(error),
    }
}

/// Whether these objects are unchanged. For the few that decide about all others.
async fn still_there(
    objects: &Objects,
    checked: impl Iterator<Item = usize>,
    storage: &Storage,
) -> Result<bool> {
    for i in checked {
        let then = objects.get(i);
        match storage.head(&then.uri).await {
            Ok(now) if now.size == then.size && (then.etag.is_none() || now.etag == then.etag) => {}
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Gone => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Stores the catalog. Next to the data, a place that the user chose, a failure is an error. In the cache folder it only
/// costs time. The same holds for a catalog that only this release needs in another form (`is_newer_form`): others can still
/// open the stored one, and readers often may not write.
async fn keep(
    catalog: &mut Catalog,
    place: &Place,
    storage: &Storage,
    options: &OpenOptions,
    is_newer_form: bool,
) -> Result<bool> {
    options.catalog.report("storing the catalog", 0, None);
    match stored::save(catalog, place, storage).await {
        Ok(()) => Ok(true),
        Err(error) if place.is_cache() || is_newer_form => {
            tracing::warn!(folder = place.folder(), %error, "the catalog could not be stored; the next open builds it again");
            Ok(false)
        }
        Err(error) => Err(error.context("storing the catalog next to the data")),
    }
}
