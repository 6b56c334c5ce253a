//! Sample data in a real S3 server, behind a proxy that breaks requests by script.

use super::block_on;
use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions, Secret, StorageOptions};
use feedstock_testkit::{FaultProxy, S3Server};
use feedstock_trainer_bridge::{Dataset, Result};
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

pub(crate) const BUCKET: &str = "corpus";
pub(crate) const URI: &str = "s3://corpus/train";

pub(crate) struct S3 {
    _folder: TempDir,
    pub(crate) server: S3Server,
    pub(crate) proxy: FaultProxy,
}

/// Returns deadlines that are short enough for tests and long enough for a busy machine.
pub(crate) fn storage() -> StorageOptions {
    StorageOptions {
        deadline: Duration::from_secs(20),
        stall_timeout: Duration::from_secs(5),
        ..StorageOptions::default()
    }
}

/// Returns the options of [`super::open`], for an S3 server at `endpoint`.
pub(crate) fn options_at(endpoint: &str, mut storage: StorageOptions) -> OpenOptions {
    let config = S3Server::config_at(endpoint).into_iter().map(|(key, value)| (key, Secret::from(value)));
    storage.config.extend(config);
    let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    OpenOptions { storage, catalog, block_bytes: 32 << 10, ..OpenOptions::default() }
}

impl S3 {
    /// Starts a server that has the files of `folder` at [`URI`].
    pub(crate) fn holding(folder: &Path) -> Self {
        let root = tempfile::tempdir().unwrap();
        let server = S3Server::start(root.path()).unwrap();
        server.import(BUCKET, "train", folder).unwrap();
        let proxy = FaultProxy::start(&server.endpoint()).unwrap();
        Self { _folder: root, server, proxy }
    }

    /// Returns options that reach it through the proxy.
    pub(crate) fn options(&self, storage: StorageOptions) -> OpenOptions {
        options_at(&self.proxy.endpoint(), storage)
    }

    /// Opens the data set through the proxy, and forgets the requests of cataloguing.
    pub(crate) fn open(&self, storage: StorageOptions) -> Dataset {
        let dataset = self.try_open(self.options(storage)).unwrap();
        self.proxy.forget();
        dataset
    }

    pub(crate) fn try_open(&self, options: OpenOptions) -> Result<Dataset> {
        block_on(Dataset::open_with(URI, options))
    }

    /// Returns the number of requests since the last `forget`, and the number of those that met a fault.
    pub(crate) fn requests(&self) -> (usize, usize) {
        let log = self.proxy.log();
        (log.len(), log.iter().filter(|exchange| exchange.faulty).count())
    }
}
