//! SQL over the catalog: filters, counts, anything DataFusion can ask.

use crate::dataset::Opened;
use crate::{Dataset, Error, Result};
use arrow::buffer::BooleanBuffer;
use arrow::record_batch::RecordBatch;
use datafusion::prelude::SessionContext;

pub(crate) async fn evaluate(_dataset: &Dataset, _sql: &str) -> Result<BooleanBuffer> {
    Err(Error::config("filters are not built yet"))
}
pub(crate) fn context(_opened: &Opened) -> Result<SessionContext> {
    Err(Error::config("filters are not built yet"))
}
pub(crate) async fn query(_dataset: &Dataset, _query: &str) -> Result<Vec<RecordBatch>> {
    Err(Error::config("filters are not built yet"))
}
