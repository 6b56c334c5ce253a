//! Common Voice unpacked: `<locale>/clips/*.mp3` next to `<locale>/train.tsv`, `dev.tsv` …
//!
//! The URI names the release's folder, a locale's, a TSV (`…/de/train.tsv`) or several by a pattern (`…/{de,fr}/train.tsv`,
//! `…/*/train.tsv`). In a folder with several TSVs, a split is chosen; in a release, that split of all its locales. TSVs,
//! durations and audio clips are the catalog's objects, so a changed TSV rebuilds it.

use super::super::cataloguing::{CATALOG_READS, Cataloguing};
use super::super::contract::{Chosen, Format, Seen};
use super::super::kinds::{Named, counted, extension, is_audio};
use super::super::listing::{Choice, Listing, Sources, named, split_root};
use super::super::tars;
use super::lists::{DURATION_LISTS, List, above_clips, choose, locale_of, note_several, read, split_folder};
use super::recognise::recognise;
use super::rows::{Part, Place, RowOrder, draft, find_clips};
use super::tsv::{self, Durations};
use crate::catalog::{Draft, Objects};
use crate::{Error, ErrorKind, Layout, ObjectRef, Result, Storage};
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{HashMap, HashSet};

/// Returns the chosen TSVs, their durations and the audio clips in the folders next to them.
async fn find(mut listing: Listing, split: Option<&str>, storage: &Storage) -> Result<Sources> {
    let mut objects = std::mem::take(&mut listing.objects);
    let mut notes = Vec::new();
    let lists: Vec<List> =
        objects.iter().enumerate().filter_map(|(i, (name, _))| List::of(name, i)).collect();
    let by_name = objects.iter().all(|(name, _)| extension(name) == "tsv");
    let chosen = if by_name {
        let is_folder = split_root(&listing.uri).1.is_empty();
        let chosen = match split {
            None if !is_folder => lists, // the URI chose them
            _ => choose(&listing.uri, lists, split)?,
        };
        objects.extend(beside(&chosen, &objects, &mut listing, storage).await?);
        chosen
    } else {
        let folders: HashSet<&str> = objects
            .iter()
            .filter(|(name, _)| is_audio(&extension(name)))
            .filter_map(|(name, _)| above_clips(split_folder(name).0))
            .collect();
        let (with_clips, without): (Vec<List>, Vec<List>) =
            lists.into_iter().partition(|list| folders.contains(list.folder.as_str()));
        if let Some(first) = without.first() {
            let what = counted(without.len(), "TSV");
            notes.push(format!("{what} ignored, without a folder clips/: {} …", first.name()));
        }
        choose(&listing.uri, with_clips, split)?
    };
    if chosen.is_empty() {
        return Err(Error::config(format!(
            "{}: no TSV of audio clips (train.tsv, validated.tsv …) with a folder clips/: the data set is empty",
            listing.uri
        )));
    }
    note_several(&chosen, &mut notes);
    let folders: HashSet<String> = chosen.iter().map(|list| list.folder.clone()).collect();
    let belongs = |name: &str| {
        let (folder, file) = split_folder(name);
        match above_clips(folder) {
            Some(above) if is_audio(&extension(file)) => folders.contains(above),
            _ => DURATION_LISTS.contains(&file) && folders.contains(folder),
        }
    };
    let tables: HashSet<String> = chosen.iter().map(List::name).collect();
    objects.retain(|(name, _)| belongs(name) || tables.contains(name));
    objects.sort_by(|a, b| a.0.cmp(&b.0));
    objects.dedup_by(|a, b| a.0 == b.0); // a pattern's listing has its TSVs again
    Ok(listing.sources(Layout::CommonVoice, objects, notes))
}

/// Returns the audio clips and durations next to TSVs that were named by their URIs.
async fn beside(
    lists: &[List],
    objects: &[Named],
    listing: &mut Listing,
    storage: &Storage,
) -> Result<Vec<Named>> {
    if let Some(below) = listing.below.take() {
        return Ok(below);
    }
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    for list in lists.iter().filter(|list| seen.insert(list.folder.clone())) {
        let uri = &objects[list.index].1.uri;
        let folder = &uri[..=uri.rfind('/').unwrap_or(0)];
        let folder = if folder.ends_with('/') { folder } else { "" };
        match storage.list(&format!("{folder}clips/")).await {
            Ok(clips) => found.extend(clips),
            Err(error) if error.kind() == ErrorKind::Gone => {} // reported as missing audio clips
            Err(error) => return Err(error),
        }
        for name in DURATION_LISTS {
            match storage.head(&format!("{folder}{name}")).await {
                Ok(object) => found.push(object),
                Err(error) if error.kind() == ErrorKind::Gone => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(named(&listing.root, found))
}

/// Parses a folder's durations; `name` is the object's name in errors and notes.
pub(super) fn parse_durations(name: &str, bytes: &[u8], notes: &mut Vec<String>) -> Result<Durations> {
    let (durations, others) = tsv::durations(name, bytes)?;
    if others > 0 {
        notes.push(format!("{name}: {} without a number of milliseconds left out", counted(others, "line")));
    }
    Ok(durations)
}

/// Common Voice, unpacked.
pub(in super::super) struct Clips;

#[async_trait]
impl Format for Clips {
    fn layout(&self) -> Layout {
        Layout::CommonVoice
    }

    fn is_data(&self, _: &str) -> bool {
        true // it chooses its objects
    }

    async fn recognise(&self, seen: &Seen<'_>, storage: &Storage) -> Result<Option<Layout>> {
        recognise(seen.uri, seen.listed, storage).await
    }

    async fn choose(&self, listing: Listing, choice: &Choice<'_>, storage: &Storage) -> Result<Chosen> {
        Ok(Chosen::Sources(find(listing, choice.split, storage).await?))
    }

    async fn catalog(&self, sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
        catalog(sources, with).await
    }
}

/// Returns the list of durations of each folder, as an index into `names`.
fn duration_lists(names: &[String]) -> HashMap<String, usize> {
    let mut lists: HashMap<String, usize> = HashMap::new();
    for file in DURATION_LISTS.iter().rev() {
        for (i, name) in names.iter().enumerate() {
            if split_folder(name).1 == *file {
                lists.insert(split_folder(name).0.to_owned(), i); // the better form comes last
            }
        }
    }
    lists
}

async fn catalog(sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    let mut notes = sources.notes.clone();
    let lists: Vec<List> =
        sources.names.iter().enumerate().filter_map(|(i, name)| List::of(name, i)).collect();
    let mut objects: Vec<ObjectRef> = lists.iter().map(|list| sources.objects[list.index].clone()).collect();
    let durations = duration_lists(&sources.names);
    let mut used: Vec<usize> = durations.values().copied().collect();
    used.sort_unstable();
    objects.extend(used.iter().map(|&i| sources.objects[i].clone()));
    let clips: HashMap<&str, usize> =
        sources.names.iter().enumerate().map(|(i, n)| (n.as_str(), i)).collect();
    if u32::try_from(sources.objects.len()).is_err() {
        return Err(Error::config(format!("{}: more than 2^32 audio clips", sources.uri)));
    }

    let total = Some(lists.len() as u64);
    let read_list = |list: &List| {
        let (name, object) = (list.name(), sources.objects[list.index].clone());
        let table =
            durations.get(&list.folder).map(|&i| (sources.names[i].clone(), sources.objects[i].clone()));
        async move { read_both(name, object, table, with).await }
    };
    let mut tables = stream::iter(lists.iter().map(read_list)).buffered(CATALOG_READS.min(4));
    let mut parts = Vec::with_capacity(lists.len());
    let mut object_of: HashMap<usize, u32> = HashMap::new();
    while let Some((mut table, durations, mut told)) = tables.try_next().await? {
        notes.append(&mut told);
        let list = &lists[parts.len()];
        let place = |path: &str| {
            let index = *clips.get(format!("{}clips/{path}", list.folder).as_str())?;
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the number of objects was checked to be u32"
            )]
            Some(Place { object: index as u32, offset: 0, bytes: sources.objects[index].size })
        };
        let mut places = find_clips(&mut table, place);
        for place in places.iter_mut().flatten() {
            let listed = place.object as usize;
            place.object = *object_of.entry(listed).or_insert_with(|| {
                objects.push(sources.objects[listed].clone());
                #[expect(clippy::cast_possible_truncation, reason = "no more objects than were listed")]
                let index = (objects.len() - 1) as u32;
                index
            });
        }
        parts.push(Part {
            name: list.name(),
            split: list.split.clone(),
            locale: locale_of(&format!("{}{}", sources.root, list.folder)),
            table,
            places,
            durations,
            #[expect(
                clippy::cast_possible_truncation,
                reason = "the number of objects was checked to be u32"
            )]
            shard: parts.len() as u32,
        });
        with.options.report("reading TSVs", parts.len() as u64, total);
    }
    drop(tables);
    draft(parts, Objects::new(&objects), RowOrder::Listed, notes, with.block_bytes)
}

/// Reads a TSV and its folder's durations, and parses them off the I/O threads; also returns notes.
async fn read_both(
    name: String,
    object: ObjectRef,
    durations: Option<(String, ObjectRef)>,
    with: &Cataloguing<'_>,
) -> Result<(tsv::Table, Option<Durations>, Vec<String>)> {
    let bytes = read(&object, 0..object.size, &name, with.storage).await?;
    let durations = match durations {
        Some((name, object)) => {
            let bytes = read(&object, 0..object.size, &name, with.storage).await?;
            Some((name, bytes))
        }
        None => None,
    };
    tars::blocking(with.storage.io(), move || {
        let mut notes = Vec::new();
        let durations =
            durations.map(|(name, bytes)| parse_durations(&name, &bytes, &mut notes)).transpose()?;
        Ok((tsv::parse(&name, &bytes)?, durations, notes))
    })
    .await
}
