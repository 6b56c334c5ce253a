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
mod cataloguing;
mod common_voice;
mod cut_units;
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
mod listing;
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
mod recognise;
mod shards;
mod splits;
mod tar_header;
mod tar_index;
mod tar_index_full;
mod tar_index_offsets;
mod tar_index_read;
mod tars;
mod thrift;
mod thrift_check;
pub(crate) mod units;
mod webdataset;

pub use bad_shards::BadShards;
pub(crate) use cataloguing::Cataloguing;
pub(crate) use json::widen;
pub(crate) use kinds::{counted, is_table};
pub(crate) use listing::{Choice, Sources, Stored, name_below, split_root};
pub(crate) use located::MAX_BLOCK_OBJECTS;
pub(crate) use metadata_table::is_in as has_metadata_table;
pub(crate) use recognise::{find_sources, may_have_table};

use crate::catalog::Draft;
use crate::{Error, ErrorKind, Layout, Result};
use bytes::Bytes;

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
