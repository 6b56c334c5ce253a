//! The rate of requests to a store that has asked for a lower one.
//!
//! A limit on concurrent requests ([`Aimd`](super::aimd::Aimd)) cannot go below one at a time: 32 processes with one request of
//! 30 ms each still send 1,000 a second, and a store that serves 200 refuses most of them. So a process that was refused also
//! limits its rate, to [`PART`] of the rate at which it was answered. The rate then rises linearly, and reaches the old one after a
//! *climb*. After that it rises ever faster, so that a store that has recovered or grown is soon used again: it has doubled after a
//! quarter of a climb, and is 16 times the old rate after half a climb.
//!
//! ```text
//! rate  ──✕        refused
//!         │     climb        ╭╯   no refusal at the old rate: the limit has changed
//!         ╰──────────────────╯
//! ```
//! A climb takes 2 s at first, so that a short fault is soon over. Each refusal at about the same rate confirms the limit, and the
//! next climb takes four times as long, up to the time of [`CLIMB_REQUESTS`] requests: then about one request in [`CLIMB_REQUESTS`]
//! asks whether the limit is still there. 32 processes at a store's limit of 200 requests a second are refused 0.07 % of their
//! requests after the first minute, and use all of the limit. If it is raised then, they notice within a quarter of an hour.
//! A pure state machine: times are arguments.

use std::time::Duration;

/// The part of the rate that remains after a refusal.
const PART: f64 = 0.8;
/// The first climb, in seconds.
const FIRST_CLIMB_S: f64 = 2.0;
/// A climb takes this many times as long as the one before it.
const CLIMB_GROWTH: f64 = 4.0;
/// Requests of the longest climb: one in 4,000 is refused then, or a few where answers to several processes cross.
const CLIMB_REQUESTS: f64 = 4000.0;
/// The longest climb takes at least this, in seconds: fast processes need not find out more often ...
const LONGEST_MIN_S: f64 = 15.0;
/// ... and at most this, so that slow ones notice a higher limit within a quarter of an hour.
const LONGEST_MAX_S: f64 = 600.0;
/// The part of a climb after which a rate that was not refused has doubled.
const DOUBLING: f64 = 0.25;
/// A rate that falls below this part of the old one means that the store's limit has changed; the search starts again.
const CHANGED: f64 = 0.6;
/// The rate falls to no less than this part at once: a low rate gives few answers in two seconds.
const FALL_MAX: f64 = 0.5;
/// A first refusal lowers the rate to no less than this, in requests per second: a store is quickly refused again if it serves
/// less, and a process that has just begun has few answers to go by.
const FIRST_MIN: f64 = 100.0;
/// The lowest rate, in requests per second.
const RATE_MIN: f64 = 1.0;
/// A turn may be this late without lowering the rate: timers and busy threads wake up late.
const LATENESS: Duration = Duration::from_millis(10);
/// A store that refuses more than this multiple of what it answers has an outage: the waits between attempts grow then, and a
/// lower rate would only delay the recovery.
const OUTAGE: f64 = 10.0;

/// When the next request may start.
#[derive(Debug, Default)]
pub(super) struct RequestRate {
    /// `None` until the store asks for a lower rate.
    refused: Option<Refused>,
    /// When the last turn was due.
    last: Duration,
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
        let longest = (CLIMB_REQUESTS / self.rate).clamp(LONGEST_MIN_S, LONGEST_MAX_S);
        (FIRST_CLIMB_S * CLIMB_GROWTH.powi(self.count - 1)).min(longest)
    }

    fn rate_at(&self, now: Duration) -> f64 {
        let (since, climb) = (now.saturating_sub(self.at).as_secs_f64(), self.climb_s());
        if since < climb {
            return self.rate * (PART + (1.0 - PART) * since / climb);
        }
        let doublings = (since - climb) / (DOUBLING * climb).max(FIRST_CLIMB_S);
        self.rate * doublings.powi(2).min(60.0).exp2()
    }
}

impl RequestRate {
    /// Whether requests need turns.
    pub(super) fn is_limited(&self) -> bool {
        self.refused.is_some()
    }

    /// Takes the next turn if it has come, else returns when it comes at the current rate.
    pub(super) fn take_turn(&mut self, now: Duration) -> Result<(), Duration> {
        let Some(refused) = &self.refused else { return Ok(()) };
        let turn = self.last + Duration::from_secs_f64(1.0 / refused.rate_at(now));
        if turn > now {
            return Err(turn);
        }
        self.last = turn.max(now.saturating_sub(LATENESS));
        Ok(())
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
        assert!(!rate.is_limited());
        assert_eq!([1.0, 1.0, 2.0].map(|at| rate.take_turn(s(at))), [Ok(()); 3]);
    }

    #[test]
    fn a_refusal_leaves_four_fifths_of_the_answered_rate_and_the_old_one_after_a_climb() {
        let mut rate = refused_at_100();
        assert_eq!(rate.take_turn(s(10.0)), Ok(()));
        let next = rate.take_turn(s(10.0)).unwrap_err();
        assert!((next.as_secs_f64() - 10.0 - (1.0 / 80.0 - LATENESS.as_secs_f64())).abs() < 1e-4, "{next:?}");
        let refused = rate.refused.unwrap();
        let rates = [0.0, 1.0, 2.0, 4.0].map(|after| refused.rate_at(s(10.0 + after)).round());
        assert_eq!(rates, [80.0, 90.0, 100.0, 200.0], "the first climb takes 2 s");
    }

    #[test]
    fn late_turns_do_not_lower_the_rate_and_a_pause_is_not_caught_up() {
        let mut rate = refused_at_100();
        let mut turns = |from: u32, millis: u32| {
            (from..from + millis)
                .filter(|ms| ms % 3 == 0 && rate.take_turn(s(f64::from(*ms) / 1e3)).is_ok())
                .count()
        };
        let half_a_second = turns(10_000, 500);
        assert!(
            (40..=43).contains(&half_a_second),
            "80 to 85 a second, asked for each 3 ms: {half_a_second}"
        );
        assert!(turns(11_900, 20) <= 4);
    }

    #[test]
    fn a_confirmed_limit_is_probed_ever_more_rarely() {
        let mut rate = refused_at_100();
        let mut climbs = vec![rate.refused.unwrap().climb_s()];
        for second in [12, 20, 60, 100] {
            for i in 0..200 {
                rate.on_answer(s(f64::from(second) - 2.0 + f64::from(i) * 0.01));
            }
            rate.on_refusal(s(f64::from(second)), s(f64::from(second)));
            climbs.push(rate.refused.unwrap().climb_s().round());
        }
        assert_eq!(climbs, [2.0, 8.0, 32.0, 40.0, 40.0], "4,000 requests at 100 a second");
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
    /// minute: (served, refused). The store's limit changes by the factor `changes.1` at the minute `changes.0`.
    fn minutes(processes: usize, per_s: f64, minutes: usize, changes: (usize, f64)) -> Vec<(f64, f64)> {
        let mut store = Bucket { per_s, left: per_s, at: 0.0 };
        let mut rates: Vec<RequestRate> = (0..processes).map(|_| RequestRate::default()).collect();
        let mut turns = std::collections::BinaryHeap::new();
        let mut counts = vec![(0.0, 0.0); minutes];
        turns.extend((0..processes).map(|i| std::cmp::Reverse((s(0.001 * i as f64), i))));
        while let Some(std::cmp::Reverse((at, process))) = turns.pop() {
            let minute = (at.as_secs_f64() / 60.0) as usize;
            let Some(count) = counts.get_mut(minute) else { break };
            store.per_s = if minute < changes.0 { per_s } else { per_s * changes.1 };
            if let Err(turn) = rates[process].take_turn(at) {
                turns.push(std::cmp::Reverse((turn, process)));
                continue;
            }
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
            turns.push(std::cmp::Reverse((end, process)));
        }
        counts
    }

    const NEVER: (usize, f64) = (usize::MAX, 1.0);

    /// Returns the requests served each second, and the share that was refused.
    fn sum(minutes: &[(f64, f64)]) -> (f64, f64) {
        let (served, refused) = minutes.iter().fold((0.0, 0.0), |sum, m| (sum.0 + m.0, sum.1 + m.1));
        (served / (60.0 * minutes.len() as f64), refused / (served + refused))
    }

    #[test]
    fn processes_share_a_small_store_with_few_refusals() {
        for (processes, per_s) in [(32, 200.0), (8, 200.0), (64, 2_000.0)] {
            let minutes = minutes(processes, per_s, 15, NEVER);
            let (served, refused) = sum(&minutes[1..]);
            println!(
                "{processes} processes, {per_s} a second: {served:.0} served, {:.3} % refused",
                100.0 * refused
            );
            assert!(refused < 0.001, "{processes}: {refused} {minutes:?}");
            assert!(served > 0.9 * per_s, "{processes}: {served} {minutes:?}");
        }
    }

    #[test]
    fn a_store_that_grows_is_used_after_the_longest_climb() {
        let minutes = minutes(32, 200.0, 24, (6, 4.0));
        let (served, refused) = sum(&minutes[6 + 15..]);
        assert!(served > 0.9 * 800.0 && refused < 0.001, "{minutes:?}");
    }

    #[test]
    fn without_refusals_nothing_waits() {
        let minutes = minutes(8, 5_500.0, 1, NEVER);
        assert!(minutes[0].0 > 8.0 * 60.0 / 0.04 && minutes[0].1 < 1.0, "{minutes:?}");
    }
}
