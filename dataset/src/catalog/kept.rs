//! Catalogs whose place another one took: kept for those who still read them, and to tell what changed.
//!
//! ```text
//! catalog.json ─▶ the current one's tables          kept-<hash>.json ─▶ a former one's tables, 30 days long
//! ```
//! A running job reads units of the catalog that it opened, whatever is stored since; a cursor names the catalog that it
//! belongs to by its identity. Tables that an index names are never deleted.

use super::Objects;
use super::store::{Index, Place, read_index, write_index};
use crate::format::counted;
use crate::{Result, Storage};
use std::collections::{BTreeMap, HashSet};
use std::hash::Hasher;
use std::time::{Duration, SystemTime};

/// Longer than a job runs without a restart.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
const PREFIX: &str = "kept-";
/// Files of one folder that are looked at; each kept catalog has up to seven.
const MAX_FILES: usize = 10_000;
/// Names that a message about changes lists of each kind.
const SHOWN_NAMES: usize = 3;

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Keeps `index`, whose place another one is about to take.
pub(super) async fn keep(mut index: Index, place: &Place, storage: &Storage) -> Result<()> {
    let mut hash = twox_hash::XxHash64::with_seed(0);
    index.tables.values().for_each(|table| hash.write(table.file.as_bytes()));
    index.superseded = Some(now());
    write_index(&index, &place.file(&format!("{PREFIX}{:016x}.json", hash.finish())), storage).await
}

/// Deletes catalogs that were kept long enough, with the tables that no other names; what fails costs space only.
pub(super) async fn drop_expired(current: &Index, place: &Place, storage: &Storage) {
    let oldest = now().saturating_sub(KEPT.as_secs());
    let (expired, kept): (Vec<_>, Vec<_>) = all(place, storage)
        .await
        .into_iter()
        .partition(|(_, index)| index.superseded.is_some_and(|at| at < oldest));
    let kept = kept.iter().map(|(_, index)| index).chain([current]);
    let used: HashSet<&str> = kept.flat_map(|i| i.tables.values()).map(|table| table.file.as_str()).collect();
    for (uri, index) in &expired {
        let tables =
            index.tables.values().map(|table| table.file.as_str()).filter(|file| !used.contains(file));
        for uri in tables.map(|file| place.file(file)).chain([uri.clone()]) {
            if let Err(error) = storage.delete(&uri).await {
                tracing::debug!(uri, %error, "an old catalog could not be deleted");
            }
        }
    }
}

/// What was added, removed or replaced since the kept catalog of this identity; `None` where it is not kept.
pub(crate) async fn changes_since(
    identity: u64,
    objects: &Objects,
    place: &Place,
    storage: &Storage,
) -> Option<String> {
    let indices = all(place, storage).await;
    let (_, index) = indices.into_iter().find(|(_, index)| index.identity == Some(identity))?;
    let former = super::store::read_objects(&index, place, storage).await.ok()?;
    Some(changes(&former, objects))
}

fn changes(former: &Objects, objects: &Objects) -> String {
    let sizes = |of: &Objects| -> BTreeMap<String, u64> {
        (0..of.len()).map(|i| (format!("{}{}", of.base(), of.name(i)), of.size(i))).collect()
    };
    let (before, now) = (sizes(former), sizes(objects));
    let only = |these: &BTreeMap<String, u64>, those: &BTreeMap<String, u64>| -> Vec<String> {
        these.keys().filter(|name| !those.contains_key(*name)).cloned().collect()
    };
    let resized = now.iter().filter(|(name, size)| before.get(*name).is_some_and(|before| before != *size));
    let kinds = [
        ("added", only(&now, &before)),
        ("removed", only(&before, &now)),
        ("of another size", resized.map(|(name, _)| name.clone()).collect()),
    ];
    let told: Vec<String> = kinds
        .iter()
        .filter_map(|(what, names)| {
            Some(format!("{} {what}: {}", counted(names.len(), "file"), named(names)?))
        })
        .collect();
    match told.is_empty() {
        true => "files have the same names and sizes, and other contents".to_owned(),
        false => told.join("; "),
    }
}

/// The first of some names, if there is any.
fn named(names: &[String]) -> Option<String> {
    let (shown, rest) = names.split_at(names.len().min(SHOWN_NAMES));
    let more = if rest.is_empty() { "" } else { ", …" };
    (!shown.is_empty()).then(|| format!("{}{more}", shown.join(", ")))
}

async fn all(place: &Place, storage: &Storage) -> Vec<(String, Index)> {
    let Ok(found) = storage.list_some(&format!("{}/", place.folder()), MAX_FILES).await else {
        return Vec::new();
    };
    let mut indices = Vec::new();
    for object in found {
        let name = object.uri.rsplit('/').next().unwrap_or_default();
        if name.starts_with(PREFIX)
            && let Ok(index) = read_index(&object.uri, storage).await
        {
            indices.push((object.uri, index));
        }
    }
    indices
}
