//! Recognises the form of Common Voice that objects have.

use super::super::kinds::{Named, extension, is_audio};
use super::hf;
use super::lists::{List, above_clips, split_folder};
use crate::{Layout, Result, Storage};
use std::collections::HashSet;

/// Bytes read for a TSV's header, which is far shorter.
const HEADER_BYTES: u64 = 4 << 10;

/// Returns the form of Common Voice that the listed objects have, if they have one.
pub(super) async fn recognise(uri: &str, listed: &[Named], storage: &Storage) -> Result<Option<Layout>> {
    let lists_samples = |(name, _): &&Named| List::of(name, 0).is_some();
    let by_name = listed.iter().all(|(name, _)| extension(name) == "tsv");
    if let Some((_, first)) = listed.iter().find(lists_samples).filter(|_| by_name) {
        // The URI of a TSV, or a pattern of several.
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
