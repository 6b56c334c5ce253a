//! Which objects a URI means, and how they are laid out.
//!
//! A URI may be a folder or prefix, one object, or a pattern: `shards-{000..099}.tar`, `{train,val}.parquet`,
//! `*.parquet`. Names that start with a dot, and feedstock's own `_feedstock/`, are never data.

use super::layout::Layout;
use super::pattern::Pattern;
use crate::{Error, ErrorKind, ObjectRef, Result, Storage};
use std::collections::BTreeMap;
use std::hash::Hasher;

/// Names that mean "a part of the data set, not a class": mixing two of them is never meant.
const SPLITS: [&str; 9] =
    ["train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"];

/// The objects of one data set, recognised.
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
}

impl Sources {
    /// A hash of names, sizes and ETags: equal when nothing was added, removed or rewritten.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hasher = twox_hash::XxHash64::with_seed(0);
        for (object, name) in self.objects.iter().zip(&self.names) {
            hasher.write(name.as_bytes());
            hasher.write_u8(0xff); // no UTF-8 text holds it
            hasher.write_u64(object.size);
            hasher.write(object.etag.as_deref().unwrap_or("").as_bytes());
            hasher.write_u8(0xff);
        }
        hasher.finish()
    }
}

/// What kind of data an object is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Parquet,
    Tar,
    Ipc,
    Picture,
    Table,
}

/// A name's extension in lower case: what stands after its last dot.
pub(crate) fn extension(name: &str) -> String {
    let file = name.rsplit('/').next().unwrap_or(name);
    file.rsplit_once('.').map_or(String::new(), |(_, ext)| ext.to_ascii_lowercase())
}

/// Is this the extension of a picture that feedstock reads?
pub(crate) fn is_picture(extension: &str) -> bool {
    matches!(extension, "jpg" | "jpeg" | "png" | "webp")
}

fn kind_of(name: &str) -> Option<Kind> {
    match extension(name).as_str() {
        "parquet" => Some(Kind::Parquet),
        "tar" => Some(Kind::Tar),
        "arrow" | "ipc" | "feather" => Some(Kind::Ipc),
        "csv" | "tsv" => Some(Kind::Table),
        ext if is_picture(ext) => Some(Kind::Picture),
        _ => None,
    }
}

/// Lists what `uri` means and recognises it, or takes it as `named`. At most `limit` objects are listed; `None` is
/// returned when there are more.
pub(crate) async fn find_sources(
    uri: &str,
    named: Option<Layout>,
    storage: &Storage,
    limit: Option<usize>,
) -> Result<Option<Sources>> {
    let (root, listed) = match Pattern::parse(uri)? {
        Some(pattern) => (pattern.root().to_owned(), pattern.objects(storage).await?),
        None => {
            let listed = match limit {
                Some(limit) => storage.list_some(uri, limit + 1).await?,
                None => storage.list(uri).await?,
            };
            (root_of(uri, &listed), listed)
        }
    };
    if limit.is_some_and(|limit| listed.len() > limit) {
        return Ok(None);
    }
    if listed.is_empty() {
        return Err(Error::new(
            ErrorKind::Gone,
            format!(
                "{uri}: nothing is there, neither an object of that name nor one below it; check the path"
            ),
        ));
    }
    let mut named_objects: Vec<(String, ObjectRef)> =
        listed.into_iter().map(|object| (name_below(&root, &object.uri), object)).collect();
    named_objects.retain(|(name, _)| !is_hidden(name));
    let layout = match named {
        Some(layout) => layout,
        None => recognise(uri, &named_objects, storage).await?,
    };
    let (data, beside): (Vec<_>, Vec<_>) =
        named_objects.into_iter().partition(|(name, _)| is_data(layout, name));
    let mut notes = Vec::new();
    note_ignored(layout, &beside, &mut notes);
    let (names, objects): (Vec<String>, Vec<ObjectRef>) = data.into_iter().unzip();
    if objects.is_empty() {
        return Err(Error::config(format!(
            "{uri}: no data of the layout {layout} ({} there): the data set is empty",
            counted(beside.len(), "other object")
        )));
    }
    if !matches!(layout, Layout::IlsvrcTar | Layout::Manifest) {
        one_split(uri, layout, &names)?;
    }
    Ok(Some(Sources { uri: uri.to_owned(), layout, root, objects, names, notes }))
}

/// The folder that names are told from: the URI itself, or the folder of the one object it is.
fn root_of(uri: &str, listed: &[ObjectRef]) -> String {
    let root = match listed {
        [only] if only.uri.trim_end_matches('/') == uri.trim_end_matches('/') => {
            uri.rfind('/').map_or("", |at| &uri[..at])
        }
        _ => uri.trim_end_matches('/'),
    };
    if root.is_empty() && !uri.starts_with('/') { String::new() } else { format!("{root}/") }
}

/// A URI's folder with its `/`, and what it means in there, told from the URI alone: for what is kept beside the data.
pub(crate) fn split_root(uri: &str) -> (&str, &str) {
    let scheme = uri.find("://").map_or(0, |at| at + 3);
    let pattern = uri[scheme..].find(['{', '*', '?', '[']).map_or(uri.len(), |at| at + scheme);
    let is_file = pattern < uri.len() || kind_of(uri).is_some();
    match uri[..pattern].rfind('/').filter(|_| is_file) {
        Some(at) => (&uri[..=at], &uri[at + 1..]),
        None if is_file => ("", uri),
        None => (uri, ""),
    }
}

fn name_below(root: &str, uri: &str) -> String {
    let uri = if root.contains('?') { uri } else { uri.split('?').next().unwrap_or(uri) };
    let raw = uri.strip_prefix(root).unwrap_or_else(|| uri.split_once("://").map_or(uri, |(_, rest)| rest));
    let encoded = ["file://", "http://", "https://"].iter().any(|scheme| uri.starts_with(scheme));
    if encoded { decode(raw) } else { raw.to_owned() }
}

/// Percent-decodes; anything that is not an encoded UTF-8 text stays as it is.
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

fn is_hidden(name: &str) -> bool {
    name.is_empty()
        || name.ends_with('/')
        || name.split('/').any(|part| part.starts_with('.') || part == "_feedstock")
}

fn is_data(layout: Layout, name: &str) -> bool {
    match (layout, kind_of(name)) {
        (Layout::HfParquet, kind) => kind == Some(Kind::Parquet),
        (Layout::Folder, kind) => kind == Some(Kind::Picture),
        (Layout::WebDataset | Layout::IlsvrcTar, kind) => kind == Some(Kind::Tar),
        // `datasets` also leaves indices and transform results behind, as cache-*.arrow
        (Layout::ArrowIpc, kind) => kind == Some(Kind::Ipc) && !file_name(name).starts_with("cache-"),
        (Layout::Manifest, kind) => matches!(kind, Some(Kind::Table | Kind::Parquet)),
    }
}

fn file_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

async fn recognise(uri: &str, listed: &[(String, ObjectRef)], storage: &Storage) -> Result<Layout> {
    let mut kinds: BTreeMap<Kind, usize> = BTreeMap::new();
    for (name, _) in listed {
        if let Some(kind) = kind_of(name) {
            *kinds.entry(kind).or_default() += 1;
        }
    }
    let shards: Vec<Kind> =
        [Kind::Parquet, Kind::Tar, Kind::Ipc].into_iter().filter(|k| kinds.contains_key(k)).collect();
    match (shards.as_slice(), kinds.contains_key(&Kind::Picture), kinds.get(&Kind::Table)) {
        ([Kind::Parquet], false, _) => Ok(Layout::HfParquet),
        ([Kind::Ipc], false, _) => Ok(Layout::ArrowIpc),
        ([Kind::Tar], false, _) => {
            let tar = listed.iter().find(|(name, _)| kind_of(name) == Some(Kind::Tar));
            match tar {
                Some((name, object)) if is_ilsvrc(name, object, storage).await? => Ok(Layout::IlsvrcTar),
                _ => Ok(Layout::WebDataset),
            }
        }
        ([], true, _) => Ok(Layout::Folder),
        ([], false, Some(1)) => Ok(Layout::Manifest),
        ([], false, Some(_)) => Err(Error::config(format!(
            "{uri}: several tables and no data files; give the URI of the one that lists the files"
        ))),
        ([], false, None) => Err(Error::config(format!(
            "{uri}: {} and none that feedstock reads (parquet, tar, arrow, jpg, png, webp, csv, tsv): \
             the data set is empty",
            counted(listed.len(), "object")
        ))),
        _ => {
            let found: Vec<String> = kinds.iter().map(|(kind, n)| format!("{n} {kind:?}")).collect();
            Err(Error::config(format!(
                "{uri}: several layouts in one place ({}); name the layout, or give a narrower URI",
                found.join(", ")
            )))
        }
    }
}

/// ILSVRC's tars are known by name, or by a first member that is a tar itself.
async fn is_ilsvrc(name: &str, object: &ObjectRef, storage: &Storage) -> Result<bool> {
    let file = file_name(name);
    if file.starts_with("ILSVRC2012_img_train") || file.starts_with("ILSVRC2012_img_val") {
        return Ok(true);
    }
    const TAR_HEADER_BYTES: u64 = 512;
    if object.size < TAR_HEADER_BYTES {
        return Ok(false);
    }
    let header = storage.read(object, 0..TAR_HEADER_BYTES).await?;
    let member = header.split(|b| *b == 0).next().unwrap_or_default();
    Ok(header.get(257..262) == Some(b"ustar") && member.ends_with(b".tar"))
}

fn note_ignored(layout: Layout, beside: &[(String, ObjectRef)], notes: &mut Vec<String>) {
    if layout != Layout::Folder || beside.is_empty() {
        return;
    }
    let mut by_extension: BTreeMap<String, usize> = BTreeMap::new();
    for (name, _) in beside {
        *by_extension.entry(extension(name)).or_default() += 1;
    }
    let found: Vec<String> = by_extension.iter().map(|(ext, n)| format!("{n} .{ext}")).collect();
    notes.push(format!("{} ignored, not pictures: {}", counted(beside.len(), "file"), found.join(", ")));
}

/// The split that an object's name tells: its first folder, or a word of its file name (`beans-train-00000-of-…`).
fn split_of(layout: Layout, name: &str) -> Option<&str> {
    let folder = name.split_once('/').map(|(folder, _)| folder);
    if let Some(split) = folder.filter(|f| is_split(f)) {
        return Some(split);
    }
    if layout == Layout::Folder {
        return None;
    }
    let file = file_name(name);
    file.split(['-', '.', '_']).find(|word| is_split(word))
}

fn is_split(name: &str) -> bool {
    SPLITS.contains(&name.to_ascii_lowercase().as_str())
}

/// Refuses to mix splits.
fn one_split(uri: &str, layout: Layout, names: &[String]) -> Result<()> {
    let mut splits: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        match split_of(layout, name) {
            Some(split) => *splits.entry(split).or_default() += 1,
            None => return Ok(()), // not all of it is splits: then these are classes or plain names
        }
    }
    if splits.len() < 2 {
        return Ok(());
    }
    let found: Vec<String> = splits.iter().map(|(split, n)| format!("{split} ({n} files)")).collect();
    let base = uri.trim_end_matches('/');
    let (first, _) = splits.first_key_value().unwrap_or((&"train", &0));
    let example = match names[0].starts_with(&format!("{first}/")) {
        true => format!("{base}/{first}"),
        false => format!("{base}/{}*", &names[0][..names[0].rfind(first).unwrap_or(0) + first.len()]),
    };
    Err(Error::config(format!("{uri} holds several splits: {}; choose one, as {example}", found.join(", "))))
}

/// The part of `names` that is one split's folder, if all lie in it: classes are then one level deeper.
pub(crate) fn shared_split_folder(names: &[String]) -> Option<&str> {
    let (folder, _) = names.first()?.split_once('/')?;
    let shared = names.iter().all(|n| n.split_once('/').is_some_and(|(f, _)| f == folder));
    (is_split(folder) && shared).then_some(folder)
}

pub(crate) fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_told_by_folder_and_by_file_name() {
        let names = |all: &[&str]| all.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let mixed = names(&["data/train-00000-of-00002.parquet", "data/validation-00000-of-00001.parquet"]);
        let error = one_split("s3://b/x", Layout::HfParquet, &mixed).unwrap_err();
        assert!(error.message().contains("train (1 files), validation (1 files)"), "{error}");
        assert!(error.message().contains("s3://b/x/data/train*"), "{error}");
        let error = one_split("x", Layout::Folder, &names(&["train/a/1.jpg", "val/a/1.jpg"])).unwrap_err();
        assert!(error.message().contains("as x/train"), "{error}");
        one_split("x", Layout::Folder, &names(&["dev/1.jpg", "other/1.jpg", "test/1.jpg"])).unwrap();
        assert_eq!(shared_split_folder(&names(&["train/a/1.jpg", "train/b/1.jpg"])), Some("train"));
        assert_eq!(shared_split_folder(&names(&["a/1.jpg", "a/2.jpg"])), None);
    }

    #[test]
    fn names_are_told_from_the_uri_and_decoded_where_encoded() {
        assert_eq!(name_below("file:///a%20b/", "file:///a%20b/c%20d/%231.jpg"), "c d/#1.jpg");
        assert_eq!(name_below("s3://b/p/", "s3://b/p/c%20d.jpg"), "c%20d.jpg");
        let only = ObjectRef { uri: "s3://b/p/x.tar".into(), size: 1, etag: None };
        assert_eq!(root_of("s3://b/p/x.tar", std::slice::from_ref(&only)), "s3://b/p/");
        assert_eq!(root_of("s3://b/p/", &[only]), "s3://b/p/");
    }
}
