//! Recognises how the objects that a URI means are laid out.

use super::contract::{Chosen, Seen};
use super::kinds::{Named, counted, extension};
use super::listing::{Choice, Listing, Sources, Stored, hash};
use super::metadata_table;
use super::pattern::pattern_start;
use super::splits::{keep_split, one_split};
use crate::Layout;
use crate::{Error, ErrorKind, Result, Storage};
use std::iter::once;

impl Stored {
    /// Returns the layout that stays, and the table if it is a manifest; `None` if its table changed or is gone.
    fn kept(self, listing: &Listing) -> Option<(Layout, Option<Named>)> {
        if self.layout != Layout::Manifest {
            return Some((self.layout, None));
        }
        let is_stored = |(name, object): &&Named| {
            super::of(Layout::Manifest).is_data(name) && hash(once((object, name))) == self.listing
        };
        let table = listing.objects.iter().find(is_stored)?;
        let has_files = || listing.objects.iter().any(|(name, _)| super::of(Layout::Folder).is_data(name));
        // The table of a folder is found in it, with its notes.
        match metadata_table::is_top(&table.0) && has_files() {
            true => Some((Layout::Folder, None)),
            false => Some((Layout::Manifest, Some(table.clone()))),
        }
    }
}

/// Lists what `uri` means and recognises its layout, or takes the layout that was named.
pub(crate) async fn find_sources(uri: &str, choice: Choice<'_>, storage: &Storage) -> Result<Sources> {
    let listing = Listing::of(uri, choice, storage).await?;
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
            if super::of(*layout).is_recognised_by_names() {
                note_other_layout(recognise(uri, &listing.objects, storage).await, *layout, &mut notes)?;
            }
            *layout
        }
        (None, None) => recognise(uri, &listing.objects, storage).await?,
    };
    if let Some((Layout::Manifest, Some(table))) = kept {
        return Ok(listing.sources(Layout::Manifest, vec![table], notes));
    }
    let format = super::of(layout);
    let mut listing = match format.choose(listing, &choice, storage).await? {
        Chosen::Sources(sources) => return Ok(sources),
        Chosen::ByName(listing) => listing,
    };
    let is_whole_folder = choice.layout.is_none() && choice.split.is_none() && listing.below.is_none();
    if layout == Layout::Folder
        && is_whole_folder
        && let Some(table) =
            metadata_table::find(&listing.objects, &listing.root, storage, &mut notes).await?
    {
        let files =
            listing.objects.iter().filter(|(name, _)| super::of(Layout::Folder).is_data(name)).count();
        notes.push(format!(
            "read by metadata.csv: its rows are the samples ({} in the folder); name the layout folder to read all \
             files, with their folders as classes",
            counted(files, "file")
        ));
        let table = table.clone();
        return Ok(listing.sources(Layout::Manifest, vec![table], notes));
    }
    let (mut data, beside): (Vec<_>, Vec<_>) =
        std::mem::take(&mut listing.objects).into_iter().partition(|(name, _)| format.is_data(name));
    if let Some(split) = choice.split {
        keep_split(uri, format, split, &mut data)?;
    }
    if data.is_empty() {
        return Err(Error::config(format!(
            "{uri}: no data of the layout {layout} ({} there): the data set is empty",
            counted(beside.len(), "other object")
        )));
    }
    notes.extend(format.note(&data, &beside));
    let indexes = match format.has_indexes() {
        true => indexes_listed(&mut listing, beside, &data),
        false => None,
    };
    let sources = Sources { indexes, ..listing.sources(layout, data, notes) };
    one_split(uri, format.splits(), &sources.names)?;
    Ok(sources)
}

/// Returns the listed files that may be indexes of tars; `None` if the tars were named one by one.
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
    let seen = Seen::new(uri, listed);
    // Later ones are more specific.
    for format in super::FORMATS.iter().rev() {
        if let Some(layout) = format.recognise(&seen, storage).await? {
            return Ok(layout);
        }
    }
    Err(Error::config(match (seen.has_shards() || seen.has_files(), seen.tables()) {
        (false, 0) => format!(
            "{uri}: {}, but none that feedstock reads (parquet, tar, arrow, jpg, png, webp, mp3, flac, wav, ogg, \
             opus, m4a, aac, csv, tsv, tar.gz): \
             the data set is empty",
            counted(listed.len(), "object")
        ),
        (false, _) => {
            format!("{uri}: several tables and no data files; give the URI of the one that lists the files")
        }
        (true, _) => {
            let found: Vec<String> = seen.kinds.iter().map(|(kind, n)| format!("{n} {kind:?}")).collect();
            format!(
                "{uri}: several layouts in one place ({}); name the layout, or give a narrower URI",
                found.join(", ")
            )
        }
    }))
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
