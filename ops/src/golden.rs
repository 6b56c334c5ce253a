//! Golden references for unit tests: `tests/golden/make_references.py` computes them.
//!
//! Cargo runs tests in their package's folder. Paths are relative to it, since checkouts may share a target folder.

use std::path::PathBuf;

use serde_json::Value;

use crate::image::warp::Interpolation;

pub(crate) fn path(name: &str) -> PathBuf {
    ["tests", "golden", name].iter().collect()
}

pub(crate) fn references() -> Value {
    serde_json::from_slice(&std::fs::read(path("references.json")).unwrap()).unwrap()
}

/// The CPU time of this thread for `work`, and its result.
pub(crate) fn cpu_time<T>(work: impl FnOnce() -> T) -> (std::time::Duration, T) {
    let now = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is valid for the write.
        assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
        std::time::Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
    };
    let before = now();
    let result = std::hint::black_box(work());
    (now() - before, result)
}

/// A warp or augmentation must give the reference's pixels. Bilinear sums round differently where the exact value is a whole number: a
/// level in under 1 %.
pub(crate) fn assert_warped(pixels: &[u8], expected: &[u8], interpolation: Interpolation, case: &Value) {
    let differing = pixels.iter().zip(expected).filter(|(a, b)| a != b).count();
    let most = pixels.iter().zip(expected).map(|(a, b)| a.abs_diff(*b)).max();
    let allowed = if interpolation == Interpolation::Nearest { (0, 0) } else { (pixels.len() / 100, 1) };
    assert!(differing <= allowed.0 && most <= Some(allowed.1), "{case}: {differing} by up to {most:?}");
}

/// A statistic of `values` must lie within `sigmas` standard errors of the reference's (both sides are sampled).
pub(crate) fn assert_same_distribution(values: &[f64], reference: &Value, what: &str) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let std = (values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
    let field = |name: &str| reference[name].as_f64().unwrap();
    let error = field("std") * (1.0 / n + 1.0 / field("draws")).sqrt();
    // Five standard errors; the standard deviation's own is below the mean's for these bounded distributions.
    assert!((mean - field("mean")).abs() < 5.0 * error, "{what}: mean {mean}, reference {reference}");
    assert!((std - field("std")).abs() < 5.0 * error, "{what}: std {std}, reference {reference}");
}
