//! Where a catalog is kept, how it is checked, and who receives its progress.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// The progress of building a catalog; reported about once an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The activity, in words for the user: `listing`, `reading footers` …
    pub stage: &'static str,
    /// Objects done; audio clips or MiB if the stage names them.
    pub done: u64,
    /// Objects (audio clips, MiB) in all, if known.
    pub total: Option<u64>,
}

/// Receives [`Progress`] on an I/O thread; it must return quickly.
pub type ProgressFn = Arc<dyn Fn(Progress) + Send + Sync>;

/// Where catalogs are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatalogStore {
    /// In this folder, with a subfolder for each data set.
    Cache(PathBuf),
    /// In `_feedstock/` next to the data; needs write access there.
    Beside,
    /// In memory only: built again at every open.
    Nowhere,
}

impl Default for CatalogStore {
    /// `$FEEDSTOCK_CACHE/catalogs`, else `~/.cache/feedstock/catalogs` (below `$XDG_CACHE_HOME` if that is set), else
    /// nowhere. The user's own cache folder is created with mode 0700; other folders follow the umask.
    fn default() -> Self {
        crate::home::cache_folder("catalogs").map_or(Self::Nowhere, Self::Cache)
    }
}

/// Where a ready catalog is looked for before one is built. It is used only if it fits what the storage lists now.
///
/// ```
/// use feedstock_dataset::CatalogSource;
///
/// assert_eq!(CatalogSource::from("beside".to_owned()), CatalogSource::Beside);
/// let folder = "s3://corpus/catalogs".to_owned();
/// assert_eq!(CatalogSource::from(folder.clone()), CatalogSource::Folder(folder));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatalogSource {
    /// In `_feedstock/` next to the data, where [`CatalogStore::Beside`] stored it.
    Beside,
    /// In this folder, local or in a bucket, where
    /// [`Dataset::publish_catalog`](crate::Dataset::publish_catalog) stored it.
    Folder(String),
    /// In this local folder, in which a worker keeps the catalogs that ranks sent it. They are read there and never copied
    /// into the worker's own cache.
    Received(PathBuf),
}

impl From<String> for CatalogSource {
    fn from(text: String) -> Self {
        match text.as_str() {
            "beside" => Self::Beside,
            _ => Self::Folder(text),
        }
    }
}

/// How a stored catalog is compared with the storage before it is used.
///
/// ```
/// use feedstock_dataset::CatalogCheck;
///
/// assert_eq!("list".parse(), Ok(CatalogCheck::List));
/// assert_eq!("often".parse::<CatalogCheck>(), Err("must be auto or list; got often".to_owned()));
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CatalogCheck {
    /// By listing the objects if the catalog has at most 100,000 of them. A larger catalog is used without a listing, and the
    /// log states so; only its tables (TSVs, manifests) are compared. A catalog whose listing was interrupted and resumed is
    /// compared with a new listing at the next open, whatever its size.
    #[default]
    Auto,
    /// By listing the objects, whatever their number: one request for every 1,000 of them.
    List,
}

impl FromStr for CatalogCheck {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "list" => Ok(Self::List),
            _ => Err(format!("must be auto or list; got {text}")),
        }
    }
}

/// How the catalog is kept, checked and built.
///
/// ```
/// # use std::sync::{Arc, Mutex};
/// # use feedstock_dataset::{CatalogOptions, CatalogStore, Dataset, OpenOptions};
/// # let folder = tempfile::tempdir().unwrap();
/// # std::fs::write(folder.path().join("1.jpg"), "a").unwrap();
/// # let uri = folder.path().to_str().unwrap();
/// let stages = Arc::new(Mutex::new(Vec::new()));
/// let seen = stages.clone();
/// let catalog = CatalogOptions {
///     store: CatalogStore::Nowhere,
///     progress: Some(Arc::new(move |progress| seen.lock().unwrap().push(progress.stage))),
///     ..CatalogOptions::default()
/// };
/// let options = OpenOptions { catalog, ..OpenOptions::default() };
/// futures::executor::block_on(Dataset::open_with(uri, options))?;
/// assert!(stages.lock().unwrap().contains(&"listing"));
/// # Ok::<(), feedstock_dataset::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct CatalogOptions {
    /// Where the catalog is kept; default: the cache folder.
    pub store: CatalogStore,
    /// Where ready catalogs are looked for, in this order, if the store has none that fits; default nowhere. A catalog that is
    /// found in a folder or next to the data is copied into the store.
    pub sources: Vec<CatalogSource>,
    /// How a stored catalog is compared with the storage; default: by listing, up to 100,000 objects.
    pub check: CatalogCheck,
    /// Builds the catalog again even if a stored one fits; default false.
    pub rebuild: bool,
    /// Receives the progress of building; default none.
    pub progress: Option<ProgressFn>,
}

impl fmt::Debug for CatalogOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CatalogOptions")
            .field("store", &self.store)
            .field("sources", &self.sources)
            .field("check", &self.check)
            .field("rebuild", &self.rebuild)
            .field("progress", &self.progress.is_some())
            .finish()
    }
}

impl CatalogOptions {
    pub(crate) fn report(&self, stage: &'static str, done: u64, total: Option<u64>) {
        if let Some(progress) = &self.progress {
            progress(Progress { stage, done, total });
        }
    }
}
