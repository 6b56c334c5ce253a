//! The requests of a rank: a queue, a limit on those under way, the store's rate limit, and the network.

use super::model::StoreModel;
use super::spans::{Nanos, Spans};
use feedstock_base::StoreProfile;
use feedstock_dataset::Extent;
use std::collections::VecDeque;

const NANOS_PER_S: f64 = 1e9;

/// A first byte later than this number of standard deviations is requested a second time: one in 100.
const HEDGE_SIGMAS: f64 = 2.326;

/// A hedge draws its time from another seed.
const HEDGE_SEED: u64 = 0x5EED;

/// A request that was sent.
pub(super) struct Sent {
    pub(super) extent: Extent,
    pub(super) bytes: f64,
    pub(super) end: Nanos,
}

/// Requests that wait and that are under way, and what they have kept busy.
pub(super) struct Requests {
    model: StoreModel,
    waiting: VecDeque<(Extent, f64)>,
    under_way: usize,
    sent: u64,
    /// When the store serves the next request.
    next_served: Nanos,
    /// When the network is free.
    network_free: Nanos,
    under_way_spans: Spans,
    first_byte_spans: Spans,
    rate_spans: Spans,
    network_spans: Spans,
}

/// Nanoseconds that have passed, added up over the requests.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RequestsBusy {
    /// From the time when the store serves a request to its end.
    pub(super) under_way: Nanos,
    /// Of these, those until the first byte.
    pub(super) first_byte: Nanos,
    /// Of the store's rate limit.
    pub(super) rate: Nanos,
    /// Of the network.
    pub(super) network: Nanos,
}

impl Requests {
    pub(super) fn new(model: &StoreModel) -> Self {
        Self {
            model: model.clone(),
            waiting: VecDeque::new(),
            under_way: 0,
            sent: 0,
            next_served: 0,
            network_free: 0,
            under_way_spans: Spans::default(),
            first_byte_spans: Spans::default(),
            rate_spans: Spans::default(),
            network_spans: Spans::default(),
        }
    }

    /// Queues the requests of an extent.
    pub(super) fn add(&mut self, extent: Extent, requests: u32, bytes: u64) {
        let each = bytes as f64 / f64::from(requests.max(1));
        self.waiting.extend((0..requests).map(|_| (extent, each)));
    }

    /// Sends the next request at `now`, if one waits and the limit allows it.
    pub(super) fn send(&mut self, now: Nanos) -> Option<Sent> {
        if self.under_way >= self.model.concurrency {
            return None;
        }
        let (extent, bytes) = self.waiting.pop_front()?;
        let begin = now.max(self.next_served);
        let turn = nanos(1.0 / self.model.profile.requests_per_s);
        self.next_served = begin.saturating_add(turn);
        let (first_byte, rate) = answer(&self.model.profile, self.model.seed, self.sent);
        let arrived = begin.saturating_add(nanos(first_byte));
        let mut end = arrived.saturating_add(nanos(bytes / rate));
        let on_network = nanos(bytes / self.model.bytes_per_s);
        if on_network > 0 {
            self.network_free = self.network_free.max(arrived).saturating_add(on_network);
            end = end.max(self.network_free);
            self.network_spans.add(self.network_free - on_network, self.network_free);
        }
        self.sent += 1;
        self.under_way += 1;
        self.under_way_spans.add(begin, end);
        self.first_byte_spans.add(begin, arrived);
        self.rate_spans.add(begin, self.next_served);
        Some(Sent { extent, bytes, end })
    }

    /// Returns how busy everything was until `now`.
    pub(super) fn busy(&mut self, now: Nanos) -> RequestsBusy {
        RequestsBusy {
            under_way: self.under_way_spans.until(now),
            first_byte: self.first_byte_spans.until(now),
            rate: self.rate_spans.until(now),
            network: self.network_spans.until(now),
        }
    }

    /// Ends a request that was sent.
    pub(super) fn ended(&mut self) {
        self.under_way -= 1;
    }
}

/// Returns the seconds until the first byte of request `number`, and the bytes per second of its body. A late or lost answer
/// is requested a second time.
fn answer(profile: &StoreProfile, seed: u64, number: u64) -> (f64, f64) {
    let fate = profile.fate(seed, number);
    let late = profile.first_byte.as_secs_f64() * (HEDGE_SIGMAS * profile.first_byte_sigma).exp();
    let first = fate.first_byte.map_or(f64::INFINITY, |time| time.as_secs_f64());
    if first <= late {
        return (first, fate.bytes_per_s);
    }
    let hedge = profile.fate(seed ^ HEDGE_SEED, number);
    // The hedge of a lost request that is lost, too, is followed by another one after twice the time.
    let second = hedge.first_byte.map_or(3.0 * late, |time| late + time.as_secs_f64());
    match second < first {
        true => (second, hedge.bytes_per_s),
        false => (first, fate.bytes_per_s),
    }
}

/// Converts seconds; the cast saturates.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative; saturates")]
pub(super) fn nanos(seconds: f64) -> Nanos {
    (seconds * NANOS_PER_S).round() as Nanos
}

/// Converts to seconds.
pub(super) fn seconds(nanos: Nanos) -> f64 {
    nanos as f64 / NANOS_PER_S
}

#[cfg(test)]
mod tests {
    use super::*;
    use feedstock_dataset::BlockId;

    fn exact() -> StoreProfile {
        let s3 = StoreProfile::S3;
        StoreProfile {
            first_byte_sigma: 0.0,
            bytes_per_s_sigma: 0.0,
            slow_share: 0.0,
            stuck_share: 0.0,
            lost_share: 0.0,
            trickle_share: 0.0,
            ..s3
        }
    }

    fn model(profile: StoreProfile) -> StoreModel {
        StoreModel { profile, bytes_per_s: f64::INFINITY, concurrency: 2, seed: 1 }
    }

    fn extent(block: u32) -> Extent {
        Extent::new(BlockId(block), 0..1)
    }

    #[test]
    fn requests_take_the_latency_and_the_body_and_no_more_than_the_limit_are_under_way() {
        let mut requests = Requests::new(&model(exact()));
        requests.add(extent(0), 3, 3 * 8_500_000);
        let ends: Vec<Nanos> = std::iter::from_fn(|| requests.send(0)).map(|sent| sent.end).collect();
        let turn = nanos(1.0 / 5_500.0);
        assert_eq!(ends, [127_000_000, 127_000_000 + turn], "the third waits for a permit");
        requests.ended();
        assert_eq!(requests.send(ends[0]).unwrap().end, ends[0] + 127_000_000);
    }

    #[test]
    fn the_network_is_shared_by_all_requests() {
        let mut requests = Requests::new(&StoreModel { bytes_per_s: 85e6, ..model(exact()) });
        requests.add(extent(0), 1, 8_500_000);
        requests.add(extent(1), 1, 8_500_000);
        let ends: Vec<Nanos> = std::iter::from_fn(|| requests.send(0)).map(|sent| sent.end).collect();
        assert_eq!(ends, [127_000_000, 227_000_000]);
    }

    #[test]
    fn the_slowest_answers_are_those_of_hedged_requests() {
        let mut times: Vec<f64> =
            (0..200_001).map(|number| answer(&StoreProfile::S3, 3, number).0 * 1e3).collect();
        times.sort_by(f64::total_cmp);
        assert!((times[100_000] / 27.0 - 1.0).abs() < 0.02, "{}", times[100_000]);
        assert!((times[198_000] / 114.0 - 1.0).abs() < 0.05, "{}", times[198_000]);
        assert!(times[200_000] < 500.0, "no request is stuck for {} ms", times[200_000]);
    }
}
