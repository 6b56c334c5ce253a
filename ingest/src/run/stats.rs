//! What a run has done and what it waits for.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Counts since a run began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Samples written (bad ones included).
    pub samples: u64,
    /// Samples that could not be used.
    pub bad_samples: u64,
    /// Steps completed.
    pub steps: u64,
    /// Extents (blocks, pieces, or single samples under a full shuffle) fetched.
    pub fetched: u64,
    /// Of these, extents fetched before: the budget was smaller than the shuffle window needs.
    pub refetched: u64,
    /// Encoded bytes fetched.
    pub fetched_bytes: u64,
    /// Time that fetches took, added up over concurrent ones.
    pub fetch_time: Duration,
    /// CPU threads' time in the ops, added up.
    pub ops_time: Duration,
    /// How often a slow worker's rows were asked of another one as well.
    pub hedges: u64,
    /// Samples asked of two workers for that reason: at most 5 % of all, and four steps.
    pub hedged_samples: u64,
    /// Workers whose rows the job requests; 0 without workers.
    pub workers: u64,
    /// Further workers, which stand by: each rank has some 32 already, so more of them would not raise throughput.
    pub spare_workers: u64,
    /// Encoded bytes in memory now.
    pub resident_bytes: u64,
    /// The most encoded bytes that were in memory.
    pub peak_resident_bytes: u64,
}

/// What the oldest unfinished step is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    /// The run has only begun, or is planning.
    #[default]
    Planning,
    /// Blocks are on their way from storage.
    Fetching,
    /// All blocks are here; rows are being decoded.
    Decoding,
    /// Rows are on their way from workers.
    Workers,
    /// No place to write to: every slot is held by the caller.
    NoPlace,
    /// Every step has been delivered.
    Ended,
}

/// What the oldest unfinished step waits for, in words that a person can act on.
///
/// ```
/// use feedstock_ingest::{Stage, Waiting};
///
/// let waiting = Waiting { stage: Stage::Fetching, detail: "step 3, block 7 (train.tar)".into(), since: None };
/// assert_eq!(waiting.to_string(), "waiting for storage: step 3, block 7 (train.tar)");
/// assert_eq!(Waiting::default().to_string(), "planning");
/// ```
#[derive(Debug, Clone, Default)]
pub struct Waiting {
    /// The stage.
    pub stage: Stage,
    /// Which step, block, object and rows.
    pub detail: String,
    /// Since when.
    pub since: Option<Instant>,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stage = match self.stage {
            Stage::Planning => "planning",
            Stage::Fetching => "waiting for storage",
            Stage::Decoding => "decoding",
            Stage::Workers => "waiting for workers",
            Stage::NoPlace => "waiting for a free slot",
            Stage::Ended => "at the end of the plan",
        };
        f.write_str(stage)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        if let Some(since) = self.since {
            write!(f, ", for {:.1} s", since.elapsed().as_secs_f64())?;
        }
        Ok(())
    }
}

/// Counts of a run and what it waits for, as its driver, the pool and the caller share them.
#[derive(Default)]
pub(crate) struct RunStatus {
    pub(crate) stopped: AtomicBool,
    pub(crate) samples: AtomicU64,
    pub(crate) bad_samples: AtomicU64,
    pub(crate) steps: AtomicU64,
    pub(crate) fetched: AtomicU64,
    pub(crate) refetched: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
    pub(crate) fetch_ns: AtomicU64,
    pub(crate) ops_ns: AtomicU64,
    pub(crate) hedges: AtomicU64,
    pub(crate) hedged_samples: AtomicU64,
    pub(crate) workers: AtomicU64,
    pub(crate) spare_workers: AtomicU64,
    pub(crate) resident_bytes: AtomicU64,
    pub(crate) peak_resident_bytes: AtomicU64,
    waiting: Mutex<Waiting>,
}

impl RunStatus {
    pub(crate) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(crate) fn set_resident(&self, bytes: u64) {
        self.resident_bytes.store(bytes, Ordering::Relaxed);
        self.peak_resident_bytes.fetch_max(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_waiting(&self, waiting: Waiting) {
        *self.lock() = waiting;
    }

    pub(crate) fn waiting(&self) -> Waiting {
        self.lock().clone()
    }

    pub(crate) fn stats(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            samples: get(&self.samples),
            bad_samples: get(&self.bad_samples),
            steps: get(&self.steps),
            fetched: get(&self.fetched),
            refetched: get(&self.refetched),
            fetched_bytes: get(&self.fetched_bytes),
            fetch_time: Duration::from_nanos(get(&self.fetch_ns)),
            ops_time: Duration::from_nanos(get(&self.ops_ns)),
            hedges: get(&self.hedges),
            hedged_samples: get(&self.hedged_samples),
            workers: get(&self.workers),
            spare_workers: get(&self.spare_workers),
            resident_bytes: get(&self.resident_bytes),
            peak_resident_bytes: get(&self.peak_resident_bytes),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner) // a whole value is stored at once
    }
}

/// Adds a span of time to a nanosecond counter.
pub(crate) fn add_time(counter: &AtomicU64, since: Instant) {
    let ns = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
    counter.fetch_add(ns, Ordering::Relaxed);
}
