//! The pipeline's settings, one method for each; `feedstock/_pipeline.py` keeps the recipe.

use crate::arguments::{BatchSizes, rank_out_of_range};
use crate::errors::{call, call_long, config, exception, raise};
use crate::fleet::Members;
use crate::functions;
use crate::loader::Loader;
use crate::process::Own;
use crate::simulate::SimulateArguments;
use feedstock::device::{DeviceOptions, Finish};
use feedstock::ops::{Annotation, ChainSpec, Op, View};
use feedstock::workers::FunctionsSpec;
use feedstock::{NullValue, Nulls, OnError, Rank, Shuffle, Tail};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt};
use std::time::Duration;

/// A pipeline. Immutable: every method returns a new one.
#[pyclass(frozen, module = "feedstock._feedstock")]
pub(crate) struct Pipeline(Own<feedstock::Pipeline>);

/// Parses a chain of ops from JSON.
pub(crate) fn chain(ops: &str) -> PyResult<ChainSpec> {
    ChainSpec::from_json(ops).map_err(|error| Python::attach(|py| raise(py, &error)))
}

/// Parses what follows an image (boxes, keypoints, the matrix of its geometry), from JSON.
pub(crate) fn annotation_of(py: Python<'_>, json: &str) -> PyResult<Annotation> {
    serde_json::from_str(json).map_err(|e| config(py, format!("boxes, keypoints or a transform: {e}")))
}

/// Parses a finish from JSON.
pub(crate) fn finish_from(py: Python<'_>, json: &str) -> PyResult<Finish> {
    serde_json::from_str(json).map_err(|e| config(py, format!("finish: {e}")))
}

/// Converts the Python value that states how nulls are represented.
fn nulls_from(to: &Bound<'_, PyAny>) -> PyResult<Nulls> {
    if let Ok(flag) = to.cast::<PyBool>() {
        return Ok(Nulls::Value(NullValue::Flag(flag.is_true())));
    }
    if let Ok(text) = to.extract::<String>() {
        return match text.as_str() {
            "list" => Ok(Nulls::List),
            "mask" => Ok(Nulls::Mask),
            other => Err(config(to.py(), format!("nulls must be 'list', a value or 'mask'; got '{other}'"))),
        };
    }
    if to.is_instance_of::<PyInt>() {
        let number = to
            .extract()
            .map_err(|_| config(to.py(), format!("nulls: {to} does not fit a column of any type")))?;
        return Ok(Nulls::Value(NullValue::Whole(number)));
    }
    Ok(Nulls::Value(NullValue::Real(to.extract()?)))
}

impl Pipeline {
    pub(crate) fn new(pipeline: feedstock::Pipeline) -> Self {
        Self(Own::new(pipeline))
    }

    fn with(
        &self,
        py: Python<'_>,
        change: impl FnOnce(feedstock::Pipeline) -> feedstock::Pipeline + Send,
    ) -> PyResult<Self> {
        let pipeline = self.0.get(py)?.clone();
        Ok(Self::new(call(py, || Ok(change(pipeline)))?))
    }
}

#[pymethods]
impl Pipeline {
    #[pyo3(signature = (column, output, ops, pad_value, key = None, joint = None, max_images = None))]
    #[expect(clippy::too_many_arguments, reason = "the names of Python's arguments")]
    fn map(
        &self,
        py: Python<'_>,
        column: &str,
        output: &str,
        ops: &str,
        pad_value: f64,
        key: Option<&str>,
        joint: Option<&str>,
        max_images: Option<u32>,
    ) -> PyResult<Self> {
        let ops = chain(ops)?;
        self.with(py, |pipeline| {
            let mut pipeline = pipeline.map_as(column, output, ops).pad_value(output, pad_value);
            if let Some(key) = key {
                pipeline = pipeline.key(output, key);
            }
            if let Some(joint) = joint {
                pipeline = pipeline.joint(output, joint);
            }
            if let Some(images) = max_images {
                pipeline = pipeline.max_images(output, images);
            }
            pipeline
        })
    }

    /// Maps views of an image. `views` has (name, number of images or None, ops after the decoder) for each.
    fn views(
        &self,
        py: Python<'_>,
        column: &str,
        decode: &str,
        views: Vec<(String, Option<u32>, String)>,
    ) -> PyResult<Self> {
        let [decode] = <[Op; 1]>::try_from(chain(decode)?.0)
            .map_err(|ops| config(py, format!("views are of one decode_image; got {} ops", ops.len())))?;
        let view = |(name, count, ops): (String, Option<u32>, String)| -> PyResult<View> {
            let view = View::new(&name, chain(&ops)?);
            Ok(count.map_or(view.clone(), |count| view.count(count)))
        };
        let views = views.into_iter().map(view).collect::<PyResult<Vec<View>>>()?;
        self.with(py, |pipeline| pipeline.views(column, decode, views))
    }

    #[pyo3(signature = (column, annotation, ops, key, joint, output = None))]
    #[expect(clippy::too_many_arguments, reason = "the names of Python's arguments")]
    fn annotate(
        &self,
        py: Python<'_>,
        column: &str,
        annotation: &str,
        ops: &str,
        key: Option<&str>,
        joint: &str,
        output: Option<&str>,
    ) -> PyResult<Self> {
        let output = output.unwrap_or(column);
        let (annotation, ops) = (annotation_of(py, annotation)?, chain(ops)?);
        self.with(py, |pipeline| {
            let pipeline = pipeline.annotate(column, output, annotation, ops, joint);
            match key {
                Some(key) => pipeline.key(output, key),
                None => pipeline,
            }
        })
    }

    fn along(&self, py: Python<'_>, column: &str, boxes: &str) -> PyResult<Self> {
        self.with(py, |pipeline| pipeline.along(column, boxes))
    }

    #[pyo3(signature = (kind, seed, window, lanes, shuffle_bytes = None, piece = None))]
    #[expect(clippy::too_many_arguments, reason = "the names of Python's arguments")]
    fn shuffle(
        &self,
        py: Python<'_>,
        kind: &str,
        seed: u64,
        window: Option<u64>,
        lanes: Option<u32>,
        shuffle_bytes: Option<u64>,
        piece: Option<u32>,
    ) -> PyResult<Self> {
        let mut shuffle = match kind {
            "window" => Shuffle::seeded(seed),
            "full" => Shuffle::full(seed),
            _ => Shuffle::none(),
        };
        if let Some(window) = window {
            shuffle = shuffle.window(window);
        }
        if let Some(lanes) = lanes {
            shuffle = shuffle.lanes(lanes);
        }
        if let Some(bytes) = shuffle_bytes {
            shuffle = shuffle.shuffle_bytes(bytes);
        }
        if let Some(samples) = piece {
            shuffle = shuffle.piece(samples);
        }
        self.with(py, |pipeline| pipeline.shuffle(shuffle))
    }

    fn seed(&self, py: Python<'_>, seed: u64) -> PyResult<Self> {
        self.with(py, |pipeline| pipeline.seed(seed))
    }

    #[pyo3(signature = (column, window))]
    fn bucket_by(&self, py: Python<'_>, column: &str, window: Option<u64>) -> PyResult<Self> {
        self.with(py, |pipeline| {
            let pipeline = pipeline.bucket_by(column);
            window.map_or(pipeline.clone(), |window| pipeline.bucket_window(window))
        })
    }

    fn lengths_from(&self, py: Python<'_>, column: &str) -> PyResult<Self> {
        self.with(py, |pipeline| pipeline.lengths_from(column))
    }

    #[expect(clippy::needless_pass_by_value, reason = "how PyO3 passes a converted argument")]
    fn batch(&self, py: Python<'_>, sizes: BatchSizes, tail: &str) -> PyResult<Self> {
        let size = sizes.one(py)?.ok_or_else(|| {
            config(py, "batch() needs one of batch_size, global_batch_size, total and global_total")
        })?;
        let tail = match tail {
            "drop" => Tail::Drop,
            "pad" => Tail::Pad,
            other => return Err(config(py, format!("tail must be 'drop' or 'pad'; got '{other}'"))),
        };
        self.with(py, |pipeline| pipeline.batch(size).tail(tail))
    }

    fn on_error(&self, py: Python<'_>, policy: &str, max_fraction: f64) -> PyResult<Self> {
        let policy = match policy {
            "raise" => OnError::Raise,
            "skip" => OnError::Skip { max_fraction },
            other => return Err(config(py, format!("on_error must be 'raise' or 'skip'; got '{other}'"))),
        };
        self.with(py, |pipeline| pipeline.on_error(policy))
    }

    /// Sets how nulls in `column` are represented; None means all other columns. `to` is "list", "mask" or a value.
    #[pyo3(signature = (column, to))]
    fn nulls(&self, py: Python<'_>, column: Option<&str>, to: &Bound<'_, PyAny>) -> PyResult<Self> {
        let nulls = nulls_from(to)?;
        self.with(py, |pipeline| match column {
            Some(column) => pipeline.nulls_of(column, nulls),
            None => pipeline.nulls(nulls),
        })
    }

    fn epochs(&self, py: Python<'_>, epochs: u64) -> PyResult<Self> {
        self.with(py, |pipeline| pipeline.epochs(epochs))
    }

    #[pyo3(signature = (threads = None, slots = None, budget_bytes = None, prefetch_bytes = None, decoder_memory = None, row_index_bytes = None, held_bytes = None, deadline = None))]
    #[expect(clippy::too_many_arguments, reason = "the names of Python's arguments")]
    fn options(
        &self,
        py: Python<'_>,
        threads: Option<usize>,
        slots: Option<usize>,
        budget_bytes: Option<u64>,
        prefetch_bytes: Option<u64>,
        decoder_memory: Option<u64>,
        row_index_bytes: Option<u64>,
        held_bytes: Option<u64>,
        deadline: Option<f64>,
    ) -> PyResult<Self> {
        let deadline = deadline.map(Duration::try_from_secs_f64).transpose();
        let deadline = deadline.map_err(|e| config(py, format!("deadline: {e}")))?;
        self.with(py, |mut pipeline| {
            pipeline = threads.map_or(pipeline.clone(), |threads| pipeline.threads(threads));
            pipeline = slots.map_or(pipeline.clone(), |slots| pipeline.slots(slots));
            pipeline = budget_bytes.map_or(pipeline.clone(), |bytes| pipeline.budget_bytes(bytes));
            pipeline = prefetch_bytes.map_or(pipeline.clone(), |bytes| pipeline.prefetch_bytes(bytes));
            pipeline = decoder_memory.map_or(pipeline.clone(), |bytes| pipeline.decoder_memory(bytes));
            pipeline = row_index_bytes.map_or(pipeline.clone(), |bytes| pipeline.row_index_bytes(bytes));
            pipeline = held_bytes.map_or(pipeline.clone(), |bytes| pipeline.held_bytes(bytes));
            deadline.map_or(pipeline.clone(), |deadline| pipeline.deadline(deadline))
        })
    }

    /// Slots of each loader: the option, or its default.
    #[getter]
    fn slots(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.0.get(py)?.slot_count())
    }

    /// The option `threads`; None if the default applies.
    #[getter]
    fn threads(&self, py: Python<'_>) -> PyResult<Option<usize>> {
        Ok(self.0.get(py)?.thread_limit())
    }

    /// Returns the recipe as JSON.
    fn spec(&self, py: Python<'_>) -> PyResult<String> {
        let spec = self.0.get(py)?.spec();
        serde_json::to_string(&spec).map_err(|e| config(py, format!("cannot write the recipe: {e}")))
    }

    /// Describes what one rank does, as JSON.
    fn describe(&self, py: Python<'_>, rank: u32, world_size: u32) -> PyResult<String> {
        let pipeline = self.0.get(py)?.clone();
        let described = call_long(py, move || pipeline.describe(Rank::new(rank, world_size)))?;
        serde_json::to_string(&described)
            .map_err(|e| exception(py, "InternalError", format!("the report cannot be written as JSON: {e}")))
    }

    /// Measures how well the order shuffles, and returns the report as JSON.
    #[pyo3(signature = (world_size, epoch, labels))]
    fn shuffle_quality(
        &self,
        py: Python<'_>,
        world_size: u32,
        epoch: u64,
        labels: Option<String>,
    ) -> PyResult<String> {
        let pipeline = self.0.get(py)?.clone();
        let report = call_long(py, move || pipeline.shuffle_quality(world_size, epoch, labels.as_deref()))?;
        serde_json::to_string(&report)
            .map_err(|e| exception(py, "InternalError", format!("the report cannot be written as JSON: {e}")))
    }

    /// Simulates an epoch without reading data, and returns the report as JSON.
    fn simulate(&self, py: Python<'_>, arguments: SimulateArguments) -> PyResult<String> {
        let pipeline = self.0.get(py)?.clone();
        let options = arguments.options(py)?;
        let report = call_long(py, move || pipeline.simulate(&options))?;
        serde_json::to_string(&report)
            .map_err(|e| exception(py, "InternalError", format!("the report cannot be written as JSON: {e}")))
    }

    /// Lets workers on other machines make the rows.
    fn workers(&self, py: Python<'_>, members: &Members) -> PyResult<Self> {
        let workers = members.workers();
        self.with(py, |pipeline| pipeline.workers(workers))
    }

    /// Delivers batches on a device: CUDA's `ordinal`, or host memory for None. `finish` has (output, JSON) for each column.
    /// `nvjpeg` is the fraction of JPEGs that the device decodes, 0 to 1.
    #[pyo3(signature = (ordinal, depth, fixed, finish, nvjpeg))]
    fn device(
        &self,
        py: Python<'_>,
        ordinal: Option<u32>,
        depth: usize,
        fixed: bool,
        finish: Vec<(String, String)>,
        nvjpeg: f64,
    ) -> PyResult<Self> {
        let mut options = ordinal.map_or_else(DeviceOptions::host, DeviceOptions::cuda);
        options = options.depth(depth).fixed_addresses(fixed).nvjpeg(nvjpeg);
        for (output, json) in finish {
            options = options.finish(&output, finish_from(py, &json)?);
        }
        self.with(py, |pipeline| pipeline.device(options))
    }

    /// Has workers run functions, described as JSON, on each row.
    fn functions(&self, py: Python<'_>, spec: &str) -> PyResult<Self> {
        let spec: FunctionsSpec =
            serde_json::from_str(spec).map_err(|e| config(py, format!("functions of rows: {e}")))?;
        self.with(py, |pipeline| pipeline.functions(spec, functions::of_rank()))
    }

    fn loader(&self, py: Python<'_>, rank: u32, world_size: u32) -> PyResult<Loader> {
        if rank >= world_size {
            return Err(rank_out_of_range(py, rank, world_size));
        }
        let pipeline = self.0.get(py)?.clone();
        Ok(Loader::new(call_long(py, move || pipeline.loader(Rank::new(rank, world_size)))?))
    }
}
