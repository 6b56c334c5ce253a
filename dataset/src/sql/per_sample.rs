//! The values of an expression for all samples: weights and classes.

use super::labels::are_labels;
use super::names::is_named;
use super::{explain, external, refuse_changing, samples, table_of};
use crate::catalog::SAMPLE_ID;
use crate::open::Opened;
use crate::{Error, Result};
use arrow::array::{ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type, UInt64Type};
use datafusion::prelude::ident;
use futures::TryStreamExt;
use std::collections::HashMap;
use std::sync::Arc;

/// The class of a sample without one.
pub(crate) const NO_CLASS: u32 = u32::MAX;

/// Returns the values of a numeric expression by sample id; NaN for nulls.
pub(crate) async fn weights(opened: &Arc<Opened>, sql: &str) -> Result<Vec<f64>> {
    let is_number = |kind: &DataType| kind.is_numeric() || *kind == DataType::Boolean;
    let what = ("weight", "weights are numbers");
    read(opened, sql, what, is_number, &DataType::Float64, f64::NAN, |values, set| {
        values.as_primitive::<Float64Type>().iter().for_each(set);
        Ok(())
    })
    .await
}

/// Returns the numbers of a split by sample id: `number` is the call of the function with the key `key`.
///
/// Rejects an expression that cannot be a key: one that is not valid alone, that changes, or that reads sample ids, which are
/// others when files are added.
pub(crate) async fn split_numbers(opened: &Arc<Opened>, key: &str, number: &str) -> Result<Vec<f64>> {
    check_key(opened, key).await?;
    let what = ("key", "keys are texts, integers, flags or bytes");
    read(
        opened,
        number,
        what,
        |_| true,
        &DataType::Float64,
        f64::NAN,
        |values, set| {
            values.as_primitive::<Float64Type>().iter().for_each(set);
            Ok(())
        },
    )
    .await
}

async fn check_key(opened: &Arc<Opened>, sql: &str) -> Result<()> {
    let io = opened.storage.io().clone();
    let (opened, sql) = (opened.clone(), sql.to_owned());
    let task = async move {
        let run = async {
            let key = table_of(&opened).await?.parse_sql_expr(&sql)?;
            if is_named(&sql) {
                return Err(external(Error::config("a key has no name; leave out `as`")));
            }
            if key.column_refs().iter().any(|column| column.name() == SAMPLE_ID) {
                return Err(external(Error::config(format!(
                    "{SAMPLE_ID} cannot be part of a key: samples get other ids when files are added; use a column of \
                     the data"
                ))));
            }
            Ok(())
        };
        run.await.map_err(|e| explain(e, &format!("the key `{sql}`"), &opened))
    };
    io.run(task).await
}

/// Returns the classes of samples by sample id, numbered by their first samples; [`NO_CLASS`] for nulls.
pub(crate) async fn classes(opened: &Arc<Opened>, sql: &str) -> Result<Vec<u32>> {
    let what = ("class", "classes are texts, integers or flags");
    let mut known: HashMap<String, u32> = HashMap::new();
    read(opened, sql, what, are_labels, &DataType::Utf8View, NO_CLASS, move |values, set| {
        for value in values.as_string_view() {
            let next = u32::try_from(known.len()).ok().filter(|next| *next < NO_CLASS);
            let next = next.ok_or_else(|| Error::config("more than 2³² - 1 classes"))?;
            set(value.map(|value| match known.get(value) {
                Some(class) => *class,
                None => *known.entry(value.to_owned()).or_insert(next),
            }));
        }
        Ok(())
    })
    .await
}

/// Returns the values of an expression by sample id. Values are cast to `kind`, and `each` passes those of a batch on in
/// sequence. `what` names the expression in errors, and states which types it may have.
async fn read<T: Clone + Send + 'static>(
    opened: &Arc<Opened>,
    sql: &str,
    what: (&'static str, &'static str),
    fits: impl Fn(&DataType) -> bool + Send + Sync + 'static,
    kind: &DataType,
    null: T,
    mut each: impl FnMut(&ArrayRef, &mut dyn FnMut(Option<T>)) -> Result<()> + Send + 'static,
) -> Result<Vec<T>> {
    let io = opened.storage.io().clone();
    let (opened, sql, kind) = (opened.clone(), sql.to_owned(), kind.clone());
    let task = async move {
        let samples = samples(&opened)?;
        let run = async {
            let table = table_of(&opened).await?;
            let expression = table.parse_sql_expr(&sql)?;
            refuse_changing(&expression)?;
            let rows = table.select(vec![ident(SAMPLE_ID), expression.alias("value")])?;
            let found = rows.schema().field(1).data_type();
            if !fits(found) {
                return Err(external(Error::config(format!("it is {found}; {}", what.1))));
            }
            let mut stream = rows.execute_stream().await?;
            let mut values = vec![null; samples];
            while let Some(batch) = stream.try_next().await? {
                let mut ids = batch.column(0).as_primitive::<UInt64Type>().values().iter();
                let mut set = |value: Option<T>| {
                    #[expect(
                        clippy::cast_possible_truncation,
                        reason = "below the number of samples, a usize"
                    )]
                    if let (Some(id), Some(value)) = (ids.next(), value) {
                        values[*id as usize] = value;
                    }
                };
                each(&cast(batch.column(1), &kind)?, &mut set).map_err(external)?;
            }
            Ok(values)
        };
        run.await.map_err(|e| explain(e, &format!("the {} `{sql}`", what.0), &opened))
    };
    io.run(task).await
}
