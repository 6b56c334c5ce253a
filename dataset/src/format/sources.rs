//! Which objects a URI means, and how they are laid out.
//!
//! A URI may be a folder or prefix, one object, or a pattern: `shards-{000..099}.tar`, `{train,val}.parquet`,
//! `*.parquet`. Names that start with a dot, and feedstock's own `_feedstock/`, are never data.

use super::common_voice;
use super::layout::Layout;
use super::metadata_table;
use super::pattern::{Pattern, pattern_start};
use crate::storage::ListingFn;
use crate::{CatalogOptions, Error, ErrorKind, ObjectRef, Result, Storage};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::path::Path;
use std::sync::Arc;

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
    /// Listed files that may be indexes of the tars; `None` if the tars were named one by one, so nothing was listed.
    pub(crate) indexes: Option<Vec<Named>>,
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
    Audio,
    Table,
    /// A compressed tar.
    Archive,
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

/// Is this the extension of audio that feedstock reads?
pub(crate) fn is_audio(extension: &str) -> bool {
    matches!(extension, "mp3" | "flac" | "wav" | "ogg" | "opus" | "m4a" | "aac")
}

/// Is this the name of a table that tells of other objects: of a TSV, of a manifest?
pub(crate) fn is_table(name: &str) -> bool {
    kind_of(name) == Some(Kind::Table) || file_name(name) == "times.txt"
}

fn kind_of(name: &str) -> Option<Kind> {
    let lower = file_name(name).to_ascii_lowercase();
    if lower.ends_with(".tar.gz") || lower.ends_with(".tgz") {
        return Some(Kind::Archive);
    }
    match extension(name).as_str() {
        "parquet" => Some(Kind::Parquet),
        "tar" => Some(Kind::Tar),
        "arrow" | "ipc" | "feather" => Some(Kind::Ipc),
        "csv" | "tsv" => Some(Kind::Table),
        ext if is_picture(ext) => Some(Kind::Picture),
        ext if is_audio(ext) => Some(Kind::Audio),
        _ => None,
    }
}

/// What the user said beside the URI.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Choice<'a> {
    pub(crate) layout: Option<Layout>,
    pub(crate) split: Option<&'a str>,
    /// Receives the progress of the listing.
    pub(crate) told: Option<&'a CatalogOptions>,
    /// The file from which a long listing is resumed.
    pub(crate) journal: Option<&'a Path>,
}

impl Choice<'_> {
    fn listing(&self) -> Option<ListingFn> {
        let told = self.told.filter(|told| told.progress.is_some())?.clone();
        Some(Arc::new(move |found| told.report("listing", found, None)))
    }
}

/// The objects that a URI means, with their names.
pub(super) struct Listing {
    pub(super) uri: String,
    pub(super) root: String,
    /// Sorted by URI.
    pub(super) objects: Vec<Named>,
    /// All objects below the root, where a pattern had them listed.
    pub(super) below: Option<Vec<Named>>,
}

/// An object and its name below the root.
pub(super) type Named = (String, ObjectRef);

impl Listing {
    async fn of(uri: &str, choice: Choice<'_>, storage: &Storage) -> Result<Self> {
        let (root, objects, below) = match Pattern::parse(uri)? {
            Some(pattern) => {
                let (objects, below) = pattern.objects(storage).await?;
                (pattern.root().to_owned(), objects, below)
            }
            None => {
                let listed = storage
                    .list_telling(uri, usize::MAX, choice.listing(), choice.journal.map(Path::to_owned))
                    .await?;
                (root_of(uri, &listed), listed, None)
            }
        };
        let objects = named(&root, objects);
        let below = below.map(|below| named(&root, below));
        Ok(Self { uri: uri.to_owned(), root, objects, below })
    }

    pub(super) fn sources(self, layout: Layout, objects: Vec<Named>, notes: Vec<String>) -> Sources {
        let (names, objects) = objects.into_iter().unzip();
        Sources { uri: self.uri, layout, root: self.root, objects, names, notes, indexes: None }
    }
}

/// Objects with their names below `root`; hidden ones are left out.
pub(super) fn named(root: &str, objects: Vec<ObjectRef>) -> Vec<Named> {
    let named = objects.into_iter().map(|object| (name_below(root, &object.uri), object));
    named.filter(|(name, _)| !is_hidden(name)).collect()
}

/// Lists what `uri` means and recognises it, or takes it as the layout that was named.
pub(crate) async fn find_sources(uri: &str, choice: Choice<'_>, storage: &Storage) -> Result<Sources> {
    let mut listing = Listing::of(uri, choice, storage).await?;
    if listing.objects.is_empty() {
        return Err(Error::new(
            ErrorKind::Gone,
            format!(
                "{uri}: nothing is there, neither an object of that name nor one below it; check the path"
            ),
        ));
    }
    let layout = match choice.layout {
        Some(layout) => layout,
        None => recognise(uri, &listing.objects, storage).await?,
    };
    match layout {
        Layout::CommonVoice => return common_voice::clips::find(listing, choice.split, storage).await,
        Layout::CommonVoiceHf => return common_voice::hf::find(listing, choice.split, storage).await,
        _ => {}
    }
    let mut notes = Vec::new();
    let is_whole_folder = choice.layout.is_none() && choice.split.is_none() && listing.below.is_none();
    if layout == Layout::Folder
        && is_whole_folder
        && let Some(table) =
            metadata_table::find(&listing.objects, &listing.root, storage, &mut notes).await?
    {
        let files = listing.objects.iter().filter(|(name, _)| is_data(Layout::Folder, name)).count();
        notes.push(format!(
            "read by metadata.csv: its rows are the samples, of {} in the folder; name the layout folder to read all \
             files, with their folders as classes",
            counted(files, "file")
        ));
        let table = table.clone();
        return Ok(listing.sources(Layout::Manifest, vec![table], notes));
    }
    let (mut data, beside): (Vec<_>, Vec<_>) =
        std::mem::take(&mut listing.objects).into_iter().partition(|(name, _)| is_data(layout, name));
    note_ignored(layout, &beside, &mut notes);
    if let Some(split) = choice.split {
        keep_split(uri, layout, split, &mut data)?;
    }
    if data.is_empty() {
        return Err(Error::config(format!(
            "{uri}: no data of the layout {layout} ({} there): the data set is empty",
            counted(beside.len(), "other object")
        )));
    }
    let indexes = indexes_listed(&mut listing, beside, &data).filter(|_| layout == Layout::WebDataset);
    let mut sources = Sources { indexes, ..listing.sources(layout, data, notes) };
    if matches!(layout, Layout::HfParquet | Layout::ArrowIpc) {
        note_partitions(&sources.names, &mut sources.notes);
    }
    if !matches!(layout, Layout::IlsvrcTar | Layout::Manifest | Layout::CommonVoiceTar) {
        one_split(uri, layout, &sources.names)?;
    }
    Ok(sources)
}

/// The listed files that may be indexes of tars; `None` if the tars were named one by one.
fn indexes_listed(listing: &mut Listing, beside: Vec<Named>, data: &[Named]) -> Option<Vec<Named>> {
    let is_index = |(name, _): &Named| extension(name) == "idx";
    let listed = match listing.below.take() {
        Some(below) => below,
        None if pattern_start(&listing.uri).is_some() || is_the_object(&listing.uri, data) => return None,
        None => beside,
    };
    Some(listed.into_iter().filter(is_index).collect())
}

fn is_the_object(uri: &str, data: &[Named]) -> bool {
    matches!(data, [(_, only)] if only.uri.trim_end_matches('/') == uri.trim_end_matches('/'))
}

/// Keeps the objects of one split.
fn keep_split(uri: &str, layout: Layout, split: &str, data: &mut Vec<Named>) -> Result<()> {
    match layout {
        Layout::CommonVoiceTar => return Ok(()), // its splits are inside
        Layout::Manifest | Layout::IlsvrcTar => {
            return Err(Error::config(format!(
                "{uri}: the layout {layout} has no splits; leave the split {split} out, or filter"
            )));
        }
        _ => {}
    }
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for (name, _) in data.iter() {
        *found.entry(split_of(layout, name).unwrap_or("none").to_owned()).or_default() += 1;
    }
    data.retain(|(name, _)| split_of(layout, name).is_some_and(|s| s.eq_ignore_ascii_case(split)));
    if data.is_empty() {
        let found: Vec<String> = found.iter().map(|(split, n)| format!("{split} ({n} files)")).collect();
        return Err(Error::config(format!(
            "{uri}: no files of the split {split}; its files are of: {}",
            found.join(", ")
        )));
    }
    Ok(())
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

/// Returns a URI's folder with its `/`, and the rest of the URI: catalogs are stored beside the data by them.
pub(crate) fn split_root(uri: &str) -> (&str, &str) {
    let pattern = pattern_start(uri).unwrap_or(uri.len());
    let is_file = pattern < uri.len() || kind_of(uri).is_some();
    match uri[..pattern].rfind('/').filter(|_| is_file) {
        Some(at) => (&uri[..=at], &uri[at + 1..]),
        None if is_file => ("", uri),
        None => (uri, ""),
    }
}

/// The URI without a query, which only http(s) URLs have: in the name of a file or a key, `?` is a character like any other.
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
        (Layout::Folder, kind) => matches!(kind, Some(Kind::Picture | Kind::Audio)),
        (Layout::WebDataset | Layout::IlsvrcTar, kind) => kind == Some(Kind::Tar),
        // `datasets` also leaves indices and transform results behind, as cache-*.arrow
        (Layout::ArrowIpc, kind) => kind == Some(Kind::Ipc) && !file_name(name).starts_with("cache-"),
        (Layout::Manifest, kind) => matches!(kind, Some(Kind::Table | Kind::Parquet)),
        (Layout::CommonVoiceTar, kind) => matches!(kind, Some(Kind::Tar | Kind::Archive)),
        (Layout::CommonVoice | Layout::CommonVoiceHf, _) => true, // they look for themselves
    }
}

fn file_name(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

async fn recognise(uri: &str, listed: &[Named], storage: &Storage) -> Result<Layout> {
    if let Some(layout) = common_voice::recognise(uri, listed, storage).await? {
        return Ok(layout);
    }
    let mut kinds: BTreeMap<Kind, usize> = BTreeMap::new();
    for (name, _) in listed {
        if let Some(kind) = kind_of(name) {
            *kinds.entry(kind).or_default() += 1;
        }
    }
    let shards: Vec<Kind> = [Kind::Parquet, Kind::Tar, Kind::Ipc, Kind::Archive]
        .into_iter()
        .filter(|k| kinds.contains_key(k))
        .collect();
    let files = kinds.contains_key(&Kind::Picture) || kinds.contains_key(&Kind::Audio);
    match (shards.as_slice(), files, kinds.get(&Kind::Table)) {
        ([Kind::Archive], false, _) => Ok(Layout::CommonVoiceTar),
        ([Kind::Parquet], false, _) => Ok(Layout::HfParquet),
        ([Kind::Ipc], false, _) => Ok(Layout::ArrowIpc),
        ([Kind::Tar], false, _) => {
            let tar = listed.iter().find(|(name, _)| kind_of(name) == Some(Kind::Tar));
            match tar {
                Some((name, object)) => layout_of_tar(name, object, storage).await,
                None => Ok(Layout::WebDataset),
            }
        }
        ([], true, _) => Ok(Layout::Folder),
        ([], false, Some(1)) => Ok(Layout::Manifest),
        ([], false, Some(_)) => Err(Error::config(format!(
            "{uri}: several tables and no data files; give the URI of the one that lists the files"
        ))),
        ([], false, None) => Err(Error::config(format!(
            "{uri}: {} and none that feedstock reads (parquet, tar, arrow, jpg, png, webp, mp3, flac, wav, ogg, \
             opus, m4a, aac, csv, tsv, tar.gz): \
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

/// ILSVRC's tars are known by name, or by a first member that is a tar itself; Common Voice's by name, or by a first
/// member that is a TSV or lies in `clips/`.
async fn layout_of_tar(name: &str, object: &ObjectRef, storage: &Storage) -> Result<Layout> {
    let file = file_name(name);
    if file.starts_with("ILSVRC2012_img_train") || file.starts_with("ILSVRC2012_img_val") {
        return Ok(Layout::IlsvrcTar);
    }
    const TAR_HEADER_BYTES: u64 = 512;
    let header = storage.read(object, 0..object.size.min(TAR_HEADER_BYTES)).await?;
    let is_tar = header.get(257..262) == Some(b"ustar");
    let member = header.split(|b| *b == 0).next().filter(|_| is_tar);
    let member = member.and_then(|m| std::str::from_utf8(m).ok());
    Ok(match member {
        Some(member) if member.ends_with(".tar") => Layout::IlsvrcTar,
        _ if common_voice::is_archive(name, member) => Layout::CommonVoiceTar,
        _ => Layout::WebDataset,
    })
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
    notes.push(format!(
        "{} ignored, neither pictures nor audio: {}",
        counted(beside.len(), "file"),
        found.join(", ")
    ));
}

/// Notes the folders that are named as Hive names those of partitions, `label=3/`: their values are not columns.
fn note_partitions(names: &[String], notes: &mut Vec<String>) {
    let folders = names.iter().filter_map(|name| name.rsplit_once('/')).flat_map(|(path, _)| path.split('/'));
    let keys = folders.filter_map(|folder| folder.split_once('=')).map(|(key, _)| key);
    let keys: BTreeSet<&str> = keys.filter(|key| !key.is_empty()).collect();
    let Some(first) = keys.first() else { return };
    notes.push(format!(
        "the values of {} in the names of folders ({first}=…/) are not columns; write them into the files, or open one \
         of the folders",
        keys.iter().copied().collect::<Vec<_>>().join(", ")
    ));
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
    Err(Error::config(format!(
        "{uri} holds several splits: {}; choose one by its split, or as {example}",
        found.join(", ")
    )))
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
