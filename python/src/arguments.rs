//! Arguments that several methods take.

use crate::errors::config;
use feedstock::{BatchSize, Secret, StorageOptions};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict};
use std::time::Duration;

/// A rank that the world does not have.
pub(crate) fn rank_out_of_range(py: Python<'_>, rank: u32, world_size: u32) -> PyErr {
    config(py, format!("rank must be below world_size={world_size}; got {rank}"))
}

/// A batch size from the arguments that Python users name it by; `None` where none is given.
pub(crate) fn batch_size(
    py: Python<'_>,
    batch_size: Option<u64>,
    global_batch_size: Option<u64>,
    total: Option<f64>,
    global_total: Option<f64>,
    max_rows: Option<u64>,
) -> PyResult<Option<BatchSize>> {
    let size = match (batch_size, global_batch_size, total, global_total) {
        (None, None, None, None) => return Ok(None),
        (Some(rows), None, None, None) => BatchSize::per_rank(rows),
        (None, Some(rows), None, None) => BatchSize::global(rows),
        (None, None, Some(total), None) => BatchSize::per_rank_total(total),
        (None, None, None, Some(total)) => BatchSize::global_total(total),
        _ => {
            let message = "only one of batch_size, global_batch_size, total and global_total may be given";
            return Err(config(py, message));
        }
    };
    Ok(Some(max_rows.map_or(size, |rows| size.max_rows(rows))))
}

/// The storage options of `settings`: those with a field of their own, and object_store's keys.
pub(crate) fn storage(settings: &Bound<'_, PyDict>) -> PyResult<StorageOptions> {
    let mut options = StorageOptions::default();
    for (key, value) in settings {
        let key: String = key.extract()?;
        match key.as_str() {
            "anonymous" => options.anonymous = value.extract()?,
            "path_style" => options.path_style = Some(value.extract()?),
            "deadline" => options.deadline = seconds(&value, &key)?,
            "stall_timeout" => options.stall_timeout = seconds(&value, &key)?,
            "max_concurrency" => options.max_concurrency = value.extract()?,
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

fn seconds(value: &Bound<'_, PyAny>, name: &str) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value.extract()?)
        .map_err(|e| config(value.py(), format!("{name} of {value} s: {e}")))
}
