//! Opening a catalog: the stored one if it still fits the data, else a new one.
//!
//! "Fits" is decided by one listing: names, sizes and ETags of the objects must hash to what the catalog was built
//! from. Beyond [`MAX_CHECKED_OBJECTS`] the listing is skipped, because it would take longer than the promise of an
//! open within a second allows; then a changed object is found when it is read, by its ETag.

use super::store::{self, Place, Stored};
use super::{Catalog, Draft};
use crate::format::{self, Cataloguing, Sources, find_sources};
use crate::{Error, ErrorKind, Layout, OpenOptions, Result, Storage};
use std::hash::Hasher;

/// Ten listing requests of 1,000 objects: about half a second on S3.
const MAX_CHECKED_OBJECTS: usize = 10_000;

/// Opens the catalog of `uri`; runs on the I/O threads.
pub(crate) async fn open_or_build(uri: &str, options: &OpenOptions, storage: &Storage) -> Result<Catalog> {
    let place = Place::of(uri, options)?;
    if let Some(place) = place.as_ref().filter(|_| !options.catalog.rebuild) {
        match store::load(place, storage).await? {
            Stored::Found(found) if still_fits(uri, options, storage, &found).await? => {
                return Ok(found.catalog);
            }
            Stored::Found(_) => {
                tracing::info!(uri, "the data set changed since it was catalogued; cataloguing anew")
            }
            Stored::Nothing => {}
            Stored::Unusable(why) => {
                tracing::warn!(uri, why, "the stored catalog cannot be used; cataloguing anew");
            }
        }
    }
    options.catalog.report("listing", 0, None);
    let Some(sources) = find_sources(uri, options.layout, storage, None).await? else {
        return Err(Error::new(ErrorKind::Bug, "an unlimited listing hit its limit"));
    };
    let fingerprint = sources.fingerprint();
    let mut catalog = build(sources, options, storage).await?;
    if let Some(place) = &place {
        keep(&mut catalog, fingerprint, place, storage, options).await?;
    }
    Ok(catalog)
}

async fn build(sources: Sources, options: &OpenOptions, storage: &Storage) -> Result<Catalog> {
    let (uri, layout) = (sources.uri.clone(), sources.layout);
    let with = Cataloguing { storage, options: &options.catalog, block_bytes: options.block_bytes };
    let draft = format::catalog(sources, &with).await?;
    if draft.blocks.samples() == 0 {
        return Err(Error::config(format!("{uri}: no samples in it: the data set is empty")));
    }
    let content_hash = content_hash(&draft, layout, options.block_bytes)?;
    Ok(Catalog {
        uri,
        layout,
        block_bytes: options.block_bytes,
        objects: draft.objects,
        blocks: draft.blocks,
        content: draft.content,
        schema: draft.schema,
        payload: draft.payload,
        notes: draft.notes,
        content_hash,
    })
}

/// Everything the order depends on.
fn content_hash(draft: &Draft, layout: Layout, block_bytes: u64) -> Result<u64> {
    let mut hasher = twox_hash::XxHash64::with_seed(u64::from(store::VERSION));
    hasher.write(layout.name().as_bytes());
    hasher.write_u64(block_bytes);
    for i in 0..draft.objects.len() {
        let object = draft.objects.get(i);
        hasher.write(draft.objects.name(i).as_bytes());
        hasher.write_u8(0xff); // no UTF-8 text holds it
        hasher.write_u64(object.size);
        hasher.write(object.etag.as_deref().unwrap_or("").as_bytes());
        hasher.write_u8(0xff);
    }
    hasher.write_u64(draft.blocks.len() as u64);
    for column in draft.blocks.to_batch()?.columns() {
        for buffer in column.to_data().buffers() {
            hasher.write(buffer.as_slice());
        }
    }
    Ok(hasher.finish())
}

async fn still_fits(
    uri: &str,
    options: &OpenOptions,
    storage: &Storage,
    stored: &store::Found,
) -> Result<bool> {
    if stored.listed > MAX_CHECKED_OBJECTS {
        return Ok(true);
    }
    let layout = options.layout.unwrap_or(stored.catalog.layout);
    match find_sources(uri, Some(layout), storage, Some(MAX_CHECKED_OBJECTS)).await {
        Ok(Some(sources)) => Ok(sources.fingerprint() == stored.fingerprint),
        Ok(None) => Ok(true),
        // What is there now is no such data set: building says what it is.
        Err(error) if error.kind() == ErrorKind::BadConfig => Ok(false),
        Err(error) => Err(error),
    }
}

/// Stores the catalog. Where the user asked for a place beside the data, failing is an error; the cache folder is
/// ours, and doing without it only costs time.
async fn keep(
    catalog: &mut Catalog,
    fingerprint: u64,
    place: &Place,
    storage: &Storage,
    options: &OpenOptions,
) -> Result<()> {
    options.catalog.report("storing the catalog", 0, None);
    match store::save(catalog, fingerprint, place, storage).await {
        Ok(()) => Ok(()),
        Err(error) if place.is_cache() => {
            tracing::warn!(folder = place.folder(), %error, "the catalog could not be kept; the next open builds it again");
            Ok(())
        }
        Err(error) => Err(error.context("storing the catalog beside the data")),
    }
}
