//! The lengths of a data set's samples, for plans that bucket by them or bound a batch's total.

use crate::catalog::project;
use crate::{Dataset, Error, Lengths, Result, SampleId};

impl Dataset {
    /// Reads the numeric `column` of all samples as lengths, such as `duration` or a token count.
    ///
    /// Only that column is read: in one pass over it, unless it is in the catalog's memory.
    ///
    /// ```
    /// use feedstock_dataset::Dataset;
    ///
    /// # use feedstock_dataset::{CatalogOptions, CatalogStore, OpenOptions};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let table = "path,text,seconds\n1.wav,hello,2.5\n2.wav,bye,1.25\n";
    /// # for (name, text) in [("1.wav", "a"), ("2.wav", "b"), ("list.csv", table)] {
    /// #     std::fs::write(folder.path().join(name), text).unwrap();
    /// # }
    /// # let list = folder.path().join("list.csv");
    /// # let catalog = CatalogOptions { store: CatalogStore::Nowhere, ..CatalogOptions::default() };
    /// # let options = OpenOptions { catalog, ..OpenOptions::default() };
    /// # futures::executor::block_on(async {
    /// let dataset = Dataset::open_with(list.to_str().unwrap(), options).await?; // a table: path, text, seconds
    /// assert_eq!(dataset.lengths("seconds").await?.values()[..], [2.5, 1.25]);
    ///
    /// let error = dataset.lengths("text").await.unwrap_err();
    /// assert_eq!(error.message(), "column text is Utf8; lengths need a column of numbers");
    /// # Ok::<(), feedstock_dataset::Error>(())
    /// # }).unwrap();
    /// ```
    ///
    /// # Errors
    /// `BadConfig` for a column that is unknown or not numeric, and for a selected sample whose length is null, NaN,
    /// negative or infinite (the message names it and how to filter it out); storage's errors.
    pub async fn lengths(&self, column: &str) -> Result<Lengths> {
        let catalog = self.catalog().clone();
        let field = catalog.schema().field(project(catalog.schema(), &[column])?[0]).clone();
        if !field.data_type().is_numeric() {
            return Err(Error::config(format!(
                "column {column} is {}; lengths need a column of numbers",
                field.data_type()
            )));
        }
        let lengths = Lengths::new(column, crate::sql::numbers(&self.opened, column).await?);
        let selected = (0..catalog.samples()).map(SampleId);
        let selected = selected.filter(|&s| self.selection().is_none_or(|kept| kept.contains(s)));
        lengths.longest(selected, &|sample| catalog.describe_sample(sample))?;
        Ok(lengths)
    }
}
