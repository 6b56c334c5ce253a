//! One store (a bucket, a host, this machine's files), and how it is opened.

use super::credentials::Steady;
use super::failure::Fault;
use super::hedge::{Hedged, Hedging};
use super::indexes::Indexes;
use super::latencies::Kind;
use super::limiter::Limiter;
use super::observe::ObservedConnector;
use super::options::StorageOptions;
use super::progress::Progress;
use super::retry::{Ended, Shared, until_done};
use super::secret::Secret;
use super::start::{Start, readers};
use super::uri::{Location, Scheme};
use crate::{Error, Result};
use feedstock_base::shown;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{HttpClient, HttpConnector};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::memory::InMemory;
use object_store::multipart::MultipartStore;
use object_store::{ClientConfigKey, ClientOptions, ObjectStore, RetryConfig};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

/// Where the bytes are.
pub(crate) enum Backend {
    Local,
    Remote(Remote),
}

/// An object store, and the lower-level interfaces that some stores have.
#[derive(Clone)]
pub(crate) struct Remote {
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// Listing page by page; stores without it list in one stream.
    pub(crate) pages: Option<Arc<dyn PaginatedListStore>>,
    /// Writing part by part; stores without it take any size in one request.
    pub(crate) parts: Option<Arc<dyn MultipartStore>>,
}

/// A store, its adaptive limit, and what it shares with the others.
pub(crate) struct Store {
    pub(crate) backend: Backend,
    pub(crate) scheme: Scheme,
    pub(crate) name: String,
    pub(crate) shared: Arc<Shared>,
    pub(crate) limiter: Arc<Limiter>,
    hedging: Arc<Hedging>,
}

/// What the stores of one host and user share.
#[derive(Clone)]
pub(super) struct Host {
    limiter: Arc<Limiter>,
    hedging: Arc<Hedging>,
    options: ClientOptions,
    client: HttpClient,
}

impl Host {
    pub(super) fn open(at: &Location, options: &StorageOptions, shared: &Shared) -> Result<Self> {
        let mut client = client(true);
        for (key, value) in keys::<ClientConfigKey>(options) {
            client = client.with_config(key, value.expose());
        }
        let made = connector(options).connect(&client).map_err(|e| not_opened(at, shared, &e))?;
        let (limiter, hedging) = (limiter(Scheme::Http, options, shared), Hedging::new(options.hedge));
        Ok(Self { limiter, hedging, options: client, client: made })
    }
}

/// Requests that a bucket gets at once. S3 delivers small objects after some 30 ms each, so that 32 connections would fetch about
/// 900 a second, less than two CPU cores decode; a machine of eight ranks reaches a prefix's 5,500 a second.
const BUCKET_CONCURRENCY: usize = 128;
/// Requests that a web server gets at once: it may serve few visitors.
const WEB_CONCURRENCY: usize = 32;

fn max_concurrency(scheme: Scheme, options: &StorageOptions) -> usize {
    options.max_concurrency.map_or_else(|| default_concurrency(scheme), NonZeroUsize::get)
}

fn default_concurrency(scheme: Scheme) -> usize {
    match scheme {
        Scheme::S3 | Scheme::Gcs | Scheme::Azure => BUCKET_CONCURRENCY,
        Scheme::Http | Scheme::Local | Scheme::Memory | Scheme::Indexes => WEB_CONCURRENCY,
    }
}

/// Returns the limiter of a store that other processes read too.
fn limiter(scheme: Scheme, options: &StorageOptions, shared: &Shared) -> Arc<Limiter> {
    let max = max_concurrency(scheme, options);
    let start = Start::new(readers(options), max, shared.random());
    Limiter::new(start.limit, max, start.delay)
}

/// Returns its client to every store.
#[derive(Debug)]
struct SharedClient(HttpClient);

impl HttpConnector for SharedClient {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(self.0.clone())
    }
}

fn not_opened(at: &Location, shared: &Shared, error: &object_store::Error) -> Error {
    let cause = shared.cleaner.clean(&error.to_string());
    Error::config(format!("{}: cannot be opened: {cause}", at.store_name()))
}

impl Store {
    /// Opens the store of a bucket, of a URL at `host`, or of this machine's files.
    pub(super) fn open(
        at: &Location,
        options: &StorageOptions,
        shared: &Arc<Shared>,
        host: impl FnOnce() -> Result<Host>,
    ) -> Result<Self> {
        let own = || (limiter(at.scheme, options, shared), Hedging::new(options.hedge));
        let max = max_concurrency(at.scheme, options);
        let here = || (Limiter::new(max, max, Duration::ZERO), Hedging::new(options.hedge));
        let (backend, (limiter, hedging)) = match at.scheme {
            Scheme::Local => (Ok(Backend::Local), here()),
            Scheme::Memory => (Ok(memory()), here()),
            Scheme::Indexes => (indexes(at), here()),
            Scheme::S3 => (s3(at, options), own()),
            Scheme::Gcs => (gcs(at, options), own()),
            Scheme::Azure => (azure(at, options), own()),
            Scheme::Http => {
                let host = host()?;
                (http(at, &host), (host.limiter, host.hedging))
            }
        };
        let backend = backend.map_err(|e| not_opened(at, shared, &e))?;
        let (scheme, name, shared) = (at.scheme, at.store_name(), Arc::clone(shared));
        Ok(Self { backend, scheme, name, shared, limiter, hedging })
    }

    /// Runs the retry loop with this store's limiter, for operations that succeed as a whole or not at all.
    pub(crate) async fn until_done<T, F, Fut>(&self, attempt: F) -> Result<T, Ended>
    where
        F: Fn(u32) -> Fut,
        Fut: Future<Output = Result<T, Fault>>,
    {
        self.until_done_with(&Progress::whole(), attempt).await
    }

    /// Runs the retry loop for a request whose answer comes whole. It is made twice if the answer is late.
    pub(super) async fn until_answered<T, F, Fut>(&self, kind: Kind, request: F) -> Result<T, Ended>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, Fault>>,
    {
        let hedged = self.hedged();
        self.until_done(|_| hedged.first(kind, &request)).await
    }

    /// Runs the retry loop for operations that count their progress.
    pub(crate) async fn until_done_with<T, F, Fut>(&self, progress: &Progress, attempt: F) -> Result<T, Ended>
    where
        F: Fn(u32) -> Fut,
        Fut: Future<Output = Result<T, Fault>>,
    {
        until_done(&self.shared, &self.limiter, progress, attempt).await
    }

    /// Returns what makes requests twice whose answers are late.
    pub(super) fn hedged(&self) -> Hedged<'_> {
        Hedged { hedging: &self.hedging, limiter: &self.limiter, counters: &self.shared.counters }
    }

    pub(crate) fn stall(&self) -> Duration {
        self.shared.limits.stall
    }
}

type Opened = Result<Backend, object_store::Error>;

/// Turns object_store's retries off: a second layer would hide throttling from our retry loop.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, ..RetryConfig::default() }
}

/// A connection that takes longer is tried again: the time of about three lost SYNs.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

fn client(allow_http: bool) -> ClientOptions {
    // No limit on a whole request: a large block on a slow line is not a fault, and `within` cuts stalls.
    ClientOptions::new()
        .with_timeout_disabled()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_allow_http(allow_http)
}

fn connector(options: &StorageOptions) -> ObservedConnector {
    ObservedConnector { allow: options.allow.clone() }
}

fn memory() -> Backend {
    let store = Arc::new(InMemory::new());
    Backend::Remote(Remote { objects: Arc::clone(&store) as _, pages: None, parts: Some(store) })
}

fn indexes(at: &Location) -> Opened {
    Ok(Backend::Remote(Remote { objects: Arc::new(Indexes::of(at)?), pages: None, parts: None }))
}

fn s3(at: &Location, options: &StorageOptions) -> Opened {
    let mut builder = AmazonS3Builder::from_env().with_client_options(client(false));
    for (key, value) in keys::<AmazonS3ConfigKey>(options) {
        builder = builder.with_config(key, value.expose());
    }
    let endpoint = builder
        .get_config_value(&AmazonS3ConfigKey::S3Endpoint)
        .or_else(|| builder.get_config_value(&AmazonS3ConfigKey::Endpoint));
    if let Some(endpoint) = &endpoint {
        builder = builder.with_allow_http(endpoint.starts_with("http://"));
    }
    if let Some(path_style) = options.path_style {
        builder = builder.with_virtual_hosted_style_request(!path_style);
        if let (false, Some((scheme, host))) =
            (path_style, endpoint.as_deref().and_then(|e| e.split_once("://")))
        {
            let hosted = format!("{scheme}://{}.{host}", at.authority());
            builder = builder.with_config(AmazonS3ConfigKey::Endpoint, hosted.clone());
            builder = builder.with_config(AmazonS3ConfigKey::S3Endpoint, hosted);
        }
    }
    if options.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let builder = builder
        .with_bucket_name(at.authority())
        .with_retry(no_retries())
        .with_http_connector(connector(options));
    let credentials = Steady::new(builder.clone().build()?.credentials().clone());
    Ok(bucket(builder.with_credentials(Arc::new(credentials)).build()?))
}

/// Makes the backend of a store that lists page by page and takes objects in parts.
fn bucket<S: ObjectStore + PaginatedListStore + MultipartStore>(store: S) -> Backend {
    let store = Arc::new(store);
    let objects = Arc::clone(&store) as _;
    Backend::Remote(Remote { objects, pages: Some(Arc::clone(&store) as _), parts: Some(store) })
}

fn gcs(at: &Location, options: &StorageOptions) -> Opened {
    let mut builder = GoogleCloudStorageBuilder::from_env().with_client_options(client(false));
    for (key, value) in keys::<GoogleConfigKey>(options) {
        builder = builder.with_config(key, value.expose());
    }
    if builder.get_config_value(&GoogleConfigKey::BaseUrl).is_some_and(|url| url.starts_with("http://")) {
        builder = builder.with_client_options(client(true));
    }
    if options.anonymous {
        builder = builder.with_skip_signature(true);
    }
    let builder = builder
        .with_bucket_name(at.authority())
        .with_retry(no_retries())
        .with_http_connector(connector(options));
    let credentials = Steady::new(builder.clone().build()?.credentials().clone());
    Ok(bucket(builder.with_credentials(Arc::new(credentials)).build()?))
}

fn azure(at: &Location, options: &StorageOptions) -> Opened {
    let mut builder = MicrosoftAzureBuilder::from_env().with_client_options(client(false));
    for (key, value) in keys::<AzureConfigKey>(options) {
        builder = builder.with_config(key, value.expose());
    }
    let endpoint = builder.get_config_value(&AzureConfigKey::Endpoint);
    if endpoint.is_some_and(|e| e.starts_with("http://")) {
        builder = builder.with_allow_http(true);
    }
    if options.anonymous {
        builder = builder.with_skip_signature(true);
    }
    // `az://container` or `abfs://container@account.dfs.core.windows.net`
    let url =
        format!("{}{}", if at.authority().contains('@') { "abfss://" } else { "az://" }, at.authority());
    let builder = builder.with_url(url).with_retry(no_retries()).with_http_connector(connector(options));
    let credentials = Steady::new(builder.clone().build()?.credentials().clone());
    Ok(bucket(builder.with_credentials(Arc::new(credentials)).build()?))
}

/// The query of a signed URL belongs to the base, so that every request carries it.
fn http(at: &Location, host: &Host) -> Opened {
    let store = HttpBuilder::new()
        .with_url(format!("{}{}", at.prefix, at.suffix))
        .with_client_options(host.options.clone())
        .with_retry(no_retries())
        .with_http_connector(SharedClient(host.client.clone()))
        .build()?;
    Ok(Backend::Remote(Remote { objects: Arc::new(store), pages: None, parts: None }))
}

/// Returns the configured keys that this kind of store knows.
fn keys<K: std::str::FromStr>(options: &StorageOptions) -> impl Iterator<Item = (K, &Secret)> {
    options.config.iter().filter_map(|(key, value)| Some((key.to_ascii_lowercase().parse().ok()?, value)))
}

/// Rejects a key that no store knows: a typo in `aws_endpont` must not mean Amazon itself.
pub(crate) fn check_keys(options: &StorageOptions) -> Result<()> {
    for key in options.config.keys() {
        let lower = key.to_ascii_lowercase();
        let known = lower.parse::<AmazonS3ConfigKey>().is_ok()
            || lower.parse::<GoogleConfigKey>().is_ok()
            || lower.parse::<AzureConfigKey>().is_ok()
            || lower.parse::<ClientConfigKey>().is_ok();
        if !known {
            return Err(Error::config(format!(
                "storage option '{}' is unknown; examples are aws_endpoint, aws_region, aws_access_key_id, \
                 google_service_account, azure_storage_account_name",
                shown(key)
            )));
        }
    }
    Ok(())
}
