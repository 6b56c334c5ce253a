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

mod queue;
mod sync;

pub(crate) use queue::Turn;

use crate::{Error, ErrorKind, Result};
use feedstock_dataset::PerProcess;
use feedstock_ops::Scratch;
use queue::{RunTurns, ShareId, TaskQueue};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
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

struct PoolState {
    tasks: TaskQueue<Task>,
    /// Nanoseconds that tasks took, added up over the threads.
    busy_ns: AtomicU64,
}

/// The turns of one run.
pub(crate) struct Turns {
    share: PoolShare,
    run: RunTurns,
}

impl Pool {
    /// Starts `threads` threads.
    pub(crate) fn new(threads: usize) -> Result<Self> {
        assert!(threads > 0, "a pool needs a thread");
        let shared = Arc::new(PoolState { tasks: TaskQueue::new(), busy_ns: AtomicU64::new(0) });
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
        let id = self.0.shared.tasks.lock().add_share(most);
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
        Turns { share: self.clone(), run: RunTurns::new(overdue) }
    }

    fn tasks(&self) -> &TaskQueue<Task> {
        &self.0.pool.0.shared.tasks
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        self.pool.0.shared.tasks.lock().leave(self.id);
    }
}

impl Turns {
    /// The turn of the run's next step.
    pub(crate) fn next(&mut self) -> Turn {
        self.run.next(&mut self.share.tasks().lock())
    }

    /// Queues a task of the step that has this turn.
    pub(crate) fn submit(&self, turn: Turn, task: Task) {
        self.share.tasks().submit(self.share.0.id, turn, task);
    }

    /// Queues tasks of the step that has this turn, all at once.
    pub(crate) fn submit_all(&self, turn: Turn, tasks: Vec<Task>) {
        self.share.tasks().submit_all(self.share.0.id, turn, tasks);
    }
}

fn work(shared: &PoolState) {
    let mut scratch = Scratch::new();
    shared.tasks.work(|task| {
        let begun = Instant::now();
        let run = std::panic::AssertUnwindSafe(|| task(&mut scratch));
        if std::panic::catch_unwind(run).is_err() {
            scratch = Scratch::new(); // the row's guard has reported it; the buffers may be half written
        }
        let took = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        shared.busy_ns.fetch_add(took, Ordering::Relaxed);
    });
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.tasks.close(); // the threads drain the queue and end
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
