//! What reading a few samples takes, by layout and storage.

use super::{Catalog, Content, Layout, Parts};
use crate::storage::{Location, Scheme, is_on_a_local_disk};
use feedstock_plan::Access;
use std::path::Path;

/// Most mean bytes of a Parquet page that a shuffle permutes, but for the last page of a row group: twice those of a piece on object
/// storage.
pub const MAX_PAGE_BYTES: u64 = 512 << 10;

impl Catalog {
    /// Returns what reading a few consecutive samples takes. It follows from the layout and from where the objects are, never
    /// from measurements, so that ranks and workers choose the same order.
    pub fn access(&self) -> Access {
        match &self.content {
            Content::Units { parts: Parts::None, .. } => Access::Blocks,
            Content::Units { parts: Parts::Pages(samples), .. } if samples.get() > 1 => {
                Access::Pages { samples: samples.get(), is_local: self.is_local() }
            }
            Content::Units { .. } if self.is_local() => Access::Samples,
            Content::Located(_) if self.has_an_object_for_each_sample() || self.is_local() => Access::Samples,
            Content::Located(_) | Content::Units { .. } => Access::Ranges,
            Content::Derived(derived) => derived.base().access(),
            Content::Union(union) => {
                let parts = union.parts().iter().map(|part| part.stored.catalog.access());
                match parts.min() {
                    // Pages of a part begin anywhere among the samples of all.
                    None | Some(Access::Pages { .. }) => Access::Blocks,
                    Some(access) => access,
                }
            }
        }
    }

    /// Returns why the default shuffle permutes blocks of it, and what changes that; `None` if parts of blocks can be read.
    pub(crate) fn why_blocks(&self, is_filtered: bool) -> Option<String> {
        match &self.content {
            Content::Units { parts: Parts::None, .. } if self.layout == Layout::HfParquet => {
                let why = "the pages of its Parquet files hold many samples, different numbers of samples, or over 512 KiB";
                Some(format!("{why}; write pages of a few samples (feedstock shard --page-samples 2)"))
            }
            Content::Units { parts: Parts::None, .. } => {
                let whole = "some batches of its Arrow IPC files are compressed, or have lists, dictionaries or views";
                Some(format!(
                    "{whole}; write Parquet with pages of a few samples (feedstock shard --page-samples 2), or without lists, \
                     uncompressed Arrow IPC (feedstock shard --format ipc)"
                ))
            }
            Content::Units { parts: Parts::Pages(samples), .. } if is_filtered && samples.get() > 1 => {
                let pages = format!("the filter leaves parts of its Parquet pages of {samples} samples");
                Some(format!(
                    "{pages}; write the samples that it keeps (feedstock shard --filter … --page-samples 2)"
                ))
            }
            Content::Union(union) if self.access() == Access::Blocks => {
                let mut parts = union.parts().iter();
                let why = parts.find_map(|part| part.stored.catalog.why_blocks(is_filtered));
                Some(why.unwrap_or_else(|| {
                    "its parts have Parquet pages of several samples, which begin anywhere among the samples of all parts; \
                     write pages of one sample (feedstock shard --page-samples 1)"
                        .to_owned()
                }))
            }
            Content::Derived(derived) => derived.base().why_blocks(is_filtered),
            Content::Units { .. } | Content::Located(_) | Content::Union(_) => None,
        }
    }

    /// Whether a part of it costs little to read a second time: local files that are not decompressed, which the operating
    /// system caches.
    pub fn is_cheap_to_read_again(&self) -> bool {
        match &self.content {
            Content::Units { .. } => self.layout == Layout::WebDataset && self.is_local(),
            Content::Located(_) => self.is_local(),
            Content::Union(union) => {
                union.parts().iter().all(|part| part.stored.catalog.is_cheap_to_read_again())
            }
            Content::Derived(derived) => derived.base().is_cheap_to_read_again(),
        }
    }

    /// Whether objects have one sample each, as in folders.
    fn has_an_object_for_each_sample(&self) -> bool {
        self.objects.len() as u64 >= self.samples()
    }

    /// Whether its objects are files on disks of this machine, and not on a network file system. Unlike [`is_local`](Self::is_local),
    /// which the order depends on, it may differ between machines.
    pub fn is_on_local_disks(&self) -> bool {
        match &self.content {
            Content::Union(union) => union.parts().iter().all(|part| part.stored.catalog.is_on_local_disks()),
            Content::Derived(derived) => derived.base().is_on_local_disks(),
            Content::Units { .. } | Content::Located(_) => {
                let last = self.last_place();
                last.is_some_and(|at| at.scheme == Scheme::Local && is_on_a_local_disk(Path::new(&at.key)))
            }
        }
    }

    /// Whether its objects are files of this machine, or computed by it.
    pub fn is_local(&self) -> bool {
        self.last_place().is_some_and(|at| matches!(at.scheme, Scheme::Local | Scheme::Indexes))
    }

    /// Returns where its last object is. The first may be a file of annotations.
    fn last_place(&self) -> Option<Location> {
        let last = self.objects.len().checked_sub(1)?;
        Location::parse(&self.objects.get(last).uri).ok()
    }
}
