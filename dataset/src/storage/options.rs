//! How storage is reached: endpoints, credentials, deadlines.

use super::allow::Allow;
use super::secret::Secret;
use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

/// How storage is reached.
///
/// ```
/// use std::time::Duration;
/// use feedstock_dataset::StorageOptions;
///
/// let options = StorageOptions { deadline: Duration::from_secs(30), ..StorageOptions::default() }
///     .with("aws_endpoint", "http://127.0.0.1:9000")
///     .with("aws_secret_access_key", "wJalrXUtnFEMI");
/// assert!(!format!("{options:?}").contains("wJalrXUtnFEMI")); // printed as ***
/// assert_eq!(options.config["aws_secret_access_key"].expose(), "wJalrXUtnFEMI");
/// ```
#[derive(Debug, Clone)]
pub struct StorageOptions {
    /// object_store configuration keys (`aws_endpoint`, `aws_region`, `aws_access_key_id`,
    /// `google_service_account`, `azure_storage_account_name` …); they override the environment
    /// (`AWS_*`, `GOOGLE_*`, `AZURE_*`). An unknown key is an error.
    pub config: BTreeMap<String, Secret>,
    /// Sends no credentials, for public buckets. Default `false`.
    pub anonymous: bool,
    /// `Some(true)`: `endpoint/bucket/key`; `Some(false)`: `bucket.endpoint/key`. Default: that of the store (path style).
    pub path_style: Option<bool>,
    /// How long one operation may go on without progress, waits between attempts included. Default 120 s: longer than a short
    /// outage of a store, and shorter than a trainer's collective time-out (10 min or more).
    ///
    /// Progress restarts the deadline: bytes of a read that arrive, files that a walk through a local folder finds. In all, an
    /// operation may take the deadline plus 1 s for each 64 KiB (100 files) so far. So a read of 32 MiB that trickles ends
    /// after at most 632 s. Uploads, whose progress is not visible, have 1 s for each 64 KiB in addition to the deadline.
    pub deadline: Duration,
    /// A request without an answer for this long is cut and sent again. Default 20 s; at most a third of `deadline` counts.
    ///
    /// A body that brings less than 64 KiB/s over a window is cut too, and the next request asks for the missing bytes. The
    /// window is 10 s, but at most half of this time-out and a sixth of `deadline`. It is also at least 1 s, but never more
    /// than the time-out itself or a third of `deadline`.
    pub stall_timeout: Duration,
    /// Maximum number of requests under way at once per bucket or host; throttling and answers below the minimum rate lower it.
    /// Default: 128 for buckets, where 110 kB take some 40 ms: 3,000 such objects a second. 32 for web servers.
    pub max_concurrency: Option<NonZeroUsize>,
    /// Whether a read whose first byte is late is requested a second time, on another connection; the first answer counts. What is
    /// late, the store's own latencies teach: about one answer in 100. At most 2 % more requests. Default `true`.
    pub hedge: bool,
    /// The number of processes of this job that read at the same time. A process begins with its share of 256 requests, at most
    /// `max_concurrency`, after a random delay of up to 1 ms for each other process. The number of requests then doubles with
    /// each round trip until the store throttles. Default: the environment's `WORLD_SIZE`, else 1.
    pub readers: Option<NonZeroUsize>,
    /// The places that may be reached. `None`, the default, allows everything that the credentials permit. Redirects are
    /// followed only within the list, so it must contain the places that a store redirects to, such as a content network's.
    pub allow: Option<Allow>,
}

impl Default for StorageOptions {
    fn default() -> Self {
        Self {
            config: BTreeMap::new(),
            anonymous: false,
            path_style: None,
            deadline: Duration::from_secs(120),
            stall_timeout: Duration::from_secs(20),
            max_concurrency: None,
            hedge: true,
            readers: None,
            allow: None,
        }
    }
}

impl StorageOptions {
    /// Returns the same options with configuration `key` set.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.config.insert(key.into(), value.into());
        self
    }
}
