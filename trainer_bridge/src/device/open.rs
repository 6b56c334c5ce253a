//! Which device a loader's batches go to, and what is there.

use super::batch::Place;
use super::cuda;
use super::decoding::Deferred;
use super::driver::Driver;
use super::finish::{Compiled, Draws, Finish};
use super::fixed::FixedBuffer;
use super::host::Host;
use super::layout::{MIX_WEIGHT, SAMPLE_IDS, VALID, no_labels, partner_column};
use super::locked::LockedPool;
use super::numa::Node;
use super::stage::Work;
use crate::memory::Allocator;
use crate::slots::Column;
use crate::{Error, ErrorKind, Result};
use feedstock_dataset::Catalog;
use feedstock_ingest::Map;
use feedstock_ops::{Chain, TensorSpec};
use std::fmt;
use std::sync::{Arc, Once};

/// Batches on their way unless said otherwise: one being copied, one ready.
const DEPTH: usize = 2;

/// More would only hold memory: the device is behind by as many batches.
const MOST_DEPTH: usize = 64;

/// Where batches go, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct DeviceOptions {
    /// CUDA's device; `None` for host memory.
    pub(crate) ordinal: Option<u32>,
    pub(crate) depth: usize,
    pub(crate) fixed_addresses: bool,
    pub(crate) finish: Vec<(String, Finish)>,
    /// Of the JPEGs that can be.
    pub(crate) nvjpeg: f64,
}

impl DeviceOptions {
    /// CUDA's device `ordinal`. Where the machine has no CUDA, batches stay in host memory, finished there all the same, and a
    /// warning says so once.
    pub fn cuda(ordinal: u32) -> Self {
        Self { ordinal: Some(ordinal), ..Self::host() }
    }

    /// Host memory: batches are finished there, ahead of the caller, on one thread.
    pub fn host() -> Self {
        Self { ordinal: None, depth: DEPTH, fixed_addresses: false, finish: Vec::new(), nvjpeg: 0.0 }
    }

    /// Batches copied ahead of the caller, 1 to 64; there is one buffer more, for the batch that the caller has. Default 2:
    /// one ready, one being copied.
    #[must_use]
    pub fn depth(mut self, batches: usize) -> Self {
        self.depth = batches;
        self
    }

    /// Gives every batch's columns the same addresses, as CUDA graphs need them: [`Batch::settle`](crate::Batch::settle) copies
    /// each batch there. Needs batches of one shape.
    #[must_use]
    pub fn fixed_addresses(mut self, fixed: bool) -> Self {
        self.fixed_addresses = fixed;
        self
    }

    /// Has nvJPEG decode `share` of the JPEGs, from 0 (the default) to 1: those of chains of `decode_image`, one cut
    /// (`random_resized_crop`, or `resize` and a crop) with the filter bilinear, and flips. Which ones is a pure function
    /// of seed, epoch and sample; progressive and other JPEGs that only CPUs decode alike, and all other formats, stay with
    /// the CPU. Pixels differ from the CPU's by two levels at most on an H100. Where
    /// there is no CUDA, CPUs decode all.
    #[must_use]
    pub fn nvjpeg(mut self, share: f64) -> Self {
        self.nvjpeg = share;
        self
    }

    /// Finishes the mapped column `output` on the device. Default: it arrives as its chain made it.
    #[must_use]
    pub fn finish(mut self, output: &str, finish: Finish) -> Self {
        self.finish.push((output.to_owned(), finish));
        self
    }
}

/// A mapped column as its chain makes it.
pub(crate) struct Mapped<'a> {
    pub(crate) name: &'a str,
    pub(crate) spec: &'a TensorSpec,
    /// Of its chain.
    pub(crate) ops: usize,
    pub(crate) chain: &'a Chain,
}

/// A device's options, checked; nothing is opened yet.
pub(crate) struct Prepared {
    options: DeviceOptions,
    finishes: Vec<Option<Compiled>>,
    seed: u64,
}

impl Prepared {
    /// `is_taken` says whether the batch has a column of that name, `has_numbers` whether one of numbers rides along.
    pub(crate) fn new(
        options: &DeviceOptions,
        columns: &[Mapped<'_>],
        seed: u64,
        is_taken: &dyn Fn(&str) -> bool,
        has_numbers: &dyn Fn(&str) -> bool,
    ) -> Result<Self> {
        let config = |message: String| Error::new(ErrorKind::BadConfig, message);
        if !(1..=MOST_DEPTH).contains(&options.depth) {
            return Err(config(format!(
                "the device's depth must be from 1 to {MOST_DEPTH}, not {}",
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
        let of = |column: &Mapped<'_>| {
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
                "the batch has a column '{name}' already, which is feedstock's own on a device; leave it out with \
                 Dataset::columns, or name the map's result otherwise"
            )));
        }
        Ok(Self { options: options.clone(), finishes, seed })
    }

    /// Opens the device, and readies there what batches need.
    pub(crate) fn open(&self) -> Result<Opened> {
        self.open_on(open(&self.options)?)
    }

    /// As [`open`](Self::open), on a device that is open.
    pub(crate) fn open_on(&self, device: Arc<Device>) -> Result<Opened> {
        let decodes = self.options.nvjpeg > 0.0 && device.driver.place() != Place::Host;
        if decodes || self.finishes.iter().any(Option::is_some) {
            device.driver.load_kernels()?;
        }
        if decodes {
            device.driver.load_decoder()?;
        }
        let fixed = self.options.fixed_addresses.then(|| FixedBuffer::new(device.driver.clone()));
        Ok(Opened { device, fixed })
    }

    /// The way to a device, where some of the JPEGs of `columns` are decoded, as far as their chains can leave that to it.
    pub(crate) fn to(
        self,
        opened: Opened,
        columns: &mut [(&mut Map, &mut Column)],
        catalog: Arc<Catalog>,
    ) -> Way {
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
        let work = Work { finishes, deferred, catalog, seed, depth: options.depth, in_place };
        Way { allocator, stage: Some((opened, work)) }
    }
}

/// # Errors
/// `BadConfig` where the share is no share, or none of the columns has pictures that a GPU could decode.
fn check_nvjpeg(options: &DeviceOptions, columns: &[Mapped<'_>]) -> Result<()> {
    let share = options.nvjpeg;
    let config = |message: String| Error::new(ErrorKind::BadConfig, message);
    if !(0.0..=1.0).contains(&share) {
        return Err(config(format!(
            "nvjpeg, the share of JPEGs that the GPU decodes, must be 0.0 to 1.0; got {share}"
        )));
    }
    let mut why = "no column has pictures".to_owned();
    let mut defers = |column: &Mapped<'_>| match column.chain.deferring(share) {
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

/// Where slots' memory comes from, and what batches go through; nothing where they stay as they are.
#[derive(Default)]
pub(crate) struct Way {
    pub(crate) allocator: Allocator,
    pub(crate) stage: Option<(Opened, Work)>,
}

/// A device of this process's, shared by all loaders that send batches there.
pub(crate) struct Device {
    driver: Arc<dyn Driver>,
    /// Host memory that it copies from.
    pool: Arc<LockedPool>,
}

impl Device {
    pub(crate) fn new(driver: Arc<dyn Driver>, node: Option<Node>) -> Arc<Self> {
        let pool = LockedPool::new(driver.clone(), node);
        Arc::new(Self { driver, pool })
    }
}

/// What one loader has of its device, over all of its runs.
#[derive(Clone)]
pub(crate) struct Opened {
    device: Arc<Device>,
    /// Of the loader, not of a run: addresses stay when it jumps.
    fixed: Option<Arc<FixedBuffer>>,
}

impl Opened {
    pub(crate) fn place(&self) -> Place {
        self.device.driver.place()
    }

    pub(crate) fn driver(&self) -> Arc<dyn Driver> {
        self.device.driver.clone()
    }

    pub(crate) fn pool(&self) -> Arc<LockedPool> {
        self.device.pool.clone()
    }

    pub(crate) fn fixed(&self) -> Option<Arc<FixedBuffer>> {
        self.fixed.clone()
    }

    /// The fixed place is another one from now on, as batches are of another shape.
    pub(crate) fn move_fixed(&mut self) {
        self.fixed = self.fixed.take().map(|_| FixedBuffer::new(self.driver()));
    }

    /// Gives idle host memory back to the system.
    pub(crate) fn release_idle(&self) {
        self.device.pool.release_idle(0);
    }
}

impl fmt::Debug for Opened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.place())
    }
}

/// The device that `options` names.
///
/// # Errors
/// `BadConfig` where CUDA is there and has no such device.
fn open(options: &DeviceOptions) -> Result<Arc<Device>> {
    let here = || Device::new(Arc::new(Host::default()), None);
    let Some(ordinal) = options.ordinal else { return Ok(here()) };
    Ok(cuda::open(ordinal)?.unwrap_or_else(|why| {
        static TOLD: Once = Once::new();
        TOLD.call_once(|| {
            tracing::warn!("no cuda:{ordinal} here ({why}): batches stay in host memory");
        });
        here()
    }))
}
