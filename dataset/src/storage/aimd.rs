//! The limit on concurrent requests: additive increase, multiplicative decrease.
//!
//! A pure state machine: times are arguments. Throttling answers halve the limit, at most once per round trip: a request that
//! started before the last decrease gives no new information. A full limit of successes raises it by one. Slow answers halve
//! it too, from the second one without a success in between. One slow connection among good ones is that connection's fault;
//! several share a slow line.
//! A limit that starts below its maximum rises by one with each success until the first decrease, so it doubles with each round
//! trip. Bounds: 1 ≤ limit ≤ max. Later, from 1, a limit of 32 is reached again after 1 + 2 + … + 31 = 496 successes.

use std::time::Duration;

/// What happened to one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    /// It was answered in full.
    Success,
    /// The store requested a lower rate: 503 or 429.
    Throttled,
    /// The answer came below the minimum rate and was cut.
    Slow,
}

/// Slow answers in a row that indicate a slow line.
const SLOW_MIN: usize = 2;

/// The limit, and the state that decides its changes.
#[derive(Debug, Clone)]
pub(crate) struct Aimd {
    limit: usize,
    max: usize,
    /// Whether no request was throttled or slow so far.
    is_starting: bool,
    successes: usize,
    /// Slow answers since the last success.
    slow: usize,
    last_decrease: Option<Duration>,
}

impl Aimd {
    /// Starts at `start`, at most at `max`.
    pub(crate) fn new(start: usize, max: usize) -> Self {
        let max = max.max(1);
        let limit = start.clamp(1, max);
        Self { limit, max, is_starting: true, successes: 0, slow: 0, last_decrease: None }
    }

    /// Returns the number of requests that may be under way.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    /// Records that a request that started at `started` ended at `now` (both since one fixed origin).
    pub(crate) fn on_event(&mut self, now: Duration, started: Duration, event: Event) {
        match event {
            Event::Success => {
                self.slow = 0;
                self.successes += 1;
                if self.is_starting || self.successes >= self.limit {
                    self.successes = 0;
                    self.limit = (self.limit + 1).min(self.max);
                }
            }
            Event::Throttled => self.decrease(now, started),
            Event::Slow => {
                self.slow += 1;
                if self.slow >= SLOW_MIN {
                    self.decrease(now, started);
                }
            }
        }
    }

    fn decrease(&mut self, now: Duration, started: Duration) {
        self.successes = 0;
        self.is_starting = false;
        if self.last_decrease.is_none_or(|at| started >= at) {
            self.limit = (self.limit / 2).max(1);
            self.last_decrease = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn one_burst_of_throttling_halves_once() {
        let mut aimd = Aimd::new(32, 32);
        for i in 0..32 {
            aimd.on_event(MS * (10 + i), MS, Event::Throttled);
        }
        assert_eq!(aimd.limit(), 16);
        aimd.on_event(MS * 60, MS * 50, Event::Throttled);
        assert_eq!(aimd.limit(), 8);
    }

    #[test]
    fn one_slow_answer_among_good_ones_changes_nothing_and_two_in_a_row_halve() {
        let mut aimd = Aimd::new(32, 32);
        for i in 0..10 {
            aimd.on_event(MS * (10 + i), MS, Event::Slow);
            aimd.on_event(MS * (10 + i), MS, Event::Success);
        }
        assert_eq!(aimd.limit(), 32);
        for i in 0..32 {
            aimd.on_event(MS * (30 + i), MS, Event::Slow);
        }
        assert_eq!(aimd.limit(), 16, "one burst halves once");
        for i in 0..16 {
            aimd.on_event(MS * (90 + i), MS * 80, Event::Slow);
        }
        assert_eq!(aimd.limit(), 8);
    }

    #[test]
    fn a_low_start_doubles_with_each_round_trip_until_something_is_throttled() {
        let mut aimd = Aimd::new(2, 32);
        let round_trip = |aimd: &mut Aimd, at: u32| {
            for _ in 0..aimd.limit() {
                aimd.on_event(MS * at, MS * at, Event::Success);
            }
            aimd.limit()
        };
        assert_eq!([1, 2, 3].map(|at| round_trip(&mut aimd, at)), [4, 8, 16]);
        aimd.on_event(MS * 5, MS * 4, Event::Throttled);
        assert_eq!(aimd.limit(), 8);
        assert_eq!([6, 7].map(|at| round_trip(&mut aimd, at)), [9, 10]);
        assert_eq!((Aimd::new(0, 32).limit(), Aimd::new(99, 32).limit()), (1, 32));
    }

    #[test]
    fn recovery_takes_the_stated_number_of_successes() {
        let mut aimd = Aimd::new(32, 32);
        for i in 1..=6 {
            aimd.on_event(MS * i * 2, MS * i * 2, Event::Throttled);
        }
        assert_eq!(aimd.limit(), 1);
        let mut successes = 0;
        while aimd.limit() < 32 {
            aimd.on_event(MS * 100, MS * 99, Event::Success);
            successes += 1;
        }
        assert_eq!(successes, 496);
    }

    proptest! {
        #[test]
        fn the_limit_keeps_its_bounds_and_moves_the_right_way(
            max in 0_usize..100,
            events in proptest::collection::vec((0_u32..1000, 0_u32..50, any::<bool>()), 0..300),
        ) {
            let mut aimd = Aimd::new(max, max);
            let mut now = Duration::ZERO;
            for (gap, age, throttled) in events {
                now += MS * gap;
                let before = aimd.limit();
                let event = if throttled { Event::Throttled } else { Event::Success };
                aimd.on_event(now, now.saturating_sub(MS * age), event);
                let after = aimd.limit();
                prop_assert!(1 <= after && after <= max.max(1));
                match event {
                    Event::Success => prop_assert!(after == before || after == before + 1),
                    Event::Throttled | Event::Slow => prop_assert!(after == before || after == (before / 2).max(1)),
                }
            }
        }

        #[test]
        fn a_throttled_store_reaches_one_and_a_healthy_one_its_maximum(max in 1_usize..200) {
            let mut aimd = Aimd::new(max, max);
            for i in 0..8 {
                aimd.on_event(MS * (2 * i + 1), MS * 2 * i, Event::Throttled);
            }
            prop_assert_eq!(aimd.limit(), 1);
            for i in 0..max * max {
                let now = MS * (100 + u32::try_from(i).unwrap());
                aimd.on_event(now, now, Event::Success);
            }
            prop_assert_eq!(aimd.limit(), max);
        }
    }
}
