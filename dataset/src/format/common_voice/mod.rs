//! Mozilla Common Voice, in the forms that people hold it in.
//!
//! ```text
//! clips.rs     <locale>/clips/*.mp3   + <locale>/<split>.tsv                       unpacked
//! archives.rs  the same inside a .tar, or inside a .tar.gz of which archive.rs makes a seekable copy
//! hf.rs        audio/<locale>/<split>/*.tar + transcript/<locale>/<split>.tsv      Hugging Face's scripts
//!                     ╰──▶ places of clips ─╮
//! tsv.rs       rows of TSVs, durations ─────┴─▶ rows.rs ─▶ samples, blocks
//! ```
//! A sample is a row of a TSV. Columns, as far as the TSV has them: `client_id`, `path` (the clip's file name, with
//! `.mp3` where the TSV leaves it out), `sentence`, `up_votes` and `down_votes` int64, `age`, `gender`, `accents` (also
//! for the `accent` of releases before 8), `variant`, `locale` (where the TSV has none: the folder's name, if it looks
//! like a language code), `segment`, `sentence_id`, `sentence_domain`, and any other as text; then `split` (the TSV's
//! name), `duration` float64 in seconds from `clip_durations.tsv` or the older `times.txt` (else from the clips'
//! headers, see [`super::durations`]), and the payload `audio`. An empty field is null, but an empty sentence is an
//! empty text.
//!
//! A row whose clip is missing stays, with a null payload: whoever decodes it applies the policy, and the error names
//! the TSV, the line and the clip. Clips that no row names are left out.
//!
//! Cost: TSVs are read whole (about 0.5 GB a million rows, transient) and their columns stay in memory, some 350 bytes
//! a sample; clips are found by one listing and a hash of their names.

pub(super) mod archives;
pub(super) mod clips;
pub(super) mod hf;
mod rows;
mod tsv;

use super::kinds::{Named, extension, is_audio};
use crate::Layout;
use crate::{Error, ObjectRef, Result, Storage};
use std::collections::{BTreeMap, HashSet};

/// TSVs beside the splits that list no clips to train on.
const NO_SPLITS: [&str; 4] = ["clip_durations", "reported", "validated_sentences", "unvalidated_sentences"];
/// Where durations stand, best first: `clip_durations.tsv` since release 14, `times.txt` before.
const DURATION_LISTS: [&str; 2] = ["clip_durations.tsv", "times.txt"];
/// A header is far shorter.
const HEADER_BYTES: u64 = 4 << 10;
/// A TSV is held in memory while it is read: English's `validated.tsv` has 0.6 GB.
const MAX_TSV_BYTES: u64 = 2 << 30;

/// A TSV that lists samples.
#[derive(Debug, Clone, PartialEq, Eq)]
struct List {
    /// What stands before the TSV's name: `de/`, `cv-corpus-17.0/de/`.
    folder: String,
    /// The TSV's name without its extension.
    split: String,
    /// Which object or member it is.
    index: usize,
}

impl List {
    /// `None` where `name` is no TSV of samples.
    fn of(name: &str, index: usize) -> Option<Self> {
        let (folder, file) = split_folder(name);
        let split = file.strip_suffix(".tsv")?;
        let lists = !NO_SPLITS.contains(&split) && !split.is_empty();
        lists.then(|| Self { folder: folder.to_owned(), split: split.to_owned(), index })
    }

    fn name(&self) -> String {
        format!("{}{}.tsv", self.folder, self.split)
    }
}

/// `a/b/c` as `a/b/` and `c`.
fn split_folder(name: &str) -> (&str, &str) {
    name.split_at(name.rfind('/').map_or(0, |at| at + 1))
}

/// The folder above a folder of clips: `de/` for `de/clips/`.
fn above_clips(folder: &str) -> Option<&str> {
    let above = folder.strip_suffix("clips/")?;
    (above.is_empty() || above.ends_with('/')).then_some(above)
}

/// The language of a folder: its name, where that looks like a code (`de`, `zh-CN`, `rm-sursilv`).
fn locale_of(folder: &str) -> Option<String> {
    let name = folder.trim_end_matches('/').rsplit('/').next()?;
    let mut parts = name.split('-');
    let language = parts.next()?;
    let is_code = (2..=3).contains(&language.len()) && language.bytes().all(|b| b.is_ascii_lowercase());
    let is_region = |p: &str| (2..=8).contains(&p.len()) && p.bytes().all(|b| b.is_ascii_alphanumeric());
    (is_code && parts.all(is_region)).then(|| name.to_owned())
}

/// Keeps the lists of one split; where there are several and none is chosen, the error says how to choose.
fn choose(uri: &str, mut lists: Vec<List>, split: Option<&str>) -> Result<Vec<List>> {
    let mut splits: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for list in &lists {
        splits.entry(list.split.clone()).or_default().push(list.folder.clone());
    }
    let names = || {
        let name = |(split, folders): (&String, &Vec<String>)| match folders.len() {
            1 => split.clone(),
            n => format!("{split} (of {n} folders)"),
        };
        splits.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    match split.map(|s| s.strip_suffix(".tsv").unwrap_or(s)) {
        Some(split) => {
            lists.retain(|list| list.split == split);
            if lists.is_empty() {
                return Err(Error::config(format!("{uri} has no split {split}; its TSVs are: {}", names())));
            }
        }
        None if splits.len() > 1 => {
            let example = lists.iter().find(|l| l.split == "train").unwrap_or(&lists[0]);
            return Err(Error::config(format!(
                "{uri} holds several splits: {}; choose one, as split = {}, or where its TSVs are files by their URI, as \
                 …/{}",
                names(),
                example.split,
                example.name()
            )));
        }
        None => {}
    }
    Ok(lists)
}

/// Reads a TSV whole; `name` is what errors call it.
async fn read(
    object: &ObjectRef,
    range: std::ops::Range<u64>,
    name: &str,
    storage: &Storage,
) -> Result<bytes::Bytes> {
    let bytes = range.end - range.start;
    if bytes > MAX_TSV_BYTES {
        return Err(Error::config(format!(
            "{name}: {bytes} bytes, over the limit of {MAX_TSV_BYTES}; split it"
        )));
    }
    storage.read(object, range).await
}

/// Which form of Common Voice the listed objects are, if they are one.
pub(super) async fn recognise(uri: &str, listed: &[Named], storage: &Storage) -> Result<Option<Layout>> {
    let lists_samples = |(name, _): &&Named| List::of(name, 0).is_some();
    let by_name = listed.iter().all(|(name, _)| extension(name) == "tsv");
    if let Some((_, first)) = listed.iter().find(lists_samples).filter(|_| by_name) {
        // the URI of a TSV, or a pattern of several
        let header = storage.read(first, 0..first.size.min(HEADER_BYTES)).await?;
        let header = header.split(|&b| b == b'\n').next().unwrap_or_default();
        let columns: Vec<&str> =
            std::str::from_utf8(header).map(|h| h.trim_end().split('\t').collect()).unwrap_or_default();
        return Ok(["client_id", "path", "sentence"].iter().all(|c| columns.contains(c)).then(|| {
            match hf::list_of(&first.uri).is_some() || hf::list_of(uri).is_some() {
                true => Layout::CommonVoiceHf,
                false => Layout::CommonVoice,
            }
        }));
    }
    let lists: HashSet<&str> = listed.iter().filter(lists_samples).map(|(name, _)| name.as_str()).collect();
    if lists.is_empty() {
        return Ok(None);
    }
    let folders: HashSet<&str> = lists.iter().map(|name| split_folder(name).0).collect();
    let is_clip = |name: &str| {
        let (folder, file) = split_folder(name);
        is_audio(&extension(file)) && above_clips(folder).is_some_and(|above| folders.contains(above))
    };
    if listed.iter().any(|(name, _)| is_clip(name)) {
        return Ok(Some(Layout::CommonVoice));
    }
    let has_list =
        |name: &str| hf::tar_of(name).is_some_and(|group| lists.contains(group.list_name().as_str()));
    Ok(listed.iter().any(|(name, _)| has_list(name)).then_some(Layout::CommonVoiceHf))
}

/// Is this the first member, or the name, of an archive of Common Voice?
pub(super) fn is_archive(object: &str, first_member: Option<&str>) -> bool {
    let file = split_folder(object).1;
    let named = ["cv-corpus-", "common-voice-", "common_voice_"].iter().any(|p| file.starts_with(p));
    // Archives hold folders; shards of WebDataset may have such names too, and their members lie at the top.
    named && first_member.is_none_or(|member| member.contains('/'))
        || first_member.is_some_and(|member| {
            let (folder, file) = split_folder(member);
            let is_clip = is_audio(&extension(file)) && above_clips(folder).is_some();
            member.starts_with("cv-corpus-") || is_clip || List::of(member, 0).is_some()
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_with_an_archives_name_are_no_archives() {
        assert!(is_archive("x/common-voice-de.tar", None));
        assert!(is_archive("x/common-voice-de.tar", Some("common-voice-de/de/train.tsv")));
        assert!(is_archive("x/common-voice-de.tar", Some("train.tsv")));
        assert!(!is_archive("x/common-voice-train-000000.tar", Some("common_voice_de_17.json")));
    }

    #[test]
    fn languages_are_told_by_codes_alone() {
        for code in ["de", "zh-CN", "nan-tw", "rm-sursilv", "kmr", "hy-AM"] {
            assert_eq!(locale_of(&format!("x/{code}/")).as_deref(), Some(code));
        }
        for other in ["cv-corpus-17.0-2024-03-15", "data", "", "DE", "d"] {
            assert_eq!(locale_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_split_is_chosen_or_asked_for() {
        let lists = |names: &[&str]| -> Vec<List> {
            names.iter().enumerate().filter_map(|(i, name)| List::of(name, i)).collect()
        };
        let all = lists(&[
            "de/train.tsv",
            "de/dev.tsv",
            "de/reported.tsv",
            "fr/train.tsv",
            "de/clip_durations.tsv",
        ]);
        assert_eq!(all.len(), 3);
        assert_eq!(choose("x", all.clone(), Some("train")).unwrap().len(), 2);
        let error = choose("x", all.clone(), None).unwrap_err();
        assert!(error.message().contains("dev, train (of 2 folders)"), "{error}");
        assert!(error.message().contains("split = train"), "{error}");
        let error = choose("x", all, Some("test")).unwrap_err();
        assert!(error.message().contains("no split test"), "{error}");
        assert_eq!(choose("x", lists(&["other.tsv"]), None).unwrap()[0].split, "other");
    }
}
