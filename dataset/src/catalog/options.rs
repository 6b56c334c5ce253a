//! Where a catalog is kept, how it is checked, and who receives its progress.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;

/// How far building a catalog has come; reported about once an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// What is being done, as a person would say it: `listing`, `reading footers` …
    pub stage: &'static str,
    /// Objects done; clips or MiB where the stage says so.
    pub done: u64,
    /// Objects (clips, MiB) in all, where that is known.
    pub total: Option<u64>,
}

/// Told of [`Progress`], from an I/O thread: keep it short.
pub type ProgressFn = Arc<dyn Fn(Progress) + Send + Sync>;

/// Where catalogs are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CatalogStore {
    /// In this folder, one subfolder a data set.
    Cache(PathBuf),
    /// In `_feedstock/` beside the data; needs write access there.
    Beside,
    /// In memory only: built again at each open.
    Nowhere,
}

impl Default for CatalogStore {
    /// `$FEEDSTOCK_CACHE/catalogs`, else `~/.cache/feedstock/catalogs` (below `$XDG_CACHE_HOME` where that is set), else
    /// nowhere. The user's own cache folder is created with mode 0700; other folders follow the umask.
    fn default() -> Self {
        crate::home::cache_folder("catalogs").map_or(Self::Nowhere, Self::Cache)
    }
}

/// How a stored catalog is compared with the storage before it is used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CatalogCheck {
    /// By listing the objects if the catalog has at most 100,000 of them. A larger catalog is used without a listing,
    /// and the log states so; only its tables (TSVs, manifests) are compared. If a listing that was interrupted and resumed
    /// made it, it is listed once more at the next opening.
    #[default]
    Auto,
    /// By listing the objects, however many there are: one request for every 1,000 of them.
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
#[derive(Clone, Default)]
pub struct CatalogOptions {
    /// Where it is kept; by default the cache folder.
    pub store: CatalogStore,
    /// How a stored one is compared with the storage; by default by listing, up to 100,000 objects.
    pub check: CatalogCheck,
    /// Build it anew even if a stored one fits; default false.
    pub rebuild: bool,
    /// Told how the building goes; default nobody.
    pub progress: Option<ProgressFn>,
}

impl fmt::Debug for CatalogOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CatalogOptions")
            .field("store", &self.store)
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
