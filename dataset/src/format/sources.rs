//! Which objects a URI means, and how they are laid out.
//!
//! A URI may be a folder or prefix, one object, or a pattern: `shards-{000..099}.tar`, `{train,val}.parquet`,
//! `*.parquet`. Names that start with a dot, and feedstock's own `_feedstock/`, are never data.

use super::common_voice;
use super::kinds::{Kind, Named, counted, extension, file_name, is_data, is_hidden, kind_of};
use super::layout::Layout;
use super::metadata_table;
use super::pattern::{Pattern, pattern_start};
use super::splits::{keep_split, one_split};
use crate::storage::{Listed, ListingFn};
use crate::{CatalogOptions, Error, ErrorKind, ObjectRef, OpenOptions, Result, Storage};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::iter::once;
use std::path::Path;
use std::sync::Arc;

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
    /// A part of the listing is that of an earlier process, which was interrupted: it may be older than the rest.
    pub(crate) is_resumed: bool,
}

impl Sources {
    /// A hash of names, sizes and ETags: equal when nothing was added, removed or rewritten.
    pub(crate) fn fingerprint(&self) -> u64 {
        hash(self.objects.iter().zip(&self.names))
    }
}

/// What the user said beside the URI.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Choice<'a> {
    pub(crate) layout: Option<Layout>,
    /// What a stored catalog was built from; `None` when there is none.
    pub(crate) stored: Option<Stored>,
    pub(crate) split: Option<&'a str>,
    /// Receives the progress of the listing.
    pub(crate) told: Option<&'a CatalogOptions>,
    /// The file from which a long listing is resumed.
    pub(crate) journal: Option<&'a Path>,
}

/// What a stored catalog was built from.
///
/// Its layout stays when files of other kinds appear, and a note states what a machine without a stored catalog would do. Only
/// between a folder and a manifest `metadata.csv` decides at each opening, as it does where nothing is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stored {
    pub(crate) layout: Layout,
    /// The fingerprint of its [`Sources`].
    pub(crate) listing: u64,
}

impl Stored {
    /// The layout that stays, and the table if it is a manifest; `None` if its table changed or is gone.
    fn kept(self, listing: &Listing) -> Option<(Layout, Option<Named>)> {
        if self.layout != Layout::Manifest {
            return Some((self.layout, None));
        }
        let is_stored = |(name, object): &&Named| {
            is_data(Layout::Manifest, name) && hash(once((object, name))) == self.listing
        };
        let table = listing.objects.iter().find(is_stored)?;
        let has_files = || listing.objects.iter().any(|(name, _)| is_data(Layout::Folder, name));
        // The table of a folder is found in it, with its notes.
        match metadata_table::is_top(&table.0) && has_files() {
            true => Some((Layout::Folder, None)),
            false => Some((Layout::Manifest, Some(table.clone()))),
        }
    }
}

/// A hash of names, sizes and ETags.
fn hash<'a>(objects: impl Iterator<Item = (&'a ObjectRef, &'a String)>) -> u64 {
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
pub(super) struct Listing {
    pub(super) uri: String,
    pub(super) root: String,
    /// Sorted by URI.
    pub(super) objects: Vec<Named>,
    /// All objects below the root, where a pattern had them listed.
    pub(super) below: Option<Vec<Named>>,
    /// As [`Sources::is_resumed`].
    pub(super) is_resumed: bool,
}

impl Listing {
    async fn of(uri: &str, choice: Choice<'_>, storage: &Storage) -> Result<Self> {
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
    let mut notes = Vec::new();
    let kept = choice.stored.filter(|_| choice.layout.is_none()).and_then(|stored| stored.kept(&listing));
    let layout = match (choice.layout, &kept) {
        (Some(layout), _) => layout,
        (None, Some((layout, _))) => {
            if is_recognised_by_names(*layout) {
                note_other_layout(recognise(uri, &listing.objects, storage).await, *layout, &mut notes)?;
            }
            *layout
        }
        (None, None) => recognise(uri, &listing.objects, storage).await?,
    };
    if let Some((Layout::Manifest, Some(table))) = kept {
        return Ok(listing.sources(Layout::Manifest, vec![table], notes));
    }
    match layout {
        Layout::CommonVoice => return common_voice::clips::find(listing, choice.split, storage).await,
        Layout::CommonVoiceHf => return common_voice::hf::find(listing, choice.split, storage).await,
        _ => {}
    }
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

/// Whether the data set is a whole folder, which `metadata.csv` would make a manifest.
pub(crate) fn may_have_table(uri: &str, options: &OpenOptions) -> bool {
    options.layout.is_none() && options.split.is_none() && pattern_start(uri).is_none()
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

/// Whether names show that a data set has this layout; tars and Common Voice's tables are read for it.
fn is_recognised_by_names(layout: Layout) -> bool {
    matches!(layout, Layout::Folder | Layout::Manifest | Layout::HfParquet | Layout::ArrowIpc)
}

/// Notes that a machine without the stored catalog would not read the data as that catalog's `layout`.
fn note_other_layout(recognised: Result<Layout>, layout: Layout, notes: &mut Vec<String>) -> Result<()> {
    let other = match recognised {
        Ok(recognised) if recognised == layout => return Ok(()),
        Ok(recognised) => format!("reads them as {recognised}"),
        Err(error) if error.kind() == ErrorKind::BadConfig => format!("fails: {error}"),
        Err(error) => return Err(error),
    };
    notes.push(format!(
        "read as {layout}, as in the stored catalog; a machine without one {other}. Remove the files that appeared, or name the \
         layout on all machines"
    ));
    Ok(())
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
