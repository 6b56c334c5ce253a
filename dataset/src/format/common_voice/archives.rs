//! Mozilla's archive of Common Voice: `cv-corpus-…-de.tar.gz`, or the same tar uncompressed.
//!
//! It contains `<release>/<locale>/clips/*.mp3` and the TSVs; before release 5, `clips/*.mp3` alone. A compressed archive
//! cannot be read at places, so a seekable copy is made first ([`super::super::archive`] states the cost). A tar is read in
//! place. Finding its members costs one pass over it in object storage (headers are between the audio clips), and a seek
//! per file on a local disk (50,000 files in about a second). Samples are in the order of their audio clips in the tar.

use super::super::cataloguing::Cataloguing;
use super::super::contract::{Format, Seen, Splits};
use super::super::kinds::{Kind, extension, is_audio, kind_of};
use super::super::listing::Sources;
use super::super::{archive, tars};
use super::clips::parse_durations;
use super::lists::{DURATION_LISTS, List, above_clips, choose, locale_of, note_several, read, split_folder};
use super::rows::{Part, Place, RowOrder, draft, find_clips};
use super::tsv::{self, Durations};

use crate::catalog::{CopiedFrom, Draft, Objects};
use crate::storage::shown;
use crate::{Error, ErrorKind, Layout, ObjectRef, Result, Storage};
use async_trait::async_trait;
use std::collections::HashMap;

/// One archive's members, by their names without `./`.
struct Archive {
    tar: ObjectRef,
    /// Its name in errors.
    name: String,
    members: Vec<(String, u64, u64)>,
}

/// Mozilla's archives of Common Voice.
pub(in super::super) struct Archives;

#[async_trait]
impl Format for Archives {
    fn layout(&self) -> Layout {
        Layout::CommonVoiceTar
    }

    fn is_data(&self, name: &str) -> bool {
        matches!(kind_of(name), Some(Kind::Tar | Kind::Archive))
    }

    async fn recognise(&self, seen: &Seen<'_>, _: &Storage) -> Result<Option<Layout>> {
        Ok(seen.has_only(Kind::Archive).then_some(Layout::CommonVoiceTar))
    }

    fn splits(&self) -> Splits {
        Splits::Inside
    }

    fn reads_copies(&self) -> bool {
        true
    }

    async fn catalog(&self, sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
        catalog(sources, with).await
    }
}

async fn catalog(sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    let mut notes = sources.notes.clone();
    let mut archives: Vec<Archive> = Vec::with_capacity(sources.objects.len());
    let total = Some(sources.objects.len() as u64);
    for (object, name) in sources.objects.iter().zip(&sources.names) {
        let tar = match extension(name).as_str() {
            "tar" => object.clone(),
            _ => archive::seekable(object, with).await?,
        };
        let found = tars::members_once(&tar, 0..tar.size, with).await;
        let found = found.map_err(|error| {
            if matches!(error.kind(), ErrorKind::BadConfig | ErrorKind::BadSample) {
                archive::remove_refused(&tar, object);
            }
            if tar.uri == object.uri { error } else { error.context(shown(&object.uri)) }
        })?;
        let bare = |name: String| name.strip_prefix("./").map_or(name.clone(), str::to_owned);
        let members = found.into_iter().map(|m| (bare(m.name), m.offset, m.bytes)).collect();
        archives.push(Archive { tar, name: name.clone(), members });
        with.options.report("reading tar headers", archives.len() as u64, total);
    }
    // The lists of all archives, numbered consecutively.
    let members = || {
        let of = |(a, archive): (usize, &'_ Archive)| {
            (0..archive.members.len()).map(move |m| (a, m)).collect::<Vec<_>>()
        };
        archives.iter().enumerate().flat_map(of).collect::<Vec<(usize, usize)>>()
    };
    let places = members();
    let name_of = |&(a, m): &(usize, usize)| archives[a].members[m].0.as_str();
    let lists: Vec<List> =
        places.iter().enumerate().filter_map(|(i, place)| List::of(name_of(place), i)).collect();
    if lists.is_empty() {
        for (archive, object) in archives.iter().zip(&sources.objects) {
            archive::remove_refused(&archive.tar, object);
        }
        return Err(Error::config(format!(
            "{}: no train.tsv, validated.tsv … in it, so it is not an archive of Common Voice, the only kind of \
             compressed tar that is read; decompress it (`gunzip shard-000000.tar.gz`) and open the tar",
            sources.uri
        )));
    }
    let chosen = choose(&sources.uri, lists, with.split)?;
    note_several(&chosen, &mut notes);
    let mut parts = Vec::with_capacity(chosen.len());
    for list in &chosen {
        let (archive, _) = places[list.index];
        parts.push(part(&archives[archive], archive, list, places[list.index].1, with, &mut notes).await?);
    }
    let detail = chosen.iter().map(List::name).collect::<Vec<_>>().join("\n");
    let tars: Vec<ObjectRef> = archives.into_iter().map(|a| a.tar).collect();
    let mut draft = draft(parts, Objects::new(&tars), RowOrder::Stored, notes, with.block_bytes)?;
    draft.copied_from = Some(CopiedFrom { objects: Objects::new(&sources.objects), detail });
    Ok(draft)
}

/// Reads one TSV of an archive with its audio clips and durations.
async fn part(
    archive: &Archive,
    object: usize,
    list: &List,
    member: usize,
    with: &Cataloguing<'_>,
    notes: &mut Vec<String>,
) -> Result<Part> {
    let object = u32::try_from(object).map_err(|_| Error::config("more than 2^32 archives"))?;
    let content = |member: usize| {
        let (name, offset, bytes) = &archive.members[member];
        let told = format!("{} member {name}", archive.name);
        async move {
            let read = read(&archive.tar, *offset..offset + bytes, &told, with.storage).await?;
            Ok::<_, Error>((told, read))
        }
    };
    let (name, bytes) = content(member).await?;
    let told = name.clone();
    let mut table = tars::blocking(with.storage.io(), move || tsv::parse(&told, &bytes)).await?;
    let mut clips: HashMap<&str, Place> = HashMap::new();
    let mut durations_at = None;
    for (i, (name, offset, bytes)) in archive.members.iter().enumerate() {
        let (folder, file) = split_folder(name);
        if above_clips(folder) == Some(list.folder.as_str()) && is_audio(&extension(file)) {
            clips.insert(file, Place { object, offset: *offset, bytes: *bytes });
        } else if folder == list.folder && DURATION_LISTS.contains(&file) {
            let better = durations_at.is_none() || file == DURATION_LISTS[0];
            durations_at = if better { Some(i) } else { durations_at };
        }
    }
    let durations: Option<Durations> = match durations_at {
        None => None,
        Some(i) => {
            let (told, bytes) = content(i).await?;
            let parsed = tars::blocking(with.storage.io(), move || {
                let mut notes = Vec::new();
                Ok((parse_durations(&told, &bytes, &mut notes)?, notes))
            });
            let (durations, mut told) = parsed.await?;
            notes.append(&mut told);
            Some(durations)
        }
    };
    let places = find_clips(&mut table, |path| clips.get(path).copied());
    let (split, locale) = (list.split.clone(), locale_of(&list.folder));
    Ok(Part { name, split, locale, table, places, durations, shard: object })
}
