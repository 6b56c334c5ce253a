//! The CPU threads: one task a sample, in the order in which steps are wanted.
//!
//! Runs take turns a step at a time (start-time fair queueing, Goyal, Vin and Cheng 1996): every step has a turn, the
//! smallest turn goes first, and a run's next step comes one turn after its last, but not before the turn that is being
//! served. So a run alone makes its oldest step first, several share the threads step by step (however large their steps
//! are: ranks of a job wait for each other's), and one that comes later waits for nobody's look-ahead. A stream that takes
//! over steps which a trainer already waits for begins so many turns early, as long as such turns are the exception.
//!
//! A task costs about a microsecond here; a picture takes a thousand.

use crate::{Error, ErrorKind, Result};
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
    shared: Arc<Shared>,
    joins: Vec<JoinHandle<()>>,
}

struct Shared {
    queue: Mutex<Queue>,
    woken: Condvar,
    /// Nanoseconds that tasks took, added up over the threads.
    busy_ns: AtomicU64,
}

struct Queue {
    // Never long: only rows of offered places are queued, so it holds slots × batch rows of each run at most.
    tasks: BinaryHeap<Reverse<Queued>>,
    /// The latest turn served.
    served: u64,
    early: Early,
    /// Tasks so far: among those of one turn the first goes first.
    count: u64,
    closed: bool,
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
    pool: Pool,
    next: u64,
    overdue: u64,
}

/// Early turns that are left: each that is served in its time brings one, so that whoever asks for them again and again
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
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue::new()),
            woken: Condvar::new(),
            busy_ns: AtomicU64::new(0),
        });
        let mut pool = Threads { shared: shared.clone(), joins: Vec::with_capacity(threads) };
        for index in 0..threads {
            let shared = shared.clone();
            let thread = std::thread::Builder::new().name(format!("feedstock-cpu-{index}"));
            let join = thread.spawn(move || work(&shared)).map_err(|e| {
                Error::new(ErrorKind::Retryable, format!("cannot start CPU thread {index}: {e}"))
            })?;
            pool.joins.push(join);
        }
        Ok(Self(Arc::new(pool)))
    }

    pub(crate) fn threads(&self) -> usize {
        self.0.joins.len()
    }

    /// Returns the time that tasks have taken so far, added up over the threads.
    pub(crate) fn busy(&self) -> Duration {
        Duration::from_nanos(self.0.shared.busy_ns.load(Ordering::Relaxed))
    }

    /// The turns of a new run, the first `overdue` of which others' steps wait for.
    pub(crate) fn turns(&self, overdue: u32) -> Turns {
        Turns { pool: self.clone(), next: 0, overdue: overdue.into() }
    }
}

impl Turns {
    /// The turn of the run's next step.
    pub(crate) fn next(&mut self) -> Turn {
        let mut queue = self.pool.0.shared.queue();
        let early = if self.overdue > 0 && queue.grant_early() { self.overdue } else { 0 };
        let turn = self.next.max(queue.served - early);
        self.next = turn + 1;
        self.overdue = self.overdue.saturating_sub(1);
        Turn(turn)
    }

    /// Queues a task of the step that has this turn.
    pub(crate) fn submit(&self, turn: Turn, task: Task) {
        self.pool.0.shared.submit(turn, task);
    }
}

impl Queue {
    fn new() -> Self {
        let early = Early { left: EARLY_MAX, at: FIRST };
        Self { tasks: BinaryHeap::new(), served: FIRST, early, count: 0, closed: false }
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

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner) // every change is whole
    }

    fn submit(&self, turn: Turn, task: Task) {
        let mut queue = self.queue();
        let at = (turn, queue.count);
        queue.count += 1;
        queue.tasks.push(Reverse(Queued { at, task }));
        drop(queue);
        self.woken.notify_one();
    }

    /// The next task; `None` once the pool is closed and nothing is left.
    fn take(&self) -> Option<Task> {
        let mut queue = self.queue();
        loop {
            if let Some(Reverse(Queued { at: (turn, _), task })) = queue.tasks.pop() {
                queue.served = queue.served.max(turn.0);
                return Some(task);
            }
            if queue.closed {
                return None;
            }
            queue = self.woken.wait(queue).unwrap_or_else(PoisonError::into_inner);
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

fn work(shared: &Shared) {
    let mut scratch = Scratch::new();
    while let Some(task) = shared.take() {
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
        for join in self.joins.drain(..).filter(|join| join.thread().id() != me) {
            // A thread ends by its queue closing; tasks' panics are caught above.
            let _ended = join.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc::channel;

    #[test]
    fn runs_every_task_survives_panics_and_ends() {
        let done = Arc::new(AtomicUsize::new(0));
        let pool = Pool::new(3).unwrap();
        let mut turns = pool.turns(0);
        for i in 0..1000 {
            let done = done.clone();
            let turn = turns.next();
            turns.submit(
                turn,
                Box::new(move |_| {
                    assert!(i != 500, "one task panics, on purpose");
                    done.fetch_add(1, Ordering::Relaxed);
                }),
            );
        }
        drop((pool, turns)); // drains, then joins
        assert_eq!(done.load(Ordering::Relaxed), 999);
    }

    /// Queues a step of that name.
    type Step<'a> = &'a dyn Fn(&Turns, Turn, &'static str);

    fn steps<const N: usize>(step: Step<'_>, turns: &mut Turns, names: [&'static str; N]) {
        for name in names {
            let turn = turns.next();
            step(turns, turn, name);
        }
    }

    /// The names of steps in the order in which one thread makes them, after `queue` has queued them.
    fn made(queue: impl FnOnce(&Pool, Step<'_>)) -> String {
        let (pool, (say, said)) = (Pool::new(1).unwrap(), channel());
        let (start, started) = channel::<()>();
        let mut first = pool.turns(0);
        let turn = first.next();
        first.submit(turn, Box::new(move |_| started.recv().unwrap()));
        queue(&pool, &|turns, turn, name| {
            let say = say.clone();
            turns.submit(turn, Box::new(move |_| say.send(name).unwrap()));
        });
        start.send(()).unwrap();
        drop((first, pool, say));
        said.iter().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn runs_take_turns_step_by_step() {
        let order = made(|pool, step| {
            let (mut a, mut b) = (pool.turns(0), pool.turns(0));
            steps(step, &mut a, ["a0", "a1", "a2"]);
            steps(step, &mut b, ["b0", "b1", "b2"]);
        });
        assert_eq!(order, "a0 b0 a1 b1 a2 b2");
    }

    #[test]
    fn the_oldest_step_goes_first_however_late_its_block_comes() {
        let order = made(|pool, step| {
            let mut a = pool.turns(0);
            let (first, second) = (a.next(), a.next());
            step(&a, second, "a1");
            step(&a, first, "a0");
        });
        assert_eq!(order, "a0 a1");
    }

    #[test]
    fn overdue_steps_go_before_what_others_have_ahead() {
        let order = made(|pool, step| {
            let (mut a, mut late) = (pool.turns(0), pool.turns(2));
            steps(step, &mut a, ["a0", "a1"]);
            steps(step, &mut late, ["l0", "l1", "l2", "l3"]);
        });
        assert_eq!(order, "l0 l1 a0 l2 a1 l3");
    }

    #[test]
    fn whoever_comes_late_again_and_again_keeps_nobody_waiting() {
        let order = made(|pool, step| {
            let mut a = pool.turns(0);
            steps(step, &mut a, ["a0", "a1", "a2"]);
            for _ in 0..EARLY_MAX + 3 {
                steps(step, &mut pool.turns(4), ["late"]);
            }
        });
        let early = order.split(' ').position(|name| name == "a0").unwrap();
        assert_eq!(early as u64, EARLY_MAX, "then in its turn: {order}");
    }

    #[test]
    fn a_run_that_paused_neither_catches_up_nor_falls_behind() {
        let (mut queue, pool) = (Queue::new(), Pool::new(1).unwrap());
        queue.served += 100;
        let mut paused = pool.turns(0);
        let before = paused.next();
        *pool.0.shared.queue() = queue;
        assert_eq!(paused.next(), Turn(FIRST + 100));
        assert_eq!(paused.next(), Turn(FIRST + 101));
        assert!(before < Turn(FIRST + 100));
    }
}
