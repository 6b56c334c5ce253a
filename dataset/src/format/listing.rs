//! Finds the objects that a URI means.
//!
//! A URI may be a folder or prefix, one object, or a pattern: `shards-{000..099}.tar`, `{train,val}.parquet`, `*.parquet`.
//! Names that start with a dot, and feedstock's `_feedstock/`, are never data.

use super::bad_shards::BadShards;
use super::kinds::{Named, is_hidden, kind_of};
use super::pattern::{Pattern, pattern_start};
use crate::Layout;
use crate::catalog::CatalogOptions;
use crate::storage::{Listed, ListingFn};
use crate::{ObjectRef, Result, Storage};
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::path::Path;
use std::sync::Arc;

/// The objects of one data set, with their layout.
#[derive(Debug, Clone)]
pub(crate) struct Sources {
    /// As the user gave it.
    pub(crate) uri: String,
    pub(crate) layout: Layout,
    /// The URI's folder, ending in `/`.
    pub(crate) root: String,
    /// The data, sorted by URI.
    pub(crate) objects: Vec<ObjectRef>,
    /// Each object's name below the URI's folder.
    pub(crate) names: Vec<String>,
    pub(crate) notes: Vec<String>,
    /// Listed files that may be indexes of the tars; `None` if the tars were named one by one, so nothing was listed.
    pub(crate) indexes: Option<Vec<Named>>,
    /// Whether a part of the listing comes from an earlier process that was interrupted: it may be older than the rest.
    pub(crate) is_resumed: bool,
}

impl Sources {
    /// Returns a hash of names, sizes and ETags. It is the same if nothing was added, removed or rewritten.
    pub(crate) fn fingerprint(&self) -> u64 {
        hash(self.objects.iter().zip(&self.names))
    }
}

/// What the user stated in addition to the URI.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Choice<'a> {
    pub(crate) layout: Option<Layout>,
    /// What a stored catalog was built from; `None` when there is none.
    pub(crate) stored: Option<Stored>,
    pub(crate) split: Option<&'a str>,
    /// The patterns of files that belong together, by column; `None` if nothing was stated.
    pub(crate) pair: Option<&'a BTreeMap<String, String>>,
    /// The URI of COCO's file of annotations.
    pub(crate) annotations: Option<&'a str>,
    /// What happens to samples that lack a file.
    pub(crate) bad_shards: BadShards,
    /// Receives the progress of the listing.
    pub(crate) told: Option<&'a CatalogOptions>,
    /// The file from which a long listing is resumed.
    pub(crate) journal: Option<&'a Path>,
}

/// What a stored catalog was built from.
///
/// Its layout stays when files of other kinds appear, and a note states what a machine without a stored catalog would do.
/// Only the choice between a folder and a manifest `metadata.csv` is made at each open, stored catalog or not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored {
    pub(crate) layout: Layout,
    /// The fingerprint of its [`Sources`].
    pub(crate) listing: u64,
}

/// Returns a hash of names, sizes and ETags.
pub(super) fn hash<'a>(objects: impl Iterator<Item = (&'a ObjectRef, &'a String)>) -> u64 {
    let mut hasher = twox_hash::XxHash64::with_seed(0);
    for (object, name) in objects {
        hasher.write(name.as_bytes());
        hasher.write_u8(0xff); // no UTF-8 text holds it
        hasher.write_u64(object.size);
        hasher.write(object.etag.as_deref().unwrap_or("").as_bytes());
        hasher.write_u8(0xff);
    }
    hasher.finish()
}

impl Choice<'_> {
    fn listing(&self) -> Option<ListingFn> {
        let told = self.told.filter(|told| told.progress.is_some())?.clone();
        Some(Arc::new(move |found| told.report("listing", found, None)))
    }
}

/// The objects that a URI means, with their names.
pub(crate) struct Listing {
    pub(super) uri: String,
    pub(super) root: String,
    /// Sorted by URI.
    pub(super) objects: Vec<Named>,
    /// All objects below the root, if a pattern had them listed.
    pub(super) below: Option<Vec<Named>>,
    /// As [`Sources::is_resumed`].
    pub(super) is_resumed: bool,
}

impl Listing {
    pub(super) async fn of(uri: &str, choice: Choice<'_>, storage: &Storage) -> Result<Self> {
        let (root, listed, below) = match Pattern::parse(uri)? {
            Some(pattern) => {
                let (objects, below) = pattern.objects(storage).await?;
                (pattern.root().to_owned(), Listed::from(objects), below)
            }
            None => {
                let listed = storage
                    .list_telling(uri, usize::MAX, choice.listing(), choice.journal.map(Path::to_owned))
                    .await?;
                (root_of(uri, &listed.objects), listed, None)
            }
        };
        let objects = named(&root, listed.objects);
        let below = below.map(|below| named(&root, below));
        Ok(Self { uri: uri.to_owned(), root, objects, below, is_resumed: listed.is_resumed })
    }

    pub(super) fn sources(self, layout: Layout, objects: Vec<Named>, notes: Vec<String>) -> Sources {
        let (names, objects) = objects.into_iter().unzip();
        let Self { uri, root, is_resumed, .. } = self;
        Sources { uri, layout, root, objects, names, notes, indexes: None, is_resumed }
    }
}

/// Returns objects with their names below `root`; hidden ones are left out.
pub(super) fn named(root: &str, objects: Vec<ObjectRef>) -> Vec<Named> {
    let named = objects.into_iter().map(|object| (name_below(root, &object.uri), object));
    named.filter(|(name, _)| !is_hidden(name)).collect()
}

/// Returns the folder that names are relative to: the URI, or the folder of its only object.
fn root_of(uri: &str, listed: &[ObjectRef]) -> String {
    let root = match listed {
        [only] if only.uri.trim_end_matches('/') == uri.trim_end_matches('/') => {
            uri.rfind('/').map_or("", |at| &uri[..at])
        }
        _ => uri.trim_end_matches('/'),
    };
    if root.is_empty() && !uri.starts_with('/') { String::new() } else { format!("{root}/") }
}

/// Returns a URI's folder with its `/`, and the rest of the URI: catalogs are stored next to the data by them.
pub(crate) fn split_root(uri: &str) -> (&str, &str) {
    let pattern = pattern_start(uri).unwrap_or(uri.len());
    let is_file = pattern < uri.len() || kind_of(uri).is_some();
    match uri[..pattern].rfind('/').filter(|_| is_file) {
        Some(at) => (&uri[..=at], &uri[at + 1..]),
        None if is_file => ("", uri),
        None => (uri, ""),
    }
}

/// Returns the URI without its query, which only http(s) URLs have. In file names and keys, `?` is an ordinary character.
pub(super) fn without_query(uri: &str) -> &str {
    match uri.starts_with("http://") || uri.starts_with("https://") {
        true => uri.split('?').next().unwrap_or(uri),
        false => uri,
    }
}

pub(crate) fn name_below(root: &str, uri: &str) -> String {
    let uri = if root.contains('?') { uri } else { without_query(uri) };
    let raw = uri.strip_prefix(root).unwrap_or_else(|| uri.split_once("://").map_or(uri, |(_, rest)| rest));
    let encoded = ["file://", "http://", "https://"].iter().any(|scheme| uri.starts_with(scheme));
    if encoded { decode(raw) } else { raw.to_owned() }
}

/// Percent-decodes; anything that is not encoded UTF-8 text stays unchanged.
fn decode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut i = 0;
    while i < bytes.len() {
        let hex = bytes.get(i + 1..i + 3).and_then(|h| std::str::from_utf8(h).ok());
        match hex.and_then(|h| u8::from_str_radix(h, 16).ok()).filter(|_| bytes[i] == b'%') {
            Some(byte) => {
                out.push(byte);
                i += 3;
            }
            None => {
                out.push(bytes[i]);
                i += 1;
            }
        }
    }
    String::from_utf8(out).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_the_uri_and_decoded_where_encoded() {
        assert_eq!(name_below("file:///a%20b/", "file:///a%20b/c%20d/%231.jpg"), "c d/#1.jpg");
        assert_eq!(name_below("s3://b/p/", "s3://b/p/c%20d.jpg"), "c%20d.jpg");
        let only = ObjectRef { uri: "s3://b/p/x.tar".into(), size: 1, etag: None };
        assert_eq!(root_of("s3://b/p/x.tar", std::slice::from_ref(&only)), "s3://b/p/");
        assert_eq!(root_of("s3://b/p/", &[only]), "s3://b/p/");
    }
}
