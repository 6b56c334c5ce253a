//! Python functions that workers run on each row, and the columns that functions get.

use super::Pipeline;
use crate::nulls::{NullRule, with_rules};
use crate::{Error, Result};
use arrow::record_batch::RecordBatch;
use feedstock_ingest::{FunctionsSpec, Recipe, RowExecutor};
use std::sync::Arc;

impl Pipeline {
    /// Has workers run Python functions on each row, after all maps. `executor` runs them in this process, if it makes rows too
    /// ([`Local`](crate::Local)). Batches get the columns of [`FunctionsSpec::fields`].
    ///
    /// Functions are outside of `ops_hash`: cursors do not depend on them.
    ///
    /// It is for the Python package, which has an interpreter. A pipeline with functions needs [`workers`](Self::workers).
    #[must_use]
    pub fn functions(mut self, functions: FunctionsSpec, executor: Arc<dyn RowExecutor>) -> Self {
        self.recipe.functions = Some(Arc::new(functions));
        self.recipe.executor = Some(executor);
        self
    }

    /// Returns the recipe that workers get.
    ///
    /// # Errors
    /// `BadConfig` if workers run functions, and columns have another form on this rank.
    pub(crate) fn recipe_with(&self, nulls: &[NullRule]) -> Result<Recipe> {
        let mut recipe = self.recipe.clone();
        if let Some(functions) = &recipe.functions {
            if let Some(rule) = nulls.iter().find(|rule| rule.has_value()) {
                return Err(Error::config(format!(
                    "functions on workers get columns as they are stored; leave out nulls= with a value or \"mask\" for '{}', or \
                     run the function on the rank's machine (executor=\"process\")",
                    rule.column
                )));
            }
            let lists = nulls.iter().filter(|rule| rule.is_list()).map(|rule| rule.column.clone());
            recipe.functions =
                Some(Arc::new(FunctionsSpec { lists: lists.collect(), ..(**functions).clone() }));
        }
        Ok(recipe)
    }
}

/// Returns the columns that functions get in the form that a batch of the rank has: numbers without nulls, except `lists`
/// ([`FunctionsSpec::lists`]). A null elsewhere makes a bad sample on the rank, and is 0 here.
///
/// ```
/// use std::sync::Arc;
/// use arrow::array::{ArrayRef, Int64Array};
/// use arrow::record_batch::RecordBatch;
/// use feedstock_trainer_bridge::columns_of_functions;
///
/// let labels: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None]));
/// let columns = RecordBatch::try_from_iter_with_nullable([("label", labels, true)]).unwrap();
/// let is_nullable = |lists: &[String]| -> feedstock_trainer_bridge::Result<bool> {
///     Ok(columns_of_functions(columns.clone(), lists)?.schema().field(0).is_nullable())
/// };
/// assert!(!is_nullable(&[])?);
/// assert!(is_nullable(&["label".to_owned()])?);
/// # Ok::<(), feedstock_trainer_bridge::Error>(())
/// ```
///
/// # Errors
/// `Bug` if Arrow rejects them.
pub fn columns_of_functions(columns: RecordBatch, lists: &[String]) -> Result<RecordBatch> {
    let schema = columns.schema();
    let rules = schema.fields().iter().map(|field| NullRule::stated(field, lists.contains(field.name())));
    let rules: Vec<NullRule> = rules.filter_map(Result::transpose).collect::<Result<_>>()?;
    with_rules(columns, &rules)
}
