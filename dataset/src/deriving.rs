//! Columns of a data set that are not in its files: computed columns, and other names.

use crate::catalog::{ColumnValues, DerivedColumn, SAMPLE_ID, project};
use crate::open::{Opened, place_hash};
use crate::sql::values;
use crate::steps::{SelectionStep, text, with_step};
use crate::{Dataset, Error, Result};
use arrow::datatypes::{Field, FieldRef};
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

impl Dataset {
    /// Adds a column whose values are those of an SQL expression over the catalog's columns.
    ///
    /// Later filters, splits, weights, joins and queries can use it, and batches have it. The expression is evaluated when this is called,
    /// once for each sample of the catalog, and again in each process that opens the data set. Its values stay in memory. As in a
    /// filter, an expression over encoded samples (`image_width(image)`) reads all of them.
    ///
    /// Texts of any type become `Utf8`. If columns were chosen, the new one is the last of them.
    ///
    /// ```
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/33.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(uri, options).await?; // cat/1.jpg, cat/2.jpg, dog/33.jpg
    /// let named = dataset.clone().with_column("name_length", "length(path)").await?;
    /// assert_eq!(named.filter("name_length > 9").await?.len(), 1);
    ///
    /// let error = dataset.with_column("n", "count(path)").await.unwrap_err();
    /// assert!(error.message().contains("count() is computed from many samples"));
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for a name that is empty, `sample_id` or taken; for an expression that is not valid, has a query, an
    /// aggregate or a window function, or depends on chance or the clock; and for values that are bytes. Storage's errors.
    pub async fn with_column(self, name: &str, sql: &str) -> Result<Self> {
        check_name(name).map_err(|e| e.context("with_column"))?;
        if self.catalog().schema().index_of(name).is_ok() {
            return Err(Error::config(format!(
                "with_column: there is a column named {name} already; choose another name, or rename that column first"
            )));
        }
        let found = values::of_expression(&self.opened, sql).await;
        let (kind, is_nullable, values) = found.map_err(|e| e.context(format!("with_column {name}")))?;
        let field = Arc::new(Field::new(name, kind, is_nullable));
        let step = SelectionStep::WithColumn { name: name.to_owned(), sql: sql.to_owned() };
        self.with_columns(vec![(field, ColumnValues::of_samples(values))], step)
    }

    /// Gives columns other names: pairs of an old and a new one, all at once, so names can be swapped.
    ///
    /// Payload columns can be renamed, too. Filters before this call keep their effect, and [`filter_sql`](Self::filter_sql) shows
    /// them with the new names. Expressions after it use the new names.
    ///
    /// ```
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # for (name, bytes) in [("cat/1.jpg", "a"), ("cat/2.jpg", "bb"), ("dog/3.jpg", "ccc")] {
    /// #     let path = folder.path().join(name);
    /// #     std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    /// #     std::fs::write(path, bytes).unwrap();
    /// # }
    /// # let uri = folder.path().to_str().unwrap();
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(uri, options).await?; // path, class, label, image
    /// let renamed = dataset.filter("label = 1").await?.rename(&[("label", "target"), ("image", "photo")])?;
    /// assert_eq!(renamed.catalog().payload_columns(), ["photo"]);
    /// assert_eq!(renamed.filter_sql().as_deref(), Some("\"target\" = 1"));
    ///
    /// let error = renamed.rename(&[("target", "class")]).unwrap_err();
    /// assert_eq!(error.message(), "rename: two columns would be named class; choose other names");
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for no names, an unknown column or one that is renamed twice, and a new name that is empty, `sample_id` or that
    /// of another column.
    pub fn rename(self, names: &[(&str, &str)]) -> Result<Self> {
        if names.is_empty() {
            return Err(Error::config("rename: there must be at least 1 column; got none"));
        }
        let schema = self.catalog().schema().clone();
        let old: Vec<&str> = names.iter().map(|(old, _)| *old).collect();
        let renamed = project(&schema, &old).map_err(|e| e.context("rename"))?;
        let mut fields: Vec<FieldRef> = schema.fields().iter().cloned().collect();
        let mut step = BTreeMap::new();
        for (&at, (old, new)) in renamed.iter().zip(names) {
            check_name(new).map_err(|e| e.context("rename"))?;
            if step.insert((*old).to_owned(), (*new).to_owned()).is_some() {
                return Err(Error::config(format!("rename: the column {old} is renamed twice")));
            }
            fields[at] = Arc::new(fields[at].as_ref().clone().with_name(*new));
        }
        let mut taken = HashSet::new();
        if let Some(twice) = fields.iter().find(|field| !taken.insert(field.name().as_str())) {
            return Err(Error::config(format!(
                "rename: two columns would be named {}; choose other names",
                twice.name()
            )));
        }
        let columns = fields.iter().cloned().enumerate().map(|(at, field)| (field, DerivedColumn::Base(at)));
        let (columns, chosen) = (columns.collect(), self.columns.to_vec());
        self.derived(columns, chosen, SelectionStep::Rename(step))
    }

    /// Adds columns after the other metadata columns. If columns were chosen, the new ones come after them.
    pub(crate) fn with_columns(
        self,
        added: Vec<(FieldRef, ColumnValues)>,
        step: SelectionStep,
    ) -> Result<Self> {
        let schema = self.catalog().schema().clone();
        let (all, count) = (schema.fields().len(), added.len());
        let at = all - self.catalog().payload_columns().len();
        let own = |column: usize| (schema.fields()[column].clone(), DerivedColumn::Base(column));
        let new = added.into_iter().map(|(field, values)| (field, DerivedColumn::Values(values)));
        let columns = (0..at).map(own).chain(new).chain((at..all).map(own)).collect();
        let chosen = match self.columns.iter().copied().eq(0..all) {
            true => (0..all + count).collect(),
            false => {
                let moved = |column: usize| if column < at { column } else { column + count };
                self.columns.iter().map(|&column| moved(column)).chain(at..at + count).collect()
            }
        };
        self.derived(columns, chosen, step)
    }

    /// Returns the data set with other columns of the catalog, and the indices of the `chosen` ones among them.
    fn derived(
        mut self,
        columns: Vec<(FieldRef, DerivedColumn)>,
        chosen: Vec<usize>,
        step: SelectionStep,
    ) -> Result<Self> {
        let opened = &self.opened;
        let catalog = opened.catalog.derived(columns);
        // Processes share blocks by this hash, so it must differ where values of columns do.
        let made_by = text(std::slice::from_ref(&step)).unwrap_or_default();
        let (before, schema) = (opened.place_hash.to_le_bytes().to_vec(), format!("{:?}", catalog.schema()));
        let place_hash = place_hash(&catalog, [before, made_by.into_bytes(), schema.into_bytes()]);
        self.opened = Arc::new(Opened {
            storage: opened.storage.clone(),
            stored_at: opened.stored_at.clone(),
            is_catalog_kept: opened.is_catalog_kept,
            published_as: opened.published_as.clone(),
            cache: opened.cache.clone(),
            functions: opened.functions.clone(),
            source: opened.source.clone(),
            place_hash,
            catalog: Arc::new(catalog),
        });
        self.columns = chosen.into();
        self.steps = with_step(&self.steps, step);
        Ok(self)
    }
}

/// Rejects a name that no column can have.
fn check_name(name: &str) -> Result<()> {
    match name {
        "" => Err(Error::config("the name of a column must not be empty")),
        SAMPLE_ID => Err(Error::config(format!("{SAMPLE_ID} is the catalog's; choose another name"))),
        _ => Ok(()),
    }
}
