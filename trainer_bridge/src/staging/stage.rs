//! The thread between finished steps and the rank iterator. It sends every batch to the device ahead of the caller.

use super::decoding::{Bad, Decoding, Deferred, InUse};
use super::layout::{BufferLayout, Copied, CopySource};
use crate::batch::Tensor;
use crate::policy::OnError;
use crate::sink::{Assembled, Assembler};
use crate::slots::Lease;
use crate::{Error, ErrorKind, Result, SampleContext};
use feedstock_dataset::{Catalog, SampleId};
use feedstock_device::finish::Compiled;
use feedstock_device::handles::{Address, HostAddress};
use feedstock_device::memory::{
    Buffers, Event, Index, Kept, Locked, LockedPool, PATIENCE, Reaping, join_within,
};
use feedstock_device::open::OpenedDevice;
use feedstock_device::tensor::{Column, DeviceBatch, DeviceTensor, FixedBuffer, Hold, InPlace, Owner};
use feedstock_ingest::{Popped, Ready};
use feedstock_ops::SampleSeed;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest wait of the thread while no batch comes. All other events wake it.
const LOOK_UP: Duration = Duration::from_secs(600);

/// The stage's work on batches.
pub(crate) struct Work {
    /// By mapped column, its finish.
    pub(crate) finishes: Vec<Option<Compiled>>,
    /// By mapped column, the part of its images that the device decodes.
    pub(crate) deferred: Vec<Option<Deferred>>,
    /// Names samples in errors.
    pub(crate) catalog: Arc<Catalog>,
    /// The seed of the ops' randomness.
    pub(crate) seed: u64,
    /// The most working memory of a sample that the CPU decodes in place of the device.
    pub(crate) sample_bytes: u64,
    /// The number of batches copied ahead, in addition to the one that the caller has.
    pub(crate) depth: usize,
    /// Whether the device is host memory and nothing is to be finished, so that batches stay in their slots.
    pub(crate) in_place: bool,
}

impl Work {
    /// Returns the error of a sample that neither the device nor the CPU decodes.
    fn error_of(&self, sample: SampleId, error: Error) -> Error {
        let name = format!("{} (sample {sample})", self.catalog.describe_sample(sample));
        let mut deferred = self.deferred.iter().flatten();
        let column = match (deferred.next(), deferred.next()) {
            (Some(only), None) => Some(only.column.clone()),
            _ => None, // one of several
        };
        let uri = self.catalog.sample_uri(sample);
        error.context(name).with_sample(SampleContext { sample, uri, column })
    }
}

/// A running stage. Dropping it ends the thread. Batches that the caller has keep what they need.
pub(crate) struct Stage {
    assembler: Arc<Assembler>,
    output: Arc<Ready<Assembled>>,
    /// `None` if batches stay in their slots.
    buffers: Option<Arc<Buffers>>,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// The last field, so that it is dropped after everything that the run had on the device.
    _reaping: Option<Reaping>,
}

impl Stage {
    pub(crate) fn start(assembler: Arc<Assembler>, opened: OpenedDevice, work: Work) -> Result<Self> {
        let (driver, pool, fixed) = (opened.driver(), opened.pool(), opened.fixed());
        let (buffers, reaping) = match work.in_place {
            true => (None, None),
            false => {
                // The batches copied ahead, and the caller's.
                let (buffers, reaping) = Buffers::new(driver.clone(), work.depth + 1)?;
                (Some(buffers), Some(reaping))
            }
        };
        let (output, stopped) = (Arc::<Ready<Assembled>>::default(), Arc::new(AtomicBool::new(false)));
        let decodes = work.deferred.iter().any(Option::is_some);
        let decoding = decodes.then(|| Decoding::new(driver.clone(), work.sample_bytes)).transpose()?;
        let on_error = assembler.on_error;
        let mut sender = Sender { work, pool, buffers: buffers.clone(), fixed, decoding, on_error };
        let run = {
            let (assembler, output, stopped) = (assembler.clone(), output.clone(), stopped.clone());
            move || {
                let ran = catch_unwind(AssertUnwindSafe(|| {
                    if let Err(error) = driver.adopt_thread() {
                        return output.fail(0, error);
                    }
                    run(&mut sender, &assembler.ready, &output, &stopped);
                }));
                if let Err(panic) = ran {
                    output.fail(0, defect(panic.as_ref()));
                }
            }
        };
        let thread = std::thread::Builder::new().name("feedstock-device".into()).spawn(run);
        let thread =
            thread.map_err(|e| Error::new(ErrorKind::Retryable, format!("cannot start a thread: {e}")))?;
        Ok(Self { assembler, output, buffers, stopped, thread: Some(thread), _reaping: reaping })
    }

    /// Returns the batches on the device, in step order.
    pub(crate) fn output(&self) -> &Ready<Assembled> {
        &self.output
    }

    /// Returns the number of device buffers that the caller has, and that of all usable ones. `None` if batches stay in their
    /// slots.
    pub(crate) fn lent(&self) -> Option<(usize, usize)> {
        self.buffers.as_ref().map(|buffers| buffers.lent())
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        self.assembler.ready.fail(0, Error::new(ErrorKind::Gone, "the loader was stopped")); // wakes
        if let Some(buffers) = &self.buffers {
            buffers.close();
        }
        if let Some(thread) = self.thread.take()
            && !join_within(thread, PATIENCE)
        {
            tracing::warn!(
                "a batch still waits for a CUDA stream of the caller {PATIENCE:?} after the end of its run; its memory is \
                     freed when the stream has finished its work"
            );
        }
    }
}

/// Returns the error of a panic, which is at once the next batch's result.
fn defect(panic: &(dyn Any + Send)) -> Error {
    let what = panic.downcast_ref::<&str>().copied().map(str::to_owned);
    let what = what.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    let message = format!("a defect in feedstock, please report it: sending batches to the device: {what}");
    Error::new(ErrorKind::Bug, message)
}

fn run(sender: &mut Sender, input: &Ready<Assembled>, output: &Ready<Assembled>, stopped: &AtomicBool) {
    let mut index = 0;
    while !stopped.load(Ordering::Acquire) {
        match input.pop(LOOK_UP) {
            Popped::Item(assembled) => match sender.send(assembled) {
                Ok(Some(assembled)) => output.push(index, assembled),
                Ok(None) => return,
                Err(error) => return output.fail(index, error),
            },
            Popped::Failed(error) => return output.fail(index, error),
            Popped::Ended => return output.end(index),
            Popped::TimedOut => continue,
        }
        index += 1;
    }
}

/// Sends batches to the device.
struct Sender {
    work: Work,
    /// The page-locked memory for staging.
    pool: Arc<LockedPool>,
    buffers: Option<Arc<Buffers>>,
    fixed: Option<Arc<FixedBuffer>>,
    decoding: Option<Decoding>,
    on_error: OnError,
}

impl Sender {
    /// Submits all of a batch's work to the device. Returns `None` if the buffers were closed.
    fn send(&mut self, mut assembled: Assembled) -> Result<Option<Assembled>> {
        let mut replaced = Vec::new();
        loop {
            match self.try_send(&mut assembled)? {
                Sent::Whole => return Ok(Some(assembled)),
                Sent::Closed => return Ok(None),
                Sent::Bad(bad) => {
                    let named = |(row, error): (usize, feedstock_ops::Error)| {
                        (row, self.work.error_of(assembled.batch.sample_ids[row], error))
                    };
                    if bad.iter().any(|(row, _)| replaced.contains(row)) {
                        let message = "a substitute row cannot be decoded either";
                        return Err(Error::new(ErrorKind::Bug, message));
                    }
                    replaced.extend(bad.iter().map(|(row, _)| *row));
                    let bad = bad.into_iter().map(named).collect();
                    // SAFETY: the streams have finished their work, and the batch has no other users yet.
                    unsafe { assembled.substitute(self.on_error, bad)? };
                }
            }
        }
    }

    fn try_send(&mut self, assembled: &mut Assembled) -> Result<Sent> {
        let layout = BufferLayout::new(assembled, &self.work.finishes, &self.work.deferred, self.work.seed)?;
        let staging = self.pool.take(layout.staged.len())?;
        // SAFETY: the block is long enough, and nothing else uses it.
        unsafe {
            let bytes = layout.staged.len();
            std::ptr::copy_nonoverlapping(layout.staged.as_ptr(), staging.start().as_ptr(), bytes);
        }
        let batch = &mut assembled.batch;
        let tensors = std::mem::take(&mut batch.tensors);
        let sources = Sources { lease: batch.lease.take(), tensors, staging };
        let Some(buffers) = &self.buffers else {
            batch.device = Some(Box::new(self.in_place(layout, sources)));
            return Ok(Sent::Whole);
        };
        let Some((index, base)) = buffers.take(layout.bytes)? else { return Ok(Sent::Closed) };
        let filling = Filling { buffers, index, sources: Some(sources), in_use: None, staging: Vec::new() };
        let pictures = Pictures {
            decoding: self.decoding.as_mut(),
            columns: &self.work.deferred,
            seeds: &assembled.seeds,
            pool: &self.pool,
        };
        let hold = match filling.fill(&layout, base, pictures)? {
            Filled::Whole(hold) => hold,
            Filled::Bad(bad, sources) => {
                (assembled.batch.lease, assembled.batch.tensors) = (sources.lease, sources.tensors);
                return Ok(Sent::Bad(bad));
            }
        };
        let batch = &mut assembled.batch;
        let tensor = |column: Column| DeviceTensor::new(column, base, hold.clone());
        let tensors = layout.columns.into_iter().map(tensor).collect();
        batch.device = Some(Box::new(DeviceBatch::new(tensors, Some(hold), self.fixed.clone())));
        Ok(Sent::Whole)
    }

    /// Returns the batch in place: mapped columns in their slot, the others in staging memory.
    fn in_place(&self, layout: BufferLayout, sources: Sources) -> DeviceBatch {
        let sources = Arc::new(sources);
        let owner: Arc<dyn Owner> = Arc::new(InPlace::new(sources.clone()));
        let tensor = |column: Column| {
            let mapped = layout.copies.iter().find(|copied| copied.offset == column.offset);
            let start = match mapped {
                Some(Copied { from: CopySource::Column(tensor, _), .. }) => {
                    sources.tensors[*tensor].as_ptr().as_ptr()
                }
                _ => sources.staging.start().as_ptr().wrapping_add(column.offset - layout.staged_from),
            };
            let base = Address((start.expose_provenance() - column.offset) as u64);
            DeviceTensor::new(column, base, owner.clone())
        };
        let tensors = layout.columns.into_iter().map(tensor).collect();
        DeviceBatch::new(tensors, None, None)
    }
}

/// The result of sending a batch.
enum Sent {
    Whole,
    /// Nothing was sent: these rows must be replaced first.
    Bad(Bad),
    /// The buffers were closed.
    Closed,
}

/// The result of filling a buffer.
enum Filled {
    Whole(Arc<Hold>),
    Bad(Bad, Sources),
}

/// The sources of copies: the slot and the staging memory.
struct Sources {
    lease: Option<Arc<Lease>>,
    tensors: Vec<Tensor>,
    staging: Locked,
}

/// A buffer that is being filled. If that fails halfway, it and the sources are released only after the streams have finished.
struct Filling<'a> {
    buffers: &'a Arc<Buffers>,
    index: Index,
    sources: Option<Sources>,
    /// The decoder, and its destination.
    in_use: Option<InUse>,
    /// Sources of further copies.
    staging: Vec<Locked>,
}

/// The context for images that the device decodes.
struct Pictures<'a> {
    decoding: Option<&'a mut Decoding>,
    columns: &'a [Option<Deferred>],
    seeds: &'a [SampleSeed],
    pool: &'a Arc<LockedPool>,
}

impl Filling<'_> {
    fn fill(mut self, layout: &BufferLayout, base: Address, mut pictures: Pictures<'_>) -> Result<Filled> {
        let (driver, copying) = (self.buffers.driver(), self.buffers.copying());
        if let Some(sources) = &self.sources {
            let staged = HostAddress(sources.staging.start());
            // SAFETY: the sources are kept until the event below has passed. The buffer is long enough and this batch's, and
            // its earlier users come earlier in the stream.
            unsafe {
                driver.copy_in(base.at(layout.staged_from), staged, layout.staged.len(), copying)?;
                // Columns of lists may be empty.
                for Copied { from, offset, bytes } in layout.copies.iter().filter(|copied| copied.bytes > 0) {
                    let from = match from {
                        CopySource::Column(tensor, from) => sources.tensors[*tensor].as_ptr().add(*from),
                        CopySource::Staged(from) => sources.staging.start().add(*from),
                    };
                    driver.copy_in(base.at(*offset), HostAddress(from), *bytes, copying)?;
                }
            }
        }
        let copied = Arc::new(self.buffers.mark(copying)?);
        let filled = match layout.has_launches() {
            true => {
                copied.hold_back(self.buffers.finishing())?;
                let bad = self.decode(layout, base, &mut pictures)?;
                if !bad.is_empty() {
                    return self.give_up(bad);
                }
                Arc::new(self.finish(layout, base)?)
            }
            false => copied.clone(),
        };
        if let Some(decoding) = pictures.decoding.filter(|_| self.in_use.is_some()) {
            decoding.end(&filled);
        }
        if let Some(sources) = self.sources.take() {
            // Decoders read the slot, too.
            let until = if self.in_use.is_some() { filled.clone() } else { copied };
            let what = (sources, self.in_use.take(), std::mem::take(&mut self.staging));
            self.buffers.reaper().keep(Kept { until: vec![until], what: Box::new(what) });
        }
        self.buffers.copied(self.index);
        Ok(Filled::Whole(Hold::new(self.buffers.clone(), self.index, (base, layout.bytes), filled)))
    }

    /// Waits until nothing uses the buffer and the sources any more, and releases both.
    fn give_up(mut self, bad: Bad) -> Result<Filled> {
        self.run_dry()?;
        let sources =
            self.sources.take().ok_or_else(|| Error::new(ErrorKind::Bug, "a batch without sources"))?;
        self.buffers.give_back(self.index, Vec::new());
        Ok(Filled::Bad(bad, sources))
    }

    /// Waits for the streams.
    fn run_dry(&self) -> Result<()> {
        let driver = self.buffers.driver();
        driver.synchronize_stream(self.buffers.copying())?;
        driver.synchronize_stream(self.buffers.finishing())
    }

    /// Runs the kernels after the batch's copies, concurrently with the copies of the next batch.
    fn finish(&self, layout: &BufferLayout, base: Address) -> Result<Event> {
        let finishing = self.buffers.finishing();
        for launch in layout.launches(base) {
            // SAFETY: the arguments point into the buffer, whose layout has room for all that they cover.
            unsafe { self.buffers.driver().launch(&launch, finishing)? };
        }
        self.buffers.mark(finishing)
    }

    /// Makes rows of the images that are not decoded yet. Returns those that cannot be decoded, with the reasons.
    fn decode(&mut self, layout: &BufferLayout, base: Address, pictures: &mut Pictures<'_>) -> Result<Bad> {
        let Some((decoding, sources)) = pictures.decoding.as_mut().zip(self.sources.as_ref()) else {
            return Ok(Bad::new());
        };
        if layout.undecoded.is_empty() {
            return Ok(Bad::new());
        }
        let finishing = self.buffers.finishing();
        let in_use = decoding.begin(layout.arena_bytes)?;
        let arena = in_use.0.start();
        self.in_use = Some(in_use);
        // SAFETY: slot, arena and decoder are kept until the streams have run this work. The arena's and the buffer's earlier
        // users come earlier in the stream.
        unsafe {
            let refused = decoding.decode(&layout.undecoded, &sources.tensors, arena, finishing)?;
            if refused.len() < layout.undecoded.len() {
                for launch in layout.crops(base, arena) {
                    self.buffers.driver().launch(&launch, finishing)?;
                }
            }
            let what = (sources.tensors.as_slice(), pictures.columns, pictures.seeds);
            decoding.repair(&refused, what, (base, pictures.pool, finishing), &mut self.staging)
        }
    }
}

impl Drop for Filling<'_> {
    fn drop(&mut self) {
        let Some(sources) = self.sources.take() else { return };
        match self.run_dry() {
            Ok(()) => self.buffers.give_back(self.index, Vec::new()),
            Err(error) => {
                // A copy or the decoder may still use them.
                std::mem::forget((sources, self.in_use.take(), std::mem::take(&mut self.staging)));
                self.buffers.retire(self.index, &error);
            }
        }
    }
}
