//! Arguments that several methods take.

use crate::errors::config;
use feedstock::BatchSize;
use feedstock::storage::{Secret, StorageOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use std::num::NonZeroUsize;
use std::time::Duration;

/// Returns the error for a rank that the world does not have.
pub(crate) fn rank_out_of_range(py: Python<'_>, rank: u32, world_size: u32) -> PyErr {
    config(py, format!("rank must be below world_size={world_size}; got {rank}"))
}

/// The arguments by which `Pipeline.batch` and `Loader.reconfigure` describe a batch size: a dict, made by
/// `feedstock._check.batch_sizes`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct BatchSizes {
    batch_size: Option<u64>,
    global_batch_size: Option<u64>,
    total: Option<f64>,
    global_total: Option<f64>,
    max_rows: Option<u64>,
}

impl BatchSizes {
    /// Returns the batch size; `None` if no size is given. Two sizes are a `ConfigError`.
    pub(crate) fn one(&self, py: Python<'_>) -> PyResult<Option<BatchSize>> {
        let size = match (self.batch_size, self.global_batch_size, self.total, self.global_total) {
            (None, None, None, None) => return Ok(None),
            (Some(rows), None, None, None) => BatchSize::per_rank(rows),
            (None, Some(rows), None, None) => BatchSize::global(rows),
            (None, None, Some(total), None) => BatchSize::per_rank_total(total),
            (None, None, None, Some(total)) => BatchSize::global_total(total),
            _ => {
                let message =
                    "only one of batch_size, global_batch_size, total and global_total may be given";
                return Err(config(py, message));
            }
        };
        Ok(Some(self.max_rows.map_or(size, |rows| size.max_rows(rows))))
    }
}

/// Returns the storage options of `settings`: those with a field in [`StorageOptions`], and object_store's keys.
pub(crate) fn storage(settings: &Bound<'_, PyDict>) -> PyResult<StorageOptions> {
    let mut options = StorageOptions::default();
    for (key, value) in settings {
        let key: String = key.extract()?;
        match key.as_str() {
            "anonymous" => options.anonymous = flag(&value, &key)?,
            "path_style" => options.path_style = Some(flag(&value, &key)?),
            "deadline" => options.deadline = seconds(&value, &key)?,
            "stall_timeout" => options.stall_timeout = seconds(&value, &key)?,
            "hedge" => options.hedge = flag(&value, &key)?,
            "max_concurrency" => options.max_concurrency = Some(at_least_one(&value, &key)?),
            "readers" => options.readers = Some(at_least_one(&value, &key)?),
            "endpoint" | "region" => options = options.with(format!("aws_{key}"), setting(&value)?),
            _ => options = options.with(key, setting(&value)?),
        }
    }
    Ok(options)
}

fn setting(value: &Bound<'_, PyAny>) -> PyResult<Secret> {
    let text = match value.cast::<PyBool>() {
        Ok(flag) => flag.is_true().to_string(), // object_store reads "true", not "True"
        Err(_) => value.str()?.to_string(),
    };
    Ok(Secret::new(text))
}

fn at_least_one(value: &Bound<'_, PyAny>, name: &str) -> PyResult<NonZeroUsize> {
    let found: Option<NonZeroUsize> = value.extract().ok();
    found.ok_or_else(|| config(value.py(), format!("{name} must be an integer >= 1; got {}", shown(value))))
}

fn seconds(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Duration> {
    let found = value.extract().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    found.ok_or_else(|| {
        config(value.py(), format!("{name} must be a number of seconds >= 0; got {}", shown(value)))
    })
}

fn flag(value: &Bound<'_, PyAny>, name: &str) -> PyResult<bool> {
    let found: Option<bool> = value.extract().ok();
    found.ok_or_else(|| config(value.py(), format!("{name} must be True or False; got {}", shown(value))))
}

fn shown(value: &Bound<'_, PyAny>) -> String {
    value.repr().map_or_else(|_| "another object".to_owned(), |text| text.to_string())
}
