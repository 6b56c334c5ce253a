//! The opened data set. (Door; to be filled.)
use crate::*;
use datafusion::prelude::SessionContext;
use std::sync::Arc;
use arrow::record_batch::RecordBatch;

pub struct OpenOptions { pub storage: StorageOptions, pub catalog: CatalogOptions, pub layout: Option<Layout>, pub disk_cache: Option<DiskCacheOptions>, pub block_bytes: u64, pub functions: Vec<Arc<datafusion::logical_expr::ScalarUDF>> }
#[derive(Clone)]
pub struct Dataset {}
impl Dataset {
    pub async fn open(_uri: &str) -> Result<Self> { todo!() }
    pub async fn open_with(_uri: &str, _options: OpenOptions) -> Result<Self> { todo!() }
    /// Keeps the samples for which the SQL expression is true; successive filters are ANDed.
    pub async fn filter(self, _sql: &str) -> Result<Self> { todo!() }
    /// Keeps these columns (metadata and payload) in blocks and batches.
    pub fn columns(self, _names: &[&str]) -> Result<Self> { todo!() }
    pub fn uri(&self) -> &str { todo!() }
    pub fn catalog(&self) -> &Arc<Catalog> { todo!() }
    /// None: everything.
    pub fn selection(&self) -> Option<&Selection> { todo!() }
    pub fn filter_sql(&self) -> Option<&str> { todo!() }
    pub fn len(&self) -> u64 { todo!() }
    pub fn io(&self) -> &IoRuntime { todo!() }
    pub fn block_reader(&self) -> BlockReader { todo!() }
    /// A DataFusion context with the table `catalog`.
    pub fn sql_context(&self) -> Result<SessionContext> { todo!() }
    pub async fn sql(&self, _query: &str) -> Result<Vec<RecordBatch>> { todo!() }
}
