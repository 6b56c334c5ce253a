//! Splits of a data set, such as `train` and `validation`, by the names of folders and files.

use super::contract::{Format, Splits};
use super::kinds::{Named, file_name};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Names that mean a part of the data set and not a class: mixing two of them is never intended.
const SPLITS: [&str; 9] =
    ["train", "training", "val", "valid", "validation", "dev", "test", "testing", "eval"];

/// Keeps the objects of one split.
pub(super) fn keep_split(uri: &str, format: &dyn Format, split: &str, data: &mut Vec<Named>) -> Result<()> {
    let splits = format.splits();
    match splits {
        Splits::Inside => return Ok(()),
        Splits::Absent => {
            return Err(Error::config(format!(
                "{uri}: the layout {} has no splits; leave the split {split} out, or filter",
                format.layout()
            )));
        }
        Splits::Names | Splits::Folders => {}
    }
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    for (name, _) in data.iter() {
        *found.entry(split_of(splits, name).unwrap_or("none").to_owned()).or_default() += 1;
    }
    data.retain(|(name, _)| split_of(splits, name).is_some_and(|s| s.eq_ignore_ascii_case(split)));
    if data.is_empty() {
        let found: Vec<String> = found.iter().map(|(split, n)| format!("{split} ({n} files)")).collect();
        return Err(Error::config(format!(
            "{uri}: no files of the split {split}; there are files of: {}",
            found.join(", ")
        )));
    }
    Ok(())
}

/// Returns the split in an object's name: its first folder, or a word of its file name (`beans-train-00000-of-…`).
fn split_of(splits: Splits, name: &str) -> Option<&str> {
    let folder = name.split_once('/').map(|(folder, _)| folder);
    if let Some(split) = folder.filter(|f| is_split(f)) {
        return Some(split);
    }
    if splits == Splits::Folders {
        return None;
    }
    let file = file_name(name);
    file.split(['-', '.', '_']).find(|word| is_split(word))
}

fn is_split(name: &str) -> bool {
    SPLITS.contains(&name.to_ascii_lowercase().as_str())
}

/// Returns an error if there are several splits.
pub(super) fn one_split(uri: &str, at: Splits, names: &[String]) -> Result<()> {
    if matches!(at, Splits::Inside | Splits::Absent) {
        return Ok(());
    }
    let mut splits: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        match split_of(at, name) {
            Some(split) => *splits.entry(split).or_default() += 1,
            None => return Ok(()), // some have no split, so these are classes or plain names
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
        "{uri} holds several splits: {}; choose one with split, or open {example}",
        found.join(", ")
    )))
}

/// Returns the folder of one split, if all of `names` are in it: classes are then one level deeper.
pub(crate) fn shared_split_folder(names: &[String]) -> Option<&str> {
    let (folder, _) = names.first()?.split_once('/')?;
    let shared = names.iter().all(|n| n.split_once('/').is_some_and(|(f, _)| f == folder));
    (is_split(folder) && shared).then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_told_by_folder_and_by_file_name() {
        let names = |all: &[&str]| all.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
        let mixed = names(&["data/train-00000-of-00002.parquet", "data/validation-00000-of-00001.parquet"]);
        let error = one_split("s3://b/x", Splits::Names, &mixed).unwrap_err();
        assert!(error.message().contains("train (1 files), validation (1 files)"), "{error}");
        assert!(error.message().contains("s3://b/x/data/train*"), "{error}");
        let error = one_split("x", Splits::Folders, &names(&["train/a/1.jpg", "val/a/1.jpg"])).unwrap_err();
        assert!(error.message().contains("open x/train"), "{error}");
        one_split("x", Splits::Folders, &names(&["dev/1.jpg", "other/1.jpg", "test/1.jpg"])).unwrap();
        assert_eq!(shared_split_folder(&names(&["train/a/1.jpg", "train/b/1.jpg"])), Some("train"));
        assert_eq!(shared_split_folder(&names(&["a/1.jpg", "a/2.jpg"])), None);
    }
}
