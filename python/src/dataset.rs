//! Opening a data set, selecting from it, and querying it in SQL.

use crate::arguments::storage;
use crate::arrow_c::stream_capsule;
use crate::errors::{call, call_long, config, exception};
use crate::pipeline::Pipeline;
use crate::process::Own;
use crate::values::list;
use arrow::datatypes::{Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use feedstock::catalog::CatalogStore;
use feedstock::catalog::{Durations, Progress};
use feedstock::doctor::{DoctorOptions, examine};
use feedstock::order::Stop;
use feedstock::storage::DiskCacheOptions;
use feedstock::{BatchSize, OpenOptions, SampleId};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::collections::BTreeMap;
use std::future::Future;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An opened data set. Immutable: its methods return new ones.
#[pyclass(frozen, module = "feedstock._feedstock")]
pub(crate) struct Dataset(Own<feedstock::Dataset>);

/// Waits for I/O, which runs on feedstock's threads.
fn wait<T>(future: impl Future<Output = feedstock::Result<T>>) -> feedstock::Result<T> {
    futures::executor::block_on(future)
}

fn text<T>(py: Python<'_>, name: &str, value: Option<&str>) -> PyResult<Option<T>>
where
    T: FromStr,
    T::Err: std::fmt::Display,
{
    value.map(|value| value.parse().map_err(|e: T::Err| config(py, format!("{name}: {e}")))).transpose()
}

#[pymethods]
impl Dataset {
    /// Opens `uri`; `progress(stage, done, total)` is called from another thread while the catalog is built.
    #[staticmethod]
    #[pyo3(signature = (uri, *, layout, split, durations, storage, catalog, catalogs_from, check, rebuild, disk_cache, block_bytes, bad_shards, tar_headers, pair, annotations, progress))]
    #[expect(clippy::too_many_arguments, reason = "all by name, from one place: feedstock/_dataset.py")]
    fn open(
        py: Python<'_>,
        uri: &str,
        layout: Option<&str>,
        split: Option<String>,
        durations: &str,
        storage: &Bound<'_, PyDict>,
        catalog: Option<&str>,
        catalogs_from: Vec<String>,
        check: &str,
        rebuild: bool,
        disk_cache: Option<(String, u64)>,
        block_bytes: Option<u64>,
        bad_shards: &str,
        tar_headers: &str,
        pair: BTreeMap<String, String>,
        annotations: Option<String>,
        progress: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let mut options = OpenOptions {
            storage: self::storage(storage)?,
            layout: text(py, "layout", layout)?,
            split,
            pair,
            annotations,
            disk_cache: disk_cache.map(|(folder, bytes)| DiskCacheOptions::new(folder, bytes)),
            functions: feedstock::catalog::sql_functions(),
            durations: match durations {
                "never" => Durations::Never,
                _ => Durations::Auto,
            },
            ..OpenOptions::default()
        };
        options.catalog.store = match catalog {
            None => CatalogStore::default(),
            Some("beside") => CatalogStore::Beside,
            Some("memory") => CatalogStore::Nowhere,
            Some(folder) => CatalogStore::Cache(folder.into()),
        };
        options.catalog.sources = catalogs_from.into_iter().map(Into::into).collect();
        options.catalog.check = text(py, "check", Some(check))?.unwrap_or_default();
        options.bad_shards = text(py, "bad_shards", Some(bad_shards))?.unwrap_or_default();
        options.tar_headers = text(py, "tar_headers", Some(tar_headers))?.unwrap_or_default();
        options.catalog.rebuild = rebuild;
        options.catalog.progress = progress.map(|callback| {
            Arc::new(move |now: Progress| {
                Python::attach(|py| {
                    if let Err(error) = callback.call1(py, (now.stage, now.done, now.total)) {
                        error.write_unraisable(py, Some(callback.bind(py))); // opening continues
                    }
                });
            }) as _
        });
        if let Some(block_bytes) = block_bytes {
            options.block_bytes = block_bytes;
        }
        let uri = uri.to_owned();
        let opened = call_long(py, move || wait(feedstock::Dataset::open_with(&uri, options)))?;
        Ok(Self(Own::new(opened)))
    }

    /// Copies the stored catalogs into a folder, local or in a bucket.
    fn publish_catalog(&self, py: Python<'_>, folder: String) -> PyResult<()> {
        let dataset = self.0.get(py)?.clone();
        call_long(py, move || wait(dataset.publish_catalog(&folder)))
    }

    /// Mixes data sets by weight.
    #[staticmethod]
    fn mix(py: Python<'_>, parts: Vec<(PyRef<'_, Self>, f64)>, stop: &str) -> PyResult<Self> {
        let stop = match stop {
            "first_exhausted" => Stop::FirstExhausted,
            "all_exhausted" => Stop::AllExhausted,
            "never" => Stop::Never,
            other => {
                let known = "'first_exhausted', 'all_exhausted' or 'never'";
                return Err(config(py, format!("stop must be {known}; got '{other}'")));
            }
        };
        let parts: Vec<(feedstock::Dataset, f64)> = parts
            .iter()
            .map(|(part, weight)| Ok((part.0.get(py)?.clone(), *weight)))
            .collect::<PyResult<_>>()?;
        Ok(Self(Own::new(call(py, || feedstock::Dataset::mix(parts, stop))?)))
    }

    /// Joins data sets end to end.
    #[staticmethod]
    fn concat(py: Python<'_>, parts: Vec<PyRef<'_, Self>>) -> PyResult<Self> {
        let parts = parts.iter().map(|part| Ok(part.0.get(py)?.clone()));
        let parts: Vec<feedstock::Dataset> = parts.collect::<PyResult<_>>()?;
        Ok(Self(Own::new(call(py, || feedstock::Dataset::concat(parts))?)))
    }

    fn named(&self, py: Python<'_>, name: &str) -> PyResult<Self> {
        Ok(Self(Own::new(self.0.get(py)?.clone().named(name))))
    }

    fn filter(&self, py: Python<'_>, sql: &str) -> PyResult<Self> {
        let (dataset, sql) = (self.0.get(py)?.clone(), sql.to_owned());
        Ok(Self(Own::new(call_long(py, move || dataset.filter(&sql))?)))
    }

    fn take(&self, py: Python<'_>, n: u64) -> PyResult<Self> {
        let dataset = self.0.get(py)?.clone();
        Ok(Self(Own::new(call(py, || dataset.take(n))?)))
    }

    fn skip(&self, py: Python<'_>, n: u64) -> PyResult<Self> {
        let dataset = self.0.get(py)?.clone();
        Ok(Self(Own::new(call(py, || dataset.skip(n))?)))
    }

    /// Keeps samples by ids, which are little-endian words of 8 bytes.
    fn select(&self, py: Python<'_>, ids: &[u8]) -> PyResult<Self> {
        let dataset = self.0.get(py)?.clone();
        let ids = ids.as_chunks().0.iter().map(|id| SampleId(u64::from_le_bytes(*id)));
        Ok(Self(Own::new(call(py, || dataset.select(ids))?)))
    }

    fn weights(&self, py: Python<'_>, weight: String, samples: Option<u64>) -> PyResult<Self> {
        let dataset = self.0.get(py)?.clone();
        Ok(Self(Own::new(call_long(py, move || dataset.weights(&weight, samples))?)))
    }

    fn balanced(&self, py: Python<'_>, class: String) -> PyResult<Self> {
        let dataset = self.0.get(py)?.clone();
        Ok(Self(Own::new(call_long(py, move || dataset.balanced(&class))?)))
    }

    fn with_column(&self, py: Python<'_>, name: String, sql: String) -> PyResult<Self> {
        let dataset = self.0.get(py)?.clone();
        Ok(Self(Own::new(call_long(py, move || dataset.with_column(&name, &sql))?)))
    }

    /// Renames columns: pairs of an old and a new name.
    fn rename(&self, py: Python<'_>, names: Vec<(String, String)>) -> PyResult<Self> {
        let dataset = self.0.get(py)?.clone();
        Ok(Self(Own::new(call(py, || dataset.rename(&pairs(&names)))?)))
    }

    /// Joins columns of `other` by keys: pairs of a column here and one there.
    fn join(&self, py: Python<'_>, other: PyRef<'_, Self>, on: Vec<(String, String)>) -> PyResult<Self> {
        let (dataset, other) = (self.0.get(py)?.clone(), other.0.get(py)?.clone());
        Ok(Self(Own::new(call_long(py, move || dataset.join(&other, &pairs(&on)))?)))
    }

    /// Returns the parts of a split, in the sequence of `shares`.
    fn split_by(
        &self,
        py: Python<'_>,
        key: String,
        shares: Vec<(String, f64)>,
        seed: u64,
    ) -> PyResult<Vec<(String, Self)>> {
        let dataset = self.0.get(py)?.clone();
        let parts = call_long(py, move || {
            let shares: Vec<(&str, f64)> =
                shares.iter().map(|(name, share)| (name.as_str(), *share)).collect();
            dataset.split_by(&key, &shares, seed)
        })?;
        Ok(parts.into_iter().map(|(name, part)| (name, Self(Own::new(part)))).collect())
    }

    fn columns(&self, py: Python<'_>, names: Vec<String>) -> PyResult<Self> {
        let dataset = self.0.get(py)?.clone();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        Ok(Self(Own::new(call(py, || dataset.columns(&names))?)))
    }

    fn sql(&self, py: Python<'_>, query: &str) -> PyResult<Table> {
        let (dataset, query) = (self.0.get(py)?.clone(), query.to_owned());
        Ok(Table(call_long(py, move || wait(dataset.sql(&query)))?))
    }

    /// Reads the selected samples with the numbers `start` to `end - 1`, in catalog order, undecoded.
    fn rows(&self, py: Python<'_>, start: u64, end: u64) -> PyResult<Table> {
        let dataset = self.0.get(py)?.clone();
        Ok(Table(vec![call_long(py, move || dataset.rows(start..end))?]))
    }

    /// Returns the names of the classes that `column` numbers.
    fn class_names(&self, py: Python<'_>, column: &str) -> PyResult<Option<Vec<String>>> {
        Ok(self.0.get(py)?.catalog().class_names(column))
    }

    /// Returns how it is stored.
    fn layout(&self, py: Python<'_>) -> PyResult<&'static str> {
        Ok(self.0.get(py)?.catalog().layout().name())
    }

    /// Returns its selection as one SQL expression.
    fn filter_sql(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.0.get(py)?.as_ref().filter_sql())
    }

    /// Decodes all samples or `samples` of them, and returns the report as JSON.
    fn doctor(
        &self,
        py: Python<'_>,
        samples: Option<u64>,
        threads: Option<usize>,
        listed: usize,
        masks: Vec<String>,
    ) -> PyResult<String> {
        let dataset = self.0.get(py)?.clone();
        let mut options = DoctorOptions { samples, listed, masks, ..DoctorOptions::default() };
        options.threads = threads.unwrap_or(options.threads);
        // Ctrl-C ends the wait, and thereby the work.
        let _stop = StopOnDrop(options.stop.clone());
        let report = call_long(py, move || examine(dataset.as_ref(), &options))?;
        serde_json::to_string(&report)
            .map_err(|e| exception(py, "InternalError", format!("the report cannot be written as JSON: {e}")))
    }

    /// Returns names and types of all columns, in the catalog's order.
    fn schema(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        Ok(named_types(self.0.get(py)?.catalog().schema()))
    }

    fn uri(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.0.get(py)?.uri().to_owned())
    }

    /// Returns the URI with its credentials: for pickling, never for printing.
    fn opened_uri(&self, py: Python<'_>) -> PyResult<String> {
        Ok(self.0.get(py)?.as_ref().opened_uri().to_owned())
    }

    fn samples(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.len())
    }

    /// Returns a pipeline over this data set.
    fn pipeline(&self, py: Python<'_>) -> PyResult<Pipeline> {
        Ok(Pipeline::new(self.0.get(py)?.clone().batch(BatchSize::per_rank(1))))
    }
}

/// Sets a flag when it is dropped.
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn pairs(names: &[(String, String)]) -> Vec<(&str, &str)> {
    names.iter().map(|(one, other)| (one.as_str(), other.as_str())).collect()
}

/// Returns names and types of columns.
fn named_types(schema: &Schema) -> Vec<(String, String)> {
    let fields = schema.fields().iter();
    fields.map(|field| (field.name().clone(), field.data_type().to_string())).collect()
}

/// Rows of a data set or of a query's result, for `feedstock/_table.py`.
#[pyclass(frozen, module = "feedstock._feedstock")]
pub(crate) struct Table(Vec<RecordBatch>);

impl Table {
    fn schema(&self) -> SchemaRef {
        self.0.first().map_or_else(|| Arc::new(Schema::empty()), RecordBatch::schema) // there is at least one batch
    }
}

#[pymethods]
impl Table {
    /// The number of rows.
    fn __len__(&self) -> usize {
        self.0.iter().map(RecordBatch::num_rows).sum()
    }

    /// Arrow's C stream interface.
    #[pyo3(signature = (requested_schema = None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let _ = requested_schema; // best effort by the protocol: the consumer casts
        stream_capsule(py, self.schema(), self.0.clone())
    }

    /// Returns names and types of the columns.
    #[pyo3(name = "schema")]
    fn named_types(&self) -> Vec<(String, String)> {
        named_types(&self.schema())
    }

    /// Returns the columns with the values of the first `most` rows, as Python values.
    fn columns<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Vec<(String, Bound<'py, PyList>)>> {
        let schema = self.schema();
        let columns = schema.fields().iter().enumerate().map(|(index, field)| {
            let values = PyList::empty(py);
            for batch in &self.0 {
                let rows = (most - values.len()).min(batch.num_rows());
                for value in list(py, field.name(), &batch.column(index).slice(0, rows))? {
                    values.append(value)?;
                }
            }
            Ok((field.name().clone(), values))
        });
        columns.collect()
    }
}
