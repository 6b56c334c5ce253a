//! The rate of requests to a store that has asked for a lower one.
//!
//! A limit on concurrent requests ([`Aimd`](super::aimd::Aimd)) cannot go below one at a time: 32 processes with one request of
//! 30 ms each still send 1,000 a second, and a store that serves 200 refuses most of them. So a process that was refused also
//! limits its rate, to [`PART`] of the rate at which it was answered. The rate then rises linearly, and reaches the old one after a
//! *climb*; then it rises ever faster, 4.8 times the old one after the second climb, and 500 times after the third.
//!
//! Each climb costs a refusal, since processes do not know each other. So the longer a limit has held, the longer climbs are, up to
//! [`CLIMB_REQUESTS`] requests or [`CLIMB_MAX_S`]: 32 processes at a store's limit of 200 requests a second are refused less than
//! 0.1 % of them after the first minute. Where a process was served well for a minute before, climbs stay short for ten minutes,
//! since it may be a short fault.
//!
//! ```text
//! Free ── refused ─▶ Limited ── as much is refused at a quarter of the rate ─▶ Random
//!                       ▲ ▲───────────── more is refused ───────────────────────┘ │
//!  ▲                    └ refused                                                 │
//!  └──────────────────────────────────── nothing is refused any more ─────────────┘
//! ```
//! Refusals at random do not lower the rate: it would fall for ever. [`refusals`](super::refusals) distinguishes them from a limit.
//! A pure state machine: times are arguments.

use super::refusals::{Counts, Descent, Finding, SAMPLE_MIN, Trial};
use std::time::Duration;

/// The part of the rate that remains after a refusal.
const PART: f64 = 0.8;
/// The shortest climb, in seconds: the store's limit is not known yet.
const CLIMB_MIN_S: f64 = 2.0;
/// The longest climb of a process that sends many requests, and of one that may have met a short fault.
const CLIMB_USUAL_S: f64 = 15.0;
const CLIMB_MAX_S: f64 = 600.0;
/// A climb takes as long as this many requests, of which about one is refused where many processes share a limit.
const CLIMB_REQUESTS: f64 = 4000.0;
/// A climb takes at most this many times as long as the limit has held.
const CLIMB_PART: f64 = 20.0;
/// After a climb, the rate rises this much faster.
const RISE: f64 = 1.5;
/// The rate falls to no less than this part at once.
const FALL_MAX: f64 = 0.5;
/// A first refusal lowers the rate to no less than this, in requests per second: a store is quickly refused again if it serves
/// less, and a process that has just begun has few answers to go by.
const FIRST_MIN: f64 = 100.0;
/// The lowest rate, in requests per second.
const RATE_MIN: f64 = 5.0;
/// Requests at one rate before it is lowered again: one refusal may be chance.
const LEVEL_MIN: u32 = 8;
/// This many refusals are enough if they are this share.
const MOST_MIN: u32 = 4;
const MOST: f64 = 0.75;
/// After this long without a refusal, a first one may be a short fault.
const WELL_SERVED: Duration = Duration::from_secs(60);
/// A fault that lasts longer is not short.
const FAULT_MAX_S: f64 = 600.0;
/// After random refusals that were none, this time passes before any are accepted; four times as long after each further mistake.
const WARY: Duration = Duration::from_secs(60);
const MISTAKES_MAX: u32 = 5;

/// When the next request may start.
#[derive(Debug, Default)]
pub(super) struct RequestRate {
    state: State,
    /// No request starts before.
    next: Duration,
    answers: Recent,
    /// When the first request was answered.
    first_answer: Option<Duration>,
    wary_until: Duration,
    mistakes: u32,
}

#[derive(Debug, Default)]
enum State {
    /// The store has not asked for a lower rate.
    #[default]
    Free,
    Limited(Limited),
    Random(Random),
}

/// The store refuses what is above a limit.
#[derive(Debug, Clone, Copy)]
struct Limited {
    /// When the limit was met first.
    began: Duration,
    /// The rate before, if the process was well served.
    usual: Option<f64>,
    /// The rate at the last refusal that lowered it, in requests per second.
    rate: f64,
    at: Duration,
    /// Requests that started since.
    counts: Counts,
    descent: Descent,
}

/// The store refuses a share of all requests, whatever the rate.
#[derive(Debug, Clone, Copy)]
struct Random {
    rate: f64,
    at: Duration,
    trial: Trial,
}

impl Limited {
    fn new(now: Duration, rate: f64, usual: Option<f64>) -> Self {
        Self { began: now, usual, rate, at: now, counts: Counts::default(), descent: Descent::default() }
    }

    fn climb_s(&self) -> f64 {
        let held_s = self.at.saturating_sub(self.began).as_secs_f64();
        let may_be_fault = held_s < FAULT_MAX_S && self.usual.is_some_and(|usual| self.rate < usual / 2.0);
        let most = match may_be_fault {
            true => CLIMB_USUAL_S,
            false => (CLIMB_REQUESTS / self.rate).clamp(CLIMB_USUAL_S, CLIMB_MAX_S),
        };
        (CLIMB_PART * held_s).clamp(CLIMB_MIN_S, most)
    }

    fn climbs(&self, now: Duration) -> f64 {
        now.saturating_sub(self.at).as_secs_f64() / self.climb_s()
    }

    fn rate_at(&self, now: Duration) -> f64 {
        let climbs = self.climbs(now);
        match climbs < 1.0 {
            true => self.rate * (PART + (1.0 - PART) * climbs),
            false => self.rate * (RISE * (climbs - 1.0)).powi(2).min(60.0).exp2(),
        }
    }

    /// Whether what was counted at this rate is enough to lower it.
    fn is_refused_enough(&self, now: Duration) -> bool {
        let least = match self.descent.needs_sample_at(self.rate_at(now)) {
            true => SAMPLE_MIN,
            false => LEVEL_MIN,
        };
        let are_most = self.counts.refused >= MOST_MIN && self.counts.share() >= MOST;
        are_most || self.counts.total() >= least
    }

    /// Lowers the rate. Returns the share of refusals if they do not depend on the rate.
    fn lower(&mut self, now: Duration) -> Option<f64> {
        let current = self.rate_at(now);
        if self.climbs(now) >= 1.0 {
            self.descent = Descent::default();
        }
        self.descent.add(current, self.counts, now.saturating_sub(self.at).as_secs_f64());
        self.rate = (current * (1.0 - self.counts.share()).max(FALL_MAX)).max(RATE_MIN);
        (self.at, self.counts) = (now, Counts::default());
        self.descent.random_share()
    }
}

impl Random {
    fn rate_at(&self, now: Duration) -> f64 {
        let climbs = now.saturating_sub(self.at).as_secs_f64() / CLIMB_USUAL_S;
        self.rate * climbs.powi(2).min(60.0).exp2()
    }
}

impl RequestRate {
    /// Takes the next turn, and returns when it comes: `now` or later.
    pub(super) fn take_turn(&mut self, now: Duration) -> Duration {
        let turn = self.next.max(now);
        let rate = match &self.state {
            State::Free => return now,
            State::Limited(limited) => limited.rate_at(turn),
            State::Random(random) => random.rate_at(turn),
        };
        self.next = turn + Duration::from_secs_f64(1.0 / rate);
        turn
    }

    /// Whether the store refuses requests whatever their rate, so that fewer requests at once would not help either.
    pub(super) fn is_random(&self) -> bool {
        matches!(self.state, State::Random(_))
    }

    /// Records an answer to a request that started at `started`.
    pub(super) fn on_answer(&mut self, now: Duration, started: Duration) {
        self.answers.add(now);
        self.first_answer.get_or_insert(now);
        match &mut self.state {
            State::Limited(limited) if started >= limited.at => {
                limited.counts.answered = limited.counts.answered.saturating_add(1);
            }
            State::Random(random) if started >= random.at => {
                random.trial.counts.answered += 1;
                self.look(now);
            }
            State::Free | State::Limited(_) | State::Random(_) => {}
        }
    }

    /// Records that the store refused a request that started at `started`. Requests from before the last reduction give no new
    /// information.
    pub(super) fn on_refusal(&mut self, now: Duration, started: Duration) {
        let answered = self.answers.per_s(now);
        // In an outage, the waits between attempts grow; a lower rate would only delay the recovery.
        let is_outage = answered == 0.0;
        match &mut self.state {
            State::Free => {
                let is_served = self.first_answer.is_some_and(|first| now >= first + WELL_SERVED);
                let usual = is_served.then_some(answered);
                self.state = State::Limited(Limited::new(now, answered.max(FIRST_MIN), usual));
            }
            State::Limited(limited) if started >= limited.at => {
                limited.counts.refused = limited.counts.refused.saturating_add(1);
                if is_outage || !limited.is_refused_enough(now) {
                    return;
                }
                if limited.climbs(now) > 3.0 && now >= limited.at + WELL_SERVED {
                    // The limit had long been lifted.
                    *limited = Limited::new(now, answered.max(FIRST_MIN), Some(answered));
                    return;
                }
                let share = limited.lower(now).filter(|_| now >= self.wary_until);
                if let Some(share) = share {
                    let rate = limited.descent.from;
                    self.state = State::Random(Random { rate, at: now, trial: Trial::new(share) });
                }
            }
            State::Random(random) if started >= random.at => {
                random.trial.counts.refused += 1;
                self.look(now);
            }
            State::Limited(_) | State::Random(_) => {}
        }
    }

    /// Looks whether refusals are still random.
    fn look(&mut self, now: Duration) {
        let State::Random(random) = &mut self.state else { return };
        match random.trial.look() {
            Finding::Same => {}
            Finding::None => self.state = State::Free,
            Finding::More => {
                self.wary_until = now + WARY * 4_u32.pow(self.mistakes);
                self.mistakes = (self.mistakes + 1).min(MISTAKES_MAX);
                self.state = State::Limited(Limited::new(now, random.rate, None));
            }
        }
    }
}

/// The number of events in the last two seconds.
#[derive(Debug, Default)]
struct Recent {
    /// The number of the current window since the origin.
    window: u64,
    current: u32,
    previous: u32,
}

const WINDOW_S: f64 = 2.0;

impl Recent {
    fn add(&mut self, now: Duration) {
        self.move_to(now);
        self.current = self.current.saturating_add(1);
    }

    /// The rate, as if the previous window's events were spread evenly.
    fn per_s(&mut self, now: Duration) -> f64 {
        let share_of_previous = 1.0 - self.move_to(now);
        (f64::from(self.previous) * share_of_previous + f64::from(self.current)) / WINDOW_S
    }

    /// Returns how much of the current window has passed.
    fn move_to(&mut self, now: Duration) -> f64 {
        let windows = now.as_secs_f64() / WINDOW_S;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times are not negative")]
        let window = windows.floor() as u64;
        match window - self.window.min(window) {
            0 => {}
            1 => (self.previous, self.current) = (self.current, 0),
            _ => (self.previous, self.current) = (0, 0),
        }
        self.window = window;
        windows.fract()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// A rate that was refused at 10 s, after 100 answers a second.
    fn refused_at_100() -> RequestRate {
        let mut rate = RequestRate::default();
        for i in 0..1_000 {
            rate.on_answer(s(f64::from(i) * 0.01), s(0.0));
        }
        rate.on_refusal(s(10.0), s(9.9));
        rate
    }

    fn limited(rate: &RequestRate) -> Limited {
        let State::Limited(limited) = rate.state else { panic!("{rate:?}") };
        limited
    }

    #[test]
    fn there_is_no_limit_before_the_first_refusal() {
        let mut rate = RequestRate::default();
        assert_eq!([1.0, 1.0, 2.0].map(|at| rate.take_turn(s(at))), [s(1.0), s(1.0), s(2.0)]);
    }

    #[test]
    fn a_refusal_leaves_four_fifths_of_the_answered_rate_and_the_old_one_after_a_climb() {
        let mut rate = refused_at_100();
        assert_eq!(rate.take_turn(s(10.0)), s(10.0));
        let next = rate.take_turn(s(10.0)) - s(10.0);
        assert!((next.as_secs_f64() - 1.0 / 80.0).abs() < 1e-4, "{next:?}");
        let limited = limited(&rate);
        let rates = [0.0, 1.0, 2.0, 4.0].map(|after| limited.rate_at(s(10.0 + after)).round());
        assert_eq!(rates, [80.0, 90.0, 100.0, 476.0], "the first climb takes 2 s");
    }

    #[test]
    fn climbs_grow_with_the_time_that_the_limit_has_held() {
        let mut limited = limited(&refused_at_100());
        let mut climb_s = |rate: f64, held_s: f64| {
            (limited.rate, limited.at) = (rate, limited.began + s(held_s));
            limited.climb_s()
        };
        assert_eq!([0.0, 1.0, 60.0].map(|held_s| climb_s(6.25, held_s)), [2.0, 20.0, 600.0]);
        assert_eq!([25.0, 100.0, 1000.0].map(|rate| climb_s(rate, 3600.0)), [160.0, 40.0, 15.0]);
    }

    #[test]
    fn where_a_process_was_well_served_climbs_stay_short_for_ten_minutes() {
        let mut limited = Limited::new(s(3600.0), 100.0, Some(400.0));
        for (rate, held_s, climb_s) in [(10.0, 300.0, 15.0), (10.0, 601.0, 400.0), (250.0, 300.0, 16.0)] {
            (limited.rate, limited.at) = (rate, limited.began + s(held_s));
            assert_eq!(limited.climb_s(), climb_s, "{rate} after {held_s} s");
        }
    }

    #[test]
    fn a_burst_of_refusals_is_one() {
        let mut rate = refused_at_100();
        let before = limited(&rate);
        (0..50).for_each(|_| rate.on_refusal(s(10.01), s(9.95)));
        assert_eq!((limited(&rate).at, limited(&rate).rate), (before.at, before.rate));
        (0..50).for_each(|_| rate.on_refusal(s(10.1), s(10.05)));
        assert!(limited(&rate).rate < before.rate, "these started since");
    }

    #[test]
    fn an_outage_is_not_a_low_rate() {
        let mut rate = RequestRate::default();
        for i in 0..100 {
            rate.on_refusal(s(f64::from(i)), s(f64::from(i)));
        }
        assert_eq!(limited(&rate).rate, FIRST_MIN);
    }
}

#[cfg(test)]
mod model;
