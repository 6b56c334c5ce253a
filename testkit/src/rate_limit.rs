//! A limit on requests per second that all clients share.

use std::time::Duration;

/// The seconds' worth of requests that a client may send at once after a pause.
const BURST_S: f64 = 1.0;

/// A shared limit on requests per second: a token bucket. Times are arguments, since one fixed origin.
#[derive(Debug)]
pub(crate) struct RateLimit {
    per_s: f64,
    left: f64,
    at: Duration,
}

impl RateLimit {
    pub(crate) fn new(per_s: f64) -> Self {
        Self { per_s, left: per_s * BURST_S, at: Duration::ZERO }
    }

    /// Whether a request at `now` is served.
    pub(crate) fn take(&mut self, now: Duration) -> bool {
        let earned = now.saturating_sub(self.at).as_secs_f64() * self.per_s;
        self.left = (self.left + earned).min(self.per_s * BURST_S);
        self.at = self.at.max(now);
        let is_served = self.left >= 1.0;
        self.left -= if is_served { 1.0 } else { 0.0 };
        is_served
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_limit_serves_its_rate_after_a_burst() {
        let mut limit = RateLimit::new(100.0);
        let mut served = |from: u64, millis: u64| {
            (from..from + millis).filter(|now| limit.take(Duration::from_millis(*now))).count()
        };
        assert_eq!(served(0, 1_000), 199);
        assert_eq!(served(1_000, 1_000), 100);
        assert_eq!(served(60_000, 50), 50, "at most one second's worth is saved up");
    }
}
