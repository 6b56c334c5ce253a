//! Layouts, read in place: what each finds in the objects, and how it reads a block of it back.
//!
//! ```text
//! objects ─▶ recognise ─▶ Layout ─▶ parquet | ipc        units: row groups, record batches
//!                                   folder | tar | …     samples at byte ranges  ─▶ durations (audio)
//! ```
//! Each layout implements one trait, [`Format`], and [`FORMATS`] is the table of all layouts. A new one is a module here, a
//! line of this table and one of [`Layout`]. No code here copies encoded bytes: payload columns are views into what storage
//! delivered.

mod archive;
mod bad_shards;
mod cataloguing;
mod coco;
mod common_voice;
mod contract;
mod cut_units;
mod features;
mod finished;
mod folder;
pub(crate) mod guard;
mod ilsvrc;
mod ipc;
mod json;
mod kinds;
mod listing;
pub(crate) mod located;
mod manifest;
mod metadata_table;
mod pair;
pub(crate) mod parquet;
mod partitions;
mod pattern;
mod recognise;
mod relative;
mod shards;
pub(crate) mod sides;
mod splits;
mod tar_headers;
mod tars;
pub(crate) mod units;
mod webdataset;

pub use bad_shards::BadShards;
pub(crate) use cataloguing::Cataloguing;
pub(crate) use finished::{FINISHED, Finished};
pub(crate) use json::widen;
pub(crate) use kinds::{counted, is_table};
pub(crate) use listing::{Choice, Sources, Stored, name_below, split_root};
pub(crate) use located::MAX_BLOCK_OBJECTS;
pub(crate) use metadata_table::is_in as has_metadata_table;
pub(crate) use recognise::{find_sources, may_have_table};
pub(crate) use relative::from_folder;
pub use tar_headers::TarHeaders;

use crate::Layout;
pub(crate) use contract::Format;

/// Every layout, in the order of [`Layout`]. They are tried from the last to the first: later ones are more specific.
pub(crate) static FORMATS: [&dyn Format; Layout::ALL.len()] = [
    &parquet::Parquet,
    &folder::Folder,
    &webdataset::WebDataset,
    &ilsvrc::Ilsvrc,
    &ipc::Ipc,
    &manifest::Manifest,
    &common_voice::clips::Clips,
    &common_voice::archives::Archives,
    &common_voice::hf::Hf,
    &pair::Pair,
    &coco::Coco,
];

/// Returns the format of a layout.
pub(crate) fn of(layout: Layout) -> &'static dyn Format {
    FORMATS[layout as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layout_has_its_format() {
        for (layout, name) in Layout::ALL {
            assert_eq!(of(layout).layout().name(), name);
        }
    }
}
