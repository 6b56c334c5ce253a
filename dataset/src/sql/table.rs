//! The catalog as a DataFusion table.
//!
//! Columns: all metadata and payload columns, and `sample_id`. Only the columns that a query names are read. Filters on
//! metadata are pushed down to the files: a Parquet row group whose statistics exclude them is skipped. If a query also
//! reads payloads, a block's payloads are fetched only if some of its samples pass. Every row has its sample id from its
//! block, so skipped rows cannot shift the ids.

use super::scan::{Cheap, Output, Run, Scan, ScanExec};
use crate::catalog::{Catalog, Content, SAMPLE_ID};
use crate::format;
use crate::open::Opened;
use crate::{BlockId, BlockReader};
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{DFSchema, Result, project_schema};
use datafusion::logical_expr::utils::conjunction;
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_optimizer::pruning::{PruningPredicate, PruningPredicateBuilder};
use datafusion::physical_plan::ExecutionPlan;
use std::fmt;
use std::sync::Arc;

/// The table `catalog` of one data set.
pub(crate) struct CatalogTable {
    opened: Arc<Opened>,
    schema: SchemaRef,
}

impl CatalogTable {
    pub(crate) fn new(opened: Arc<Opened>) -> Self {
        let mut fields: Vec<FieldRef> = opened.catalog.schema.fields().iter().cloned().collect();
        fields.push(Arc::new(Field::new(SAMPLE_ID, DataType::UInt64, false)));
        Self { opened, schema: Arc::new(Schema::new(fields)) }
    }

    fn is_payload(&self, column: &str) -> bool {
        self.opened.catalog.is_payload(column)
    }

    /// Returns a reader of the given columns of the table.
    fn reader(&self, table_columns: &[usize]) -> BlockReader {
        let sample_id = self.schema.fields().len() - 1;
        let columns = table_columns.iter().copied().filter(|&c| c != sample_id).collect();
        // A query passes once over everything: it must not evict the plan's blocks from the cache.
        BlockReader::new(self.opened.catalog.clone(), self.opened.storage.clone(), None, columns)
    }

    fn outputs(&self, table_columns: &[usize]) -> Vec<Output> {
        let sample_id = self.schema.fields().len() - 1;
        let mut read = 0..;
        table_columns
            .iter()
            .map(|&c| if c == sample_id { Output::SampleId } else { Output::Read(read.next().unwrap_or(0)) })
            .collect()
    }

    /// Returns the filters that need no payload, as a predicate over the columns they name.
    fn cheap(&self, state: &dyn Session, filters: &[Expr]) -> Result<Option<Cheap>> {
        let metadata_only = filters.iter().filter(|f| !f.is_volatile());
        let metadata_only =
            metadata_only.filter(|f| !f.column_refs().iter().any(|c| self.is_payload(&c.name)));
        let Some(filter) = conjunction(metadata_only.cloned()) else { return Ok(None) };
        let mut columns: Vec<usize> =
            filter.column_refs().iter().map(|c| self.schema.index_of(&c.name)).collect::<Result<_, _>>()?;
        columns.sort_unstable();
        let schema = Arc::new(self.schema.project(&columns)?);
        let predicate = state.create_physical_expr(filter, &DFSchema::try_from(schema.clone())?)?;
        Ok(Some(Cheap { reader: self.reader(&columns), outputs: self.outputs(&columns), schema, predicate }))
    }

    /// Returns the predicate that row-group statistics are checked against.
    fn pruning(&self, state: &dyn Session, filters: &[Expr]) -> Result<Option<PruningPredicate>> {
        if !format::of(self.opened.catalog.layout).has_statistics() {
            return Ok(None);
        }
        let Some(filter) = conjunction(filters.iter().filter(|f| !f.is_volatile()).cloned()) else {
            return Ok(None);
        };
        let predicate = state.create_physical_expr(filter, &DFSchema::try_from(self.schema.clone())?)?;
        let pruning =
            PruningPredicateBuilder::new().with_file_schema(self.schema.clone()).try_build(predicate);
        // An expression that statistics cannot decide is not an error: nothing is skipped then.
        Ok(pruning.ok().filter(|p| !p.always_true()))
    }

    /// Returns the runs of blocks that are read together: one block each if payloads are read, else all blocks of a unit or
    /// of a run of the sample table.
    fn runs(&self, with_payload: bool) -> Vec<Run> {
        if with_payload {
            #[expect(clippy::cast_possible_truncation, reason = "at most MAX_BLOCKS blocks")]
            let blocks = self.opened.catalog.blocks() as u32;
            return (0..blocks).map(|b| Run { blocks: b..b + 1 }).collect();
        }
        metadata_runs(&self.opened.catalog)
    }
}

pub(super) fn metadata_runs(catalog: &Catalog) -> Vec<Run> {
    #[expect(clippy::cast_possible_truncation, reason = "at most MAX_BLOCKS blocks")]
    let blocks = catalog.blocks() as u32;
    let mut runs = Vec::new();
    match &catalog.content {
        Content::Units { .. } => {
            let mut start = 0;
            for b in 1..=blocks {
                let unit = |b: u32| catalog.blocks.row(BlockId(b)).unit;
                if b == blocks || unit(b) != unit(start) {
                    runs.push(Run { blocks: start..b });
                    start = b;
                }
            }
        }
        Content::Located(table) => {
            let mut start = 0;
            for (first, chunk) in table.chunks() {
                let end = first + chunk.metadata.num_rows() as u64;
                #[expect(clippy::cast_possible_truncation, reason = "at most MAX_BLOCKS blocks")]
                let stop = catalog.blocks.starts().partition_point(|&s| s < end) as u32;
                runs.push(Run { blocks: start..stop });
                start = stop;
            }
        }
        Content::Union(union) => {
            for (catalog, first) in union.block_offsets() {
                let own = metadata_runs(catalog).into_iter();
                runs.extend(own.map(|run| Run { blocks: run.blocks.start + first..run.blocks.end + first }));
            }
        }
        Content::Derived(derived) => runs = metadata_runs(derived.base()),
    }
    runs
}

impl fmt::Debug for CatalogTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CatalogTable").field("uri", &self.opened.catalog.uri).finish_non_exhaustive()
    }
}

#[async_trait]
impl TableProvider for CatalogTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        // Only whole row groups and blocks are skipped, so rows that do not pass may be left.
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all: Vec<usize> = (0..self.schema.fields().len()).collect();
        let columns = projection.unwrap_or(&all);
        let with_payload = columns.iter().any(|&c| self.is_payload(self.schema.field(c).name()));
        let cheap = if with_payload { self.cheap(state, filters)? } else { None };
        let scan = Scan {
            opened: self.opened.clone(),
            schema: project_schema(&self.schema, projection)?,
            reader: self.reader(columns),
            outputs: self.outputs(columns),
            cheap,
            pruning: self.pruning(state, filters)?,
        };
        let partitions = state.config().target_partitions();
        Ok(Arc::new(ScanExec::new(scan, self.runs(with_payload), partitions)))
    }
}
