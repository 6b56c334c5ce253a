//! The number of objects that a listing has found so far, for progress bars and the log.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Receives the number of objects found so far; called from an I/O thread or a thread of a walk.
pub(crate) type ListingFn = Arc<dyn Fn(u64) + Send + Sync>;

/// A progress bar moves up to ten times a second.
const TOLD_EVERY: Duration = Duration::from_millis(100);
/// A listing that takes longer than this is logged.
const LOGGED_EVERY: Duration = Duration::from_secs(10);

/// Counts what one listing finds, reports it to the caller's function, and logs it every 10 s.
pub(crate) struct Seen {
    what: String,
    count: AtomicU64,
    told: Option<ListingFn>,
    times: Mutex<(Instant, Instant)>,
}

impl Seen {
    /// `what` is the listing with its URI, in printable form.
    pub(crate) fn new(what: &str, told: Option<ListingFn>) -> Arc<Self> {
        let now = Instant::now();
        Arc::new(Self {
            what: what.to_owned(),
            count: AtomicU64::new(0),
            told,
            times: Mutex::new((now, now)),
        })
    }

    /// Counts `n` more.
    pub(crate) fn add(&self, n: u64) {
        let count = self.count.fetch_add(n, Ordering::Relaxed) + n;
        let Ok(mut times) = self.times.try_lock() else { return }; // another thread is reporting
        let (told, logged) = &mut *times;
        if told.elapsed() >= TOLD_EVERY
            && let Some(tell) = &self.told
        {
            *told = Instant::now();
            tell(count);
        }
        if logged.elapsed() >= LOGGED_EVERY {
            *logged = Instant::now();
            tracing::info!("{}: {count} objects so far", self.what);
        }
    }

    /// Restarts the count after a failed attempt.
    pub(crate) fn restart(&self) {
        self.count.store(0, Ordering::Relaxed);
    }

    /// Reports the final number.
    pub(crate) fn finish(&self, count: u64) {
        let _times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tell) = &self.told {
            tell(count);
        }
    }
}

impl fmt::Debug for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seen").field("what", &self.what).field("count", &self.count).finish_non_exhaustive()
    }
}
