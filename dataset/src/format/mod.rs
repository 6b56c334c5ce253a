//! Layouts read in place: what each finds in the objects, and how a block of it is read back.
//!
//! ```text
//! objects ─▶ recognise ─▶ Layout ─▶ parquet | ipc        units: row groups, record batches
//!                                   folder | tar | …     samples at byte ranges  ─▶ durations (audio)
//! ```
//! A format has two faces: `catalog` makes a [`crate::catalog::Draft`] of the listed objects, and `read` turns one
//! block into a record batch. Nothing here copies encoded bytes: payload columns are views into what storage
//! delivered.

mod archive;
mod bad_shards;
pub(crate) mod columns;
mod common_voice;
mod cut_units;
mod durations;
mod features;
mod folder;
pub(crate) mod guard;
mod ilsvrc;
pub(crate) mod ipc;
mod ipc_check;
mod ipc_lengths;
mod ipc_messages;
mod ipc_slice;
mod json;
mod json_kind;
mod json_shape;
mod kinds;
mod layout;
pub(crate) mod located;
mod manifest;
mod matlab;
mod metadata_table;
mod page_header;
pub(crate) mod parquet;
mod parquet_check;
mod parquet_footer;
pub(crate) mod parquet_memory;
mod parquet_pages;
mod pattern;
mod sources;
mod splits;
mod tar_header;
mod tar_index;
mod tar_index_full;
mod tar_index_offsets;
mod tars;
mod thrift;
mod thrift_check;
mod webdataset;

pub use bad_shards::BadShards;
pub(crate) use durations::with_durations;
pub use durations::{AudioProbe, Durations};
pub(crate) use durations::{Probed, are_current as durations_are_current};
pub(crate) use json::widen;
pub(crate) use kinds::{counted, is_table};
pub use layout::Layout;
pub(crate) use located::MAX_BLOCK_OBJECTS;
pub(crate) use metadata_table::is_in as has_metadata_table;
pub(crate) use sources::{Choice, Sources, Stored, find_sources, may_have_table, name_below, split_root};

use crate::catalog::{CatalogOptions, Draft};
use crate::{Error, ErrorKind, OpenOptions, Result, Storage};
use bytes::Bytes;

/// What a format needs in order to catalog a data set.
pub(crate) struct Cataloguing<'a> {
    pub(crate) storage: &'a Storage,
    pub(crate) options: &'a CatalogOptions,
    /// Encoded bytes that a block aims at.
    pub(crate) block_bytes: u64,
    /// How the data set is opened.
    pub(crate) open: &'a OpenOptions,
}

/// Objects whose headers or footers are read at a time at least; storage bounds its own requests below that.
pub(crate) const CATALOG_READS: usize = 32;
/// Objects whose headers or footers are read at a time at most: each walk through a remote tar is one thread and up to 2 MiB of
/// buffers, 256 MiB in all.
const CATALOG_READS_MAX: usize = 128;

impl Cataloguing<'_> {
    /// Objects to read at a time. A walk through a tar has one request under way, so it takes one walk for each request that
    /// storage allows.
    pub(crate) fn reads_at_once(&self) -> usize {
        self.storage.options().max_concurrency.clamp(CATALOG_READS, CATALOG_READS_MAX)
    }
}

/// Catalogs `sources` as what they are.
pub(crate) async fn catalog(sources: Sources, with: &Cataloguing<'_>) -> Result<Draft> {
    match sources.layout {
        Layout::HfParquet => parquet::catalog(sources, with).await,
        Layout::Folder => folder::catalog(sources, with),
        Layout::WebDataset => webdataset::catalog(sources, with).await,
        Layout::IlsvrcTar => ilsvrc::catalog(sources, with).await,
        Layout::ArrowIpc => ipc::catalog(sources, with).await,
        Layout::Manifest => manifest::catalog(sources, with).await,
        Layout::CommonVoice => common_voice::clips::catalog(sources, with).await,
        Layout::CommonVoiceTar => common_voice::archives::catalog(sources, with).await,
        Layout::CommonVoiceHf => common_voice::hf::catalog(sources, with).await,
    }
}

/// Hashes what a unit (a row group's footer, a record batch's message) states about the data, independent of the cut into
/// blocks and of the release that stored it.
pub(crate) fn unit_digest(layout: Layout, unit: &Bytes) -> Result<u64> {
    match layout {
        Layout::HfParquet => parquet::unit_digest(unit),
        Layout::ArrowIpc => ipc::unit_digest(unit),
        other => Err(Error::new(ErrorKind::Bug, format!("layout {other} has no units"))),
    }
}
