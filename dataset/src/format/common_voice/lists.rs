//! The TSVs that list samples, by their names, and the choice of one split.

use super::super::kinds::{extension, is_audio};
use crate::{Error, ObjectRef, Result, Storage};
use std::collections::{BTreeMap, BTreeSet};

/// TSVs next to the splits that do not list audio clips to train on.
const NO_SPLITS: [&str; 4] = ["clip_durations", "reported", "validated_sentences", "unvalidated_sentences"];
/// Where durations are, best first: `clip_durations.tsv` since release 14, `times.txt` before.
pub(super) const DURATION_LISTS: [&str; 2] = ["clip_durations.tsv", "times.txt"];
/// Limit on a TSV, which is held in memory while it is read: English's `validated.tsv` has 0.6 GB.
const MAX_TSV_BYTES: u64 = 2 << 30;

/// A TSV that lists samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct List {
    /// The part of the name before the TSV's: `de/`, `cv-corpus-17.0/de/`.
    pub(super) folder: String,
    /// The TSV's name without its extension.
    pub(super) split: String,
    /// The index of the object or member.
    pub(super) index: usize,
}

impl List {
    /// Returns `None` if `name` is not a TSV of samples.
    pub(super) fn of(name: &str, index: usize) -> Option<Self> {
        let (folder, file) = split_folder(name);
        let split = file.strip_suffix(".tsv")?;
        let lists = !NO_SPLITS.contains(&split) && !split.is_empty();
        lists.then(|| Self { folder: folder.to_owned(), split: split.to_owned(), index })
    }

    pub(super) fn name(&self) -> String {
        format!("{}{}.tsv", self.folder, self.split)
    }
}

/// Splits `a/b/c` into `a/b/` and `c`.
pub(super) fn split_folder(name: &str) -> (&str, &str) {
    name.split_at(name.rfind('/').map_or(0, |at| at + 1))
}

/// Returns the folder above a folder of audio clips: `de/` for `de/clips/`.
pub(super) fn above_clips(folder: &str) -> Option<&str> {
    let above = folder.strip_suffix("clips/")?;
    (above.is_empty() || above.ends_with('/')).then_some(above)
}

/// Returns the language of a folder: its name, if that looks like a code (`de`, `zh-CN`, `rm-sursilv`).
pub(super) fn locale_of(folder: &str) -> Option<String> {
    let name = folder.trim_end_matches('/').rsplit('/').next()?;
    let mut parts = name.split('-');
    let language = parts.next()?;
    let is_code = (2..=3).contains(&language.len()) && language.bytes().all(|b| b.is_ascii_lowercase());
    let is_region = |p: &str| (2..=8).contains(&p.len()) && p.bytes().all(|b| b.is_ascii_alphanumeric());
    (is_code && parts.all(is_region)).then(|| name.to_owned())
}

/// Keeps the lists of one split. If there are several and none is chosen, the error states how to choose.
pub(super) fn choose(uri: &str, mut lists: Vec<List>, split: Option<&str>) -> Result<Vec<List>> {
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
                "{uri} holds several splits: {}; choose one, such as split = {}, or if its TSVs are files, by URI, such as \
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

/// Reads a whole TSV; `name` is its name in errors.
pub(super) async fn read(
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

/// Whether this is the first member, or the name, of an archive of Common Voice.
pub(in crate::format) fn is_archive(object: &str, first_member: Option<&str>) -> bool {
    let file = split_folder(object).1;
    let named = ["cv-corpus-", "common-voice-", "common_voice_"].iter().any(|p| file.starts_with(p));
    // Archives hold folders. Shards of WebDataset may have such names, too, but their members are at the top.
    named && first_member.is_none_or(|member| member.contains('/'))
        || first_member.is_some_and(|member| {
            let (folder, file) = split_folder(member);
            let is_clip = is_audio(&extension(file)) && above_clips(folder).is_some();
            member.starts_with("cv-corpus-") || is_clip || List::of(member, 0).is_some()
        })
}

pub(super) fn note_several(chosen: &[List], notes: &mut Vec<String>) {
    let splits: BTreeSet<&str> = chosen.iter().map(|list| list.split.as_str()).collect();
    if splits.len() > 1 {
        let splits: Vec<&str> = splits.into_iter().collect();
        notes.push(format!(
            "the splits {} together, as the URI states; the column split distinguishes them",
            splits.join(", ")
        ));
    }
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
