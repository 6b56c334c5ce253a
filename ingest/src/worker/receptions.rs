//! Catalogs that ranks send, so that a worker need not build them.
//!
//! ```text
//! Describe {which the rank can send} ─▶ those that are lacking, and that no other rank is sending ─▶ Described {wanted}
//! Catalog {index}, tables            ─▶ CatalogInbox: checked, hashed anew ─▶ Taken
//! Prepare (any rank's)               ─▶ waits for what is under way, then opens the data set
//! ```

use crate::recipe::RecipeSpec;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{
    Allow, CatalogInbox, CatalogSource, CatalogStore, IncomingCatalog, OpenOptions, SourceSpec,
};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{Semaphore, SemaphorePermit, watch};

/// Catalogs received at once, each with up to 256 MiB of the worker's memory.
const AT_ONCE: usize = 2;

/// The folder of an inbox is named so.
const PREFIX: &str = "received-";

/// Older folders are of workers that were killed.
const ABANDONED: Duration = Duration::from_secs(30 * 24 * 3600);

/// How a worker opens data sets: its own storage options, caches and functions.
pub(crate) type OpenWith = Arc<dyn Fn() -> OpenOptions + Send + Sync>;

/// The catalogs that a worker has received. Their folder goes with the worker: ranks that know its token sent them, and no other
/// process relies on them.
pub(crate) struct Receptions {
    inbox: CatalogInbox,
    open_with: OpenWith,
    allow: Allow,
    under_way: Mutex<HashMap<String, watch::Receiver<()>>>,
    at_once: Semaphore,
}

/// Makes the folder for catalogs that ranks send, in the worker's cache if it has one. `None` where that fails, which costs time
/// and nothing else.
pub(crate) fn inbox_folder(store: &CatalogStore) -> Option<tempfile::TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX);
    let made = match store {
        CatalogStore::Cache(cache) => {
            feedstock_dataset::make_private(cache);
            remove_abandoned(cache);
            std::fs::create_dir_all(cache).and_then(|()| builder.tempdir_in(cache))
        }
        CatalogStore::Beside | CatalogStore::Nowhere => builder.tempdir(),
    };
    made.inspect_err(|error| tracing::warn!("no folder for catalogs that ranks could send: {error}")).ok()
}

fn remove_abandoned(cache: &Path) {
    let is_old = |entry: &std::fs::DirEntry| {
        let changed = entry.metadata().and_then(|facts| facts.modified());
        changed.is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age > ABANDONED))
    };
    for entry in std::fs::read_dir(cache).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX) && is_old(&entry) {
            let _used_space = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The right to send one catalog. Others wait until it is given back.
pub(crate) struct Reception {
    number: u32,
    source: SourceSpec,
    key: String,
    owner: Arc<Receptions>,
    /// Its receivers notice when it goes.
    _ended: watch::Sender<()>,
}

impl Drop for Reception {
    fn drop(&mut self) {
        self.owner.under_way().remove(&self.key);
    }
}

impl Receptions {
    pub(crate) fn new(inbox: &Path, open_with: OpenWith, allow: Allow) -> Self {
        Self {
            inbox: CatalogInbox::new(inbox),
            open_with,
            allow,
            under_way: Mutex::default(),
            at_once: Semaphore::new(AT_ONCE),
        }
    }

    /// Returns where received catalogs are found.
    pub(crate) fn source(&self) -> CatalogSource {
        self.inbox.source()
    }

    /// Returns which of the offered catalogs of a recipe are lacking; numbers are those of its URIs.
    pub(crate) async fn wanted(self: &Arc<Self>, spec: &RecipeSpec, offered: &[u32]) -> Vec<Reception> {
        let sources = spec.dataset.sources();
        let mut wanted = Vec::new();
        for &number in offered {
            let Some(source) = sources.get(number as usize) else { continue };
            let Some(reception) = self.begin(number, source) else { continue };
            match self.inbox.lacks(source, self.options()).await {
                Ok(true) => wanted.push(reception),
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, "a catalog is not received"),
            }
        }
        wanted
    }

    /// Waits until no catalog of these sources is under way.
    pub(crate) async fn ended(&self, sources: &[&SourceSpec]) {
        for source in sources {
            let under_way = key(source).and_then(|key| self.under_way().get(&key).cloned());
            if let Some(mut under_way) = under_way {
                let _ended = under_way.changed().await; // it never changes: its sender goes
            }
        }
    }

    /// Registers a reception, unless one is under way.
    fn begin(self: &Arc<Self>, number: u32, source: &SourceSpec) -> Option<Reception> {
        let key = key(source)?;
        let mut under_way = self.under_way();
        if under_way.contains_key(&key) {
            return None;
        }
        let (ended, waiting) = watch::channel(());
        under_way.insert(key.clone(), waiting);
        Some(Reception { number, source: source.clone(), key, owner: self.clone(), _ended: ended })
    }

    fn options(&self) -> OpenOptions {
        (self.open_with)()
    }

    fn under_way(&self) -> MutexGuard<'_, HashMap<String, watch::Receiver<()>>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner) // entries are stored and removed whole
    }
}

/// Descriptions of equal text are of one catalog.
fn key(source: &SourceSpec) -> Option<String> {
    serde_json::to_string(source).ok()
}

impl Reception {
    /// Which of the recipe's URIs it is for.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Begins to receive the catalog; waits while others are received.
    ///
    /// # Errors
    /// `BadConfig` for a catalog that this release cannot use or that is too large.
    pub(crate) async fn receive(&self, index: &str) -> Result<Receiving<'_>> {
        let few = self.owner.at_once.acquire().await;
        let few = few.map_err(|_| Error::new(ErrorKind::Retryable, "the worker stops; ask another one"))?;
        let catalog = self.owner.inbox.receive(&self.source, self.owner.options(), index.as_bytes())?;
        Ok(Receiving { catalog, allow: &self.owner.allow, _few: few })
    }
}

/// A catalog that comes in.
pub(crate) struct Receiving<'a> {
    pub(crate) catalog: IncomingCatalog,
    allow: &'a Allow,
    _few: SemaphorePermit<'a>,
}

impl Receiving<'_> {
    /// Makes it usable, after all tables have come.
    ///
    /// # Errors
    /// Those of [`IncomingCatalog::finish`].
    pub(crate) async fn finish(self) -> Result<()> {
        self.catalog.finish(self.allow).await
    }
}
