//! Catalogs that ranks send to a worker.

use crate::open::{place_in, place_of};
use crate::stored::{Parcel, Place, has};
use crate::{Allow, CatalogSource, Error, ErrorKind, IoRuntime, OpenOptions, Result, SourceSpec, Storage};
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a worker keeps catalogs that ranks send, and which of them it lacks.
///
/// ```
/// use feedstock_dataset::{CatalogInbox, CatalogOptions, CatalogSource, Dataset, OpenOptions};
///
/// # let (folder, sender, inbox) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
/// # std::fs::write(folder.path().join("1.jpg"), "a").unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// # let own = |store, sources| {
/// #     let catalog = CatalogOptions { store, sources, ..CatalogOptions::default() };
/// #     OpenOptions { catalog, ..OpenOptions::default() }
/// # };
/// # use feedstock_dataset::{Allow, CatalogStore::{Cache, Nowhere}};
/// # futures::executor::block_on(async {
/// let dataset = Dataset::open_with(uri, own(Cache(sender.path().into()), vec![])).await?; // at the rank
/// let stored = dataset.stored_catalogs()[0].clone().unwrap();
/// let (index, tables) = stored.read().await?;
///
/// let inbox = CatalogInbox::new(inbox.path()); // at the worker
/// let spec = dataset.spec().source;
/// assert!(inbox.lacks(&spec, own(Nowhere, vec![]), stored.listing()).await?);
/// let mut incoming = inbox.receive(&spec, own(Nowhere, vec![]), &index)?;
/// for table in tables {
///     incoming.put(table).await?;
/// }
/// incoming.finish(&Allow::new([uri])?).await?; // its hashes are computed anew
/// assert!(!inbox.lacks(&spec, own(Nowhere, vec![]), stored.listing()).await?);
/// # Ok::<(), feedstock_dataset::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
pub struct CatalogInbox {
    root: PathBuf,
}

impl CatalogInbox {
    /// Names the local folder of the inbox.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the source that reads from it.
    pub fn source(&self) -> CatalogSource {
        CatalogSource::Received(self.root.clone())
    }

    /// Whether neither the inbox nor the own store has a catalog of `source` for a listing with this hash
    /// ([`StoredCatalog::listing`](crate::StoredCatalog::listing)).
    ///
    /// # Errors
    /// `BadConfig` if the source is not one data set; storage's errors.
    pub async fn lacks(&self, source: &SourceSpec, own: OpenOptions, listing: u64) -> Result<bool> {
        let Described { uri, options, storage } = Described::new(source, own)?;
        let places = [place_of(&uri, &options)?, Some(place_in(&self.source(), &uri, &options)?)];
        let io = storage.io().clone();
        io.run(async move {
            for place in places.into_iter().flatten() {
                if has(&place, listing, &storage).await {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .await
    }

    /// Begins to receive the catalog of `source`; `index` is what [`StoredCatalog::read`](crate::StoredCatalog::read) returned.
    ///
    /// # Errors
    /// `BadConfig` for a catalog of another version, one of copies of archives, and one over 256 MiB.
    pub fn receive(&self, source: &SourceSpec, own: OpenOptions, index: &[u8]) -> Result<IncomingCatalog> {
        let Described { uri, options, storage } = Described::new(source, own)?;
        let place = place_in(&self.source(), &uri, &options)?;
        Ok(IncomingCatalog {
            parcel: Parcel::received(index)?.into(),
            place: place.into(),
            storage,
            stored: 0,
        })
    }
}

/// What a description names, with this machine's own options.
struct Described {
    /// Without credentials, as in the names of stored catalogs.
    uri: String,
    options: OpenOptions,
    storage: Storage,
}

impl Described {
    fn new(source: &SourceSpec, own: OpenOptions) -> Result<Self> {
        let several = || Error::config("a mix is not catalogued: its parts are");
        let uri = source.uri().ok_or_else(several)?;
        let options = source.options_with(own);
        let storage = Storage::new(options.storage.clone(), IoRuntime::shared()?)?;
        Ok(Self { uri: storage.keep_credentials(uri), options, storage })
    }
}

/// A catalog on its way into a [`CatalogInbox`]: its tables in their order, then the index.
pub struct IncomingCatalog {
    parcel: Arc<Parcel>,
    place: Arc<Place>,
    storage: Storage,
    /// Tables stored so far.
    stored: usize,
}

impl IncomingCatalog {
    /// Returns the bytes of the table that comes next; `None` after the last.
    pub fn next_bytes(&self) -> Option<u64> {
        self.parcel.sizes().nth(self.stored)
    }

    /// Stores the next table.
    ///
    /// # Errors
    /// `BadConfig` for bytes that are not those of the table; storage's errors.
    pub async fn put(&mut self, bytes: Bytes) -> Result<()> {
        let (parcel, place, storage) = (self.parcel.clone(), self.place.clone(), self.storage.clone());
        let number = self.stored;
        let io = self.storage.io().clone();
        io.run(async move { parcel.write(number, bytes, &place, &storage).await }).await?;
        self.stored += 1;
        Ok(())
    }

    /// Checks the whole catalog and makes it usable: identity and blocks are hashed anew, and `allow` must permit to read every
    /// object.
    ///
    /// # Errors
    /// `BadConfig` for a catalog that is not complete or does not have the hashes that it states; `Denied` for an object that
    /// may not be read.
    pub async fn finish(self, allow: &Allow) -> Result<()> {
        if self.next_bytes().is_some() {
            return Err(Error::new(ErrorKind::BadConfig, "a catalog ends before its last table"));
        }
        let allow = allow.clone();
        let io = self.storage.io().clone();
        io.run(async move {
            self.parcel.verify(&self.place, &allow, &self.storage).await?;
            self.parcel.finish(&self.place, &self.storage).await
        })
        .await
    }
}
