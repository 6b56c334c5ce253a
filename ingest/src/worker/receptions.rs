//! Catalogs that ranks send, so that a worker need not build them.
//!
//! ```text
//! Describe {what the rank can send} ─▶ those that are lacking, and that no other rank is sending ─▶ Described {wanted}
//! Catalog {index}, tables            ─▶ CatalogInbox: checked, hashed anew ─▶ Taken
//! Prepare (any rank's)               ─▶ waits for what is under way, then opens the data set
//! ```

use crate::recipe::RecipeSpec;
use crate::wire::Offered;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{
    Allow, CatalogInbox, CatalogSource, CatalogStore, IncomingCatalog, OpenOptions, SourceSpec,
};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// Catalogs received at once. Each takes the memory of its largest table, or twice that: at most 512 MiB.
const AT_ONCE: usize = 2;

/// The folder of an inbox is named so.
const PREFIX: &str = "received-";

/// Locked for as long as the worker lives.
const LOCK: &str = "lock";

/// A folder that is older and has no lock file is not one that a worker is just making.
const MADE: Duration = Duration::from_secs(3600);

/// How a worker opens data sets: its own storage options, caches and functions.
pub(crate) type OpenWith = Arc<dyn Fn() -> OpenOptions + Send + Sync>;

/// The catalogs that a worker has received. Their folder goes with the worker: ranks that know its token sent them, and no other
/// process relies on them.
pub(crate) struct Receptions {
    inbox: CatalogInbox,
    open_with: OpenWith,
    allow: Allow,
    under_way: Mutex<HashMap<String, watch::Receiver<()>>>,
    at_once: Arc<Semaphore>,
}

/// The folder for catalogs that ranks send. It is removed when it is dropped or, if the worker was killed, by the next worker
/// with the same cache.
pub(crate) struct InboxFolder {
    folder: tempfile::TempDir,
    _lock: File,
}

impl InboxFolder {
    /// Makes it, in the worker's cache if it has one. `None` where that fails, which costs time and nothing else.
    pub(crate) fn new(store: &CatalogStore) -> Option<Self> {
        let made = match store {
            CatalogStore::Cache(cache) => Self::below(cache),
            CatalogStore::Beside | CatalogStore::Nowhere => Self::below(&std::env::temp_dir()),
        };
        made.inspect_err(|error| tracing::warn!("no folder for catalogs that ranks could send: {error}")).ok()
    }

    fn below(parent: &Path) -> io::Result<Self> {
        feedstock_dataset::make_private(parent);
        std::fs::create_dir_all(parent)?;
        remove_abandoned(parent);
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        let lock = File::create(folder.path().join(LOCK))?;
        lock.lock()?;
        Ok(Self { folder, _lock: lock })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders of workers that were killed.
fn remove_abandoned(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_inbox = entry.file_name().to_string_lossy().starts_with(PREFIX);
        if is_inbox && is_abandoned(&entry).unwrap_or(false) {
            let _used_space = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(folder: &std::fs::DirEntry) -> io::Result<bool> {
    // Open for writing, since NFS locks a file exclusively only then.
    match File::options().append(true).open(folder.path().join(LOCK)) {
        Ok(lock) => Ok(lock.try_lock().is_ok()),
        Err(_) => {
            let age = SystemTime::now().duration_since(folder.metadata()?.modified()?);
            Ok(age.is_ok_and(|age| age > MADE))
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
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Returns where received catalogs are found.
    pub(crate) fn source(&self) -> CatalogSource {
        self.inbox.source()
    }

    /// Returns which of the offered catalogs of a recipe are lacking; numbers are those of its URIs.
    pub(crate) async fn wanted(self: &Arc<Self>, spec: &RecipeSpec, offered: &[Offered]) -> Vec<Reception> {
        let sources = spec.dataset.sources();
        let mut wanted = Vec::new();
        for &Offered { number, listing } in offered {
            let Some(source) = sources.get(number as usize) else { continue };
            let Some(reception) = self.begin(number, source) else { continue };
            match self.inbox.lacks(source, self.options(), listing).await {
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
    pub(crate) async fn receive(self, index: String) -> Result<Receiving> {
        let few = self.owner.at_once.clone().acquire_owned().await;
        let few = few.map_err(|_| Error::new(ErrorKind::Retryable, "the worker stops; ask another one"))?;
        let catalog = self.owner.inbox.receive(&self.source, self.owner.options(), index.as_bytes())?;
        Ok(Receiving { catalog, reception: self, _few: few })
    }
}

/// A catalog that comes in.
pub(crate) struct Receiving {
    pub(crate) catalog: IncomingCatalog,
    reception: Reception,
    _few: OwnedSemaphorePermit,
}

impl Receiving {
    /// Makes it usable, after all tables have come. This goes on if the caller stops to wait.
    ///
    /// # Errors
    /// Those of [`IncomingCatalog::finish`].
    pub(crate) async fn finish(self) -> Result<()> {
        let finishing = tokio::spawn(async move {
            let Self { catalog, reception, _few } = self;
            catalog.finish(&reception.owner.allow).await
        });
        let ended =
            |error| Error::new(ErrorKind::Retryable, format!("checking a catalog was ended: {error}"));
        finishing.await.map_err(ended)?
    }
}
