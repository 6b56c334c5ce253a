//! The folder in which a catalog is stored: a separate one for each set of options that changes the catalog.

use super::options::OpenOptions;
use crate::catalog::{CatalogSource, CatalogStore};
use crate::format::split_root;
use crate::storage::{Location, Scheme, absolute, endpoints, without_credentials};
use crate::stored::Place;
use crate::{Error, Layout, Result};
use std::hash::Hasher;
use std::path::{Path, PathBuf};
use twox_hash::XxHash64;

/// Folders are named as in version 3, so that its catalogs are found.
const FOLDER_SEED: u64 = 3;

/// Returns where the catalog of `uri` is stored; `None` if catalogs are not kept, and for files that are computed: of
/// millions of indexes, cataloguing them takes no longer than reading a catalog.
pub(crate) fn place_of(uri: &str, options: &OpenOptions) -> Result<Option<Place>> {
    match &options.catalog.store {
        _ if Location::parse(uri)?.scheme == Scheme::Indexes => Ok(None),
        CatalogStore::Nowhere => Ok(None),
        CatalogStore::Cache(root) => Ok(Some(cached(uri, options, root)?)),
        CatalogStore::Beside => Ok(Some(beside(uri, options))),
    }
}

/// Returns where a source has the catalog of `uri`, if it has one.
pub(crate) fn place_in(source: &CatalogSource, uri: &str, options: &OpenOptions) -> Result<Place> {
    match source {
        CatalogSource::Beside => Ok(beside(uri, options)),
        CatalogSource::Folder(folder) => Ok(published(folder, &folder_name(uri, options)?)?),
        CatalogSource::Received(root) => cached(uri, options, root),
    }
}

/// Returns the local folder of the files from which interrupted work is resumed: that of the catalog. A catalog next to the data
/// may be in a bucket, and others may read it, so its files are where the user's cache would have the catalog.
pub(crate) fn unfinished(uri: &str, place: &Place, options: &OpenOptions) -> Option<PathBuf> {
    if place.is_cache() {
        return Some(place.folder().into());
    }
    let CatalogStore::Cache(cache) = CatalogStore::default() else { return None };
    Some(cache.join(folder_name(uri, options).ok()?))
}

/// Returns the place of a catalog among those that were published in a folder.
pub(crate) fn published(folder: &str, name: &str) -> Result<Place> {
    Ok(Place::new(format!("{}/{name}", absolute(folder)?.trim_end_matches('/')), false))
}

/// Returns the name of a folder among those of other data sets.
pub(crate) fn folder_name(uri: &str, options: &OpenOptions) -> Result<String> {
    let mut hasher = hash_of(uri, options);
    hasher.write(absolute(uri)?.as_bytes());
    // Two stores may have buckets of the same name.
    for endpoint in endpoints(uri, &options.storage, std::env::vars_os()) {
        hasher.write_u8(0xff);
        hasher.write(endpoint.as_bytes());
    }
    Ok(format!("{:016x}", hasher.finish()))
}

fn cached(uri: &str, options: &OpenOptions, root: &Path) -> Result<Place> {
    let folder = root.join(folder_name(uri, options)?);
    let not_utf8 = || Error::config(format!("the catalog cache folder {} is not UTF-8", root.display()));
    Ok(Place::new(folder.to_str().ok_or_else(not_utf8)?.to_owned(), true))
}

fn beside(uri: &str, options: &OpenOptions) -> Place {
    let mut hasher = hash_of(uri, options);
    let (root, rest) = split_root(uri);
    hasher.write(rest.as_bytes());
    let slash = if root.is_empty() || root.ends_with('/') { "" } else { "/" };
    Place::new(format!("{root}{slash}_feedstock/{:016x}", hasher.finish()), false)
}

/// Begins a hash with the options that change the catalog of `uri`.
fn hash_of(uri: &str, options: &OpenOptions) -> XxHash64 {
    let mut hasher = XxHash64::with_seed(FOLDER_SEED);
    hasher.write(options.layout.map_or("", Layout::name).as_bytes());
    hasher.write_u64(options.block_bytes);
    hasher.write(options.split.as_deref().unwrap_or("").as_bytes());
    hasher.write_u8(u8::from(options.probes())); // a catalog with durations differs
    if !options.bad_shards.is_default() {
        hasher.write(b"bad_shards"); // and so does one that leaves shards out
    }
    if !options.tar_headers.is_default() {
        hasher.write(b"tar_headers 2"); // or one that has no places of members; 2: with the first header of each tar
    }
    let mut text = |text: &str| {
        hasher.write(text.as_bytes());
        hasher.write_u8(0xff); // no UTF-8 text holds it
    };
    for (column, pattern) in &options.pair {
        ["pair", column, pattern].into_iter().for_each(&mut text);
    }
    if let Some(annotations) = &options.annotations {
        let annotations = without_credentials(annotations);
        let root = split_root(uri).0.trim_end_matches('/');
        // Below the data set's folder, so that a copy of the folder has the same place.
        let below = annotations.strip_prefix(root).filter(|rest| rest.starts_with('/'));
        ["annotations", below.unwrap_or(&annotations)].into_iter().for_each(&mut text);
    }
    hasher
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CatalogOptions, StorageOptions};

    #[test]
    fn buckets_of_one_name_have_catalogs_of_their_own() {
        let at = |uri: &str, endpoint: &str, store: CatalogStore| {
            let options = OpenOptions {
                storage: StorageOptions::default().with("aws_endpoint", endpoint),
                catalog: CatalogOptions { store, ..CatalogOptions::default() },
                ..OpenOptions::default()
            };
            place_of(uri, &options).unwrap().unwrap().folder().to_owned()
        };
        let cache = || CatalogStore::Cache("/catalogs".into());
        let (one, two) = ("http://one:9000", "http://two:9000");
        assert_ne!(at("s3://b/x", one, cache()), at("s3://b/x", two, cache()));
        assert_eq!(at("s3://b/x", one, cache()), at("s3://b/x", one, cache()));
        assert_eq!(at("/data/x", one, cache()), at("/data/x", two, cache()), "no bucket");
        let computed = OpenOptions::default();
        assert!(place_of("indexes://9/x.arrow", &computed).unwrap().is_none(), "not stored");
        let beside = || CatalogStore::Beside; // in the bucket itself
        assert_eq!(at("s3://b/x", one, beside()), at("s3://b/x", two, beside()));
    }
}
