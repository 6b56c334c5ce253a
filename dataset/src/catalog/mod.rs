//! The catalog. (Door; to be filled.)
use crate::{BlockId, SampleId, Layout};
use std::ops::Range;
use std::sync::Arc;
use arrow::datatypes::SchemaRef;

/// Told while a catalog is built: (what is being done, done, total if known).
pub struct Progress { pub stage: &'static str, pub done: u64, pub total: Option<u64> }
pub type ProgressFn = Arc<dyn Fn(Progress) + Send + Sync>;
pub enum CatalogStore { Cache(std::path::PathBuf), Beside, Nowhere }
pub struct CatalogOptions { pub store: CatalogStore, pub rebuild: bool, pub progress: Option<ProgressFn> }
pub struct Objects {}
/// One block: what a plan and a prefetcher need to know without touching storage.
pub struct BlockSpec { pub shard: u32, pub samples: u32, pub bytes: u64 }
pub struct Catalog {}
impl Catalog {
    pub fn layout(&self) -> Layout { todo!() }
    pub fn samples(&self) -> u64 { todo!() }
    pub fn blocks(&self) -> usize { todo!() }
    pub fn block(&self, _id: BlockId) -> BlockSpec { todo!() }
    pub fn block_samples(&self, _id: BlockId) -> Range<u64> { todo!() }
    pub fn block_of(&self, _sample: SampleId) -> BlockId { todo!() }
    pub fn content_hash(&self) -> u64 { todo!() }
    /// Metadata columns, then payload columns (BinaryView).
    pub fn schema(&self) -> &SchemaRef { todo!() }
    pub fn payload_columns(&self) -> &[String] { todo!() }
    /// What an error calls a sample: `train-0042.parquet row 17`.
    pub fn describe_sample(&self, _sample: SampleId) -> String { todo!() }
    pub fn describe_block(&self, _block: BlockId) -> String { todo!() }
}
