//! The rate of requests to a store that has asked for a lower one.
//!
//! A limit on concurrent requests ([`Aimd`](super::aimd::Aimd)) cannot go below one at a time: 32 processes with one request of
//! 30 ms each still send 1,000 a second, and a store that serves 200 refuses most of them. So a process that was refused also
//! limits its rate. [`Limit`] decides what the rate is; this file issues the turns.
//!
//! A turn that no caller takes is lost, and the rate rises to at most [`OF_DEMAND`] times what callers have taken lately. So a process
//! that needs less than its share saves nothing up and knows the limit still, within this factor. A pure state machine: times are
//! arguments.

#[cfg(test)]
mod crowd;
mod limit;

use limit::Limit;
use std::time::Duration;

/// A first refusal sets the limit to no less than this, in requests per second: a store is quickly refused again if it serves
/// less, and a process that has just begun has few answers to go by.
const FIRST_MIN: f64 = 100.0;
/// The next turn counts from when this one was due, if it is taken this late: timers and busy threads wake up late.
const LATENESS: Duration = Duration::from_millis(10);
/// The rate rises to at most this multiple of the turns taken lately. A refusal beyond the plateau leaves a fifth ([`limit::BACK`]), so
/// a single one at random does not slow the process down.
const OF_DEMAND: f64 = 1.0 / limit::BACK;

/// When the next request may start.
#[derive(Debug, Default)]
pub(super) struct RequestRate {
    /// `None` until the store asks for a lower rate.
    limit: Option<Limit>,
    /// When the last turn was due.
    last: Duration,
    turns: Recent,
    answers: Recent,
    /// When the first request was answered.
    first_answer: Option<Duration>,
}

impl RequestRate {
    /// Whether requests need turns.
    pub(super) fn is_limited(&self) -> bool {
        self.limit.is_some()
    }

    /// Takes the next turn if it has come, else returns when it comes at the current rate.
    pub(super) fn take_turn(&mut self, now: Duration) -> Result<(), Duration> {
        let Some(limit) = &mut self.limit else { return Ok(()) };
        let rate = limit.rate();
        let interval = Duration::from_secs_f64(1.0 / rate);
        let turn = self.last + interval;
        if turn > now {
            return Err(turn);
        }
        self.turns.add(now);
        if rate <= OF_DEMAND * self.turns.per_s(now) {
            limit.grow(interval);
        }
        self.last = if now - turn <= LATENESS { turn } else { now };
        Ok(())
    }

    /// Returns when the turn after the next one comes, if requests need turns.
    pub(super) fn turn_after_next(&self, now: Duration) -> Option<Duration> {
        let interval = Duration::from_secs_f64(1.0 / self.limit.as_ref()?.rate());
        Some((self.last + interval).max(now) + interval)
    }

    pub(super) fn on_answer(&mut self, now: Duration) {
        self.answers.add(now);
        self.first_answer.get_or_insert(now);
        if let Some(limit) = &mut self.limit {
            limit.on_answer();
        }
    }

    /// Records that the store refused a request that started at `started`.
    pub(super) fn on_refusal(&mut self, now: Duration, started: Duration) {
        if let Some(limit) = &mut self.limit {
            limit.on_refusal(now, started);
            return;
        }
        let served = self.first_answer.map_or(Duration::ZERO, |first| now.saturating_sub(first));
        self.limit = Some(Limit::new(self.answers.per_s(now).max(FIRST_MIN), now, served));
        self.last = now;
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

    /// A rate that was refused at 10 s, after 200 answers a second.
    fn refused_at_200() -> RequestRate {
        let mut rate = RequestRate::default();
        for i in 0..2_000 {
            rate.on_answer(s(f64::from(i) * 0.005));
        }
        rate.on_refusal(s(10.0), s(9.9));
        rate
    }

    /// Takes turns as fast as they come until `until`, and returns how many.
    fn turns(rate: &mut RequestRate, mut now: Duration, until: Duration) -> u32 {
        let mut turns = 0;
        while now < until {
            match rate.take_turn(now) {
                Ok(()) => turns += 1,
                Err(turn) => now = turn,
            }
        }
        turns
    }

    #[test]
    fn there_is_no_limit_before_the_first_refusal() {
        let mut rate = RequestRate::default();
        assert!(!rate.is_limited());
        assert_eq!([1.0, 1.0, 2.0].map(|at| rate.take_turn(s(at))), [Ok(()); 3]);
    }

    #[test]
    fn a_refusal_leaves_nine_tenths_of_the_answered_rate() {
        let mut rate = refused_at_200();
        let turn = rate.take_turn(s(10.0)).unwrap_err() - s(10.0);
        assert!((turn.as_secs_f64() - 1.0 / 180.0).abs() < 1e-4, "{turn:?}");
        assert_eq!(rate.take_turn(s(10.0) + turn), Ok(()));
        let turns = turns(&mut rate, s(10.0) + turn, s(11.0));
        assert!((178..195).contains(&turns), "{turns}");
    }

    /// Callers come at random, at half the rate of turns.
    #[test]
    fn a_process_that_needs_half_of_its_share_still_knows_the_limit() {
        for (per_s, answered) in [(100.0, 200), (60.0, 120), (100.0, 1000)] {
            let mut rate = RequestRate::default();
            for i in 0..10 * answered {
                rate.on_answer(s(f64::from(i) / f64::from(answered)));
            }
            rate.on_refusal(s(10.0), s(9.9));
            let (mut now, mut random) = (10.0, crowd::Random(1));
            while now < 1_000.0 {
                now -= random.uniform().ln() / per_s;
                while let Err(turn) = rate.take_turn(s(now)) {
                    now = turn.as_secs_f64() + 1e-6;
                }
            }
            let turns = f64::from(turns(&mut rate, s(1_000.0), s(1_000.1))) / 0.1;
            let most = f64::from(answered).max(1.5 * OF_DEMAND * per_s);
            assert!(turns < most, "{turns} turns a second at a demand of {per_s} and a limit of {answered}");
        }
    }

    #[test]
    fn turns_that_no_caller_took_are_lost_and_do_not_raise_the_rate() {
        let mut rate = refused_at_200();
        for second in 0..3_600 {
            assert_eq!(rate.take_turn(s(11.0 + f64::from(second))), Ok(()));
        }
        let turns = turns(&mut rate, s(4_000.0), s(4_001.0));
        assert!((178..195).contains(&turns), "{turns}");
    }
}
