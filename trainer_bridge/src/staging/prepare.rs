//! Checks a device's options, and opens the device.

use super::decoding::Deferred;
use super::layout::{MIX_WEIGHT, SAMPLE_IDS, VALID, no_labels, partner_column};
use super::options::{DeviceOptions, MOST_DEPTH};
use super::stage::Work;
use crate::memory::Allocator;
use crate::slots::Column;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::{Catalog, cache_folder, make_private};
use feedstock_device::finish::{Compiled, Draws};
use feedstock_device::open::{OpenedDevice, Search};
use feedstock_device::{Device, Place};
use feedstock_ingest::Map;
use feedstock_ops::{Chain, TensorSpec};
use std::path::PathBuf;
use std::sync::{Arc, Once};

/// A mapped column, as its chain makes it.
pub(crate) struct MappedColumn<'a> {
    pub(crate) name: &'a str,
    pub(crate) spec: &'a TensorSpec,
    /// The number of ops in its chain.
    pub(crate) ops: usize,
    pub(crate) chain: &'a Chain,
}

/// A device's checked options. Nothing is opened yet.
pub(crate) struct DevicePlan {
    options: DeviceOptions,
    finishes: Vec<Option<Compiled>>,
    seed: u64,
}

impl DevicePlan {
    /// Checks the options. `is_taken` returns whether the batch has a column of that name, and `has_numbers` whether it has an
    /// unmapped column of numbers of that name.
    pub(crate) fn new(
        options: &DeviceOptions,
        columns: &[MappedColumn<'_>],
        seed: u64,
        is_taken: &dyn Fn(&str) -> bool,
        has_numbers: &dyn Fn(&str) -> bool,
    ) -> Result<Self> {
        let config = |message: String| Error::new(ErrorKind::BadConfig, message);
        if !(1..=MOST_DEPTH).contains(&options.depth) {
            return Err(config(format!(
                "the device's depth must be from 1 to {MOST_DEPTH}; got {}",
                options.depth
            )));
        }
        check_nvjpeg(options, columns)?;
        let names: Vec<&str> = columns.iter().map(|column| column.name).collect();
        for (index, (name, _)) in options.finish.iter().enumerate() {
            if !names.contains(&name.as_str()) {
                return Err(config(format!(
                    "finish of '{name}': there is no such mapped column; there are {names:?}"
                )));
            }
            if options.finish[..index].iter().any(|(other, _)| other == name) {
                return Err(config(format!("finish of '{name}' is given twice")));
            }
        }
        let of = |column: &MappedColumn<'_>| {
            let finish = options.finish.iter().find(|(name, _)| name == column.name);
            finish
                .map(|(name, finish)| {
                    let draws = Draws { salt: column.chain.salt(), op: column.ops };
                    finish.compile(name, column.spec, draws)
                })
                .transpose()
        };
        let finishes: Vec<Option<Compiled>> = columns.iter().map(of).collect::<Result<_>>()?;
        let mut own = vec![SAMPLE_IDS.to_owned(), VALID.to_owned()];
        let mixes = finishes.iter().flatten().filter_map(Compiled::mixing);
        for mix in mixes {
            if !has_numbers(mix.labels()) {
                return Err(no_labels(mix.labels()));
            }
            own.extend([partner_column(mix.labels()), MIX_WEIGHT.to_owned()]);
        }
        if own.len() > 4 {
            return Err(config(
                "mix is given for two columns, whose labels would have two weights".to_owned(),
            ));
        }
        if let Some(name) = own.iter().find(|name| is_taken(name)) {
            return Err(config(format!(
                "the batch already has a column '{name}', a name that feedstock needs on a device; leave it out with \
                 Dataset::columns, or give the map's result another name"
            )));
        }
        Ok(Self { options: options.clone(), finishes, seed })
    }

    /// Opens the device, and loads what batches need there.
    pub(crate) fn open(&self) -> Result<OpenedDevice> {
        self.open_on(open(&self.options)?)
    }

    /// As [`open`](Self::open), on a device that is already open.
    pub(crate) fn open_on(&self, device: Arc<Device>) -> Result<OpenedDevice> {
        let opened = OpenedDevice::new(device, self.options.fixed_addresses);
        let decodes = self.options.nvjpeg > 0.0 && opened.place() != Place::Host;
        if decodes || self.finishes.iter().any(Option::is_some) {
            opened.driver().load_kernels()?;
        }
        if decodes {
            opened.driver().load_decoder()?;
        }
        Ok(opened)
    }

    /// Returns the route of batches to the device. It decodes some of the JPEGs of `columns`, if their chains allow that.
    /// `sample_bytes` limits the CPU's working memory for each of the others.
    pub(crate) fn into_route(
        self,
        opened: OpenedDevice,
        columns: &mut [(&mut Map, &mut Column)],
        catalog: Arc<Catalog>,
        sample_bytes: u64,
    ) -> BatchRoute {
        let Self { options, finishes, seed } = self;
        let share = if opened.place() == Place::Host { 0.0 } else { options.nvjpeg };
        let deferred: Vec<Option<Deferred>> =
            columns.iter_mut().map(|(map, column)| Deferred::split(share, map, column)).collect();
        let is_host = opened.place() == Place::Host;
        let in_place = is_host && !options.fixed_addresses && finishes.iter().all(Option::is_none);
        let allocator = match is_host {
            true => Allocator::Plain,
            false => Allocator::Locked(opened.pool()),
        };
        let work = Work { finishes, deferred, catalog, seed, sample_bytes, depth: options.depth, in_place };
        BatchRoute { allocator, stage: Some((opened, work)) }
    }
}

/// # Errors
/// `BadConfig` if the share is not 0.0 to 1.0, or no column has images that a GPU could decode.
fn check_nvjpeg(options: &DeviceOptions, columns: &[MappedColumn<'_>]) -> Result<()> {
    let share = options.nvjpeg;
    let config = |message: String| Error::new(ErrorKind::BadConfig, message);
    if !(0.0..=1.0).contains(&share) {
        return Err(config(format!(
            "nvjpeg, the share of JPEGs that the GPU decodes, must be 0.0 to 1.0; got {share}"
        )));
    }
    let mut why = "no column has images".to_owned();
    let mut defers = |column: &MappedColumn<'_>| match column.chain.deferring(share) {
        Ok(_) => true,
        Err(error) => {
            error.message().clone_into(&mut why);
            false
        }
    };
    match share == 0.0 || columns.iter().any(&mut defers) {
        true => Ok(()),
        false => Err(config(format!("nvjpeg: {why}"))),
    }
}

/// The source of the slots' memory, and the stage that batches pass through; no stage if they stay in host memory.
#[derive(Default)]
pub(crate) struct BatchRoute {
    pub(crate) allocator: Allocator,
    pub(crate) stage: Option<(OpenedDevice, Work)>,
}

/// Opens the device that `options` names.
///
/// # Errors
/// `BadConfig` if CUDA is installed and has no such device.
fn open(options: &DeviceOptions) -> Result<Arc<Device>> {
    let Some(ordinal) = options.ordinal else { return Ok(Device::host()) };
    match Device::cuda(ordinal, kernel_folder())? {
        Search::Found(device) => Ok(device),
        Search::Absent(why) => {
            static REPORTED: Once = Once::new();
            REPORTED.call_once(|| {
                tracing::warn!("no cuda:{ordinal} here ({why}): batches stay in host memory");
            });
            Ok(Device::host())
        }
    }
}

/// Returns the folder for compiled kernels.
fn kernel_folder() -> Option<PathBuf> {
    let folder = cache_folder("kernels")?;
    make_private(&folder);
    Some(folder)
}

/// Compiles the finishing kernels for GPUs of compute capability `capability` (90 for 9.0) and stores them in the loaders'
/// cache. Returns their size in bytes.
///
/// The machine needs no GPU. In a container image, this spares the first batch the compilation.
///
/// # Errors
/// `BadConfig` if NVIDIA's run-time compiler is not installed or does not support such a GPU.
#[cfg(feature = "cuda")]
pub fn compile_kernels(capability: u32) -> Result<usize> {
    feedstock_device::compile_kernels(capability, kernel_folder().as_deref())
}
