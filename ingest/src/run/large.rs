//! Samples whose chains need more working memory than a CPU thread has (`decoder_memory`): they borrow the rest from the
//! run's budget.
//!
//! ```text
//! task: needs more ─▶ Parked ─▶ driver: room? ─▶ task again, with a Loan ──ends──▶ Event::Returned
//!                                  └─ no: steps ahead are given up, then the youngest running one
//! ```
//! A thread never waits: its task ends, and the driver keeps the row. What a sample needs follows from its bytes, and what it
//! may take from options (`Job::sample_bytes`), so ranks, workers and hedges find the same samples bad.
//!
//! **No deadlock.** Rows get room in plan order, and no step is admitted while a row waits. Let r be the first row that waits,
//! of step s. Every state has an event under way, or the driver acts:
//!
//! - A loan is out, a row is at work, or a block is being fetched: that ends, and its event wakes the driver. Neither needs
//!   memory that it does not have.
//! - Otherwise all rows that are left of all running steps wait. The driver gives up the steps ahead, which hold blocks and
//!   no place, then the running steps after s, youngest first. A step that is given up is admitted again later. Steps before
//!   s have no rows that wait, so they are done.
//! - Then s is alone with the budget. r gets room, or its loan and the blocks of s exceed the budget: it never would, and the
//!   run ends with an error that states the sizes.
//!
//! Each time that the driver gives up steps, r is decoded before they are admitted again, so the run makes progress.

use feedstock_base::{Error, ErrorKind};
use std::any::Any;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Bytes of the budget that a task borrows; dropping the loan gives them back.
pub(crate) struct Loan {
    bytes: u64,
    give_back: Box<dyn Fn(u64) + Send>,
}

impl Loan {
    pub(crate) fn new(bytes: u64, give_back: impl Fn(u64) + Send + 'static) -> Self {
        Self { bytes, give_back: Box::new(give_back) }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Loan {
    fn drop(&mut self) {
        (self.give_back)(self.bytes);
    }
}

type Take = Box<dyn Fn(u64) -> Option<Box<dyn Any + Send>> + Send>;

/// Whose memory a run takes beyond its budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whose {
    /// A worker's, which has as much as the rank would have.
    Worker,
    /// A worker's, which has less.
    SmallWorker,
    /// The rank's own: it serves itself, and workers serve it too.
    Rank,
}

/// Memory beyond the budget of a run that was granted less than its rank requested.
pub(crate) struct Spare {
    /// The bytes that the run may take at most.
    most_bytes: u64,
    whose: Whose,
    taken_bytes: u64,
    take: Take,
    taken: Vec<Box<dyn Any + Send>>,
    shortages: Box<dyn Fn() -> u64 + Send>,
    /// Their number when memory was taken last.
    shortages_before: u64,
    /// Since when a request is repeated.
    waits_since: Option<Instant>,
}

/// How long a run waits for another run of its rank, which gives memory back after a step. If both wait for each other, one ends
/// after this time, and its rows are requested anew.
const SOON: Duration = Duration::from_secs(5);

/// What became of a request for spare memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extension {
    Taken,
    /// Another run of this rank has it now and is asked to give it back: the request is repeated.
    Soon,
    /// Other runs have it now, and keep it.
    Later,
    /// It is more than the run may take.
    Never,
}

impl Spare {
    /// `most_bytes`: what the run may take at most.
    pub(crate) fn new(
        most_bytes: u64,
        whose: Whose,
        take: impl Fn(u64) -> Option<Box<dyn Any + Send>> + Send + 'static,
        shortages: impl Fn() -> u64 + Send + 'static,
    ) -> Self {
        Self {
            most_bytes,
            whose,
            taken_bytes: 0,
            take: Box::new(take),
            taken: Vec::new(),
            shortages: Box::new(shortages),
            shortages_before: 0,
            waits_since: None,
        }
    }

    /// Takes `bytes` until [`give_back`](Self::give_back).
    pub(crate) fn extend(&mut self, bytes: u64, now: Instant) -> Extension {
        if bytes > self.most_bytes - self.taken_bytes {
            return Extension::Never;
        }
        let Some(taken) = (self.take)(bytes) else {
            let since = *self.waits_since.get_or_insert(now);
            let waits = self.whose == Whose::Rank && now.saturating_duration_since(since) < SOON;
            return if waits { Extension::Soon } else { Extension::Later };
        };
        self.waits_since = None;
        self.taken_bytes += bytes;
        self.taken.push(taken);
        self.shortages_before = (self.shortages)();
        Extension::Taken
    }

    /// Whether another run lacks memory while this one has taken some.
    pub(crate) fn is_wanted(&self) -> bool {
        self.taken_bytes > 0 && (self.shortages)() != self.shortages_before
    }

    pub(crate) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }

    pub(crate) fn whose(&self) -> Whose {
        self.whose
    }

    pub(crate) fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    /// Gives all bytes back that were taken.
    pub(crate) fn give_back(&mut self) {
        self.taken.clear();
        self.taken_bytes = 0;
    }
}

/// How much of the budget steps ahead leave to loans: what rows asked for at once, lately. Without it, the blocks of steps
/// ahead would fill the budget after each large sample, and the next one would give them up again.
#[derive(Default)]
pub(crate) struct LoanRoom(u64);

impl LoanRoom {
    /// A finished step takes a 32nd of the room away, so that 100 steps without large samples leave 4 %.
    const STEPS: u64 = 32;

    pub(crate) fn asked(&mut self, bytes: u64) {
        self.0 = self.0.max(bytes);
    }

    pub(crate) fn step_done(&mut self) {
        self.0 -= self.0.div_ceil(Self::STEPS);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.0
    }
}

/// Rows that wait for room, in plan order: by step and row, with the bytes that each asks for.
pub(crate) struct ParkedRows<P>(BTreeMap<(u64, usize), (u64, P)>);

impl<P> Default for ParkedRows<P> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<P> ParkedRows<P> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn add(&mut self, place: (u64, usize), bytes: u64, parked: P) {
        self.0.insert(place, (bytes, parked));
    }

    /// The step of the row that gets room first, the bytes that it asks for, and the row.
    pub(crate) fn first(&self) -> Option<(u64, u64, &P)> {
        self.0.first_key_value().map(|((index, _), (bytes, parked))| (*index, *bytes, parked))
    }

    pub(crate) fn pop(&mut self) -> Option<P> {
        self.0.pop_first().map(|(_, (_, parked))| parked)
    }

    /// What all of them ask for.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.values().map(|(bytes, _)| bytes).sum()
    }

    /// Rows of a step that wait.
    pub(crate) fn count_in(&self, index: u64) -> usize {
        self.0.range((index, 0)..=(index, usize::MAX)).count()
    }

    /// Takes the rows of `index` and of all later steps.
    pub(crate) fn split_off(&mut self, index: u64) -> Vec<P> {
        self.0.split_off(&(index, 0)).into_values().map(|(_, parked)| parked).collect()
    }
}

/// Formats a number of bytes in MiB; below 0.1 MiB, in bytes.
pub(crate) fn shown_bytes(bytes: u64) -> String {
    match bytes as f64 / f64::from(1 << 20) {
        mib if mib < 0.1 => format!("{bytes} B"),
        mib => format!("{mib:.1} MiB"),
    }
}

/// Returns the error that ends a run whose budget cannot hold what a sample borrows along with the blocks of its batch, of
/// `blocks` bytes with their making.
pub(crate) fn no_room(
    kind: ErrorKind,
    name: &str,
    borrowed: u64,
    [decoder_memory, blocks, budget]: [u64; 3],
    advice: &str,
) -> Error {
    Error::new(
        kind,
        format!(
            "{name}: decoding it takes up to {} of memory: {} of decoder_memory, and {} of budget_bytes ({}), of which the blocks \
             of its batch take {}; {}",
            shown_bytes(decoder_memory.saturating_add(borrowed)),
            shown_bytes(decoder_memory),
            shown_bytes(borrowed),
            shown_bytes(budget),
            shown_bytes(blocks),
            advice
        ),
    )
}

/// Returns what to do about an error of this kind that ends a run for lack of memory. `needed_bytes` is what the step needs in all,
/// and `own` is what the run's options can change.
pub(crate) fn advice(kind: ErrorKind, spare: Option<&Spare>, needed_bytes: u64, own: &str) -> String {
    match (kind, spare.map(Spare::whose)) {
        (ErrorKind::Retryable, Some(Whose::Rank)) => {
            "other streams of this process (local=) have the rest of budget_bytes; raise it, or serve from workers alone"
                .to_owned()
        }
        (_, Some(Whose::Rank)) => format!(
            "what this process serves itself (local=) has half of budget_bytes at a time; raise budget_bytes to {} MiB or \
             more, or serve from workers alone",
            needed_bytes.saturating_mul(2).div_ceil(1 << 20)
        ),
        (ErrorKind::Retryable, _) => {
            "other streams have the rest of the worker's memory; raise its --memory-bytes or add workers"
                .to_owned()
        }
        (_, Some(Whose::SmallWorker)) => {
            "the worker's memory is smaller than the rank's budget_bytes; raise its --memory-bytes".to_owned()
        }
        (_, Some(Whose::Worker) | None) => own.to_owned(),
    }
}

/// Returns the error about a sample that needs more than any sample may take.
pub(crate) fn too_large(name: &str, working: u64, most: u64) -> Error {
    Error::bad_sample(format!("{name}: {}, or set on_error=skip", over_limit(working, most)))
}

/// Returns what is wrong with such a sample, and what to do.
pub(crate) fn over_limit(working: u64, most: u64) -> String {
    format!(
        "decoding it takes up to {} of memory, over {} (decoder_memory and half of budget_bytes, or with \
         local= a quarter); raise decoder_memory or budget_bytes",
        shown_bytes(working),
        shown_bytes(most)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    #[test]
    fn advice_names_the_option_that_has_the_memory() {
        let spare = |whose| Spare::new(0, whose, |_| None, || 0);
        let own = "raise budget_bytes";
        let advised = |kind, spare: Option<&Spare>| advice(kind, spare, 3 << 20, own);
        assert_eq!(advised(ErrorKind::BadConfig, None), own);
        assert_eq!(advised(ErrorKind::BadConfig, Some(&spare(Whose::Worker))), own);
        let small = spare(Whose::SmallWorker);
        assert!(advised(ErrorKind::BadConfig, Some(&small)).contains("raise its --memory-bytes"));
        assert!(advised(ErrorKind::Retryable, Some(&small)).contains("other streams"));
        let rank = spare(Whose::Rank);
        assert!(advised(ErrorKind::Retryable, Some(&rank)).contains("other streams of this process"));
        let needs = |bytes| advice(ErrorKind::BadConfig, Some(&rank), bytes, own);
        assert!(needs(3 << 20).contains("budget_bytes to 6 MiB"), "{}", needs(3 << 20));
        assert!(needs((3 << 20) + 1).contains("budget_bytes to 7 MiB"), "twice as much is more than 6 MiB");
    }

    #[test]
    fn spare_memory_is_limited_and_comes_back() {
        let free = Arc::new(AtomicU64::new(60));
        let taker = free.clone();
        let take = move |bytes| {
            let subtract = |free: u64| free.checked_sub(bytes);
            taker.fetch_update(Ordering::SeqCst, Ordering::SeqCst, subtract).ok()?;
            let taker = taker.clone();
            Some(Box::new(Loan::new(bytes, move |bytes| {
                taker.fetch_add(bytes, Ordering::SeqCst);
            })) as Box<dyn Any + Send>)
        };
        let shortages = Arc::new(AtomicU64::new(0));
        let counted = shortages.clone();
        let mut spare = Spare::new(100, Whose::Worker, take, move || counted.load(Ordering::SeqCst));
        let begun = Instant::now();
        assert_eq!(spare.extend(101, begun), Extension::Never);
        assert_eq!(spare.extend(61, begun), Extension::Later);
        assert_eq!(spare.extend(40, begun), Extension::Taken);
        assert_eq!((spare.extend(61, begun), spare.taken_bytes()), (Extension::Never, 40));
        assert!(!spare.is_wanted());
        shortages.store(1, Ordering::SeqCst);
        assert!(spare.is_wanted(), "another run got none");
        spare.give_back();
        assert_eq!((spare.taken_bytes(), free.load(Ordering::SeqCst)), (0, 60));
        assert!(!spare.is_wanted());
        assert_eq!(spare.extend(60, begun), Extension::Taken);
    }

    #[test]
    fn a_run_waits_a_while_for_another_run_of_its_rank() {
        let begun = Instant::now();
        let mut spare = Spare::new(100, Whose::Rank, |_| None, || 0);
        assert_eq!(spare.extend(50, begun), Extension::Soon);
        assert_eq!(spare.extend(50, begun + SOON / 2), Extension::Soon);
        assert_eq!(spare.extend(50, begun + SOON), Extension::Later, "each may wait for the other one");
        assert_eq!(spare.extend(101, begun), Extension::Never);
    }

    #[test]
    fn room_for_loans_is_what_was_asked_for_and_passes() {
        let mut room = LoanRoom::default();
        room.asked(3200);
        room.asked(100);
        assert_eq!(room.bytes(), 3200);
        room.step_done();
        assert_eq!(room.bytes(), 3100);
        (0..100).for_each(|_| room.step_done());
        assert!(room.bytes() < 130, "{}", room.bytes());
        (0..100).for_each(|_| room.step_done());
        assert_eq!(room.bytes(), 0);
    }
}
