//! SQL over the catalog: filters, counts, any DataFusion query.
//!
//! A filter is evaluated once, when it is applied, into one bit for each sample: what a plan needs.

pub(crate) mod labels;
pub(crate) mod names;
pub(crate) mod per_sample;
mod scan;
mod split;
mod table;
pub(crate) mod values;

pub(crate) use self::split::SPLIT;
use crate::catalog::SAMPLE_ID;
use crate::open::Opened;
use crate::{Error, ErrorKind, Result};
use arrow::array::AsArray;
use arrow::buffer::{BooleanBuffer, MutableBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, UInt64Type};
use arrow::record_batch::RecordBatch;
use arrow::util::bit_util;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, SchemaError};
use datafusion::logical_expr::{Expr, Volatility};
use datafusion::prelude::{DataFrame, SQLOptions, SessionConfig, SessionContext};
use datafusion::sql::sqlparser::parser::ParserError;
use futures::TryStreamExt;
use names::TABLE;
use std::sync::Arc;
use table::CatalogTable;

/// Returns a context with the table `catalog`, `feedstock_split` and the data set's functions.
pub(crate) fn context(opened: &Arc<Opened>) -> Result<SessionContext> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let context = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(threads));
    context.register_udf(split::split_function());
    for function in &opened.functions {
        context.register_udf(function.as_ref().clone());
    }
    let table = CatalogTable::new(opened.clone());
    context.register_table(TABLE, Arc::new(table)).map_err(|e| {
        Error::new(ErrorKind::Bug, "DataFusion rejects the catalog as a table").with_source(e)
    })?;
    Ok(context)
}

fn external(error: Error) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

async fn table_of(opened: &Arc<Opened>) -> datafusion::error::Result<DataFrame> {
    context(opened).map_err(external)?.table(TABLE).await
}

fn samples(opened: &Opened) -> Result<usize> {
    usize::try_from(opened.catalog.samples())
        .map_err(|_| Error::config("more samples than this machine can address"))
}

/// Returns one bit for each sample: whether the expression is true for it.
pub(crate) async fn evaluate(opened: &Arc<Opened>, sql: &str) -> Result<BooleanBuffer> {
    let io = opened.storage.io().clone();
    let (opened, sql) = (opened.clone(), sql.to_owned());
    let task = async move {
        let samples = samples(&opened)?;
        let run = async {
            let table = table_of(&opened).await?;
            let expression = table.parse_sql_expr(&sql)?;
            refuse_changing(&expression)?;
            let ids = table.filter(expression)?.select_columns(&[SAMPLE_ID])?;
            let mut stream = ids.execute_stream().await?;
            let mut bits = MutableBuffer::from_len_zeroed(bit_util::ceil(samples, 8));
            while let Some(batch) = stream.try_next().await? {
                for &id in batch.column(0).as_primitive::<UInt64Type>().values() {
                    #[expect(
                        clippy::cast_possible_truncation,
                        reason = "below the number of samples, a usize"
                    )]
                    bit_util::set_bit(bits.as_slice_mut(), id as usize);
                }
            }
            Ok(BooleanBuffer::new(bits.into(), 0, samples))
        };
        run.await.map_err(|e| explain(e, &format!("the filter `{sql}`"), &opened))
    };
    io.run(task).await
}

/// Returns the values of a numeric column by sample id; NaN for nulls.
pub(crate) async fn numbers(opened: &Arc<Opened>, column: &str) -> Result<Vec<f32>> {
    let io = opened.storage.io().clone();
    let (opened, column) = (opened.clone(), column.to_owned());
    let task = async move {
        let samples = samples(&opened)?;
        let run = async {
            let table = table_of(&opened).await?;
            let mut stream = table.select_columns(&[SAMPLE_ID, &column])?.execute_stream().await?;
            let mut found = vec![f32::NAN; samples];
            while let Some(batch) = stream.try_next().await? {
                let numbers = cast(batch.column(1), &DataType::Float64)?;
                let ids = batch.column(0).as_primitive::<UInt64Type>().values();
                for (&id, number) in ids.iter().zip(numbers.as_primitive::<Float64Type>()) {
                    #[expect(
                        clippy::cast_possible_truncation,
                        reason = "below the number of samples, a usize"
                    )]
                    if let Some(number) = number {
                        found[id as usize] = narrowed(number);
                    }
                }
            }
            Ok(found)
        };
        run.await.map_err(|e| explain(e, &format!("the column {column}"), &opened))
    };
    io.run(task).await
}

/// Rounds down to `f32`: a sample that a filter keeps as `<= 12.3` must not be longer than 12.3 to a plan.
fn narrowed(number: f64) -> f32 {
    #[expect(clippy::cast_possible_truncation, reason = "rounded, then corrected")]
    let nearest = number as f32;
    if f64::from(nearest) > number { nearest.next_down() } else { nearest }
}

/// Rejects filters that depend on chance or the clock: every rank and every resumed run must keep the same samples.
fn refuse_changing(expression: &Expr) -> datafusion::error::Result<()> {
    let mut changing = None;
    expression.apply(|part| {
        if let Expr::ScalarFunction(call) = part
            && call.func.signature().volatility != Volatility::Immutable
        {
            changing = Some(call.func.name().to_owned());
            return Ok(TreeNodeRecursion::Stop);
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    match changing {
        None => Ok(()),
        Some(name) => Err(DataFusionError::External(Box::new(Error::config(format!(
            "{name}() returns other values at other times, so ranks and resumed runs would not keep the same samples; \
             compare with a constant instead"
        ))))),
    }
}

/// Runs a query and returns all its rows, in at least one batch.
pub(crate) async fn query(opened: &Arc<Opened>, query: &str) -> Result<Vec<RecordBatch>> {
    let io = opened.storage.io().clone();
    let (opened, query) = (opened.clone(), query.to_owned());
    let task = async move {
        let run = async {
            let context = context(&opened).map_err(external)?;
            // `copy`, `create external table` and `drop` would write files, read others, or remove the table.
            let only_queries =
                SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
            let rows = context.sql_with_options(&query, only_queries).await?;
            let schema = rows.schema().inner().clone();
            let mut batches = rows.collect().await?;
            if batches.is_empty() {
                batches.push(RecordBatch::new_empty(schema)); // which has the columns
            }
            Ok(batches)
        };
        run.await.map_err(|e| explain(e, &format!("the query `{query}`"), &opened))
    };
    io.run(task).await
}

/// Returns what is wrong with an expression, without DataFusion's names for kinds of errors and its settings.
fn reason(error: &DataFusionError) -> String {
    match error {
        DataFusionError::SchemaError(error, _) => match &**error {
            SchemaError::FieldNotFound { field, valid_fields } => {
                let name = field.name();
                let other_case = valid_fields.iter().find(|known| known.name().eq_ignore_ascii_case(name));
                let advice = other_case.map_or_else(String::new, |known| {
                    format!(
                        " (names without quotation marks are read in lower case; write \"{}\")",
                        known.name()
                    )
                });
                format!("there is no column `{name}`{advice}")
            }
            error => error.to_string(),
        },
        DataFusionError::SQL(error, _) => match &**error {
            ParserError::TokenizerError(why) | ParserError::ParserError(why) => {
                format!("it is not an SQL expression: {why}")
            }
            ParserError::RecursionLimitExceeded => "it is nested too deeply".to_owned(),
        },
        DataFusionError::Plan(why)
        | DataFusionError::NotImplemented(why)
        | DataFusionError::Execution(why) => why.clone(),
        error => error.strip_backtrace(),
    }
}

/// Returns feedstock's own error if that is the cause, else one with DataFusion's reason and the columns.
fn explain(error: DataFusionError, what: &str, opened: &Opened) -> Error {
    let root = error.find_root();
    if let DataFusionError::External(cause) = root
        && let Some(ours) = cause.downcast_ref::<Error>()
    {
        return ours.clone().context(what);
    }
    let reason = reason(root);
    let columns: Vec<&str> = opened.catalog.schema.fields().iter().map(|f| f.name().as_str()).collect();
    Error::config(format!(
        "{what} does not fit {}: {reason}; the columns are: {}, {SAMPLE_ID}",
        opened.catalog.uri,
        columns.join(", ")
    ))
}
