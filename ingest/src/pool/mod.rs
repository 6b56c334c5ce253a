//! The CPU threads: one task for each sample, in the order in which steps are needed.
//!
//! Runs take turns a step at a time (start-time fair queueing, Goyal, Vin and Cheng 1996): every step has a turn, the
//! smallest turn goes first, and a run's next step comes one turn after its last, but not before the turn that is being
//! served. So a run alone makes its oldest step first, several share the threads step by step (however large their steps
//! are: ranks of a job wait for each other's), and one that comes later does not wait for what the others have ahead. A stream that takes
//! over steps which a trainer already waits for begins that many turns early, as long as such turns are the exception.
//!
//! A process has one pool; a [`PoolShare`] of it may have fewer tasks at work at once than there are threads. Tasks over that
//! bound wait for another task of the share to end, and let later turns of other shares pass.
//!
//! A task costs about a microsecond here, if a step's tasks are queued at once; decoding an image takes a thousand.

use crate::{Error, ErrorKind, Result};
use feedstock_dataset::PerProcess;
use feedstock_ops::Scratch;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Work for one thread; its [`Scratch`] is that thread's own.
pub(crate) type Task = Box<dyn FnOnce(&mut Scratch) + Send>;

/// Threads that run tasks; clones share them, and the last one to go joins them.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Threads>);

struct Threads {
    shared: Arc<PoolState>,
    joins: Mutex<Vec<JoinHandle<()>>>,
}

/// The pool of this process.
static POOL: PerProcess<Threads> = PerProcess::new();

/// A part of the pool's threads, for the runs that share it; clones are the same share.
#[derive(Clone)]
pub(crate) struct PoolShare(Arc<Owned>);

struct Owned {
    pool: Pool,
    id: ShareId,
    most: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ShareId(u64);

struct PoolState {
    queue: Mutex<Queue>,
    woken: Condvar,
    /// Nanoseconds that tasks took, added up over the threads.
    busy_ns: AtomicU64,
}

struct Queue {
    /// One for each pipeline in use: all are looked at for every task.
    shares: Vec<Queues>,
    /// Threads that wait for a task.
    idle: usize,
    /// The latest turn served.
    served: u64,
    early: Early,
    /// Tasks so far: among those of one turn the first goes first.
    count: u64,
    closed: bool,
}

/// The tasks of one share.
struct Queues {
    id: ShareId,
    // Never long: only rows of offered places are queued, so it holds slots × batch rows of each run at most.
    tasks: BinaryHeap<Reverse<Queued>>,
    /// Tasks at work, and the most of them.
    running: usize,
    most: usize,
    /// The share has ended: what it has queued is done, and nothing is added.
    is_left: bool,
}

/// When a step's tasks are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(u64);

struct Queued {
    at: (Turn, u64),
    task: Task,
}

/// The turns of one run.
pub(crate) struct Turns {
    share: PoolShare,
    next: u64,
    overdue: u64,
}

/// Early turns that are left: each that is served in its time brings one, so that a run that asks for them again and again
/// cannot keep all others waiting.
struct Early {
    left: u64,
    /// The turn served when they were last counted.
    at: u64,
}

/// Turns count from here, so that there are some before those of the first run.
const FIRST: u64 = 1 << 32;

/// Early turns left at most: a worker lost to sixteen ranks with four slots each.
const EARLY_MAX: u64 = 64;

impl Pool {
    /// Starts `threads` threads.
    pub(crate) fn new(threads: usize) -> Result<Self> {
        assert!(threads > 0, "a pool needs a thread");
        let shared = Arc::new(PoolState {
            queue: Mutex::new(Queue::new()),
            woken: Condvar::new(),
            busy_ns: AtomicU64::new(0),
        });
        let pool = Threads { shared, joins: Mutex::default() };
        pool.grow(threads)?;
        Ok(Self(Arc::new(pool)))
    }

    /// The pool of this process, with at least `threads` threads: it is started by its first user, ends with its last, and
    /// keeps the most threads that any of them asked for.
    pub(crate) fn shared(threads: usize) -> Result<Self> {
        let mut shared = POOL.lock();
        if let Some(running) = shared.upgrade() {
            running.grow(threads)?;
            return Ok(Self(running));
        }
        let made = Self::new(threads)?;
        *shared = Arc::downgrade(&made.0);
        Ok(made)
    }

    /// A share with at most `most` tasks at work at once.
    pub(crate) fn share(&self, most: usize) -> PoolShare {
        assert!(most > 0, "a share needs a thread");
        let id = self.0.shared.queue().add_share(most);
        PoolShare(Arc::new(Owned { pool: self.clone(), id, most }))
    }
}

impl Threads {
    /// Starts threads until there are `threads`.
    fn grow(&self, threads: usize) -> Result<()> {
        let mut joins = self.joins.lock().unwrap_or_else(PoisonError::into_inner); // only ever pushed to
        for index in joins.len()..threads {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name(format!("feedstock-cpu-{index}"));
            let join = thread.spawn(move || work(&shared)).map_err(|e| {
                Error::new(ErrorKind::Retryable, format!("cannot start CPU thread {index}: {e}"))
            })?;
            joins.push(join);
        }
        Ok(())
    }
}

impl PoolShare {
    /// Tasks at work at once, at most.
    pub(crate) fn most(&self) -> usize {
        self.0.most
    }

    /// Returns the time that tasks of this process have taken so far, added up over the threads.
    pub(crate) fn busy(&self) -> Duration {
        Duration::from_nanos(self.0.pool.0.shared.busy_ns.load(Ordering::Relaxed))
    }

    /// The turns of a new run, the first `overdue` of which others' steps wait for.
    pub(crate) fn turns(&self, overdue: u32) -> Turns {
        Turns { share: self.clone(), next: 0, overdue: overdue.into() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.pool.0.shared.queue()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.pool.0.shared.queue().leave(self.id);
    }
}

impl Turns {
    /// The turn of the run's next step.
    pub(crate) fn next(&mut self) -> Turn {
        let mut queue = self.share.queue();
        let early = if self.overdue > 0 && queue.grant_early() { self.overdue } else { 0 };
        let turn = self.next.max(queue.served - early);
        self.next = turn + 1;
        self.overdue = self.overdue.saturating_sub(1);
        Turn(turn)
    }

    /// Queues a task of the step that has this turn.
    pub(crate) fn submit(&self, turn: Turn, task: Task) {
        self.share.0.pool.0.shared.submit(self.share.0.id, turn, task);
    }

    /// Queues tasks of the step that has this turn, all at once.
    pub(crate) fn submit_all(&self, turn: Turn, tasks: Vec<Task>) {
        self.share.0.pool.0.shared.submit_all(self.share.0.id, turn, tasks);
    }
}

impl Queue {
    fn new() -> Self {
        let early = Early { left: EARLY_MAX, at: FIRST };
        Self { shares: Vec::new(), idle: 0, served: FIRST, early, count: 0, closed: false }
    }

    fn add_share(&mut self, most: usize) -> ShareId {
        let id = ShareId(self.count);
        self.count += 1;
        let tasks = BinaryHeap::new();
        self.shares.push(Queues { id, tasks, running: 0, most, is_left: false });
        id
    }

    fn share(&mut self, id: ShareId) -> &mut Queues {
        #[expect(clippy::expect_used, reason = "a share is kept until it is left and its tasks are done")]
        self.shares.iter_mut().find(|share| share.id == id).expect("the share is known")
    }

    fn leave(&mut self, id: ShareId) {
        self.share(id).is_left = true;
        self.forget_ended();
    }

    fn forget_ended(&mut self) {
        self.shares.retain(|share| !share.is_left || share.running > 0 || !share.tasks.is_empty());
    }

    /// Counts a task of the share as done; true if that makes way for another one of it.
    fn finished(&mut self, id: ShareId) -> bool {
        let share = self.share(id);
        let was_full = share.running == share.most;
        share.running -= 1;
        if share.is_left {
            self.forget_ended();
        }
        was_full
    }

    /// The share whose task is due first, of those that may start one.
    fn due(&mut self) -> Option<&mut Queues> {
        let ready = self.shares.iter_mut().filter(|share| share.running < share.most);
        let due = ready.filter_map(|share| Some((share.tasks.peek()?.0.at, share)));
        due.min_by_key(|(at, _)| *at).map(|(_, share)| share)
    }

    fn pop(&mut self) -> Option<(ShareId, Task)> {
        let share = self.due()?;
        let Reverse(Queued { at: (turn, _), task }) = share.tasks.pop()?;
        share.running += 1;
        let id = share.id;
        self.served = self.served.max(turn.0);
        Some((id, task))
    }

    /// Takes one of the early turns that are left.
    fn grant_early(&mut self) -> bool {
        let Early { left, at } = &mut self.early;
        *left = (*left + self.served - *at).min(EARLY_MAX);
        *at = self.served;
        let granted = *left > 0;
        *left = left.saturating_sub(1);
        granted
    }
}

impl PoolState {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner) // every change is whole
    }

    fn submit(&self, share: ShareId, turn: Turn, task: Task) {
        let mut queue = self.queue();
        let at = (turn, queue.count);
        queue.count += 1;
        queue.share(share).tasks.push(Reverse(Queued { at, task }));
        drop(queue);
        self.woken.notify_one();
    }

    /// A thread that is not idle looks at the queue before it waits, so that no more than the idle ones have to be woken.
    fn submit_all(&self, share: ShareId, turn: Turn, tasks: Vec<Task>) {
        if tasks.is_empty() {
            return;
        }
        let mut queue = self.queue();
        let (first, woken) = (queue.count, tasks.len().min(queue.idle));
        queue.count += tasks.len() as u64;
        let queued = (first..).zip(tasks).map(|(count, task)| Reverse(Queued { at: (turn, count), task }));
        queue.share(share).tasks.extend(queued);
        drop(queue);
        (0..woken).for_each(|_| self.woken.notify_one());
    }

    /// The next task for a thread that has done one of the share `done`; `None` once the pool is closed and nothing is left
    /// that this thread may start. What shares over their bound have queued then, the threads at work on them finish.
    fn take(&self, done: Option<ShareId>) -> Option<(ShareId, Task)> {
        let mut queue = self.queue();
        let made_way = done.is_some_and(|share| queue.finished(share));
        loop {
            if let Some(next) = queue.pop() {
                // A thread that was woken for the other task may have gone back to sleep: it was over its share's bound.
                if made_way && queue.idle > 0 && queue.due().is_some() {
                    self.woken.notify_one();
                }
                return Some(next);
            }
            if queue.closed {
                return None;
            }
            queue.idle += 1;
            queue = self.woken.wait(queue).unwrap_or_else(PoisonError::into_inner);
            queue.idle -= 1;
        }
    }
}

impl PartialEq for Queued {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Queued {}

impl PartialOrd for Queued {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Queued {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}

fn work(shared: &PoolState) {
    let mut scratch = Scratch::new();
    let mut done = None;
    while let Some((share, task)) = shared.take(done) {
        done = Some(share);
        let begun = Instant::now();
        let run = std::panic::AssertUnwindSafe(|| task(&mut scratch));
        if std::panic::catch_unwind(run).is_err() {
            scratch = Scratch::new(); // the row's guard has reported it; the buffers may be half written
        }
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        shared.busy_ns.fetch_add(took, Ordering::Relaxed);
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.queue().closed = true; // the threads drain their queue and end
        self.shared.woken.notify_all();
        let me = std::thread::current().id();
        let joins = self.joins.get_mut().unwrap_or_else(PoisonError::into_inner);
        for join in joins.drain(..).filter(|join| join.thread().id() != me) {
            // A thread ends by its queue closing; tasks' panics are caught above.
            let _ended = join.join();
        }
    }
}

#[cfg(test)]
mod tests;
