//! Common Voice in the layout of Hugging Face's loading scripts.
//!
//! `audio/<locale>/<split>/<locale>_<split>_<i>.tar` contain the audio clips, each below one folder.
//! `transcript/<locale>/<split>.tsv` contain the rows, joined by file name. Samples are in the order of their audio clips
//! in the tars. `n_shards.json`, if it exists, states the number of tars.

use super::super::cataloguing::Cataloguing;
use super::super::contract::{Chosen, Format};
use super::super::kinds::{Named, counted, extension};
use super::super::listing::{Choice, Listing, Sources, named};
use super::super::tars;
use super::lists::{List, choose, note_several, read, split_folder};
use super::rows::{Part, Place, RowOrder, draft, find_clips};

use super::tsv;
use crate::catalog::{Draft, Objects};
use crate::{Error, ErrorKind, Layout, ObjectRef, Result, Storage};
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::{BTreeMap, HashMap, HashSet};

const SHARD_COUNTS: &str = "n_shards.json";
/// Limit on the transcripts without tars that a note names: Common Voice has some 130 languages, and a note is a line or
/// two.
const NAMED_LISTS: usize = 8;

/// One locale's split.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Group {
    /// The part of the name before `audio/` and `transcript/`.
    base: String,
    locale: String,
    split: String,
}

impl Group {
    pub(super) fn list_name(&self) -> String {
        format!("{}transcript/{}/{}.tsv", self.base, self.locale, self.split)
    }

    fn tar_folder(&self) -> String {
        format!("{}audio/{}/{}/", self.base, self.locale, self.split)
    }
}

/// Returns the group of a tar by its name.
pub(super) fn tar_of(name: &str) -> Option<Group> {
    let mut parts = name.rsplit('/');
    let (file, split, locale, audio) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let base = name.len() - file.len() - split.len() - locale.len() - audio.len() - 3;
    (audio == "audio" && extension(file) == "tar").then(|| Group {
        base: name[..base].to_owned(),
        locale: locale.to_owned(),
        split: split.to_owned(),
    })
}

/// Returns the group of a transcript by its name.
pub(super) fn list_of(name: &str) -> Option<Group> {
    let mut parts = name.rsplit('/');
    let (file, locale, transcript) = (parts.next()?, parts.next()?, parts.next()?);
    let base = name.len() - file.len() - locale.len() - transcript.len() - 2;
    let split = file.strip_suffix(".tsv")?;
    (transcript == "transcript").then(|| Group {
        base: name[..base].to_owned(),
        locale: locale.to_owned(),
        split: split.to_owned(),
    })
}

/// Returns the tars and transcripts of the chosen split.
async fn find(mut listing: Listing, split: Option<&str>, storage: &Storage) -> Result<Sources> {
    let mut objects = std::mem::take(&mut listing.objects);
    let by_name = objects.iter().all(|(name, _)| extension(name) == "tsv");
    if by_name {
        objects = around(objects, &mut listing, storage).await?;
    }
    let split = split.map(|s| s.strip_suffix(".tsv").unwrap_or(s));
    let groups: HashSet<Group> = objects.iter().filter_map(|(name, _)| tar_of(name)).collect();
    let mut lists = Vec::new();
    for group in &groups {
        let name = group.list_name();
        match objects.iter().position(|(n, _)| *n == name) {
            Some(index) => lists.extend(List::of(&name, index)),
            None if split.is_none_or(|s| s == group.split) => {
                return Err(Error::config(format!(
                    "{}: {} has no {name}; copy it there",
                    listing.uri,
                    group.tar_folder()
                )));
            }
            None => {}
        }
    }
    lists.sort_by_key(|list| list.index);
    let mut notes = Vec::new();
    note_without_tars(&listing.uri, &objects, &groups, split, &mut notes)?;
    let chosen = if by_name && split.is_none() { lists } else { choose(&listing.uri, lists, split)? };
    if chosen.is_empty() {
        return Err(Error::config(format!(
            "{}: no audio/<locale>/<split>/*.tar with its transcript/<locale>/<split>.tsv: the data set is empty",
            listing.uri
        )));
    }
    note_several(&chosen, &mut notes);
    let chosen: HashSet<Group> = chosen.iter().filter_map(|list| list_of(&list.name())).collect();
    let is_chosen = |name: &str| match tar_of(name).or_else(|| list_of(name)) {
        Some(group) => chosen.contains(&group),
        None => split_folder(name).1 == SHARD_COUNTS,
    };
    objects.retain(|(name, _)| is_chosen(name));
    Ok(listing.sources(Layout::CommonVoiceHf, objects, notes))
}

/// Notes the chosen split's transcripts that have no tars. A copy of every transcript and of some languages' audio clips is
/// usual, but the user must learn which languages are missing. Fails if no transcript has tars.
fn note_without_tars(
    uri: &str,
    objects: &[Named],
    groups: &HashSet<Group>,
    split: Option<&str>,
    notes: &mut Vec<String>,
) -> Result<()> {
    let wanted = |group: &Group| split.is_none_or(|s| s == group.split);
    let without: Vec<Group> = objects
        .iter()
        .filter(|(name, _)| List::of(name, 0).is_some())
        .filter_map(|(name, _)| list_of(name))
        .filter(|group| wanted(group) && !groups.contains(group))
        .collect();
    let Some(first) = without.first() else { return Ok(()) };
    if !groups.iter().any(wanted) {
        return Err(Error::config(format!(
            "{uri}: {} has no tars in {}; copy them there",
            first.list_name(),
            first.tar_folder()
        )));
    }
    let names: Vec<String> = without.iter().take(NAMED_LISTS).map(Group::list_name).collect();
    let more = if without.len() > names.len() { " …" } else { "" };
    notes.push(format!(
        "{} left out, without tars below {}audio/: {}{more}",
        counted(without.len(), "transcript"),
        first.base,
        names.join(", ")
    ));
    Ok(())
}

/// Returns the tars of transcripts that were named by their URIs. All names are then relative to the folder above both.
async fn around(lists: Vec<Named>, listing: &mut Listing, storage: &Storage) -> Result<Vec<Named>> {
    let mut found: Vec<ObjectRef> = Vec::new();
    let mut base: Option<String> = None;
    for (_, object) in lists {
        let Some(group) = list_of(&object.uri) else {
            return Err(Error::config(format!("{}: not …/transcript/<locale>/<split>.tsv", object.uri)));
        };
        if base.get_or_insert_with(|| group.base.clone()) != &group.base {
            let why = "transcripts below several folders; open them one by one and mix them";
            return Err(Error::config(format!("{}: {why}", listing.uri)));
        }
        let tars = storage.list(&group.tar_folder()).await?;
        if !tars.iter().any(|tar| tar_of(&tar.uri).is_some()) {
            return Err(Error::config(format!("{}: no tars in {}", object.uri, group.tar_folder())));
        }
        found.extend(tars);
        found.push(object);
    }
    listing.root = base.unwrap_or_default();
    match storage.head(&format!("{}{SHARD_COUNTS}", listing.root)).await {
        Ok(counts) => found.push(counts),
        Err(error) if error.kind() == ErrorKind::Gone => {}
        Err(error) => return Err(error),
    }
    let mut found = named(&listing.root, found);
    found.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(found)
}

/// A tar's audio clips: file name, offset, bytes.
type Clips = Vec<(String, u64, u64)>;

/// Common Voice in the layout of Hugging Face's loading scripts.
pub(in super::super) struct Hf;

#[async_trait]
impl Format for Hf {
    fn layout(&self) -> Layout {
        Layout::CommonVoiceHf
    }

    fn is_data(&self, _: &str) -> bool {
        true // it chooses its objects
    }

    async fn choose(&self, listing: Listing, choice: &Choice<'_>, storage: &Storage) -> Result<Chosen> {
        Ok(Chosen::Sources(find(listing, choice.split, storage).await?))
    }

    async fn catalog(&self, sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
        catalog(sources, with).await
    }
}

async fn catalog(sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    let mut notes = sources.notes.clone();
    let is_tar = |i: &usize| tar_of(&sources.names[*i]).is_some();
    let (tars_at, others): (Vec<usize>, Vec<usize>) = (0..sources.names.len()).partition(is_tar);
    let objects: Vec<ObjectRef> =
        tars_at.iter().chain(&others).map(|&i| sources.objects[i].clone()).collect();
    let total = Some(tars_at.len() as u64);
    let mut walks = stream::iter(objects[..tars_at.len()].to_vec())
        .map(|object| async move {
            let members = tars::members_once(&object, 0..object.size, with).await?;
            let clips = members.into_iter().map(|m| (tsv::file_name(&m.name).to_owned(), m.offset, m.bytes));
            Ok::<Clips, Error>(clips.collect())
        })
        .buffered(with.reads_at_once());
    let mut clips: Vec<Clips> = Vec::with_capacity(tars_at.len());
    while let Some(found) = walks.try_next().await? {
        clips.push(found);
        with.options.report("reading tar headers", clips.len() as u64, total);
    }
    drop(walks);

    let mut groups: BTreeMap<usize, (Group, Vec<usize>)> = BTreeMap::new(); // by the first tar
    let mut first_of: HashMap<Group, usize> = HashMap::new();
    for (tar, &i) in tars_at.iter().enumerate() {
        let Some(group) = tar_of(&sources.names[i]) else { continue };
        let first = *first_of.entry(group.clone()).or_insert(tar);
        groups.entry(first).or_insert_with(|| (group, Vec::new())).1.push(tar);
    }
    check_counts(&groups, &sources, with.storage, &mut notes).await?;
    let mut parts = Vec::with_capacity(groups.len());
    for (group, tars) in groups.into_values() {
        let name = group.list_name();
        let list =
            others.iter().map(|&i| (&sources.names[i], &sources.objects[i])).find(|(n, _)| **n == name);
        let Some((_, object)) = list else {
            return Err(Error::new(ErrorKind::Bug, format!("{name} was chosen and is not listed")));
        };
        let bytes = read(object, 0..object.size, &name, with.storage).await?;
        let told = name.clone();
        let mut table = tars::blocking(with.storage.io(), move || tsv::parse(&told, &bytes)).await?;
        let mut known: HashMap<&str, Place> = HashMap::new();
        for &tar in &tars {
            for (clip, offset, bytes) in &clips[tar] {
                known.entry(clip).or_insert(Place { object: index(tar)?, offset: *offset, bytes: *bytes });
            }
        }
        let places = find_clips(&mut table, |path| known.get(path).copied());
        let named: HashSet<&str> = table.paths.iter().map(|p| tsv::file_name(p)).collect();
        let unnamed = known.keys().filter(|clip| !named.contains(*clip)).count();
        if unnamed > 0 {
            notes.push(format!(
                "{}: {} left out, without a row in {name}",
                group.tar_folder(),
                counted(unnamed, "audio clip")
            ));
        }
        let shard = index(tars[0])?;
        let (split, locale) = (group.split, Some(group.locale));
        parts.push(Part { name, split, locale, table, places, durations: None, shard });
    }
    draft(parts, Objects::new(&objects), RowOrder::Stored, notes, with.block_bytes)
}

fn index(tar: usize) -> Result<u32> {
    u32::try_from(tar).map_err(|_| Error::config("more than 2^32 tars"))
}

/// Notes groups whose number of tars differs from that in `n_shards.json`.
async fn check_counts(
    groups: &BTreeMap<usize, (Group, Vec<usize>)>,
    sources: &Sources,
    storage: &Storage,
    notes: &mut Vec<String>,
) -> Result<()> {
    for (name, object) in sources.names.iter().zip(&sources.objects) {
        if split_folder(name).1 != SHARD_COUNTS {
            continue;
        }
        let json = read(object, 0..object.size, name, storage).await?;
        let Ok(counts) = serde_json::from_slice::<serde_json::Value>(&json) else {
            notes.push(format!("{name}: not JSON, ignored"));
            continue;
        };
        for (group, tars) in groups.values().filter(|(g, _)| g.base == split_folder(name).0) {
            let said = counts.get(&group.locale).and_then(|splits| splits.get(&group.split)?.as_u64());
            if said.is_some_and(|said| said != tars.len() as u64) {
                notes.push(format!(
                    "{name} states {} tars of {}, but {} are there",
                    said.unwrap_or_default(),
                    group.tar_folder(),
                    tars.len()
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tars_and_transcripts_meet_by_their_names() {
        let group = tar_of("x/audio/zh-CN/train/zh-CN_train_0.tar").unwrap();
        assert_eq!(
            (group.base.as_str(), group.locale.as_str(), group.split.as_str()),
            ("x/", "zh-CN", "train")
        );
        assert_eq!(group.list_name(), "x/transcript/zh-CN/train.tsv");
        assert_eq!(list_of("x/transcript/zh-CN/train.tsv").unwrap(), group);
        assert_eq!(group.tar_folder(), "x/audio/zh-CN/train/");
        assert_eq!(tar_of("audio/de/test/de_test_0.tar").unwrap().base, "");
        assert!(tar_of("audio/de/x.tar").is_none() && list_of("de/train.tsv").is_none());
    }
}
