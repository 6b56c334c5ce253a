//! The pending work of a simulated device, and what is known of it.

use super::super::{Jpeg, host};
use crate::handles::{Address, EventId, HostAddress, StreamId};
use crate::kernels::Launch;
use feedstock_base::{Error, ErrorKind, Result};
use feedstock_ops::Generator;
use feedstock_ops::image::DecodeImage;
use std::alloc::Layout;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// The number of operations that each stream is known to have finished.
pub(super) type Clock = BTreeMap<StreamId, u64>;

pub(super) fn join(clock: &mut Clock, other: &Clock) {
    for (stream, at) in other {
        let known = clock.entry(*stream).or_default();
        *known = (*known).max(*at);
    }
}

/// One operation: its stream and its number there.
pub(super) type Access = (StreamId, u64);

pub(super) enum Work {
    Copy { to: u64, from: HostAddress, bytes: usize, held: Vec<u8> },
    CopyWithin { to: u64, from: u64, bytes: usize },
    Write { to: u64, bytes: usize },
    Launch(Launch),
    Decode(Jpeg, Vec<u8>),
    Record(EventId, u64),
    Wait(EventId, u64),
    Read { from: u64, bytes: usize, expected: Option<Vec<u8>> },
}

/// Device memory, and the operations that used it last.
pub(super) struct Allocation {
    pub(super) size: usize,
    pub(super) layout: Layout,
    pub(super) wrote: Option<Access>,
    pub(super) read: Vec<Access>,
}

#[derive(Default)]
pub(super) struct SimulatedStream {
    pub(super) queue: VecDeque<Work>,
    /// The number of operations given to it.
    pub(super) given: u64,
    /// The work that is done before its next operation.
    pub(super) clock: Clock,
    pub(super) is_gone: bool,
    pub(super) is_capturing: bool,
}

#[derive(Default)]
pub(super) struct Event {
    /// The number of times it was recorded, and which of these marks have run. A later mark does not release an earlier wait.
    pub(super) recorded: u64,
    pub(super) passed: BTreeSet<u64>,
    pub(super) clock: Clock,
    pub(super) is_gone: bool,
}

pub(super) struct SimulatedState {
    pub(super) dice: Generator,
    pub(super) streams: BTreeMap<StreamId, SimulatedStream>,
    pub(super) events: HashMap<EventId, Event>,
    pub(super) device: BTreeMap<u64, Allocation>,
    pub(super) host: HashMap<usize, Layout>,
    pub(super) host_allocations: usize,
    pub(super) host_bytes: usize,
    pub(super) host_limit: usize,
    /// The work that the program's threads know to be done.
    pub(super) known: Clock,
    pub(super) next: u64,
    pub(super) violations: Vec<String>,
    pub(super) fail_copies_from: Option<u64>,
    pub(super) panics_at_copy: Option<u64>,
    pub(super) copies: u64,
    pub(super) copied_within: (usize, usize),
    /// Copies from the host that have run.
    pub(super) copies_run: u64,
    /// Whether kernels and decodes are held back.
    pub(super) holds_launches: bool,
    /// The number of images sent to the decoder; every `refuses_every`th is rejected.
    pub(super) decoded: u64,
    pub(super) refuses_every: Option<u64>,
    /// Calls that fail, and how many more times they do.
    pub(super) refused: HashMap<&'static str, u64>,
    /// Streams of another context.
    pub(super) foreign: BTreeSet<StreamId>,
}

impl SimulatedState {
    pub(super) fn refuse(&mut self, call: &'static str) -> Result<()> {
        match self.refused.get_mut(call).filter(|times| **times > 0) {
            None => Ok(()),
            Some(times) => {
                *times -= 1;
                Err(Error::new(ErrorKind::Retryable, format!("{call} was refused")))
            }
        }
    }

    pub(super) fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(super) fn violation(&mut self, text: String) {
        self.violations.push(text);
    }

    /// Appends work to a stream and checks it against all earlier work.
    pub(super) fn give(&mut self, id: StreamId, work: Work) {
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

    /// Returns the allocation that contains these bytes.
    pub(super) fn allocation(&mut self, at: u64, bytes: usize) -> Option<&mut Allocation> {
        let found = self.device.range(..=at).next_back().map(|(start, allocation)| (*start, allocation.size));
        let fits = found.filter(|(start, size)| at + bytes as u64 <= start + *size as u64);
        if fits.is_none() {
            self.violation(format!("{bytes} bytes at {at:#x} are not device memory"));
        }
        fits.and_then(|(start, _)| self.device.get_mut(&start))
    }

    pub(super) fn write(&mut self, at: u64, bytes: usize, access: Access, clock: &Clock) {
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

    pub(super) fn read(&mut self, at: u64, bytes: usize, access: Access, clock: &Clock) {
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
            None => self.violation(format!("stream {} reads unwritten memory", access.0.0)),
            Some(_) => {}
        }
    }

    /// Runs one operation of a stream that can proceed. Returns false if none can.
    pub(super) fn step(&mut self) -> bool {
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

    pub(super) fn run(&mut self, stream: StreamId, work: Work) {
        match work {
            Work::Copy { to, from, bytes, held } => {
                self.copies_run += 1;
                self.check_held(from, &held);
                // SAFETY: `give` checked that this is device memory.
                unsafe { std::ptr::copy_nonoverlapping(held.as_ptr(), host::pointer(Address(to)), bytes) };
            }
            Work::Decode(jpeg, held) => {
                self.check_held(jpeg.bytes, &held);
                let (size, pixels) =
                    feedstock_ops::image::decode_rgb(&held, &DecodeImage::default()).unwrap();
                let line = size.width as usize * 3;
                for (y, pixels) in pixels.chunks_exact(line).enumerate() {
                    let to = host::pointer::<u8>(jpeg.to.at(y * jpeg.pitch));
                    // SAFETY: `give` checked that this is device memory.
                    unsafe { std::ptr::copy_nonoverlapping(pixels.as_ptr(), to, line) };
                }
            }
            Work::CopyWithin { to, from, bytes } => {
                let (to, from) = (host::pointer::<u8>(Address(to)), host::pointer::<u8>(Address(from)));
                // SAFETY: as above.
                unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
            }
            // SAFETY: its memory is allocated; `give` checked the output.
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
                // SAFETY: just checked to be device memory.
                let now = unsafe { std::slice::from_raw_parts(host::pointer::<u8>(Address(from)), bytes) };
                if expected.is_some_and(|expected| expected != now) {
                    self.violation(format!("stream {} reads other bytes than were sent", stream.0));
                }
            }
        }
    }

    /// Checks that the host memory read now is unchanged since the call.
    pub(super) fn check_held(&mut self, from: HostAddress, held: &[u8]) {
        let at = from.0.addr().get();
        if !self.host.iter().any(|(start, layout)| (*start..*start + layout.size()).contains(&at)) {
            return self.violation("a copy reads host memory that was freed".to_owned());
        }
        // SAFETY: just checked to be allocated. The program must not write it meanwhile, or the test fails.
        let now = unsafe { std::slice::from_raw_parts(from.0.as_ptr(), held.len()) };
        if now != held {
            self.violation("host memory was written while a copy from it was pending".to_owned());
        }
    }

    pub(super) fn run_until(&mut self, what: &str, done: impl Fn(&Self) -> bool) -> Result<()> {
        while !done(self) {
            if !self.step() {
                self.violation(format!("{what} waits for ever"));
                return Err(Error::new(ErrorKind::Bug, format!("{what} waits for ever")));
            }
        }
        Ok(())
    }
}
