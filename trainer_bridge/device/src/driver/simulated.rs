//! A device that does its work as late and as much out of order as it may, and finds races. For tests.
//!
//! ```text
//! call ──▶ queue of its stream ──some time, whichever stream the dice choose──▶ done
//! ```
//! Every operation carries a vector clock: what is known to be done before it. A write of device memory must come after all
//! earlier reads and writes of it, a read after all earlier writes, by streams' order and events alone; what merely
//! happened to run in time counts as a race, too. Host memory that a copy reads is compared with what it held when the copy
//! was asked for. The host comes to know of work by waiting for events.

use super::{Decoder, Driver, Jpeg, host};
use crate::handles::{Address, EventId, HostAddress, StreamId};
use crate::kernels::Launch;
use crate::place::Place;
use feedstock_base::{Error, ErrorKind, PAGE_BYTES, Result};
use feedstock_ops::image::DecodeImage;
use feedstock_ops::{Generator, SampleSeed};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// How far each stream is known to have come.
type Clock = BTreeMap<StreamId, u64>;

fn join(clock: &mut Clock, other: &Clock) {
    for (stream, at) in other {
        let known = clock.entry(*stream).or_default();
        *known = (*known).max(*at);
    }
}

/// One operation of a stream: its number there.
type Access = (StreamId, u64);

enum Work {
    Copy { to: u64, from: HostAddress, bytes: usize, held: Vec<u8> },
    CopyWithin { to: u64, from: u64, bytes: usize },
    Write { to: u64, bytes: usize },
    Launch(Launch),
    Decode(Jpeg, Vec<u8>),
    Record(EventId, u64),
    Wait(EventId, u64),
    Read { from: u64, bytes: usize, expected: Option<Vec<u8>> },
}

/// Device memory, and who used it last.
struct Allocation {
    size: usize,
    layout: Layout,
    wrote: Option<Access>,
    read: Vec<Access>,
}

#[derive(Default)]
struct SimulatedStream {
    queue: VecDeque<Work>,
    /// Operations that it was given.
    given: u64,
    /// What is done before whatever it is given next.
    clock: Clock,
    is_gone: bool,
    is_capturing: bool,
}

#[derive(Default)]
struct Event {
    /// How often it was recorded, and which of these marks have run: who waits for one is not freed by a later one.
    recorded: u64,
    passed: BTreeSet<u64>,
    clock: Clock,
    is_gone: bool,
}

struct SimulatedState {
    dice: Generator,
    streams: BTreeMap<StreamId, SimulatedStream>,
    events: HashMap<EventId, Event>,
    device: BTreeMap<u64, Allocation>,
    host: HashMap<usize, Layout>,
    host_allocations: usize,
    host_bytes: usize,
    host_limit: usize,
    /// What the threads of the program know to be done.
    known: Clock,
    next: u64,
    violations: Vec<String>,
    fail_copies_from: Option<u64>,
    panics_at_copy: Option<u64>,
    copies: u64,
    copied_within: (usize, usize),
    /// Copies from the host that have run.
    copies_run: u64,
    /// Kernels do not run.
    holds_launches: bool,
    /// Pictures that were decoded, and every which of them is refused.
    decoded: u64,
    refuses_every: Option<u64>,
    /// Calls that are refused, and how often still.
    refused: HashMap<&'static str, u64>,
    /// Of another context.
    foreign: BTreeSet<StreamId>,
}

/// The device.
pub struct Simulated {
    this: Weak<Self>,
    state: Mutex<SimulatedState>,
    /// Whether every call panics.
    panics: AtomicBool,
}

impl Simulated {
    /// A device whose order of work is drawn from `seed`.
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

    /// Takes a call: some of what waits runs first.
    fn enter(&self) -> MutexGuard<'_, SimulatedState> {
        assert!(!self.panics.load(Ordering::Relaxed), "the device is touched where it is not there");
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

    /// Copies from the `number`th on are refused.
    pub fn fail_copies_from(&self, number: u64) {
        self.lock().fail_copies_from = Some(number);
    }

    /// Has the `number`th copy panic.
    pub fn panic_at_copy(&self, number: u64) {
        self.lock().panics_at_copy = Some(number);
    }

    /// Has the decoder refuse every so manieth picture.
    pub fn refuse_every_picture(&self, number: u64) {
        self.lock().refuses_every = Some(number);
    }

    /// Pictures that the decoder took.
    pub fn decoded(&self) -> u64 {
        self.lock().decoded
    }

    /// Refuses the call of this name so many times.
    pub fn refuse(&self, call: &'static str, times: u64) {
        self.lock().refused.insert(call, times);
    }

    /// Has every call panic from now on.
    pub fn panic_at_use(&self) {
        self.panics.store(true, Ordering::Relaxed);
    }

    /// Has `stream` belong to another context.
    pub fn make_foreign(&self, stream: StreamId) {
        self.lock().foreign.insert(stream);
    }

    /// Copies from the host that have run by now.
    pub fn copies_run(&self) -> u64 {
        self.enter().copies_run
    }

    /// From now on kernels run, or do not.
    pub fn hold_launches(&self, hold: bool) {
        self.lock().holds_launches = hold;
    }

    /// Bytes of device memory that are allocated.
    pub fn device_bytes(&self) -> usize {
        self.lock().device.values().map(|allocation| allocation.size).sum()
    }

    /// Copies inside of the device so far, and their bytes.
    pub fn copied_within(&self) -> (usize, usize) {
        self.lock().copied_within
    }

    /// Has `stream` write so many bytes some time.
    pub fn write_later(&self, to: Address, bytes: usize, stream: StreamId) {
        self.enter().give(stream, Work::Write { to: to.0, bytes });
    }

    /// Sets whether `stream` is being captured into a graph.
    pub fn capture(&self, stream: StreamId, is_capturing: bool) {
        self.lock().streams.entry(stream).or_default().is_capturing = is_capturing;
    }

    /// Has `stream` read so many bytes some time, and find them to be `expected`.
    pub fn read_later(&self, from: Address, expected: Vec<u8>, stream: StreamId) {
        let (from, bytes) = (from.0, expected.len());
        self.enter().give(stream, Work::Read { from, bytes, expected: Some(expected) });
    }

    /// Runs everything; what went wrong so far, and what is still allocated: device memory, host memory, streams.
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

impl SimulatedState {
    fn refuse(&mut self, call: &'static str) -> Result<()> {
        match self.refused.get_mut(call).filter(|times| **times > 0) {
            None => Ok(()),
            Some(times) => {
                *times -= 1;
                Err(Error::new(ErrorKind::Retryable, format!("{call} was refused")))
            }
        }
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn violation(&mut self, text: String) {
        self.violations.push(text);
    }

    /// Puts work at a stream's end, checked against everything before it.
    fn give(&mut self, id: StreamId, work: Work) {
        let known = self.known.clone();
        let stream = self.streams.entry(id).or_default();
        if stream.is_gone {
            return self.violation(format!("stream {} is used after it was freed", id.0));
        }
        stream.given += 1;
        join(&mut stream.clock, &known);
        stream.clock.insert(id, stream.given);
        let (access, clock) = ((id, stream.given), stream.clock.clone());
        match &work {
            Work::Copy { to, bytes, .. } | Work::Write { to, bytes } => {
                self.write(*to, *bytes, access, &clock)
            }
            Work::CopyWithin { to, from, bytes } => {
                self.read(*from, *bytes, access, &clock);
                self.write(*to, *bytes, access, &clock);
            }
            Work::Launch(launch) => {
                if let Launch::Crops(a) = launch {
                    self.read(a.arena.0, 1, access, &clock);
                }
                let at = match launch {
                    Launch::Crops(a) => a.output,
                    Launch::Pictures { arguments, .. } => arguments.output,
                    Launch::FeatureChunks(a)
                    | Launch::FeatureStatistics(a)
                    | Launch::FeatureRowMeans(a)
                    | Launch::Features { arguments: a, .. } => a.output,
                };
                self.write(at.0, 1, access, &clock);
            }
            Work::Decode(jpeg, held) => {
                let lines = feedstock_ops::image::read_header(held).unwrap().height as usize;
                self.write(jpeg.to.0, jpeg.pitch * lines, access, &clock);
            }
            Work::Read { from, bytes, .. } => self.read(*from, *bytes, access, &clock),
            Work::Record(..) | Work::Wait(..) => {}
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.queue.push_back(work);
        }
    }

    /// The allocation that holds these bytes.
    fn allocation(&mut self, at: u64, bytes: usize) -> Option<&mut Allocation> {
        let found = self.device.range(..=at).next_back().map(|(start, allocation)| (*start, allocation.size));
        let fits = found.filter(|(start, size)| at + bytes as u64 <= start + *size as u64);
        if fits.is_none() {
            self.violation(format!("{bytes} bytes at {at:#x} are no device memory"));
        }
        fits.and_then(|(start, _)| self.device.get_mut(&start))
    }

    fn write(&mut self, at: u64, bytes: usize, access: Access, clock: &Clock) {
        let Some(allocation) = self.allocation(at, bytes) else { return };
        let before: Vec<Access> = allocation.read.drain(..).chain(allocation.wrote.take()).collect();
        allocation.wrote = Some(access);
        for (stream, number) in before {
            if clock.get(&stream).is_none_or(|known| *known < number) {
                self.violation(format!(
                    "stream {} writes device memory that stream {} may still use",
                    access.0.0, stream.0
                ));
            }
        }
    }

    fn read(&mut self, at: u64, bytes: usize, access: Access, clock: &Clock) {
        let Some(allocation) = self.allocation(at, bytes) else { return };
        allocation.read.push(access);
        let wrote = allocation.wrote;
        match wrote {
            Some((stream, number)) if clock.get(&stream).is_none_or(|known| *known < number) => {
                self.violation(format!(
                    "stream {} reads what stream {} may still write",
                    access.0.0, stream.0
                ));
            }
            None => self.violation(format!("stream {} reads what nobody wrote", access.0.0)),
            Some(_) => {}
        }
    }

    /// Runs one operation of a stream that can go on; false where none can.
    fn step(&mut self) -> bool {
        let events = &self.events;
        let can = |stream: &SimulatedStream| match stream.queue.front() {
            Some(Work::Wait(event, count)) => {
                events.get(event).is_some_and(|event| event.passed.contains(count))
            }
            Some(Work::Launch(_) | Work::Decode(..)) => !self.holds_launches,
            Some(_) => true,
            None => false,
        };
        let able: Vec<StreamId> =
            self.streams.iter().filter(|(_, stream)| can(stream)).map(|(id, _)| *id).collect();
        if able.is_empty() {
            return false;
        }
        let chosen = able[self.dice.below(u32::try_from(able.len()).unwrap_or(1)) as usize];
        if let Some(work) = self.streams.get_mut(&chosen).and_then(|stream| stream.queue.pop_front()) {
            self.run(chosen, work);
        }
        true
    }

    fn run(&mut self, stream: StreamId, work: Work) {
        match work {
            Work::Copy { to, from, bytes, held } => {
                self.copies_run += 1;
                self.check_held(from, &held);
                // SAFETY: seen to be device memory when it was given.
                unsafe { std::ptr::copy_nonoverlapping(held.as_ptr(), host::pointer(Address(to)), bytes) };
            }
            Work::Decode(jpeg, held) => {
                self.check_held(jpeg.bytes, &held);
                let (size, pixels) =
                    feedstock_ops::image::decode_rgb(&held, &DecodeImage::default()).unwrap();
                let line = size.width as usize * 3;
                for (y, pixels) in pixels.chunks_exact(line).enumerate() {
                    let to = host::pointer::<u8>(jpeg.to.at(y * jpeg.pitch));
                    // SAFETY: seen to be device memory when it was given.
                    unsafe { std::ptr::copy_nonoverlapping(pixels.as_ptr(), to, line) };
                }
            }
            Work::CopyWithin { to, from, bytes } => {
                let (to, from) = (host::pointer::<u8>(Address(to)), host::pointer::<u8>(Address(from)));
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
            }
            // SAFETY: its memory is allocated, as `give` saw for the output.
            Work::Launch(launch) => unsafe { host::run(&launch) },
            Work::Record(event, count) => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.passed.insert(count);
                }
            }
            Work::Wait(..) | Work::Write { .. } => {}
            Work::Read { from, bytes, expected } => {
                if self.allocation(from, bytes).is_none() {
                    return;
                }
                // SAFETY: just seen to be device memory.
                let now = unsafe { std::slice::from_raw_parts(host::pointer::<u8>(Address(from)), bytes) };
                if expected.is_some_and(|expected| expected != now) {
                    self.violation(format!("stream {} reads other bytes than were sent", stream.0));
                }
            }
        }
    }

    /// Host memory that is read now holds what it held when that was asked for.
    fn check_held(&mut self, from: HostAddress, held: &[u8]) {
        let at = from.0.addr().get();
        if !self.host.iter().any(|(start, layout)| (*start..*start + layout.size()).contains(&at)) {
            return self.violation("a copy reads host memory that was freed".to_owned());
        }
        // SAFETY: just seen to be allocated; the program's rules keep others from writing it, or the test fails.
        let now = unsafe { std::slice::from_raw_parts(from.0.as_ptr(), held.len()) };
        if now != held {
            self.violation("host memory was written while a copy from it was pending".to_owned());
        }
    }

    fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<()> {
        while !done(self) {
            if !self.step() {
                self.violation(format!("{what} waits for ever"));
                return Err(Error::new(ErrorKind::Bug, format!("{what} waits for ever")));
            }
        }
        Ok(())
    }
}

/// Decodes as the CPU does, some time.
struct SimulatedDecoder {
    device: Arc<Simulated>,
    /// The last that it was given.
    last: Option<Access>,
}

impl SimulatedDecoder {
    /// What it was given before is to be known to be done when it is used again, or dropped.
    fn check_idle(&mut self, state: &mut SimulatedState) {
        if let Some((stream, number)) = self.last.take()
            && state.known.get(&stream).is_none_or(|known| *known < number)
        {
            state
                .violation("a decoder is used, or dropped, before it has ended what it was given".to_owned());
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
        // SAFETY: allocated with this layout, and just taken out of the list.
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
        // SAFETY: allocated with this layout, and just taken out of the list.
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
            state.violation("a stream waits for no event".to_owned());
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
