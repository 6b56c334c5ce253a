//! How storage is reached: endpoints, credentials, deadlines.

use super::allow::Allow;
use super::secret::Secret;
use std::collections::BTreeMap;
use std::time::Duration;

/// How storage is reached.
#[derive(Debug, Clone)]
pub struct StorageOptions {
    /// object_store configuration keys (`aws_endpoint`, `aws_region`, `aws_access_key_id`,
    /// `google_service_account`, `azure_storage_account_name` …); they override the environment
    /// (`AWS_*`, `GOOGLE_*`, `AZURE_*`). An unknown key is an error.
    pub config: BTreeMap<String, Secret>,
    /// Sends no credentials, for public buckets. Default `false`.
    pub anonymous: bool,
    /// `Some(true)`: `endpoint/bucket/key`; `Some(false)`: `bucket.endpoint/key`. Default: the store's own
    /// (path style).
    pub path_style: Option<bool>,
    /// How long one operation may go on without progress, waits between attempts included. Default 120 s: a store's short
    /// outage passes, a trainer's collective time-out (10 min or more) does not.
    ///
    /// Progress begins the deadline anew: bytes of a read that arrive, files that a walk through a local folder finds. In all,
    /// an operation may take the deadline plus 1 s for each 64 KiB (100 files) so far. A read of 32 MiB that trickles ends
    /// after at most 632 s. Uploads, whose progress is not visible, have 1 s for each 64 KiB in addition to the deadline.
    pub deadline: Duration,
    /// A request without an answer for this long is cut and sent again. Default 20 s; at most a third of `deadline` counts.
    ///
    /// A body that brings less than 64 KiB/s for a while is cut, too, and the next request asks for what is missing. The
    /// while is 10 s, but at most half of this time-out and a sixth of `deadline`; then at least 1 s, but never more than the
    /// time-out itself or a third of `deadline`.
    pub stall_timeout: Duration,
    /// The most requests under way at once per bucket or host; throttling and answers below the least rate lower it. Default 32: at 8 MiB
    /// and 60 MB/s a connection that is 1.9 GB/s.
    pub max_concurrency: usize,
    /// What may be reached at all; `None`, the default: everything that the credentials open. Redirects are followed within
    /// the list only, so the list needs the places that a store redirects to, such as a content network's.
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
            max_concurrency: 32,
            allow: None,
        }
    }
}

impl StorageOptions {
    /// The same options with configuration `key` set.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<Secret>) -> Self {
        self.config.insert(key.into(), value.into());
        self
    }
}
