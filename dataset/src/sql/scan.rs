//! Runs a scan of the catalog: reads runs of blocks, returns record batches with sample ids.

use crate::catalog::{Catalog, Content, SAMPLE_ID};
use crate::format::parquet::read::parse_unit;
use crate::open::Opened;
use crate::{BlockId, BlockReader, Error};
use arrow::array::{ArrayRef, AsArray, BooleanArray, UInt64Array};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Column, DataFusionError, Result, ScalarValue, internal_err};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_optimizer::pruning::PruningPredicate;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PlanProperties};
use futures::{StreamExt, TryStreamExt, stream};
use parquet::arrow::arrow_reader::statistics::StatisticsConverter;
use parquet::file::metadata::ParquetMetaData;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Runs that one partition reads ahead: one is consumed while the next is read. With payloads a run is one block, so a scan
/// holds about two blocks for each partition.
const RUNS_AHEAD: usize = 2;

/// Consecutive blocks that are read together; all of one unit, or of one run of the sample table.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) blocks: Range<u32>,
}

/// Where an output column comes from.
#[derive(Debug, Clone, Copy)]
pub(super) enum Output {
    /// A column of the reader's batch.
    Read(usize),
    SampleId,
}

/// A predicate that needs no payload; it is evaluated before a block's payloads are fetched.
pub(super) struct Cheap {
    pub(super) reader: BlockReader,
    pub(super) outputs: Vec<Output>,
    pub(super) schema: SchemaRef,
    pub(super) predicate: Arc<dyn PhysicalExpr>,
}

/// One scan: what to read and what may be skipped.
pub(super) struct Scan {
    pub(super) opened: Arc<Opened>,
    pub(super) schema: SchemaRef,
    pub(super) reader: BlockReader,
    pub(super) outputs: Vec<Output>,
    pub(super) cheap: Option<Cheap>,
    pub(super) pruning: Option<PruningPredicate>,
}

impl Scan {
    /// Returns the rows of a run; `None` if it is skipped.
    async fn read(&self, run: Run) -> Result<Option<RecordBatch>> {
        if self.excluded(&run).await? {
            return Ok(None);
        }
        if let Some(cheap) = &self.cheap {
            let batch = self.fetch(&run, &cheap.reader, &cheap.outputs, &cheap.schema).await?;
            let keep = cheap.predicate.evaluate(&batch)?.into_array(batch.num_rows())?;
            if keep.as_boolean_opt().is_some_and(|keep| keep.true_count() == 0) {
                return Ok(None);
            }
        }
        self.fetch(&run, &self.reader, &self.outputs, &self.schema).await.map(Some)
    }

    async fn fetch(
        &self,
        run: &Run,
        reader: &BlockReader,
        outputs: &[Output],
        schema: &SchemaRef,
    ) -> Result<RecordBatch> {
        let samples = self.samples(run);
        let read = match reader.schema().fields().is_empty() {
            true => None, // counting needs no I/O
            false => Some(reader.fetch_run(run.blocks.clone()).await.map_err(external)?.1),
        };
        let ids = || UInt64Array::from_iter_values(samples.clone());
        let columns = outputs.iter().map(|output| match (output, &read) {
            (Output::Read(i), Some(rows)) => Ok(rows.column(*i).clone()),
            (Output::SampleId, _) => Ok(Arc::new(ids()) as ArrayRef),
            (Output::Read(_), None) => internal_err!("a column is requested from a batch that was not read"),
        });
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let rows = usize::try_from(samples.end - samples.start)
            .map_err(|e| DataFusionError::External(Box::new(e)))?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
    }

    fn samples(&self, run: &Run) -> Range<u64> {
        let starts = self.opened.catalog.block_starts();
        starts[run.blocks.start as usize]..starts[run.blocks.end as usize]
    }

    /// Whether the statistics of its row group prove that no row passes.
    async fn excluded(&self, run: &Run) -> Result<bool> {
        let catalog = &self.opened.catalog;
        let (Some(pruning), Content::Units { units, source_schema, .. }) =
            (&self.pruning, &catalog.base().content)
        else {
            return Ok(false);
        };
        let unit = catalog.blocks.row(BlockId(run.blocks.start)).unit;
        let (units, storage) = (units.clone(), self.opened.storage.clone());
        let footer = self.opened.storage.io().run(async move { units.read(unit, &storage).await });
        let metadata = parse_unit(&footer.await.map_err(external)?).map_err(external)?;
        let statistics = UnitStatistics {
            catalog,
            metadata: &metadata,
            schema: source_schema,
            samples: self.samples(run),
        };
        let may_match = pruning.prune(&statistics)?;
        Ok(may_match.first() == Some(&false))
    }
}

fn external(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// The statistics of one row group, and the sample ids of a run in it.
struct UnitStatistics<'a> {
    /// Has the names that the query uses; files may have others.
    catalog: &'a Catalog,
    metadata: &'a ParquetMetaData,
    schema: &'a SchemaRef,
    samples: Range<u64>,
}

impl UnitStatistics<'_> {
    fn converter<'a>(&'a self, column: &'a Column) -> Option<StatisticsConverter<'a>> {
        let descr = self.metadata.file_metadata().schema_descr();
        let name = self.catalog.stored_name(column.name())?;
        StatisticsConverter::try_new(name, self.schema, descr).ok()
    }

    fn sample_id(&self, column: &Column, id: u64) -> Option<ArrayRef> {
        (column.name() == SAMPLE_ID).then(|| Arc::new(UInt64Array::from(vec![id])) as ArrayRef)
    }
}

impl PruningStatistics for UnitStatistics<'_> {
    fn min_values(&self, column: &Column) -> Option<ArrayRef> {
        self.sample_id(column, self.samples.start)
            .or_else(|| self.converter(column)?.row_group_mins(self.metadata.row_groups()).ok())
    }

    fn max_values(&self, column: &Column) -> Option<ArrayRef> {
        self.sample_id(column, self.samples.end - 1)
            .or_else(|| self.converter(column)?.row_group_maxes(self.metadata.row_groups()).ok())
    }

    fn num_containers(&self) -> usize {
        1
    }

    fn null_counts(&self, column: &Column) -> Option<ArrayRef> {
        // A file without a count of nulls may have some.
        let converter = self.converter(column)?.with_missing_null_counts_as_zero(false);
        let counts = converter.row_group_null_counts(self.metadata.row_groups()).ok()?;
        Some(Arc::new(counts))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let rows = self.metadata.row_groups().first()?.num_rows();
        Some(Arc::new(UInt64Array::from(vec![rows.unsigned_abs()])))
    }

    fn contained(&self, _column: &Column, _values: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}

/// The physical plan of a scan.
pub(super) struct ScanExec {
    scan: Arc<Scan>,
    runs: Vec<Vec<Run>>,
    properties: Arc<PlanProperties>,
}

impl ScanExec {
    pub(super) fn new(scan: Scan, runs: Vec<Run>, partitions: usize) -> Self {
        let share = runs.len().div_ceil(partitions.max(1)).max(1);
        let mut runs: Vec<Vec<Run>> = runs.chunks(share).map(<[Run]>::to_vec).collect();
        if runs.is_empty() {
            runs.push(Vec::new());
        }
        let properties = PlanProperties::new(
            EquivalenceProperties::new(scan.schema.clone()),
            Partitioning::UnknownPartitioning(runs.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        );
        Self { scan: Arc::new(scan), runs, properties: Arc::new(properties) }
    }
}

impl fmt::Debug for ScanExec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScanExec").field("schema", &self.scan.schema).finish_non_exhaustive()
    }
}

impl DisplayAs for ScanExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns: Vec<&str> = self.scan.schema.fields().iter().map(|c| c.name().as_str()).collect();
        let runs: usize = self.runs.iter().map(Vec::len).sum();
        write!(f, "CatalogScan: columns=[{}], runs={runs}", columns.join(", "))?;
        if let Some(pruning) = &self.scan.pruning {
            write!(f, ", pruning={}", pruning.predicate_expr())?;
        }
        Ok(())
    }
}

impl ExecutionPlan for ScanExec {
    fn name(&self) -> &str {
        "CatalogScan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        match &self.scan.cheap {
            Some(cheap) => visit(&cheap.predicate),
            None => Ok(TreeNodeRecursion::Continue),
        }
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.is_empty() { Ok(self) } else { internal_err!("a scan of the catalog has no children") }
    }

    fn execute(&self, partition: usize, _context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let Some(runs) = self.runs.get(partition).cloned() else {
            return internal_err!("partition {partition} of {}", self.runs.len());
        };
        let scan = self.scan.clone();
        let batches = stream::iter(runs)
            .map(move |run| {
                let scan = scan.clone();
                async move { scan.read(run).await }
            })
            .buffered(RUNS_AHEAD)
            .try_filter_map(|batch| async move { Ok(batch) });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.scan.schema.clone(), batches)))
    }
}
