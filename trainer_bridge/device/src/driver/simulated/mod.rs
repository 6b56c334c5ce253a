//! A device for tests that runs its work as late and as far out of order as allowed, and finds races.
//!
//! ```text
//! call ──▶ queue of its stream ──later, in a random order of streams──▶ done
//! ```
//! Every operation has a vector clock: the work that is known to be done before it. Only the order of streams and events
//! counts. A write of device memory must come after all earlier reads and writes of it, and a read after all earlier
//! writes. An access that merely happened to run in time is a race, too. When a copy runs, the host memory that it reads
//! must be unchanged since the call. The host learns of finished work by waiting for events.

mod state;

use super::{Decoder, Driver, Jpeg, host};
use crate::handles::{Address, EventId, HostAddress, StreamId};
use crate::kernels::Launch;
use crate::place::Place;
use feedstock_base::{Error, ErrorKind, PAGE_BYTES, Result};
use feedstock_ops::SampleSeed;
use feedstock_ops::image::DecodeImage;
use state::{Access, Allocation, Clock, Event, SimulatedState, SimulatedStream, Work, join};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The simulated device.
pub struct Simulated {
    this: Weak<Self>,
    state: Mutex<SimulatedState>,
    /// Whether every call panics.
    panics: AtomicBool,
}

impl Simulated {
    /// Returns a device whose order of work is drawn from `seed`.
    pub fn new(seed: u64) -> Arc<Self> {
        let state = Mutex::new(SimulatedState {
            dice: SampleSeed::new(seed, 0, 0).op(0),
            streams: BTreeMap::new(),
            events: HashMap::new(),
            device: BTreeMap::new(),
            host: HashMap::new(),
            host_allocations: 0,
            host_bytes: 0,
            host_limit: usize::MAX,
            known: Clock::new(),
            next: 1000,
            violations: Vec::new(),
            fail_copies_from: None,
            panics_at_copy: None,
            copies: 0,
            copied_within: (0, 0),
            copies_run: 0,
            holds_launches: false,
            decoded: 0,
            refuses_every: None,
            refused: HashMap::new(),
            foreign: BTreeSet::new(),
        });
        Arc::new_cyclic(|this| Self { this: this.clone(), state, panics: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, SimulatedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call. Up to two pending operations run first.
    fn enter(&self) -> MutexGuard<'_, SimulatedState> {
        assert!(!self.panics.load(Ordering::Relaxed), "the device is used where it does not exist");
        let mut state = self.lock();
        for _ in 0..state.dice.below(3) {
            state.step();
        }
        state
    }

    /// Returns the number of page-locked allocations so far.
    pub fn host_allocations(&self) -> usize {
        self.lock().host_allocations
    }

    /// Limits page-locked memory to `bytes` bytes.
    pub fn limit_host_bytes(&self, bytes: usize) {
        self.lock().host_limit = bytes;
    }

    /// Makes every copy from the `number`th on fail.
    pub fn fail_copies_from(&self, number: u64) {
        self.lock().fail_copies_from = Some(number);
    }

    /// Makes the `number`th copy panic.
    pub fn panic_at_copy(&self, number: u64) {
        self.lock().panics_at_copy = Some(number);
    }

    /// Makes the decoder reject every `number`th image.
    pub fn refuse_every_picture(&self, number: u64) {
        self.lock().refuses_every = Some(number);
    }

    /// Returns the number of images sent to the decoder.
    pub fn decoded(&self) -> u64 {
        self.lock().decoded
    }

    /// Makes the next `times` calls of this name fail.
    pub fn refuse(&self, call: &'static str, times: u64) {
        self.lock().refused.insert(call, times);
    }

    /// Makes every call panic from now on.
    pub fn panic_at_use(&self) {
        self.panics.store(true, Ordering::Relaxed);
    }

    /// Moves `stream` to another context.
    pub fn make_foreign(&self, stream: StreamId) {
        self.lock().foreign.insert(stream);
    }

    /// Returns the number of copies from the host that have run.
    pub fn copies_run(&self) -> u64 {
        self.enter().copies_run
    }

    /// Sets whether kernels and decodes are held back from now on.
    pub fn hold_launches(&self, hold: bool) {
        self.lock().holds_launches = hold;
    }

    /// Returns the allocated bytes of device memory.
    pub fn device_bytes(&self) -> usize {
        self.lock().device.values().map(|allocation| allocation.size).sum()
    }

    /// Returns the number of copies within the device so far, and their bytes.
    pub fn copied_within(&self) -> (usize, usize) {
        self.lock().copied_within
    }

    /// Makes `stream` write `bytes` bytes at some later time.
    pub fn write_later(&self, to: Address, bytes: usize, stream: StreamId) {
        self.enter().give(stream, Work::Write { to: to.0, bytes });
    }

    /// Sets whether `stream` is being captured into a graph.
    pub fn capture(&self, stream: StreamId, is_capturing: bool) {
        self.lock().streams.entry(stream).or_default().is_capturing = is_capturing;
    }

    /// Makes `stream` read `expected.len()` bytes at some later time, and checks that they are `expected`.
    pub fn read_later(&self, from: Address, expected: Vec<u8>, stream: StreamId) {
        let (from, bytes) = (from.0, expected.len());
        self.enter().give(stream, Work::Read { from, bytes, expected: Some(expected) });
    }

    /// Runs everything. Returns all violations so far, and the numbers of device allocations, host allocations and streams
    /// that still exist.
    pub fn finish(&self) -> (Vec<String>, [usize; 3]) {
        let mut state = self.lock();
        while state.step() {}
        let stuck = state.streams.values().filter(|stream| !stream.queue.is_empty()).count();
        if stuck > 0 {
            state.violations.push(format!("{stuck} streams wait for ever"));
        }
        let made = state.streams.iter().filter(|(id, stream)| id.0 >= 1000 && !stream.is_gone).count();
        (state.violations.clone(), [state.device.len(), state.host.len(), made])
    }
}

/// Decodes as the CPU does, at some later time.
struct SimulatedDecoder {
    device: Arc<Simulated>,
    /// The last operation that it was given.
    last: Option<Access>,
}

impl SimulatedDecoder {
    /// Checks that the earlier work is known to be done when the decoder is used again or dropped.
    fn check_idle(&mut self, state: &mut SimulatedState) {
        if let Some((stream, number)) = self.last.take()
            && state.known.get(&stream).is_none_or(|known| *known < number)
        {
            state.violation("a decoder is used, or dropped, before its earlier work has finished".to_owned());
        }
    }
}

impl Drop for SimulatedDecoder {
    fn drop(&mut self) {
        let device = self.device.clone();
        self.check_idle(&mut device.enter());
    }
}

impl Decoder for SimulatedDecoder {
    unsafe fn decode(&mut self, pictures: &[Jpeg], stream: StreamId) -> Result<Vec<usize>> {
        let device = self.device.clone();
        let mut state = device.enter();
        state.refuse("decode")?;
        self.check_idle(&mut state);
        let mut refused = Vec::new();
        for (index, jpeg) in pictures.iter().enumerate() {
            // SAFETY: the caller's contract.
            let held = unsafe { std::slice::from_raw_parts(jpeg.bytes.0.as_ptr(), jpeg.length) }.to_vec();
            state.decoded += 1;
            let number = state.decoded;
            let is_bad = feedstock_ops::image::decode_rgb(&held, &DecodeImage::default()).is_err();
            if is_bad || state.refuses_every.is_some_and(|every| number.is_multiple_of(every)) {
                refused.push(index);
            } else {
                state.give(stream, Work::Decode(*jpeg, held));
            }
        }
        self.last = state.streams.get(&stream).map(|known| (stream, known.given));
        Ok(refused)
    }
}

fn allocate(bytes: usize, align: usize) -> (NonNull<u8>, Layout) {
    let layout = Layout::from_size_align(bytes.max(1), align).unwrap();
    // SAFETY: the size is not 0.
    (NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap(), layout)
}

impl Driver for Simulated {
    fn place(&self) -> Place {
        Place::Cuda(0)
    }

    fn adopt_thread(&self) -> Result<()> {
        Ok(())
    }

    fn allocate_host(&self, bytes: usize) -> Result<HostAddress> {
        let mut state = self.enter();
        state.refuse("allocate_host")?;
        if state.host_limit - state.host_bytes < bytes {
            return Err(Error::new(ErrorKind::BadConfig, "out of memory"));
        }
        let (start, layout) = allocate(bytes, PAGE_BYTES);
        state.host_bytes += layout.size();
        state.host_allocations += 1;
        state.host.insert(start.addr().get(), layout);
        Ok(HostAddress(start))
    }

    unsafe fn free_host(&self, memory: HostAddress) {
        let mut state = self.enter();
        let Some(layout) = state.host.remove(&memory.0.addr().get()) else {
            return state.violation("host memory is freed twice".to_owned());
        };
        state.host_bytes -= layout.size();
        let range = memory.0.addr().get()..memory.0.addr().get() + layout.size();
        let reads = |work: &Work| {
            matches!(work, Work::Copy { from, .. } | Work::Decode(Jpeg { bytes: from, .. }, _)
                if range.contains(&from.0.addr().get()))
        };
        if state.streams.values().any(|stream| stream.queue.iter().any(reads)) {
            state.violation("host memory is freed while a copy from it is pending".to_owned());
        }
        // SAFETY: allocated with this layout, and just removed from the list.
        unsafe { dealloc(memory.0.as_ptr(), layout) };
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        let mut state = self.enter();
        let (start, layout) = allocate(bytes, 256);
        let at = start.as_ptr().expose_provenance() as u64;
        state.device.insert(at, Allocation { size: bytes, layout, wrote: None, read: Vec::new() });
        Ok(Address(at))
    }

    unsafe fn free(&self, memory: Address) {
        let mut state = self.enter();
        let Some(allocation) = state.device.remove(&memory.0) else {
            return state.violation("device memory is freed twice".to_owned());
        };
        let users: Vec<Access> = allocation.read.into_iter().chain(allocation.wrote).collect();
        for (stream, number) in users {
            if state.known.get(&stream).is_none_or(|known| *known < number) {
                state.violation(format!("device memory is freed that stream {} may still use", stream.0));
            }
        }
        // SAFETY: allocated with this layout, and just removed from the list.
        unsafe { dealloc(host::pointer(memory), allocation.layout) };
    }

    fn load_kernels(&self) -> Result<()> {
        self.enter().refuse("load_kernels")
    }

    fn load_decoder(&self) -> Result<()> {
        self.enter().refuse("load_decoder")
    }

    fn new_decoder(&self) -> Result<Box<dyn Decoder>> {
        Ok(Box::new(SimulatedDecoder { device: self.this.upgrade().unwrap(), last: None }))
    }

    fn check_stream(&self, stream: StreamId) -> Result<()> {
        match self.enter().foreign.contains(&stream) {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::BadConfig, "the stream is of another context")),
        }
    }

    fn new_stream(&self, _: bool) -> Result<StreamId> {
        let mut state = self.enter();
        let id = StreamId(state.id());
        state.streams.insert(id, SimulatedStream::default());
        Ok(id)
    }

    unsafe fn free_stream(&self, stream: StreamId) {
        let mut state = self.enter();
        let known = state.streams.get_mut(&stream);
        if known.is_none_or(|stream| std::mem::replace(&mut stream.is_gone, true)) {
            state.violation("a stream is freed twice".to_owned());
        }
    }

    fn new_event(&self) -> Result<EventId> {
        let mut state = self.enter();
        let id = EventId(state.id());
        state.events.insert(id, Event::default());
        Ok(id)
    }

    unsafe fn free_event(&self, event: EventId) {
        let mut state = self.enter();
        let known = state.events.get_mut(&event);
        if known.is_none_or(|event| std::mem::replace(&mut event.is_gone, true)) {
            state.violation("an event is freed twice".to_owned());
        }
    }

    fn record(&self, event: EventId, stream: StreamId) -> Result<()> {
        let mut state = self.enter();
        let Some(known) = state.events.get_mut(&event).filter(|event| !event.is_gone) else {
            state.violation("an event is recorded after it was freed".to_owned());
            return Ok(());
        };
        known.recorded += 1;
        let count = known.recorded;
        state.give(stream, Work::Record(event, count));
        let clock = state.streams[&stream].clock.clone();
        if let Some(known) = state.events.get_mut(&event) {
            known.clock = clock;
        }
        Ok(())
    }

    fn wait(&self, stream: StreamId, event: EventId) -> Result<()> {
        let mut state = self.enter();
        state.refuse("wait")?;
        let Some((count, clock)) =
            state.events.get(&event).map(|event| (event.recorded, event.clock.clone()))
        else {
            state.violation("a stream waits for an event that does not exist".to_owned());
            return Ok(());
        };
        if count == 0 {
            state.violation("a stream waits for an event that was not recorded".to_owned());
        }
        state.give(stream, Work::Wait(event, count));
        if let Some(stream) = state.streams.get_mut(&stream) {
            join(&mut stream.clock, &clock);
        }
        Ok(())
    }

    fn synchronize(&self, event: EventId) -> Result<()> {
        let mut state = self.enter();
        let (count, clock) = (state.events[&event].recorded, state.events[&event].clock.clone());
        if count == 0 {
            state.violation("a thread waits for an event that was not recorded".to_owned());
        }
        state.run_until("an event", |state| state.events[&event].passed.contains(&count))?;
        join(&mut state.known, &clock);
        Ok(())
    }

    fn synchronize_stream(&self, stream: StreamId) -> Result<()> {
        let mut state = self.enter();
        let clock = state.streams[&stream].clock.clone();
        state.run_until("a stream", |state| state.streams[&stream].queue.is_empty())?;
        join(&mut state.known, &clock);
        Ok(())
    }

    fn is_capturing(&self, stream: StreamId) -> Result<bool> {
        Ok(self.enter().streams.entry(stream).or_default().is_capturing)
    }

    unsafe fn copy_in(&self, to: Address, from: HostAddress, bytes: usize, stream: StreamId) -> Result<()> {
        let mut state = self.enter();
        state.copies += 1;
        assert!(state.panics_at_copy != Some(state.copies), "the copy panics");
        if state.fail_copies_from.is_some_and(|first| state.copies >= first) {
            return Err(Error::new(ErrorKind::Retryable, "the copy was refused"));
        }
        // SAFETY: the caller's contract.
        let held = unsafe { std::slice::from_raw_parts(from.0.as_ptr(), bytes) }.to_vec();
        state.give(stream, Work::Copy { to: to.0, from, bytes, held });
        Ok(())
    }

    unsafe fn copy_within(&self, to: Address, from: Address, bytes: usize, stream: StreamId) -> Result<()> {
        let mut state = self.enter();
        state.refuse("copy_within")?;
        state.copied_within.0 += 1;
        state.copied_within.1 += bytes;
        state.give(stream, Work::CopyWithin { to: to.0, from: from.0, bytes });
        Ok(())
    }

    unsafe fn copy_out(&self, to: &mut [u8], from: Address, stream: StreamId) -> Result<()> {
        self.enter().give(stream, Work::Read { from: from.0, bytes: to.len(), expected: None });
        self.synchronize_stream(stream)?;
        // SAFETY: the caller's contract.
        unsafe { std::ptr::copy_nonoverlapping(host::pointer::<u8>(from), to.as_mut_ptr(), to.len()) };
        Ok(())
    }

    unsafe fn launch(&self, launch: &Launch, stream: StreamId) -> Result<()> {
        let mut state = self.enter();
        state.refuse("launch")?;
        state.give(stream, Work::Launch(*launch));
        Ok(())
    }
}
