//! Folders that are named like Hive partitions.

use super::kinds::Named;
use std::collections::BTreeSet;

/// Notes the folders that are named like Hive partitions, `label=3/`: their values are not columns.
pub(super) fn note_partitions(data: &[Named]) -> Option<String> {
    let folders =
        data.iter().filter_map(|(name, _)| name.rsplit_once('/')).flat_map(|(path, _)| path.split('/'));
    let keys = folders.filter_map(|folder| folder.split_once('=')).map(|(key, _)| key);
    let keys: BTreeSet<&str> = keys.filter(|key| !key.is_empty()).collect();
    let first = keys.first()?;
    Some(format!(
        "the values of {} in the names of folders ({first}=…/) are not columns; write them into the files, or open one \
         of the folders",
        keys.iter().copied().collect::<Vec<_>>().join(", ")
    ))
}
