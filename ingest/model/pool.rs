//! Model checks of the CPU pool's queue, `ingest/src/pool/queue.rs`.
//!
//! The file is compiled here with the lock and the condition variable of [shuttle], which runs a model under many schedules of its
//! threads, chosen at random from a fixed seed. A model fails if one of its assertions does, or if all of its threads wait (a wake-up
//! was lost). shuttle then prints the schedule. `SHUTTLE_RANDOM_SEED` sets another seed.

#[path = "../src/pool/queue.rs"]
mod queue;

mod sync {
    pub(super) use shuttle::sync::{Condvar, Mutex, MutexGuard};
}

use queue::{RunTurns, ShareId, TaskQueue, Turn};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::{Barrier, Condvar, Mutex};
use shuttle::thread::{self, JoinHandle};
use shuttle::{Config, Runner};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Schedules of each model: every step chooses any thread that can run.
const RANDOM: usize = 5000;

/// Schedules of each model by probabilistic concurrency testing (Burckhardt and others 2010): threads have random priorities,
/// which change at `PCT_DEPTH` - 1 random steps.
const PCT: usize = 5000;
const PCT_DEPTH: usize = 4;

const SEED: u64 = 25;

type Task = Box<dyn FnOnce() + Send>;

fn check(model: fn()) {
    Runner::new(RandomScheduler::new_from_seed(SEED, RANDOM), Config::default()).run(model);
    Runner::new(PctScheduler::new_from_seed(SEED, PCT_DEPTH, PCT), Config::default()).run(model);
}

/// A queue and the threads that work on it.
struct Pool {
    tasks: Arc<TaskQueue<Task>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    fn new(threads: usize) -> Self {
        let mut pool = Self { tasks: Arc::new(TaskQueue::new()), threads: Vec::new() };
        pool.grow(threads);
        pool
    }

    fn grow(&mut self, threads: usize) {
        for _ in 0..threads {
            let tasks = self.tasks.clone();
            self.threads.push(thread::spawn(move || tasks.work(|task| task())));
        }
    }

    fn share(&self, most: usize) -> ShareId {
        self.tasks.lock().add_share(most)
    }

    /// Closes the queue and waits until its threads have ended. All shares must have been left.
    fn end(self) {
        self.tasks.close();
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(self.tasks.lock().shares.is_empty(), "a share stays that was left and whose tasks are done");
    }
}

/// What the tasks of a share have done.
#[derive(Default)]
struct Seen {
    at_work: AtomicUsize,
    /// How often each task ran, by index.
    runs: [AtomicUsize; 8],
}

fn task(seen: &Arc<Seen>, most: usize, index: usize) -> Task {
    let seen = seen.clone();
    Box::new(move || {
        assert!(seen.at_work.fetch_add(1, Ordering::Relaxed) < most, "a share is over its bound");
        thread::yield_now();
        seen.runs[index].fetch_add(1, Ordering::Relaxed);
        seen.at_work.fetch_sub(1, Ordering::Relaxed);
    })
}

/// Three runs, each with a share, queue steps and leave their shares at once. A thread is added meanwhile, and the pool is closed
/// while tasks run.
fn runs_come_and_go() {
    let mut pool = Pool::new(2);
    let runs: Vec<_> = [(1, 0), (2, 2), (usize::MAX, 0)]
        .into_iter()
        .map(|(most, overdue)| {
            let (tasks, share, seen) = (pool.tasks.clone(), pool.share(most), Arc::new(Seen::default()));
            let counted = seen.clone();
            let run = thread::spawn(move || {
                let mut turns = RunTurns::new(overdue);
                let first = turns.next(&mut tasks.lock());
                tasks.submit(share, first, task(&seen, most, 0));
                let second = turns.next(&mut tasks.lock());
                tasks.submit_all(share, second, (1..4).map(|index| task(&seen, most, index)).collect());
                tasks.submit_all(share, first, Vec::new());
                tasks.submit(share, first, task(&seen, most, 4));
                tasks.lock().leave(share);
            });
            (run, counted)
        })
        .collect();
    pool.grow(1);
    let seen: Vec<Arc<Seen>> = runs.into_iter().map(|(run, seen)| (run.join().unwrap(), seen).1).collect();
    pool.end();
    for seen in seen {
        let runs: Vec<usize> = seen.runs.iter().map(|runs| runs.load(Ordering::Relaxed)).collect();
        assert_eq!(runs, [1, 1, 1, 1, 1, 0, 0, 0], "runs of each task");
    }
}

#[test]
fn every_task_runs_once_and_all_threads_end() {
    check(runs_come_and_go);
}

/// Tasks that end when a permit is given, and what is known of them.
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    /// Tasks that may end.
    permits: usize,
    /// By share: tasks queued, and of these the ones that have begun and ended.
    shares: [Counts; 3],
}

#[derive(Default, Clone, Copy)]
struct Counts {
    queued: usize,
    begun: usize,
    ended: usize,
}

impl Gate {
    /// Shares' bounds.
    const MOST: [usize; 3] = [1, 2, usize::MAX];
    const THREADS: usize = 3;

    fn new() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), changed: Condvar::new() })
    }

    /// Returns a task of this share, counted as queued.
    fn task(self: &Arc<Self>, share: usize) -> Task {
        self.state.lock().unwrap().shares[share].queued += 1;
        let gate = self.clone();
        Box::new(move || {
            let mut state = gate.state.lock().unwrap();
            state.shares[share].begun += 1;
            gate.changed.notify_all();
            state = gate.changed.wait_while(state, |state| state.permits == 0).unwrap();
            state.permits -= 1;
            state.shares[share].ended += 1;
            gate.changed.notify_all();
        })
    }

    fn permit(&self, tasks: usize) {
        self.state.lock().unwrap().permits += tasks;
        self.changed.notify_all();
    }

    /// Waits until the number of tasks at work is the largest that the threads and the shares' bounds allow. If threads sleep that
    /// could work, no thread of the model can run: shuttle reports a deadlock.
    fn wait_until_all_work(&self) {
        let state = self.state.lock().unwrap();
        let waits = |state: &mut GateState| {
            let at_work = |share: &Counts| share.begun - share.ended;
            let bounds = state.shares.iter().zip(Self::MOST);
            let may = bounds.map(|(share, most)| {
                assert!(at_work(share) <= most, "a share is over its bound");
                (share.queued - share.ended).min(most)
            });
            let may = may.sum::<usize>().min(Self::THREADS);
            state.permits > 0 || state.shares.iter().map(at_work).sum::<usize>() < may
        };
        drop(self.changed.wait_while(state, waits).unwrap());
    }
}

/// Two threads queue tasks of three shares at random while others end. Whenever they have, as many tasks must be at work as can be.
fn as_many_work_as_can() {
    let (pool, gate) = (Pool::new(Gate::THREADS), Gate::new());
    let shares = Gate::MOST.map(|most| pool.share(most));
    for _ in 0..2 {
        let queue = || {
            let (tasks, gate) = (pool.tasks.clone(), gate.clone());
            thread::spawn(move || {
                for _ in 0..2 {
                    let (share, turn) = (thread_rng().gen_range(0..3), Turn(thread_rng().gen_range(0..4)));
                    match thread_rng().gen_range(0..4) {
                        0 => tasks.submit(shares[share], turn, gate.task(share)),
                        count => {
                            let step = (0..count).map(|_| gate.task(share)).collect();
                            tasks.submit_all(shares[share], turn, step);
                        }
                    }
                }
            })
        };
        let queuing = [queue(), queue()];
        gate.permit(thread_rng().gen_range(0..3));
        queuing.into_iter().for_each(|thread| thread.join().unwrap());
        gate.wait_until_all_work();
    }
    let queued: usize = gate.state.lock().unwrap().shares.iter().map(|share| share.queued).sum();
    gate.permit(queued);
    shares.into_iter().for_each(|share| pool.tasks.lock().leave(share));
    pool.end();
    let state = gate.state.lock().unwrap();
    assert!(state.shares.iter().all(|share| share.begun == share.queued && share.ended == share.queued));
}

#[test]
fn as_many_tasks_are_at_work_as_threads_and_bounds_allow() {
    check(as_many_work_as_can);
}

/// Returns a task that waits until all others of the barrier wait.
fn meeting(met: &Arc<Barrier>) -> Task {
    let met = met.clone();
    Box::new(move || {
        met.wait();
    })
}

/// Tasks of a step wait for each other, so each of them needs a thread. The queue is closed after they have met, since that wakes
/// all threads.
fn a_step_of_tasks_that_wait_for_each_other() {
    const THREADS: usize = 3;
    let pool = Pool::new(THREADS);
    let share = pool.share(THREADS);
    for turn in 0..2 {
        let met = Arc::new(Barrier::new(THREADS + 1));
        pool.tasks.submit_all(share, Turn(turn), (0..THREADS).map(|_| meeting(&met)).collect());
        met.wait();
    }
    pool.tasks.lock().leave(share);
    pool.end();
}

#[test]
fn a_step_that_is_queued_at_once_wakes_a_thread_for_each_task() {
    check(a_step_of_tasks_that_wait_for_each_other);
}

/// The first task of one share waits for the last task of another, which has later turns.
fn a_share_over_its_bound() {
    let pool = Pool::new(2);
    let (full, other) = (pool.share(1), pool.share(usize::MAX));
    let met = Arc::new(Barrier::new(3));
    pool.tasks.submit(full, Turn(0), meeting(&met));
    (1..3).for_each(|turn| pool.tasks.submit(full, Turn(turn), Box::new(thread::yield_now)));
    let step: Vec<Task> = vec![Box::new(thread::yield_now), Box::new(thread::yield_now), meeting(&met)];
    pool.tasks.submit_all(other, Turn(9), step);
    met.wait();
    [full, other].into_iter().for_each(|share| pool.tasks.lock().leave(share));
    pool.end();
}

#[test]
fn a_share_over_its_bound_holds_up_no_other() {
    check(a_share_over_its_bound);
}

/// Two threads queue tasks of a share each, with random turns. Then one of the pool's threads becomes free, the other stays at work.
fn one_thread_is_free() {
    const THREADS: usize = 2;
    let (pool, gate) = (Pool::new(THREADS), Gate::new());
    let shares = [1, usize::MAX, usize::MAX].map(|most| pool.share(most));
    (0..THREADS).for_each(|_| pool.tasks.submit(shares[2], Turn(99), gate.task(2)));
    let state = gate.state.lock().unwrap();
    drop(gate.changed.wait_while(state, |state| state.shares[2].begun < THREADS).unwrap());
    let begun = Arc::new(std::sync::Mutex::new(Vec::new()));
    let queue = |name: usize| {
        let (tasks, begun) = (pool.tasks.clone(), begun.clone());
        thread::spawn(move || {
            for index in 0..3 {
                let turn = thread_rng().gen_range(0..3);
                let begun = begun.clone();
                let task = move || begun.lock().unwrap().push((turn, name, index));
                tasks.submit(shares[name], Turn(turn), Box::new(task));
            }
        })
    };
    let queuing = [queue(0), queue(1)];
    queuing.into_iter().for_each(|thread| thread.join().unwrap());
    let last = Arc::new(Barrier::new(2));
    pool.tasks.submit(shares[1], Turn(100), meeting(&last));
    gate.permit(1);
    last.wait(); // all tasks with earlier turns have begun, on the thread that is free
    let order = begun.lock().unwrap().clone();
    assert_eq!(order.len(), 6);
    assert!(order.is_sorted_by_key(|(turn, ..)| *turn), "a later turn was first: {order:?}");
    for name in [0, 1] {
        let of_one: Vec<_> = order.iter().filter(|(_, by, _)| *by == name).collect();
        assert!(of_one.is_sorted(), "of one turn, the task queued first starts first: {of_one:?}");
    }
    gate.permit(1);
    shares.into_iter().for_each(|share| pool.tasks.lock().leave(share));
    pool.end();
}

#[test]
fn earlier_turns_start_first() {
    check(one_thread_is_free);
}
