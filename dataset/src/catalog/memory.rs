//! The memory of blocks and samples, as a byte budget counts it.
//!
//! ```text
//! making a block   compressed bytes + decompressed pages + the block      at most 64 MiB at once, see `runtime.rs`
//! holding it       the block                                              counted for each block
//! ```

use super::{Catalog, Content, VIEW_BYTES};
use crate::runtime::MAKING_BYTES;
use crate::{Extent, SampleId};
use std::ops::Range;

/// Bytes that a catalog counts for the rows that are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    /// Bytes that they hold.
    pub(crate) memory: u64,
    /// Bytes that reading them takes temporarily, in addition.
    pub(crate) making: u64,
}

impl Catalog {
    /// Returns the bytes of a budget that must stay free while blocks are fetched: what making the largest block takes beyond
    /// 64 MiB, which no budget counts. Only one block at a time takes more than those. 0 unless a block is over 32 MiB.
    pub fn reserve_bytes(&self) -> u64 {
        self.blocks.most(|bytes, memory| self.making(bytes, memory)).saturating_sub(MAKING_BYTES)
    }

    /// Returns the bytes that a sample holds in memory when it is fetched alone, all payload columns together. For Parquet and
    /// IPC files it is the mean of its block, because a more exact number would take a read.
    ///
    /// # Panics
    /// If the sample does not exist.
    pub fn sample_memory_bytes(&self, sample: SampleId) -> u64 {
        match &self.content {
            Content::Located(table) => {
                table.payload_bytes(sample.0).saturating_add(VIEW_BYTES * self.payload.len() as u64)
            }
            Content::Union(union) => union.sample_memory_bytes(sample),
            Content::Derived(derived) => {
                derived.base().sample_memory_bytes(sample).saturating_add(derived.bytes_per_row())
            }
            Content::Units { .. } => {
                let row = self.blocks.row(self.block_of(sample));
                row.memory.div_ceil(u64::from(row.samples).max(1))
            }
        }
    }

    /// Returns the bytes that an extent holds in memory, all payload columns together.
    ///
    /// # Panics
    /// If the block does not exist.
    pub fn extent_memory_bytes(&self, extent: Extent) -> u64 {
        match extent.range() == self.block_samples(extent.block) {
            true => self.blocks.row(extent.block).memory,
            false => extent.range().map(|sample| self.sample_memory_bytes(SampleId(sample))).sum(),
        }
    }

    /// Returns what the blocks of `samples` count, all columns together.
    pub(crate) fn counted(&self, samples: &Range<u64>) -> Counted {
        let mut counted = Counted { memory: 0, making: 0 };
        for (block, _) in self.in_blocks(samples.clone()) {
            let row = self.blocks.row(block);
            counted.memory = counted.memory.saturating_add(row.memory);
            counted.making = counted.making.saturating_add(self.making(row.bytes, row.memory));
        }
        counted
    }

    /// Returns the bytes that making a block takes in addition to those it holds: its stored and its decompressed bytes.
    fn making(&self, bytes: u64, memory: u64) -> u64 {
        match &self.content {
            Content::Located(_) => bytes,
            Content::Units { .. } | Content::Union(_) => bytes.saturating_add(memory),
            Content::Derived(derived) => derived.base().making(bytes, memory),
        }
    }
}
