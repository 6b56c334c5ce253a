//! When to retry: exponential backoff with full jitter inside a deadline.
//!
//! A pure state machine: time and randomness are arguments. The n-th wait is uniform in [0, min(10 s, 50 ms · 2ⁿ)]. This is
//! "full jitter": clients that failed together do not come back together. A `Retry-After` of the store is added. One beyond the
//! end of the operation's time is obeyed as far as that allows: half of what is left is waited, three times at most. With the default deadline of 120 s that is about 28 attempts: eight that double, then one every 5 s on average.
//! An attempt that made progress restarts the doubling.

use std::time::Duration;

/// Maximum of the first wait: about one round trip of a cloud store.
const BASE: Duration = Duration::from_millis(50);
/// Maximum of all waits, unless the store requests more: work should resume within ten seconds of an outage's end.
const CAP: Duration = Duration::from_secs(10);
/// Waits that are shorter than the store requests: 60, 30 and 15 s of 120 s. A store that is back earlier than it announced, as
/// after maintenance, is noticed; one that is not ends the operation.
const SHORTENED_MAX: u32 = 3;
/// Maximum number of attempts inside a very long deadline, for a store that fails at once.
pub(crate) const MAX_ATTEMPTS: u32 = 1_000;

/// The attempts so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Backoff {
    attempts: u32,
    doublings: u32,
    shortened: u32,
}

impl Backoff {
    /// Returns the number of attempts that failed.
    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Records that the attempt that is about to fail made progress: the store is reachable.
    pub(crate) fn on_progress(&mut self) {
        self.doublings = 0;
    }

    /// Records a failed attempt with `left` of the operation's time. Returns how long to wait, or `None` to give up. `random`
    /// is uniform in [0, 1).
    pub(crate) fn on_failure(
        &mut self,
        left: Duration,
        random: f64,
        retry_after: Option<Duration>,
    ) -> Option<Duration> {
        let doublings = self.doublings.min(20); // 50 ms · 2²⁰ is far over the cap
        self.attempts += 1;
        self.doublings += 1;
        let ceiling = BASE.saturating_mul(1 << doublings).min(CAP);
        let jitter = ceiling.mul_f64(random.clamp(0.0, 1.0));
        let mut wait = jitter.saturating_add(retry_after.unwrap_or_default());
        if retry_after.is_some() && wait >= left && self.shortened < SHORTENED_MAX {
            self.shortened += 1;
            wait = left / 2;
        }
        (self.attempts < MAX_ATTEMPTS && wait < left).then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn retry_after_is_obeyed_as_far_as_the_time_allows() {
        let (mut backoff, left) = (Backoff::default(), Duration::from_secs(60));
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let waits = backoff.on_failure(left, 0.5, seconds(7)).unwrap();
        assert_eq!(waits, Duration::from_secs(7) + BASE / 2, "clients do not come back together");
        for left in [60, 30, 15] {
            let left = Duration::from_secs(left);
            assert_eq!(backoff.on_failure(left, 0.5, seconds(3600)), Some(left / 2));
        }
        assert_eq!(backoff.on_failure(left, 0.5, seconds(3600)), None);
        assert_eq!(Backoff::default().on_failure(Duration::ZERO, 0.5, seconds(u64::MAX)), None);
    }

    #[test]
    fn progress_starts_the_doubling_again() {
        let (mut backoff, left) = (Backoff::default(), Duration::from_secs(60));
        let waits = |backoff: &mut Backoff| -> Vec<_> {
            (0..3).map(|_| backoff.on_failure(left, 0.5, None).unwrap()).collect()
        };
        let first = waits(&mut backoff);
        backoff.on_progress();
        assert_eq!(waits(&mut backoff), first);
        assert_eq!(backoff.attempts(), 6);
    }

    proptest! {
        #[test]
        fn waits_stay_inside_ceiling_and_deadline(
            deadline_ms in 0_u64..200_000,
            randoms in proptest::collection::vec(0.0_f64..1.0, 1..200),
        ) {
            let deadline = Duration::from_millis(deadline_ms);
            let mut backoff = Backoff::default();
            let mut elapsed = Duration::ZERO;
            for (n, random) in randoms.into_iter().enumerate() {
                let Some(wait) = backoff.on_failure(deadline - elapsed, random, None) else { break };
                let doubled = BASE * 2_u32.pow(u32::try_from(n.min(20)).unwrap());
                prop_assert!(wait <= doubled && wait <= CAP);
                elapsed += wait;
                prop_assert!(elapsed < deadline);
            }
        }

        #[test]
        fn it_always_ends(random in 0.0_f64..1.0) {
            let mut backoff = Backoff::default();
            let mut waits = 0;
            while backoff.on_failure(Duration::MAX, random, None).is_some() {
                waits += 1;
            }
            prop_assert_eq!(waits, MAX_ATTEMPTS - 1);
        }
    }
}
