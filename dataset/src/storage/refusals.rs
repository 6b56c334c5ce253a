//! Whether a store's refusals depend on the rate of requests.
//!
//! A store that refuses because of a limit answers more of the requests when fewer come: all processes that share the limit are
//! refused at once and slow down together. A store that refuses at random does not. So while a process lowers its rate, it counts
//! what was refused at a high and at a low rate, and compares. A pure state machine.

/// What is below this part of the rate at which the descent began is low.
const LOW: f64 = 0.25;
/// Requests at each of the two rates that a comparison needs.
pub(super) const SAMPLE_MIN: u32 = 24;
/// Refused requests that a comparison needs: few of them come together by chance.
const REFUSED_MIN: u32 = 8;
/// A share of refusals below this is what a limit that many processes share causes while each of them asks now and then whether
/// the limit is still there.
const SHARE_MIN: f64 = 1.0 / 1600.0;
/// A store that refuses more than this share is treated as one that has a limit.
const SHARE_MAX: f64 = 0.6;
/// Two shares agree if they differ by no more than this number of standard errors.
const ERRORS_MAX: f64 = 1.5;
/// The refusals of a trial of random refusals, about.
const TRIAL_REFUSALS: f64 = 20.0;
/// Refusals are no longer random if there are this many times as many.
const MORE: f64 = 3.0;

/// Requests, and how many of them were refused.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Counts {
    pub(super) answered: u32,
    pub(super) refused: u32,
}

impl Counts {
    pub(super) fn total(self) -> u32 {
        self.answered.saturating_add(self.refused)
    }

    /// The share of refusals.
    pub(super) fn share(self) -> f64 {
        f64::from(self.refused) / f64::from(self.total().max(1))
    }

    /// Whether both may have the same share of refusals.
    fn agrees_with(self, other: Self) -> bool {
        let (one, two) = (f64::from(self.total()), f64::from(other.total()));
        let all = f64::from(self.refused.saturating_add(other.refused)) / (one + two);
        let error = (all * (1.0 - all) * (1.0 / one + 1.0 / two)).sqrt();
        (self.share() - other.share()).abs() <= ERRORS_MAX * error
    }
}

/// What came at one of the two rates.
#[derive(Debug, Default, Clone, Copy)]
struct Sample {
    counts: Counts,
    seconds: f64,
}

impl Sample {
    fn add(&mut self, counts: Counts, seconds: f64) {
        self.counts.answered = self.counts.answered.saturating_add(counts.answered);
        self.counts.refused = self.counts.refused.saturating_add(counts.refused);
        self.seconds += seconds;
    }

    fn rate(&self) -> f64 {
        f64::from(self.counts.total()) / self.seconds
    }
}

/// Rates that were lowered one after the other, and what was refused meanwhile.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Descent {
    /// The rate at which it began.
    pub(super) from: f64,
    high: Sample,
    low: Sample,
}

impl Descent {
    /// Adds what came at `rate`.
    pub(super) fn add(&mut self, rate: f64, counts: Counts, seconds: f64) {
        if rate >= self.from {
            *self = Self { from: rate, ..Self::default() };
        }
        match self.is_low(rate) {
            true => self.low.add(counts, seconds),
            false => self.high.add(counts, seconds),
        }
    }

    /// Whether `rate` should be kept until a sample of it is complete.
    pub(super) fn needs_sample_at(&self, rate: f64) -> bool {
        self.high.counts.total() < SAMPLE_MIN && !self.is_low(rate)
    }

    /// Returns the share of refusals if it does not depend on the rate. A sample that shows a limit is dropped, so that the next
    /// one shows what is so then.
    pub(super) fn random_share(&mut self) -> Option<f64> {
        let (high, low) = (self.high.counts, self.low.counts);
        if high.total() < SAMPLE_MIN || low.total() < SAMPLE_MIN || low.refused < REFUSED_MIN {
            return None;
        }
        let (slower, share) = (self.high.rate() / self.low.rate(), low.share());
        // The answers that a limit allows are as many at both rates.
        let by_limit = (1.0 - (1.0 - high.share()) * slower).max(0.0);
        let is_random = slower >= 2.0
            && (SHARE_MIN..=SHARE_MAX).contains(&share)
            && high.agrees_with(low)
            && share > f64::midpoint(high.share(), by_limit);
        self.low = Sample::default();
        is_random.then_some(share)
    }

    fn is_low(&self, rate: f64) -> bool {
        rate <= LOW * self.from
    }
}

/// Refusals at random: whether they stay so.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    share: f64,
    pub(super) counts: Counts,
}

/// What a trial shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// The share of refusals is the same, so far.
    Same,
    /// More are refused: they are not random, or another limit was met.
    More,
    /// None is refused any more.
    None,
}

impl Trial {
    pub(super) fn new(share: f64) -> Self {
        Self { share, counts: Counts::default() }
    }

    /// Looks at what was counted so far, and begins anew if that was a whole trial.
    pub(super) fn look(&mut self) -> Finding {
        let (total, refused) = (f64::from(self.counts.total()), f64::from(self.counts.refused));
        let is_whole = total >= (TRIAL_REFUSALS / self.share).max(SAMPLE_MIN.into());
        let half_of_the_answers = f64::midpoint(1.0, self.share);
        let is_more = match MORE * self.share < half_of_the_answers {
            true => self.counts.refused >= REFUSED_MIN && refused > MORE * self.share * total,
            false => is_whole && refused > half_of_the_answers * total,
        };
        let is_over = is_whole && self.counts.refused == 0;
        if is_whole {
            self.counts = Counts::default();
        }
        match () {
            () if is_more => Finding::More,
            () if is_over => Finding::None,
            () => Finding::Same,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(answered: u32, refused: u32) -> Counts {
        Counts { answered, refused }
    }

    /// What is found after 100 requests a second, and then 20.
    fn found(high: Counts, low: Counts) -> Option<f64> {
        let mut descent = Descent::default();
        descent.add(100.0, high, f64::from(high.total()) / 100.0);
        descent.add(20.0, low, f64::from(low.total()) / 20.0);
        descent.random_share()
    }

    #[test]
    fn refusals_that_a_lower_rate_does_not_change_are_random() {
        assert_eq!(found(counts(20, 10), counts(20, 10)), Some(1.0 / 3.0));
        assert_eq!(found(counts(990, 10), counts(990, 10)), Some(0.01));
        assert_eq!(found(counts(20, 10), counts(30, 8)), Some(8.0 / 38.0), "within the error");
    }

    #[test]
    fn refusals_that_a_lower_rate_changes_come_from_a_limit() {
        assert_eq!(found(counts(2, 28), counts(10, 20)), None, "as many answers a second as before");
        assert_eq!(found(counts(15, 15), counts(300, 8)), None);
        assert_eq!(found(counts(19_991, 9), counts(19_991, 9)), None, "what asking for the limit costs");
        assert_eq!(found(counts(3, 27), counts(3, 27)), None, "an outage");
    }

    #[test]
    fn small_samples_show_nothing() {
        assert_eq!(found(counts(4, 2), counts(20, 10)), None);
        assert_eq!(found(counts(20, 10), counts(4, 2)), None);
        assert_eq!(found(counts(99, 1), counts(99, 1)), None);
    }

    #[test]
    fn a_sample_that_shows_a_limit_is_dropped() {
        let mut descent = Descent::default();
        descent.add(100.0, counts(20, 10), 0.3);
        descent.add(20.0, counts(60, 8), 3.4);
        assert_eq!(descent.random_share(), None);
        descent.add(20.0, counts(20, 10), 1.5);
        assert_eq!(descent.random_share(), Some(1.0 / 3.0));
    }

    #[test]
    fn a_trial_ends_when_more_is_refused_or_nothing() {
        let look = |share: f64, answered: u32, refused: u32| {
            Trial { counts: counts(answered, refused), ..Trial::new(share) }.look()
        };
        assert_eq!(look(0.01, 100, 7), Finding::Same, "too few");
        assert_eq!(look(0.01, 100, 8), Finding::More);
        assert_eq!(look(0.01, 1000, 20), Finding::Same);
        assert_eq!(look(0.01, 1999, 0), Finding::Same);
        assert_eq!(look(0.01, 2000, 0), Finding::None);
        assert_eq!(look(0.5, 5, 34), Finding::Same, "not whole");
        assert_eq!(look(0.5, 5, 35), Finding::More);
    }
}
