//! Object storage by URI: plain paths, `file://`, `s3://`, `gs://`, `az://`, `http(s)://`, `memory://`; `indexes://`, which is
//! computed.
//!
//! ```text
//! caller ─▶ Storage ─▶ store of the URI ─▶ permit (AIMD) ─▶ attempt ─▶ length, size, ETag checked ─▶ bytes
//!                                             ▲                │ 503, 429, reset, short, stalled
//!                                             └─ backoff ◀─────┘ until the deadline
//! ```
//! Invariants
//! - A read returns exactly the requested bytes of the catalog's version of the object, or an error.
//! - There is one retry loop (ours) and one deadline, which counts time without progress. A request that stalls, or brings
//!   less than 64 KiB/s, is cut; the next one continues where it ended, on another connection.
//! - All requests run on feedstock's own I/O threads, whatever runtime the caller has.
//! - Redirects are followed only as `redirect.rs` permits: within the allow list, without credentials, and never from another
//!   machine to this one or to its metadata service.
//! - No credential and no signed URL is in a message, a log or a Debug print.
//!
//! Cost on one busy 2-core machine: 1.3 CPU-seconds per GB over HTTP in 8 MiB ranges, 2.5 in 128 KiB ranges,
//! 0.2 … 0.35 from the page cache (`cargo bench -p feedstock-dataset --bench storage --profile dev`).

mod absolute;
mod aimd;
mod allow;
mod backoff;
mod client;
mod credentials;
mod endpoint;
mod failure;
mod fan_out;
mod fetch;
mod head;
mod hedge;
mod indexes;
mod journal;
mod key_distance;
mod key_ranges;
mod key_span;
mod latencies;
mod limiter;
mod list;
mod listed_part;
mod local;
mod object;
mod observe;
mod options;
mod pace;
mod percent;
mod progress;
mod read;
mod reader;
mod redirect;
mod refused;
mod request_rate;
mod retry;
mod retry_after;
mod secret;
mod seen;
mod signature;
mod signed;
mod start;
mod store;
mod stores;
mod unconnected;
mod uri;
mod version;
mod walk;
mod walk_step;
mod web;
mod write;

pub(crate) use absolute::{absolute, resolved};
pub use allow::Allow;
use endpoint::Places;
pub(crate) use endpoint::endpoints;
pub use object::ObjectRef;
pub use options::StorageOptions;
pub(crate) use read::count_reads;
pub use reader::ObjectReader;
pub use retry::StorageStats;
pub use secret::Secret;

use crate::{Error, IoRuntime, Result};
use bytes::Bytes;
pub(crate) use failure::local_error;
pub use feedstock_base::hide_urls;
pub(crate) use feedstock_base::shown;
use futures::{StreamExt, TryStreamExt};
pub(crate) use journal::{Journal, JournalKind, remove_abandoned};
pub(crate) use list::Listed;
pub(crate) use listed_part::LISTING;
pub(crate) use local::is_on_a_local_disk;
use retry::Shared;
use secret::Cleaner;
pub(crate) use seen::ListingFn;
use signed::Signed;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use store::Store;
use stores::Stores;
pub(crate) use uri::{Location, Scheme, without_credentials};
pub(crate) use version::is_etag;

/// Opens every store that URIs name, on first use; clones share everything.
#[derive(Clone)]
pub struct Storage(Arc<Inner>);

struct Inner {
    options: StorageOptions,
    io: IoRuntime,
    shared: Arc<Shared>,
    places: Places,
    signed: Signed,
    stores: Stores,
}

/// Requests of one `read_ranges` that are pending at once; the adaptive limit decides how many are under way.
const RANGES_AT_ONCE: usize = 16;

impl Storage {
    /// Creates storage with `options`, whose requests run on `io`'s threads. Opens no connection yet.
    ///
    /// ```
    /// use feedstock_dataset::{ErrorKind, IoRuntime, Storage, StorageOptions};
    ///
    /// let misspelled = StorageOptions::default().with("aws_endpont", "http://127.0.0.1:9000");
    /// let error = Storage::new(misspelled, IoRuntime::shared()?).unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::BadConfig);
    /// assert!(error.message().contains("aws_endpont"));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for an unknown configuration key, a deadline or stall time-out of zero.
    pub fn new(options: StorageOptions, io: IoRuntime) -> Result<Self> {
        store::check_keys(&options)?;
        if options.deadline.is_zero() || options.stall_timeout.is_zero() {
            return Err(Error::config(format!(
                "storage options: deadline and stall_timeout must be above 0; got {:?} and {:?}",
                options.deadline, options.stall_timeout
            )));
        }
        let environment: Vec<(String, String)> = std::env::vars()
            .filter(|(key, _)| ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|cloud| key.starts_with(cloud)))
            .collect();
        let config = options.config.iter().map(|(k, v)| (k.as_str(), v.expose()));
        let cleaner = Cleaner::new(environment.iter().map(|(k, v)| (k.as_str(), v.as_str())).chain(config));
        let shared = Arc::new(Shared::new(options.deadline, options.stall_timeout, cleaner));
        let places = Places::new(&options, &std::env::vars_os().collect::<Vec<_>>());
        let (signed, stores) = (Signed::default(), Stores::default());
        Ok(Self(Arc::new(Inner { options, io, shared, places, signed, stores })))
    }

    /// Lists all objects below `uri` (a folder or prefix), or the object itself; sorted bytewise by name.
    ///
    /// The result is empty if a bucket has nothing there. For up to 4,096 objects without an ETag in the listing, the ETag is
    /// requested; [`ObjectRef::etag`] states what pins the others.
    ///
    /// ```
    /// # use feedstock_dataset::{IoRuntime, Storage, StorageOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let uri = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    /// # futures::executor::block_on(async {
    /// let storage = Storage::new(StorageOptions::default(), IoRuntime::shared()?)?;
    /// for name in ["b.tar", "a.tar"] {
    ///     storage.write(&uri(name), "data".into()).await?;
    /// }
    /// let found = storage.list(&uri("")).await?;
    /// assert!(found[0].uri.ends_with("/a.tar") && found[1].uri.ends_with("/b.tar"));
    /// assert_eq!(found[0].size, 4);
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `Gone` for a missing bucket, file or local folder; `Denied`; `BadConfig` if a web server cannot list.
    pub async fn list(&self, uri: &str) -> Result<Vec<ObjectRef>> {
        self.list_some(uri, usize::MAX).await
    }

    /// Lists the first `limit` objects of [`list`](Self::list), for recognising layouts of huge folders.
    pub async fn list_some(&self, uri: &str, limit: usize) -> Result<Vec<ObjectRef>> {
        Ok(self.list_telling(uri, limit, None, None).await?.objects)
    }

    /// As [`list_some`](Self::list_some); `told` receives the number of objects found so far. A long listing of a store is kept
    /// in the file `kept_at` until it is complete, and resumed from it.
    pub(crate) async fn list_telling(
        &self,
        uri: &str,
        limit: usize,
        told: Option<ListingFn>,
        kept_at: Option<PathBuf>,
    ) -> Result<Listed> {
        let (store, at) = self.store(uri)?;
        let mut found = self.0.io.run(async move { store.list(&at, limit, told, kept_at).await }).await?;
        if self.0.signed.complete(uri) != uri {
            found.objects.iter_mut().for_each(|object| object.uri = without_credentials(&object.uri));
        }
        Ok(found)
    }

    /// Returns the one object at `uri`.
    ///
    /// ```
    /// use feedstock_dataset::ErrorKind;
    /// # use feedstock_dataset::{IoRuntime, Storage, StorageOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let uri = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    ///
    /// # futures::executor::block_on(async {
    /// let storage = Storage::new(StorageOptions::default(), IoRuntime::shared()?)?;
    /// storage.write(&uri("a.tar"), "data".into()).await?;
    /// assert_eq!(storage.head(&uri("a.tar")).await?.size, 4);
    /// assert_eq!(storage.head(&uri("b.tar")).await.unwrap_err().kind(), ErrorKind::Gone);
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `Gone` if there is none (the message states whether the whole bucket is missing), `Denied`.
    pub async fn head(&self, uri: &str) -> Result<ObjectRef> {
        let (store, at) = self.store(uri)?;
        let found = self.0.io.run(async move { store.head(&at).await }).await?;
        Ok(match self.0.signed.complete(uri) == uri {
            true => found,
            false => ObjectRef { uri: without_credentials(&found.uri), ..found },
        })
    }

    /// As [`head`](Self::head), for an object that usually does not exist: returns `None`, with one request.
    pub(crate) async fn find(&self, uri: &str) -> Result<Option<ObjectRef>> {
        let (store, at) = self.store(uri)?;
        self.0.io.run(async move { store.find(&at).await }).await
    }

    /// Reads exactly `range` of exactly this version of the object.
    ///
    /// ```
    /// use feedstock_dataset::ErrorKind;
    /// # use feedstock_dataset::{IoRuntime, Storage, StorageOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let uri = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    ///
    /// # futures::executor::block_on(async {
    /// let storage = Storage::new(StorageOptions::default(), IoRuntime::shared()?)?;
    /// storage.write(&uri("a.tar"), "0123456789".into()).await?;
    /// let object = storage.head(&uri("a.tar")).await?;
    /// assert_eq!(&storage.read(&object, 2..5).await?[..], b"234");
    ///
    /// storage.write(&uri("a.tar"), "replaced".into()).await?;
    /// assert_eq!(storage.read(&object, 2..5).await.unwrap_err().kind(), ErrorKind::Gone);
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `Gone` if the object is missing or has changed, `Retryable` after the deadline, `Denied`.
    pub async fn read(&self, object: &ObjectRef, range: Range<u64>) -> Result<Bytes> {
        let (this, object) = (self.clone(), object.clone());
        self.0.io.run(async move { this.read_here(&object, range).await }).await
    }

    /// As [`read`](Self::read), for callers that are already on the I/O threads.
    pub(crate) async fn read_here(&self, object: &ObjectRef, range: Range<u64>) -> Result<Bytes> {
        let (store, at) = self.store(&object.uri)?;
        store.read(&at.key, object, range).await
    }

    /// Reads several ranges and returns them in the order given. Near ranges (1 MiB; 128 KiB in files) are joined into one
    /// request of at most 32 MiB; the results of one request share its memory.
    ///
    /// ```
    /// # use feedstock_dataset::{IoRuntime, Storage, StorageOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let uri = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    /// # futures::executor::block_on(async {
    /// let storage = Storage::new(StorageOptions::default(), IoRuntime::shared()?)?;
    /// storage.write(&uri("a.tar"), "0123456789".into()).await?;
    /// let object = storage.head(&uri("a.tar")).await?;
    /// let parts = storage.read_ranges(&object, &[7..9, 0..2]).await?; // near: one request
    /// assert_eq!(parts, ["78", "01"]);
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`read`](Self::read); if one range fails, all do.
    pub async fn read_ranges(&self, object: &ObjectRef, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (store, at) = self.store(&object.uri)?;
        let (object, ranges) = (object.clone(), ranges.to_vec());
        let run = async move {
            if let Some(bad) = ranges.iter().find(|r| r.start > r.end || r.end > object.size) {
                store.read(&at.key, &object, bad.clone()).await?; // returns the error that names the problem
            }
            let (joined, holder) =
                read::join_ranges(&ranges, matches!(at.scheme, Scheme::Local | Scheme::Indexes));
            let (store, key, object) = (&store, &at.key, &object);
            let fetched: Vec<Bytes> = futures::stream::iter(joined.clone())
                .map(|range| async move { store.read(key, object, range).await })
                .buffered(RANGES_AT_ONCE)
                .try_collect()
                .await?;
            let cut = |(range, &h): (&Range<u64>, &usize)| {
                let offset = |at: u64| usize::try_from(at - joined[h].start).ok();
                Some(fetched[h].slice(offset(range.start)?..offset(range.end)?))
            };
            let pieces: Option<Vec<Bytes>> = ranges.iter().zip(&holder).map(cut).collect();
            pieces.ok_or_else(|| Error::config("a range does not fit in this machine's memory"))
        };
        self.0.io.run(run).await
    }

    /// Writes the object whole or not at all, replacing an existing one; above 8 MiB in parts.
    ///
    /// # Errors
    /// `Denied`, `Retryable` after the deadline, `Gone` for a missing bucket.
    pub async fn write(&self, uri: &str, bytes: Bytes) -> Result<()> {
        let (store, at) = self.store(uri)?;
        self.0.io.run(async move { store.write(&at, bytes).await }).await
    }

    /// Writes the object whole, in one request, unless it exists. Returns whether the object has these bytes: if several
    /// processes create it with different bytes at the same time, one gets `true`.
    ///
    /// On a store without conditional writes (WebDAV, Backblaze B2), two processes may both get `true`; a warning is
    /// logged.
    ///
    /// ```
    /// # use feedstock_dataset::{IoRuntime, Storage, StorageOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let uri = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    /// # futures::executor::block_on(async {
    /// let storage = Storage::new(StorageOptions::default(), IoRuntime::shared()?)?;
    /// assert!(storage.create(&uri("lock"), "worker 1".into()).await?);
    /// assert!(!storage.create(&uri("lock"), "worker 2".into()).await?); // it exists
    /// storage.delete(&uri("lock")).await?;
    /// assert!(storage.create(&uri("lock"), "worker 2".into()).await?);
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub async fn create(&self, uri: &str, bytes: Bytes) -> Result<bool> {
        let (store, at) = self.store(uri)?;
        self.0.io.run(async move { store.create(&at, bytes).await }).await
    }

    /// Removes the object; a missing object is not an error.
    ///
    /// # Errors
    /// `Denied`, `Retryable` after the deadline.
    pub async fn delete(&self, uri: &str) -> Result<()> {
        let (store, at) = self.store(uri)?;
        let uri = uri.to_owned();
        self.0.io.run(async move { store.delete(&at.key, &uri).await }).await
    }

    /// Returns a blocking `Read + Seek` over one object, for parsers that need one, through up to two buffers of
    /// `buffer_bytes`; call it off the I/O threads (`spawn_blocking`).
    ///
    /// ```
    /// use std::io::{Read, Seek, SeekFrom};
    /// # use feedstock_dataset::{IoRuntime, Storage, StorageOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let uri = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    ///
    /// let storage = Storage::new(StorageOptions::default(), IoRuntime::shared()?)?;
    /// futures::executor::block_on(storage.write(&uri("a.tar"), "0123456789".into()))?;
    /// let object = futures::executor::block_on(storage.head(&uri("a.tar")))?;
    ///
    /// let mut reader = storage.reader(&object, 1 << 20);
    /// reader.seek(SeekFrom::End(-3)).unwrap();
    /// let mut text = String::new();
    /// reader.read_to_string(&mut text).unwrap();
    /// assert_eq!((text.as_str(), reader.size()), ("789", 10));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// ```
    pub fn reader(&self, object: &ObjectRef, buffer_bytes: usize) -> ObjectReader {
        ObjectReader::new(self.clone(), object.clone(), buffer_bytes)
    }

    /// As [`reader`](Self::reader), for a caller that jumps. After a jump over more than 1 MiB it fetches 1/32 of the distance,
    /// at most 64 KiB, and more again if the caller reads on.
    pub(crate) fn hopping_reader(&self, object: &ObjectRef, buffer_bytes: usize) -> ObjectReader {
        ObjectReader::hopping(self.clone(), object.clone(), buffer_bytes)
    }

    /// Returns the path of a file of this machine; `None` for anything else.
    pub(crate) fn local_path(&self, uri: &str) -> Option<PathBuf> {
        Location::parse(uri).ok().filter(|at| at.scheme == Scheme::Local).map(|at| at.key.into())
    }

    /// Returns a key of the place of `uri`, for what a process shares and caches. It is equal for one object however it is
    /// signed, and differs for buckets of the same name at two endpoints.
    pub(crate) fn place_key(&self, uri: &str) -> String {
        self.0.places.key(uri)
    }

    /// Returns the threads that requests run on.
    pub fn io(&self) -> &IoRuntime {
        &self.0.io
    }

    /// Returns the options it was created with.
    pub fn options(&self) -> &StorageOptions {
        &self.0.options
    }

    /// Returns what it has done so far.
    ///
    /// ```
    /// # use feedstock_dataset::{IoRuntime, Storage, StorageOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let uri = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    /// # futures::executor::block_on(async {
    /// let storage = Storage::new(StorageOptions::default(), IoRuntime::shared()?)?;
    /// storage.write(&uri("a.tar"), "0123456789".into()).await?;
    /// let object = storage.head(&uri("a.tar")).await?;
    /// storage.read(&object, 0..4).await?;
    /// let stats = storage.stats();
    /// assert_eq!((stats.written_bytes, stats.read_bytes, stats.failed), (10, 4, 0));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn stats(&self) -> StorageStats {
        let counters = &self.0.shared.counters;
        let read = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let (concurrency_limit, concurrency_peak) = self.0.stores.concurrency();
        StorageStats {
            requests: read(&counters.requests),
            retries: read(&counters.retries),
            hedges: read(&counters.hedges),
            throttled: read(&counters.throttled),
            failed: read(&counters.failed),
            read_bytes: read(&counters.read_bytes),
            written_bytes: read(&counters.written_bytes),
            concurrency_limit,
            concurrency_peak,
        }
    }

    /// Keeps the credentials of a URL (user name, password and signature) for requests, and returns the URL without them. All
    /// else is stored under that URL, so a URL with a new signature is still the same one.
    pub(crate) fn keep_credentials(&self, uri: &str) -> String {
        self.0.signed.keep(uri)
    }

    /// As [`keep_credentials`](Self::keep_credentials), for a URL that the data set lists.
    pub(crate) fn keep_object_credentials(&self, uri: &str) -> String {
        self.0.signed.keep_object(uri)
    }

    /// Whether requests for this URL have a query that `uri` lacks: a signature, which other objects do not have.
    pub(crate) fn is_signed(&self, uri: &str) -> bool {
        let complete = self.0.signed.complete(uri);
        complete.contains('?') && !uri.contains('?')
    }

    /// Whether objects of the data set are listed with credentials, which are not in a stored catalog.
    pub(crate) fn has_signed_objects(&self) -> bool {
        self.0.signed.has_objects()
    }

    fn store(&self, uri: &str) -> Result<(Arc<Store>, Location)> {
        let at = Location::parse(&self.0.signed.complete(uri))?;
        if let Some(allow) = &self.0.options.allow {
            allow.check_place(at.clone())?;
        }
        Ok((self.0.stores.get(&at, &self.0.options, &self.0.shared)?, at))
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").field("options", &self.0.options).field("stats", &self.stats()).finish()
    }
}
