//! The queue of the CPU pool: which task starts next, and which threads are woken for it.
//!
//! The model check in `ingest/model` compiles this file with another module `sync`. So it imports the lock and the condition variable
//! from there, and nothing from the crate.

use super::sync::{Condvar, Mutex, MutexGuard};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::PoisonError;

/// Tasks that wait for a thread. All threads of a pool share one.
pub(super) struct TaskQueue<T> {
    queue: Mutex<Queue<T>>,
    woken: Condvar,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ShareId(u64);

pub(super) struct Queue<T> {
    /// One for each pipeline in use: all are looked at for every task.
    pub(super) shares: Vec<Queues<T>>,
    /// Threads that wait for a task.
    idle: usize,
    /// The latest turn served.
    pub(super) served: u64,
    early: Early,
    /// Tasks so far: among those of one turn the first goes first.
    count: u64,
    closed: bool,
}

/// The tasks of one share.
pub(super) struct Queues<T> {
    id: ShareId,
    // Never long: only rows of offered places are queued, so it holds slots × batch rows of each run at most.
    tasks: BinaryHeap<Reverse<Queued<T>>>,
    /// Tasks at work, and the most of them.
    running: usize,
    most: usize,
    /// The share has ended: what it has queued is done, and nothing is added.
    is_left: bool,
}

/// When a step's tasks are due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Turn(pub(super) u64);

struct Queued<T> {
    at: (Turn, u64),
    task: T,
}

/// The turns that one run has taken.
pub(super) struct RunTurns {
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
pub(super) const FIRST: u64 = 1 << 32;

/// Early turns left at most: a worker lost to sixteen ranks with four slots each.
pub(super) const EARLY_MAX: u64 = 64;

impl RunTurns {
    /// The turns of a new run, the first `overdue` of which others' steps wait for.
    pub(super) fn new(overdue: u32) -> Self {
        Self { next: 0, overdue: overdue.into() }
    }

    /// The turn of the run's next step.
    pub(super) fn next<T>(&mut self, queue: &mut Queue<T>) -> Turn {
        let early = if self.overdue > 0 && queue.grant_early() { self.overdue } else { 0 };
        let turn = self.next.max(queue.served - early);
        self.next = turn + 1;
        self.overdue = self.overdue.saturating_sub(1);
        Turn(turn)
    }
}

impl<T> Queue<T> {
    fn new() -> Self {
        let early = Early { left: EARLY_MAX, at: FIRST };
        Self { shares: Vec::new(), idle: 0, served: FIRST, early, count: 0, closed: false }
    }

    /// Adds a share with at most `most` tasks at work at once.
    pub(super) fn add_share(&mut self, most: usize) -> ShareId {
        let id = ShareId(self.count);
        self.count += 1;
        let tasks = BinaryHeap::new();
        self.shares.push(Queues { id, tasks, running: 0, most, is_left: false });
        id
    }

    fn share(&mut self, id: ShareId) -> &mut Queues<T> {
        #[expect(clippy::expect_used, reason = "a share is kept until it is left and its tasks are done")]
        self.shares.iter_mut().find(|share| share.id == id).expect("the share is known")
    }

    /// Ends a share. The tasks that it has queued are done.
    pub(super) fn leave(&mut self, id: ShareId) {
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
    fn due(&mut self) -> Option<&mut Queues<T>> {
        let ready = self.shares.iter_mut().filter(|share| share.running < share.most);
        let due = ready.filter_map(|share| Some((share.tasks.peek()?.0.at, share)));
        due.min_by_key(|(at, _)| *at).map(|(_, share)| share)
    }

    fn pop(&mut self) -> Option<(ShareId, T)> {
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

impl<T> TaskQueue<T> {
    pub(super) fn new() -> Self {
        Self { queue: Mutex::new(Queue::new()), woken: Condvar::new() }
    }

    /// Locks the queue.
    pub(super) fn lock(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner) // every change is whole
    }

    /// Queues a task of the step that has this turn.
    pub(super) fn submit(&self, share: ShareId, turn: Turn, task: T) {
        let mut queue = self.lock();
        let at = (turn, queue.count);
        queue.count += 1;
        queue.share(share).tasks.push(Reverse(Queued { at, task }));
        drop(queue);
        self.woken.notify_one();
    }

    /// Queues tasks of the step that has this turn, all at once.
    ///
    /// A thread that is not idle looks at the queue before it waits, so that no more than the idle ones have to be woken.
    pub(super) fn submit_all(&self, share: ShareId, turn: Turn, tasks: Vec<T>) {
        if tasks.is_empty() {
            return;
        }
        let mut queue = self.lock();
        let (first, woken) = (queue.count, tasks.len().min(queue.idle));
        queue.count += tasks.len() as u64;
        let queued = (first..).zip(tasks).map(|(count, task)| Reverse(Queued { at: (turn, count), task }));
        queue.share(share).tasks.extend(queued);
        drop(queue);
        (0..woken).for_each(|_| self.woken.notify_one());
    }

    /// Takes tasks and runs them with `run`, which must not panic, on this thread until the queue is closed.
    pub(super) fn work(&self, mut run: impl FnMut(T)) {
        let mut done = None;
        while let Some((share, task)) = self.take(done) {
            done = Some(share);
            run(task);
        }
    }

    /// The next task for a thread that has done one of the share `done`; `None` once the pool is closed and nothing is left
    /// that this thread may start. What shares over their bound have queued then, the threads at work on them finish.
    fn take(&self, done: Option<ShareId>) -> Option<(ShareId, T)> {
        let mut queue = self.lock();
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

    /// Closes the queue. The threads do all tasks that are queued, and end.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.woken.notify_all();
    }
}

impl<T> PartialEq for Queued<T> {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl<T> Eq for Queued<T> {}

impl<T> PartialOrd for Queued<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Queued<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.at.cmp(&other.at)
    }
}
