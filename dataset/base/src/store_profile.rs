//! How a real object store answers: the latency, rate and failures of each request, drawn from a seed.
//!
//! A request's [`Fate`] is a pure function of (profile, seed, number of the request). Figures of [`StoreProfile::S3`]: published
//! measurements of Amazon S3 from the same region. Its percentiles of the first byte are 27 ms (p50), 75 ms (p95) and 114 ms
//! (p99).

use std::f64::consts::TAU;
use std::ops::Range;
use std::time::Duration;

/// The behaviour of a store.
///
/// ```
/// use feedstock_base::StoreProfile;
///
/// let profile = StoreProfile::named("far").unwrap();
/// assert_eq!(profile.fate(7, 1), profile.fate(7, 1)); // a pure function
/// assert_ne!(profile.fate(7, 1), profile.fate(7, 2));
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct StoreProfile {
    /// The median time until the first byte.
    pub first_byte: Duration,
    /// The standard deviation of its logarithm.
    pub first_byte_sigma: f64,
    /// The share of requests whose first byte takes one of the times `slow`.
    pub slow_share: f64,
    /// The range of uniform times of slow requests.
    pub slow: Range<Duration>,
    /// The share of requests whose first byte takes the time `stuck`.
    pub stuck_share: f64,
    /// The time of stuck requests.
    pub stuck: Duration,
    /// The share of requests that are never answered.
    pub lost_share: f64,
    /// The median rate of a connection.
    pub bytes_per_s: f64,
    /// The standard deviation of its logarithm.
    pub bytes_per_s_sigma: f64,
    /// The share of bodies that come at a tenth of the rate.
    pub trickle_share: f64,
    /// Requests per second of all clients together, above which the answer is 503 SlowDown.
    pub requests_per_s: f64,
}

/// What happens to one request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fate {
    /// The time until the first byte; `None` if no answer ever comes.
    pub first_byte: Option<Duration>,
    /// The rate of the body.
    pub bytes_per_s: f64,
}

impl StoreProfile {
    /// Amazon S3 from the same region.
    pub const S3: Self = Self {
        first_byte: Duration::from_millis(27),
        first_byte_sigma: 0.62,
        slow_share: 1e-4,
        slow: Duration::from_millis(500)..Duration::from_secs(2),
        stuck_share: 1e-5,
        stuck: Duration::from_secs(10),
        lost_share: 1e-4,
        bytes_per_s: 85e6,
        bytes_per_s_sigma: 0.25,
        trickle_share: 0.01,
        requests_per_s: 5_500.0,
    };

    /// A store in the same availability zone, such as S3 Express One Zone.
    pub const EXPRESS: Self =
        Self { first_byte: Duration::from_millis(5), first_byte_sigma: 0.2, ..Self::S3 };

    /// A store on another continent.
    pub const FAR: Self = Self { first_byte: Duration::from_millis(150), first_byte_sigma: 0.7, ..Self::S3 };

    /// Files of this machine in the page cache: no answer is late or lost.
    pub const LOCAL: Self = Self {
        first_byte: Duration::from_micros(50),
        first_byte_sigma: 0.3,
        slow_share: 0.0,
        stuck_share: 0.0,
        lost_share: 0.0,
        bytes_per_s: 2e9,
        trickle_share: 0.0,
        requests_per_s: 1e9,
        ..Self::S3
    };

    /// Returns the profile `s3`, `express`, `far` or `local`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "s3" => Some(Self::S3),
            "express" => Some(Self::EXPRESS),
            "far" => Some(Self::FAR),
            "local" => Some(Self::LOCAL),
            _ => None,
        }
    }

    /// Draws what happens to the request with this number.
    pub fn fate(&self, seed: u64, request: u64) -> Fate {
        let mut draws = Draws::new(seed, request);
        let kind = draws.uniform();
        let latency = self.first_byte.mul_f64((self.first_byte_sigma * draws.normal()).exp());
        let (slow_from, stuck_from) = (self.lost_share, self.lost_share + self.slow_share);
        let first_byte = match kind {
            _ if kind < slow_from => None,
            _ if kind < stuck_from => {
                Some(self.slow.start + (self.slow.end - self.slow.start).mul_f64(draws.uniform()))
            }
            _ if kind < stuck_from + self.stuck_share => Some(self.stuck),
            _ => Some(latency),
        };
        let rate = self.bytes_per_s * (self.bytes_per_s_sigma * draws.normal()).exp();
        let part = if draws.uniform() < self.trickle_share { 0.1 } else { 1.0 };
        Fate { first_byte, bytes_per_s: rate * part }
    }

    /// Returns the time until an overloaded store answers 503.
    pub fn refusal(&self) -> Duration {
        self.first_byte / 4
    }
}

/// Independent draws for one request.
struct Draws {
    state: u64,
}

impl Draws {
    fn new(seed: u64, request: u64) -> Self {
        Self { state: mixed(mixed(seed) ^ request) }
    }

    /// Returns a number uniform in (0, 1).
    fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        ((mixed(self.state) >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Returns a number of the standard normal distribution (Box–Muller).
    fn normal(&mut self) -> f64 {
        let (radius, angle) = ((-2.0 * self.uniform().ln()).sqrt(), TAU * self.uniform());
        radius * angle.cos()
    }
}

/// The finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
fn mixed(state: u64) -> u64 {
    let state = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let state = (state ^ (state >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    state ^ (state >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REQUESTS: u64 = 1_000_000;

    fn percentile(sorted: &[f64], share: f64) -> f64 {
        sorted[(sorted.len() as f64 * share) as usize]
    }

    fn near(value: f64, expected: f64, tolerance: f64) -> bool {
        (value / expected - 1.0).abs() < tolerance
    }

    #[test]
    fn a_million_requests_have_the_published_percentiles_and_shares() {
        let fates: Vec<Fate> = (0..REQUESTS).map(|request| StoreProfile::S3.fate(11, request)).collect();
        let lost = fates.iter().filter(|fate| fate.first_byte.is_none()).count();
        assert!((60..140).contains(&lost), "{lost} of 100");
        let mut times: Vec<f64> =
            fates.iter().filter_map(|f| f.first_byte).map(|t| t.as_secs_f64()).collect();
        times.sort_by(f64::total_cmp);
        for (share, millis) in [(0.5, 27.0), (0.95, 75.0), (0.99, 114.0)] {
            let found = percentile(&times, share) * 1e3;
            assert!(near(found, millis, 0.02), "p{share}: {found} ms, not {millis}");
        }
        let stuck = times.iter().filter(|time| **time == 10.0).count();
        assert!((1..30).contains(&stuck), "{stuck} of 10");
        let slow = times.iter().filter(|time| (0.6..2.0).contains(*time)).count();
        assert!((50..140).contains(&slow), "{slow} of 93");
        let mut rates: Vec<f64> = fates.iter().map(|fate| fate.bytes_per_s).collect();
        rates.sort_by(f64::total_cmp);
        assert!(near(percentile(&rates, 0.505), 85e6, 0.01), "{}", percentile(&rates, 0.505));
        let trickles = rates.iter().filter(|rate| **rate < 25e6).count();
        assert!((9_500..10_500).contains(&trickles), "{trickles} of 10,000");
    }

    #[test]
    fn profiles_differ_in_their_latencies() {
        for (name, millis, sigma) in [("express", 5.0, 0.2), ("far", 150.0, 0.7)] {
            let profile = StoreProfile::named(name).unwrap();
            let fates = (0..20_000).map(|request| profile.fate(3, request));
            let mut times: Vec<f64> = fates.filter_map(|f| f.first_byte).map(|t| t.as_secs_f64()).collect();
            times.sort_by(f64::total_cmp);
            assert!(near(percentile(&times, 0.5) * 1e3, millis, 0.03), "{name}");
            let p84 = percentile(&times, 0.8413) / percentile(&times, 0.5); // one standard deviation
            assert!(near(p84.ln(), sigma, 0.05), "{name}: {p84}");
        }
        assert_eq!(StoreProfile::named("S3"), None);
    }

    #[test]
    fn fates_depend_on_seed_and_number_alone() {
        let fates = |seed| (0..100).map(|n| StoreProfile::S3.fate(seed, n)).collect::<Vec<_>>();
        assert_eq!(fates(1), fates(1));
        assert_ne!(fates(1), fates(2));
        // Pinned, so that figures of different versions are of the same requests.
        let pinned = StoreProfile::S3.fate(1, 0).first_byte.unwrap().as_micros();
        assert_eq!(pinned, 19_144);
    }
}
