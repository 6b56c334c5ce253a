//! The rate of requests to a store that has asked for a lower one.
//!
//! A limit on concurrent requests ([`Aimd`](super::aimd::Aimd)) cannot go below one at a time: 32 processes with one request of
//! 30 ms each still send 1,000 a second, and a store that serves 200 refuses most of them. So a process that was refused also
//! limits its rate, to [`PART`] of the rate at which it was answered. The rate then rises linearly, and reaches the old one after a
//! *climb*; then it rises ever faster, to 2 times the old one after another climb, 16 times after the third, 512 after the fourth, so
//! that a store that has recovered or grown is soon used again.
//!
//! A climb takes 2 s at first, then 4 s and 8 s, to find the store's limit, and then [`CLIMB_MAX_S`]. Longer ones would mean fewer
//! refusals, but a job that met a short fault would be slow for minutes. 32 processes at a store's limit of 200 requests a second
//! are refused 1.4 % of them. A pure state machine: times are arguments.

use std::time::Duration;

/// The part of the rate that remains after a refusal.
const PART: f64 = 0.8;
/// The longest climb, in seconds.
const CLIMB_MAX_S: f64 = 15.0;
/// A rate that falls below this part of the old one means that the store's limit has changed; the search starts again.
const CHANGED: f64 = 0.6;
/// The rate falls to no less than this part at once: a low rate gives few answers in two seconds.
const FALL_MAX: f64 = 0.5;
/// A first refusal lowers the rate to no less than this, in requests per second: a store is quickly refused again if it serves
/// less, and a process that has just begun has few answers to go by.
const FIRST_MIN: f64 = 100.0;
/// The lowest rate, in requests per second.
const RATE_MIN: f64 = 5.0;
/// A store that refuses more than this multiple of what it answers has an outage: the waits between attempts grow then, and a
/// lower rate would only delay the recovery.
const OUTAGE: f64 = 10.0;

/// When the next request may start.
#[derive(Debug, Default)]
pub(super) struct RequestRate {
    /// `None` until the store asks for a lower rate.
    refused: Option<Refused>,
    /// No request starts before.
    next: Duration,
    answers: Recent,
    refusals: Recent,
}

/// The last refusal that lowered the rate.
#[derive(Debug, Clone, Copy)]
struct Refused {
    /// The rate at which the store answered, in requests per second.
    rate: f64,
    at: Duration,
    /// Reductions since the search for the limit began.
    count: i32,
}

impl Refused {
    fn climb_s(&self) -> f64 {
        2.0_f64.powi(self.count).min(CLIMB_MAX_S)
    }

    fn rate_at(&self, now: Duration) -> f64 {
        let climbs = now.saturating_sub(self.at).as_secs_f64() / self.climb_s();
        match climbs < 1.0 {
            true => self.rate * (PART + (1.0 - PART) * climbs),
            false => self.rate * (climbs - 1.0).powi(2).min(60.0).exp2(),
        }
    }
}

impl RequestRate {
    /// Takes the next turn, and returns when it comes: `now` or later.
    pub(super) fn take_turn(&mut self, now: Duration) -> Duration {
        let Some(refused) = &self.refused else { return now };
        let turn = self.next.max(now);
        self.next = turn + Duration::from_secs_f64(1.0 / refused.rate_at(turn));
        turn
    }

    pub(super) fn on_answer(&mut self, now: Duration) {
        self.answers.add(now);
    }

    /// Records that the store refused a request that started at `started`. Requests from before the last reduction give no new
    /// information.
    pub(super) fn on_refusal(&mut self, now: Duration, started: Duration) {
        self.refusals.add(now);
        let answered = self.answers.per_s(now);
        let is_outage = self.refusals.per_s(now) > OUTAGE * answered;
        let (rate, count) = match &self.refused {
            None => (answered.max(FIRST_MIN), 1),
            Some(last) if started < last.at || is_outage => return,
            Some(last) => {
                let current = last.rate_at(now);
                let rate = answered.clamp(current * FALL_MAX, current);
                (rate, if rate < CHANGED * last.rate { 1 } else { last.count.saturating_add(1) })
            }
        };
        self.refused = Some(Refused { rate: rate.max(RATE_MIN), at: now, count });
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
            rate.on_answer(s(f64::from(i) * 0.01));
        }
        rate.on_refusal(s(10.0), s(9.9));
        rate
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
        let refused = rate.refused.unwrap();
        let rates = [0.0, 1.0, 2.0, 4.0].map(|after| refused.rate_at(s(10.0 + after)).round());
        assert_eq!(rates, [80.0, 90.0, 100.0, 200.0], "the first climb takes 2 s");
    }

    #[test]
    fn a_burst_of_refusals_is_one() {
        let mut rate = refused_at_100();
        let before = rate.refused.unwrap();
        rate.on_refusal(s(10.01), s(9.95));
        let after = rate.refused.unwrap();
        assert_eq!((after.at, after.count), (before.at, before.count));
    }

    #[test]
    fn a_store_that_serves_far_less_is_searched_again() {
        let mut rate = refused_at_100();
        rate.on_refusal(s(10.5), s(10.5));
        assert_eq!(rate.refused.unwrap().count, 2);
        (0..20).for_each(|_| rate.on_answer(s(15.0)));
        rate.on_refusal(s(15.5), s(15.5));
        let refused = rate.refused.unwrap();
        assert!(refused.count == 1 && refused.rate < 60.0, "{refused:?}");
    }

    #[test]
    fn an_outage_is_not_a_low_rate() {
        let mut rate = RequestRate::default();
        for i in 0..100 {
            rate.on_refusal(s(f64::from(i)), s(f64::from(i)));
        }
        assert_eq!(rate.refused.unwrap().rate, FIRST_MIN);
    }

    /// A store with a budget of requests per second, of which one second's worth may come at once.
    struct Bucket {
        per_s: f64,
        left: f64,
        at: f64,
    }

    impl Bucket {
        fn serves(&mut self, now: f64) -> bool {
            self.left = (self.left + (now - self.at) * self.per_s).min(self.per_s);
            self.at = now;
            let serves = self.left >= 1.0;
            self.left -= f64::from(u8::from(serves));
            serves
        }
    }

    /// Processes that always want more, each with one request at a time that takes `30 ms`, and what the store answered each
    /// minute: (served, refused).
    fn minutes(processes: usize, per_s: f64, minutes: usize) -> Vec<(f64, f64)> {
        let mut store = Bucket { per_s, left: per_s, at: 0.0 };
        let mut rates: Vec<RequestRate> = (0..processes).map(|_| RequestRate::default()).collect();
        let mut turns = std::collections::BinaryHeap::new();
        let mut counts = vec![(0.0, 0.0); minutes];
        turns.extend((0..processes).map(|i| std::cmp::Reverse((s(0.001 * i as f64), i))));
        while let Some(std::cmp::Reverse((at, process))) = turns.pop() {
            let Some(count) = counts.get_mut((at.as_secs_f64() / 60.0) as usize) else { break };
            // Answers take different times, as those of a store do; otherwise all processes stay in step.
            let end = at
                + s(0.02
                    + 0.02 * ((process * 7 + turns.len() + at.subsec_micros() as usize) % 10) as f64 / 10.0);
            match store.serves(at.as_secs_f64()) {
                true => {
                    count.0 += 1.0;
                    rates[process].on_answer(end);
                }
                false => {
                    count.1 += 1.0;
                    rates[process].on_refusal(end, at);
                }
            }
            turns.push(std::cmp::Reverse((rates[process].take_turn(end), process)));
        }
        counts
    }

    #[test]
    fn processes_share_a_small_store_with_few_refusals() {
        let minutes = minutes(32, 200.0, 15);
        let (served, refused) = minutes[3..].iter().fold((0.0, 0.0), |sum, m| (sum.0 + m.0, sum.1 + m.1));
        assert!(refused / (served + refused) < 0.02, "{minutes:?}");
        assert!(served / (12.0 * 60.0) > 190.0, "{minutes:?}");
    }

    #[test]
    fn without_refusals_nothing_waits() {
        let minutes = minutes(8, 5_500.0, 1);
        assert!(minutes[0].0 > 8.0 * 60.0 / 0.04 && minutes[0].1 < 1.0, "{minutes:?}");
    }
}
