//! Columns in memory: the values of an expression, or of columns, for all samples in catalog order.

use super::names::{has_subquery, is_named};
use super::{explain, external, samples, table_of};
use crate::catalog::SAMPLE_ID;
use crate::held::held_type;
use crate::open::Opened;
use crate::{Error, ErrorKind, Result};
use arrow::array::{Array, ArrayRef, AsArray, UInt64Array};
use arrow::compute::{cast, concat, take};
use arrow::datatypes::{DataType, Field, FieldRef, UInt64Type};
use arrow::record_batch::RecordBatch;
use datafusion::common::DataFusionError;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::{Expr, Volatility};
use datafusion::prelude::{DataFrame, ident};
use futures::TryStreamExt;
use std::sync::Arc;

/// Returns the type, whether it may be null, and the values of an expression.
///
/// # Errors
/// `BadConfig` for an expression that is not valid, whose value does not follow from one sample alone, or whose type no column
/// can have; storage's errors.
pub(crate) async fn of_expression(opened: &Arc<Opened>, sql: &str) -> Result<(DataType, bool, ArrayRef)> {
    let io = opened.storage.io().clone();
    let (opened, sql) = (opened.clone(), sql.to_owned());
    let task = async move {
        let samples = samples(&opened)?;
        let run = async {
            if has_subquery(&sql) {
                return Err(external(Error::config(
                    "it has a query; a column has one value for each sample",
                )));
            }
            if is_named(&sql) {
                return Err(external(Error::config("a column is named by the call; leave out `as`")));
            }
            let table = table_of(&opened).await?;
            let expression = table.parse_sql_expr(&sql)?;
            check_per_sample(&expression)?;
            let rows = table.select(vec![ident(SAMPLE_ID), expression.alias("value")])?;
            let found = rows.schema().field(1).clone();
            let kind = column_type(found.data_type()).ok_or_else(|| {
                external(Error::config(format!(
                    "it is {}; columns are numbers, flags, texts, dates, times, or lists of them, so cast it",
                    found.data_type()
                )))
            })?;
            let mut columns = gathered(rows, std::slice::from_ref(&kind), samples).await?;
            Ok((kind, found.is_nullable(), columns.swap_remove(0)))
        };
        run.await.map_err(|e| explain(e, &format!("the expression `{sql}`"), &opened))
    };
    io.run(task).await
}

/// Returns the values of columns of the catalog.
///
/// # Errors
/// Storage's.
pub(crate) async fn of_columns(opened: &Arc<Opened>, fields: Vec<FieldRef>) -> Result<Vec<ArrayRef>> {
    let io = opened.storage.io().clone();
    let opened = opened.clone();
    let task = async move {
        let samples = samples(&opened)?;
        let run = async {
            let named = |(at, field): (usize, &FieldRef)| ident(field.name()).alias(format!("column {at}"));
            let columns = fields.iter().enumerate().map(named); // a column may be there twice
            let columns: Vec<Expr> = [ident(SAMPLE_ID)].into_iter().chain(columns).collect();
            let rows = table_of(&opened).await?.select(columns)?;
            let kinds: Vec<DataType> = fields.iter().map(|field| field.data_type().clone()).collect();
            gathered(rows, &kinds, samples).await
        };
        run.await.map_err(|e| explain(e, "the columns", &opened))
    };
    io.run(task).await
}

/// Returns the columns after the first one, which has sample ids, as blocks hold values of the types `kinds`.
async fn gathered(
    rows: DataFrame,
    kinds: &[DataType],
    samples: usize,
) -> datafusion::error::Result<Vec<ArrayRef>> {
    let mut stream = rows.execute_stream().await?;
    let mut batches: Vec<(UInt64Array, Vec<ArrayRef>)> = Vec::new();
    while let Some(batch) = stream.try_next().await? {
        if batch.num_rows() > 0 {
            batches.push((batch.column(0).as_primitive::<UInt64Type>().clone(), parts_of(&batch, kinds)?));
        }
    }
    batches.sort_by_key(|(ids, _)| ids.value(0));
    let ids: Vec<u64> = batches.iter().flat_map(|(ids, _)| ids.values().iter().copied()).collect();
    let sequence = sequence(&ids, samples)?;
    let columns = kinds.iter().enumerate().map(|(column, kind)| -> datafusion::error::Result<ArrayRef> {
        let parts: Vec<&dyn Array> = batches.iter().map(|(_, columns)| columns[column].as_ref()).collect();
        let mut all = concat(&parts)?;
        if let Some(sequence) = &sequence {
            all = take(&all, sequence, None)?;
        }
        Ok(cast(&all, &held_type(kind))?)
    });
    columns.collect()
}

/// Returns the columns of a batch in types that can be joined end to end: texts have offsets of 64 bits, and no views, which
/// would keep the batch.
fn parts_of(batch: &RecordBatch, kinds: &[DataType]) -> datafusion::error::Result<Vec<ArrayRef>> {
    let columns = batch.columns()[1..].iter().zip(kinds).map(|(column, kind)| match kind {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => Ok(cast(column, &DataType::LargeUtf8)?),
        kind => Ok(cast(column, &held_type(kind))?),
    });
    columns.collect()
}

/// Returns the row of each sample; `None` if rows are in the sequence of samples.
fn sequence(ids: &[u64], samples: usize) -> datafusion::error::Result<Option<UInt64Array>> {
    let wrong = || external(Error::new(ErrorKind::Bug, "a scan returned a sample twice or not at all"));
    if ids.len() != samples {
        return Err(wrong());
    }
    if ids.iter().copied().eq(0..samples as u64) {
        return Ok(None);
    }
    let mut rows: Vec<Option<u64>> = vec![None; samples];
    for (row, id) in (0..).zip(ids) {
        let at = usize::try_from(*id).ok().and_then(|id| rows.get_mut(id)).ok_or_else(wrong)?;
        *at = Some(row);
    }
    let rows: Option<Vec<u64>> = rows.into_iter().collect();
    Ok(Some(rows.ok_or_else(wrong)?.into()))
}

/// Returns the type in which a column has values of an expression; `None` if it cannot have them.
fn column_type(kind: &DataType) -> Option<DataType> {
    let item = |field: &FieldRef| -> Option<FieldRef> {
        let kind = column_type(field.data_type())?;
        Some(Arc::new(Field::new(field.name(), kind, field.is_nullable())))
    };
    Some(match kind {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => DataType::Utf8,
        DataType::Dictionary(_, values) => column_type(values)?,
        DataType::Boolean
        | DataType::Date32
        | DataType::Date64
        | DataType::Time32(_)
        | DataType::Time64(_)
        | DataType::Timestamp(..) => kind.clone(),
        DataType::List(field) => DataType::List(item(field)?),
        DataType::LargeList(field) => DataType::LargeList(item(field)?),
        DataType::FixedSizeList(field, size) => DataType::FixedSizeList(item(field)?, *size),
        DataType::Struct(fields) => DataType::Struct(fields.iter().map(item).collect::<Option<_>>()?),
        number if number.is_numeric() => number.clone(),
        _ => return None,
    })
}

/// Rejects expressions whose value does not follow from one sample alone.
fn check_per_sample(expression: &Expr) -> datafusion::error::Result<()> {
    let mut wrong = None;
    expression.apply(|part| {
        wrong = match part {
            Expr::ScalarFunction(call) if call.func.signature().volatility != Volatility::Immutable => {
                Some(format!(
                    "{}() returns other values at other times, so ranks, workers and resumed runs would have different \
                     columns; use a constant instead",
                    call.func.name()
                ))
            }
            Expr::AggregateFunction(call) => Some(of_many(call.func.name())),
            Expr::WindowFunction(call) => Some(of_many(call.fun.name())),
            Expr::ScalarSubquery(_) | Expr::Exists(_) | Expr::InSubquery(_) | Expr::SetComparison(_) => {
                Some("it has a query; a column has one value for each sample".to_owned())
            }
            Expr::Unnest(_) | Expr::GroupingSet(_) | Expr::Placeholder(_) | Expr::ScalarVariable(..) => {
                Some("a column has one value for each sample, which follows from its columns".to_owned())
            }
            _ => None,
        };
        Ok(if wrong.is_some() { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    wrong.map_or(Ok(()), |why| Err(DataFusionError::External(Box::new(Error::config(why)))))
}

fn of_many(function: &str) -> String {
    format!("{function}() is computed from many samples; a column has one value for each sample")
}
