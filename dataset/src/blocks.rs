//! Fetching blocks. (Door; to be filled.)
use crate::{BlockId, Result};
use arrow::record_batch::RecordBatch;

/// A fetched block: one row a sample of the block, selected or not, in catalog order.
#[derive(Debug, Clone)]
pub struct Block { pub id: BlockId, pub first_sample: u64, pub rows: RecordBatch }
#[derive(Clone)]
pub struct BlockReader {}
impl BlockReader {
    /// Fetches with one (coalesced) ranged read, through the disk cache if there is one.
    /// `next_use`: how soon the plan needs this block again (smaller is sooner, u64::MAX never), for the cache's eviction.
    pub async fn fetch(&self, _id: BlockId, _next_use: u64) -> Result<Block> { todo!() }
}
