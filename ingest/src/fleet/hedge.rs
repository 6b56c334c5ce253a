//! When a stream counts as slow, and how much may be asked for twice because of it. Times and rates are arguments.
//!
//! ```text
//! since it owes the oldest step: 0 ── 750 ms: a rival, if it is slow ── +400 ms: another rival, if that one is slow
//!                                              1250 ms: given up, if it trickles and no rival was allowed ── 2 s
//! ```
//! Slow is a matter of comparison: a fleet that is slow as a whole is not asked for everything twice.

use std::time::Duration;

/// A stream that has owed rows of the oldest step for so long may be slow. Three times what a step of 64 images takes on a
/// fifth of a core; less than the silence after which a worker is given up.
pub(super) const HEDGE_AFTER: Duration = Duration::from_millis(750);

/// A rival is replaced by another one if it is slow itself after this. Connecting, opening and one step take 360 ms over six
/// round trips of 60 ms; 750 ms, this, and two such starts stay below [`WAIT_MOST`].
pub(super) const RIVAL_AFTER: Duration = Duration::from_millis(400);

/// A stream that trickles and that no rival may be asked for, because too many race already, is given up after this, as a
/// silent one is after 1.5 s: another worker's start still fits into [`WAIT_MOST`].
pub(super) const GIVE_UP_AFTER: Duration = Duration::from_millis(1250);

/// How long a rank waits for a step at most, as long as a member is fast enough.
const WAIT_MOST: Duration = Duration::from_secs(2);

/// Without another member to compare with, a stream is given up only if its frame would take so long that no network used
/// for training explains it: 100 MB would come at 10 MB/s.
const TRICKLES_FOR: Duration = Duration::from_secs(10);

/// Slow is below one part in this many of what others bring.
const PART: f64 = 4.0;

/// One in this many streams may have a rival at once: each rival takes its worker's CPU from its own rows.
const RACING_PART: usize = 4;

/// One row in this many may be asked for twice: 5 %.
const TWICE_PART: u64 = 20;

/// Steps whose rows may be asked for twice at once: all streams of one step may be slow, and so they may be when they are back
/// after half a second, one and two.
const BURST_STEPS: u64 = 4;

/// A rival is allowed after this long without one, whatever was asked for twice before: rows that no worker brings earn nothing.
const HEDGE_EVERY: Duration = Duration::from_secs(5);

/// How a stream comes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Bytes a second.
    pub(super) rate: f64,
    /// Bytes that the frame under way lacks; `None` between frames: the worker may be making rows.
    pub(super) lacks: Option<u64>,
    /// How long it has owed the step.
    pub(super) owes_for: Duration,
}

/// Rates at which other members bring rows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Others {
    median: Option<f64>,
    best: Option<f64>,
}

/// What is to be thought of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It comes as others do.
    Usual,
    /// It is slow, compared with others: they can do better.
    Behind,
    /// Its frame comes too late. No other stream is much faster, but this machine itself may be.
    Late,
}

impl Others {
    /// Of rates in rising order.
    pub(super) fn of(rates: &[f64]) -> Self {
        let middle = (rates.len().saturating_sub(1)) / 2..rates.len() / 2 + 1;
        let middle = rates.get(middle).filter(|middle| !middle.is_empty());
        let median = middle.map(|middle| middle.iter().sum::<f64>() / middle.len() as f64);
        Self { median, best: rates.last().copied() }
    }

    /// Judges a stream by its rate and what its frame lacks. How long it has owed the step, the caller looks at.
    ///
    /// Where most streams trickle, their median is meaningless; then a frame that would come too late is compared with the best.
    pub(super) fn judge(&self, pace: Pace) -> Judgement {
        let is_behind = |other: Option<f64>| other.is_some_and(|other| is_behind(pace.rate, other));
        let is_late = pace.owes_for.saturating_add(pace.takes()) > WAIT_MOST;
        match () {
            () if is_behind(self.median) || is_late && is_behind(self.best) => Judgement::Behind,
            () if is_late => Judgement::Late,
            () => Judgement::Usual,
        }
    }
}

impl Pace {
    /// Whether rows of the frame are on their way and come so slowly that asking elsewhere is quicker.
    pub(super) fn trickles(self, judgement: Judgement) -> bool {
        let takes = self.takes();
        match judgement {
            Judgement::Usual => false,
            Judgement::Behind => self.owes_for.saturating_add(takes) > WAIT_MOST,
            Judgement::Late => takes > TRICKLES_FOR,
        }
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

    /// Takes what `rows` cost; false if that is not there.
    pub(super) fn spend(&mut self, now: Duration, rows: u64) -> bool {
        let cost = rows * TWICE_PART;
        if cost > self.tokens && self.spent.is_none_or(|at| now < at + HEDGE_EVERY) {
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
        Pace { rate, lacks, owes_for: HEDGE_AFTER }
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
        assert_eq!(others.judge(pace(100.0, Some(124))), Judgement::Usual, "it is there within 2 s");
        assert_eq!(others.judge(pace(100.0, Some(126))), Judgement::Behind);
        assert_eq!(
            others.judge(pace(0.0, None)),
            Judgement::Usual,
            "workers make rows, all but one still do"
        );
    }

    #[test]
    fn without_others_only_this_machine_may_do_better() {
        for others in [vec![], vec![90.0, 399.0]] {
            let others = Others::of(&others);
            assert_eq!(others.judge(pace(100.0, Some(100))), Judgement::Usual);
            assert_eq!(others.judge(pace(100.0, Some(900))), Judgement::Late);
            assert!(!pace(100.0, Some(900)).trickles(Judgement::Late), "9 s more");
            assert!(pace(100.0, Some(1100)).trickles(Judgement::Late), "11 s more");
            assert!(pace(0.0, Some(1)).trickles(Judgement::Late), "for ever");
        }
    }

    #[test]
    fn one_row_in_twenty_is_asked_for_twice() {
        let mut budget = Budget::default();
        budget.earn(100);
        let now = Duration::from_secs(1);
        assert!((0..4).all(|_| budget.spend(now, 100)), "four steps at once");
        assert!(!budget.spend(now, 1));
        for _ in 0..39 {
            budget.earn(100);
        }
        assert!(!budget.spend(now, 196) && budget.spend(now, 195));
        assert_eq!(budget.rows(), 595);
        assert!(!budget.spend(now + HEDGE_EVERY - Duration::from_millis(1), 50), "nothing is left");
        assert!(budget.spend(now + HEDGE_EVERY, 50), "but a rank must not stand still");
        for _ in 0..1000 {
            budget.earn(100);
        }
        assert!(!budget.spend(now, 401) && budget.spend(now, 400), "a quiet hour saves up four steps");
    }

    #[test]
    fn a_quarter_of_the_streams_race() {
        let most: Vec<usize> = [1, 3, 4, 7, 8, 40].map(racing_at_most).to_vec();
        assert_eq!(most, [1, 1, 1, 1, 2, 10]);
    }
}
