//! Replaced catalogs: kept for jobs that read them, and to list what changed.
//!
//! ```text
//! catalog.json ─▶ the current one's tables          kept-<hash>.json ─▶ a former one's tables, 30 days long
//! ```
//! A running job reads units of the catalog that it opened, whatever was stored since. A cursor names its catalog by the
//! identity. Tables that an index names are never deleted.

use super::index::{Index, read_index, write_index};
use super::load::{load_index, read_objects};
use super::place::Place;
use crate::catalog::{Catalog, Objects};
use crate::format::counted;
use crate::{Error, ErrorKind, Result, Storage};
use std::cmp::Ordering;
use std::collections::HashSet;
use std::hash::Hasher;
use std::time::{Duration, SystemTime};

/// Longer than a job runs without a restart.
const KEPT: Duration = Duration::from_secs(30 * 24 * 3600);
const PREFIX: &str = "kept-";
/// Limit on the catalogs kept in one place.
const MAX_KEPT: usize = 32;
/// Limit on the files of a folder that are looked at; each kept catalog has up to seven.
const MAX_FILES: usize = 10_000;
/// Names of each kind that a message about changes lists.
const SHOWN_NAMES: usize = 3;

fn now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Keeps `index`, which another one is about to replace.
pub(crate) async fn keep(mut index: Index, place: &Place, storage: &Storage) -> Result<()> {
    let mut hash = twox_hash::XxHash64::with_seed(0);
    index.tables.values().for_each(|table| hash.write(table.file.as_bytes()));
    index.superseded = Some(now());
    write_index(&index, &place.file(&format!("{PREFIX}{:016x}.json", hash.finish())), storage).await
}

/// Deletes the tables of catalogs that were kept long enough. Deletes those of the catalog `before`, too, if it is not
/// kept: it then differs from the current one only in what guards reads. A failure costs only space.
pub(crate) async fn clean(before: Option<Index>, current: &Index, place: &Place, storage: &Storage) {
    let oldest = now().saturating_sub(KEPT.as_secs());
    let mut all = all(place, storage).await;
    all.sort_by_key(|(_, index)| std::cmp::Reverse(index.superseded));
    let (kept, expired): (Vec<_>, Vec<_>) = all
        .into_iter()
        .enumerate()
        .partition(|(newer, (_, index))| *newer < MAX_KEPT && index.superseded.is_none_or(|at| at >= oldest));
    let named = kept.iter().map(|(_, (_, index))| index).chain([current]);
    let used: HashSet<&str> =
        named.flat_map(|i| i.tables.values()).map(|table| table.file.as_str()).collect();
    let indices = expired.iter().map(|(_, (uri, _))| uri.clone());
    let tables =
        expired.iter().map(|(_, (_, index))| index).chain(&before).flat_map(|index| index.tables.values());
    let tables =
        tables.map(|table| table.file.as_str()).filter(|file| is_table(file) && !used.contains(file));
    for uri in tables.map(|file| place.file(file)).chain(indices) {
        if let Err(error) = storage.delete(&uri).await {
            tracing::debug!(uri, %error, "an old catalog could not be deleted");
        }
    }
}

/// Whether this is the name of a table in the catalog's folder. An index may come from another program.
fn is_table(file: &str) -> bool {
    let stem = file.strip_suffix(".arrow").or_else(|| file.strip_suffix(".bin"));
    let parts = stem.and_then(|stem| stem.rsplit_once('-'));
    parts.is_some_and(|(name, hash)| {
        name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
            && hash.len() == 16
            && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

/// A catalog that another one replaced.
pub(crate) struct Kept(Index);

impl Kept {
    /// Returns its identity, and its hash as releases before 0.2 saved it.
    pub(crate) fn hashes(&self) -> (u64, u64) {
        (self.0.identity.unwrap_or(self.0.content_hash), self.0.content_hash)
    }

    /// Loads it from where it is kept.
    ///
    /// # Errors
    /// `Gone` if its tables are damaged or were deleted.
    pub(crate) async fn load(self, place: &Place, storage: &Storage) -> Result<Catalog> {
        load_index(self.0, place, storage).await.map_err(|why| gone(place, &why))
    }

    /// Returns what was added, removed or replaced since; `objects` are the current ones.
    ///
    /// # Errors
    /// `Gone` as [`load`](Self::load).
    pub(crate) async fn changes(
        &self,
        objects: &Objects,
        place: &Place,
        storage: &Storage,
    ) -> Result<String> {
        let former = read_objects(&self.0, place, storage).await.map_err(|why| gone(place, &why))?;
        Ok(changes(&former, objects))
    }
}

fn gone(place: &Place, why: &str) -> Error {
    Error::new(ErrorKind::Gone, format!("a catalog kept in {} cannot be read: {why}", place.folder()))
}

/// Returns the catalogs that are kept at a place.
pub(crate) async fn kept_catalogs(place: &Place, storage: &Storage) -> Vec<Kept> {
    all(place, storage).await.into_iter().map(|(_, index)| Kept(index)).collect()
}

/// Files that differ in one way: their number, and the first names.
#[derive(Default)]
struct Differing {
    files: usize,
    names: Vec<String>,
}

impl Differing {
    fn add(&mut self, uri: String) {
        self.files += 1;
        if self.names.len() < SHOWN_NAMES {
            self.names.push(uri);
        }
    }

    fn described(&self, how: &str) -> Option<String> {
        let more = if self.files > self.names.len() { ", …" } else { "" };
        (self.files > 0)
            .then(|| format!("{} {how}: {}{more}", counted(self.files, "file"), self.names.join(", ")))
    }
}

/// Compares both listings, which are sorted by URI.
fn changes(former: &Objects, objects: &Objects) -> String {
    let (mut added, mut removed, mut resized) =
        (Differing::default(), Differing::default(), Differing::default());
    let mut before = (0..former.len()).map(|i| former.get(i)).peekable();
    let mut now = (0..objects.len()).map(|i| objects.get(i)).peekable();
    loop {
        let order = match (before.peek(), now.peek()) {
            (Some(old), Some(new)) => old.uri.cmp(&new.uri),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => break,
        };
        let old = before.next_if(|_| order != Ordering::Greater);
        let new = now.next_if(|_| order != Ordering::Less);
        match (old, new) {
            (Some(old), Some(new)) if old.size != new.size => resized.add(new.uri),
            (Some(old), None) => removed.add(old.uri),
            (None, Some(new)) => added.add(new.uri),
            _ => {}
        }
    }
    let changes =
        [added.described("added"), removed.described("removed"), resized.described("of another size")];
    let changes: Vec<String> = changes.into_iter().flatten().collect();
    match changes.is_empty() {
        true => "files have the same names and sizes, and other contents".to_owned(),
        false => changes.join("; "),
    }
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
