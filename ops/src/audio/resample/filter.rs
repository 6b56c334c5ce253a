//! The filters: a sinc, cut to the lower of both bands, with a Kaiser window, sampled at the phases of a ratio.
//!
//! They are computed in f64 with functions that give the same bits on every machine, then rounded once.

/// Half the window's length, in samples of the lower rate. 42.5 makes 256 taps from 48 to 16 kHz, and with [`BETA`] a
/// transition of 0.88 … 1.0 of the lower band.
const HALF_WIDTH: f64 = 42.5;

/// The Kaiser window's shape: a stop band below −90 dB.
const BETA: f64 = 9.0;

/// The cut-off of the sinc, as a share of the lower band: the highest that keeps the stop band at 1.0.
const CUTOFF: f64 = 0.9325;

/// The most coefficients of all phases of one ratio (1 MiB). Up to this number, every phase has its own. Ratios with more
/// phases interpolate between the two nearest of a table.
const MAX_COEFFICIENTS: usize = 1 << 18;

/// Phases of that table per sample of the lower rate. Linear interpolation between two of them has an error below
/// (π / 512)² / 8 = −106 dB.
const TABLE_PHASES: f64 = 512.0;

/// The number of lanes in which taps are summed.
pub(super) const LANES: usize = 8;

/// The filter of one ratio.
pub(super) struct Filter {
    /// The reduced ratio: `up` output samples take the time of `down` input samples.
    pub(super) up: u64,
    pub(super) down: u64,
    /// Taps of a phase, a multiple of [`LANES`].
    pub(super) taps: usize,
    /// `phases` (one more for interpolation) × `taps`.
    coefficients: Vec<f32>,
    /// Phases per input sample.
    phases: u64,
}

/// The position of an output sample's taps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Place {
    /// The input sample of the first tap.
    pub(super) first: i64,
    pub(super) phase: usize,
    /// The distance from the phase towards the next one, 0 … 1.
    pub(super) towards_next: f32,
}

impl Filter {
    pub(super) fn kept_bytes(&self) -> usize {
        self.coefficients.capacity() * size_of::<f32>()
    }

    pub(super) fn new(up: u32, down: u32) -> Self {
        // Input samples per sample of the lower rate.
        let stretch = (f64::from(down) / f64::from(up)).max(1.0);
        let half = HALF_WIDTH * stretch;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "ratios are at most 256")]
        let (taps, table) = ((2.0 * half + 2.0) as usize, (TABLE_PHASES / stretch).ceil() as u64);
        let taps = taps.next_multiple_of(LANES);
        let exact = usize::try_from(up).is_ok_and(|up| up.saturating_mul(taps) <= MAX_COEFFICIENTS);
        let phases = if exact { u64::from(up) } else { table };
        let mut coefficients = Vec::new();
        for phase in 0..phases + u64::from(!exact) {
            let offset = phase as f64 / phases as f64;
            coefficients.extend(one_phase(offset, taps, half, CUTOFF / stretch));
        }
        Self { up: up.into(), down: down.into(), taps, coefficients, phases }
    }

    /// Whether outputs between two phases are interpolated.
    pub(super) fn interpolates(&self) -> bool {
        self.phases != self.up
    }

    pub(super) fn phase(&self, phase: usize) -> &[f32] {
        &self.coefficients[phase * self.taps..][..self.taps]
    }

    /// Returns the position of the taps of output sample `index`.
    pub(super) fn place(&self, index: u64) -> Place {
        let at = u128::from(index) * u128::from(self.down);
        let (whole, part) = (at / u128::from(self.up), at % u128::from(self.up) * u128::from(self.phases));
        let (phase, rest) = (part / u128::from(self.up), part % u128::from(self.up));
        #[expect(
            clippy::cast_possible_truncation,
            reason = "below 1, below the phases, and a place in an audio clip"
        )]
        Place {
            first: whole as i64 - (self.taps as i64 / 2 - 1),
            phase: phase as usize,
            towards_next: (rest as f64 / self.up as f64) as f32,
        }
    }
}

/// Returns the coefficients of one phase: the output is `offset` after the tap before the middle.
fn one_phase(offset: f64, taps: usize, half: f64, cutoff: f64) -> impl Iterator<Item = f32> {
    let middle = (taps / 2 - 1) as f64 + offset;
    let values: Vec<f64> = (0..taps).map(|tap| windowed_sinc(tap as f64 - middle, half, cutoff)).collect();
    // Each phase passes a constant unchanged.
    let scale = 1.0 / values.iter().sum::<f64>();
    #[expect(clippy::cast_possible_truncation, reason = "to single precision, once")]
    values.into_iter().map(move |value| (value * scale) as f32)
}

fn windowed_sinc(x: f64, half: f64, cutoff: f64) -> f64 {
    let inside = 1.0 - (x / half) * (x / half);
    if inside <= 0.0 {
        return 0.0;
    }
    let angle = std::f64::consts::PI * cutoff * x;
    let sinc = if x == 0.0 { 1.0 } else { libm::sin(angle) / angle };
    sinc * bessel(BETA * inside.sqrt()) / bessel(BETA)
}

/// Returns the modified Bessel function of the first kind and order 0, by its power series.
fn bessel(x: f64) -> f64 {
    let (mut sum, mut term, mut index) = (1.0, 1.0, 1.0);
    while term > sum * 1e-17 {
        let factor = x / (2.0 * index);
        term *= factor * factor;
        sum += term;
        index += 1.0;
    }
    sum
}
