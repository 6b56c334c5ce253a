//! Separable resampling of RGB bytes, in two passes with 16-bit weights.
//!
//! ```text
//! source rows ── down the columns ──▶ two rows, in the L1 cache ── along the rows ──▶ two rows of the result
//! ```
//!
//! The result is bit for bit that of fast_image_resize 6, which the tests compare with. That crate takes two to three
//! times as long (`cargo bench -p feedstock-ops --bench decode_chain` measures it too). This code allocates nothing per
//! call, keeps only two rows between the passes, and makes four pixels of both rows at once. Each pass has two kernels,
//! AVX2 and plain Rust, which give the same bits.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod rows;
mod weights;
mod wide;

pub(super) use self::rows::Source;
use self::rows::{ROW_PADDING, RowTaps, Rows};
use self::weights::{Side, Weights, unpack};
use super::geometry::{Filter, Size, Window};
use crate::image::buffer::Buffer;

/// Resamples with filters; keeps weights and rows.
#[derive(Default)]
pub(super) struct Resampler {
    columns: Weights,
    rows: Weights,
    /// The rows between the passes, and one for results that are not used.
    between: Buffer,
}

/// Which kernels run; only [`Kernels::detect`] makes `Avx2`.
#[derive(Clone, Copy, Debug)]
enum Kernels {
    #[cfg(target_arch = "x86_64")]
    Avx2,
    Plain,
}

impl Kernels {
    fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            return Self::Avx2;
        }
        Self::Plain
    }
}

impl Resampler {
    pub(super) fn kept_bytes(&self) -> usize {
        self.between.kept_bytes() + self.columns.kept_bytes() + self.rows.kept_bytes()
    }

    /// Resamples `window` into `out`, dense and of size `to`. The window is relative to the view, and the view's pixels
    /// around it have weights too.
    pub(super) fn resample(
        &mut self,
        source: Source<'_>,
        window: Window,
        (out, to): (&mut [u8], Size),
        filter: Filter,
    ) {
        self.run(Kernels::detect(), source, window, (out, to), filter);
    }

    /// Resamples grey values of 16 bits, a pixel in three bytes. One direction of the window is copied.
    pub(super) fn resample_wide(
        &mut self,
        source: Source<'_>,
        window: Window,
        out: (&mut [u8], Size),
        filter: Filter,
    ) {
        wide::resample(&mut self.columns, source, window, out, filter);
    }

    fn run(
        &mut self,
        kernels: Kernels,
        Source { pixels, stride, view }: Source<'_>,
        window: Window,
        (out, to): (&mut [u8], Size),
        filter: Filter,
    ) {
        let across = Side { source: view.width, start: window.left, length: window.width, target: to.width };
        let down = Side { source: view.height, start: window.top, length: window.height, target: to.height };
        let Self { columns, rows: row_weights, between } = self;
        let x = prepare(columns, across, filter);
        let y = prepare(row_weights, down, filter);
        let start = (view.y as usize + y) * stride + view.x as usize + x;
        let source = Rows { pixels: &pixels[start * 3..], pitch: stride * 3 };
        let row_weights = (!down.is_copied()).then_some(&*row_weights);
        let line = to.width as usize * 3;
        if across.is_copied() {
            for (row, out) in out.chunks_exact_mut(line).enumerate() {
                self::down(kernels, source, row_weights, row, out);
            }
            return;
        }
        // Room for two source rows, and for a result row that is not used.
        let length = columns.length * 3;
        let padded = columns.readable * 3 + ROW_PADDING;
        let (rows, spare) = between.take(padded * 2 + line).split_at_mut(padded * 2);
        let (upper, lower) = rows.split_at_mut(padded);
        for (pair, out) in out.chunks_mut(line * 2).enumerate() {
            self::down(kernels, source, row_weights, pair * 2, &mut upper[..length]);
            let (out, second) = out.split_at_mut(line);
            if second.is_empty() {
                self::across(kernels, [upper, upper], columns, [out, spare]);
            } else {
                self::down(kernels, source, row_weights, pair * 2 + 1, &mut lower[..length]);
                self::across(kernels, [upper, lower], columns, [out, second]);
            }
        }
    }
}

/// Returns the first source pixel that is needed. Fills the weights unless pixels are just copied.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the source's pixels")]
fn prepare(weights: &mut Weights, side: Side, filter: Filter) -> usize {
    if side.is_copied() {
        return side.start as usize;
    }
    weights.fill(side, filter);
    weights.start
}

/// Computes row `row` of the pass down the columns; without weights, it is a source row.
fn down(kernels: Kernels, source: Rows<'_>, weights: Option<&Weights>, row: usize, out: &mut [u8]) {
    let Some(weights) = weights else {
        let start = row * source.pitch;
        return out.copy_from_slice(&source.pixels[start..start + out.len()]);
    };
    let taps = RowTaps {
        first: weights.taps[row].first as usize,
        count: weights.taps[row].count as usize,
        pairs: &weights.pairs[row * weights.stride..][..weights.stride],
        precision: weights.precision,
    };
    #[cfg(target_arch = "x86_64")]
    if matches!(kernels, Kernels::Avx2) && out.len() >= avx2::BYTES && taps.count > 0 {
        // SAFETY: only `Kernels::detect` makes `Avx2`, if the CPU has the feature.
        return unsafe { avx2::down(source, taps, out) };
    }
    down_plain(source, taps, out);
}

fn down_plain(source: Rows<'_>, taps: RowTaps<'_>, out: &mut [u8]) {
    const BLOCK: usize = 64; // so few sums that they stay in registers or the L1 cache
    let mut start = taps.first * source.pitch;
    for out in out.chunks_mut(BLOCK) {
        let mut sums = [1_i32 << (taps.precision - 1); BLOCK];
        for (row, weight) in taps.pairs.iter().flat_map(|pair| unpack(*pair)).take(taps.count).enumerate() {
            let row = &source.pixels[start + row * source.pitch..][..out.len()];
            for (sum, value) in sums.iter_mut().zip(row) {
                *sum += i32::from(*value) * weight;
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = sample(sum, taps.precision);
        }
        start += out.len();
    }
}

/// Runs the pass along two rows, which are readable as far as the weights require.
fn across(kernels: Kernels, rows: [&[u8]; 2], weights: &Weights, out: [&mut [u8]; 2]) {
    #[cfg(target_arch = "x86_64")]
    if matches!(kernels, Kernels::Avx2) {
        // SAFETY: only `Kernels::detect` makes `Avx2`, if the CPU has the feature.
        return unsafe { avx2::across(rows, weights, out) };
    }
    for (row, out) in rows.into_iter().zip(out) {
        across_plain(row, weights, out);
    }
}

fn across_plain(row: &[u8], weights: &Weights, out: &mut [u8]) {
    let results = weights.taps.iter().zip(weights.pairs.chunks_exact(weights.stride));
    for (out, (taps, pairs)) in out.chunks_exact_mut(3).zip(results) {
        let mut sums = [1_i32 << (weights.precision - 1); 3];
        let pixels = row[taps.first as usize * 3..].chunks_exact(3);
        for (weight, pixel) in
            pairs.iter().flat_map(|pair| unpack(*pair)).zip(pixels.take(taps.count as usize))
        {
            for (sum, value) in sums.iter_mut().zip(pixel) {
                *sum += i32::from(*value) * weight;
            }
        }
        for (out, sum) in out.iter_mut().zip(sums) {
            *out = sample(sum, weights.precision);
        }
    }
}

#[inline(always)]
fn sample(sum: i32, precision: u32) -> u8 {
    (sum >> precision).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use fast_image_resize::images::{CroppedImage, Image, ImageRef};
    use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

    use super::*;
    use crate::image::geometry::Rect;
    use crate::seed::{Generator, SampleSeed};

    const FILTERS: [(Filter, FilterType); 3] = [
        (Filter::Bilinear, FilterType::Bilinear),
        (Filter::Bicubic, FilterType::CatmullRom),
        (Filter::Lanczos, FilterType::Lanczos3),
    ];

    fn reference(source: Source<'_>, window: Window, to: Size, filter: FilterType) -> Vec<u8> {
        let Source { pixels, stride, view } = source;
        let stride = u32::try_from(stride).unwrap();
        let height = u32::try_from(pixels.len()).unwrap() / 3 / stride;
        let source = ImageRef::new(stride, height, pixels, PixelType::U8x3).unwrap();
        let source = CroppedImage::new(&source, view.x, view.y, view.width, view.height).unwrap();
        let mut out = vec![0; to.rgb_bytes()];
        let mut target = Image::from_slice_u8(to.width, to.height, &mut out, PixelType::U8x3).unwrap();
        let Window { left, top, width, height } = window;
        let options =
            ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter)).crop(left, top, width, height);
        Resizer::new().resize(&source, &mut target, &options).unwrap();
        out
    }

    /// Compares all kernels with fast_image_resize.
    fn check(resampler: &mut Resampler, source: Source<'_>, window: Window, to: Size) {
        for (filter, reference_filter) in FILTERS {
            let expected = reference(source, window, to, reference_filter);
            for kernels in [Kernels::detect(), Kernels::Plain] {
                let mut out = vec![0xA5; to.rgb_bytes()];
                resampler.run(kernels, source, window, (&mut out, to), filter);
                assert!(out == expected, "{kernels:?} {filter:?} {:?} {window:?} {to:?}", source.view);
            }
        }
    }

    fn noise(generator: &mut Generator, bytes: usize) -> Vec<u8> {
        // Mostly the extreme values, so that filters overshoot.
        let byte =
            |word: u64| if word & 0x300 == 0 { word.to_le_bytes()[0] } else { 255 * (word >> 63) as u8 };
        (0..bytes).map(|_| byte(generator.next_u64())).collect()
    }

    fn span(generator: &mut Generator, limit: u32, kind: u32) -> (f64, f64) {
        let whole = generator.below(limit);
        let length = 1 + generator.below(limit - whole);
        match kind {
            0 => (0.0, limit.into()),
            1 => (whole.into(), length.into()),
            _ => {
                let start = generator.uniform(0.0, f64::from(limit) - 0.01);
                (start, (f64::from(limit) - start) * generator.uniform(0.01, 0.999))
            }
        }
    }

    #[test]
    #[expect(clippy::cast_possible_truncation, reason = "whole numbers of pixels")]
    fn bits_are_those_of_fast_image_resize() {
        let mut generator = SampleSeed::new(3, 0, 0).op(0);
        let mut resampler = Resampler::default();
        for round in 0..1200 {
            let most = [6, 20, 60, 150][round % 4];
            let mut side = || 1 + generator.below(most);
            let view = Rect { x: side() - 1, y: side() - 1, width: side(), height: side() };
            let mut to = Size { height: side(), width: side() };
            let (stride, rows) = (view.x + view.width + generator.below(3), view.y + view.height);
            let pixels = noise(&mut generator, stride as usize * rows as usize * 3);
            let kind = generator.below(3);
            let (left, width) = span(&mut generator, view.width, kind);
            let (top, height) = span(&mut generator, view.height, kind);
            // Sides that are only copied.
            if kind < 2 && generator.chance(0.3) {
                to.width = width as u32;
            }
            if kind < 2 && generator.chance(0.3) {
                to.height = height as u32;
            }
            let window = Window { left, top, width, height };
            check(&mut resampler, Source { pixels: &pixels, stride: stride as usize, view }, window, to);
        }
    }

    #[test]
    fn sides_may_be_the_longest() {
        let mut generator = SampleSeed::new(4, 0, 0).op(0);
        let mut resampler = Resampler::default();
        let long = 65_535;
        for (from, to) in
            [([3, long], [2, 1]), ([long, 3], [1, 5]), ([2, long], [3, 777]), ([2, 3], [3, 32_768])]
        {
            let ([height, width], to) = (from, Size::from(to));
            let view = Rect { x: 0, y: 0, width, height };
            let pixels = noise(&mut generator, view.size().rgb_bytes());
            let window =
                Window { left: 0.0, top: 0.0, width: width.into(), height: f64::from(height) - 0.25 };
            check(&mut resampler, Source { pixels: &pixels, stride: width as usize, view }, window, to);
        }
    }
}
