//! `catalog.json`: what a stored catalog consists of, written last.

use crate::catalog::{Catalog, Content, Parts, Probed, UnsupportedAudio};
use crate::format;
use crate::{Error, ErrorKind, Layout, Result, Storage};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;

/// Raised whenever what is stored changes in form or meaning. 4: the identity and the cut into blocks have separate hashes.
/// Catalogs of version 3 are converted, others are rebuilt.
pub(crate) const VERSION: u32 = 4;
pub(crate) const CONVERTED_VERSION: u32 = 3;
pub(crate) const INDEX: &str = "catalog.json";

/// Units up to this size are read and checked when the catalog is opened, in a few milliseconds (about 20,000 row groups).
/// Larger ones stay in the store and are checked one by one.
pub(crate) const UNITS_IN_MEMORY_BYTES: u64 = 8 << 20;

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Index {
    pub(crate) version: u32,
    pub(crate) uri: String,
    pub(crate) layout: Layout,
    pub(crate) block_bytes: u64,
    /// `None` in version 3, as `blocks`.
    #[serde(default)]
    pub(crate) identity: Option<u64>,
    #[serde(default)]
    pub(crate) blocks: Option<u64>,
    /// The legacy hash, under its former name.
    pub(crate) content_hash: u64,
    /// The hash of the listing.
    pub(crate) fingerprint: u64,
    /// As [`Catalog::is_resumed`].
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) is_resumed: bool,
    #[serde(default)]
    pub(crate) probed: Probed,
    /// Absent where headers name no codec that is not decoded, and in catalogs of earlier builds.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) unsupported: Vec<UnsupportedAudio>,
    /// Seconds since 1970 at which another catalog replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) superseded: Option<u64>,
    pub(crate) base: String,
    pub(crate) payload: Vec<String>,
    pub(crate) audio: Vec<String>,
    pub(crate) key: Option<usize>,
    /// Names of the tables that list the samples.
    pub(crate) lists: Vec<String>,
    pub(crate) notes: Vec<String>,
    #[serde(default)]
    pub(crate) listing_notes: Option<usize>,
    #[serde(default)]
    pub(crate) null_columns: Vec<String>,
    /// Whether samples of any block of units can be read without the rest of it. In catalogs of earlier builds it is absent, and
    /// follows from the units.
    #[serde(default)]
    pub(crate) has_parts: Option<bool>,
    /// The samples of a page, if pages of that number of samples can be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) page_samples: Option<NonZeroU32>,
    #[serde(default)]
    pub(crate) columns_version: u32,
    pub(crate) tables: BTreeMap<String, Table>,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Table {
    pub(crate) file: String,
    pub(crate) bytes: u64,
    /// `None` for the units, which are checked one by one as they are read.
    pub(crate) crc32: Option<u32>,
}

impl Index {
    pub(crate) fn of(
        catalog: &Catalog,
        key: Option<usize>,
        lists: Vec<String>,
        tables: BTreeMap<String, Table>,
    ) -> Self {
        let parts = if let Content::Units { parts, .. } = catalog.content { parts } else { Parts::None };
        Self {
            version: VERSION,
            uri: catalog.uri.clone(),
            layout: catalog.layout,
            block_bytes: catalog.block_bytes,
            identity: Some(catalog.hashes.identity),
            blocks: Some(catalog.hashes.blocks),
            content_hash: catalog.hashes.legacy,
            fingerprint: catalog.listing,
            is_resumed: catalog.is_resumed,
            probed: catalog.probed,
            unsupported: catalog.unsupported.clone(),
            superseded: None,
            base: catalog.objects.base().to_owned(),
            payload: catalog.payload.clone(),
            audio: catalog.audio.clone(),
            key,
            lists,
            notes: catalog.notes.clone(),
            listing_notes: catalog.listing_notes,
            null_columns: catalog.null_columns.clone(),
            has_parts: Some(parts == Parts::Samples),
            page_samples: if let Parts::Pages(samples) = parts { Some(samples) } else { None },
            columns_version: format::of(catalog.layout).columns_version(),
            tables,
        }
    }

    /// Returns which parts of blocks of units can be read; `None` if an earlier build did not state it.
    pub(crate) fn parts(&self) -> Option<Parts> {
        match (self.page_samples, self.has_parts?) {
            (Some(samples), _) => Some(Parts::Pages(samples)),
            (None, true) => Some(Parts::Samples),
            (None, false) => Some(Parts::None),
        }
    }
}

pub(crate) async fn write_index(index: &Index, uri: &str, storage: &Storage) -> Result<()> {
    let json = serde_json::to_vec_pretty(index)
        .map_err(|e| Error::new(ErrorKind::Bug, "the catalog's index is not JSON").with_source(e))?;
    storage.write(uri, Bytes::from(json)).await
}

pub(crate) async fn read_index(uri: &str, storage: &Storage) -> Result<Index> {
    let json = read_whole(uri, storage).await?;
    serde_json::from_slice(&json).map_err(|e| Error::config(format!("{uri}: {e}")))
}

pub(crate) async fn read_whole(uri: &str, storage: &Storage) -> Result<Bytes> {
    let object = storage.head(uri).await?;
    let size = object.size;
    storage.read(&object, 0..size).await
}
