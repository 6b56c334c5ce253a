//! Helpers of the storage tests.

use bytes::Bytes;
use feedstock_dataset::{IoRuntime, ObjectRef, Secret, Storage, StorageOptions, StorageStats};
use feedstock_testkit::{FaultProxy, S3Server};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Returns options with deadlines that are short enough for tests and long enough for a busy machine. Reads are not hedged, so that
/// requests can be counted.
pub(crate) fn options() -> StorageOptions {
    StorageOptions {
        deadline: Duration::from_secs(20),
        stall_timeout: Duration::from_secs(5),
        hedge: false,
        ..StorageOptions::default()
    }
}

pub(crate) fn with_config(mut options: StorageOptions, config: Vec<(String, String)>) -> StorageOptions {
    options.config.extend(config.into_iter().map(|(key, value)| (key, Secret::from(value))));
    options
}

pub(crate) fn storage(options: StorageOptions) -> Storage {
    Storage::new(options, IoRuntime::new().unwrap()).unwrap()
}

/// Returns bytes that differ at every offset and between seeds.
pub(crate) fn data(len: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    out.truncate(len);
    out.into()
}

/// A real S3 server with the bucket `bucket`, and a proxy in front of it.
pub(crate) struct S3 {
    pub(crate) folder: TempDir,
    pub(crate) server: S3Server,
    pub(crate) proxy: FaultProxy,
}

impl S3 {
    pub(crate) fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = S3Server::start(folder.path()).unwrap();
        server.create_bucket("bucket").unwrap();
        let proxy = FaultProxy::start(&server.endpoint()).unwrap();
        Self { folder, server, proxy }
    }

    pub(crate) fn put(&self, key: &str, bytes: &Bytes) {
        self.server.put("bucket", key, bytes.clone()).unwrap();
    }

    /// Returns storage that reaches the server through the proxy.
    pub(crate) fn storage(&self, options: StorageOptions) -> Storage {
        storage(with_config(options, S3Server::config_at(&self.proxy.endpoint())))
    }
}

/// Bytes of the object of a [`Case`].
pub(crate) const LEN: usize = 300_000;

/// One object behind the proxy.
pub(crate) struct Case {
    pub(crate) s3: S3,
    pub(crate) storage: Storage,
    pub(crate) object: ObjectRef,
    pub(crate) bytes: Bytes,
}

impl Case {
    pub(crate) async fn new() -> Self {
        Self::with(options()).await
    }

    pub(crate) async fn with(options: StorageOptions) -> Self {
        let s3 = S3::start();
        let bytes = data(LEN, 7);
        s3.put("folder/x", &bytes);
        let storage = s3.storage(options);
        let object = storage.head("s3://bucket/folder/x").await.unwrap();
        s3.proxy.forget();
        Self { s3, storage, object, bytes }
    }

    /// Reads a range. Returns how long it took, and what the storage has done since its opening.
    pub(crate) async fn timed_read(&self) -> (Duration, StorageStats) {
        let began = Instant::now();
        let read = self.storage.read(&self.object, 1000..201_000).await.unwrap();
        assert_eq!(read, self.bytes.slice(1000..201_000));
        (began.elapsed(), self.storage.stats())
    }
}
