//! The native half of the Python package: `feedstock._feedstock`.
//!
//! ```text
//! feedstock/*.py  (recipes, iteration, adapters)  ──▶  this module  ──▶  the façade
//! ```
//! This module decides nothing that the Rust API lacks. Invariants: no call that may wait holds the interpreter's lock;
//! objects opened in one process are never used in another (see [`process`]); the memory of a batch is freed together
//! with its last view.

mod arguments;
mod arrow_c;
mod batch;
mod dataset;
mod dlpack;
mod errors;
mod fleet;
mod functions;
mod loader;
mod log;
mod pipeline;
mod process;
mod simulate;
mod tensor;
mod values;

use pyo3::prelude::*;

/// Runs the `feedstock` command with these arguments, the program's name first; returns its exit code.
#[pyfunction]
fn command(py: Python<'_>, arguments: Vec<String>) -> u8 {
    py.detach(|| feedstock_cli::main_with(arguments.into_iter().map(Into::into), Some(functions::of_worker)))
}

/// Checks a chain of ops, given as JSON, as far as possible without files. A loader loads the files that ops refer to.
#[pyfunction]
fn check_ops(py: Python<'_>, ops: &str) -> PyResult<()> {
    let spec = pipeline::chain(ops)?;
    if spec.needs().is_empty() {
        errors::call(py, || spec.compile())?;
    }
    Ok(())
}

/// Checks boxes or keypoints, and the ops after the decoder of the image that they follow, all given as JSON.
#[pyfunction]
fn check_annotation(py: Python<'_>, annotation: &str, ops: &str) -> PyResult<()> {
    let (annotation, ops) = (pipeline::annotation_of(py, annotation)?, pipeline::chain(ops)?);
    errors::call(py, || ops.compile_annotation(&annotation).map(drop))
}

/// Checks the description of a finish, given as JSON, as far as possible without the column.
#[pyfunction]
fn check_finish(py: Python<'_>, finish: &str) -> PyResult<()> {
    pipeline::finish_from(py, finish).map(drop)
}

/// Compiles the finishing kernels for GPUs of compute capability `capability` (90 for 9.0), stores them in the cache, and
/// returns their size in bytes.
#[pyfunction]
fn compile_kernels(py: Python<'_>, capability: u32) -> PyResult<usize> {
    errors::call(py, || feedstock::device::compile_kernels(capability))
}

/// Adds files of NVIDIA's run-time compiler and JPEG decoder that the system's loader does not find.
#[pyfunction]
fn offer_libraries(files: Vec<std::path::PathBuf>) {
    feedstock::device::offer_libraries(files);
}

/// Registers `stream` as a user of the batch whose memory contains `address`; returns whether there is such a batch.
#[pyfunction]
fn use_address_on(py: Python<'_>, address: u64, stream: u64) -> PyResult<bool> {
    errors::call(py, || feedstock::device::use_address_on(address, feedstock::device::StreamHandle(stream)))
}

/// Returns the op of a preset as JSON with all its parameters.
#[pyfunction]
fn preset(py: Python<'_>, name: &str) -> PyResult<String> {
    let op = match name {
        "log_mel_whisper" => feedstock::log_mel_whisper(),
        "log_mel_torchaudio" => feedstock::log_mel_torchaudio(),
        "log_mel_librosa" => feedstock::log_mel_librosa(),
        other => return Err(errors::config(py, format!("no preset '{other}'"))),
    };
    serde_json::to_string(&op).map_err(|e| errors::config(py, format!("{name}: {e}")))
}

/// Returns the JSON schema of the descriptions of ops.
#[pyfunction]
fn op_schema() -> String {
    feedstock::ops::Op::json_schema().to_string()
}

/// Returns the CPU threads of a loader whose pipeline sets no number.
#[pyfunction]
fn default_threads() -> usize {
    feedstock::default_threads()
}

/// Panics inside a call, for the test that a panic becomes an `InternalError`.
#[cfg(feature = "test-hooks")]
#[pyfunction]
fn panic(py: Python<'_>, message: &str) -> PyResult<()> {
    #[expect(clippy::panic, reason = "its purpose")]
    errors::call(py, || panic!("{message}"))
}

/// The module.
#[pymodule]
fn _feedstock(module: &Bound<'_, PyModule>) -> PyResult<()> {
    log::listen();
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<dataset::Dataset>()?;
    module.add_class::<dataset::Table>()?;
    module.add_class::<pipeline::Pipeline>()?;
    module.add_class::<loader::Loader>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<tensor::Tensor>()?;
    module.add_class::<fleet::Worker>()?;
    module.add_class::<fleet::Members>()?;
    module.add_function(wrap_pyfunction!(fleet::fleet_identity, module)?)?;
    module.add_function(wrap_pyfunction!(command, module)?)?;
    module.add_function(wrap_pyfunction!(check_ops, module)?)?;
    module.add_function(wrap_pyfunction!(check_annotation, module)?)?;
    module.add_function(wrap_pyfunction!(check_finish, module)?)?;
    module.add_function(wrap_pyfunction!(compile_kernels, module)?)?;
    module.add_function(wrap_pyfunction!(offer_libraries, module)?)?;
    module.add_function(wrap_pyfunction!(use_address_on, module)?)?;
    module.add_function(wrap_pyfunction!(preset, module)?)?;
    module.add_function(wrap_pyfunction!(op_schema, module)?)?;
    module.add_function(wrap_pyfunction!(default_threads, module)?)?;
    #[cfg(feature = "test-hooks")]
    module.add_function(wrap_pyfunction!(panic, module)?)?;
    Ok(())
}
