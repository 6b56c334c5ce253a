//! Blocks over whose end one request can read: the next one goes on in the same object.

use super::{Catalog, Content};
use crate::{BlockId, Extent, SampleId};
use arrow::buffer::BooleanBuffer;
use std::ops::Range;

impl Catalog {
    /// Returns one bit a block: whether a piece that begins in it and ends in the next is read at once.
    pub(crate) fn continued_blocks(&self) -> BooleanBuffer {
        let ids: Vec<BlockId> = self.blocks.ids().collect();
        BooleanBuffer::collect_bool(ids.len(), |block| self.is_continued(ids[block]))
    }

    /// Whether the next block goes on where `block` ends: in the same object, or in the same row group or record batch.
    fn is_continued(&self, block: BlockId) -> bool {
        let next = BlockId(block.0 + 1);
        if next.0 as usize >= self.blocks() {
            return false;
        }
        let (row, after) = (self.blocks.row(block), self.blocks.row(next));
        if row.shard != after.shard {
            return false;
        }
        let sample = self.block_samples(next).start;
        match &self.content {
            Content::Located(table) => table.is_in_object_of_previous(sample),
            Content::Units { .. } => {
                row.unit == after.unit && row.first_row + u64::from(row.samples) == after.first_row
            }
            Content::Union(union) => {
                let part = &union.parts()[union.part_of(sample)]; // of both blocks: they are in one object
                part.stored.catalog.is_continued(BlockId(block.0 - part.first_block))
            }
            Content::Derived(derived) => derived.base().is_continued(block),
        }
    }

    /// Whether an extent's samples exist and can be read at once.
    pub(crate) fn has_extent(&self, extent: Extent) -> bool {
        let (samples, own) = (extent.range(), self.block_samples(extent.block));
        let next = BlockId(extent.block.0 + 1);
        samples.start >= own.start
            && samples.start < own.end
            && (samples.end <= own.end
                || (self.is_continued(extent.block) && samples.end <= self.block_samples(next).end))
    }

    /// Returns the blocks that hold `samples`, and which of them each holds.
    pub(crate) fn in_blocks(&self, samples: Range<u64>) -> impl Iterator<Item = (BlockId, Range<u64>)> {
        let (mut at, end) = (samples.start, samples.end);
        std::iter::from_fn(move || {
            let block = (at < end).then(|| self.block_of(SampleId(at)))?;
            let of_block = at..end.min(self.block_samples(block).end);
            at = of_block.end;
            Some((block, of_block))
        })
    }
}
