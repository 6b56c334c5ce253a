//! When a stream counts as slow, and how many rows may be requested twice because of it. Times and rates are arguments.
//!
//! ```text
//! rows of the oldest step are owed: 0 ── 750 ms: a slow stream's rows are requested from another member
//!                                        1150 ms: from a third one, if the second one is slow, too
//!                                        1500 ms: from this machine, if it may serve ──────────────────── 2 s
//! ```
//! The other member is a rival if one is allowed. Otherwise it replaces a stream that trickles.
//! Slow is relative: a fleet that is slow as a whole is not asked for everything twice.

use std::time::Duration;

/// Time between two looks of the run at its streams. Whatever is due happens up to one tick later.
pub(super) const TICK: Duration = Duration::from_millis(50);

/// A stream that has owed rows of the oldest step for this long may be slow. Three times what a step of 64 images takes on a
/// fifth of a core; less than the silence after which a worker is given up.
pub(super) const HEDGE_AFTER: Duration = Duration::from_millis(750);

/// The member that was asked next is judged after this: a little more than [`START`].
pub(super) const RIVAL_AFTER: Duration = Duration::from_millis(400);

/// Rows that are owed for this long are requested from this machine, if it may serve, whatever the rates are.
pub(super) const HERE_AFTER: Duration = Duration::from_millis(1500);

/// The promise: a rank waits no longer for a worker that trickles, as long as a member is fast enough.
const WAIT_MOST: Duration = Duration::from_secs(2);

/// Time until a new stream is asked for rows: connecting, opening and asking take six round trips of 60 ms.
const START: Duration = Duration::from_millis(360);

/// The longest waits until rows are requested from a member that is fast:
///
/// - from a third member, since the second one trickles as well: 750 + 50 until the second one is asked, 400 + 50 until the
///   third one is, 360 for its start: 1610 ms. 390 ms are left for making and sending the rows.
/// - from this machine, whatever was tried before: 1500 + 50 ms. It needs no start: 450 ms are left for making the rows. It
///   is not asked if its earlier rows show that it takes longer.
const _: () = {
    let third = HEDGE_AFTER.as_millis() + RIVAL_AFTER.as_millis() + 2 * TICK.as_millis() + START.as_millis();
    let here = HERE_AFTER.as_millis() + TICK.as_millis();
    assert!(third == 1610 && here == 1550);
    assert!(third < WAIT_MOST.as_millis() && here < WAIT_MOST.as_millis());
};

/// A frame that is whole within two ticks is on time, whatever happened before.
const SOON: Duration = Duration::from_millis(100);

/// Slow is below one part in this many of what others bring.
const PART: f64 = 4.0;

/// One in this many streams may have a rival at once: each rival takes its worker's CPU from its own rows.
const RACING_PART: usize = 4;

/// One row in this many may be requested twice: 5 %. Rows of a stream that is replaced are not: it is closed.
const TWICE_PART: u64 = 20;

/// Steps whose rows may be requested twice at once: all streams of one step may be slow, and again when they are back after
/// half a second, one and two.
const BURST_STEPS: u64 = 4;

/// A stream without a frame under way is not replaced by another worker, since its worker may be making the rows. After this
/// long without a rival in the run it may have one beyond the 5 %: while no rows come, none are earned.
const HEDGE_EVERY: Duration = Duration::from_secs(5);

/// How a stream comes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Bytes a second.
    pub(super) rate: f64,
    /// Bytes that the frame under way lacks; `None` between frames: the worker may be making rows.
    pub(super) lacks: Option<u64>,
    /// How long its rows are owed, by it and by the streams in whose place or as whose rival it was asked.
    pub(super) waited: Duration,
}

/// Rates at which other members bring rows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Others {
    median: Option<f64>,
    best: Option<f64>,
    /// Another member has brought nothing yet.
    has_untried: bool,
}

/// What is to be thought of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It comes as others do.
    Usual,
    /// It is slow, compared with others: they can do better.
    Behind,
    /// Its frame comes too late. No other stream is much faster, but a member that has brought nothing yet may be.
    Untried,
    /// Its frame comes too late. No other stream is much faster, but this machine itself may be.
    Late,
}

impl Others {
    /// Of rates in rising order.
    pub(super) fn of(rates: &[f64]) -> Self {
        let middle = (rates.len().saturating_sub(1)) / 2..rates.len() / 2 + 1;
        let middle = rates.get(middle).filter(|middle| !middle.is_empty());
        let median = middle.map(|middle| middle.iter().sum::<f64>() / middle.len() as f64);
        Self { median, best: rates.last().copied(), has_untried: false }
    }

    /// The same, with members that have brought nothing yet: they are assumed to be faster than a frame that would come too late.
    pub(super) fn and_untried(self, has_untried: bool) -> Self {
        Self { has_untried, ..self }
    }

    /// Judges a stream by its rate, what its frame lacks, and how long its rows are owed.
    ///
    /// Where most streams trickle, their median is meaningless; then a frame that would come too late is compared with the best:
    /// with its rate, and with the time that it would take. The rate of a member whose rows came in one small frame is measured
    /// too low, since most of that time went into connecting and making them.
    pub(super) fn judge(&self, pace: Pace) -> Judgement {
        let is_behind = |other: Option<f64>| other.is_some_and(|other| is_behind(pace.rate, other));
        let is_late = pace.is_late();
        let is_slower = self.best.is_some_and(|best| pace.is_slower_than_asking(best));
        match () {
            () if is_behind(self.median) || is_late && (is_slower || is_behind(self.best)) => {
                Judgement::Behind
            }
            () if is_late && self.has_untried => Judgement::Untried,
            () if is_late => Judgement::Late,
            () => Judgement::Usual,
        }
    }
}

impl Pace {
    /// Whether rows are under way and come so slowly that asking elsewhere is quicker.
    pub(super) fn trickles(self) -> bool {
        self.lacks.is_some() && self.is_late()
    }

    /// Whether a member that is asked now, and brings rows at `rate`, has twice the time that it needs before this frame is whole.
    fn is_slower_than_asking(self, rate: f64) -> bool {
        let Some(lacks) = self.lacks else { return false };
        let takes = Duration::try_from_secs_f64(2.0 * lacks as f64 / rate).unwrap_or(Duration::MAX);
        START.saturating_add(takes) < self.takes()
    }

    /// Whether a member that takes this long for the rows brings them in time, or before this stream does.
    pub(super) fn is_beaten_by(self, takes: Duration) -> bool {
        takes <= self.left().max(self.takes())
    }

    /// Whether the rows come too late. A frame may take half of the time that is left: the other half is for asking elsewhere.
    fn is_late(self) -> bool {
        match self.lacks {
            None => self.waited > WAIT_MOST,
            Some(_) => self.takes() > (self.left() / 2).max(SOON),
        }
    }

    /// Until a rank would have waited for too long.
    fn left(self) -> Duration {
        WAIT_MOST.saturating_sub(self.waited)
    }

    /// Time until the frame under way is whole; zero between frames.
    fn takes(self) -> Duration {
        let Some(lacks) = self.lacks.filter(|lacks| *lacks > 0) else { return Duration::ZERO };
        Duration::try_from_secs_f64(lacks as f64 / self.rate).unwrap_or(Duration::MAX)
    }
}

/// Whether `rate` is slow, compared with `other`.
pub(super) fn is_behind(rate: f64, other: f64) -> bool {
    rate < other / PART
}

/// How many of `streams` streams may have a rival.
pub(super) fn racing_at_most(streams: usize) -> usize {
    (streams / RACING_PART).max(1)
}

/// What may be asked for twice: a token bucket that rows fill.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// In parts of a row, [`TWICE_PART`] of which are one: each row asked for earns a part.
    tokens: u64,
    most: u64,
    /// When it was spent from last.
    spent: Option<Duration>,
    rows: u64,
}

impl Budget {
    /// A step of `rows` rows is requested.
    pub(super) fn earn(&mut self, rows: u64) {
        let most = self.most.max(rows * TWICE_PART * BURST_STEPS);
        // It begins full: the first step may be slow.
        self.tokens = (self.tokens + (most - self.most) + rows).min(most);
        self.most = most;
    }

    /// Takes what `rows` cost; false if that is not there. `is_stuck`: the stream that owes them brings nothing at all.
    pub(super) fn spend(&mut self, now: Duration, rows: u64, is_stuck: bool) -> bool {
        let cost = rows * TWICE_PART;
        let may_exceed = is_stuck && self.spent.is_some_and(|at| now >= at + HEDGE_EVERY);
        if cost > self.tokens && !may_exceed {
            return false;
        }
        (self.tokens, self.spent) = (self.tokens.saturating_sub(cost), Some(now));
        self.rows += rows;
        true
    }

    /// Rows that were asked for twice.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(rate: f64, lacks: Option<u64>) -> Pace {
        Pace { rate, lacks, waited: HEDGE_AFTER }
    }

    #[test]
    fn slow_is_a_quarter_of_what_the_others_bring() {
        for (others, slow) in [
            (vec![], false),
            (vec![400.0], false),
            (vec![401.0], true),
            (vec![0.0, 0.0, 1000.0], false),
            (vec![0.0, 1000.0], true),
            (vec![0.0, 300.0, 401.0, 500.0, 1e9], true),
            (vec![0.0, 300.0, 400.0, 500.0, 1e9], false),
        ] {
            let expected = if slow { Judgement::Behind } else { Judgement::Usual };
            assert_eq!(Others::of(&others).judge(pace(100.0, None)), expected, "{others:?}");
        }
    }

    #[test]
    fn where_most_trickle_a_late_frame_is_compared_with_the_best() {
        let others = Others::of(&[0.0, 0.0, 0.0, 1000.0]);
        assert_eq!(others.judge(pace(100.0, Some(62))), Judgement::Usual, "half of 1250 ms is enough for it");
        assert_eq!(others.judge(pace(100.0, Some(63))), Judgement::Behind);
        assert_eq!(
            others.judge(pace(0.0, None)),
            Judgement::Usual,
            "workers make rows, all but one still do"
        );
    }

    #[test]
    fn a_late_frame_that_the_best_would_bring_in_half_of_the_time_is_behind() {
        let others = Others::of(&[0.0, 0.0, 0.0, 300.0]);
        assert_eq!(
            others.judge(pace(100.0, Some(107))),
            Judgement::Late,
            "360 ms to start, and 2 × 357 of 1070"
        );
        assert_eq!(others.judge(pace(100.0, Some(109))), Judgement::Behind);
        assert_eq!(others.judge(pace(100.0, Some(62))), Judgement::Usual, "it is not late");
    }

    #[test]
    fn a_member_that_has_brought_nothing_yet_may_do_better_than_a_late_frame() {
        let others = Others::of(&[100.0]).and_untried(true);
        assert_eq!(others.judge(pace(100.0, Some(63))), Judgement::Untried);
        assert_eq!(others.judge(pace(100.0, Some(62))), Judgement::Usual, "it is not late");
        assert_eq!(Others::of(&[100.0]).judge(pace(100.0, Some(63))), Judgement::Late);
    }

    #[test]
    fn without_others_only_this_machine_may_do_better() {
        for others in [vec![], vec![90.0, 399.0]] {
            let others = Others::of(&others);
            assert_eq!(others.judge(pace(100.0, Some(62))), Judgement::Usual);
            assert_eq!(others.judge(pace(100.0, Some(63))), Judgement::Late);
        }
        assert!(pace(0.0, Some(1)).trickles(), "for ever");
        assert!(!pace(0.0, None).trickles(), "its worker makes rows");
    }

    #[test]
    fn a_frame_may_take_half_of_the_time_that_is_left() {
        let judge = |waited, lacks| {
            let pace = Pace { rate: 1000.0, lacks, waited: Duration::from_millis(waited) };
            Others::of(&[1000.0]).judge(pace)
        };
        for (waited, half) in [(1000, 500), (1500, 250), (1900, 100), (5000, 100)] {
            assert_eq!(judge(waited, Some(half)), Judgement::Usual, "after {waited} ms");
            assert_eq!(judge(waited, Some(half + 1)), Judgement::Late, "after {waited} ms");
        }
        assert_eq!(judge(2000, None), Judgement::Usual);
        assert_eq!(judge(2001, None), Judgement::Late);
    }

    #[test]
    fn who_is_quicker_than_the_frame_or_in_time_helps() {
        let second = Duration::from_secs(1);
        let pace = |lacks| Pace { rate: 100.0, lacks, waited: second };
        assert!(pace(None).is_beaten_by(second) && !pace(None).is_beaten_by(2 * second));
        assert!(pace(Some(200)).is_beaten_by(2 * second) && !pace(Some(199)).is_beaten_by(2 * second));
    }

    #[test]
    fn one_row_in_twenty_is_requested_twice() {
        let mut budget = Budget::default();
        budget.earn(100);
        let now = Duration::from_secs(1);
        assert!((0..4).all(|_| budget.spend(now, 100, false)), "four steps at once");
        assert!(!budget.spend(now, 1, false));
        for _ in 0..39 {
            budget.earn(100);
        }
        assert!(!budget.spend(now, 196, false) && budget.spend(now, 195, false));
        assert_eq!(budget.rows(), 595);
        let later = now + HEDGE_EVERY;
        assert!(!budget.spend(later - Duration::from_millis(1), 50, true), "nothing is left");
        assert!(!budget.spend(later, 50, false), "a stream that trickles is replaced instead");
        assert!(budget.spend(later, 50, true), "but a rank must not stand still");
        for _ in 0..1000 {
            budget.earn(100);
        }
        assert!(
            !budget.spend(now, 401, false) && budget.spend(now, 400, false),
            "a quiet hour saves up four steps"
        );
    }

    #[test]
    fn a_quarter_of_the_streams_race() {
        let most: Vec<usize> = [1, 3, 4, 7, 8, 40].map(racing_at_most).to_vec();
        assert_eq!(most, [1, 1, 1, 1, 2, 10]);
    }
}
