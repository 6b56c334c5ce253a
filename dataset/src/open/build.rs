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
//! Before a catalog is built, ready ones are looked for (`CatalogOptions::sources`). They must fit, too.
//!
//! The next open resumes an interrupted listing of more than 32,000 objects (`storage/listed_part.rs`), unless the caller
//! requests a listing or a rebuild. It does not read tars again that an interrupted build has read (`format/finished.rs`),
//! unless the caller requests a rebuild.

use super::codecs::with_codecs;
use super::durations;
use super::options::OpenOptions;
use super::place::{place_in, unfinished};
use crate::catalog::{Catalog, CatalogCheck, CatalogSource, Content, Objects, Probed, VIEW_BYTES};
use crate::format::{self, Cataloguing, Choice, FINISHED, Finished, Sources, find_sources};
use crate::storage::{JournalKind, LISTING, remove_abandoned, shown};
use crate::stored::{self, Found, Place, Stored};
use crate::{Error, ErrorKind, Layout, Result, Storage};
use std::path::{Path, PathBuf};

/// 100 listing requests of 1,000 objects: about five seconds on S3.
const MAX_LISTED_OBJECTS: usize = 100_000;
/// Objects of a larger catalog that are compared without a listing.
const COMPARED_OBJECTS: usize = 16;

/// The files of interrupted work in a catalog's folder.
static JOURNALS: [(&str, &JournalKind); 2] = [(LISTING_JOURNAL, &LISTING), (SHARDS_JOURNAL, &FINISHED)];
/// The file of an interrupted listing.
const LISTING_JOURNAL: &str = "listing.journal";
/// The file of the shards that an interrupted build has read.
const SHARDS_JOURNAL: &str = "shards.journal";

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
                if still_fits(uri, options, options.catalog.check, storage, &mut found.catalog).await? {
                    store_again(&mut found, place, storage).await;
                    let own = unfinished(uri, place, options);
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
    if !options.catalog.rebuild
        && let Some(ready) = ready(uri, place, options, storage).await?
    {
        return Ok(ready);
    }
    options.catalog.report("listing", 0, None);
    let folder = place.and_then(|place| unfinished(uri, place, options));
    if let Some(folder) = folder.clone() {
        remove_abandoned_journals(move || all_folders(&folder), storage).await;
    }
    let journal = folder.as_ref().map(|folder| folder.join(LISTING_JOURNAL));
    if let Some(path) = journal.as_ref().filter(|_| is_listed_anew) {
        let _absent = std::fs::remove_file(path);
    }
    let choice = Choice { journal: journal.as_deref(), ..choice(options) };
    let sources = find_sources(uri, choice, storage).await?;
    let finished = finished_shards(&sources, folder, options, storage).await?;
    let mut catalog = build(sources, options, storage, finished.as_ref()).await?;
    if place.is_some() && storage.has_signed_objects() {
        tracing::info!(
            uri = shown(uri),
            "the catalog is not stored: its objects' URLs are signed, and signatures are not stored"
        );
    } else if let Some(place) = place {
        let is_kept = keep(&mut catalog, place, storage, options, is_newer_form).await?;
        if let Some(finished) = finished.filter(|_| is_kept) {
            finished.remove().await?;
        }
        return Ok((catalog, is_kept));
    }
    Ok((catalog, false))
}

/// Returns a catalog of the sources that fits, and whether it is stored at `place`. It is copied there, unless ranks sent it.
async fn ready(
    uri: &str,
    place: Option<&Place>,
    options: &OpenOptions,
    storage: &Storage,
) -> Result<Option<(Catalog, bool)>> {
    for source in &options.catalog.sources {
        let from = place_in(source, uri, options)?;
        let why = match stored::load(&from, storage).await {
            Ok(Stored::Nothing) => "there is none".to_owned(),
            Ok(Stored::Unusable(why)) => why,
            Err(error) => error.to_string(),
            Ok(Stored::Found(found)) if !durations::are_current(&found.catalog, options) => {
                "another release read its durations".to_owned()
            }
            Ok(Stored::Found(mut found)) => {
                let is_received = matches!(source, CatalogSource::Received(_));
                let check = if is_received { CatalogCheck::List } else { options.catalog.check };
                if still_fits(uri, options, check, storage, &mut found.catalog).await? {
                    let to = place.filter(|_| !is_received);
                    return Ok(Some(match to {
                        Some(to) => taken_over(found.catalog, &from, to, storage).await,
                        None => (found.catalog, false),
                    }));
                }
                "it is of other files".to_owned()
            }
        };
        tracing::info!(uri = shown(uri), folder = shown(from.folder()), why, "no ready catalog is used");
    }
    Ok(None)
}

/// Copies a ready catalog, and returns the copy, whose tables are mapped. After a failure, it returns the catalog itself.
async fn taken_over(ready: Catalog, from: &Place, to: &Place, storage: &Storage) -> (Catalog, bool) {
    let copied = async {
        stored::copy(from, to, storage).await?;
        stored::load(to, storage).await
    };
    match copied.await {
        // Unless another machine has published another one meanwhile.
        Ok(Stored::Found(copy))
            if (copy.catalog.hashes, copy.catalog.listing) == (ready.hashes, ready.listing) =>
        {
            (Catalog { notes: ready.notes, listing_notes: ready.listing_notes, ..copy.catalog }, true)
        }
        Ok(_) => (ready, false),
        Err(error) => {
            tracing::warn!(folder = to.folder(), %error, "a ready catalog could not be copied; the next open reads it again");
            (ready, false)
        }
    }
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

/// Returns the folders of all data sets in the same cache. Each data set has one, so this takes a few milliseconds.
fn all_folders(own: &Path) -> Vec<PathBuf> {
    let folders = own.parent().and_then(|cache| std::fs::read_dir(cache).ok());
    folders.into_iter().flatten().flatten().map(|folder| folder.path()).collect()
}

/// Opens the list of shards that an interrupted build has read, and begins a new one if the caller requests a rebuild.
async fn finished_shards(
    sources: &Sources,
    folder: Option<PathBuf>,
    options: &OpenOptions,
    storage: &Storage,
) -> Result<Option<Finished>> {
    // Signatures are not stored, and without them the URLs name nothing.
    let Some(folder) = folder.filter(|_| !storage.has_signed_objects()) else { return Ok(None) };
    let path = folder.join(SHARDS_JOURNAL);
    if options.catalog.rebuild {
        let _absent = std::fs::remove_file(&path);
    }
    let (layout, version) = (sources.layout, format::of(sources.layout).columns_version());
    let form = format!("{layout} {version} {}", env!("CARGO_PKG_VERSION"));
    Finished::open(path, form, storage.io()).await.map(Some)
}

/// Removes journals of work that was interrupted too long ago to be resumed, in the folders that `find` returns. A failure
/// costs only disk space.
async fn remove_abandoned_journals(find: impl FnOnce() -> Vec<PathBuf> + Send + 'static, storage: &Storage) {
    let remove = move || {
        for (folder, (name, kind)) in
            find().iter().flat_map(|folder| JOURNALS.map(|journal| (folder, journal)))
        {
            let path = folder.join(name);
            if let Err(error) = remove_abandoned(kind, &path) {
                tracing::debug!(path = %path.display(), %error, "an old journal could not be removed");
            }
        }
    };
    let _ended = storage.io().handle().spawn_blocking(remove).await;
}

async fn build(
    sources: Sources,
    options: &OpenOptions,
    storage: &Storage,
    finished: Option<&Finished>,
) -> Result<Catalog> {
    let (uri, layout, listing) = (sources.uri.clone(), sources.layout, sources.fingerprint());
    let with = Cataloguing {
        storage,
        options: &options.catalog,
        block_bytes: options.block_bytes,
        bad_shards: options.bad_shards,
        tar_headers: options.tar_headers,
        archives: options.archives.as_deref(),
        split: options.split.as_deref(),
        pair: &options.pair,
        finished,
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
        Content::Units { .. } | Content::Union(_) | Content::Derived(_) => draft.blocks,
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

/// Returns what the options state about the objects.
fn choice(options: &OpenOptions) -> Choice<'_> {
    Choice {
        layout: options.layout,
        stored: None,
        split: options.split.as_deref(),
        pair: Some(&options.pair),
        annotations: options.annotations.as_deref(),
        bad_shards: options.bad_shards,
        told: Some(&options.catalog),
        journal: None,
    }
}

/// Whether the stored catalog describes the objects that exist now. If they were listed, the catalog's notes about the
/// listing, which name objects that are not data, are renewed.
async fn still_fits(
    uri: &str,
    options: &OpenOptions,
    check: CatalogCheck,
    storage: &Storage,
    stored: &mut Catalog,
) -> Result<bool> {
    let objects = &stored.objects;
    let all = 0..objects.len();
    if format::of(stored.layout).reads_copies() && !still_there(objects, all.clone(), storage).await? {
        return Ok(false); // the seekable copies were removed
    }
    let is_large = check == CatalogCheck::Auto && objects.len() > MAX_LISTED_OBJECTS;
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
    let was = format::Stored { layout: stored.layout, listing: stored.listing };
    // Without a journal: the catalog is compared with what exists now.
    let choice = Choice { stored: Some(was), ..choice(options) };
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
