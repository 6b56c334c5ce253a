//! What is known of a member: whether it is up, and what its failures mean for the run.
//!
//! A member *refuses* where it answers with an error that asking again does not change: a damaged page, a removed file, wrong
//! credentials. One that refuses may be wrong about it, so the others are asked. A member is *down* where a probe got no
//! answer. A run whose members all refuse or are down has no hope, with one exception: a member that is down, but has served
//! before, while none of those that refuse has. What is wrong is then theirs, and the one that is down may come back.

use crate::wire::{Capacity, WorkerStatus};
use crate::{Error, ErrorKind};
use std::time::Duration;

/// A member that failed is asked again after this, then twice as long, up to [`BACKOFF_MAX`].
const BACKOFF: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(15);

/// A member that opens the data set for longer than this keeps no place from one on standby.
const OPENS_WITHIN: Duration = Duration::from_secs(60);

/// After this long without a failure, the earlier failures of a member no longer count.
const FORGIVEN_AFTER: Duration = Duration::from_secs(30);

/// Whether a member has the data set of this run open, as far as this rank has heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Readiness {
    /// It has not said. It is given rows if no member is ready, and opens the data set for them.
    #[default]
    Unknown,
    /// It is on standby and gets nothing to do: the job has workers enough, or it has just been listed.
    Standby,
    /// It opens the data set, and gets nothing to do until then.
    Cold,
    /// It has said that it has the data set open.
    Ready,
}

/// What a worker reports of itself, in its greeting or when it is asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Reported {
    /// Which process it is: another one after a restart.
    pub(crate) instance: String,
    /// `None`: it is of a release that publishes none.
    pub(crate) capacity: Option<Capacity>,
    /// It is about to end. A greeting does not state that.
    pub(crate) is_draining: bool,
}

impl From<WorkerStatus> for Reported {
    fn from(status: WorkerStatus) -> Self {
        let capacity = Capacity { units: status.capacity, generation: status.capacity_generation };
        Self {
            instance: status.instance,
            capacity: (capacity.units > 0).then_some(capacity),
            is_draining: status.draining,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Member {
    /// Until when it is left alone; `None`: it is up.
    suspect: Option<Duration>,
    /// It is being probed.
    probing: bool,
    readiness: Readiness,
    /// Since when it is asked to open the data set, apart from any stream.
    warming: Option<Duration>,
    /// Its process has reported that it is about to end.
    drains: bool,
    /// It is not listed any more.
    is_unlisted: bool,
    failures: u32,
    /// When the last of them was.
    failed: Duration,
    /// Why it is, or was last, left alone.
    error: Option<Error>,
    refused: Option<Refused>,
    /// When a probe got no answer, if none has since.
    down: Option<Duration>,
    /// It has brought rows in this run.
    has_served: bool,
    /// Bytes a second of its stream while that owed rows last; `None` while it is left alone.
    rate: Option<f64>,
    /// It was left alone because it was slow, and has brought nothing in good time since.
    was_slow: bool,
    /// What one row takes it, on average of what it brought lately.
    row_time: Option<Duration>,
    /// What it published last of its capacity.
    capacity: Option<Capacity>,
    /// When it was last asked how it is, apart from any stream.
    asked: Option<Duration>,
    /// It did not answer that.
    is_doubted: bool,
    /// Which process it is, as far as it has reported.
    instance: Option<String>,
}

/// A refusal, and when it was.
#[derive(Debug)]
struct Refused {
    error: Error,
    at: Duration,
    /// Rows of streams up to this number do not take it back: they were asked for before.
    streams: u64,
}

impl Member {
    /// A member that gets nothing to do yet.
    pub(super) fn standing_by() -> Self {
        Self { readiness: Readiness::Standby, ..Self::default() }
    }

    /// Whether rows may be requested from it.
    pub(super) fn is_up(&self) -> bool {
        self.is_there() && matches!(self.readiness, Readiness::Unknown | Readiness::Ready)
    }

    /// Whether it is not left alone, be it ready or not.
    pub(super) fn is_there(&self) -> bool {
        self.suspect.is_none()
    }

    /// Whether it is there and up, and has said that it has the data set open.
    pub(super) fn is_ready(&self) -> bool {
        self.is_there() && self.has_opened()
    }

    /// Whether rows may be requested from it although it has not said that it has the data set open.
    pub(super) fn is_unknown(&self) -> bool {
        self.is_there() && self.readiness == Readiness::Unknown
    }

    /// Whether it is on standby.
    pub(super) fn is_standby(&self) -> bool {
        self.is_there() && self.readiness == Readiness::Standby
    }

    /// Whether it opens the data set, and gets nothing to do until then.
    pub(super) fn is_cold(&self) -> bool {
        self.readiness == Readiness::Cold
    }

    /// Whether it has had the data set open, so that opening another stream takes no time.
    pub(super) fn has_opened(&self) -> bool {
        self.readiness == Readiness::Ready
    }

    /// It gets nothing to do.
    pub(super) fn stands_by(&mut self) {
        self.readiness = Readiness::Standby;
    }

    /// Rows may be requested from it, though whether it is ready is not known.
    pub(super) fn may_be_asked(&mut self) {
        self.readiness = Readiness::Unknown;
    }

    /// It gets nothing to do until it has the data set open.
    pub(super) fn cools(&mut self) {
        (self.suspect, self.probing, self.readiness) = (None, false, Readiness::Cold);
    }

    /// It is asked to open the data set. False if it is asked already.
    pub(super) fn warms(&mut self, now: Duration) -> bool {
        let is_new = self.warming.is_none();
        self.warming = self.warming.or(Some(now));
        is_new
    }

    /// Since when it is asked to open the data set, apart from any stream.
    pub(super) fn warming(&self) -> Option<Duration> {
        self.warming
    }

    /// Whether it opens the data set for so long that one on standby may take its place.
    pub(super) fn is_overdue(&self, now: Duration) -> bool {
        self.is_cold() && self.warming.is_some_and(|since| now >= since + OPENS_WITHIN)
    }

    /// What is known to be wrong with it.
    pub(super) fn error(&self) -> Option<&Error> {
        self.error.as_ref()
    }

    /// Whether it is about to go. It serves on until others can.
    pub(super) fn is_going(&self) -> bool {
        self.drains || self.is_unlisted
    }

    /// Whether it is ready, and not about to go.
    pub(super) fn stays(&self) -> bool {
        self.is_ready() && !self.is_going()
    }

    /// Its process has reported that it is about to end.
    pub(super) fn drains(&mut self) {
        self.drains = true;
    }

    /// Whether it is not listed any more.
    pub(super) fn is_unlisted(&self) -> bool {
        self.is_unlisted
    }

    pub(super) fn set_listed(&mut self, is_listed: bool) {
        self.is_unlisted = !is_listed;
    }

    /// A stream waits until it has the data set open, again if it had it open before.
    pub(super) fn is_opening(&mut self) {
        if self.readiness == Readiness::Ready {
            self.readiness = Readiness::Unknown;
        }
    }

    /// It has the data set open. An earlier stream of one that gets nothing to do may report that, which changes nothing.
    pub(super) fn opened(&mut self) {
        self.is_doubted = false;
        if self.readiness == Readiness::Unknown {
            self.readiness = Readiness::Ready;
        }
    }

    /// It was asked to open the data set, and has it open.
    pub(super) fn warmed(&mut self) {
        self.is_back();
        (self.readiness, self.warming) = (Readiness::Ready, None);
    }

    /// The rate at which its rows come, or came last.
    pub(super) fn rate(&self) -> Option<f64> {
        self.rate
    }

    pub(super) fn set_rate(&mut self, rate: f64) {
        self.rate = Some(rate).filter(|_| self.is_up());
    }

    /// Whether it was slow when it was asked last. It gets steps again once it answers, but none that a rank waits for.
    pub(super) fn was_slow(&self) -> bool {
        self.was_slow
    }

    /// It is slower than others, or not any more.
    pub(super) fn set_slow(&mut self, is_slow: bool) {
        self.was_slow = is_slow;
    }

    /// What one row takes it; `None` before it has brought any.
    pub(super) fn row_time(&self) -> Option<Duration> {
        self.row_time
    }

    /// It has brought `rows` rows in this time.
    pub(super) fn took(&mut self, time: Duration, rows: u64) {
        let Some(row) = u32::try_from(rows).ok().and_then(|rows| time.checked_div(rows)) else { return };
        self.row_time = Some(self.row_time.map_or(row, |before| (before + row) / 2));
    }

    /// What it published of its capacity; `None`: nothing yet.
    pub(super) fn capacity(&self) -> Option<Capacity> {
        self.capacity
    }

    /// It has published this, unless that was before what is known.
    pub(super) fn published(&mut self, capacity: Capacity) {
        let is_newer = |known: Capacity| capacity.generation >= known.generation;
        if self.capacity.is_none_or(is_newer) {
            self.capacity = Some(capacity);
        }
    }

    /// It has reported which process it is. After a restart, that one has to open the data set first, and its clock may be slow.
    pub(super) fn is_process(&mut self, instance: &str) {
        let before = self.instance.replace(instance.to_owned());
        if before.is_some_and(|before| before != instance) {
            self.is_another();
        }
    }

    /// Another process is at its address, or will be.
    fn is_another(&mut self) {
        if self.readiness == Readiness::Ready {
            self.readiness = Readiness::Unknown;
        }
        self.drains = false;
        self.capacity = self.capacity.map(|capacity| Capacity { generation: 0, ..capacity });
    }

    /// When it was last asked how it is, apart from any stream.
    pub(super) fn asked(&self) -> Option<Duration> {
        self.asked
    }

    /// It is asked how it is.
    pub(super) fn ask(&mut self, now: Duration) {
        self.asked = Some(now);
    }

    /// It answered that, or not. Returns whether it is down: it did not answer twice in a row. After the first time, it is asked again
    /// in the next round.
    pub(super) fn answered(&mut self, answers: bool) -> bool {
        let is_down = !answers && self.is_doubted;
        self.is_doubted = !answers && !is_down;
        if self.is_doubted {
            self.asked = None;
        }
        is_down
    }

    /// It ends once it has brought what it owes, and another process may be at its address later.
    pub(super) fn departs(&mut self, now: Duration) {
        self.is_another();
        self.suspect(now, None);
    }

    /// It is left alone for a while.
    pub(super) fn suspect(&mut self, now: Duration, error: Option<Error>) {
        self.rate = None;
        let backoff = BACKOFF.saturating_mul(1 << self.failures.min(10)).min(BACKOFF_MAX);
        (self.failures, self.failed) = (self.failures + 1, now);
        self.suspect = Some(now + backoff);
        self.error = error.or(self.error.take());
    }

    /// One of its streams, of which `streams` were opened so far, has ended before its time. Returns whether it refuses.
    pub(super) fn lost(&mut self, now: Duration, error: Error, streams: u64) -> bool {
        let refuses = error.kind() != ErrorKind::Retryable;
        (self.readiness, self.warming, self.is_doubted) = (Readiness::Unknown, None, false);
        self.is_another(); // it may be, next time
        if refuses {
            self.down = None;
            self.refused = Some(Refused { error: error.clone(), at: now, streams });
        }
        self.suspect(now, Some(error));
        refuses
    }

    /// It has brought rows on the stream of this number.
    pub(super) fn brought(&mut self, now: Duration, stream: u64) {
        (self.error, self.down, self.has_served, self.is_doubted) = (None, None, true, false);
        if self.refused.as_ref().is_some_and(|refused| stream >= refused.streams) {
            self.refused = None;
        }
        if now >= self.failed + FORGIVEN_AFTER {
            self.failures = 0;
        }
    }

    /// Whether it is time to see if it is there again.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        !self.probing && self.suspect.is_some_and(|until| until <= now)
    }

    pub(super) fn probing(&mut self) {
        self.probing = true;
    }

    /// It answered, or needs no asking.
    pub(super) fn is_back(&mut self) {
        (self.suspect, self.probing, self.error, self.down) = (None, false, None, None);
        (self.drains, self.is_doubted) = (false, false);
    }

    /// A probe failed.
    pub(super) fn is_away(&mut self, now: Duration, error: Error) {
        self.probing = false;
        self.is_another(); // it may be, next time
        match error.kind() {
            ErrorKind::Retryable => self.down = Some(now),
            // It answers, but rejects the connection.
            _ => self.refused = Some(Refused { error: error.clone(), at: now, streams: 0 }),
        }
        self.suspect(now, Some(error));
    }

    /// Probes it at the next opportunity: whether it is there decides whether the run has hope.
    pub(super) fn hurry(&mut self, now: Duration) {
        if self.refused.is_none() && self.suspect.is_some() {
            self.suspect = Some(now);
        }
    }
}

/// Whether no member serves: each is left alone or refuses.
pub(super) fn none_serves<'a>(mut members: impl Iterator<Item = &'a Member>) -> bool {
    members.all(|member| member.refused.is_some() || member.suspect.is_some())
}

/// Why none of the members will ever serve.
pub(super) fn hopeless<'a>(mut members: impl Iterator<Item = &'a Member> + Clone) -> Option<&'a Error> {
    let mut refusals = members.clone().filter_map(|member| Some((member, member.refused.as_ref()?)));
    let (_, first) = refusals.clone().min_by_key(|(_, refused)| refused.at)?;
    let one_has_served = refusals.any(|(member, _)| member.has_served);
    let is_lost = |member: &Member| {
        let is_down = member.down.is_some_and(|at| at >= first.at);
        !member.is_cold() && member.refused.is_some() || is_down && (one_has_served || !member.has_served)
    };
    members.all(is_lost).then_some(&first.error)
}
