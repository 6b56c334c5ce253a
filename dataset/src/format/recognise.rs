//! How the objects that a URI means are laid out.

use super::common_voice;
use super::kinds::{Kind, Named, counted, extension, file_name, is_data, kind_of};
use super::listing::{Choice, Listing, Sources, Stored, hash};
use super::metadata_table;
use super::pattern::pattern_start;
use super::splits::{keep_split, one_split};
use crate::Layout;
use crate::{Error, ErrorKind, ObjectRef, Result, Storage};
use std::collections::{BTreeMap, BTreeSet};
use std::iter::once;

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

/// Whether the data set is a whole folder, which `metadata.csv` would make a manifest.
pub(crate) fn may_have_table(uri: &str, layout: Option<Layout>, split: Option<&str>) -> bool {
    layout.is_none() && split.is_none() && pattern_start(uri).is_none()
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
