//! The CPU threads: one task a sample, first come first served, so that the oldest step finishes first.
//!
//! A crossbeam channel hands out a task in about 0.3 µs; a picture takes a thousand.

use crate::{Error, ErrorKind, Result};
use crossbeam_channel::{Receiver, Sender, unbounded};
use feedstock_ops::Scratch;
use std::sync::Arc;
use std::thread::JoinHandle;

/// Work for one thread; its [`Scratch`] is that thread's own.
pub(crate) type Task = Box<dyn FnOnce(&mut Scratch) + Send>;

/// Threads that run tasks; clones share them, and the last one to go joins them.
#[derive(Clone)]
pub(crate) struct Pool(Arc<Threads>);

struct Threads {
    // Unbounded, but never long: only rows of offered places are sent, so it holds slots × batch rows at most.
    // `None` only while dropping.
    tasks: Option<Sender<Task>>,
    joins: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts `threads` threads.
    pub(crate) fn new(threads: usize) -> Result<Self> {
        assert!(threads > 0, "a pool needs a thread");
        let (tasks, queue) = unbounded::<Task>();
        let mut joins = Vec::with_capacity(threads);
        for index in 0..threads {
            let queue = queue.clone();
            let thread = std::thread::Builder::new().name(format!("feedstock-cpu-{index}"));
            let join = thread.spawn(move || work(&queue)).map_err(|e| {
                Error::new(ErrorKind::Retryable, format!("cannot start CPU thread {index}: {e}"))
            })?;
            joins.push(join);
        }
        Ok(Self(Arc::new(Threads { tasks: Some(tasks), joins })))
    }

    pub(crate) fn threads(&self) -> usize {
        self.0.joins.len()
    }

    pub(crate) fn submit(&self, task: Task) {
        let sent = self.0.tasks.as_ref().is_some_and(|tasks| tasks.send(task).is_ok());
        assert!(sent, "the threads outlive every pool handle");
    }
}

fn work(queue: &Receiver<Task>) {
    let mut scratch = Scratch::new();
    while let Ok(task) = queue.recv() {
        let run = std::panic::AssertUnwindSafe(|| task(&mut scratch));
        if std::panic::catch_unwind(run).is_err() {
            scratch = Scratch::new(); // the row's guard has reported it; the buffers may be half written
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        drop(self.tasks.take()); // the threads drain their queue and end
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
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn runs_every_task_survives_panics_and_ends() {
        let done = Arc::new(AtomicUsize::new(0));
        let pool = Pool::new(3).unwrap();
        for i in 0..1000 {
            let done = done.clone();
            pool.submit(Box::new(move |_| {
                assert!(i != 500, "one task panics, on purpose");
                done.fetch_add(1, Ordering::Relaxed);
            }));
        }
        drop(pool); // drains, then joins
        assert_eq!(done.load(Ordering::Relaxed), 999);
    }
}
