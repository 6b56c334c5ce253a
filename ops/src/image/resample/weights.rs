//! The weight of each source pixel in each result pixel, along one side of an image.
//!
//! Computed in f64 and then rounded to i16 at the highest precision that the largest weight allows. The bits are those
//! of fast_image_resize 6, so the order of the operations matters.

use super::super::geometry::Filter;

/// Limit on the fractional bits of a weight. A sum has 32 bits; 8 are for the sample, one for the sign, and some for
/// filters that overshoot.
const MAX_PRECISION: u32 = 21;

/// One side of an image: of its `source` pixels, the `length` from `start` become `target` pixels.
#[derive(Clone, Copy)]
pub(super) struct Side {
    pub(super) source: u32,
    pub(super) start: f64,
    pub(super) length: f64,
    pub(super) target: u32,
}

impl Side {
    /// Returns whether every result pixel is a copy of a source pixel.
    #[expect(clippy::float_cmp, reason = "the question is whether they are whole numbers")]
    pub(super) fn is_copied(self) -> bool {
        f64::from(self.target) == self.length && self.start == self.start.round()
    }
}

/// The source pixels of one result pixel: `count` of them, starting at `first`.
#[derive(Clone, Copy, Default)]
pub(super) struct Taps {
    /// Counted from [`Weights::start`].
    pub(super) first: u32,
    pub(super) count: u32,
}

/// The weights of one side. Its buffers are reused.
#[derive(Default)]
pub(super) struct Weights {
    /// The first source pixel with a weight.
    pub(super) start: usize,
    /// The number of source pixels from there to the last one with a weight.
    pub(super) length: usize,
    /// The taps of each result, then empty ones up to a multiple of four.
    pub(super) taps: Vec<Taps>,
    /// Pairs of 16-bit weights, the first in the low half. Each result has `stride` pairs; those past its count are zero.
    pub(super) pairs: Vec<i32>,
    /// The pairs of each result: one, or an even number.
    pub(super) stride: usize,
    /// Source pixels that must be readable from `start`, so that `stride` pairs can be read for every result. Those past
    /// `length` may have any value.
    pub(super) readable: usize,
    /// Fractional bits.
    pub(super) precision: u32,
    /// The weights before rounding, `width` of them for each result.
    exact: Vec<f64>,
    width: usize,
}

impl Weights {
    pub(super) fn kept_bytes(&self) -> usize {
        self.taps.capacity() * size_of::<Taps>()
            + self.pairs.capacity() * size_of::<i32>()
            + self.exact.capacity() * size_of::<f64>()
    }

    /// Returns for each result its first source pixel, and the weights from there on before rounding.
    pub(super) fn exact(&self) -> impl Iterator<Item = (usize, &[f64])> {
        let taps = self.taps.iter().filter(|taps| taps.count > 0);
        taps.zip(self.exact.chunks_exact(self.width))
            .map(|(taps, exact)| (self.start + taps.first as usize, &exact[..taps.count as usize]))
    }

    /// Computes the weights of `filter` on `side`.
    pub(super) fn fill(&mut self, side: Side, filter: Filter) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was just detected.
            return unsafe { self.fill_avx2(side, filter) };
        }
        self.fill_anywhere(side, filter);
    }

    /// The same code, compiled with AVX2 so that rounding is an instruction instead of a call.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    fn fill_avx2(&mut self, side: Side, filter: Filter) {
        self.fill_anywhere(side, filter);
    }

    #[inline(always)]
    fn fill_anywhere(&mut self, side: Side, filter: Filter) {
        match filter {
            Filter::Nearest => unreachable!("the nearest pixel needs no weights"),
            Filter::Bilinear => self.weigh(side, filter, triangle),
            Filter::Bicubic => self.weigh(side, filter, catmull_rom),
            Filter::Lanczos => self.weigh(side, filter, lanczos),
        }
    }

    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the source's pixels")]
    fn weigh(&mut self, side: Side, filter: Filter, kernel: impl Fn(f64) -> f64) {
        let Self { taps, exact, .. } = self;
        let scale = (side.start + side.length - side.start) / f64::from(side.target);
        let reach = filter.reach(scale);
        let shrink = 1.0 / scale.max(1.0);
        let (mut start, mut end, mut most, mut heaviest) = (u32::MAX, 0, 0, 0.0_f64);
        // A reach of r pixels to either side touches at most 2⌈r⌉ + 1; one more for rounding.
        let width = reach.ceil() as usize * 2 + 2;
        let length = width * side.target as usize;
        if exact.len() < length {
            exact.resize(length, 0.0);
        }
        taps.clear();
        for (result, exact) in (0..side.target).zip(exact.chunks_exact_mut(width)) {
            let centre = side.start + (f64::from(result) + 0.5) * scale;
            let first = (centre - reach).floor().max(0.0) as u32;
            let last = (centre + reach).ceil().min(f64::from(side.source)) as u32;
            let middle = centre - 0.5;
            let exact = &mut exact[..last.saturating_sub(first) as usize];
            let mut sum = 0.0;
            for (exact, pixel) in exact.iter_mut().zip(first..last) {
                *exact = kernel((f64::from(pixel) - middle) * shrink);
                sum += *exact;
            }
            if sum != 0.0 {
                for weight in &mut *exact {
                    *weight /= sum;
                    heaviest = heaviest.max(*weight);
                }
            }
            let zeros = exact.iter().take_while(|weight| **weight == 0.0).count();
            let zeros_behind = exact[zeros..].iter().rev().take_while(|weight| **weight == 0.0).count();
            if zeros > 0 {
                exact.copy_within(zeros.., 0);
            }
            let (first, count) = (first + zeros as u32, (exact.len() - zeros - zeros_behind) as u32);
            taps.push(Taps { first, count });
            (start, end, most) = (start.min(first), end.max(first + count), most.max(count));
        }
        self.start = start as usize;
        self.length = end.saturating_sub(start) as usize;
        self.width = width;
        self.round(start, most as usize, heaviest, width);
    }

    /// Rounds the exact weights to 16 bits.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "the precision is such that the heaviest fits")]
    fn round(&mut self, start: u32, most: usize, heaviest: f64, width: usize) {
        self.precision = (0..MAX_PRECISION)
            .find(|precision| (heaviest * f64::from(2_u32 << precision)).round() >= 32_768.0)
            .unwrap_or(MAX_PRECISION);
        let one = f64::from(1_u32 << self.precision);
        self.stride = if most <= 2 { 1 } else { most.next_multiple_of(4) / 2 };
        let results = self.taps.len().next_multiple_of(4);
        self.pairs.clear();
        self.pairs.resize(results * self.stride, 0);
        self.readable = 0;
        let exact = self.exact.chunks_exact(width);
        for ((taps, pairs), exact) in
            self.taps.iter_mut().zip(self.pairs.chunks_exact_mut(self.stride)).zip(exact)
        {
            taps.first -= start;
            self.readable = self.readable.max(taps.first as usize + self.stride * 2);
            for (pair, exact) in pairs.iter_mut().zip(exact[..taps.count as usize].chunks(2)) {
                let low = (exact[0] * one).round() as i16;
                let high = exact.get(1).map_or(0, |exact| (exact * one).round() as i16);
                *pair = pack(low, high);
            }
        }
        self.taps.resize(results, Taps::default());
    }
}

/// Packs two weights into one integer.
fn pack(low: i16, high: i16) -> i32 {
    i32::from(high) << 16 | i32::from(low.cast_unsigned())
}

/// Returns the two weights of a pair.
#[expect(clippy::cast_possible_truncation, reason = "the low half")]
pub(super) fn unpack(pair: i32) -> [i32; 2] {
    [i32::from(pair as i16), pair >> 16]
}

#[inline(always)]
fn triangle(x: f64) -> f64 {
    (1.0 - x.abs()).max(0.0)
}

/// Keys' cubic with a = −0.5.
#[inline(always)]
fn catmull_rom(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

#[inline(always)]
fn lanczos(x: f64) -> f64 {
    if (-3.0..3.0).contains(&x) { sinc(x) * sinc(x / 3.0) } else { 0.0 }
}

#[inline(always)]
fn sinc(x: f64) -> f64 {
    let angle = x * std::f64::consts::PI;
    if x == 0.0 { 1.0 } else { libm::sin(angle) / angle }
}
