//! Stored catalogs for other machines: published in a folder or bucket, or sent to a worker.
//!
//! ```text
//! stored catalog ─▶ publish_catalog ─▶ folder or bucket ─────────▶ CatalogSource::Folder ─┐
//!        └───────▶ StoredCatalog ── a rank sends it ─▶ CatalogInbox ─▶ Received ──────────┴─▶ used if it fits the listing
//! ```
//! What guards reads (ETags; inodes and times of local files) is in a catalog. A ready catalog is used only if it fits the data as a
//! stored one must (`open/build.rs`); one that a rank sent is compared with a whole listing, whatever its size. Those who publish
//! catalogs, and ranks that know a worker's token, are trusted beyond that: a listing does not prove what is in the tables.

use crate::open::{Opened, published};
use crate::stored::{Parcel, Place, copy};
use crate::{Dataset, Error, Result};
use bytes::Bytes;
use std::sync::Arc;

impl Dataset {
    /// Stores a copy of its catalog in `folder`, local or in a bucket, from which other machines take it
    /// ([`CatalogSource::Folder`]) instead of building it. Of a mix or a concatenation, those of all its parts, and with joins,
    /// those of the other data sets. Blocks while it writes.
    ///
    /// ```
    /// use feedstock_dataset::{CatalogOptions, CatalogSource, CatalogStore, Dataset, OpenOptions};
    ///
    /// # let (folder, caches, shared) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    /// # std::fs::write(folder.path().join("1.jpg"), "a").unwrap();
    /// # let (uri, shared) = (folder.path().to_str().unwrap(), shared.path().to_str().unwrap());
    /// # let open = async |cache: &str, sources: Vec<CatalogSource>| {
    /// #     let catalog = CatalogOptions { store: CatalogStore::Cache(caches.path().join(cache)), sources, ..Default::default() };
    /// #     Dataset::open_with(uri, OpenOptions { catalog, ..OpenOptions::default() }).await
    /// # };
    /// # futures::executor::block_on(async {
    /// open("this machine", vec![]).await?.publish_catalog(shared).await?; // for example s3://corpus/catalogs
    ///
    /// let sources = vec![CatalogSource::Folder(shared.into())];
    /// let elsewhere = open("another machine", sources).await?; // copies the catalog into its own cache
    /// assert!(elsewhere.is_catalog_kept());
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` if a catalog is not stored or is of copies of compressed archives, which only this machine has; storage's
    /// errors.
    pub async fn publish_catalog(&self, folder: &str) -> Result<()> {
        for part in self.all_stored() {
            let (opened, folder) = (part.opened.clone(), folder.to_owned());
            let published = self.io().run(async move {
                let to = published(&folder, opened.published_as.as_deref().ok_or_else(not_stored)?)?;
                copy(stored_place(&opened)?, &to, &opened.storage).await
            });
            published
                .await
                .map_err(|error| error.context(format!("publishing the catalog of {}", part.uri())))?;
        }
        Ok(())
    }

    /// Returns the stored catalogs of its parts and joins, in the order of [`DatasetSpec::sources`](crate::DatasetSpec::sources); `None` for
    /// those that are not stored.
    pub fn stored_catalogs(&self) -> Vec<Option<StoredCatalog>> {
        let stored =
            |part: &Self| stored_place(&part.opened).is_ok().then(|| StoredCatalog(part.opened.clone()));
        self.all_stored().into_iter().map(stored).collect()
    }
}

fn stored_place(opened: &Opened) -> Result<&Place> {
    opened.stored_at.as_ref().filter(|_| opened.is_catalog_kept).ok_or_else(not_stored)
}

fn not_stored() -> Error {
    Error::config("its catalog is not stored")
}

/// The stored catalog of one data set, to be sent to another machine.
#[derive(Clone)]
pub struct StoredCatalog(Arc<Opened>);

impl StoredCatalog {
    /// Returns the hash of the listing (names, sizes, ETags) that the catalog fits.
    pub fn listing(&self) -> u64 {
        self.0.catalog.listing
    }

    /// Reads index and tables of the stored catalog, which may be newer than the one that the data set was opened with. Tables on
    /// a local disk are mapped.
    ///
    /// # Errors
    /// `BadConfig` for a catalog of copies of compressed archives, and for one over 256 MiB; `Gone` if a table is damaged or
    /// missing; storage's errors.
    pub async fn read(&self) -> Result<(Vec<u8>, Vec<Bytes>)> {
        let opened = self.0.clone();
        let reading = async move {
            let (place, storage) = (stored_place(&opened)?, &opened.storage);
            let parcel = Parcel::of(place, storage).await?.within_limit()?;
            let mut tables = Vec::new();
            for number in 0..parcel.sizes().count() {
                tables.push(parcel.read(number, place, storage).await?);
            }
            Ok((parcel.index()?, tables))
        };
        self.0.storage.io().run(reading).await
    }
}
