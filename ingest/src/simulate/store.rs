//! A model of a store: the time of each request, drawn from a seed.

use std::f64::consts::TAU;

const NANOS_PER_S: f64 = 1e9;

/// How a store answers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoreModel {
    /// The median time until the first byte, in seconds.
    pub first_byte_s: f64,
    /// The standard deviation of its logarithm.
    pub first_byte_sigma: f64,
    /// Bytes per second of a connection.
    pub bytes_per_s: f64,
    /// Requests per second that the store serves.
    pub requests_per_s: f64,
    /// Requests that are under way at once, at most.
    pub concurrency: usize,
}

impl StoreModel {
    /// Returns whether every figure can be simulated.
    pub(super) fn is_valid(&self) -> bool {
        let times = [self.first_byte_s, self.first_byte_sigma];
        let rates = [self.bytes_per_s, self.requests_per_s];
        times.iter().all(|time| time.is_finite() && *time >= 0.0)
            && rates.iter().all(|rate| *rate > 0.0)
            && self.concurrency > 0
    }

    /// Returns how long request `number` takes for `bytes`.
    pub(super) fn request_ns(&self, seed: u64, number: u64, bytes: f64) -> u64 {
        let (first, second) = (uniform(seed, 2 * number), uniform(seed, 2 * number + 1));
        let normal = (-2.0 * first.ln()).sqrt() * (TAU * second).cos();
        let latency = self.first_byte_s * (self.first_byte_sigma * normal).exp();
        nanos(latency + bytes / self.bytes_per_s)
    }
}

/// Converts seconds; the cast saturates.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative; saturates")]
pub(super) fn nanos(seconds: f64) -> u64 {
    (seconds * NANOS_PER_S).round() as u64
}

/// Returns a number uniform in (0, 1).
fn uniform(seed: u64, number: u64) -> f64 {
    let mut bits = seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x9E37_79B9_7F4A_7C15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64 + f64::EPSILON / 4.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_times_have_the_median_and_the_rate_of_the_model() {
        let model = StoreModel {
            first_byte_s: 0.027,
            first_byte_sigma: 0.62,
            bytes_per_s: 85e6,
            requests_per_s: 5_500.0,
            concurrency: 32,
        };
        let mut times: Vec<u64> = (0..20_001).map(|number| model.request_ns(1, number, 0.0)).collect();
        times.sort_unstable();
        let median = times[10_000] as f64 / 1e9;
        assert!((median / 0.027 - 1.0).abs() < 0.03, "{median}");
        let fixed = StoreModel { first_byte_sigma: 0.0, ..model };
        assert_eq!(fixed.request_ns(1, 5, 85e6), 1_027_000_000);
        assert_ne!(model.request_ns(1, 5, 0.0), model.request_ns(2, 5, 0.0));
    }
}
