//! What reading a few samples takes, by layout and storage.

use super::{Catalog, Content, Parts};
use crate::storage::{Location, Scheme};
use feedstock_plan::Access;

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

    /// Whether a part of it costs little to read a second time: local files that are not decompressed, which the operating
    /// system caches.
    pub fn is_cheap_to_read_again(&self) -> bool {
        match &self.content {
            Content::Units { .. } => false,
            Content::Located(_) => self.is_local(),
            Content::Union(union) => {
                union.parts().iter().all(|part| part.stored.catalog.is_cheap_to_read_again())
            }
        }
    }

    /// Whether objects have one sample each, as in folders.
    fn has_an_object_for_each_sample(&self) -> bool {
        self.objects.len() as u64 >= self.samples()
    }

    /// Whether its objects are files of this machine.
    pub fn is_local(&self) -> bool {
        !self.objects.is_empty()
            && Location::parse(&self.objects.get(0).uri).is_ok_and(|found| found.scheme == Scheme::Local)
    }
}
