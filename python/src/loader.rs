//! One rank's batches, for `feedstock/_loader.py`.

use crate::arguments::{BatchSizes, rank_out_of_range};
use crate::batch::Batch;
use crate::errors::{SIGNALS_EVERY, call, config, in_python};
use crate::process::Own;
use feedstock::order::{Position, StepSize};
use feedstock::{Cursor, Next, Rank, SampleId};
use pyo3::exceptions::PyUserWarning;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A longer wait is reported once, as a warning with its reason.
const SLOW_WAIT: Duration = Duration::from_secs(10);

/// One rank's batches.
#[pyclass(frozen, module = "feedstock._feedstock")]
pub(crate) struct Loader(Own<Mutex<feedstock::Loader>>);

impl Loader {
    pub(crate) fn new(loader: feedstock::Loader) -> Self {
        Self(Own::new(Mutex::new(loader)))
    }

    /// Runs `f` on the loader without the interpreter's lock, because another thread may hold the loader and wait.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        f: impl FnOnce(&mut feedstock::Loader) -> feedstock::Result<T> + Send,
    ) -> PyResult<T> {
        let loader = self.0.get(py)?;
        // A panic leaves an ended run at worst, whose calls return an error.
        call(py, || f(&mut loader.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// Copies the batch to its fixed addresses. If that fails, the batch counts as not delivered.
    fn settled(&self, py: Python<'_>, mut batch: feedstock::Batch, stream: Option<u64>) -> PyResult<Batch> {
        let Some(stream) = stream else { return Ok(Batch::new(batch)) };
        self.with(py, |loader| {
            let settled = batch.settle(feedstock::device::StreamHandle(stream));
            if settled.is_err() {
                loader.load_state(loader.state_at(batch.epoch(), batch.position()))?;
            }
            settled.map(|()| Batch::new(batch))
        })
    }

    fn warn(&self, py: Python<'_>, since: Instant, stacklevel: i32) -> PyResult<()> {
        let state = self.with(py, |loader| {
            let run = loader.run();
            Ok(run.map(|run| (run.stats().held, run.stats().slots, run.waiting().to_string())))
        })?;
        let Some((held, slots, waiting)) = state else { return Ok(()) };
        let seconds = since.elapsed().as_secs();
        let text =
            format!("no batch for {seconds} s: {waiting}; {held} of {slots} slots are held by the caller");
        let text = CString::new(text).unwrap_or_default();
        PyErr::warn(py, &py.get_type::<PyUserWarning>(), &text, stacklevel)
    }
}

/// Epoch, step, rank, row.
type SampleRow = (u64, u64, u32, usize);

/// Sample id, epoch, reason.
type Skipped = (u64, u64, String);

/// A sample, its epoch, and the kinds of its warnings.
type Warned = (u64, u64, Vec<&'static str>);

fn json(py: Python<'_>, cursor: &Cursor) -> PyResult<(u64, u64, String)> {
    let text =
        serde_json::to_string(cursor).map_err(|e| config(py, format!("cannot write the state: {e}")))?;
    Ok((cursor.epoch, cursor.position.0, text))
}

#[pymethods]
impl Loader {
    /// Returns the next batch, or None at the epoch's end. Responds to Ctrl-C while it waits. A warning about a long wait
    /// names the caller's line `stacklevel` frames up, as `warnings.warn` counts them. If addresses are fixed, the batch is
    /// copied there in the order of `stream`.
    #[pyo3(signature = (stacklevel, stream = None))]
    fn next(&self, py: Python<'_>, stacklevel: i32, stream: Option<u64>) -> PyResult<Option<Batch>> {
        let (since, mut warned) = (Instant::now(), false);
        loop {
            match self.with(py, |loader| loader.next_within(SIGNALS_EVERY))? {
                Next::Batch(batch) => return self.settled(py, batch, stream).map(Some),
                Next::EpochEnd => return Ok(None),
                Next::Pending => py.check_signals()?,
            }
            if since.elapsed() >= SLOW_WAIT && !std::mem::replace(&mut warned, true) {
                self.warn(py, since, stacklevel)?;
            }
        }
    }

    /// Returns (True, the result of `next`) if it is ready within `seconds`, else (False, None). The caller works on earlier
    /// batches meanwhile, so this does not count as a separate wait.
    fn poll(&self, py: Python<'_>, seconds: f64) -> PyResult<(bool, Option<Batch>)> {
        let timeout = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        Ok(match self.with(py, |loader| loader.next_ahead(timeout))? {
            Next::Batch(batch) => (true, Some(Batch::new(batch))),
            Next::EpochEnd => (true, None),
            Next::Pending => (false, None),
        })
    }

    /// Counts `seconds` as time waited for functions of `map_python`.
    fn add_function_wait(&self, py: Python<'_>, seconds: f64) -> PyResult<()> {
        let time = Duration::try_from_secs_f64(seconds).unwrap_or_default();
        self.with(py, |loader| {
            loader.add_function_wait(time);
            Ok(())
        })
    }

    /// Starts fetching and decoding. Delivers nothing.
    fn start_prefetch(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, feedstock::Loader::start_prefetch)
    }

    /// Continues with the next epoch if the last batch of an epoch was delivered.
    fn begin_epoch(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |loader| Ok(loader.begin_epoch()))
    }

    /// Returns (epoch, position, cursor as JSON) of the next batch.
    fn state(&self, py: Python<'_>) -> PyResult<(u64, u64, String)> {
        json(py, &self.with(py, |loader| Ok(loader.state()))?)
    }

    /// Like `state`, after the batch whose `next_position` is `position`.
    fn state_at(&self, py: Python<'_>, epoch: u64, position: u64) -> PyResult<(u64, u64, String)> {
        json(py, &self.with(py, |loader| Ok(loader.state_at(epoch, Position(position))))?)
    }

    #[pyo3(signature = (cursor, on_change = "error"))]
    fn load_state(&self, py: Python<'_>, cursor: &str, on_change: &str) -> PyResult<()> {
        let on_change = on_change.parse().map_err(|e| config(py, format!("on_change {e}")))?;
        let cursor: Cursor = serde_json::from_str(cursor)
            .map_err(|e| config(py, format!("state_dict: its cursor is not one of feedstock's: {e}")))?;
        self.with(py, |loader| loader.load_state_with(cursor, on_change))
    }

    fn set_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.with(py, |loader| loader.set_epoch(epoch))
    }

    fn seek(&self, py: Python<'_>, epoch: u64, step: u64) -> PyResult<()> {
        self.with(py, |loader| loader.seek(epoch, step))
    }

    /// Skips the rest of `epoch`.
    fn abandon_epoch(&self, py: Python<'_>, epoch: u64) -> PyResult<()> {
        self.with(py, |loader| {
            loader.abandon_epoch(epoch);
            Ok(())
        })
    }

    #[expect(clippy::needless_pass_by_value, reason = "how PyO3 passes a converted argument")]
    fn reconfigure(&self, py: Python<'_>, rank: u32, world_size: u32, sizes: BatchSizes) -> PyResult<()> {
        if rank >= world_size {
            return Err(rank_out_of_range(py, rank, world_size));
        }
        let size = sizes.one(py)?;
        self.with(py, |loader| loader.reconfigure(Rank::new(rank, world_size), size))
    }

    /// Ends the run. The next batch starts another one at the same position.
    fn stop(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |loader| {
            loader.stop();
            Ok(())
        })
    }

    fn samples_in(&self, py: Python<'_>, epoch: u64, step: u64) -> PyResult<Vec<Vec<u64>>> {
        let ranks = self.with(py, |loader| loader.samples_in(epoch, step))?;
        Ok(ranks.into_iter().map(|samples| samples.into_iter().map(|sample| sample.0).collect()).collect())
    }

    /// Returns (epoch, step, rank, row) of each place at which `sample` is delivered in `epoch`.
    fn places_of(&self, py: Python<'_>, epoch: u64, sample: u64) -> PyResult<Vec<SampleRow>> {
        let places = self.with(py, |loader| loader.places_of(epoch, SampleId(sample)))?;
        Ok(places.into_iter().map(|place| (place.epoch, place.step, place.rank, place.row)).collect())
    }

    /// Returns the steps of `epoch`; None if it never ends.
    fn steps_in(&self, py: Python<'_>, epoch: u64) -> PyResult<Option<u64>> {
        self.with(py, |loader| Ok((!loader.is_endless()).then(|| loader.steps_in(epoch))))
    }

    /// Returns the steps from `position` to the end of `epoch`; None if it never ends.
    fn steps_after(&self, py: Python<'_>, epoch: u64, position: u64) -> PyResult<Option<u64>> {
        self.with(py, |loader| {
            let cursor = loader.state_at(epoch, Position(position));
            Ok((!loader.is_endless()).then(|| loader.steps_after(&cursor)))
        })
    }

    /// Returns (rank, world size, rows over all ranks); the rows are None if a total bounds them.
    fn share(&self, py: Python<'_>) -> PyResult<(u32, u32, Option<u64>)> {
        self.with(py, |loader| {
            let rows = match loader.shape().size {
                StepSize::Rows(rows) => Some(rows),
                StepSize::Total { .. } => None,
            };
            Ok((loader.rank().rank, loader.rank().world_size, rows))
        })
    }

    /// Returns the device of batches: `cpu`, `cuda:0` …
    fn place(&self, py: Python<'_>) -> PyResult<String> {
        self.with(py, |loader| Ok(loader.place().to_string()))
    }

    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let stats = self.with(py, |loader| Ok(loader.stats()))?;
        let values = PyDict::new(py);
        let Some(stats) = stats else { return Ok(values) };
        let engine = stats.engine;
        values.set_item("samples", engine.samples)?;
        values.set_item("bad_samples", engine.bad_samples)?;
        values.set_item("steps", engine.steps)?;
        values.set_item("fetched_blocks", engine.fetched)?;
        values.set_item("refetched_blocks", engine.refetched)?;
        values.set_item("fetched_bytes", engine.fetched_bytes)?;
        values.set_item("fetch_seconds", engine.fetch_time.as_secs_f64())?;
        values.set_item("ops_seconds", engine.ops_time.as_secs_f64())?;
        values.set_item("hedges", engine.hedges)?;
        values.set_item("hedged_samples", engine.hedged_samples)?;
        values.set_item("workers", engine.workers)?;
        values.set_item("spare_workers", engine.spare_workers)?;
        values.set_item("resident_bytes", engine.resident_bytes)?;
        values.set_item("peak_resident_bytes", engine.peak_resident_bytes)?;
        values.set_item("waited_seconds", stats.waited.as_secs_f64())?;
        values.set_item("waited_map_python_seconds", stats.waited_for_functions.as_secs_f64())?;
        values.set_item("ready_batches", stats.ready)?;
        values.set_item("held_batches", stats.held)?;
        values.set_item("slots", stats.slots)?;
        Ok(values)
    }

    fn ledger<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(ledger) = self.with(py, |loader| Ok(loader.ledger()))? else { return Ok(None) };
        let values = PyDict::new(py);
        values.set_item("epoch", ledger.epoch)?;
        values.set_item("planned", ledger.planned.samples)?;
        values.set_item("delivered", ledger.delivered.samples)?;
        values.set_item("padded", ledger.padded)?;
        values.set_item("substituted", ledger.substituted)?;
        values.set_item("digest_planned", ledger.planned.to_string())?;
        values.set_item("digest_delivered", ledger.delivered.to_string())?;
        values.set_item("exact", ledger.is_exact())?;
        Ok(Some(values))
    }

    /// Returns (number of samples, [(sample id, epoch, reason) of the first 8,192]).
    fn skip_report(&self, py: Python<'_>) -> PyResult<(u64, Vec<Skipped>)> {
        let report = self.with(py, |loader| Ok(loader.skip_report()))?;
        let skipped = report.samples.into_iter().map(|one| (one.sample.0, one.epoch, in_python(one.reason)));
        Ok((report.count, skipped.collect()))
    }

    /// Returns ({kind: number of samples}, [(sample id, epoch, kinds) of the first 8,192]).
    fn warning_report(&self, py: Python<'_>) -> PyResult<(BTreeMap<&'static str, u64>, Vec<Warned>)> {
        let report = self.with(py, |loader| Ok(loader.warning_report()))?;
        let counts = report.counts.into_iter().map(|(warning, samples)| (warning.as_str(), samples));
        let warned = report.samples.into_iter().map(|one| {
            let kinds = one.warnings.iter().map(|warning| warning.as_str());
            (one.sample.0, one.epoch, kinds.collect())
        });
        Ok((counts.collect(), warned.collect()))
    }

    fn padding_share(&self, py: Python<'_>, output: &str) -> PyResult<Option<f64>> {
        self.with(py, |loader| Ok(loader.run().and_then(|run| run.padding_share(output))))
    }
}
