//! Object storage by URI. (Door; to be filled.)

use crate::{IoRuntime, Result};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// A string whose Debug and Display print `***`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

/// How storage is reached.
#[derive(Debug, Clone)]
pub struct StorageOptions {
    /// object_store configuration keys (`aws_endpoint`, `aws_region`, …); override the environment.
    pub config: BTreeMap<String, Secret>,
    pub anonymous: bool,
    pub path_style: Option<bool>,
    pub deadline: Duration,
    pub max_concurrency: usize,
}

/// One stored object as it was when the catalog saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectRef {
    pub uri: String,
    pub size: u64,
    pub etag: Option<String>,
}

/// Every store that URIs name, opened on first use; clones share everything.
#[derive(Clone)]
pub struct Storage {}

impl Storage {
    pub fn new(_options: StorageOptions, _io: IoRuntime) -> Result<Self> { todo!() }
    /// All objects below `uri` (a "folder" or prefix), or the object itself; sorted by uri. Empty when nothing is there.
    pub async fn list(&self, _uri: &str) -> Result<Vec<ObjectRef>> { todo!() }
    /// First `limit` objects, for recognising layouts of huge folders.
    pub async fn list_some(&self, _uri: &str, _limit: usize) -> Result<Vec<ObjectRef>> { todo!() }
    pub async fn head(&self, _uri: &str) -> Result<ObjectRef> { todo!() }
    /// Exactly `range` of exactly this version of the object.
    pub async fn read(&self, _object: &ObjectRef, _range: Range<u64>) -> Result<Bytes> { todo!() }
    /// Several ranges, near ones joined into one request.
    pub async fn read_ranges(&self, _object: &ObjectRef, _ranges: &[Range<u64>]) -> Result<Vec<Bytes>> { todo!() }
    pub async fn write(&self, _uri: &str, _bytes: Bytes) -> Result<()> { todo!() }
    pub async fn write_if_absent(&self, _uri: &str, _bytes: Bytes) -> Result<bool> { todo!() }
    pub async fn delete(&self, _uri: &str) -> Result<()> { todo!() }
    /// Blocking `Read + Seek` over one object for parsers that want one; call it off the I/O threads (spawn_blocking).
    pub fn reader(&self, _object: &ObjectRef, _buffer_bytes: usize) -> ObjectReader { todo!() }
    pub fn io(&self) -> &IoRuntime { todo!() }
}

pub struct ObjectReader {}
