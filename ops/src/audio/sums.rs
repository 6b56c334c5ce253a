//! Sums over a waveform in double precision: eight partial sums, added in a fixed order, so that the result is the
//! same on every machine and the loop fills vector registers.

const LANES: usize = 8;

fn sum_of(wave: &[f32], term: impl Fn(f64) -> f64) -> f64 {
    let mut lanes = [0.0; LANES];
    let blocks = wave.chunks_exact(LANES);
    let rest: f64 = blocks.remainder().iter().map(|&x| term(f64::from(x))).sum();
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane += term(f64::from(x));
        }
    }
    lanes.iter().sum::<f64>() + rest
}

/// Returns Σ x.
pub(crate) fn sum(wave: &[f32]) -> f64 {
    sum_of(wave, |x| x)
}

/// Returns Σ x².
pub(crate) fn energy(wave: &[f32]) -> f64 {
    sum_of(wave, |x| x * x)
}

/// Returns Σ (x − mean)².
pub(crate) fn squared_deviation(wave: &[f32], mean: f64) -> f64 {
    sum_of(wave, |x| (x - mean) * (x - mean))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_count_every_element_once() {
        let wave: Vec<f32> = (0..21_u8).map(|i| f32::from(i) - 3.0).collect();
        assert!((sum(&wave) - 147.0).abs() < 1e-12);
        assert!((energy(&wave) - 1799.0).abs() < 1e-9);
        assert!((squared_deviation(&wave, 7.0) - 770.0).abs() < 1e-9);
        assert!(sum(&[]).abs() < 1e-300);
    }
}
