//! The arguments of a dry run.

use crate::errors::config;
use feedstock::simulate::{Prices, SimulateOptions, SimulatedWorkers, StoreProfile};
use pyo3::prelude::*;

/// The arguments of `Pipeline.simulate`: a dict, made by `feedstock._simulation.arguments`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct SimulateArguments {
    world_size: u32,
    epoch: u64,
    threads: Option<usize>,
    decode_ms: f64,
    step_ms: f64,
    store: Option<String>,
    network_gbit: Option<f64>,
    concurrency: usize,
    workers: Option<usize>,
    worker_threads: usize,
    price_per_1000_requests: f64,
    price_per_gb: f64,
}

impl SimulateArguments {
    /// Returns the options; an unknown store is a `ConfigError`.
    pub(crate) fn options(self, py: Python<'_>) -> PyResult<SimulateOptions> {
        let unknown =
            |name: &str| config(py, format!("store must be 's3', 'express', 'far' or 'local'; got '{name}'"));
        let store = self.store.as_deref();
        let store = store.map(|name| StoreProfile::named(name).ok_or_else(|| unknown(name))).transpose()?;
        Ok(SimulateOptions {
            world_size: self.world_size,
            epoch: self.epoch,
            threads: self.threads,
            decode_s: self.decode_ms / 1e3,
            step_s: self.step_ms / 1e3,
            store,
            network_bytes_per_s: self.network_gbit.map(|gbit| gbit * 1e9 / 8.0),
            concurrency: self.concurrency,
            workers: self.workers.map(|workers| SimulatedWorkers { workers, threads: self.worker_threads }),
            prices: Prices { per_1000_requests: self.price_per_1000_requests, per_gb: self.price_per_gb },
            ..SimulateOptions::default()
        })
    }
}
