//! Earlier versions of a data set, from catalogs that newer ones have replaced, and where their samples are now.

use crate::dataset::Composition;
use crate::open::{Opened, place_hash};
use crate::stored::{Kept, SameSamples, identity_of_parts, kept_catalogs, same_samples};
use crate::{DataHashes, Dataset, Error, ErrorKind, Fingerprint, Mixing, Result};
use futures::future::BoxFuture;
use std::sync::Arc;

/// Limit on the combinations of the parts' kept catalogs that are tried.
const MAX_COMBINATIONS: usize = 1 << 16;

impl Dataset {
    /// Returns the data set as it was when a cursor with this fingerprint was saved, with this one's selection. It serves to
    /// compute the order: its files may have changed since.
    ///
    /// # Errors
    /// `Gone` if its catalog is not kept; `BadConfig` if a selection cannot be made of it, because it reads columns of
    /// removed files; storage's errors.
    pub async fn as_of(&self, saved: &Fingerprint) -> Result<Self> {
        let Some(saved) = self.saved_parts(saved).await? else {
            return Err(Error::new(
                ErrorKind::Gone,
                format!(
                    "{}: the catalog from when the state was saved is not kept here. A replaced catalog is kept for \
                     30 days, in the catalog cache of the machine that made it or next to \
                     the data; without it, load the state with on_change=next_epoch",
                    self.uri()
                ),
            ));
        };
        let mut parts = Vec::with_capacity(saved.len());
        for (part, kept) in saved {
            parts.push(match kept {
                None => Self::clone(part),
                Some(kept) => part.with_kept(kept).await?,
            });
        }
        self.made_of(&mut parts.into_iter()).await
    }

    /// Returns the files that were added, removed or replaced since a cursor with this fingerprint was saved, by part of a
    /// mix or a concatenation. Returns `None` if there are none, and if the catalog of that time is not kept. A replaced
    /// catalog is kept for 30 days, in the same place.
    pub async fn changes_since(&self, saved: &Fingerprint) -> Option<String> {
        let saved = self.saved_parts(saved).await.ok()??;
        let is_one = saved.len() == 1;
        let mut all = Vec::new();
        for (part, kept) in saved {
            let Some(kept) = kept else { continue };
            let opened = part.opened.clone();
            let changes = self.io().run(async move {
                let Some(place) = &opened.stored_at else { return Err(not_stored()) };
                kept.changes(opened.catalog.objects(), place, &opened.storage).await
            });
            let changes = changes.await.ok()?;
            all.push(if is_one { changes } else { format!("{}: {changes}", part.part_name()) });
        }
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Maps the samples of `older`, an earlier version of this data set, to those that it has now.
    ///
    /// ```
    /// use feedstock_dataset::{Dataset, SampleId};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("en/1.jpg", "a"), ("en/2.jpg", "bb"), ("de/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let open = async |part: &str| {
    /// #     let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// #     let path = folder.path().join(part);
    /// #     Dataset::open_with(path.to_str().unwrap(), OpenOptions { catalog, ..OpenOptions::default() }).await
    /// # };
    /// # futures::executor::block_on(async {
    /// let older = open("en").await?; // 1.jpg, 2.jpg
    /// std::fs::write(folder.path().join("en/0.jpg"), "new").unwrap();
    /// std::fs::remove_file(folder.path().join("en/2.jpg")).unwrap();
    ///
    /// let map = open("en").await?.samples_of(&older).await?;
    /// assert_eq!(map.newer(SampleId(0)), Some(SampleId(1))); // 1.jpg comes after 0.jpg now
    /// assert_eq!(map.newer(SampleId(1)), None); // 2.jpg is gone
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// Storage's, from reading the footers that the catalogs store.
    pub async fn samples_of(&self, older: &Self) -> Result<SameSamples> {
        let (mut all, mut before) = (SameSamples::default(), (0, 0));
        for (old, new) in older.stored_parts().into_iter().zip(self.stored_parts()) {
            let (was, is) = (old.catalog().base().clone(), new.catalog().base().clone());
            let samples = (was.samples(), is.samples());
            let storage = new.storage().clone();
            let same = match Arc::ptr_eq(&was, &is) {
                true => SameSamples::all(samples.0),
                false => self.io().run(async move { same_samples(&was, &is, &storage).await }).await?,
            };
            all.push(same, before);
            before = (before.0 + samples.0, before.1 + samples.1);
        }
        Ok(all)
    }

    /// Returns the stored data sets that it consists of, in the order of their samples.
    pub(crate) fn stored_parts(&self) -> Vec<&Self> {
        match &self.composition {
            Composition::Stored => vec![self],
            Composition::Mix(mix) => mix.datasets().flat_map(Self::stored_parts).collect(),
            Composition::Concat(parts) => parts.iter().flat_map(Self::stored_parts).collect(),
        }
    }

    /// Returns the stored data sets that it consists of, then those of its joins, as its description names them.
    pub(crate) fn all_stored(&self) -> Vec<&Self> {
        let mut all: Vec<&Self> = match &self.composition {
            Composition::Stored => vec![self],
            Composition::Mix(mix) => mix.datasets().flat_map(Self::all_stored).collect(),
            Composition::Concat(parts) => parts.iter().flat_map(Self::all_stored).collect(),
        };
        all.extend(self.others.iter().flat_map(Self::all_stored));
        all
    }

    /// Returns the stored parts, each with its catalog at the time of the cursor if that was replaced since. Returns `None`
    /// if no combination of kept catalogs has the saved identity.
    async fn saved_parts(&self, saved: &Fingerprint) -> Result<Option<Vec<(&Self, Option<Kept>)>>> {
        let stored = self.stored_parts();
        let mut versions = Vec::with_capacity(stored.len());
        for part in &stored {
            versions.push(part.versions().await?);
        }
        let Some(choice) = self.find(saved, &versions) else { return Ok(None) };
        let kept = versions.into_iter().zip(choice).map(|(versions, chosen)| versions.take(chosen));
        Ok(Some(stored.into_iter().zip(kept).collect()))
    }

    async fn versions(&self) -> Result<Versions> {
        let opened = self.opened.clone();
        let kept = self.io().run(async move {
            Ok(match &opened.stored_at {
                Some(place) => kept_catalogs(place, &opened.storage).await,
                None => Vec::new(),
            })
        });
        Ok(Versions { current: self.catalog().hashes(), kept: kept.await? })
    }

    /// Returns for each stored part the version that was saved: 0 for the current one, n for the nth kept one.
    fn find(&self, saved: &Fingerprint, versions: &[Versions]) -> Option<Vec<usize>> {
        let mut choice = vec![0; versions.len()];
        for _ in 0..MAX_COMBINATIONS {
            let of_choice = versions.iter().zip(&choice).map(|(versions, chosen)| versions.get(*chosen));
            let hashes: Vec<(u64, u64)> = of_choice.collect();
            let data = self.identity_with(&mut hashes.iter().map(|(identity, _)| *identity));
            let is_saved = match saved.blocks {
                Some(_) => data == (saved.catalog, saved.mixing.as_ref().and_then(|mixing| mixing.data)),
                None => hashes.len() == 1 && hashes[0].1 == saved.catalog,
            };
            if is_saved {
                return Some(choice);
            }
            // The next combination: the last part's versions change fastest.
            let next = (0..choice.len()).rfind(|&part| choice[part] < versions[part].kept.len())?;
            choice[next] += 1;
            choice[next + 1..].fill(0);
        }
        None
    }

    /// Returns the identity, and the hash of a mix's parts, for these identities of the stored parts.
    fn identity_with(&self, stored: &mut dyn Iterator<Item = u64>) -> (u64, Option<u64>) {
        match &self.composition {
            Composition::Stored => (stored.next().unwrap_or(0), None),
            Composition::Concat(_) => {
                let parts: Vec<u64> = stored.take(self.stored_parts().len()).collect();
                (identity_of_parts(&parts), None)
            }
            Composition::Mix(mix) => {
                let parts: Vec<u64> = mix.datasets().map(|part| part.identity_with(stored).0).collect();
                (parts[0], Some(Mixing::hash_of(&parts)))
            }
        }
    }

    async fn with_kept(&self, kept: Kept) -> Result<Self> {
        let opened = self.opened.clone();
        let loaded = self.io().run(async move {
            let Some(place) = &opened.stored_at else { return Err(not_stored()) };
            kept.load(place, &opened.storage).await
        });
        let catalog = loaded.await?;
        let opened = &self.opened;
        let was = Opened {
            place_hash: place_hash(&catalog, [opened.place_hash.to_le_bytes()]),
            storage: opened.storage.clone(),
            stored_at: None,
            is_catalog_kept: false,
            published_as: None,
            cache: None,
            functions: opened.functions.clone(),
            source: opened.source.clone(),
            catalog: Arc::new(catalog),
        };
        let all = (0..was.catalog.schema().fields().len()).collect();
        let was = Self {
            opened: Arc::new(was),
            selection: None,
            steps: Arc::default(),
            others: Arc::default(),
            columns: all,
            name: self.name.clone(),
            composition: Composition::Stored,
        };
        let names = self.columns.iter().map(|&column| self.catalog().schema().field(column).name().as_str());
        self.selected_again(was).await?.columns(&names.collect::<Vec<_>>())
    }

    /// Returns the same composition, made of other versions of its stored parts.
    fn made_of<'a>(
        &'a self,
        stored: &'a mut (dyn Iterator<Item = Self> + Send),
    ) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move {
            let made = match &self.composition {
                Composition::Stored => return stored.next().ok_or_else(not_stored), // already filtered
                Composition::Concat(parts) => {
                    let mut made = Vec::with_capacity(parts.len());
                    for part in parts.iter() {
                        made.push(part.made_of(stored).await?);
                    }
                    Self::concat(made)?
                }
                Composition::Mix(mix) => {
                    let mut made = Vec::new();
                    for (part, weight) in mix.parts() {
                        made.push((part.made_of(stored).await?, weight));
                    }
                    Self::mix(made, mix.stop)?
                }
            };
            self.selected_again(Self { name: self.name.clone(), ..made }).await
        })
    }

    /// Selects the samples of `other`, an older version of this data set, by the same steps.
    async fn selected_again(&self, other: Self) -> Result<Self> {
        other.applied(&self.steps, &self.others).await.map_err(|e| {
            e.context(
                "selecting from the data from when the state was saved, which may need all files of that time (without \
                 them, load the state with on_change=next_epoch)",
            )
        })
    }
}

fn not_stored() -> Error {
    Error::new(ErrorKind::Bug, "a version of a data set whose catalog is not stored")
}

/// The available versions of one stored data set.
struct Versions {
    current: DataHashes,
    kept: Vec<Kept>,
}

impl Versions {
    /// Returns the catalog of a version; `None` for the current one.
    fn take(mut self, version: usize) -> Option<Kept> {
        version.checked_sub(1).map(|kept| self.kept.swap_remove(kept))
    }

    /// Returns the identity and the legacy hash of a version.
    fn get(&self, version: usize) -> (u64, u64) {
        match version.checked_sub(1) {
            None => (self.current.identity, self.current.legacy),
            Some(kept) => self.kept[kept].hashes(),
        }
    }
}
