//! The opened data set: a catalog, and the selected samples and columns.

use crate::catalog::project;
use crate::open::{Opened, folder_name, open_or_build, place_hash, place_of};
use crate::steps::SelectionStep;
use crate::storage::{absolute, hide_urls, resolved, shown};
use crate::{
    BlockReader, Catalog, DiskCache, Error, IoRuntime, OpenOptions, Result, Selection, SourceSpec, Stop,
    Storage, UnsupportedAudio,
};
use arrow::record_batch::RecordBatch;
use datafusion::prelude::SessionContext;
use std::fmt;
use std::sync::Arc;

/// With smaller blocks, requests would cost more than the bytes that they fetch.
const MIN_BLOCK_BYTES: u64 = 4 << 10;

/// A data set: its catalog, and the samples and columns that are selected.
///
/// Cheap to clone. Selections of samples and columns return a new value that shares everything else.
#[derive(Clone)]
pub struct Dataset {
    pub(crate) opened: Arc<Opened>,
    pub(crate) selection: Option<Arc<Selection>>,
    /// The calls that made the selection and the columns.
    pub(crate) steps: Arc<[SelectionStep]>,
    /// The other data sets of its joins, in the sequence of the calls.
    pub(crate) others: Arc<[Dataset]>,
    pub(crate) columns: Arc<[usize]>,
    /// Its name in a mix or a concatenation.
    pub(crate) name: Option<Arc<str>>,
    /// Whether it consists of others, and how.
    pub(crate) composition: Composition,
}

/// What a data set is made of.
#[derive(Clone)]
pub(crate) enum Composition {
    /// The data at one URI.
    Stored,
    /// Data sets that are mixed in shares by weight.
    Mix(Arc<Mix>),
    /// Data sets one after another.
    Concat(Arc<[Dataset]>),
}

/// A mix of data sets.
pub(crate) struct Mix {
    pub(crate) parts: Vec<(Dataset, f64)>,
    pub(crate) stop: Stop,
}

impl Mix {
    /// Returns the parts and their weights.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&Dataset, f64)> {
        self.parts.iter().map(|(part, weight)| (part, *weight))
    }

    pub(crate) fn datasets(&self) -> impl Iterator<Item = &Dataset> {
        self.parts().map(|(part, _)| part)
    }
}

impl Dataset {
    /// Opens `uri` (a folder or prefix, one object, or a pattern such as `s3://b/train-{000..099}.tar`) with
    /// default options.
    ///
    /// ```
    /// use feedstock_dataset::{Dataset, ErrorKind};
    ///
    /// let error = futures::executor::block_on(Dataset::open("/no/such/folder")).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Gone);
    /// assert!(error.message().contains("/no/such/folder"));
    /// ```
    ///
    /// # Errors
    /// `Gone` if nothing is there; `Denied`; `BadConfig` if the objects are not a data set. The message names the object
    /// and the reason.
    pub async fn open(uri: &str) -> Result<Self> {
        Self::open_with(uri, OpenOptions::default()).await
    }

    /// Opens `uri` with `options`: from a stored catalog that fits, else by building one. A relative path is resolved now,
    /// so later changes of the working directory have no effect.
    ///
    /// ```
    /// use feedstock_dataset::{Dataset, Layout};
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(uri, options).await?;
    /// assert_eq!((dataset.len(), dataset.catalog().layout()), (3, Layout::Folder));
    ///
    /// let options = OpenOptions { block_bytes: 1_000, ..OpenOptions::default() };
    /// let error = Dataset::open_with(uri, options).await.unwrap_err();
    /// assert_eq!(error.message(), "block_bytes must be at least 4096; got 1000");
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with(uri: &str, mut options: OpenOptions) -> Result<Self> {
        if options.block_bytes < MIN_BLOCK_BYTES {
            return Err(Error::config(format!(
                "block_bytes must be at least {MIN_BLOCK_BYTES}; got {}",
                options.block_bytes
            )));
        }
        let storage = Storage::new(options.storage.clone(), IoRuntime::shared()?)?;
        let io = storage.io().clone();
        let cache = options.disk_cache.clone().map(DiskCache::open).transpose()?;
        let (with_credentials, uri) = {
            let resolved = resolved(uri)?;
            let uri = storage.keep_credentials(&resolved);
            (resolved, uri)
        };
        options.settle(&uri)?;
        options.make_private_folders();
        io.run(async move {
            let stored_at = place_of(&uri, &options)?;
            let (catalog, is_catalog_kept) =
                open_or_build(&uri, stored_at.as_ref(), &options, &storage).await?;
            for note in catalog.notes() {
                tracing::info!(uri = shown(&uri), "{}", hide_urls(note));
            }
            let columns = (0..catalog.schema().fields().len()).collect();
            let source = SourceSpec::of(&with_credentials, &options)?;
            let published_as = Some(folder_name(&uri, &options)?);
            let place_hash = place_hash(&catalog, [storage.place_key(&absolute(&uri)?)]);
            let catalog = Arc::new(catalog);
            let functions = options.functions;
            let opened = Arc::new(Opened {
                catalog,
                storage,
                stored_at,
                is_catalog_kept,
                published_as,
                cache,
                functions,
                source,
                place_hash,
            });
            Ok(Self {
                opened,
                selection: None,
                steps: Arc::default(),
                others: Arc::default(),
                columns,
                name: None,
                composition: Composition::Stored,
            })
        })
        .await
    }

    /// Keeps these columns (metadata and payload) in blocks and batches, in this order; only they are read.
    ///
    /// ```
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(uri, options).await?;
    /// let chosen = dataset.clone().columns(&["image", "label"])?;
    /// let names: Vec<String> = chosen.block_reader().schema().fields().iter().map(|field| field.name().clone()).collect();
    /// assert_eq!(names, ["image", "label"]);
    ///
    /// let error = dataset.columns(&["picture"]).unwrap_err();
    /// assert!(error.message().starts_with("no column named picture; the columns are: "));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for an unknown column (the message lists the known ones) or one named twice.
    pub fn columns(mut self, names: &[&str]) -> Result<Self> {
        let columns = project(self.opened.catalog.schema(), names)?;
        if let Some(twice) = names.iter().enumerate().find(|(i, n)| names[..*i].contains(n)) {
            return Err(Error::config(format!("column {} is chosen twice", twice.1)));
        }
        self.columns = columns.into();
        Ok(self)
    }

    /// Returns the URI it was opened by, without credentials: an http(s) URL lacks its user name, password and signature.
    /// [`spec`](Self::spec) has them.
    pub fn uri(&self) -> &str {
        self.opened.catalog.uri()
    }

    /// Returns the URI it was opened by, with the credentials of a URL: to open it again, never to print. For a mix or a
    /// concatenation, this is [`uri`](Self::uri).
    pub fn opened_uri(&self) -> &str {
        match &self.opened.source {
            SourceSpec::Uri { uri, .. } => uri,
            SourceSpec::Mix { .. } | SourceSpec::Concat { .. } => self.uri(),
        }
    }

    /// Returns the catalog of all its samples and blocks, filtered or not, with the columns that steps made.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.opened.catalog
    }

    /// Returns a hash of the catalog's content and of where it is read from (endpoint and URI, without credentials and
    /// signatures). It is a key for what data sets of one process share.
    ///
    /// Copies of a data set have the same [`Catalog::content_hash`] and order, so a cursor of one fits the other. Without
    /// ETags, data sets with different bytes may have the same content hash, too. Their place hashes differ.
    ///
    /// ```
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// # let copy = tempfile::tempdir().unwrap();
    /// # for name in ["cat/1.jpg", "cat/2.jpg", "dog/3.jpg"] {
    /// #     std::fs::create_dir_all(copy.path().join(name).parent().unwrap()).unwrap();
    /// #     std::fs::copy(folder.path().join(name), copy.path().join(name)).unwrap();
    /// # }
    /// # let again = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let (copied, other) = (copy.path().to_str().unwrap(), OpenOptions { catalog: again, ..OpenOptions::default() });
    /// let (original, copy) = (Dataset::open_with(uri, options).await?, Dataset::open_with(copied, other).await?);
    /// assert_eq!(original.catalog().content_hash(), copy.catalog().content_hash()); // one order, one cursor
    /// assert_ne!(original.place_hash(), copy.place_hash());
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn place_hash(&self) -> u64 {
        self.opened.place_hash
    }

    /// Whether its catalog is stored where the options state, so that the next open need not build it again. This is false
    /// for a mix, with [`CatalogStore::Nowhere`](crate::CatalogStore::Nowhere), for signed URLs, and if the cache folder
    /// could not be written (the log states why).
    ///
    /// ```
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # let cache = tempfile::tempdir().unwrap();
    /// # let open = async |store| {
    /// #     let catalog = CatalogOptions { store, ..CatalogOptions::default() };
    /// #     Dataset::open_with(uri, OpenOptions { catalog, ..OpenOptions::default() }).await
    /// # };
    /// # futures::executor::block_on(async {
    /// assert!(open(CatalogStore::Cache(cache.path().into())).await?.is_catalog_kept());
    /// assert!(!open(CatalogStore::Nowhere).await?.is_catalog_kept());
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn is_catalog_kept(&self) -> bool {
        self.opened.is_catalog_kept
    }

    /// Returns the selected samples; `None` means all.
    pub fn selection(&self) -> Option<&Selection> {
        self.selection.as_deref()
    }

    /// Whether statistics prove that `column` is null in some of the selected samples: the null counts of Parquet
    /// footers, tables in memory, or a part of a mix or a concatenation that lacks the column.
    ///
    /// `false` proves nothing: there may be no statistics, or a filter may keep only some of the counted samples.
    pub fn proves_nulls(&self, column: &str) -> bool {
        self.catalog().proves_nulls(column, self.selection().map(Selection::bits))
    }

    /// Returns the audio clips, selected by the filters, whose codecs are certainly not decoded.
    ///
    /// They are known from headers that were read when the catalog was built, with an [`AudioProbe`](crate::AudioProbe): all of
    /// them if the data set has one column of audio and no durations, else some that are evenly spread (at most 1,000 audio
    /// clips or 8 blocks a column). [`UnsupportedAudio::samples`] counts the samples of the whole catalog. `named` has only
    /// selected samples and is not empty.
    pub fn unsupported_audio(&self) -> Vec<UnsupportedAudio> {
        let mut found = self.catalog().unsupported_audio();
        if let Some(selection) = self.selection() {
            found.iter_mut().for_each(|codec| codec.named.retain(|sample| selection.contains(*sample)));
        }
        found.retain(|codec| !codec.named.is_empty());
        found
    }

    /// Returns the number of samples in an epoch: the selected ones; with [`weights`](Self::weights), their draws.
    pub fn len(&self) -> u64 {
        self.selection.as_ref().map_or_else(|| self.opened.catalog.samples(), |s| s.len())
    }

    /// Always false: opening an empty data set is an error, and so is a selection that keeps nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the I/O threads that its reads run on.
    pub fn io(&self) -> &IoRuntime {
        self.opened.storage.io()
    }

    /// Returns the storage that it is read from.
    pub fn storage(&self) -> &Storage {
        &self.opened.storage
    }

    /// Returns the disk cache that its blocks are read through, if there is one.
    pub fn disk_cache(&self) -> Option<&DiskCache> {
        self.opened.cache.as_ref()
    }

    /// Returns a reader of its blocks, with the chosen columns.
    pub fn block_reader(&self) -> BlockReader {
        let opened = &self.opened;
        BlockReader::new(
            opened.catalog.clone(),
            opened.storage.clone(),
            opened.cache.clone(),
            self.columns.to_vec(),
        )
    }

    /// Returns a DataFusion context with the table `catalog`: all metadata and payload columns and `sample_id` (UInt64), of
    /// all samples, filtered or not.
    ///
    /// # Errors
    /// `Bug` if DataFusion rejects the table.
    pub fn sql_context(&self) -> Result<SessionContext> {
        crate::sql::context(&self.opened)
    }

    /// Runs a query over the table `catalog`, such as `select label, count(*) from catalog group by label`. Returns at
    /// least one batch, which is empty if there are no rows.
    ///
    /// ```
    /// use arrow::array::AsArray;
    /// use arrow::datatypes::Int64Type;
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(uri, options).await?;
    /// let rows = dataset.sql("select class, count(*) as n from catalog group by class order by class").await?;
    /// let n: Vec<i64> = rows[0]["n"].as_primitive::<Int64Type>().values().to_vec();
    /// assert_eq!(n, [2, 1]); // cats, dogs
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for an invalid query, with DataFusion's message and the columns; storage's errors.
    pub async fn sql(&self, query: &str) -> Result<Vec<RecordBatch>> {
        crate::sql::query(&self.opened, query).await
    }
}

impl fmt::Debug for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dataset")
            .field("catalog", &self.opened.catalog)
            .field("steps", &self.steps)
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
